//! Whoever is killed, between whichever two effects: Ansible is started once or not at all, the end is known, and no key is left.

use std::process::{Command, Stdio};

use super::*;

/// Set in the child that is the appliance: the folder of all, and what it does.
const APPLIANCE: &str = "SLIPWAY_RUNS_APPLIANCE";
const ID: &str = "a-1";

fn root_of_appliance() -> Option<PathBuf> {
    std::env::var_os(APPLIANCE).map(PathBuf::from)
}

/// An appliance, when it is started as one: has the run begin, and follows it to its end.
#[tokio::test]
async fn appliance_process() {
    let Some(top) = root_of_appliance() else { return };
    let runs = Runs::open(&top.join("runs"), supervisor()).unwrap();
    let runs = runs.telling(|effect| crash_at(&root_of_appliance().unwrap().join("runs"), effect));
    let installation = Installation {
        tree: top.join("kubespray"),
        environment: top.join("venv"),
        mirrors: Mirrors::default(),
        hidden: vec![top.join("runs")],
    };
    let request = request(ID);
    runs.start(&installation, &request).await.ok();
    if top.join("cancel").exists() {
        runs.cancel(&request.id).await.ok();
    }
    runs.follow(&request.id, |_| {}).await.ok();
}

/// An appliance that is killed, or whose supervisor is.
async fn crashed(place: &Place, effect: CrashPoint) {
    let root = place.runs().folder(&ID.parse().unwrap());
    let crash = root.parent().unwrap().join(CRASH);
    fs::write(&crash, format!("{effect:?}")).unwrap();
    let name = module_path!().split_once("::").unwrap().1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{name}::appliance_process"), "--nocapture"]).env(APPLIANCE, place.top.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = tokio::process::Command::from(command).spawn().unwrap();
    tokio::time::timeout(DEADLINE, child.wait()).await.expect("in time").unwrap();
    assert!(!crash.exists(), "{effect:?} came about");
}

#[tokio::test]
async fn ansible_is_started_at_most_once_wherever_somebody_is_killed() {
    let rows = [
        // The appliance.
        (CrashPoint::Made, true, 1),
        (CrashPoint::Filled, true, 1),
        (CrashPoint::Named, true, 1),
        (CrashPoint::SupervisorStarted, true, 1),
        // The supervisor.
        (CrashPoint::Locked, true, 1),
        (CrashPoint::StartNoted, false, 0),
        (CrashPoint::AnsibleStarted, false, 1),
        (CrashPoint::AnsibleEnded, false, 1),
        (CrashPoint::LeftoversEnded, false, 1),
        (CrashPoint::EndNoted, true, 1),
        (CrashPoint::Tidied, true, 1),
    ];
    for (effect, succeeds, starts) in rows {
        let place = Place::with_program(GOOD);
        crashed(&place, effect).await;
        // The appliance is back.
        let request = request(ID);
        place.runs().start(&place.installation(), &request).await.unwrap();
        let status = place.to_its_end(&request.id).await;
        match (&status.verdict, succeeds) {
            (Some(RunVerdict::Succeeded), true) => {}
            (Some(RunVerdict::Failed(reason)), false) => {
                assert!(reason.contains("supervisor died"), "{effect:?}: {reason}")
            }
            _ => panic!("{effect:?}: {status:?}"),
        }
        // Killed right after it was started, it may not have got to count.
        let counted = place.starts(&request.id);
        assert!(counted == starts || effect == CrashPoint::AnsibleStarted && counted == 0, "{effect:?}: {counted}");
        place.assert_tidy(&request.id);
        // However often it is asked for.
        place.runs().start(&place.installation(), &request).await.unwrap();
        assert_eq!(place.to_its_end(&request.id).await, status, "{effect:?}");
        assert_eq!(place.starts(&request.id), counted, "{effect:?}");
    }
}

#[tokio::test]
async fn a_cancel_that_was_noted_is_carried_out_after_a_crash() {
    let place =
        Place::with_program("echo started >> ../artifacts/starts; trap 'exit 3' TERM; while :; do sleep 1; done\n");
    fs::write(place.top.path().join("cancel"), "").unwrap();
    crashed(&place, CrashPoint::CancelNoted).await;
    let status = place.to_its_end(&ID.parse().unwrap()).await;
    assert_eq!(status.verdict, Some(RunVerdict::Cancelled), "{status:?}");
    place.assert_tidy(&ID.parse().unwrap());
}

#[tokio::test]
async fn many_who_ask_at_once_get_one_run() {
    let place = Place::with_program(GOOD);
    let request = request(ID);
    // Made, and without a supervisor.
    fs::create_dir_all(place.root()).unwrap();
    crashed(&place, CrashPoint::Named).await;
    let asked = (0..8).map(|_| {
        let (runs, id) = (place.runs(), request.id.clone());
        tokio::spawn(async move { runs.settle(&id).await })
    });
    for asked in asked.collect::<Vec<_>>() {
        asked.await.unwrap().unwrap();
    }
    assert_eq!(place.to_its_end(&request.id).await.verdict, Some(RunVerdict::Succeeded));
    assert_eq!(place.starts(&request.id), 1);
}

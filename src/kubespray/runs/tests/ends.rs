//! How runs end: by themselves, by a cancel, by their time; and what is read of them, kept and removed.

use super::super::folder::{ENDED, KEY, LOG, STARTED};
use super::*;

/// Does not end on SIGTERM, nor does what it left in a session of its own.
const DEAF: &str = r#"echo started >> ../artifacts/starts
trap '' TERM
setsid sh -c "trap '' TERM; while :; do sleep 1; done" &
touch ../artifacts/ready
while :; do sleep 1; done
"#;

#[tokio::test]
async fn what_is_cancelled_ends_with_all_that_it_started() {
    let place = Place::with_program("touch ../artifacts/ready; (setsid sleep 600 &) ; sleep 600\n");
    let request = request("a");
    assert_eq!(place.runs().start(&place.installation(), &request).await.unwrap(), RunPhase::Running);
    place.until(&request.id, "artifacts/ready").await;
    // Another appliance, as after a restart.
    let phase = place.runs().cancel(&request.id).await.unwrap();
    assert!(matches!(phase, RunPhase::Cancelling | RunPhase::Ended(_)), "{phase:?}");
    let status = place.to_its_end(&request.id).await;
    assert_eq!(status.verdict, Some(RunVerdict::Cancelled), "{status:?}");
    assert!(matches!(status.phase, RunPhase::Ended(RunEnd { cause: Cause::Cancelled, .. })), "{status:?}");
    place.assert_tidy(&request.id);
    // What is over stays as it is.
    assert_eq!(place.runs().cancel(&request.id).await.unwrap(), status.phase);
}

#[tokio::test]
async fn what_takes_too_long_or_is_deaf_is_ended() {
    let place = Place::with_program(DEAF);
    let request = request("a");
    let runs = place.runs();
    let folder = runs.folder(&request.id);
    let plan = SupervisorPlan { seconds: 5, ..super::super::command::plan(&place.installation(), &folder, &request) };
    runs.make(&folder, &plan, &serde_json::Map::new(), &request).unwrap();
    let status = place.to_its_end(&request.id).await;
    assert_eq!(status.verdict, Some(RunVerdict::Failed("took too long and was ended".into())), "{status:?}");
    assert_eq!(place.starts(&request.id), 1);
    place.assert_tidy(&request.id);
}

#[tokio::test]
async fn what_a_dead_supervisor_left_is_ended_before_the_run_is_lost() {
    let place = Place::with_program(DEAF);
    let request = request("a");
    place.runs().start(&place.installation(), &request).await.unwrap();
    place.until(&request.id, "artifacts/ready").await;
    let folder = place.runs().folder(&request.id);
    let started: super::super::state::Started = super::super::folder::read_json(&folder, STARTED).unwrap().unwrap();
    assert!(super::super::processes::signal(started.pid, started.start_time, rustix::process::Signal::KILL));
    let status = place.to_its_end(&request.id).await;
    assert_eq!(status.phase, RunPhase::Lost);
    assert!(!folder.join(ENDED).exists());
    place.assert_tidy(&request.id);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told() {
    let place = Place::with_program(GOOD);
    fs::remove_file(place.environment().join("bin/python3")).unwrap();
    let request = request("a");
    place.runs().start(&place.installation(), &request).await.unwrap();
    let status = place.to_its_end(&request.id).await;
    let Some(RunVerdict::Failed(reason)) = &status.verdict else { panic!("{status:?}") };
    assert!(reason.contains("could not be started") && reason.contains("bin/python3"), "{reason}");
    place.assert_tidy(&request.id);
}

#[tokio::test]
async fn a_supervisor_that_is_not_there_is_an_error_and_no_loop() {
    let place = Place::with_program(GOOD);
    let with = |program: &str| {
        let supervisor = RunSupervisor { program: program.into(), arguments: Vec::new() };
        Runs::open(&place.root(), supervisor).unwrap()
    };
    for (program, part) in
        [("/nonexistent", "cannot start its supervisor"), ("/bin/true", "did not begin: it ended with")]
    {
        let error = with(program).start(&place.installation(), &request("a")).await.unwrap_err().to_string();
        assert!(error.contains(part), "{program}: {error}");
    }
    // Nothing is lost by that.
    place.runs().start(&place.installation(), &request("a")).await.unwrap();
    assert_eq!(place.to_its_end(&"a".parse().unwrap()).await.verdict, Some(RunVerdict::Succeeded));
}

#[tokio::test]
async fn files_are_for_their_user_alone_and_no_key_is_on_a_command_line() {
    let place = Place::with_program("touch ../artifacts/ready; sleep 600\n");
    let request = RunRequest { secrets: vec!["hunter22 and more".into()], ..request("a") };
    place.runs().start(&place.installation(), &request).await.unwrap();
    place.until(&request.id, "artifacts/ready").await;
    let folder = place.runs().folder(&request.id);
    let mut open = vec![folder.clone()];
    while let Some(at) = open.pop() {
        let mode = fs::symlink_metadata(&at).unwrap().permissions().mode() & 0o777;
        let made_by_program = at.ends_with("ready");
        assert!(made_by_program || mode & 0o077 == 0, "{}: {mode:o}", at.display());
        if at.is_dir() {
            open.extend(fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert_eq!(fs::read_to_string(folder.join(KEY)).unwrap(), "a key of some length\n");
    for pid in super::super::processes::members(&folder) {
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            assert!(!text.contains("a key of") && !text.contains("hunter22"), "{file}");
            assert!(file != "environ" || !text.contains("CARGO"), "{text}");
        }
    }
    place.runs().cancel(&request.id).await.unwrap();
    place.to_its_end(&request.id).await;
}

#[tokio::test]
async fn a_log_is_read_in_parts_without_secrets_to_its_end() {
    let script = "echo 'first line'; echo \"password: hunter22-and-more\"; printf 'a\\033[2Jb\\n'; echo 'last line'\n";
    let place = Place::with_program(&format!("{script}{GOOD}"));
    let request = RunRequest { secrets: vec!["hunter22-and-more".into()], ..request("a") };
    place.runs().start(&place.installation(), &request).await.unwrap();
    place.to_its_end(&request.id).await;
    let runs = place.runs();
    let whole = runs.log(&request.id, 0).unwrap();
    let text = String::from_utf8(whole.bytes.clone()).unwrap();
    assert_eq!(text, "first line\npassword: ***\na\\u001b[2Jb\nlast line\nPLAY [all]\n");
    assert!(whole.last && whole.next == whole.bytes.len() as u64);
    let rest = runs.log(&request.id, 6).unwrap();
    assert_eq!(rest.bytes, whole.bytes[6..]);
    let beyond = runs.log(&request.id, 1 << 40).unwrap();
    assert!(beyond.bytes.is_empty() && beyond.last && beyond.next == whole.next);
    assert!(fs::metadata(runs.folder(&request.id).join(LOG)).unwrap().len() == whole.next);
}

#[tokio::test]
async fn runs_are_listed_and_removed_when_they_are_over() {
    let place = Place::with_program(GOOD);
    let runs = place.runs();
    for id in ["a", "b", "c"] {
        runs.start(&place.installation(), &request(id)).await.unwrap();
        place.to_its_end(&id.parse().unwrap()).await;
    }
    let names = |runs: &Runs| runs.list().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(&runs), ["a", "b", "c"]);
    runs.prune(2).unwrap();
    assert_eq!(names(&runs).len(), 2);
    let left = runs.list().unwrap();
    runs.remove(&left[0]).unwrap();
    assert_eq!(names(&runs), [left[1].to_string()]);
    assert!(matches!(runs.status(&left[0]), Err(RunsError::Unknown(_))));
    assert!(matches!(runs.remove(&left[0]), Err(RunsError::Unknown(_))));
    let place = Place::with_program("sleep 600\n");
    let runs = place.runs();
    runs.start(&place.installation(), &request("d")).await.unwrap();
    let id = "d".parse().unwrap();
    assert!(matches!(runs.remove(&id), Err(RunsError::UnderWay(_))));
    runs.prune(0).unwrap();
    assert_eq!(names(&runs), ["d"], "it is under way");
    runs.cancel(&id).await.unwrap();
    place.to_its_end(&id).await;
}

#[tokio::test]
async fn what_cannot_stand_in_a_setting_is_refused_before_anything_is_written() {
    let place = Place::with_program(GOOD);
    let odd = Installation { tree: place.top.path().join("a:b"), ..place.installation() };
    assert!(matches!(place.runs().start(&odd, &request("a")).await, Err(RunsError::Path(_))));
    let wrong = RunRequest { inventory: String::new(), ..request("a") };
    assert!(matches!(place.runs().start(&place.installation(), &wrong).await, Err(RunsError::Request(_))));
    assert!(place.runs().list().unwrap().is_empty());
    assert!(matches!(Runs::open(Path::new("relative"), supervisor()), Err(RunsError::Path(_))));
}

#[test]
fn a_folder_that_is_deeper_than_a_name_is_long_is_too_large_and_is_removed() {
    use rustix::fs::{Mode, OFlags, mkdirat, open, openat};

    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("deep");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "x").unwrap();
    fs::create_dir(folder.join("closed")).unwrap();
    fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    std::os::unix::fs::symlink(top.path(), folder.join("link")).unwrap();
    assert!(!super::super::folder::is_larger(&folder, 1 << 30, 100));
    let mut at = open(&folder, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..20_000 {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(at);
    assert!(super::super::folder::is_larger(&folder, 1 << 30, 1 << 30));
    super::super::folder::remove(&folder).unwrap();
    assert!(!folder.exists() && top.path().exists());
    super::super::folder::remove(&folder).unwrap();
}

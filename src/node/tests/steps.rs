//! Steps: in order, once, with what they need and no more; and those that go wrong.

use sha2::{Digest, Sha256};

use super::*;
use crate::hex::hex;

#[tokio::test]
async fn steps_are_worked_off_phase_by_phase_with_their_parameters_and_told() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let (order, file) = (node.path("order"), node.path("made/here/file"));
    appliance.world().files.insert("f".into(), b"content".to_vec());
    appliance.world().deployment = Some(json!({"token": base64("abcdef.0123456789abcdef")}));
    let sum = hex(&Sha256::digest("content"));
    let deploy = format!(
        "echo deploy $who $controlNodeIP >> {o}; stat -c %a $SLIPWAY_DEPLOYMENT >> {o}\n\
         cat $SLIPWAY_DEPLOYMENT/token; echo; umask\n\
         echo '{{\"version\": \"1.2\", \"none\": null}}' > $SLIPWAY_RESULT\n",
        o = order.display()
    );
    appliance.change(|spec| {
        *spec = json!({
            "deploymentSecretName": "n1-deployment",
            "stateItems": [
                bash("late", "reconfigure", &format!("echo late >> {}; [ -z \"$SLIPWAY_DEPLOYMENT\" ]", order.display())),
                {"name": "join", "runner": "bash", "phase": "deploy",
                    "params": {"script": deploy, "who": "mine", "controlNodeIP": "192.0.2.9"}},
                {"name": "fetch", "runner": "downloader", "phase": "prepare", "params":
                    {"url": "/files/f", "sha256": sum, "path": file, "mode": "0755"}},
            ],
            // `lcm` has put these into the steps.
            "stateItemsOverwrites": {"join": {"who": "another"}},
        });
    });
    node.while_it_runs(async {
        until("all is done", || ["fetch", "join", "late"].iter().all(|name| done(&appliance, name))).await;
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
        assert_eq!(node.read("order"), "deploy mine 192.0.2.9\n700\nlate\n");
        let join = appliance.step("join");
        assert_eq!(join["message"], "[secret] | 0022");
        assert_eq!(join["result"], json!({"version": "1.2"}));
        assert_eq!(join["attempt"], 1);
        assert!(join["startedAt"].is_string() && join["finishedAt"].is_string());
        let items = node.config();
        assert!(!items.run_folder.join("step").exists(), "no secret is left");
        let machine = appliance.world().machine.clone();
        let spec: crate::api::lcm::LCMMachineSpec = serde_json::from_value(machine["spec"].clone()).unwrap();
        for item in spec.items() {
            assert_eq!(appliance.step(&item.name)["hash"], item.hash(), "{}", item.name);
        }
        assert_eq!(machine["status"]["observedGeneration"], machine["metadata"]["generation"]);
        // What is not part of a hash does not have it done again; what is does, at once.
        appliance.change(|spec| spec["stateItems"][1]["params"]["controlNodeIP"] = "192.0.2.10".into());
        appliance.change(|spec| spec["stateItems"][0]["version"] = "2".into());
        until("it is done again", || node.read("order").ends_with("late\nlate\n")).await;
        assert_eq!(node.count("order"), 4);
    })
    .await;
}

#[tokio::test]
async fn a_step_that_fails_is_tried_again_and_those_behind_it_wait() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    appliance.world().files.insert("f".into(), b"other".to_vec());
    let (tries, behind, file, go) = (node.path("tries"), node.path("behind"), node.path("file"), node.path("go"));
    let sum = hex(&Sha256::digest("wanted"));
    let fails = format!("{}; [ -e {} ] || {{ echo not yet >&2; exit 7; }}", line(&tries), go.display());
    appliance.change(|spec| {
        spec["stateItems"] = json!([
            bash("flaky", "prepare", &fails),
            {"name": "wrong", "runner": "downloader", "phase": "prepare",
                "params": {"url": "/files/f", "sha256": sum, "path": file}},
            bash("behind", "prepare", &line(&behind)),
        ]);
    });
    node.while_it_runs(async {
        until("the first failed", || appliance.step("flaky")["exitCode"] == 7).await;
        assert_eq!(appliance.step("flaky")["message"], "not yet");
        std::fs::write(&go, "").unwrap();
        until("the first is done", || done(&appliance, "flaky")).await;
        let tried = node.count("tries");
        assert!(tried >= 2, "{tried}");
        assert_eq!(appliance.step("flaky")["attempt"], tried);
        until("the wrong one failed twice", || appliance.step("wrong")["attempt"].as_i64() >= Some(2)).await;
        until("it says why", || {
            let message = appliance.step("wrong")["message"].as_str().unwrap_or_default().to_owned();
            message.contains("checksum is wrong") && message.contains(&sum)
        })
        .await;
        assert!(!node.path("file").exists() && !node.path("behind").exists());
        appliance.world().files.insert("f".into(), b"wanted".to_vec());
        until("all is done", || done(&appliance, "behind")).await;
        assert_eq!(std::fs::read(&file).unwrap(), b"wanted");
        let names = std::fs::read_dir(node.top()).unwrap().flatten().map(|entry| entry.file_name());
        assert!(!names.into_iter().any(|name| name.to_string_lossy().ends_with(".part")), "nothing half is left");
    })
    .await;
}

#[tokio::test]
async fn a_step_that_hangs_is_ended_with_all_that_came_of_it() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let (alive, apart) = (node.path("alive"), node.path("apart"));
    let script = format!(
        "trap '' TERM\nsetsid bash -c 'echo $$ > {}; trap \"\" TERM; while :; do sleep 0.1; done' &\n\
         echo $$ > {}\necho begun\nwhile :; do sleep 0.1; done",
        apart.display(),
        alive.display()
    );
    let mut hangs = bash("hangs", "prepare", &script);
    hangs["params"]["timeout"] = "3s".into();
    appliance.change(|spec| spec["stateItems"] = json!([hangs]));
    node.while_it_runs(async {
        until("it is ended", || appliance.step("hangs")["exitCode"] == 124).await;
        let message = appliance.step("hangs")["message"].clone();
        assert!(message.as_str().unwrap().starts_with("begun | took longer than its timeout"), "{message}");
        appliance.change(|spec| spec["stateItems"] = json!([]));
        for name in ["alive", "apart"] {
            let pid = node.read(name).trim().to_owned();
            until("it is gone", || node.read(name).trim() != pid || !is_running(&pid)).await;
        }
    })
    .await;
    for name in ["alive", "apart"] {
        assert!(!is_running(node.read(name).trim()), "{name}");
    }
}

fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test]
async fn a_step_that_is_changed_or_taken_away_is_ended_first() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let (begun, other) = (node.path("begun"), node.path("other"));
    let hangs = format!("{}; exec sleep 600", line(&begun));
    appliance.change(|spec| spec["stateItems"] = json!([bash("a", "prepare", &hangs)]));
    node.while_it_runs(async {
        until("it has begun", || node.count("begun") == 1).await;
        until("that is told", || appliance.step("a")["startedAt"].is_string()).await;
        assert!(appliance.step("a")["exitCode"].is_null());
        // A parameter that is no part of it changes nothing.
        appliance.change(|spec| spec["stateItems"][0]["params"]["ucp_tag"] = "x".into());
        until("that was read", || {
            appliance.status()["observedGeneration"] == appliance.world().machine["metadata"]["generation"]
        })
        .await;
        assert_eq!(node.count("begun"), 1);
        appliance.change(|spec| spec["stateItems"] = json!([bash("a", "prepare", &line(&other))]));
        until("the changed one is done", || done(&appliance, "a")).await;
        assert_eq!(node.count("other"), 1);
        appliance.change(|spec| spec["stateItems"] = json!([bash("b", "prepare", &hangs)]));
        until("another has begun", || node.count("begun") == 2).await;
        appliance.change(|spec| spec["stateItems"] = json!([]));
        until("it is ended", || appliance.step("b")["exitCode"] == 143).await;
    })
    .await;
}

#[tokio::test]
async fn a_step_waits_for_its_deployment_data_and_says_so() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    appliance.change(|spec| {
        *spec = json!({"deploymentSecretName": "s", "stateItems": [
            bash("join", "deploy", "cat $SLIPWAY_DEPLOYMENT/a; [ $(ls $SLIPWAY_DEPLOYMENT | wc -l) = 1 ]")]});
    });
    node.while_it_runs(async {
        until("it waits", || {
            appliance.step("join")["message"].as_str().is_some_and(|reason| reason.contains("deployment data"))
        })
        .await;
        assert!(appliance.step("join")["startedAt"].is_null());
        // A key that would leave the folder is no name of a file.
        appliance.world().deployment = Some(json!({"../../x": base64("v")}));
        until("it is refused", || {
            appliance.step("join")["message"].as_str().is_some_and(|reason| reason.contains("no name"))
        })
        .await;
        appliance.world().deployment = Some(json!({"a": base64("value-of-a")}));
        until("it is done", || done(&appliance, "join")).await;
        assert_eq!(appliance.step("join")["message"], "[secret]");
    })
    .await;
}

#[tokio::test]
async fn what_is_written_wrong_is_said_and_not_run() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let rows = [
        (json!({"runner": "downloader", "params": {"url": "/files/f", "path": "/x"}}), "sha256 is missing"),
        (
            json!({"runner": "downloader", "params": {"url": "/files/f", "path": "x", "sha256": "0".repeat(64)}}),
            "absolute",
        ),
        (
            json!({"runner": "downloader", "params": {"url": "file:///etc/shadow", "path": "/tmp/x", "sha256": "0".repeat(64)}}),
            "http",
        ),
        (json!({"runner": "bash", "params": {}}), "script and path"),
        (json!({"runner": "bash", "params": {"script": "true", "a b": "c"}}), "environment"),
        (json!({"runner": "bash", "params": {"script": "true", "timeout": "soon"}}), "timeout"),
        (json!({"runner": "ansible", "params": {"playbook": "x.yml"}}), "absolute"),
        (json!({"runner": "bash", "params": {"script": "echo no > $SLIPWAY_RESULT; exit 3"}}), "no JSON"),
    ];
    node.while_it_runs(async {
        for (number, (item, wanted)) in rows.into_iter().enumerate() {
            let name = format!("s{number}");
            let mut item = item;
            item["name"] = name.clone().into();
            appliance.change(|spec| spec["stateItems"] = json!([item]));
            until(wanted, || appliance.step(&name)["message"].as_str().is_some_and(|reason| reason.contains(wanted)))
                .await;
            assert_ne!(appliance.step(&name)["exitCode"], 0);
        }
    })
    .await;
}

#[tokio::test]
async fn a_download_does_not_follow_a_link_where_others_write() {
    use std::os::unix::fs::PermissionsExt;
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    appliance.world().files.insert("f".into(), b"content".to_vec());
    let shared = node.path("shared");
    std::fs::create_dir_all(node.path("private")).unwrap();
    std::fs::create_dir(&shared).unwrap();
    std::os::unix::fs::symlink(node.path("private"), shared.join("link")).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    appliance.change(|spec| {
        spec["stateItems"] = json!([{"name": "f", "runner": "downloader", "params":
            {"url": "/files/f", "sha256": hex(&Sha256::digest("content")), "path": shared.join("link/file")}}]);
    });
    node.while_it_runs(async {
        until("it fails", || {
            appliance.step("f")["message"].as_str().is_some_and(|reason| reason.contains("not followed"))
        })
        .await;
        assert!(!node.path("private/file").exists());
    })
    .await;
}

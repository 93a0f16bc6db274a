//! What the agent keeps besides steps: keys, token, time, a reboot; with and without the appliance.

use jiff::Timestamp;

use super::*;
use crate::node::client::Client;

#[tokio::test]
async fn it_goes_on_with_the_last_spec_while_the_appliance_is_away_and_tells_afterwards() {
    let mut appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let (go, count) = (node.path("go"), node.path("count"));
    let waits = format!("[ -e {} ] || exit 1; {}", go.display(), line(&count));
    appliance.change(|spec| {
        spec["stateItems"] = json!([bash("a", "prepare", &waits), bash("b", "prepare", &line(&count))]);
        spec["sshAuthorizedKeys"] = json!(["ssh-ed25519 AAAA a"]);
    });
    node.while_it_runs(async { until("it failed once", || appliance.step("a")["exitCode"] == 1).await }).await;
    appliance.stop().await;
    node.write("go", "");
    // Another process, after a reboot, without the appliance.
    node.write("root/proc/sys/kernel/random/boot_id", "b2\n");
    node.write("root/root/.ssh/authorized_keys", "");
    node.while_it_runs(async {
        until("all is done", || node.count("count") == 2).await;
        until("keys are kept", || node.read("root/root/.ssh/authorized_keys").contains("AAAA")).await;
        assert!(!done(&appliance, "b"));
        appliance.back().await;
        until("it is told", || done(&appliance, "a") && done(&appliance, "b")).await;
    })
    .await;
    assert_eq!(node.count("count"), 2);
}

#[tokio::test]
async fn halted_or_in_maintenance_it_keeps_keys_and_nothing_else() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let count = node.path("count");
    node.write("root/root/.ssh/authorized_keys", "ssh-rsa mine\n");
    for (number, field) in ["haltAgent", "maintenance"].into_iter().enumerate() {
        appliance.change(|spec| {
            *spec = json!({"stateItems": [bash(field, "prepare", &line(&count))],
                "sshAuthorizedKeys": [format!("ssh-ed25519 KEY{number} a")]});
            spec[field] = true.into();
        });
        node.while_it_runs(async {
            let keys = |user: &str| node.read(&format!("root/{user}/.ssh/authorized_keys"));
            let wanted = format!("KEY{number}");
            until("keys are there", || keys("root").contains(&wanted) && keys("home/ops").contains(&wanted)).await;
            assert!(keys("root").starts_with("ssh-rsa mine\n"));
            until("the spec was read", || {
                appliance.status()["observedGeneration"] == appliance.world().machine["metadata"]["generation"]
            })
            .await;
            assert_eq!(node.count("count"), number);
            appliance.change(|spec| drop(spec.as_object_mut().unwrap().remove(field)));
            until("it goes on", || done(&appliance, field)).await;
        })
        .await;
    }
}

#[tokio::test]
async fn times_are_the_appliances_whatever_the_clock_says() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    appliance.world().date = Some("Tue, 05 Jan 2016 10:00:00 GMT".into());
    appliance.change(|spec| spec["stateItems"] = json!([bash("a", "prepare", "true")]));
    node.while_it_runs(async { until("it is done", || done(&appliance, "a")).await }).await;
    let status = appliance.status();
    for time in [&status["lastHeard"], &status["stateItemStatuses"]["a"]["finishedAt"]] {
        assert!(time.as_str().unwrap().starts_with("2016-01-05T10:0"), "{time}");
    }
    let boot = status["hostInfo"]["bootTime"].as_str().unwrap();
    assert!(boot.parse::<Timestamp>().unwrap() < "2016-01-05T10:00:01Z".parse().unwrap(), "{boot}");
}

#[tokio::test]
async fn a_reboot_that_is_asked_for_comes_about_once_and_is_told_by_the_next_boot() {
    // No release requires it.
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let reboots = node.path("reboots");
    node.set("rebootCommand", json!(["/bin/sh", "-c", line(&reboots)]));
    node.while_it_runs(async {
        until("it is there", || appliance.status()["lastHeard"].is_string()).await;
        assert_eq!(node.count("reboots"), 0, "nobody asked");
        let in_a_minute = Timestamp::now() + jiff::SignedDuration::from_secs(60);
        appliance.write_status(|status| status["reboot"] = json!({"requestedAt": in_a_minute.to_string()}));
        until("it reboots", || node.count("reboots") == 1).await;
    })
    .await;
    // The agent is started again before the node goes down.
    node.while_it_runs(async {
        let heard = appliance.status()["lastHeard"].clone();
        until("it is there again", || appliance.status()["lastHeard"] != heard).await;
    })
    .await;
    assert_ne!(appliance.status()["reboot"]["completed"], true);
    node.write("root/proc/sys/kernel/random/boot_id", "b2\n");
    node.while_it_runs(async {
        until("it is completed", || appliance.status()["reboot"]["completed"] == true).await;
        assert!(appliance.status()["reboot"]["requestedAt"].is_string(), "that is the appliance's");
    })
    .await;
    assert_eq!(node.count("reboots"), 1);
}

#[tokio::test]
async fn a_command_to_reboot_that_fails_is_said() {
    let appliance = FakeAppliance::with(json!({"rebootRequired": true})).await;
    let node = Node::of(&appliance);
    node.set("rebootCommand", json!(["/bin/false"]));
    let in_a_minute = Timestamp::now() + jiff::SignedDuration::from_secs(60);
    appliance.write_status(|status| status["reboot"] = json!({"requestedAt": in_a_minute.to_string()}));
    node.while_it_runs(async {
        until("it is said", || {
            appliance.status()["reboot"]["errorMessage"].as_str().is_some_and(|reason| reason.contains("/bin/false"))
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_token_is_renewed_and_is_whole_at_any_time() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    let now = Timestamp::now().as_second();
    let old = token(now - 2000, now + 900);
    node.write("token", &old);
    node.while_it_runs(async { until("it is renewed", || node.read("token") != old).await }).await;
    assert_eq!(appliance.world().tokens, 1);
    assert!(crate::node::token::claims(&node.read("token")).is_some());
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(node.path("token")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn where_it_cannot_watch_it_asks_and_other_appliances_are_not_believed() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    appliance.world().is_watchable = false;
    node.while_it_runs(async { until("it is there", || appliance.status()["lastHeard"].is_string()).await }).await;
    // The same address, and a CA of the same name.
    let other = FakeAppliance::with(json!({})).await;
    node.set("caCertificate", other.ca.clone().into());
    let client = Client::new(&node.config(), Default::default()).unwrap();
    let error = client.get().await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let secret = client.deployment().await.unwrap_err();
    assert!(secret.to_string().contains("certificate"), "{secret}");
}

#[tokio::test]
async fn one_machine_that_is_gone_is_left_as_it_is() {
    let appliance = FakeAppliance::with(json!({"sshAuthorizedKeys": ["ssh-ed25519 AAAA a"]})).await;
    let node = Node::of(&appliance);
    let count = node.path("count");
    let fails = format!("{}; exit 1", line(&count));
    appliance.change(|spec| spec["stateItems"] = json!([bash("a", "prepare", &fails)]));
    node.while_it_runs(async {
        until("it failed", || appliance.step("a")["exitCode"] == 1).await;
        node.set("name", "n2".into());
    })
    .await;
    node.set(
        "pauses",
        json!({"heartbeat": 2000, "retryLeast": 60_000, "retryMost": 60_000, "callLeast": 20, "callMost": 200}),
    );
    let agent = node.agent().await;
    let stop = CancellationToken::new();
    let before = node.count("count");
    tokio::select! {
        _ = agent.run(&stop) => panic!("it ended"),
        () = until("it is gone", || node.read("run/contact.json").contains("\"isGone\":true")) => {}
    }
    assert!(node.count("count") <= before + 2, "at most what was tried before that was known");
    assert!(node.read("root/root/.ssh/authorized_keys").contains("AAAA"), "nothing is undone");
}

#[tokio::test]
async fn a_report_has_its_own_fields_only_and_comes_seldom_where_nothing_changes() {
    let appliance = FakeAppliance::with(json!({})).await;
    let node = Node::of(&appliance);
    appliance.write_status(|status| {
        *status = json!({"state": "Prepare", "release": "r1", "conditions": [{"type": "Ready"}],
            "stateItemStatuses": {"stranger": {"hash": "x"}}});
    });
    node.while_it_runs(async {
        until("three reports", || appliance.world().patches.len() >= 3).await;
    })
    .await;
    let status = appliance.status();
    assert_eq!((&status["state"], &status["release"]), (&json!("Prepare"), &json!("r1")));
    assert!(status["stateItemStatuses"].get("stranger").is_none(), "the agent knows what it did");
    let addresses = status["addresses"].as_array().unwrap();
    assert!(addresses.contains(&json!({"type": "Hostname", "address": "n1"})), "{addresses:?}");
    assert!(addresses.contains(&json!({"type": "InternalIP", "address": "127.0.0.1"})), "{addresses:?}");
    let own = ["stateItemStatuses", "addresses", "hostInfo", "agentVersion", "observedGeneration", "lastHeard"];
    let patches = appliance.world().patches.clone();
    for patch in &patches {
        let fields = patch["status"].as_object().unwrap();
        assert!(fields.keys().all(|field| own.contains(&field.as_str())), "{patch}");
    }
    let last = patches.last().unwrap()["status"].as_object().unwrap();
    assert_eq!(last.keys().collect::<Vec<_>>(), ["lastHeard"], "a heartbeat is that and no more");
}

//! `slipway node` as a process, against `slipway serve` as another: a node works off its LCMMachine and says what became of it, is
//! killed at any moment, has no room, replaces itself, and can do to the appliance what it must and nothing else.

mod machine;
mod replaced;
mod rights;

use std::time::Duration;

use machine::{Site, bash, line};
use nix::sys::signal::Signal;
use serde_json::json;
use sha2::{Digest, Sha256};
use slipway::hex::hex;

use crate::needs;
use crate::process::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_works_off_its_machine_and_says_what_became_of_it() {
    let site = Site::new("").await;
    let node = site.node("n1").await;
    let file = node.path("ca.pem");
    let boot = format!("http://{}/boot/ca.pem", site.appliance.boot);
    let ca = reqwest::get(&boot).await.unwrap().bytes().await.unwrap();
    let noise = "printf '\\033[2J\\007'; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last words";
    node.write_spec(json!({
        "clusterName": "c1", "type": "worker", "sshAuthorizedKeys": ["ssh-ed25519 AAAA ops"],
        "stateItems": [
            {"name": "fetch", "runner": "downloader", "phase": "prepare", "params":
                {"url": boot, "sha256": hex(&Sha256::digest(&ca)), "path": file}},
            bash("loud", "prepare", noise),
            bash("count", "deploy", &line(&node.path("count"))),
        ],
    }))
    .await;
    let agent = node.start();
    node.done("count").await;
    assert_eq!(std::fs::read(&file).unwrap(), ca);
    let status = node.status().await;
    let message = status["stateItemStatuses"]["loud"]["message"].as_str().unwrap();
    assert!(message.len() <= 4096 && message.ends_with("last words"), "{}", message.len());
    assert!(!message.contains(|c: char| c.is_control()));
    assert_eq!(status["hostInfo"]["architecture"], std::env::consts::ARCH);
    assert!(status["hostInfo"]["bootTime"].is_string() && status["lastHeard"].is_string());
    assert!(status["addresses"].to_string().contains("\"InternalIP\""), "{status}");
    until("keys are kept", async || node.read("root/root/.ssh/authorized_keys").contains("AAAA").then_some(())).await;
    let told = node.slipway(&["status"]).await;
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && text.contains("3 of 3 done"), "{text}");
    println!("memory at rest: {}", agent.memory());
    agent.end(Signal::SIGTERM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_beside_an_appliance_that_is_killed_too() {
    let mut site = Site::new("").await;
    let node = site.node("n1").await;
    let count = node.path("count");
    let items: Vec<_> = (0..12)
        .map(|number| bash(&format!("s{number:02}"), "prepare", &format!("echo {number} >> {}", count.display())))
        .collect();
    node.write_spec(json!({"stateItems": items})).await;
    for round in 0..10 {
        let agent = node.start();
        let wanted = round + 1;
        until("a step more", async || (node.read("count").lines().count() >= wanted).then_some(())).await;
        // Anywhere in what comes next.
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..30))).await;
        agent.end(Signal::SIGKILL).await;
        if round == 5 {
            site.appliance.restart(true).await;
        }
    }
    let agent = node.start();
    node.done("s11").await;
    agent.end(Signal::SIGTERM).await;
    let ran: Vec<usize> = node.read("count").lines().map(|line| line.parse().unwrap()).collect();
    assert!(ran.is_sorted(), "in order, and none again that was noted as done: {ran:?}");
    let status = node.status().await;
    for number in 0..12 {
        let times = ran.iter().filter(|ran| **ran == number).count();
        let step = &status["stateItemStatuses"][format!("s{number:02}")];
        assert_eq!(step["exitCode"], 0);
        assert!(times >= 1 && times as i64 <= step["attempt"].as_i64().unwrap(), "{number}: {times} {step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_a_step_waits_and_none_that_was_done_is_lost() {
    if !needs::program("unshare") {
        return;
    }
    let site = Site::new("").await;
    let node = site.node("n1").await;
    let count = node.path("count");
    let filler = node.path("state/filler");
    let fills = format!("{}; dd if=/dev/zero of={} bs=4096 2>/dev/null; true", line(&count), filler.display());
    node.write_spec(json!({"stateItems": [
        bash("fills", "prepare", &fills),
        bash("next", "prepare", &line(&count)),
    ]}))
    .await;
    let Some(agent) = node.start_on_a_small_disk("600k").await else {
        return needs::kernel_lacks("there can be no namespaces here");
    };
    node.done("fills").await;
    let reason = until("the next one waits", async || {
        let message = node.status().await["stateItemStatuses"]["next"]["message"].as_str()?.to_owned();
        message.contains("waiting for room").then_some(message)
    })
    .await;
    assert!(reason.contains("No space left"), "{reason}");
    assert_eq!(node.read("count").lines().count(), 1);
    // Somebody makes room, inside the agent's own file systems.
    std::fs::remove_file(agent.inside(&filler)).unwrap();
    node.done("next").await;
    assert_eq!(node.read("count").lines().count(), 2);
    agent.end(Signal::SIGTERM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ansible_runs_without_a_terminal_and_with_the_steps_variables() {
    let Some(venv) = needs::ansible() else { return };
    let site = Site::new("").await;
    let node = site.node("n1").await;
    let playbook = node.path("play.yml");
    let text = "- hosts: all\n  gather_facts: false\n  tasks:\n  - name: say\n    debug: {msg: \"hello {{ who }}\"}\n  \
                - copy: {dest: \"{{ to }}\", content: \"{{ who }}\"}\n";
    std::fs::write(&playbook, text).unwrap();
    node.set("path", json!(format!("{}:/usr/bin:/bin", venv.join("bin").display())));
    node.write_spec(json!({"stateItems": [
        {"name": "play", "runner": "ansible", "phase": "prepare", "params":
            {"playbook": playbook, "who": "{{ 'not' }} me", "to": node.path("made")}},
        {"name": "bad", "runner": "ansible", "phase": "deploy", "params": {"playbook": "/nowhere.yml"}},
    ]}))
    .await;
    let agent = node.start();
    node.done("play").await;
    let message = node.status().await["stateItemStatuses"]["play"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("failed=0") && !message.contains('\u{1b}'), "{message}");
    assert!(node.path("made").exists());
    until("a playbook that is not there fails", async || {
        let status = node.status().await;
        let step = &status["stateItemStatuses"]["bad"];
        (step["exitCode"].as_i64()? != 0 && step["message"].as_str()?.contains("nowhere.yml")).then_some(())
    })
    .await;
    agent.end(Signal::SIGTERM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_and_check_say_by_their_exit_code_how_it_went() {
    let mut site = Site::new("").await;
    let node = site.node("n1").await;
    let good = node.path("good");
    let waits = format!("[ -e {} ] || {{ echo not good; exit 9; }}", good.display());
    node.write_spec(json!({"stateItems": [bash("a", "prepare", &waits)]})).await;
    assert_eq!(node.slipway(&["--check"]).await.status.code(), Some(0));
    let failed = node.slipway(&["--once"]).await;
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("a is not done: not good"), "{failed:?}");
    assert_eq!(node.status().await["stateItemStatuses"]["a"]["exitCode"], 9);
    site.appliance.end().await;
    assert_eq!(node.slipway(&["--check"]).await.status.code(), Some(75), "it is away");
    std::fs::write(&good, "").unwrap();
    assert_eq!(node.slipway(&["--once"]).await.status.code(), Some(0), "the spec is on the disk");
    site.appliance.start_again();
    let agent = node.start();
    node.done("a").await;
    agent.end(Signal::SIGTERM).await;
    node.set("server", json!("http://x"));
    assert_eq!(node.slipway(&["--check"]).await.status.code(), Some(2));
}

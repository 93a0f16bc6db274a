//! Killed after each of its effects, and started again on what it left: every step is done, none is told done that was not, and no
//! secret is left.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};

use super::*;
use crate::hex::hex;
use crate::node::NodeEffect;

/// Set in the child that is the agent: the node's folder.
const AGENT: &str = "SLIPWAY_NODE_OF_TEST";

fn top_of_agent() -> Option<PathBuf> {
    std::env::var_os(AGENT).map(PathBuf::from)
}

/// Dies as by `kill -9` where that is wanted, once.
fn die_at(effect: NodeEffect) {
    let crash = top_of_agent().unwrap().join("crash");
    if std::fs::read_to_string(&crash).is_ok_and(|wanted| wanted == format!("{effect:?}")) {
        std::fs::remove_file(&crash).unwrap();
        kill(Pid::this(), Signal::SIGKILL).unwrap();
    }
}

/// The agent, when it is started as one.
#[tokio::test]
async fn agent_process() {
    let Some(top) = top_of_agent() else { return };
    let file = top.join("node.json");
    let agent = Agent::start(NodeConfig::load(&file).unwrap(), &file, true, die_at).await.unwrap();
    agent.run(&CancellationToken::new()).await;
}

fn start(node: &Node) -> tokio::process::Child {
    let name = module_path!().split_once("::").unwrap().1;
    tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{name}::agent_process"), "--nocapture"])
        .env(AGENT, node.top())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// How often a step may have run: once more where it was killed between its first line and the note of its end. Reports, keys and the
/// token are beside the steps, at any moment of them.
fn most_runs(effect: NodeEffect) -> usize {
    let within = [NodeEffect::Begun, NodeEffect::Ended, NodeEffect::LeftoversEnded, NodeEffect::DeploymentRemoved];
    let beside = [NodeEffect::Told, NodeEffect::KeysWritten, NodeEffect::TokenWritten];
    1 + usize::from(within.contains(&effect) || beside.contains(&effect))
}

async fn killed_after(effect: NodeEffect) {
    let appliance = FakeAppliance::with(json!({"rebootRequired": true})).await;
    let node = Node::of(&appliance);
    node.set("rebootCommand", json!(["/bin/sh", "-c", line(&node.path("reboots"))]));
    let now = jiff::Timestamp::now().as_second();
    node.write("token", &token(now - 2000, now + 900));
    node.write("crash", &format!("{effect:?}"));
    appliance.world().files.insert("f".into(), b"content".to_vec());
    appliance.world().deployment = Some(json!({"token": base64("abcdef.0123456789abcdef")}));
    let join = format!("{}; cat $SLIPWAY_DEPLOYMENT/token", line(&node.path("joined")));
    appliance.change(|spec| {
        spec["deploymentSecretName"] = "s".into();
        spec["sshAuthorizedKeys"] = json!(["ssh-ed25519 AAAA a"]);
        spec["stateItems"] = json!([
            {"name": "fetch", "runner": "downloader", "phase": "prepare", "params":
                {"url": "/files/f", "sha256": hex(&Sha256::digest("content")), "path": node.path("file")}},
            bash("join", "deploy", &join),
        ]);
    });
    if effect == NodeEffect::RebootNoted {
        let in_a_minute = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
        appliance.write_status(|status| status["reboot"] = json!({"requestedAt": in_a_minute.to_string()}));
    }
    let mut first = start(&node);
    tokio::time::timeout(DEADLINE, first.wait()).await.unwrap_or_else(|_| panic!("{effect:?} came about")).unwrap();
    assert!(!node.path("crash").exists(), "{effect:?} came about");
    for name in ["fetch", "join"] {
        // What is told done was done.
        assert!(!done(&appliance, name) || node.path(if name == "join" { "joined" } else { "file" }).exists());
    }
    if effect == NodeEffect::RebootNoted {
        // Killed between the note and the command: the node was to go down, and somebody sees to that.
        node.write("root/proc/sys/kernel/random/boot_id", "b2\n");
    }
    let mut second = start(&node);
    until(&format!("all is done after {effect:?}"), || {
        assert!(second.try_wait().unwrap().is_none(), "{effect:?}: it runs");
        done(&appliance, "fetch") && done(&appliance, "join") && appliance.world().tokens > 0
    })
    .await;
    until("keys are there", || node.read("root/root/.ssh/authorized_keys").contains("AAAA")).await;
    until("the token is new", || {
        crate::node::token::claims(node.read("token").trim()).is_some_and(|new| new.from < 10)
    })
    .await;
    second.kill().await.unwrap();
    let runs = node.count("joined");
    assert!((1..=most_runs(effect)).contains(&runs), "{effect:?}: {runs}");
    assert_eq!(std::fs::read(node.path("file")).unwrap(), b"content");
    assert!(!node.path("run/step").exists(), "{effect:?}: no secret is left");
    assert_eq!(appliance.step("join")["message"], "[secret]");
    assert_eq!(node.read("root/root/.ssh/authorized_keys").matches("AAAA").count(), 1);
    assert!(node.count("reboots") <= 1);
}

#[tokio::test]
async fn killed_after_any_of_its_effects_it_goes_on_where_it_was() {
    for effect in [
        NodeEffect::SpecKept,
        NodeEffect::DeploymentLaid,
        NodeEffect::BeginNoted,
        NodeEffect::Begun,
        NodeEffect::Fetched,
        NodeEffect::Placed,
        NodeEffect::Ended,
        NodeEffect::LeftoversEnded,
        NodeEffect::DeploymentRemoved,
        NodeEffect::EndNoted,
        NodeEffect::Told,
        NodeEffect::KeysWritten,
        NodeEffect::TokenWritten,
        NodeEffect::RebootNoted,
    ] {
        killed_after(effect).await;
    }
}

//! The agent replaces itself, and goes back where the new one does not come up.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slipway::hex::hex;
use tokio_util::task::AbortOnDropHandle;

use super::machine::{Node, Site, bash, line};
use crate::process::{program, until};

/// What nodes fetch their agent from.
struct Programs {
    url: String,
    folder: PathBuf,
    _server: AbortOnDropHandle<()>,
}

impl Programs {
    async fn serve(folder: PathBuf) -> Self {
        std::fs::create_dir_all(&folder).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(send).with_state(folder.clone());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, folder, _server: AbortOnDropHandle::new(server) }
    }

    /// `agentConfig` for a program with this content.
    fn with(&self, name: &str, content: &[u8]) -> Value {
        std::fs::write(self.folder.join(name), content).unwrap();
        json!({"downloadURL": format!("{}/{name}", self.url), "sha256": hex(&Sha256::digest(content))})
    }
}

async fn send(State(folder): State<PathBuf>, uri: http::Uri) -> impl IntoResponse {
    std::fs::read(folder.join(uri.path().trim_start_matches('/'))).map_err(|_| http::StatusCode::NOT_FOUND)
}

async fn told(node: &Node, part: &str) -> Value {
    until(&format!("it tells {part:?}"), async || {
        let upgrade = node.status().await["lcmAgentUpgradeStatus"].clone();
        upgrade["error"].as_str()?.contains(part).then_some(upgrade)
    })
    .await
}

fn installed(node: &Node) -> PathBuf {
    let at = node.path("bin/slipway");
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::copy(program(), &at).unwrap();
    node.set("program", json!(at));
    at
}

fn sum(path: &Path) -> String {
    hex(&Sha256::digest(std::fs::read(path).unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_replaced_by_one_that_comes_up_and_by_no_other() {
    let site = Site::new("").await;
    let node = site.node("n1").await;
    let at = installed(&node);
    let old = sum(&at);
    let programs = Programs::serve(node.path("programs")).await;
    node.set("pauses", json!({"heartbeat": 1000, "retryLeast": 100, "retryMost": 500, "callLeast": 50, "callMost": 500, "trial": 20_000}));
    let agent = node.start_program(&at);
    let pid = agent.pid();

    // Another file than was promised.
    let mut config = programs.with("wrong", b"#!/bin/sh\n");
    config["sha256"] = "0".repeat(64).into();
    node.write_spec(json!({"agentConfig": config})).await;
    told(&node, "checksum is wrong").await;
    // One that is none, one that does not check, one that dies when it is to report, one that never does.
    let trials = node.path("trials");
    let dies = format!("#!/bin/sh\n[ \"$2\" = --check ] && exit 0\n{}\necho dead >&2; exit 3\n", line(&trials));
    for (name, content, part) in [
        ("none", "no program".to_owned(), "does not check"),
        ("unchecked", "#!/bin/sh\necho no such option >&2; exit 2\n".to_owned(), "no such option"),
        ("dies", dies, "does not come up"),
        ("hangs", "#!/bin/sh\n[ \"$2\" = --check ] && exit 0\nexec sleep 600\n".to_owned(), "did not report within"),
    ] {
        node.write_spec(json!({"agentConfig": programs.with(name, content.as_bytes())})).await;
        let upgrade = told(&node, part).await;
        assert_eq!(upgrade["attempt"], 1, "{name}: {upgrade}");
        assert_eq!(sum(&at), old, "{name}");
        assert!(!node.path("bin/slipway.new").exists(), "{name}");
    }
    assert_eq!(node.read("trials").lines().count(), 2, "it is tried twice, and not again");
    // It works on meanwhile.
    node.write_spec(json!({"stateItems": [bash("a", "prepare", "true")]})).await;
    node.done("a").await;

    // The same program with a byte more is another one.
    let mut content = std::fs::read(program()).unwrap();
    content.push(0);
    let config = programs.with("good", &content);
    node.write_spec(json!({"agentConfig": config})).await;
    until("it has its place", async || (sum(&at) == config["sha256"].as_str().unwrap()).then_some(())).await;
    until("it stays", async || (!node.path("state/trial").exists()).then_some(())).await;
    node.write_spec(json!({"stateItems": [bash("b", "prepare", "true")]})).await;
    node.done("b").await;
    assert_eq!(agent.pid(), pid, "in the same process, as its unit has it");
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(exe, at);
    assert_eq!(sum(Path::new(&format!("/proc/{pid}/exe"))), config["sha256"].as_str().unwrap());
    let upgrade = node.status().await["lcmAgentUpgradeStatus"].clone();
    assert_eq!(upgrade["error"].as_str().unwrap_or_default(), "");
    assert!(upgrade["finishedAt"].is_string(), "{upgrade}");
    agent.end(Signal::SIGTERM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_in_its_place_makes_room_for_the_old_one() {
    let site = Site::new("").await;
    let node = site.node("n1").await;
    let at = installed(&node);
    let old = sum(&at);
    let programs = Programs::serve(node.path("programs")).await;
    // It reports, and fails when it is to work.
    let wrapper =
        format!("#!/bin/sh\ncase \"$2\" in --check|--trial) exec {} \"$@\";; esac\nexit 1\n", program().display());
    let config = programs.with("fails", wrapper.as_bytes());
    node.write_spec(json!({"agentConfig": config})).await;
    let mut agent = node.start_program(&at);
    agent.ended().await;
    assert_ne!(sum(&at), old);
    // What its unit does, each time that it is started.
    let unit = include_str!("../../../systemd/slipway-node.service");
    let script =
        unit.lines().find_map(|line| line.strip_prefix("ExecStartPre=-/bin/sh -c '")?.strip_suffix('\'')).unwrap();
    let script = script
        .replace("$$", "$")
        .replace("/var/lib/slipway-node", node.path("state").to_str().unwrap())
        .replace("/usr/local/lib/slipway/slipway", at.to_str().unwrap());
    let mut starts = 0;
    while sum(&at) != old {
        assert!(std::process::Command::new("/bin/sh").args(["-c", &script]).status().unwrap().success());
        if sum(&at) == old {
            break;
        }
        starts += 1;
        assert!(starts < 10);
        node.start_program(&at).ended().await;
    }
    assert_eq!(starts, 3);
    let agent = node.start_program(&at);
    let upgrade = told(&node, "the old one is back").await;
    let count = node.path("count");
    node.write_spec(json!({"stateItems": [bash("a", "prepare", &line(&count))]})).await;
    node.done("a").await;
    assert_eq!(sum(&at), old, "it is not tried again: {upgrade}");
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
    agent.end(Signal::SIGTERM).await;
}

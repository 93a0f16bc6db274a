//! The agent against an appliance of a test: every duty of it, every bad luck.

mod crash;
mod fake;
mod steps;
mod upkeep;

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::agent::Agent;
use super::config::NodeConfig;
use fake::FakeAppliance;

/// Nothing that is waited for takes longer.
const DEADLINE: Duration = Duration::from_secs(120);

/// A token of the node's account.
fn token(from: i64, until: i64) -> String {
    let payload = json!({"iat": from, "exp": until, "sub": "system:serviceaccount:rack:lcm-n1"}).to_string();
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
}

/// A node's disk and memory, and its configuration.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn of(appliance: &FakeAppliance) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Self { folder };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let passwd = format!("root:x:{uid}:{gid}:root:/root:/bin/bash\nops:x:{uid}:{gid}::/home/ops:/bin/sh\n");
        node.write("root/etc/passwd", &passwd);
        node.write("root/proc/sys/kernel/random/boot_id", "b1\n");
        node.write("root/proc/sys/kernel/hostname", "n1\n");
        for home in ["root/root", "root/home/ops"] {
            std::fs::create_dir_all(node.path(home)).unwrap();
        }
        node.write("token", &token(0, i64::MAX / 4));
        node.configure(&json!({
            "server": format!("https://{}", appliance.address), "caCertificate": appliance.ca, "namespace": "rack",
            "name": "n1", "tokenFile": node.path("token"), "sshUser": "ops", "stateFolder": node.path("state"),
            "runFolder": node.path("run"), "root": node.path("root"), "rebootCommand": ["/bin/true"],
            "pauses": {"heartbeat": 2000, "retryLeast": 100, "retryMost": 400, "callLeast": 20, "callMost": 200,
                "grace": 200},
        }));
        node
    }

    fn top(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn configure(&self, config: &Value) {
        self.write("node.json", &config.to_string());
    }

    /// Changes its configuration.
    fn set(&self, field: &str, value: Value) {
        let mut config: Value = serde_json::from_str(&self.read("node.json")).unwrap();
        config[field] = value;
        self.configure(&config);
    }

    fn config(&self) -> NodeConfig {
        NodeConfig::load(&self.path("node.json")).unwrap()
    }

    async fn agent(&self) -> Agent {
        Agent::start(self.config(), &self.path("node.json"), false, |_| {}).await.unwrap()
    }

    /// Has the agent run for as long as this takes.
    async fn while_it_runs<T>(&self, act: impl Future<Output = T>) -> T {
        let agent = self.agent().await;
        let stop = CancellationToken::new();
        let done = tokio::select! {
            end = agent.run(&stop) => panic!("the agent ended: {end:?}"),
            done = tokio::time::timeout(DEADLINE, act) => done.expect("in time"),
        };
        stop.cancel();
        agent.run(&stop).await;
        done
    }

    /// How often a step wrote its line.
    fn count(&self, name: &str) -> usize {
        self.read(name).lines().count()
    }
}

/// Waits until it is so.
async fn until(what: &str, mut look: impl FnMut() -> bool) {
    let give_up = tokio::time::Instant::now() + DEADLINE;
    while !look() {
        assert!(tokio::time::Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A step of bash.
fn bash(name: &str, phase: &str, script: &str) -> Value {
    json!({"name": name, "runner": "bash", "phase": phase, "params": {"script": script}})
}

/// Whether a step is done.
fn done(appliance: &FakeAppliance, name: &str) -> bool {
    appliance.step(name)["exitCode"] == 0
}

fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// A line in a file.
fn line(path: &Path) -> String {
    format!("echo x >> {}", path.display())
}

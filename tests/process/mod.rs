//! The appliance as a process of a test.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// Nothing that is waited for takes longer.
pub const DEADLINE: Duration = Duration::from_secs(90);
/// Between two tries.
pub const PAUSE: Duration = Duration::from_millis(50);

/// `slipway serve` on loopback, without networks. Killed when it is dropped.
pub struct Appliance {
    folder: tempfile::TempDir,
    process: Child,
    /// Address of the API.
    pub address: SocketAddr,
}

impl Appliance {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (api, boot) = (free_port(), free_port());
        let text = format!(
            "data_dir = {:?}\n[api]\nlisten = \"127.0.0.1:{api}\"\n[boot]\nlisten = \"127.0.0.1:{boot}\"\n\
             tftp = \"127.0.0.1:{boot}\"\n[log]\nlevel = \"warn\"\n",
            folder.path().join("data")
        );
        std::fs::write(folder.path().join("slipway.toml"), text).unwrap();
        let process = start(folder.path());
        Self { folder, process, address: ([127, 0, 0, 1], api).into() }
    }

    /// kill -9, or SIGTERM, and a new process with the same data and port.
    pub async fn restart(&mut self, hard: bool) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.process.id().unwrap()).unwrap());
        let signal = if hard { nix::sys::signal::Signal::SIGKILL } else { nix::sys::signal::Signal::SIGTERM };
        nix::sys::signal::kill(pid, signal).unwrap();
        self.process.wait().await.unwrap();
        self.process = start(self.folder.path());
    }

    /// The administrator's kubeconfig, empty when it cannot be had yet.
    pub async fn kubeconfig(&self) -> String {
        let config = self.folder.path().join("slipway.toml");
        let output = Command::new(program()).arg("kubeconfig").arg("--config").arg(&config).output().await.unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// A client as the administrator, once the API is ready.
    pub async fn client(&self) -> Client {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Ok(text) = Kubeconfig::from_yaml(&self.kubeconfig().await)
                && let Ok(config) = Config::from_custom_kubeconfig(text, &KubeConfigOptions::default()).await
                && let Ok(client) = Client::try_from(config)
                && client.apiserver_version().await.is_ok()
            {
                return client;
            }
            assert!(Instant::now() < until, "the API does not answer");
            sleep(PAUSE).await;
        }
    }
}

/// A port below those that the kernel gives to outgoing connections: none takes it while the appliance is restarted.
fn free_port() -> u16 {
    loop {
        let port = rand::random_range(20_000..32_000);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_slipway"))
}

fn start(folder: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    Command::new(program())
        .arg("serve")
        .arg("--config")
        .arg(folder.join("slipway.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

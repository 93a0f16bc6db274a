//! The appliance as a process of a test.

pub mod machine;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

pub use crate::needs::free_port;

/// Nothing that is waited for takes longer.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// Between two tries.
pub const PAUSE: Duration = Duration::from_millis(50);

/// What `look` finds in the end.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "not in time: {what}");
        sleep(PAUSE).await;
    }
}

/// `slipway serve` on loopback, without networks. Killed when it is dropped.
pub struct Appliance {
    folder: tempfile::TempDir,
    /// Where its data folder is, if not in there.
    elsewhere: Option<PathBuf>,
    /// None before it was started.
    process: Option<Child>,
    /// Address of the API.
    pub address: SocketAddr,
    /// Address of boot HTTP.
    pub boot: SocketAddr,
}

impl Appliance {
    pub async fn new() -> Self {
        Self::with("").await
    }

    /// With these tables more in its configuration.
    pub async fn with(more: &str) -> Self {
        let mut made = Self::prepared();
        made.configure(more);
        made.process = Some(start(made.folder.path()));
        made
    }

    /// With its data folder elsewhere, and these tables more in its configuration.
    pub async fn with_data(data: PathBuf, more: &str) -> Self {
        let mut made = Self { elsewhere: Some(data), ..Self::prepared() };
        made.configure(more);
        made.process = Some(start(made.folder.path()));
        made
    }

    /// As systemd starts a service of `Type=notify` that it watches, with these tables more in its configuration.
    pub async fn notifying(socket: &Path, watchdog: Duration, more: &str) -> Self {
        let mut made = Self::prepared();
        made.configure(more);
        let mut watched = Command::new(program());
        watched.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        made.process = Some(spawn(watched, made.folder.path()));
        made
    }

    /// With limits of its process, as sh's `ulimit` takes them, the hard ones included.
    pub async fn limited(ulimit: &str) -> Self {
        Self::limited_with(ulimit, "").await
    }

    /// The same, with these tables more in its configuration.
    pub async fn limited_with(ulimit: &str, more: &str) -> Self {
        let mut made = Self::prepared();
        made.configure(more);
        let mut limited = Command::new("/bin/sh");
        limited.arg("-c").arg(format!("{ulimit}; exec \"$0\" \"$@\"")).arg(program());
        made.process = Some(spawn(limited, made.folder.path()));
        made
    }

    fn prepared() -> Self {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (address, boot) = (address(free_port()), address(free_port()));
        Self { folder: tempfile::tempdir().unwrap(), elsewhere: None, process: None, address, boot }
    }

    fn configure(&self, more: &str) {
        let (data, api, boot) = (self.data(), self.address, self.boot);
        let text = format!(
            "data_dir = {data:?}\n[api]\nlisten = \"{api}\"\n[boot]\nlisten = \"{boot}\"\ntftp = \"{boot}\"\n\
             [log]\nlevel = \"warn\"\n{more}"
        );
        std::fs::write(self.folder.path().join("slipway.toml"), text).unwrap();
    }

    /// Its data folder.
    pub fn data(&self) -> PathBuf {
        self.elsewhere.clone().unwrap_or_else(|| self.folder.path().join("data"))
    }

    /// SIGTERM, and a new process with the same data and other tables in its configuration.
    pub async fn restart_with(&mut self, more: &str) {
        self.stop(false).await;
        self.configure(more);
        self.process = Some(start(self.folder.path()));
    }

    /// A new process with the same data and other tables in its configuration, after one that ended.
    pub async fn restart_ended_with(&mut self, more: &str) {
        self.configure(more);
        self.process = Some(start(self.folder.path()));
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// kill -9, or SIGTERM, and a new process with the same data and port.
    pub async fn restart(&mut self, hard: bool) {
        self.stop(hard).await;
        self.process = Some(start(self.folder.path()));
    }

    async fn stop(&mut self, hard: bool) {
        use nix::sys::signal::Signal;
        self.signal(if hard { Signal::SIGKILL } else { Signal::SIGTERM });
        self.child().wait().await.unwrap();
    }

    /// Whether it has not ended yet.
    pub fn runs(&mut self) -> bool {
        self.child().try_wait().unwrap().is_none()
    }

    fn child(&mut self) -> &mut Child {
        self.process.as_mut().expect("it was started")
    }

    /// SIGTERM, and a new process with the same data, for which the disk is full: it can make no file larger than the
    /// largest one is by now, but for `room` bytes.
    pub async fn restart_full(&mut self, room: u64) {
        self.stop(false).await;
        let most = largest(&self.data()) + room;
        // A file over its limit gets EFBIG; signal 25, SIGXFSZ, would end the process instead.
        let limit = format!("trap '' 25; ulimit -f {}; exec \"$0\" \"$@\"", most.div_ceil(512));
        let mut limited = Command::new("/bin/sh");
        limited.arg("-c").arg(limit).arg(program());
        self.process = Some(spawn(limited, self.folder.path()));
    }

    /// Waits until it has ended by itself; whether it says that all went well.
    pub async fn ended(&mut self) -> bool {
        tokio::time::timeout(DEADLINE, self.child().wait()).await.expect("it ends").unwrap().success()
    }

    /// A new process with the same data, after one that ended.
    pub fn start_again(&mut self) {
        self.process = Some(start(self.folder.path()));
    }

    /// The administrator's kubeconfig, empty when it cannot be had yet.
    pub async fn kubeconfig(&self) -> String {
        let config = self.folder.path().join("slipway.toml");
        let output = Command::new(program()).arg("kubeconfig").arg("--config").arg(&config).output().await.unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Its configuration, data and log are here.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// SIGTERM, and waits until it has ended.
    pub async fn end(&mut self) {
        self.stop(false).await;
    }

    /// Runs a command for this appliance.
    pub async fn slipway(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(program());
        command.args(arguments).env("SLIPWAY_CONFIG", self.folder.path().join("slipway.toml")).kill_on_drop(true);
        tokio::time::timeout(DEADLINE, command.output()).await.expect("the command ends").unwrap()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().and_then(Child::id).expect("it runs")
    }

    /// What it logged. A line may come after the answer that it tells of: the log is written by a thread of its own.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Its log, once it has this part in so many lines.
    pub async fn log_with(&self, part: &str, lines: usize) -> String {
        until(&format!("{lines} lines with {part:?} in the log"), async || {
            Some(self.log()).filter(|log| log.lines().filter(|line| line.contains(part)).count() >= lines)
        })
        .await
    }

    /// A client as the administrator, once the appliance is ready.
    pub async fn client(&self) -> Client {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Ok(text) = Kubeconfig::from_yaml(&self.kubeconfig().await)
                && let Ok(config) = Config::from_custom_kubeconfig(text, &KubeConfigOptions::default()).await
                && let Ok(client) = Client::try_from(config)
                && is_ready(&client).await
            {
                return client;
            }
            assert!(Instant::now() < until, "the API does not answer");
            sleep(PAUSE).await;
        }
    }
}

/// Whether machines are served, too.
pub async fn is_ready(client: &Client) -> bool {
    let request = http::Request::get("/readyz/informer-sync").body(Vec::new()).unwrap();
    client.request_text(request).await.is_ok()
}

/// The program that is tried.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_slipway"))
}

fn start(folder: &Path) -> Child {
    spawn(Command::new(program()), folder)
}

fn spawn(mut command: Command, folder: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    command
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

/// Size of the largest file in a folder and below it, in bytes.
fn largest(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let about = entry.metadata().unwrap();
            if about.is_dir() { largest(&entry.path()) } else { about.len() }
        })
        .max()
        .unwrap_or(0)
}

//! Boxes for the tests of backup and restore: a folder with a configuration, in which the program is run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use slipway::backup::format::{self, BackupItem, Header};
use slipway::backup::seal;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::process::free_port;
pub use crate::process::{DEADLINE, until};

/// A box: its folder has `slipway.toml` and, once it was served or restored there, `data`.
pub struct Place {
    folder: tempfile::TempDir,
    address: SocketAddr,
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// It went well.
    pub fn good(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// It failed, and said this.
    pub fn failed(self, code: i32, said: &str) -> Self {
        assert!(self.code == code && self.err.contains(said), "{said:?} is not in {self:?}");
        self
    }
}

impl Place {
    pub fn new() -> Self {
        Self::with("")
    }

    /// With these tables more in its configuration.
    pub fn with(more: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), address: ([127, 0, 0, 1], free_port()).into() };
        place.configure(more);
        place
    }

    pub fn configure(&self, more: &str) {
        let (data, boot) = (self.data(), free_port());
        let text = format!(
            "data_dir = {data:?}\n[api]\nlisten = \"{}\"\n[boot]\nlisten = \"127.0.0.1:{boot}\"\n\
             tftp = \"127.0.0.1:{boot}\"\n[bmc]\nallow = [\"127.0.0.1\"]\n[log]\nlevel = \"warn\"\n{more}",
            self.address
        );
        std::fs::write(self.config(), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn config(&self) -> PathBuf {
        self.path("slipway.toml")
    }

    /// `slipway` in its folder, of this configuration.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SLIPWAY_CONFIG", self.config())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        let done = timeout(DEADLINE, self.command(arguments).output()).await;
        Ran::of(&done.expect("it ends").unwrap())
    }

    /// `slipway serve`, once it answers.
    pub async fn serve(&self) -> Served {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let process = self.command(&["serve"]).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut served = Served { process, log: self.path("log") };
        until("the API answers", async || {
            assert!(served.process.try_wait().unwrap().is_none(), "it ended: {}", served.log());
            let text = self.run(&["kubeconfig"]).await.out;
            self.client_of(&text).await
        })
        .await;
        served
    }

    /// A client as the administrator.
    pub async fn client(&self) -> Client {
        let text = self.run(&["kubeconfig"]).await.good().out;
        self.client_of(&text).await.expect("it answers")
    }

    /// A client of this box with a kubeconfig that may be another's.
    pub async fn client_of(&self, kubeconfig: &str) -> Option<Client> {
        let mut config = Kubeconfig::from_yaml(kubeconfig).ok()?;
        config.clusters.first_mut()?.cluster.as_mut()?.server = Some(format!("https://{}", self.address));
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.ok()?;
        let client = Client::try_from(config).ok()?;
        client.apiserver_version().await.is_ok().then_some(client)
    }

    /// The lines of a backup in this folder that holds no secret from tests: header, objects, entries, files, in words.
    pub fn lines(&self, name: &str, key: Option<&Path>) -> (Header, Vec<String>) {
        let file = std::fs::File::open(self.path(name)).unwrap();
        let plain = seal::open(file, |_| Ok(seal::Unlock::Keys(seal::identities_of(key.unwrap())?))).unwrap();
        let mut lines = Vec::new();
        let header = format::read(plain, |_, item| {
            lines.push(match item {
                BackupItem::Object(object) => {
                    let json = String::from_utf8(object.json().to_vec()).unwrap();
                    format!("{} {}/{} {} {json}", object.resource, object.namespace, object.name, object.revision)
                }
                BackupItem::Entry { table, key, value } => format!("entry {table} {key:?} {value:?}"),
                BackupItem::File { name, text } => format!("file {name} {text}"),
            });
            Ok(())
        });
        (header.unwrap(), lines)
    }
}

/// A running appliance. Killed when it is dropped.
pub struct Served {
    process: Child,
    log: PathBuf,
}

impl Served {
    /// SIGTERM, and waits for its end.
    pub async fn stop(mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.process.id().unwrap()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let ended = timeout(DEADLINE, self.process.wait()).await.expect("it ends").unwrap();
        assert!(ended.success(), "{}", self.log());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

//! An appliance of the simulator's own: this program as a process, with a folder that ends with it, on loopback.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::routing::get;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::rack::RelayNetwork;
use super::rng::{DrawPurpose, SeededRng};
use crate::api::metal3::{ChecksumType, HostImage};
use crate::boot::{INITRD, IPXE_BIOS, IPXE_UEFI, IPXE_UEFI_DRIVERS, ISO, KERNEL, MANIFEST};
use crate::hex::hex;

/// The appliance's address in the simulated network, and the relay's. All of 127.0.0.0/8 is this machine.
const SERVER: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 2);
const RELAY: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 3);
/// How long it may take to answer.
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end.
const END: Duration = Duration::from_secs(25);
/// Bytes of the image that it deploys, and of each of its boot files.
const IMAGE: usize = 16 << 20;
const BOOT_FILE: usize = 4 << 20;
/// Boot programs and their bytes, about those of iPXE.
const PROGRAMS: [(&str, usize); 3] = [(IPXE_BIOS, 72 << 10), (IPXE_UEFI, 256 << 10), (IPXE_UEFI_DRIVERS, 1 << 20)];
/// Bytes of the loader on the medium.
const LOADER: usize = 1 << 20;

/// A running appliance.
pub struct ApplianceProcess {
    /// Ends with it unless it is kept.
    _folder: Option<tempfile::TempDir>,
    log: PathBuf,
    program: PathBuf,
    process: Child,
    /// Its configuration.
    pub config: PathBuf,
    /// A client of its API, as its administrator.
    pub client: kube::Client,
    /// Its network.
    pub network: RelayNetwork,
}

/// What a process took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Processor time, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory now, in 10⁶ bytes.
    pub resident_mb: f64,
    /// The most that was ever resident.
    pub peak_mb: f64,
}

impl ApplianceProcess {
    /// Starts one from this program. Settings come from `config`, but folder, addresses and networks are its own.
    ///
    /// # Errors
    /// When it cannot be started, or does not answer.
    pub async fn start(program: &Path, config: Option<&Path>, seed: u64, keep: bool) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("slipway-simulate-").tempdir().context("a temporary folder")?;
        let data = folder.path().join("data");
        make_boot_files(&data.join("boot"), seed)?;
        let (api, boot, dhcp) = (free_tcp()?, free_tcp()?, free_udp()?);
        let tftp = free_udp()?;
        let settings = match config {
            Some(file) => {
                // What it says must be good as it stands.
                crate::config::Config::load(file)?;
                std::fs::read_to_string(file)?.parse::<toml::Table>()?
            }
            None => toml::Table::new(),
        };
        let settings = trial(settings, &data, [api, boot, tftp, dhcp])?;
        let file = folder.path().join("slipway.toml");
        std::fs::write(&file, toml::to_string(&settings)?)?;
        let log = folder.path().join("log");
        let mut process = serve(program, &file, &log)?;
        let client = client(&mut process, &file, &log).await?;
        let folder = if keep {
            let kept = folder.keep();
            #[expect(clippy::print_stderr, reason = "who rehearses asked for the folder at a terminal")]
            {
                eprintln!("kept: {}", kept.display());
            }
            None
        } else {
            Some(folder)
        };
        let network = RelayNetwork { relay: RELAY, dhcp: SocketAddrV4::new(SERVER, dhcp), tftp_port: tftp };
        Ok(Self { _folder: folder, log, program: program.to_owned(), process, config: file, client, network })
    }

    /// Kills it, as `kill -9` does: it learns nothing of it.
    ///
    /// # Errors
    /// When the system does not let us.
    pub async fn kill(&mut self) -> std::io::Result<()> {
        self.process.kill().await
    }

    /// Starts it again on what it left, and waits until it answers.
    ///
    /// # Errors
    /// When it cannot be started, or does not answer.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.process = serve(&self.program, &self.config, &self.log)?;
        self.client = client(&mut self.process, &self.config, &self.log).await?;
        Ok(())
    }

    /// What its process took so far.
    pub fn usage(&self) -> Option<Usage> {
        let folder = PathBuf::from(format!("/proc/{}", self.process.id()?));
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let kilobytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
        // Fields 14 and 15 of proc(5), in ticks of which a second has a hundred.
        let cpu_seconds = (ticks(11)? + ticks(12)?) / 100.0;
        let megabytes = |key| Some(kilobytes(key)? * 1024.0 / 1e6);
        Some(Usage { cpu_seconds, resident_mb: megabytes("VmRSS:")?, peak_mb: megabytes("VmHWM:")? })
    }

    /// Whether it still runs; else why not.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the appliance ended: {status}: {}", last_words(&self.log)),
        }
    }

    /// What it wrote to its log so far, in all its lives.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it.
    pub async fn end(mut self) {
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).ok();
        }
        if tokio::time::timeout(END, self.process.wait()).await.is_err() {
            self.process.kill().await.ok();
        }
    }
}

/// Starts it. It ends with the thread that calls this, however that ends: a simulator that is killed leaves no appliance behind.
fn serve(program: &Path, config: &Path, log: &Path) -> anyhow::Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(program);
    command
        .args(["serve", "--config"])
        .arg(config)
        .env_remove("SLIPWAY_CONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    let parent = rustix::process::getpid();
    let follow = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        // The parent may have ended before the kernel was told.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec only two system calls are made. Nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(follow) };
    command.spawn().with_context(|| program.display().to_string())
}

/// The settings that make it a trial.
fn trial(mut settings: toml::Table, data: &Path, ports: [u16; 4]) -> anyhow::Result<toml::Table> {
    let [api, boot, tftp, dhcp] = ports;
    let own: toml::Table = format!(
        "data_dir = {data:?}\n[api]\nlisten = \"{SERVER}:{api}\"\nnames = []\n[boot]\nlisten = \"{SERVER}:{boot}\"\n\
         tftp = \"{SERVER}:{tftp}\"\n[bmc]\nallow = [\"0.0.0.0/0\", \"::/0\"]\n[dhcp]\nport = {dhcp}\n[log]\nlevel = \"warn\"\n\
         [image]\nallow = [\"127.0.0.0/8\"]\n[[network]]\nname = \"simulated\"\ninterface = \"lo\"\nsubnet = \"127.64.0.0/15\"\n\
         pool = [\"127.64.1.0-127.65.255.254\"]\nserver = \"{SERVER}\"\n"
    )
    .parse()?;
    // The API server, the copies and the addresses are another appliance's: with its folder this one would let its copies go.
    settings.remove("engine");
    settings.remove("backup");
    if let Some(toml::Value::Table(boot)) = settings.get_mut("boot") {
        boot.remove("advertise");
        boot.remove("advertise_to_bmcs");
    }
    for (key, value) in own {
        match (settings.get_mut(&key), value) {
            (Some(toml::Value::Table(table)), toml::Value::Table(own)) => {
                let said = key == "log";
                for (key, value) in own {
                    if !(said && table.contains_key(&key)) {
                        table.insert(key, value);
                    }
                }
            }
            (_, value) => {
                settings.insert(key, value);
            }
        }
    }
    Ok(settings)
}

async fn client(process: &mut Child, config: &Path, log: &Path) -> anyhow::Result<kube::Client> {
    let until = Instant::now() + READY;
    let config = crate::config::Config::load(config)?;
    loop {
        if let Some(status) = process.try_wait()? {
            bail!("the appliance ended: {status}: {}", last_words(log));
        }
        // Its keys are there once it runs.
        if config.data_dir.pki().join("store.key").exists()
            && let Ok(text) = crate::appliance::local_kubeconfig(&config)
            && let Ok(config) =
                kube::Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&text)?, &KubeConfigOptions::default()).await
            && let Ok(client) = kube::Client::try_from(config)
            && client.request_text(http::Request::get("/readyz/informer-sync").body(Vec::new())?).await.is_ok()
        {
            return Ok(client);
        }
        if Instant::now() > until {
            bail!("the appliance does not answer: {}", last_words(log));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

/// A port below those that the kernel gives to outgoing connections.
fn free_port(free: impl Fn(SocketAddr) -> bool) -> anyhow::Result<u16> {
    for _ in 0..1000 {
        let port = rand::random_range(20_000..32_000);
        if free((SERVER, port).into()) {
            return Ok(port);
        }
    }
    bail!("no free port on {SERVER}: is the loopback interface up?")
}

fn free_tcp() -> anyhow::Result<u16> {
    free_port(|address| TcpListener::bind(address).is_ok())
}

fn free_udp() -> anyhow::Result<u16> {
    free_port(|address| UdpSocket::bind(address).is_ok())
}

/// Files that are as large as a small kernel, its ramdisk and the programs that load them. Nothing runs them.
fn make_boot_files(folder: &Path, seed: u64) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let content = SeededRng::of(seed, 0, DrawPurpose::Content).bytes(BOOT_FILE);
    for (name, length) in PROGRAMS {
        std::fs::write(folder.join(name), content.get(..length).unwrap_or(&content))?;
    }
    for name in [KERNEL, INITRD] {
        std::fs::write(folder.join(name), &content)?;
    }
    let (medium, layout) = crate::ramdisk::medium(&content[..LOADER], None, &content, &content)?;
    std::fs::write(folder.join(ISO), medium)?;
    std::fs::write(folder.join(MANIFEST), serde_json::json!({ "iso": layout }).to_string())?;
    Ok(())
}

/// Serves an image of 16 MiB on loopback until the token is cancelled; another one for another seed.
///
/// # Errors
/// When no port can be had.
pub async fn serve_image(seed: u64, token: CancellationToken) -> anyhow::Result<HostImage> {
    let content = bytes::Bytes::from(SeededRng::of(seed, 1, DrawPurpose::Content).bytes(IMAGE));
    let sum: String = hex(&Sha256::digest(&content));
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/simulated.raw", listener.local_addr()?);
    let router = Router::new().route("/simulated.raw", get(move || async move { content }));
    tokio::spawn(async move {
        axum::serve(listener, router).with_graceful_shutdown(async move { token.cancelled().await }).await.ok();
    });
    Ok(HostImage {
        url,
        checksum: Some(sum),
        checksum_type: Some(ChecksumType::Sha256),
        format: Some("raw".into()),
        oci_auth_secret_name: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_keeps_the_settings_and_none_of_the_addresses() {
        let theirs = "data_dir = \"/srv/slipway\"\n[api]\nlisten = \"0.0.0.0:8443\"\nevent_lifetime = \"5m\"\n\
            [boot]\nadvertise = \"10.0.0.1\"\nadvertise_to_bmcs = \"10.0.0.2\"\n\
            [backup]\nfolder = \"/srv/backups\"\npassphrase_file = \"/etc/passphrase\"\n\
            [host]\nbusy_limit = 7\n[log]\nlevel = \"debug\"\n[engine]\nkubeconfig = \"/etc/k\"\n\
            [[network]]\nname = \"rack\"\ninterface = \"eth1\"\nsubnet = \"10.0.0.0/24\"\n";
        for text in [theirs, "", include_str!("../../config/slipway.toml")] {
            let settings = trial(text.parse().unwrap(), Path::new("/tmp/trial"), [1, 2, 3, 4]).unwrap();
            let text = toml::to_string(&settings).unwrap();
            let config = crate::config::Config::parse(&text, Path::new("x")).unwrap();
            assert_eq!(config.data_dir.0, Path::new("/tmp/trial"));
            assert_eq!((config.networks.len(), config.networks[0].name.as_str()), (1, "simulated"));
            assert!(config.api.listen.ip().is_loopback() && config.boot.listen.ip().is_loopback());
            assert_eq!((config.dhcp.port, config.engine.kubeconfig), (4, None));
            assert_eq!(
                (config.backup.folder, config.boot.advertise, config.boot.advertise_to_bmcs),
                (None, None, None)
            );
            // Its machines' BMCs are on loopback.
            assert!(!config.bmc.allow.is_empty());
        }
        let config = trial(theirs.parse().unwrap(), Path::new("/tmp/trial"), [1, 2, 3, 4]).unwrap();
        let config = crate::config::Config::parse(&toml::to_string(&config).unwrap(), Path::new("x")).unwrap();
        assert_eq!((config.host.busy_limit, config.log.level.as_str()), (7, "debug"));
        assert_eq!(config.api.event_lifetime.0, Duration::from_secs(300));
    }
}

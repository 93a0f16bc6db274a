//! The configuration `slipway.toml`: parsed, and checked as a whole before anything is bound.
//!
//! `config/slipway.toml` documents every key. Unknown keys are errors, each fault is one line.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::files;
use crate::outbound::Allowed;

mod backup;
mod cluster;
mod discovery;
mod host;
mod image;
mod kubespray;
mod log;
mod network;
mod span;
mod webhooks;

pub use backup::BackupConfig;
pub use cluster::{Actor, ClusterConfig, Controllers, DefaultImage};
pub use discovery::{AfterReport, DiscoveryConfig, DiscoveryMatch, DiscoveryRule, HostName, MacPrefix, NameFacts};
pub use host::{FirstBoot, HostConfig};
pub use image::ImageConfig;
pub use kubespray::KubesprayConfig;
pub use log::{AuditConfig, LogConfig, LogFormat};
pub use network::{AddressRange, NetworkConfig, NetworkMode, ReservationConfig};
pub use span::Span;
pub use webhooks::{WebhookAddress, WebhooksConfig};

/// Where `slipway.toml` is looked for.
pub const DEFAULT_PATH: &str = "/etc/slipway/slipway.toml";
/// Most bytes of the file: thousands of networks and reservations.
const FILE_MAX: u64 = 1 << 20;

/// The whole file.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Database, images, boot files, certificates and logs.
    pub data_dir: DataDir,
    /// The API.
    pub api: ApiConfig,
    /// Boot HTTP and TFTP.
    pub boot: BootConfig,
    /// DHCP as a whole.
    pub dhcp: DhcpConfig,
    /// Networks that DHCP serves.
    #[serde(rename = "network")]
    pub networks: Vec<NetworkConfig>,
    /// What becomes of unknown machines where discovery is on.
    pub discovery: DiscoveryConfig,
    /// The image library.
    pub image: ImageConfig,
    /// How hosts are driven.
    pub host: HostConfig,
    /// Who acts on the objects of clusters.
    pub cluster: ClusterConfig,
    /// Clusters that kubespray installs.
    pub kubespray: KubesprayConfig,
    /// Where the objects are.
    pub engine: EngineConfig,
    /// Logging.
    pub log: LogConfig,
    /// The log of every change.
    pub audit: AuditConfig,
    /// BMCs.
    pub bmc: BmcConfig,
    /// Copies of everything, made by themselves.
    pub backup: BackupConfig,
    /// The file as it was read.
    #[serde(skip)]
    pub text: std::sync::Arc<str>,
    /// Where it was read.
    #[serde(skip)]
    pub path: PathBuf,
}

/// Where Slipway keeps what it must not lose.
#[derive(Deserialize, Clone, Debug)]
#[serde(transparent)]
pub struct DataDir(pub PathBuf);

impl Default for DataDir {
    fn default() -> Self {
        Self("/var/lib/slipway".into())
    }
}

impl DataDir {
    /// The database.
    pub fn db(&self) -> PathBuf {
        self.0.join("db")
    }

    /// The image library.
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// Kernel, initrd and network boot programs.
    pub fn boot(&self) -> PathBuf {
        self.0.join("boot")
    }

    /// What nodes and the audit log wrote.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// Certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.0.join("pki")
    }

    /// Runs of kubespray's playbooks.
    pub fn kubespray(&self) -> PathBuf {
        self.0.join("kubespray")
    }
}

/// How long an administrator's certificate may last.
const ADMIN_CERTIFICATE: RangeInclusive<Duration> = Duration::from_secs(600)..=Duration::from_secs(8760 * 3600);

/// `[api]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// Address of API and agents, HTTPS.
    pub listen: SocketAddr,
    /// Further names and addresses for the server's certificate; the first is the kubeconfig's endpoint.
    pub names: Vec<String>,
    /// How long events are kept after they were last seen.
    pub event_lifetime: Span,
    /// Connections at once from one address (of IPv6: from one /64 network); at least 1. The appliance itself may have
    /// more.
    pub connections_per_address: NonZeroUsize,
    /// How long an administrator's certificate lasts; ten minutes to a year.
    pub admin_certificate: Span,
    /// What the API asks before it writes, and in whose name objects are converted.
    pub webhooks: WebhooksConfig,
}

impl Default for ApiConfig {
    fn default() -> Self {
        // From Friday evening to Monday morning.
        let event_lifetime = Span(Duration::from_secs(72 * 3600));
        // As in the API server.
        let connections_per_address = NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN);
        Self {
            listen: ([0, 0, 0, 0], 8443).into(),
            names: Vec::new(),
            event_lifetime,
            connections_per_address,
            admin_certificate: Span(crate::pki::CLIENT_LIFETIME),
            webhooks: WebhooksConfig::default(),
        }
    }
}

/// `[boot]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct BootConfig {
    /// Address of boot HTTP. Nothing secret is served here.
    pub listen: SocketAddr,
    /// Address of TFTP.
    pub tftp: SocketAddr,
    /// Folder with the kernel, ramdisk and boot programs of the package: what machines boot unless a ramdisk was built in
    /// `data_dir`.
    pub packaged_files: PathBuf,
    /// Added to the ramdisk's kernel command line.
    pub kernel_args: String,
    /// This appliance's address for machines that boot from a medium; found by routing when unset.
    pub advertise: Option<IpAddr>,
    /// This appliance's address for BMCs, which fetch media; found by routing when unset.
    pub advertise_to_bmcs: Option<IpAddr>,
}

impl Default for BootConfig {
    fn default() -> Self {
        Self {
            listen: ([0, 0, 0, 0], 80).into(),
            tftp: ([0, 0, 0, 0], 69).into(),
            packaged_files: "/usr/share/slipway/boot".into(),
            kernel_args: "console=tty0 console=ttyS0,115200".into(),
            advertise: None,
            advertise_to_bmcs: None,
        }
    }
}

/// `[dhcp]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct DhcpConfig {
    /// UDP port that relays and machines send to. Machines know no other than 67.
    pub port: u16,
    /// Minutes between two searches for other DHCP servers; 0: never.
    pub server_probe_minutes: u64,
}

impl Default for DhcpConfig {
    fn default() -> Self {
        Self { port: 67, server_probe_minutes: 15 }
    }
}

/// Largest `dhcp.server_probe_minutes`: a day.
const SERVER_PROBE_MINUTES: u64 = 1440;

/// Largest `image.imports`: each unpacks, which takes a processor and some of the memory.
const IMPORTS_MAX: usize = 64;
/// Largest `image.max_unpacked_gib`: 16 TiB, which no disk of an image exceeds.
const MAX_UNPACKED_GIB: u64 = 16 << 10;
/// Largest `image.max_library_gib`: 16 PiB, more than file systems have.
const MAX_LIBRARY_GIB: u64 = 16 << 20;

/// `[engine]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// kubeconfig of the API server that keeps the objects; unset: the embedded one.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one.
    pub context: Option<String>,
    /// Namespace of the Lease that says which appliance acts.
    pub namespace: String,
    /// How long the Lease holds without a renewal: so long nobody acts after an appliance died. 5s to 5m.
    pub lease: Span,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: "slipway-system".into(),
            lease: Span(Duration::from_secs(15)),
        }
    }
}

/// `[bmc]`
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct BmcConfig {
    /// Addresses of this box that hosts may name as their BMC's all the same: loopback, link-local, multicast, and the
    /// appliance's own.
    pub allow: Vec<Allowed>,
    /// File of the site's own quirk profiles, applied after those in the binary.
    pub quirks: Option<PathBuf>,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}{}", another(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML of the right shape.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// It contradicts itself. One line for each fault.
    #[error("{path}:\n{}", .faults.iter().map(|f| format!("  - {f}")).collect::<Vec<_>>().join("\n"))]
    Faults {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        faults: Vec<String>,
    },
}

/// What helps where there is no such file.
fn another(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; --config FILE names another",
        _ => "",
    }
}

impl Config {
    /// Files and folders that are the appliance's alone: no program that it starts for others sees them.
    pub fn private_paths(&self) -> Vec<PathBuf> {
        let files = [&self.engine.kubeconfig, &self.backup.folder, &self.backup.passphrase_file];
        // Not the configuration, which has no secret: it lies in a folder whose other files are replaced by new ones.
        [&self.data_dir.0].into_iter().chain(files.into_iter().flatten()).cloned().collect()
    }

    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_unchecked(path)?.checked()
    }

    /// Reads and checks text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::parse_unchecked(text, path)?.checked()
    }

    fn checked(self) -> Result<Self, ConfigError> {
        let faults = self.faults();
        if faults.is_empty() { Ok(self) } else { Err(ConfigError::Faults { path: self.path, faults }) }
    }

    /// Reads a file whose [`Config::faults`] are still to be looked for, with others.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no TOML of the right shape.
    pub fn load_unchecked(path: &Path) -> Result<Self, ConfigError> {
        let text =
            files::read_text(path, FILE_MAX).map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse_unchecked(&text, path)
    }

    fn parse_unchecked(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text)
            .map_err(|error| ConfigError::Parse { path: path.into(), message: error.to_string() })?;
        (config.text, config.path) = (text.into(), path.into());
        Ok(config)
    }

    /// In what the configuration contradicts itself; one line for each fault.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.data_dir.0.is_absolute() {
            faults.push(format!("data_dir {:?} must be an absolute path", self.data_dir.0));
        }
        if !ADMIN_CERTIFICATE.contains(&self.api.admin_certificate.0) {
            faults.push("api.admin_certificate must be 10m to 8760h".into());
        }
        faults.extend(self.api.webhooks.faults());
        faults.extend(self.cluster.faults());
        faults.extend(self.kubespray.faults());
        for name in self.api.names.iter().filter(|name| !crate::pki::is_name(name)) {
            faults.push(format!("api.names: {name:?} is neither an IP address nor a DNS name"));
        }
        if clash(self.api.listen, self.boot.listen) {
            faults.push(format!(
                "api.listen {} and boot.listen {} are the same TCP port: give one of them another",
                self.api.listen, self.boot.listen
            ));
        }
        if self.dhcp.port == 0 {
            faults.push("dhcp.port must be 1 to 65535".into());
        }
        if self.dhcp.server_probe_minutes > SERVER_PROBE_MINUTES {
            faults.push(format!("dhcp.server_probe_minutes must be 0 (never) to {SERVER_PROBE_MINUTES}"));
        }
        if !self.networks.is_empty() && self.boot.tftp.port() == self.dhcp.port {
            faults.push(format!("boot.tftp and dhcp.port are the same UDP port, {}", self.dhcp.port));
        }
        if let Some(file) = self.bmc.quirks.as_ref().filter(|file| !file.is_absolute()) {
            faults.push(format!("bmc.quirks {file:?} must be an absolute path"));
        }
        faults.extend(self.image.faults(&self.data_dir.0));
        if self.audit.max_size_mb == 0 || self.audit.max_size_mb > 1_000_000 {
            faults.push("audit.max_size_mb must be 1 to 1000000".into());
        }
        if self.audit.max_files > 1000 {
            faults.push("audit.max_files must be at most 1000".into());
        }
        if self.host.busy_limit == 0 {
            faults.push("host.busy_limit must be at least 1".into());
        }
        if self.host.provisioning_retries < 0 {
            faults.push("host.provisioning_retries must be at least 0".into());
        }
        if let Some(file) = self.engine.kubeconfig.as_ref().filter(|file| !file.is_absolute()) {
            faults.push(format!("engine.kubeconfig {file:?} must be an absolute path"));
        }
        if !(Duration::from_secs(5)..=Duration::from_secs(300)).contains(&self.engine.lease.0) {
            faults.push("engine.lease must be 5s to 5m".into());
        }
        self.discovery.faults(&mut faults);
        self.backup.faults(&mut faults);
        for (index, network) in self.networks.iter().enumerate() {
            let before = &self.networks[..index];
            let at = format!("network {:?}", network.name);
            if before.iter().any(|other| other.name == network.name) {
                faults.push(format!("{at}: the name is used twice"));
            }
            if let Some(other) = before.iter().find(|o| o.subnet.overlaps(network.subnet)) {
                faults.push(format!("{at}: subnet {} overlaps that of network {:?}", network.subnet, other.name));
            }
            network.faults(&at, &mut faults);
        }
        faults
    }
}

/// Whether two listeners cannot have these addresses at the same time: Linux gives a port to one socket, of any address or of
/// both families where one is unspecified.
fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |a: IpAddr, b: IpAddr| a == b || a.is_unspecified() && (a.is_ipv6() || b.is_ipv4());
    a.port() == b.port() && a.port() != 0 && (covers(a.ip(), b.ip()) || covers(b.ip(), a.ip()))
}

#[cfg(test)]
mod tests;

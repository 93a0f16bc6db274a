//! The agent: PID 1 of the ramdisk.
//!
//! Brings the machine up (file systems, drivers, network), opens its session with the appliance and does the steps it
//! is given. Whatever it waits for is told on every console of the machine; whatever it ends with, it reboots or
//! powers off, and the firmware asks the appliance anew what to boot.

pub mod client;
pub mod cmdline;
pub mod disk;
pub mod drivers;
pub mod init;
pub mod inventory;
pub mod kexec;
pub mod log;
pub mod net;
pub mod power_button;
pub mod session;
pub mod steps;
pub mod tls;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt;

use client::{ApplianceClient, ClientTiming};
use cmdline::BootParameters;
use init::Down;
use log::{Consoles, LogRing};

use crate::network_data::NetworkPlan;
use crate::protocol::{ARGS_FILE, NETWORK_FILE, OpenSession};
use net::{AgentNetwork, NetworkNeeds};
use session::SessionEnd;

/// How long a message stays on the screen before the machine goes down because of it.
const READING_TIME: Duration = Duration::from_secs(300);
/// The same after a fault of the agent itself.
const FAULT_TIME: Duration = Duration::from_secs(60);
/// How long the interface that the firmware booted from may be slower than others.
const GRACE: Duration = Duration::from_secs(10);
/// How long is waited for a network interface: RAID controllers that come first may take a minute.
const NO_INTERFACE: Duration = Duration::from_secs(120);
/// How long is waited for an address.
const NO_ADDRESS: Duration = Duration::from_secs(600);

/// How the agent came to its end: what to do, and what to say about it for how long.
struct AgentVerdict {
    down: Down,
    say: Vec<String>,
    wait: Duration,
}

impl AgentVerdict {
    fn because(title: &str, reason: &str) -> Self {
        let wait = format!("This machine restarts in {} minutes.", READING_TIME.as_secs() / 60);
        Self { down: Down::Reboot, say: vec![title.into(), reason.into(), wait], wait: READING_TIME }
    }
}

/// Runs the agent as PID 1; never returns. As any other process it says why not and exits with status 2: it would
/// take over the machine.
#[expect(clippy::exit, clippy::print_stderr, reason = "it is no agent yet, and somebody started it by hand")]
pub fn run_as_init() -> ! {
    if std::process::id() != 1 {
        eprintln!("slipway agent runs as the first process of the ramdisk; here it would restart the machine");
        std::process::exit(2);
    }
    init::prepare();
    let consoles = Consoles::open(Path::new("/"));
    let log = LogRing::default();
    init::tell_panics(consoles.clone());
    let subscriber = tracing_subscriber::registry().with(log.layer(consoles.clone()));
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        consoles.line("The log cannot be kept.");
    }
    consoles.banner(&[concat!("Slipway ", env!("CARGO_PKG_VERSION"), ": preparing this machine")]);
    // On a thread of its own, so that no fault in it is the end of PID 1.
    let (worker_log, worker_consoles) = (log.clone(), consoles.clone());
    let worker = std::thread::Builder::new().name("agent".into()).spawn(move || work(worker_log, worker_consoles));
    let verdict = match worker.map(std::thread::JoinHandle::join) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => fault("the agent stopped because of the fault above"),
        Err(error) => fault(&format!("the agent cannot start a thread: {error}")),
    };
    if !verdict.say.is_empty() {
        let lines: Vec<&str> = verdict.say.iter().map(String::as_str).collect();
        consoles.banner(&lines);
    }
    std::thread::sleep(verdict.wait);
    init::go_down(verdict.down, &consoles)
}

fn fault(reason: &str) -> AgentVerdict {
    let wait = format!("This machine restarts in {} seconds.", FAULT_TIME.as_secs());
    AgentVerdict { down: Down::Reboot, say: vec!["FAULT".into(), reason.into(), wait], wait: FAULT_TIME }
}

fn work(log: LogRing, consoles: Consoles) -> AgentVerdict {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(4));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_stack_size(512 << 10)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fault(&format!("the agent cannot start: {error}")),
    };
    let pressed = CancellationToken::new();
    runtime.spawn(power_button::watch("/".into(), pressed.clone()));
    let verdict = runtime.block_on(async {
        tokio::select! {
            verdict = agent(log, consoles) => verdict,
            () = pressed.cancelled() => AgentVerdict {
                down: Down::PowerOff,
                say: vec!["The power button was pressed.".into()],
                wait: Duration::ZERO,
            },
        }
    });
    // A step that does not end must not hold up the end of the machine.
    runtime.shutdown_timeout(Duration::from_secs(1));
    verdict
}

async fn agent(log: LogRing, consoles: Consoles) -> AgentVerdict {
    let root = Path::new("/");
    tokio::spawn(init::reap());
    log::follow_kernel(root, log.clone());
    let drivers = drivers::start(root);
    let cmdline = ["/proc/cmdline", &format!("/{ARGS_FILE}")]
        .map(|path| std::fs::read_to_string(path).unwrap_or_default())
        .join(" ");
    let boot = match BootParameters::parse(&cmdline) {
        Ok(boot) => boot,
        Err(error) => return AgentVerdict::because("THIS MACHINE WAS STARTED WITHOUT ORDERS", &error.to_string()),
    };
    log.hide(boot.token.expose_secret());
    init::settle_kernel();
    let appliance = match boot.address() {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    };
    let plan = match read_plan(root) {
        Ok(plan) => plan,
        Err(reason) => return AgentVerdict::because("NO NETWORK", &reason),
    };
    let network = match bring_up(&boot, appliance, plan).await {
        Ok(network) => network,
        Err(reason) => return AgentVerdict::because("NO NETWORK", &reason),
    };
    if let Some(name) = network.best_lease().and_then(|lease| lease.hostname) {
        init::set_hostname(&name);
    }
    let hello = OpenSession {
        token: boot.token.expose_secret().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mac_addresses: network.mac_addresses().iter().map(ToString::to_string).collect(),
        uuid: inventory::smbios::uuid(root),
        uefi: init::booted_by_uefi(root),
    };
    let client = match ApplianceClient::new(boot.server.clone(), boot.ca, network.order(), ClientTiming::default()) {
        Ok(client) => client,
        Err(error) => return fault(&error.to_string()),
    };
    let executor = Arc::new(steps::AgentNode::new(root, network, drivers, boot.mac));
    let end = session::run(client, &hello, executor, &log).await;
    verdict(end, &boot, &consoles)
}

/// The network data that came with the ramdisk, if any did.
fn read_plan(root: &Path) -> Result<Option<NetworkPlan>, String> {
    let path = root.join(NETWORK_FILE);
    match std::fs::read(&path) {
        Ok(text) => NetworkPlan::parse(&text).map_err(|error| error.to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

async fn bring_up(
    boot: &BootParameters,
    appliance: Option<Ipv4Addr>,
    plan: Option<NetworkPlan>,
) -> Result<AgentNetwork, String> {
    let wanted = NetworkNeeds { root: "/".into(), mac: boot.mac, appliance, plan };
    let network = AgentNetwork::start(wanted).map_err(|error| format!("netlink: {error}"))?;
    match network.ready(GRACE, NO_INTERFACE, NO_ADDRESS).await {
        Ok(()) => Ok(network),
        Err(error) => Err(error.to_string()),
    }
}

fn verdict(end: SessionEnd, boot: &BootParameters, consoles: &Consoles) -> AgentVerdict {
    let server = &boot.server;
    let at_once = |down| AgentVerdict { down, say: Vec::new(), wait: Duration::ZERO };
    match end {
        SessionEnd::Reboot => at_once(Down::Reboot),
        SessionEnd::Kexec => at_once(Down::Kexec),
        SessionEnd::PowerOff => at_once(Down::PowerOff),
        SessionEnd::Revoked(reason) => {
            consoles.banner(&[&format!("The appliance at {server} has ended this session: {reason}")]);
            at_once(Down::Reboot)
        }
        SessionEnd::Refused(reason) => {
            AgentVerdict::because(&format!("THE APPLIANCE AT {server} REFUSES THIS MACHINE"), &reason)
        }
        SessionEnd::Untrusted(reason) => AgentVerdict::because(
            &format!("THE SERVER AT {server} IS NOT THE APPLIANCE THAT STARTED THIS MACHINE"),
            &reason,
        ),
        SessionEnd::Unreachable(reason) => {
            AgentVerdict::because(&format!("THE APPLIANCE AT {server} DOES NOT ANSWER"), &reason)
        }
    }
}

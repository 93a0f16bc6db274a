//! `slipway simulate`: a simulated rack against a real appliance.

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::failure::{CommandFailure, usage};
use super::progress::ProgressLine;
use crate::appliance;
use crate::config::Span;
use crate::simulate::plan::{
    Appliance, BmcKind, BootMethod, Delays, FaultRates, Goal, Probability, SimulatedDownload, SimulationPlan,
};
use crate::simulate::{self, report};

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  slipway simulate --machines 100
  slipway simulate --machines 1000 --bmc-failures 1% --packet-loss 2% --deadline 10m
  slipway simulate --config /etc/slipway/slipway.toml --hosts rack.yaml --delay-firmware 40s
  slipway simulate --kubeconfig ~/.kube/config --relay 172.22.0.9 --dhcp 172.22.0.1 --machines 20
  slipway simulate --kubeconfig ~/.kube/config --relay 172.22.0.9 --dhcp 172.22.0.1 --until available --stay")]
pub(super) struct SimulateArgs {
    /// Number of machines
    #[arg(long, short = 'm', value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    machines: u32,
    /// BareMetalHosts and their Secrets to rehearse with, instead of made-up ones; their BMC addresses are replaced
    #[arg(long, value_name = "FILE", conflicts_with = "machines")]
    hosts: Option<PathBuf>,
    /// State that the hosts are to reach
    #[arg(long, value_enum, default_value_t)]
    until: Goal,
    /// How long the whole run may take
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = time)]
    deadline: Duration,
    /// Seed of the random numbers; the same seed repeats the same faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Protocol of the BMCs
    #[arg(long, value_enum, default_value_t)]
    bmc: BmcKind,
    /// How machines boot the ramdisk [default: each way in turn; for hosts from a file, as their BMC address and boot mode
    /// say]
    #[arg(long, value_enum, value_name = "WAY")]
    boot: Option<BootMethod>,
    /// Put all BMCs on this address, each on a port of its own [default: one address of 127.81.0.0/16 for each]
    #[arg(long, value_name = "ADDRESS")]
    bmc_address: Option<IpAddr>,
    /// How much of kernel, initrd and image machines fetch
    #[arg(long, value_enum, default_value_t)]
    download: SimulatedDownload,
    /// URL of an image that the appliance can reach, instead of a small one served here
    #[arg(long, value_name = "URL")]
    image: Option<String>,
    /// Namespace of the hosts; created if it is missing, and then removed at the end
    #[arg(long, short, value_name = "NAME", default_value = "simulated")]
    namespace: String,
    /// Keep the hosts, or the folder of the simulator's own appliance, at the end
    #[arg(long)]
    keep: bool,
    /// When all hosts have arrived, let the machines go on until Ctrl-C or SIGTERM, or until the deadline
    #[arg(long)]
    stay: bool,
    /// Output format of the summary
    #[arg(long, short, value_name = "FORMAT", value_parser = ["text", "json"], default_value = "text")]
    output: String,
    #[command(flatten)]
    delays: DelayOptions,
    #[command(flatten)]
    faults: FaultOptions,
    #[command(flatten)]
    appliance: ApplianceOptions,
}

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Delays (each varies by a fifth)")]
struct DelayOptions {
    /// Time until a BMC answers
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    delay_bmc: Duration,
    /// Time that power on and power off take
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    delay_power: Duration,
    /// Time from power-on to the first DHCP message
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    delay_firmware: Duration,
    /// Time from the boot script to the agent's first call
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    delay_ramdisk: Duration,
    /// Time that each step of the agent takes
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    delay_step: Duration,
}

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Faults (1% or 0.01)")]
struct FaultOptions {
    /// Share of BMC answers that are errors
    #[arg(long, value_name = "SHARE", default_value = "0")]
    bmc_failures: Probability,
    /// Share of writes that BMCs confirm but do not do
    #[arg(long, value_name = "SHARE", default_value = "0")]
    bmc_lies: Probability,
    /// Share of packets that are lost: DHCP messages, TCP segments of boot HTTP and of the agents
    #[arg(long, value_name = "SHARE", default_value = "0")]
    packet_loss: Probability,
    /// Share of boots that hang in the firmware
    #[arg(long, value_name = "SHARE", default_value = "0")]
    stuck: Probability,
    /// Share of image writes that a power failure interrupts
    #[arg(long, value_name = "SHARE", default_value = "0")]
    power_loss: Probability,
}

#[derive(clap::Args, Clone, Debug)]
#[command(
    next_help_heading = "Appliance (one of the simulator's own unless --kubeconfig or --context names a running one)"
)]
struct ApplianceOptions {
    /// Configuration for the simulator's own appliance; its folder, addresses and networks are not used
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    config: Option<PathBuf>,
    /// Kubeconfig of a running appliance to use instead; it must have no hosts
    #[arg(long, value_name = "FILE", requires_all = ["relay", "dhcp"])]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", requires_all = ["relay", "dhcp"])]
    context: Option<String>,
    /// Address of the DHCP relay: one of this machine's, in a subnet that the appliance serves
    #[arg(long, value_name = "ADDRESS")]
    relay: Option<Ipv4Addr>,
    /// Address of the running appliance's DHCP server
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = dhcp)]
    dhcp: Option<SocketAddrV4>,
    /// Port of the running appliance's TFTP server
    #[arg(long, value_name = "PORT", default_value_t = 69)]
    tftp_port: u16,
}

fn time(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => Span::try_from(text.to_owned()).map(|span| span.0),
    }
}

fn dhcp(text: &str) -> Result<SocketAddrV4, String> {
    let alone = || text.parse().map(|address| SocketAddrV4::new(address, 67));
    text.parse().or_else(|_| alone()).map_err(|_| format!("{text:?} is not ADDRESS or ADDRESS:PORT"))
}

impl SimulateArgs {
    fn plan(self) -> anyhow::Result<SimulationPlan> {
        if self.bmc == BmcKind::Ipmi && self.boot.is_some_and(BootMethod::needs_redfish) {
            return Err(usage("--boot virtual-media and boot-url are ordered by Redfish: --bmc redfish"));
        }
        let appliance = match (self.appliance.relay, self.appliance.dhcp) {
            (Some(relay), Some(dhcp)) => Appliance::Running {
                kubeconfig: self.appliance.kubeconfig,
                context: self.appliance.context,
                relay,
                dhcp,
                tftp_port: self.appliance.tftp_port,
            },
            (None, None) => Appliance::Own { config: self.appliance.config },
            _ => return Err(usage("--relay and --dhcp go together")),
        };
        Ok(SimulationPlan {
            machines: self.machines as usize,
            seed: self.seed,
            bmc: self.bmc,
            bmc_address: self.bmc_address,
            boot: self.boot,
            delays: Delays {
                bmc: self.delays.delay_bmc,
                power: self.delays.delay_power,
                firmware: self.delays.delay_firmware,
                ramdisk: self.delays.delay_ramdisk,
                step: self.delays.delay_step,
            },
            faults: FaultRates {
                bmc_failures: self.faults.bmc_failures.0,
                bmc_lies: self.faults.bmc_lies.0,
                packet_loss: self.faults.packet_loss.0,
                stuck: self.faults.stuck.0,
                power_loss: self.faults.power_loss.0,
            },
            download: self.download,
            until: self.until,
            deadline: self.deadline,
            namespace: self.namespace,
            image: self.image,
            hosts: self.hosts,
            keep: self.keep,
            stay: self.stay,
            appliance,
        })
    }
}

/// What asks for the end: Ctrl-C, SIGTERM of a service manager or `timeout`, SIGHUP of a terminal that was closed. Each has
/// the run clean up.
struct SimulateSignals([Signal; 3]);

impl SimulateSignals {
    fn install() -> std::io::Result<Self> {
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]))
    }

    async fn end(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

pub(super) fn run(options: SimulateArgs) -> anyhow::Result<()> {
    let json = options.output == "json";
    let plan = options.plan()?;
    appliance::install_tls_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let stop = CancellationToken::new();
    let mut signals = {
        let _context = runtime.enter();
        SimulateSignals::install()?
    };
    let asked = stop.clone();
    runtime.spawn(async move {
        signals.end().await;
        asked.cancel();
    });
    let mut progress = ProgressLine::new();
    let live = std::io::stderr().is_terminal();
    let mut told: Option<std::time::Instant> = None;
    let summary = runtime.block_on(simulate::run(&plan, stop, |running| {
        // Lines that stay come less often than those that a terminal replaces.
        let due = told.is_none_or(|at| at.elapsed() >= Duration::from_secs(5));
        if live || due {
            told = Some(std::time::Instant::now());
            let percent = 100 * running.arrived as u64 / running.hosts.max(1) as u64;
            progress.show(running.line, live.then_some(percent));
        }
    }));
    progress.end();
    let (summary, left) = summary?;
    if json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        println!("{}", report::text(&summary));
    }
    match left {
        Some(left) => Err(left),
        None if summary.succeeded => Ok(()),
        None => Err(CommandFailure::Reported.into()),
    }
}

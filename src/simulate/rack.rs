//! The machines of a run: each off, with its BMC and its disk.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use anyhow::Context;
use kube::ResourceExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bmcs;
use super::counts::{CountsSnapshot, RunCounts};
use super::disk::SimulatedDisk;
use super::machine::{Simulated, SimulatedRack, mac};
use super::objects::HostWithSecret;
use super::plan::{BootMethod, SimulationPlan};
use super::relay::Relay;
use crate::api::metal3::BootMode;
use crate::bmc::sim::SimulatedMachine;

/// First of the addresses that machines have which need no DHCP.
const FIRST: u32 = Ipv4Addr::new(127, 82, 0, 0).to_bits();

fn fixed_address(number: usize) -> Ipv4Addr {
    let own = u32::try_from(number).ok().and_then(|number| FIRST.checked_add(number)).unwrap_or(FIRST);
    Ipv4Addr::from_bits(own)
}

/// One machine, as who looks at the rack sees it.
#[derive(Clone, Debug)]
pub struct RackMachine {
    /// Its host's name.
    pub name: String,
    /// Its power and its boots.
    pub machine: Arc<SimulatedMachine>,
    /// Its disk.
    pub disk: Arc<SimulatedDisk>,
}

/// All of them. They live until this is dropped or the token is cancelled.
#[derive(Debug)]
pub struct SimulatedMachines {
    /// Each of them.
    pub all: Vec<RackMachine>,
    counts: Arc<RunCounts>,
    _tasks: JoinSet<()>,
}

/// Where an appliance answers DHCP: through a relay at an address of this machine.
#[derive(Clone, Copy, Debug)]
pub struct RelayNetwork {
    /// The relay's address.
    pub relay: Ipv4Addr,
    /// Where the appliance's DHCP server listens.
    pub dhcp: SocketAddrV4,
    /// Port where its TFTP server listens.
    pub tftp_port: u16,
}

impl SimulatedMachines {
    /// Starts the BMC of each host and puts its address, and the machine's MAC address, into the host.
    ///
    /// # Errors
    /// When an address cannot be had.
    pub async fn start(
        plan: &SimulationPlan,
        network: RelayNetwork,
        made: &mut [HostWithSecret],
        token: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let counts = Arc::new(RunCounts::default());
        let relay = Relay::open(network.relay, network.dhcp, plan.faults.packet_loss, counts.clone())
            .with_context(|| format!("the relay's address {} cannot be used", network.relay))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(relay.clone().run(token.clone()));
        let rack = Arc::new(SimulatedRack {
            relay,
            tftp_port: network.tftp_port,
            seed: plan.seed,
            delays: plan.delays,
            faults: plan.faults,
            download: plan.download,
            counts: counts.clone(),
        });
        let mut all = Vec::new();
        for (index, one) in made.iter_mut().enumerate() {
            let number = index + 1;
            let (redfish, boot_method) = plan.ways(number, &one.host.spec);
            let bmc = bmcs::start(plan, number, (redfish, boot_method), one.account.clone(), &mut tasks, token).await?;
            let name = one.host.name_any();
            let spec = &mut one.host.spec;
            let mac = match spec.boot_mac_address.as_deref() {
                Some(mac) => mac.parse().with_context(|| format!("bootMACAddress {mac:?}"))?,
                None => mac(plan.seed, number),
            };
            spec.boot_mac_address = Some(mac.to_string());
            if boot_method == BootMethod::BiosPxe {
                spec.boot_mode = Some(BootMode::Legacy);
            }
            // On loopback every address is this machine's: such a machine needs no DHCP at all.
            let lone = boot_method == BootMethod::VirtualMedia && spec.preprovisioning_network_data_name.is_none();
            let address = (lone && network.relay.is_loopback()).then(|| fixed_address(number));
            if let Some(address) = address {
                one.fix_address(mac, address);
            }
            let spec = &mut one.host.spec;
            spec.bmc.get_or_insert_default().address = bmc.address;
            let seen = RackMachine { name: name.clone(), machine: bmc.machine.clone(), disk: Arc::default() };
            let machine = Simulated {
                number,
                name,
                mac,
                boot_method,
                address,
                machine: bmc.machine,
                disk: seen.disk.clone(),
                rack: rack.clone(),
            };
            tasks.spawn(machine.live(token.clone()));
            all.push(seen);
        }
        Ok(Self { all, counts, _tasks: tasks })
    }

    /// What happened so far.
    pub fn counted(&self) -> CountsSnapshot {
        self.counts.read(self.all.iter().map(|seen| seen.machine.faults_by_chance()).sum())
    }
}

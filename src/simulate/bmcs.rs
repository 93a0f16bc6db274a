//! A BMC for each machine, on an address or a port of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::plan::{BootMethod, SimulationPlan};
use super::rng::{DrawPurpose, seed};
use crate::bmc::address::Privilege;
use crate::bmc::ipmi::suite::CipherSuite;
use crate::bmc::sim::{Account, Chance, IpmiSim, RedfishOptions, RedfishSim, SimulatedMachine, SimulatedProfile};

/// First of the addresses that BMCs have on loopback.
const FIRST: u32 = Ipv4Addr::new(127, 81, 0, 1).to_bits();

/// A BMC that answers.
pub struct SimulatedBmc {
    /// The machine behind it.
    pub machine: Arc<SimulatedMachine>,
    /// `spec.bmc.address`
    pub address: String,
}

/// Starts a machine's BMC.
///
/// # Errors
/// When no port can be had for it.
pub async fn start(
    plan: &SimulationPlan,
    number: usize,
    (redfish, way): (bool, BootMethod),
    account: Account,
    tasks: &mut JoinSet<()>,
    token: &CancellationToken,
) -> anyhow::Result<SimulatedBmc> {
    let uefi = way.firmware().is_uefi();
    let machine = Arc::new(SimulatedMachine::new(SimulatedProfile {
        power_delay: plan.delays.power,
        uefi,
        ..SimulatedProfile::default()
    }));
    let faults = &plan.faults;
    let seed = seed(plan.seed, number, DrawPurpose::Bmc);
    machine.misbehave(Chance::new(seed, faults.bmc_failures, faults.bmc_lies, plan.delays.bmc));
    let own = u32::try_from(number).ok().and_then(|number| FIRST.checked_add(number)).unwrap_or(FIRST);
    let ip = plan.bmc_address.unwrap_or(IpAddr::V4(Ipv4Addr::from_bits(own)));
    let bind = SocketAddr::new(ip, 0);
    let token = token.clone();
    let no_port = || format!("no port for a BMC at {ip}");
    let address = if redfish {
        let listener = TcpListener::bind(bind).await.with_context(no_port)?;
        let local = listener.local_addr()?;
        let sim = RedfishSim::new(vec![machine.clone()], account, RedfishOptions::default());
        tasks.spawn(async move { drop(sim.run(listener, None, token).await) });
        let scheme = match way {
            BootMethod::VirtualMedia => "redfish-virtualmedia+http",
            BootMethod::BootUrl => "redfish-uefihttp+http",
            BootMethod::UefiPxe | BootMethod::BiosPxe | BootMethod::UefiHttp | BootMethod::Ipxe => "redfish+http",
        };
        format!("{scheme}://{local}/redfish/v1/Systems/{}", machine.profile.name)
    } else {
        let socket = UdpSocket::bind(bind).await.with_context(no_port)?;
        let local = socket.local_addr()?;
        let sim = IpmiSim::new(machine.clone(), vec![account], &CipherSuite::ALL);
        tasks.spawn(async move { drop(sim.run(socket, token).await) });
        format!("ipmi://{local}")
    };
    Ok(SimulatedBmc { machine, address })
}

/// An account that may do everything.
pub fn account(username: &str, password: &str) -> Account {
    Account { username: username.to_owned(), password: password.to_owned().into(), privilege: Privilege::Administrator }
}

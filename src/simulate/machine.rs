//! One machine's life: it follows its power. What it does ends at once when the power changes.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::counts::RunCounts;
use super::disk::SimulatedDisk;
use super::lossy_link::LossyLink;
use super::netboot::{self, Booted};
use super::node::{SimulatedNode, hardware};
use super::plan::{BootMethod, Delays, FaultRates, SimulatedDownload};
use super::relay::{DhcpProgram, Relay, RelayClient};
use super::rng::{DrawPurpose, SeededRng};
use crate::agent::client::{ApplianceClient, ClientTiming, Egress};
use crate::agent::cmdline;
use crate::agent::log::LogRing;
use crate::agent::session::{self, SessionEnd};
use crate::api::MacAddress;
use crate::bmc::BootDevice;
use crate::bmc::sim::SimulatedMachine;
use crate::bmc::sim::machine::{MachineStart, PowerCommand};
use crate::protocol::OpenSession;

/// Pause before firmware that found nothing to boot begins again.
const ANEW: Duration = Duration::from_secs(2);

/// What all machines share.
pub struct SimulatedRack {
    /// The DHCP relay.
    pub relay: Arc<Relay>,
    /// Port of the TFTP server.
    pub tftp_port: u16,
    /// What decides.
    pub seed: u64,
    /// How long things take.
    pub delays: Delays,
    /// What goes wrong.
    pub faults: FaultRates,
    /// What is fetched.
    pub download: SimulatedDownload,
    /// What is counted.
    pub counts: Arc<RunCounts>,
}

/// A machine.
pub struct Simulated {
    /// Its number in the rack.
    pub number: usize,
    /// Its host's name.
    pub name: String,
    /// Hardware address of the interface that it boots from.
    pub mac: MacAddress,
    /// How it comes to its ramdisk.
    pub boot_method: BootMethod,
    /// Its address, when it needs no DHCP.
    pub address: Option<Ipv4Addr>,
    /// Its power.
    pub machine: Arc<SimulatedMachine>,
    /// Its disk.
    pub disk: Arc<SimulatedDisk>,
    /// What it shares.
    pub rack: Arc<SimulatedRack>,
}

/// The hardware address of a machine: local, of this program's own range, another for another seed.
pub fn mac(seed: u64, number: usize) -> MacAddress {
    let [_, a, b, c] = u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
    MacAddress([0x02, 0x51, seed.to_le_bytes()[0], a, b, c])
}

impl Simulated {
    /// Lives until the token is cancelled.
    pub async fn live(self, token: CancellationToken) {
        let mut network = SeededRng::of(self.rack.seed, self.number, DrawPurpose::Network);
        let mut luck = SeededRng::of(self.rack.seed, self.number, DrawPurpose::Machine);
        let mut seen = 0;
        loop {
            let power = tokio::select! {
                () = token.cancelled() => return,
                power = self.machine.switched(seen) => power,
            };
            seen = power.switches;
            let Some(boot) = power.boot else { continue };
            tokio::select! {
                () = token.cancelled() => return,
                _ = self.machine.switched(seen) => {}
                () = self.boot(boot, &mut network, &mut luck) => {}
            }
        }
    }

    /// One start. Ends when the power is to change, and otherwise never.
    async fn boot(&self, boot: MachineStart, network: &mut SeededRng, luck: &mut SeededRng) {
        let rack = &self.rack;
        rack.counts.boot();
        let uuid = SeededRng::of(rack.seed, self.number, DrawPurpose::Content).bytes(16).try_into().unwrap_or_default();
        let who = RelayClient { mac: self.mac, uuid };
        let link = LossyLink { source: None, loss: rack.faults.packet_loss, counts: rack.counts.clone() };
        tokio::time::sleep(luck.about(rack.delays.firmware)).await;
        if luck.happens(rack.faults.stuck) {
            rack.counts.get_stuck();
            return std::future::pending().await;
        }
        loop {
            match self.start(boot.device, who, &link, network).await {
                Booted::Disk => return self.system(who, network).await,
                Booted::Ramdisk { command_line, address } => {
                    tokio::time::sleep(luck.about(rack.delays.ramdisk)).await;
                    let command = self.agent(who, &link, &command_line, address, network, luck).await;
                    return self.machine.power(command);
                }
                Booted::Nowhere => tokio::time::sleep(ANEW).await,
            }
        }
    }

    /// What the firmware does, by the boot override or in its own order: CD, network, disk.
    async fn start(
        &self,
        device: Option<BootDevice>,
        who: RelayClient,
        link: &LossyLink,
        network: &mut SeededRng,
    ) -> Booted {
        let rack = &self.rack;
        let by = netboot::NetbootContext {
            boot_method: self.boot_method,
            relay: &rack.relay,
            tftp_port: rack.tftp_port,
            download: rack.download,
        };
        let medium = match (device, self.boot_method) {
            (Some(BootDevice::Disk), _) => return Booted::Disk,
            (Some(BootDevice::Cd), _) | (None, BootMethod::VirtualMedia) => self.machine.media(),
            (Some(BootDevice::UefiHttp), _) => self.machine.http_uri(),
            (None, BootMethod::BootUrl) => return Booted::Disk,
            (Some(BootDevice::Pxe) | None, _) => return netboot::boot(by, who, link, network).await,
        };
        let Some(url) = medium else {
            return if device.is_none() { Booted::Disk } else { Booted::Nowhere };
        };
        let mut link = link.clone();
        if device == Some(BootDevice::UefiHttp) {
            // The URL is the BMC's word, the address is DHCP's.
            let Some(lease) = rack.relay.acquire(who, DhcpProgram::HttpBoot, network).await else {
                return Booted::Nowhere;
            };
            link.source = Some(lease.address).filter(Ipv4Addr::is_loopback);
        }
        match netboot::from_url(&url, &link, rack.download, network).await {
            Booted::Nowhere if device.is_none() => Booted::Disk,
            booted @ Booted::Ramdisk { .. } if device == Some(BootDevice::UefiHttp) => {
                rack.counts.url();
                booted
            }
            booted @ Booted::Ramdisk { .. } => {
                rack.counts.medium();
                booted
            }
            booted => booted,
        }
    }

    /// The installed system gets its address and runs.
    async fn system(&self, who: RelayClient, network: &mut SeededRng) {
        self.disk.start(&self.rack.counts);
        while self.address.is_none() && self.rack.relay.acquire(who, DhcpProgram::System, network).await.is_none() {}
        std::future::pending().await
    }

    /// The ramdisk. Gives what it does with the power in the end.
    async fn agent(
        &self,
        who: RelayClient,
        link: &LossyLink,
        command_line: &str,
        address: Option<Ipv4Addr>,
        network: &mut SeededRng,
        luck: &mut SeededRng,
    ) -> PowerCommand {
        let rack = &self.rack;
        let Ok(boot) = cmdline::BootParameters::parse(command_line) else { return PowerCommand::Reset };
        let address = match address {
            Some(address) => address,
            None => match rack.relay.acquire(who, DhcpProgram::System, network).await {
                Some(lease) => lease.address,
                None => return PowerCommand::Reset,
            },
        };
        let own = Some(address).filter(Ipv4Addr::is_loopback);
        // Ends with this boot, as what runs in it.
        let ends = CancellationToken::new();
        let _guard = ends.clone().drop_guard();
        let exit = match self.exit(link, own, network, &ends).await {
            Ok(exit) => exit,
            Err(_) => return PowerCommand::Reset,
        };
        let Ok(client) = ApplianceClient::leaving_by(boot.server.clone(), boot.ca, exit, ClientTiming::default())
        else {
            return PowerCommand::Reset;
        };
        let hello = OpenSession {
            token: secrecy::ExposeSecret::expose_secret(&boot.token).to_owned(),
            version: concat!(env!("CARGO_PKG_VERSION"), " simulated").to_owned(),
            mac_addresses: vec![self.mac.to_string()],
            uuid: uuid::Uuid::from_bytes(who.uuid).to_string(),
            uefi: self.boot_method.firmware().is_uefi(),
        };
        let log = LogRing::default();
        log.hide(&hello.token);
        let node = SimulatedNode {
            log: log.clone(),
            machine: self.machine.clone(),
            disk: self.disk.clone(),
            hardware: hardware(&self.name, self.mac, Some(address)),
            delays: rack.delays,
            faults: rack.faults,
            download: rack.download,
            rng: Mutex::new(luck.child()),
            counts: rack.counts.clone(),
        };
        rack.counts.session();
        self.disk.ramdisk();
        match session::run(client, &hello, Arc::new(node), &log).await {
            SessionEnd::PowerOff => PowerCommand::Off,
            // A simulated system has no kernel: it starts through the firmware.
            SessionEnd::Kexec
            | SessionEnd::Reboot
            | SessionEnd::Revoked(_)
            | SessionEnd::Refused(_)
            | SessionEnd::Untrusted(_)
            | SessionEnd::Unreachable(_) => PowerCommand::Reset,
        }
    }

    /// How the agent's calls leave: from the machine's own address, through the network that loses packets.
    async fn exit(
        &self,
        link: &LossyLink,
        own: Option<Ipv4Addr>,
        network: &mut SeededRng,
        ends: &CancellationToken,
    ) -> std::io::Result<Egress> {
        let any = Ipv4Addr::UNSPECIFIED;
        if link.loss == 0.0 {
            return Ok(Egress::Address(IpAddr::V4(own.unwrap_or(any))));
        }
        let listener = TcpListener::bind((own.unwrap_or(Ipv4Addr::LOCALHOST), 0)).await?;
        let address = listener.local_addr()?;
        let link = LossyLink { source: own, ..link.clone() };
        tokio::spawn(link.proxy(listener, network.child(), ends.clone()));
        Ok(Egress::Proxy(address))
    }
}

//! The life of one interface: up, link, LLDP, address, renewals.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::Instant;

use super::dhcp::{Actions, ClientLease, DhcpClient, LeaseChange, Transmit};
use super::link::{EthernetInterface, LinkControl};
use super::packet::{BROADCAST, ETHERTYPE_IPV4, ETHERTYPE_LLDP, PacketSocket, broadcast_datagram, client_payload};
use super::static_network::{self, NicRole};
use super::{ManagedNic, NetworkNeeds, NicStatus, Nics};
use crate::agent::inventory::lldp::{self, Neighbour};

/// How often the link is looked at.
const POLL: Duration = Duration::from_millis(200);
/// How often an interface that does not come up is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Metric of the default route of the interface that the firmware booted from; others come after it.
const METRIC: u32 = 100;

/// What the tasks of the interfaces share.
#[derive(Clone)]
pub struct NicContext {
    pub wanted: NetworkNeeds,
    pub links: LinkControl,
    pub nics: Arc<watch::Sender<Nics>>,
    pub neighbours: Arc<Mutex<BTreeMap<String, Neighbour>>>,
}

impl NicContext {
    pub(super) fn tell(&self, interface: &EthernetInterface, status: NicStatus) {
        self.nics.send_if_modified(|nics| {
            let nic = nics.entry(interface.name.clone()).or_insert_with(|| ManagedNic {
                interface: interface.clone(),
                status: NicStatus::NoLink,
                link_since: None,
            });
            let link = matches!(status, NicStatus::Asking(_) | NicStatus::Up(_) | NicStatus::Fixed(_));
            let changed = nic.status != status || nic.link_since.is_some() != link;
            nic.link_since = nic.link_since.filter(|_| link).or_else(|| link.then(Instant::now));
            nic.status = status;
            changed
        });
    }

    pub(super) fn carrier(&self, interface: &EthernetInterface) -> bool {
        let path = self.wanted.root.join("sys/class/net").join(&interface.name).join("carrier");
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    }
}

/// Runs an interface until the process ends.
pub async fn run(context: NicContext, interface: EthernetInterface) {
    tracing::info!(interface = interface.name, mac = %interface.mac, driver = interface.driver, "found a network interface");
    context.tell(&interface, NicStatus::NoLink);
    loop {
        match context.links.up(interface.index).await {
            Ok(()) => break,
            Err(error) => {
                let reason = format!("cannot be brought up: {error}");
                tracing::warn!(interface = interface.name, %error, "cannot bring an interface up");
                context.tell(&interface, NicStatus::Failed(reason));
            }
        }
        tokio::time::sleep(RETRY).await;
    }
    tokio::spawn(hear_neighbour(context.clone(), interface.clone()));
    match context.wanted.plan.as_ref().map(|plan| static_network::role(plan, interface.mac)) {
        Some(NicRole::Unused) => context.tell(&interface, NicStatus::Unused),
        Some(NicRole::Planned) => {}
        None | Some(NicRole::Dhcp) => ask(&context, &interface).await,
    }
}

/// Gets an address from DHCP and keeps it until the process ends.
pub(super) async fn ask(context: &NicContext, interface: &EthernetInterface) {
    let mut told = false;
    loop {
        if !context.carrier(interface) {
            context.tell(interface, NicStatus::NoLink);
            tokio::time::sleep(POLL).await;
            continue;
        }
        if !told {
            tracing::info!(interface = interface.name, "the interface has a link");
            told = true;
        }
        if let Err(error) = hold_lease(context, interface).await {
            let reason = format!("DHCP: {error}");
            tracing::warn!(interface = interface.name, %error, "cannot get an address by DHCP");
            context.tell(interface, NicStatus::Failed(reason));
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Gets a lease and renews it. Returns when the link is gone and there is no lease to keep.
async fn hold_lease(context: &NicContext, interface: &EthernetInterface) -> std::io::Result<()> {
    let started = Instant::now();
    let mut client = DhcpClient::new(interface.mac, context.wanted.appliance, rand::random(), Duration::ZERO);
    let mut lease: Option<ClientLease> = None;
    // The packet socket sees all of the interface's traffic: it is open only while there is no address.
    let mut packets: Option<PacketSocket> = None;
    let udp = udp_socket(&interface.name)?;
    let mut frame = vec![0; 2048];
    let mut datagram = vec![0; 2048];
    loop {
        if lease.is_none() {
            if !context.carrier(interface) {
                return Ok(());
            }
            context.tell(interface, NicStatus::Asking(client.discovers));
            if packets.is_none() {
                packets = Some(PacketSocket::open(interface.index, ETHERTYPE_IPV4)?);
            }
        }
        let due = started + client.deadline();
        // Without an address the link is looked at now and then.
        let due = if lease.is_none() { due.min(Instant::now() + Duration::from_secs(1)) } else { due };
        let actions = tokio::select! {
            () = tokio::time::sleep_until(due) => client.tick(started.elapsed()),
            received = receive(packets.as_ref(), &mut frame) => match client_payload(&frame[..received?]) {
                Some(payload) => client.receive(started.elapsed(), payload),
                None => continue,
            },
            received = udp.recv(&mut datagram), if packets.is_none() => {
                client.receive(started.elapsed(), &datagram[..received?])
            }
        };
        let Actions { transmit, change } = actions;
        match change {
            Some(LeaseChange::Bound(new)) => {
                let metric = METRIC + if context.wanted.mac == Some(interface.mac) { 0 } else { interface.index };
                if let Some(old) = lease.as_ref().filter(|old| (old.address, old.prefix) != (new.address, new.prefix)) {
                    drop_address(context, interface, old).await;
                }
                if let Err(error) = context.links.apply(interface.index, &new, metric).await {
                    return Err(std::io::Error::other(format!("{} cannot be set: {error}", new.address)));
                }
                if lease.is_none() {
                    tracing::info!(
                        interface = interface.name,
                        address = %format_args!("{}/{}", new.address, new.prefix),
                        server = %new.server,
                        router = new.router.map(tracing::field::display),
                        "got an address by DHCP"
                    );
                }
                context.tell(interface, NicStatus::Up(new.clone()));
                lease = Some(new);
                packets = None;
            }
            Some(LeaseChange::Lost(reason)) => {
                tracing::warn!(interface = interface.name, reason, "the interface lost its address");
                if let Some(old) = lease.take() {
                    drop_address(context, interface, &old).await;
                }
                context.tell(interface, NicStatus::Asking(0));
                packets = Some(PacketSocket::open(interface.index, ETHERTYPE_IPV4)?);
            }
            None => {}
        }
        let sent = match (transmit, &packets) {
            (Some(Transmit::Discover(message)), Some(packets)) => {
                packets.send(BROADCAST, &broadcast_datagram(&message)).await
            }
            (Some(Transmit::Renew(to, message)), _) => udp.send_to(&message, SocketAddrV4::new(to, 67)).await.map(drop),
            _ => Ok(()),
        };
        if let Err(error) = sent {
            // The client asks again by itself.
            tracing::debug!(interface = interface.name, %error, "cannot send a DHCP message");
        }
    }
}

async fn receive(packets: Option<&PacketSocket>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match packets {
        Some(packets) => packets.receive(buffer).await,
        None => std::future::pending().await,
    }
}

async fn drop_address(context: &NicContext, interface: &EthernetInterface, lease: &ClientLease) {
    if let Err(error) = context.links.remove(interface.index, lease).await {
        tracing::warn!(interface = interface.name, address = %lease.address, %error, "cannot remove an address");
    }
}

/// Port 68 on one interface, for renewals.
fn udp_socket(interface: &str) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.set_reuse_address(true)?;
    socket.set_broadcast(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68).into())?;
    UdpSocket::from_std(socket.into())
}

/// Keeps what the switch says of itself. Says hello itself when the link comes up: a switch that sees a new
/// neighbour answers within a second (IEEE 802.1AB, fast start) instead of within 30.
async fn hear_neighbour(context: NicContext, interface: EthernetInterface) {
    let socket = match PacketSocket::open(interface.index, ETHERTYPE_LLDP) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(interface = interface.name, %error, "cannot receive LLDP: the switch stays unknown");
            return;
        }
    };
    let hello = lldp::announce(interface.mac);
    let mut buffer = vec![0; 1600];
    let mut hellos = 0;
    let mut linked = false;
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = tick.tick() => {
                let carrier = context.carrier(&interface);
                if carrier && !linked {
                    hellos = 3;
                }
                linked = carrier;
                if linked && hellos > 0 {
                    hellos -= 1;
                    if let Err(error) = socket.send(lldp::MULTICAST, &hello).await {
                        tracing::debug!(interface = interface.name, %error, "cannot send LLDP");
                    }
                }
            }
            received = socket.receive(&mut buffer) => match received {
                Ok(length) => match Neighbour::parse(&buffer[..length]) {
                    // A bridge may give our own frame back.
                    Ok(neighbour) if neighbour.chassis != interface.mac.to_string() => {
                        let mut known = context.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
                        if known.insert(interface.name.clone(), neighbour.clone()).as_ref() != Some(&neighbour) {
                            tracing::info!(interface = interface.name, %neighbour, "LLDP found the switch");
                        }
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!(interface = interface.name, %error, "cannot read an LLDP frame"),
                },
                // The interface went down for a moment: sockets stay bound to it.
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }
}

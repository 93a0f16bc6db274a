//! What a worker does with each message, and each second: everything it knows beside its sockets.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Instant;

use dhcproto::v4::MessageType;

use crate::api::MacAddress;
use crate::boot::HostIndex;
use crate::boot::neighbour::{self, Cards};
use crate::config::NetworkMode;

use super::arp::ArpSocket;
use super::assigned::{Assigned, AssignedNetwork};
use super::clock::JumpDetector;
use super::conflict::{ConflictChecks, answered_by_another, quarantine};
use super::interface::interfaces;
use super::leases::{Leases, unix_now};
use super::log::InterfaceLog;
use super::network::{ServedNetwork, select};
use super::network_leases::NetworkLeases;
use super::outcome::{Disposition, DropReason, LeaseWrite, MessageOutcome};
use super::packet::DhcpRequest;
use super::probes::{HeldOffer, ProbeVerdict, Probes, TRIES};
use super::recent_messages::RecentMessage;
use super::respond::{NetworkContext, PacketInfo, Port, respond};
use super::server_probe::own_card;
use super::socket::Outgoing;
use super::write_batch::{CommitResult, WriteBatch};

/// Seconds between looks at leases that should not be kept as long as they say, which takes a look at all of them.
const REVIEW: u64 = 15;

/// Answers messages: all that a worker knows beside its sockets.
pub(super) struct Handler {
    port: Port,
    /// The networks that this worker is to serve.
    assigned: Arc<Assigned>,
    /// Which state of them it goes by.
    seen: u64,
    networks: Vec<Served>,
    pub leases: Leases,
    hosts: HostIndex,
    pub log: InterfaceLog,
    /// Checks of addresses of known machines that others are said to use.
    conflict_checks: ConflictChecks,
    /// Which machine answers at an address.
    pub cards: Cards,
    /// When all leases were looked at, seconds since 1970.
    reviewed: u64,
    clock: JumpDetector,
    /// Offers that wait until it is known whether somebody uses their address.
    probes: Probes,
    /// Addresses that are to be asked for by ARP.
    to_ask: Vec<Ipv4Addr>,
    /// Addresses that were asked for because of the message that is answered now.
    tries: u8,
}

/// A network that is served.
struct Served {
    network: ServedNetwork,
    leases: Arc<NetworkLeases>,
    /// Which state of its reservations it goes by.
    reserved: u64,
}

impl Handler {
    /// For the networks that are assigned.
    pub fn new(port: Port, assigned: Arc<Assigned>, leases: Leases, hosts: HostIndex, log: InterfaceLog) -> Self {
        Self {
            port,
            assigned,
            seen: 0,
            networks: Vec::new(),
            leases,
            hosts,
            log,
            conflict_checks: ConflictChecks::default(),
            cards: Arc::new(|_| None),
            reviewed: 0,
            clock: JumpDetector::default(),
            probes: Probes::default(),
            to_ask: Vec::new(),
            tries: 0,
        }
    }

    /// When an offer that waits leaves; none when none does.
    pub fn waits_until(&self) -> Option<Instant> {
        self.probes.next()
    }

    /// Goes by networks and reservations as they are now.
    pub fn follow(&mut self) {
        if let Some(assigned) = self.assigned.newer_than(&mut self.seen) {
            let served = |one: &AssignedNetwork| Served {
                network: one.network.clone(),
                leases: one.leases.clone(),
                reserved: u64::MAX,
            };
            self.networks = assigned.iter().map(served).collect();
        }
        for Served { network, leases, reserved: seen } in &mut self.networks {
            if let Some(reserved) = leases.reserved.newer_than(seen) {
                network.set_reserved(reserved);
            }
        }
    }

    /// Answers one message.
    pub fn answer(&mut self, now: u64, message: &[u8], source: SocketAddrV4, batch: &mut WriteBatch) {
        let request = match DhcpRequest::parse(message) {
            Ok(request) => request,
            Err(error) => return self.log.malformed(&error, source),
        };
        if request.mac == own_card() {
            // This appliance looks for other servers.
            return;
        }
        let Some(Served { network, leases, .. }) = select_served(&self.networks, &request) else {
            return self.log.unknown_relay(&request);
        };
        let number = leases.number;
        if !network.takes(&request) {
            return self.log.unnamed_relay(network, &request, source);
        }
        let hosts = &self.hosts;
        let is_network = |name: &str| self.leases.has_network(name);
        let known = |mac: MacAddress| network.knows(mac, hosts, is_network);
        let host = hosts.by_mac(request.mac);
        let unknown = hosts.unknown_machine(request.mac, network.discovery);
        let packet_info = PacketInfo { source, port: self.port };
        let outcome = {
            let mut table = leases.table();
            let (host, ending) = (host.as_deref(), leases.is_ending());
            let context = NetworkContext { network, host, hosts, unknown: &unknown, known: &known, ending };
            respond(now, &request, packet_info, context, &mut table)
        };
        if self.tries == 0 {
            leases.counts.count(&outcome.disposition);
        }
        self.log.outcome(network, &request, source, host.as_deref(), &outcome);
        let MessageOutcome { reply, writes, disposition, .. } = outcome;
        if let Disposition::Dropped(DropReason::OtherServer(server)) = disposition
            && request.kind == MessageType::Request
            && network.mode == NetworkMode::Authoritative
            && leases.others.chosen(now, server)
        {
            self.log.other_server(network, request.mac, server);
        }
        if let Disposition::ConflictReported(address) = disposition
            && self.conflict_checks.start(now, number, request.mac, address)
            && let Err(error) = neighbour::provoke(address)
        {
            tracing::debug!(mac = %request.mac, %address, %error, "cannot ask by ARP who has an address");
        }
        let offered = match &disposition {
            Disposition::Offered { address, new, .. } => Some((*address, *new)),
            _ => None,
        };
        let (network_name, kind) = (leases.name.clone(), request.kind);
        self.leases.record_message(request.mac, RecentMessage { at: now, network: network_name, kind, disposition });
        let mut answer = reply.map(|reply| Outgoing { server: network.server, peer: source, reply });
        if let Some((address, new)) = offered
            && let Some(offer) = answer.take()
        {
            answer = if new && self.tries < TRIES && writes.is_empty() && network.can_probe(&request) {
                let (mac, guest, tries) = (request.mac, !known(request.mac), self.tries + 1);
                let held = HeldOffer { network: number, mac, guest, message: message.to_vec(), source, offer, tries };
                let at_once = self.probes.hold(Instant::now(), address, held);
                if at_once.is_none() {
                    self.to_ask.push(address);
                }
                at_once.map(|held| held.offer)
            } else if self.probes.is_empty() {
                Some(offer)
            } else {
                self.probes.replace(address, request.mac, offer)
            };
        }
        if writes.is_empty() {
            batch.ready.extend(answer);
        } else {
            batch.writes.extend(writes);
            batch.waiting.extend(answer);
        }
    }

    /// Asks by ARP for the addresses of new offers, and lets those leave that nobody answered for in time.
    /// The socket on this interface is open while somebody is asked: what it heard before is no answer.
    pub fn probe(&mut self, socket: &mut Option<ArpSocket>, interface: &str, batch: &mut WriteBatch) {
        if self.probes.is_empty() {
            *socket = None;
            return;
        }
        if socket.is_none() {
            match ArpSocket::open(interface) {
                Ok(arp) => *socket = Some(arp),
                Err(error) => {
                    tracing::debug!(%interface, %error, "cannot ask by ARP who uses an address");
                    self.to_ask.clear();
                    batch.ready.extend(self.probes.give_up().into_iter().map(|held| held.offer));
                }
            }
        }
        let Some(arp) = socket.as_ref() else { return };
        let hosts = &self.hosts;
        let mut verdicts = Vec::new();
        for (address, card) in arp.hear() {
            let is_own = |held: &HeldOffer| {
                held.mac == card || hosts.by_mac(held.mac).is_some_and(|host| host.macs.contains(&card))
            };
            verdicts.extend(self.probes.answered(address, card, is_own));
        }
        verdicts.extend(self.probes.due(Instant::now()));
        for verdict in verdicts {
            match verdict {
                ProbeVerdict::Free(held) => batch.ready.push(held.offer),
                ProbeVerdict::Taken(address, held, card) => self.try_another(address, held, card, batch),
            }
        }
        for address in self.to_ask.drain(..) {
            arp.ask(address);
        }
    }

    /// A card uses the address that was about to be offered: it is given to nobody for a while, and the machine gets another.
    fn try_another(&mut self, address: Ipv4Addr, held: HeldOffer, card: MacAddress, batch: &mut WriteBatch) {
        let now = unix_now();
        let Some(served) = self.networks.iter().find(|one| one.leases.number == held.network) else { return };
        let write = quarantine(now, address, held.mac, &mut served.leases.table());
        if write.is_some() {
            self.log.in_use(&served.network, held.mac, address, card);
        }
        batch.writes.extend(write);
        self.tries = held.tries;
        self.answer(now, &held.message, held.source, batch);
        self.tries = 0;
    }

    /// Decides the conflict checks that are due. Returns the records of the addresses that others have.
    pub fn finish_conflict_checks(&mut self) -> Vec<LeaseWrite> {
        let now = unix_now();
        let (mut writes, mut own_addresses) = (Vec::new(), None);
        for check in self.conflict_checks.due(now) {
            let Some(served) = self.networks.iter().find(|one| one.leases.number == check.network) else { continue };
            let Served { network, leases, .. } = served;
            let host = self.hosts.by_mac(check.mac);
            let own = [&[check.mac][..], host.as_deref().map_or(&[][..], |host| &host.macs)].concat();
            // Once for all of them.
            let ours = own_addresses.get_or_insert_with(|| {
                let all = interfaces().unwrap_or_default();
                all.into_values().flat_map(|one| one.addresses).collect::<HashSet<Ipv4Addr>>()
            });
            let taken = answered_by_another((self.cards)(check.address), &own) || ours.contains(&check.address);
            let write = taken.then(|| quarantine(now, check.address, check.mac, &mut leases.table())).flatten();
            self.log.conflict_checked(network, host.as_deref(), &check, write.is_some());
            writes.extend(write);
        }
        writes
    }

    pub fn finish(&mut self, written: CommitResult, ready: &mut Vec<Outgoing>) {
        match written.result {
            Ok(()) => ready.extend(written.answers),
            Err(error) => self.log.not_stored(&error),
        }
    }

    /// Seconds since 1970. When that has jumped, all leases move with it, and their records are to be written anew.
    pub fn now(&mut self, writes: &mut Vec<LeaseWrite>) -> u64 {
        let now = unix_now();
        let jump = self.clock.observe(now, Instant::now());
        if let Some(by) = jump.filter(|_| self.port == Port::Server) {
            tracing::warn!(seconds = by, "the clock jumped: DHCP leases were moved with it");
            writes.extend(self.networks.iter().flat_map(|one| self.leases.shift(&one.leases, by)));
        }
        now
    }

    /// Expires leases. Returns the records to remove.
    pub fn expire_leases(&mut self, now: u64) -> Vec<LeaseWrite> {
        let mut all = Vec::new();
        // Before the first list of hosts is complete, nobody is known.
        let reviews = self.hosts.is_settled() && now.abs_diff(self.reviewed) >= REVIEW;
        if reviews {
            self.reviewed = now;
        }
        let own = |one: &&Served| self.port == Port::Server && !one.leases.is_ending();
        for Served { network, leases, .. } in self.networks.iter().filter(own) {
            let is_network = |name: &str| self.leases.has_network(name);
            let known = |mac: MacAddress| network.knows(mac, &self.hosts, is_network);
            let gone = leases.table().advance(now, &known);
            if !gone.is_empty() {
                tracing::debug!(network = %network.name, leases = gone.len(), "old DHCP leases were removed");
            }
            all.extend(gone.into_iter().map(|address| LeaseWrite { address, record: None }));
            if reviews {
                all.extend(self.leases.review(now, leases, u64::from(network.guest_lease), &known));
            }
        }
        all
    }
}

fn select_served<'n>(networks: &'n [Served], request: &DhcpRequest<'_>) -> Option<&'n Served> {
    let chosen = select(networks.iter().map(|one| &one.network), request)?;
    networks.iter().find(|one| std::ptr::eq(&one.network, chosen))
}

#[cfg(test)]
mod tests {
    use super::super::ServicePorts;
    use super::super::network_set::EffectiveNetwork;
    use super::*;
    use crate::store::{Store, StoreOptions};

    fn discover(mac: MacAddress) -> Vec<u8> {
        let mut message = vec![0; 240];
        message[..3].copy_from_slice(&[1, 1, 6]);
        message[28..34].copy_from_slice(&mac.0);
        message[236..].copy_from_slice(&[99, 130, 83, 99]);
        message.extend([53, 1, 1, 255]);
        message
    }

    #[tokio::test]
    async fn whoever_asks_is_answered_by_the_networks_there_are_now_but_this_appliance_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key_file) = (folder.path().join("db"), folder.path().join("key"));
        let store = Store::open(StoreOptions { path, key_file, history: 10 }).unwrap();
        let leases = Leases::load(&store, &[]).unwrap();
        let (assigned, hosts) = (Arc::<Assigned>::default(), HostIndex::default());
        let log = InterfaceLog::new("lo".into());
        let mut handler = Handler::new(Port::Server, assigned.clone(), leases.clone(), hosts, log);
        let mut offers = |mac| {
            let mut batch = WriteBatch::default();
            handler.follow();
            let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
            handler.answer(unix_now(), &discover(mac), from, &mut batch);
            batch.ready.len()
        };
        let machine = MacAddress([2, 0, 0, 0, 0, 1]);
        assert_eq!(offers(machine), 0, "there is no network yet");
        let text = "name = 'a'\ninterface = 'lo'\nsubnet = '10.0.0.0/24'\npool = ['10.0.0.100-10.0.0.109']\ncheck_cards = false";
        leases.set().put_in_force(unix_now(), vec![EffectiveNetwork::of_file(&toml::from_str(text).unwrap())]);
        let ports = ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 };
        let network = leases.networks()[0].clone();
        assigned.set(vec![AssignedNetwork::new(&network, [10, 0, 0, 1].into(), ports)]);
        assert_eq!((offers(machine), offers(own_card())), (1, 0));
        // It went, and its worker does not know it yet.
        leases.set().put_in_force(unix_now(), Vec::new());
        assert_eq!(offers(machine), 0);
        store.close().await;
    }
}

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
use super::clock::JumpDetector;
use super::conflict::{ConflictChecks, answered_by_another, quarantine};
use super::interface::interfaces;
use super::leases::{Leases, unix_now};
use super::log::Log;
use super::network::{Network, select};
use super::outcome::{Disposition, DropReason, LeaseWrite, Outcome};
use super::packet::Request;
use super::probes::{Held, Probes, TRIES, Verdict};
use super::recent_messages::RecentMessage;
use super::respond::{NetworkContext, PacketInfo, Port, respond};
use super::socket::Outgoing;
use super::write_batch::{CommitResult, WriteBatch};

/// Seconds between looks at leases that should not be kept as long as they say, which takes a look at all of them.
const REVIEW: u64 = 15;

/// Answers messages: all that a worker knows beside its sockets.
pub(super) struct Handler {
    port: Port,
    /// The networks, with their number in the leases.
    pub networks: Vec<(usize, Network)>,
    /// For each network, which state of its reservations it goes by.
    reserved: Vec<u64>,
    pub leases: Leases,
    hosts: HostIndex,
    pub log: Log,
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

impl Handler {
    /// Without networks.
    pub fn new(port: Port, leases: Leases, hosts: HostIndex, log: Log) -> Self {
        Self {
            port,
            networks: Vec::new(),
            reserved: Vec::new(),
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

    /// Adds a network, with its number in the leases.
    pub fn add(&mut self, index: usize, network: Network) {
        self.networks.push((index, network));
        self.reserved.push(0);
    }

    /// When an offer that waits leaves; none when none does.
    pub fn waits_until(&self) -> Option<Instant> {
        self.probes.next()
    }

    /// Goes by the reservations as they are now.
    pub fn follow_reservations(&mut self) {
        for ((index, network), seen) in self.networks.iter_mut().zip(&mut self.reserved) {
            let live = self.leases.networks().get(*index).map(|leases| &leases.reserved);
            if let Some(reserved) = live.and_then(|live| live.newer_than(seen)) {
                network.set_reserved(reserved);
            }
        }
    }

    /// Answers one message.
    pub fn answer(&mut self, now: u64, message: &[u8], source: SocketAddrV4, batch: &mut WriteBatch) {
        let request = match Request::parse(message) {
            Ok(request) => request,
            Err(error) => return self.log.malformed(&error, source),
        };
        let Some(&(index, ref network)) = select_indexed(&self.networks, &request) else {
            return self.log.unknown_relay(&request);
        };
        if !network.takes(&request) {
            return self.log.unnamed_relay(network, &request, source);
        }
        let Some(leases) = self.leases.networks().get(index) else { return };
        let hosts = &self.hosts;
        let is_network = |name: &str| self.leases.has_network(name);
        let known = |mac: MacAddress| network.knows(mac, hosts, is_network);
        let host = hosts.by_mac(request.mac);
        let unknown = hosts.unknown_machine(request.mac, network.discovery);
        let context = NetworkContext { network, host: host.as_deref(), hosts, unknown: &unknown, known: &known };
        let packet_info = PacketInfo { source, port: self.port };
        let outcome = respond(now, &request, packet_info, context, &mut leases.table());
        if self.tries == 0 {
            leases.counts.count(&outcome.disposition);
        }
        self.log.outcome(network, &request, source, host.as_deref(), &outcome);
        let Outcome { reply, writes, disposition, .. } = outcome;
        if let Disposition::Dropped(DropReason::OtherServer(server)) = disposition
            && request.kind == MessageType::Request
            && network.mode == NetworkMode::Authoritative
            && leases.others.chosen(now, server)
        {
            self.log.other_server(network, request.mac, server);
        }
        if let Disposition::ConflictReported(address) = disposition
            && self.conflict_checks.start(now, index, request.mac, address)
            && let Err(error) = neighbour::provoke(address)
        {
            tracing::debug!(mac = %request.mac, %address, %error, "cannot ask by ARP who has an address");
        }
        let offered = match &disposition {
            Disposition::Offered { address, new, .. } => Some((*address, *new)),
            _ => None,
        };
        self.leases
            .record_message(request.mac, RecentMessage { at: now, network: index, kind: request.kind, disposition });
        let mut answer = reply.map(|reply| Outgoing { server: network.server, peer: source, reply });
        if let Some((address, new)) = offered
            && let Some(offer) = answer.take()
        {
            answer = if new && self.tries < TRIES && writes.is_empty() && network.can_probe(&request) {
                let (mac, guest, tries) = (request.mac, !known(request.mac), self.tries + 1);
                let held = Held { network: index, mac, guest, message: message.to_vec(), source, offer, tries };
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
            let is_own =
                |held: &Held| held.mac == card || hosts.by_mac(held.mac).is_some_and(|host| host.macs.contains(&card));
            verdicts.extend(self.probes.answered(address, card, is_own));
        }
        verdicts.extend(self.probes.due(Instant::now()));
        for verdict in verdicts {
            match verdict {
                Verdict::Free(held) => batch.ready.push(held.offer),
                Verdict::Taken(address, held, card) => self.try_another(address, held, card, batch),
            }
        }
        for address in self.to_ask.drain(..) {
            arp.ask(address);
        }
    }

    /// A card uses the address that was about to be offered: it is given to nobody for a while, and the machine gets another.
    fn try_another(&mut self, address: Ipv4Addr, held: Held, card: MacAddress, batch: &mut WriteBatch) {
        let now = unix_now();
        let Some((_, network)) = self.networks.iter().find(|(index, _)| *index == held.network) else { return };
        let Some(leases) = self.leases.networks().get(held.network) else { return };
        let write = quarantine(now, address, held.mac, &mut leases.table());
        if write.is_some() {
            self.log.in_use(network, held.mac, address, card);
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
            let Some((_, network)) = self.networks.iter().find(|(index, _)| *index == check.network) else { continue };
            let Some(leases) = self.leases.networks().get(check.network) else { continue };
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
            writes.extend(self.networks.iter().flat_map(|(index, _)| self.leases.shift(*index, by)));
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
        for (index, network) in self.networks.iter().filter(|_| self.port == Port::Server) {
            let Some(leases) = self.leases.networks().get(*index) else { continue };
            let is_network = |name: &str| self.leases.has_network(name);
            let known = |mac: MacAddress| network.knows(mac, &self.hosts, is_network);
            let gone = leases.table().advance(now, &known);
            if !gone.is_empty() {
                tracing::debug!(network = %network.name, leases = gone.len(), "old DHCP leases were removed");
            }
            all.extend(gone.into_iter().map(|address| LeaseWrite { address, record: None }));
            if reviews {
                all.extend(self.leases.review(now, *index, u64::from(network.guest_lease), &known));
            }
        }
        all
    }
}

fn select_indexed<'n>(networks: &'n [(usize, Network)], request: &Request<'_>) -> Option<&'n (usize, Network)> {
    let chosen = select(networks.iter().map(|(_, network)| network), request)?;
    networks.iter().find(|(_, network)| std::ptr::eq(network, chosen))
}

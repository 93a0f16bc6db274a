//! The DHCP server's logic without its sockets: message in, outcome out (RFC 2131 section 4.3).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use dhcproto::v4::MessageType;

use crate::api::MacAddress;
use crate::boot::{BootHost, HostIndex, UnknownMachine, decide};
use crate::config::NetworkMode;

use super::client::{self, LeaseClient};
use super::netboot::{self, Netboot};
use super::network::ServedNetwork;
use super::outcome::{Destination, DhcpReply, Disposition, DropReason, LeaseWrite, MessageOutcome, NakReason};
use super::packet::{DhcpRequest, code};
use super::record;
use super::reply::ReplyContent;
use super::shares::PoolShares;
use super::table::{IsKnown, Lease, LeaseState, LeaseTable, OFFER_HOLD, QUARANTINE};

/// UDP port of clients.
const CLIENT_PORT: u16 = 68;
/// Shortest lease given to a client that asks for less, in seconds.
const SHORTEST_LEASE: u32 = 60;

/// Port a message came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// 67
    Server,
    /// 4011, where proxies are asked (PXE 2.1 section 2.2.3).
    Proxy,
}

/// How a message came: what the packet says beside its payload.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo {
    /// Sender.
    pub source: SocketAddrV4,
    /// Port it came in by.
    pub port: Port,
}

/// What an answer depends on beside the message and the leases.
#[derive(Clone, Copy)]
pub struct NetworkContext<'a> {
    /// The network.
    pub network: &'a ServedNetwork,
    /// The BareMetalHost with the client's hardware address.
    pub host: Option<&'a BootHost>,
    /// All hosts.
    pub hosts: &'a HostIndex,
    /// What is done about the client when it is no host.
    pub unknown: &'a UnknownMachine,
    /// Who is known on this network.
    pub known: IsKnown<'a>,
    /// Whether the network is in force no more: it gives nothing, and leases end.
    pub ending: bool,
}

impl<'a> NetworkContext<'a> {
    /// Whether a machine goes by its hardware address, whatever client identifier it sends: it has a reservation or is
    /// some host's.
    fn is_named(&self, mac: MacAddress) -> bool {
        self.host.is_some() || self.network.reservation(mac).is_some()
    }

    /// The namespace that shares the pool with others: of a registered host without a reservation.
    fn namespace(&self, mac: MacAddress) -> Option<&'a str> {
        if self.is_guest(mac) || self.network.reservation(mac).is_some() {
            return None;
        }
        self.host.map(|host| host.namespace.as_str())
    }

    /// Whether nothing is kept for a machine. Whoever reports himself, or may make hosts, can name as many hardware
    /// addresses as he likes.
    fn is_guest(&self, mac: MacAddress) -> bool {
        !(self.known)(mac)
    }
}

/// Answers one message. `now` is seconds since 1970. Leases change at once; the answer may be sent when the writes are
/// on disk.
pub fn respond(
    now: u64,
    request: &DhcpRequest<'_>,
    packet_info: PacketInfo,
    context: NetworkContext<'_>,
    leases: &mut LeaseTable,
) -> MessageOutcome {
    match (context.network.mode, packet_info.port) {
        (_, Port::Server) if context.ending => {
            let client = LeaseClient::of(request, context.is_named(request.mac));
            return Transaction { now, request, packet_info, context, client, leases }.end();
        }
        (NetworkMode::Off, _) => return MessageOutcome::dropped(DropReason::Off),
        (NetworkMode::Proxy, _) => return super::proxy::respond(request, packet_info, context),
        (NetworkMode::Authoritative | NetworkMode::Reservations, Port::Proxy) => {
            return MessageOutcome::dropped(DropReason::Off);
        }
        (NetworkMode::Authoritative | NetworkMode::Reservations, Port::Server) => {}
    }
    let client = LeaseClient::of(request, context.is_named(request.mac));
    if context.network.mode == NetworkMode::Reservations && !client.known {
        return MessageOutcome::dropped(DropReason::NotKnown);
    }
    let mut transaction = Transaction { now, request, packet_info, context, client, leases };
    match request.kind {
        MessageType::Discover => transaction.discover(),
        MessageType::Request => transaction.request(),
        MessageType::Decline => transaction.decline(),
        MessageType::Release => transaction.release(),
        MessageType::Inform => transaction.inform(),
        other => MessageOutcome::dropped(DropReason::Kind(other)),
    }
}

/// Boot information for the client, and the sentence about it for the log. Nothing for running systems.
pub(super) fn boot_answer(request: &DhcpRequest<'_>, context: NetworkContext<'_>) -> (Option<Netboot>, Option<String>) {
    if client::kind(request) == crate::boot::ClientKind::System {
        return (None, None);
    }
    let client = client::boot_client(request);
    let mut decision = decide(&client, context.host, context.unknown);
    let netboot = netboot::answer(&client, &decision, context.network);
    let reason = decision.reasons.pop().unwrap_or_default();
    let text = match &netboot {
        Some(netboot) => format!("{} is told to boot {} ({reason})", client.firmware, netboot.file),
        None => format!("{} is told nothing to boot ({reason})", client.firmware),
    };
    (netboot, Some(text))
}

/// Where an answer to a client goes that has its address. Only behind a router it takes that to find it.
pub(super) fn client_at(request: &DhcpRequest<'_>, network: &ServedNetwork, to: SocketAddrV4) -> Destination {
    if network.is_here() { Destination::Client { mac: request.mac, to } } else { Destination::Address(to) }
}

/// A host as [`PoolShares`] counts it.
struct PoolUser(Arc<BootHost>);

impl AsRef<str> for PoolUser {
    fn as_ref(&self) -> &str {
        &self.0.namespace
    }
}

struct Transaction<'a> {
    now: u64,
    request: &'a DhcpRequest<'a>,
    packet_info: PacketInfo,
    context: NetworkContext<'a>,
    client: LeaseClient,
    leases: &'a mut LeaseTable,
}

impl Transaction<'_> {
    fn discover(&mut self) -> MessageOutcome {
        let duplicate_mac = self.duplicate_mac();
        let wish = self.request.address(code::REQUESTED_ADDRESS);
        let address = match self.assign(wish) {
            Ok(address) => address,
            Err(reason) => return MessageOutcome { duplicate_mac, ..MessageOutcome::dropped(reason) },
        };
        let writes = self.give_up_other(address);
        self.note_share(address);
        let own = self.leases.get(address).filter(|lease| LeaseTable::is_of(lease, &self.client));
        // One that was declined is given when nothing else is left, whoever answers there.
        let declined = self.leases.get(address).is_some_and(|lease| lease.state == LeaseState::Declined);
        let new = own.is_none() && !declined && self.leases.in_pool(address);
        // A client that starts again keeps the lease it has.
        if own.is_none_or(|lease| lease.state != LeaseState::Bound) {
            let offer = Lease {
                address,
                client: self.client.clone(),
                state: LeaseState::Offered,
                ends: self.now + OFFER_HOLD,
                hostname: own.and_then(|lease| lease.hostname.clone()),
                stored: own.is_some_and(|lease| lease.stored),
            };
            self.leases.put(offer);
        }
        let (netboot, boot) = boot_answer(self.request, self.context);
        let answer = ReplyContent {
            yiaddr: address,
            lease: Some(self.lease_time()),
            hostname: self.hostname(),
            netboot: netboot.as_ref(),
            ..ReplyContent::new(MessageType::Offer)
        };
        let reply = self.reply(&answer);
        MessageOutcome {
            reply: Some(reply),
            writes,
            disposition: Disposition::Offered { address, boot, new },
            duplicate_mac,
        }
    }

    /// One client, one address: forgets what it had beside this one.
    fn give_up_other(&mut self, address: Ipv4Addr) -> Vec<LeaseWrite> {
        let other = self.leases.of_client(&self.client).map(|lease| lease.address).filter(|other| *other != address);
        let stored = other.filter(|other| self.leases.remove(*other));
        stored.into_iter().map(|address| LeaseWrite { address, record: None }).collect()
    }

    /// The address for a client: its reservation, what it had, or one from the pool.
    fn assign(&mut self, wish: Option<Ipv4Addr>) -> Result<Ipv4Addr, DropReason> {
        let reserved = self.context.network.reservation(self.client.mac).map(|reservation| reservation.address);
        if let Some(address) = reserved.filter(|address| !self.is_anothers(*address)) {
            return Ok(address);
        }
        let before = self.leases.of_client(&self.client).map(|lease| (lease.address, lease.state));
        if let Some((address, state)) = before.filter(|(address, _)| self.leases.in_pool(*address))
            && (self.is_its_own(state) || self.may_take_another())
        {
            return Ok(address);
        }
        let (pool, guest) = (!self.leases.pool_is_empty(), self.context.is_guest(self.client.mac));
        let may = !pool || self.may_take_another();
        let known = self.context.known;
        let found = if may {
            self.leases.find(wish, &self.client, known)
        } else {
            self.leases.find_for_known(&self.client, known)
        };
        found.or_else(|| self.anothers_claim()).ok_or(match reserved {
            Some(address) => DropReason::ReservationTaken(address),
            None if !pool => DropReason::NoPool,
            None if may => DropReason::PoolEmpty,
            None if guest => DropReason::PoolKept,
            None => DropReason::PoolShared,
        })
    }

    /// Whether a lease in this state is still its client's, whatever others have: a known machine's is when it is over, too.
    fn is_its_own(&self, state: LeaseState) -> bool {
        self.is_held(state) || !self.context.is_guest(self.client.mac)
    }

    /// The address that a host of a namespace with more leases than this host's left longest ago.
    fn anothers_claim(&mut self) -> Option<Ipv4Addr> {
        let namespace = self.context.namespace(self.client.mac)?;
        self.share();
        if !self.leases.shares().may_look(namespace) {
            return None;
        }
        let hosts = self.context.hosts;
        let of_more = |shares: &PoolShares, mac: MacAddress| {
            let reserved = self.context.network.reservation(mac).is_some();
            !reserved && hosts.registered(mac).is_some_and(|host| shares.has_more(&host.namespace, namespace))
        };
        let Some(address) = self.leases.find_claimed(of_more) else {
            self.leases.shares().looked_in_vain(namespace);
            return None;
        };
        let before = self.leases.get(address).and_then(|lease| hosts.registered(lease.client.mac));
        if let Some(before) = before {
            self.leases.shares().remove(&before.namespace);
        }
        Some(address)
    }

    /// Counts what each namespace has of the pool.
    fn share(&mut self) {
        let (now, hosts) = (self.now, self.context.hosts);
        self.leases.share(now, |holders| {
            let holders = holders.filter_map(|mac| hosts.registered(mac));
            let names: Vec<_> = holders.map(PoolUser).collect();
            PoolShares::count(now, hosts.namespaces(), names)
        });
    }

    /// Counts an address that the client is given and did not have.
    fn note_share(&mut self, address: Ipv4Addr) {
        if !self.leases.shares().are_current(self.now) {
            // The pool is not short: nobody counts.
            return;
        }
        let had = self.leases.get(address).is_some_and(|lease| LeaseTable::is_of(lease, &self.client));
        if let Some(namespace) = self.context.namespace(self.client.mac).filter(|_| !had) {
            self.leases.shares().add(namespace);
        }
    }

    /// Whether a lease in this state is its client's still.
    fn is_held(&self, state: LeaseState) -> bool {
        matches!(state, LeaseState::Bound | LeaseState::Offered)
    }

    /// Whether the client may have an address that is nobody's now.
    fn may_take_another(&mut self) -> bool {
        let known = self.context.known;
        if self.leases.guests_may_take(known) {
            return true;
        }
        if self.context.is_guest(self.client.mac) {
            return false;
        }
        let Some(namespace) = self.context.namespace(self.client.mac) else { return true };
        self.share();
        self.leases.namespace_may_take(namespace, known)
    }

    /// Whether another client uses the address.
    fn is_anothers(&self, address: Ipv4Addr) -> bool {
        self.leases.get(address).is_some_and(|lease| {
            matches!(lease.state, LeaseState::Bound | LeaseState::Offered) && !LeaseTable::is_of(lease, &self.client)
        })
    }

    fn request(&mut self) -> MessageOutcome {
        let chosen = self.request.address(code::SERVER_ID);
        if let Some(server) = chosen.filter(|server| !self.is_our_id(*server)) {
            // Our offer was not taken.
            let offered = self.leases.of_client(&self.client).filter(|lease| lease.state == LeaseState::Offered);
            if let Some(address) = offered.filter(|lease| !lease.stored).map(|lease| lease.address) {
                self.leases.remove(address);
            }
            return MessageOutcome::dropped(DropReason::OtherServer(server));
        }
        // SELECTING and INIT-REBOOT name the address in option 50, RENEWING and REBINDING in ciaddr (section 4.3.2).
        let current = Some(self.request.ciaddr).filter(|address| !address.is_unspecified());
        let asked = self.request.address(code::REQUESTED_ADDRESS);
        let wanted = if chosen.is_some() { asked.or(current) } else { current.or(asked) };
        let Some(address) = wanted else { return MessageOutcome::dropped(DropReason::NoAddress) };
        let duplicate_mac = self.duplicate_mac();
        match self.may_have(address) {
            Ok(()) => MessageOutcome { duplicate_mac, ..self.bind(address) },
            Err(reason) => MessageOutcome { duplicate_mac, ..self.refuse(address, reason) },
        }
    }

    /// Who has an address is told when it asks for it again that it has it no longer. Nobody else is told anything: the client may be
    /// another network's.
    fn end(&mut self) -> MessageOutcome {
        if self.request.kind == MessageType::Release {
            return self.release();
        }
        let chosen = self.request.address(code::SERVER_ID);
        if let Some(server) = chosen.filter(|server| !self.is_our_id(*server)) {
            return MessageOutcome::dropped(DropReason::OtherServer(server));
        }
        let current = Some(self.request.ciaddr).filter(|address| !address.is_unspecified());
        let wanted = current.or_else(|| self.request.address(code::REQUESTED_ADDRESS));
        let has = |address: &Ipv4Addr| {
            let lease = self.leases.get(*address).filter(|lease| LeaseTable::is_of(lease, &self.client));
            lease.is_some_and(|lease| lease.state == LeaseState::Bound)
        };
        match wanted.filter(has) {
            Some(address) if self.request.kind == MessageType::Request => self.refuse(address, NakReason::Ended),
            _ => MessageOutcome::dropped(DropReason::Ended),
        }
    }

    fn is_our_id(&self, server: Ipv4Addr) -> bool {
        server == self.context.network.server || server == self.context.network.server_id(self.request)
    }

    /// Whether a client may have the address it asks for. An address of the pool that nobody has is given also without
    /// an offer: the offer may have lapsed, or the lease may be from before the database was lost.
    fn may_have(&mut self, address: Ipv4Addr) -> Result<(), NakReason> {
        let network = self.context.network;
        if !network.subnet.contains(address) {
            return Err(NakReason::WrongNetwork);
        }
        let held = self.leases.get(address).filter(|lease| LeaseTable::is_of(lease, &self.client));
        let held = held.map(|lease| lease.state);
        let own = held.is_some();
        if let Some(reservation) = network.reservation(self.client.mac) {
            if self.is_anothers(reservation.address) {
                // Until it is free the client has another one.
                return if own && self.leases.in_pool(address) { Ok(()) } else { Err(NakReason::Taken) };
            }
            return if reservation.address == address { Ok(()) } else { Err(NakReason::Other(reservation.address)) };
        }
        if network.reserved_for(address).is_some() {
            return Err(NakReason::Taken);
        }
        if !self.leases.in_pool(address) {
            return Err(NakReason::NotInPool);
        }
        if !held.is_some_and(|state| self.is_its_own(state)) && !self.may_take_another() {
            return Err(NakReason::Kept);
        }
        if own {
            return Ok(());
        }
        match self.leases.of_client(&self.client) {
            Some(lease) if self.leases.in_pool(lease.address) => Err(NakReason::Other(lease.address)),
            _ if self.leases.may_take(address, self.context.known) => Ok(()),
            _ => Err(NakReason::Taken),
        }
    }

    fn bind(&mut self, address: Ipv4Addr) -> MessageOutcome {
        let mut writes = self.give_up_other(address);
        let seconds = self.lease_time();
        self.note_share(address);
        let own = self.leases.get(address).filter(|lease| LeaseTable::is_of(lease, &self.client));
        let renewed = own.is_some_and(|lease| lease.state == LeaseState::Bound);
        let lease = Lease {
            address,
            client: self.client.clone(),
            state: LeaseState::Bound,
            ends: self.now + u64::from(seconds),
            hostname: self.request.hostname().map(String::into_boxed_str),
            stored: true,
        };
        writes.push(LeaseWrite { address, record: Some(record::encode(&lease)) });
        self.leases.put(lease);
        let (netboot, boot) = boot_answer(self.request, self.context);
        let answer = ReplyContent {
            yiaddr: address,
            lease: Some(seconds),
            hostname: self.hostname(),
            netboot: netboot.as_ref(),
            ..ReplyContent::new(MessageType::Ack)
        };
        let reply = self.reply(&answer);
        MessageOutcome {
            reply: Some(reply),
            writes,
            disposition: Disposition::Bound { address, renewed, boot },
            duplicate_mac: None,
        }
    }

    fn refuse(&self, address: Ipv4Addr, reason: NakReason) -> MessageOutcome {
        let text = reason.to_string();
        let answer = ReplyContent { message: Some(&text), parameters: false, ..ReplyContent::new(MessageType::Nak) };
        let reply = Some(self.reply(&answer));
        MessageOutcome {
            reply,
            writes: Vec::new(),
            disposition: Disposition::Refused { address, reason },
            duplicate_mac: None,
        }
    }

    /// Anybody can decline in a known machine's name. So what its message says of its address is looked at first, and until then
    /// the address stays the machine's, as it does when it is reserved.
    fn decline(&mut self) -> MessageOutcome {
        let Some(address) = self.request.address(code::REQUESTED_ADDRESS) else {
            return MessageOutcome::dropped(DropReason::NoAddress);
        };
        let lease = match self.theirs(address) {
            Ok(lease) => lease,
            Err(reason) => return MessageOutcome::dropped(reason),
        };
        let reserved = self.context.network.reserved_for(address).is_some();
        if self.client.known && !reserved {
            return MessageOutcome {
                reply: None,
                writes: Vec::new(),
                disposition: Disposition::ConflictReported(address),
                duplicate_mac: None,
            };
        }
        let mut writes = Vec::new();
        // A reservation stays what it is: only the operator can end the conflict.
        if !reserved {
            let ends = self.now + QUARANTINE;
            let declined = Lease { state: LeaseState::Declined, ends, stored: true, ..lease };
            writes.push(LeaseWrite { address, record: Some(record::encode(&declined)) });
            self.leases.put(declined);
        }
        MessageOutcome {
            reply: None,
            writes,
            disposition: Disposition::Declined { address, reserved },
            duplicate_mac: None,
        }
    }

    /// A client sends this from the address that it gives back (RFC 2131 section 4.4.6), or a relay passes it on. Who is known
    /// has its address as long as it is known: for such a machine it changes nothing, whoever sent it.
    fn release(&mut self) -> MessageOutcome {
        let address = self.request.ciaddr;
        let source = *self.packet_info.source.ip();
        if source != address && (source != self.request.giaddr || source.is_unspecified()) {
            return MessageOutcome::dropped(DropReason::NotFrom(address));
        }
        let lease = match self.theirs(address) {
            Ok(lease) if lease.state == LeaseState::Bound => lease,
            Ok(_) => return MessageOutcome::dropped(DropReason::NotTheirs(address)),
            Err(reason) => return MessageOutcome::dropped(reason),
        };
        if self.client.known {
            return MessageOutcome {
                reply: None,
                writes: Vec::new(),
                disposition: Disposition::Kept(address),
                duplicate_mac: None,
            };
        }
        let released = Lease { state: LeaseState::Released, ends: self.now, ..lease };
        let writes = vec![LeaseWrite { address, record: Some(record::encode(&released)) }];
        self.leases.put(released);
        MessageOutcome { reply: None, writes, disposition: Disposition::Released(address), duplicate_mac: None }
    }

    /// The lease that a client gives up: offered or leased to it, by this server.
    fn theirs(&self, address: Ipv4Addr) -> Result<Lease, DropReason> {
        if let Some(server) = self.request.address(code::SERVER_ID).filter(|server| !self.is_our_id(*server)) {
            return Err(DropReason::OtherServer(server));
        }
        let lease = self.leases.get(address).filter(|lease| LeaseTable::is_of(lease, &self.client));
        lease
            .filter(|lease| matches!(lease.state, LeaseState::Bound | LeaseState::Offered))
            .cloned()
            .ok_or(DropReason::NotTheirs(address))
    }

    fn inform(&self) -> MessageOutcome {
        let network = self.context.network;
        // The answer goes where the client says it is: nowhere but on this network.
        let said =
            [self.request.ciaddr, *self.packet_info.source.ip()].into_iter().find(|it| network.subnet.contains(*it));
        let Some(address) = said else { return MessageOutcome::dropped(DropReason::NoAddress) };
        let (netboot, _) = boot_answer(self.request, self.context);
        let answer = ReplyContent {
            hostname: self.hostname(),
            netboot: netboot.as_ref(),
            ..ReplyContent::new(MessageType::Ack)
        };
        let request = self.request;
        let to = match self.relay() {
            Some(relay) => relay,
            None => client_at(request, network, SocketAddrV4::new(address, CLIENT_PORT)),
        };
        let reply = Some(DhcpReply { message: answer.encode(self.request, network), to });
        MessageOutcome { reply, writes: Vec::new(), disposition: Disposition::Informed(address), duplicate_mac: None }
    }

    fn relay(&self) -> Option<Destination> {
        self.request.relay_address(self.packet_info.source.port()).map(Destination::Address)
    }

    /// Where an answer goes: RFC 2131 section 4.1.
    fn reply(&self, answer: &ReplyContent<'_>) -> DhcpReply {
        let request = self.request;
        let to = if let Some(relay) = self.relay() {
            relay
        } else if answer.kind == MessageType::Nak {
            Destination::Broadcast
        } else if !request.ciaddr.is_unspecified() && self.context.network.subnet.contains(request.ciaddr) {
            client_at(request, self.context.network, SocketAddrV4::new(request.ciaddr, CLIENT_PORT))
        } else if request.wants_broadcast() {
            Destination::Broadcast
        } else {
            Destination::Hardware { mac: request.mac, address: answer.yiaddr }
        };
        DhcpReply { message: answer.encode(request, self.context.network), to }
    }

    /// What the network gives such a machine, or less when the client wants less.
    fn lease_time(&self) -> u32 {
        let wanted = self.request.fixed(code::LEASE_TIME).map_or(u32::MAX, u32::from_be_bytes);
        let network = self.context.network;
        let most = if self.context.is_guest(self.client.mac) { network.guest_lease } else { network.lease };
        wanted.max(SHORTEST_LEASE).min(most)
    }

    /// Host name for the client: its reservation's, else its BareMetalHost's.
    fn hostname(&self) -> Option<&str> {
        let reservation = self.context.network.reservation(self.client.mac);
        let reserved = reservation.and_then(|reservation| reservation.hostname.as_deref());
        reserved.or(self.context.host.map(|host| host.name.as_str()))
    }

    /// The UUIDs, when two machines show this known hardware address.
    fn duplicate_mac(&mut self) -> Option<(String, String)> {
        if !self.client.known {
            return None;
        }
        let uuid = client::machine_uuid(self.request)?;
        let before = self.leases.record_uuid(self.client.mac, uuid)?;
        let text = |uuid: [u8; 16]| uuid::Uuid::from_bytes(uuid).to_string();
        Some((text(before), text(uuid)))
    }
}

#[cfg(test)]
mod tests;

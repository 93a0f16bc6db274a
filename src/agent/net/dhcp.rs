//! A DHCPv4 client (RFC 2131): packets and times in, packets and leases out; no socket, no clock.
//!
//! Sends no client identifier: the appliance leases by MAC address, so that firmware, ramdisk and installed system
//! have one address. Offers of the appliance are preferred over those of others.

use std::net::Ipv4Addr;
use std::time::Duration;

use dhcproto::v4::{DhcpOption, Message, Opcode, OptionCode};
use dhcproto::{Encodable, v4};

use crate::api::MacAddress;

/// Smallest BOOTP message; some relays drop shorter ones.
const LEAST_MESSAGE: usize = 300;
/// Where options begin: the fixed part and the magic cookie.
const OPTIONS: usize = 240;
/// How long other servers' offers are held back for one of the appliance.
const CHOOSE: Duration = Duration::from_secs(1);
/// Longest pause between DISCOVERs.
const RESEND_MOST: Duration = Duration::from_secs(8);
/// Requests that may go unanswered before starting over.
const REQUESTS: u32 = 4;
/// Shortest lease that is believed.
const LEASE_LEAST: Duration = Duration::from_secs(30);

/// An address and what came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLease {
    /// The machine's address.
    pub address: Ipv4Addr,
    /// Length of the subnet's prefix, 1 to 32.
    pub prefix: u8,
    /// Default router.
    pub router: Option<Ipv4Addr>,
    /// The server that gave it.
    pub server: Ipv4Addr,
    /// Host name (option 12), letters, digits, hyphens and dots.
    pub hostname: Option<String>,
    /// Interface MTU (option 26), 576 to 9216.
    pub mtu: Option<u32>,
    /// How long it holds.
    pub time: Duration,
    /// When it is renewed, after its start (T1).
    pub renew: Duration,
    /// When any server is asked to renew it, after its start (T2).
    pub rebind: Duration,
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// From 0.0.0.0 to everyone, on the packet socket.
    Discover(Vec<u8>),
    /// From the leased address to one server, or everyone (255.255.255.255), on the UDP socket.
    Renew(Ipv4Addr, Vec<u8>),
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// There is a lease, new or renewed.
    Bound(ClientLease),
    /// There is none any more, and why.
    Lost(&'static str),
}

/// What is to be done after a tick or a packet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Send this.
    pub transmit: Option<Transmit>,
    /// Tell this.
    pub change: Option<LeaseChange>,
}

enum DhcpState {
    Init { at: Duration },
    Selecting { resend: Duration, pause: Duration, held: Option<ClientOffer> },
    Requesting { offer: ClientOffer, tries: u32, resend: Duration },
    Bound { lease: ClientLease, since: Duration, next: Duration },
}

#[derive(Clone)]
struct ClientOffer {
    lease: ClientLease,
    choose: Duration,
}

/// The client of one interface. Times are since any fixed moment.
pub struct DhcpClient {
    mac: MacAddress,
    appliance: Option<Ipv4Addr>,
    xid: u32,
    started: Duration,
    /// DISCOVERs sent since the last lease.
    pub discovers: u32,
    refusals: u32,
    state: DhcpState,
}

impl DhcpClient {
    /// A client that asks at its first tick. `xid` must be random; `appliance` is the preferred server.
    pub fn new(mac: MacAddress, appliance: Option<Ipv4Addr>, xid: u32, now: Duration) -> Self {
        Self { mac, appliance, xid, started: now, discovers: 0, refusals: 0, state: DhcpState::Init { at: now } }
    }

    /// When [`DhcpClient::tick`] wants to be called next.
    pub fn deadline(&self) -> Duration {
        match &self.state {
            DhcpState::Init { at } => *at,
            DhcpState::Selecting { resend, held, .. } => {
                held.as_ref().map_or(*resend, |offer| offer.choose.min(*resend))
            }
            DhcpState::Requesting { resend, .. } => *resend,
            DhcpState::Bound { next, .. } => *next,
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) -> Actions {
        if now < self.deadline() {
            return Actions::default();
        }
        match &mut self.state {
            DhcpState::Init { .. } => {
                self.started = now;
                // A new exchange: late answers to the old one are not for it.
                self.xid = self.xid.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
                self.discover(now, Duration::from_secs(1))
            }
            DhcpState::Selecting { pause, held, .. } => match held.take() {
                Some(offer) => self.request(now, offer, 1),
                None => {
                    let pause = (*pause * 2).min(RESEND_MOST);
                    self.discover(now, pause)
                }
            },
            DhcpState::Requesting { offer, tries, .. } if *tries < REQUESTS => {
                let (offer, tries) = (offer.clone(), *tries + 1);
                self.request(now, offer, tries)
            }
            DhcpState::Requesting { .. } => {
                self.state = DhcpState::Init { at: now };
                self.tick(now)
            }
            DhcpState::Bound { lease, since, next } => {
                let age = now.saturating_sub(*since);
                if age >= lease.time {
                    self.state = DhcpState::Init { at: now };
                    return Actions {
                        transmit: self.tick(now).transmit,
                        change: Some(LeaseChange::Lost("the lease ran out, no server renewed it")),
                    };
                }
                // RFC 2131 section 4.4.5: retry after half of what is left, not more often than every minute.
                let (to, until) =
                    if age < lease.rebind { (lease.server, lease.rebind) } else { (Ipv4Addr::BROADCAST, lease.time) };
                let wait = ((until - age) / 2).max(Duration::from_secs(60)).min(until - age);
                *next = now + wait;
                let address = lease.address;
                let message = self.message(now, v4::MessageType::Request, |message| {
                    message.set_ciaddr(address);
                });
                Actions { transmit: message.map(|message| Transmit::Renew(to, message)), change: None }
            }
        }
    }

    /// Takes a UDP payload that reached port 68. What is not an answer to this client's question is ignored.
    pub fn receive(&mut self, now: Duration, payload: &[u8]) -> Actions {
        let Some(answer) = ServerMessage::parse(payload, self.mac, self.xid) else { return Actions::default() };
        match (&mut self.state, answer.kind) {
            (DhcpState::Selecting { held, .. }, 2) => {
                let Some(lease) = answer.lease() else { return Actions::default() };
                let wanted = |server| self.appliance.is_none_or(|appliance| appliance == server);
                let offer = ClientOffer { choose: now + CHOOSE, lease };
                if wanted(offer.lease.server) || wanted(answer.next_server) {
                    return self.request(now, offer, 1);
                }
                held.get_or_insert(offer);
                Actions::default()
            }
            (DhcpState::Requesting { offer, .. }, 5) => match answer.lease() {
                Some(lease) if lease.server == offer.lease.server => self.bind(now, lease),
                _ => Actions::default(),
            },
            (DhcpState::Bound { lease: held, .. }, 5) => match answer.lease() {
                Some(lease) if lease.address == held.address => self.bind(now, lease),
                _ => Actions::default(),
            },
            (DhcpState::Requesting { offer, .. }, 6) if answer.server == Some(offer.lease.server) => {
                self.refused(now);
                Actions::default()
            }
            (DhcpState::Bound { .. }, 6) => {
                self.refused(now);
                Actions { transmit: None, change: Some(LeaseChange::Lost("the server took the lease back")) }
            }
            _ => Actions::default(),
        }
    }

    /// Starts over after a NAK, later each time.
    fn refused(&mut self, now: Duration) {
        self.refusals = (self.refusals + 1).min(5);
        self.state = DhcpState::Init { at: now + Duration::from_secs(1 << self.refusals) };
    }

    fn bind(&mut self, now: Duration, lease: ClientLease) -> Actions {
        self.discovers = 0;
        self.refusals = 0;
        self.state = DhcpState::Bound { next: now + lease.renew, since: now, lease: lease.clone() };
        Actions { transmit: None, change: Some(LeaseChange::Bound(lease)) }
    }

    fn discover(&mut self, now: Duration, pause: Duration) -> Actions {
        self.discovers = self.discovers.saturating_add(1);
        // Machines that were powered on together must not ask together: up to a quarter of the pause is random.
        let jitter = pause / 4 * (self.xid.rotate_left(self.discovers) & 0xff) / 256;
        self.state = DhcpState::Selecting { resend: now + pause + jitter, pause, held: None };
        let message = self.message(now, v4::MessageType::Discover, |_| {});
        Actions { transmit: message.map(Transmit::Discover), change: None }
    }

    fn request(&mut self, now: Duration, offer: ClientOffer, tries: u32) -> Actions {
        let (address, server) = (offer.lease.address, offer.lease.server);
        let message = self.message(now, v4::MessageType::Request, |message| {
            message.opts_mut().insert(DhcpOption::RequestedIpAddress(address));
            message.opts_mut().insert(DhcpOption::ServerIdentifier(server));
        });
        let resend = now + Duration::from_secs(1 << tries.min(3)) / 2;
        self.state = DhcpState::Requesting { offer, tries, resend };
        Actions { transmit: message.map(Transmit::Discover), change: None }
    }

    fn message(&self, now: Duration, kind: v4::MessageType, change: impl FnOnce(&mut Message)) -> Option<Vec<u8>> {
        let mut message = Message::default();
        let seconds = now.saturating_sub(self.started).as_secs();
        message
            .set_opcode(Opcode::BootRequest)
            .set_xid(self.xid)
            .set_secs(u16::try_from(seconds).unwrap_or(u16::MAX))
            .set_chaddr(&self.mac.0);
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::MaxMessageSize(1472));
        options.insert(DhcpOption::ParameterRequestList(vec![
            OptionCode::SubnetMask,
            OptionCode::Router,
            OptionCode::Hostname,
            OptionCode::InterfaceMtu,
            OptionCode::AddressLeaseTime,
            OptionCode::Renewal,
            OptionCode::Rebinding,
        ]));
        change(&mut message);
        let mut bytes = message.to_vec().ok()?;
        bytes.resize(bytes.len().max(LEAST_MESSAGE), 0);
        Some(bytes)
    }
}

/// A server's answer; options that cannot be read count as absent.
struct ServerMessage<'a> {
    kind: u8,
    address: Ipv4Addr,
    next_server: Ipv4Addr,
    server: Option<Ipv4Addr>,
    areas: Vec<&'a [u8]>,
}

impl<'a> ServerMessage<'a> {
    /// `None` unless it is an answer to this hardware address and transaction.
    fn parse(bytes: &'a [u8], mac: MacAddress, xid: u32) -> Option<Self> {
        let options = bytes.get(OPTIONS..)?;
        let ours = bytes[..3] == [2, 1, 6]
            && bytes[4..8] == xid.to_be_bytes()
            && bytes[28..34] == mac.0
            && bytes[236..240] == [99, 130, 83, 99];
        if !ours {
            return None;
        }
        let mut areas = vec![options];
        // Option 52: `file` and `sname` hold options too.
        let overload = find(&areas, 52).and_then(|value| value.first().copied()).unwrap_or(0);
        if overload & 1 != 0 {
            areas.push(&bytes[108..236]);
        }
        if overload & 2 != 0 {
            areas.push(&bytes[44..108]);
        }
        let kind = *find(&areas, 53)?.first()?;
        Some(Self {
            kind,
            address: address(&bytes[16..20])?,
            next_server: address(&bytes[20..24])?,
            server: find(&areas, 54).and_then(address).filter(usable),
            areas,
        })
    }

    /// The lease that it offers; `None` when its address cannot be used.
    fn lease(&self) -> Option<ClientLease> {
        let option = |code| find(&self.areas, code);
        let seconds = |code| {
            let value: [u8; 4] = option(code)?.try_into().ok()?;
            Some(Duration::from_secs(u64::from(u32::from_be_bytes(value))))
        };
        if !usable(&self.address) {
            return None;
        }
        let class = match self.address.octets()[0] {
            0..128 => 8,
            128..192 => 16,
            _ => 24,
        };
        let prefix = option(1).and_then(prefix_length).unwrap_or(class);
        let time = seconds(51).unwrap_or(Duration::from_secs(3600)).max(LEASE_LEAST);
        let rebind = seconds(59).filter(|rebind| *rebind < time).unwrap_or(time * 7 / 8);
        let renew = seconds(58).filter(|renew| *renew < rebind && *renew > LEASE_LEAST / 4).unwrap_or(time / 2);
        Some(ClientLease {
            address: self.address,
            prefix,
            router: option(3).and_then(|value| address(value.get(..4)?)).filter(usable),
            server: self.server?,
            hostname: option(12).and_then(hostname),
            mtu: option(26)
                .and_then(|value| Some(u32::from(u16::from_be_bytes(value.try_into().ok()?))))
                .filter(|mtu| (576..=9216).contains(mtu)),
            time,
            renew: renew.min(rebind),
            rebind,
        })
    }
}

/// The first option with this code in any of the areas (RFC 2132 section 2).
fn find<'a>(areas: &[&'a [u8]], code: u8) -> Option<&'a [u8]> {
    for area in areas {
        let mut rest = *area;
        loop {
            match rest {
                [0, after @ ..] => rest = after,
                [] | [255, ..] | [_] => break,
                [found, length, after @ ..] => {
                    let Some(value) = after.get(..usize::from(*length)) else { break };
                    if *found == code {
                        return Some(value);
                    }
                    rest = &after[value.len()..];
                }
            }
        }
    }
    None
}

fn address(bytes: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from)
}

/// Whether an address can be a machine's own.
fn usable(address: &Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && address.octets()[0] != 0 && address.octets()[0] < 224
}

fn prefix_length(mask: &[u8]) -> Option<u8> {
    let mask = u32::from_be_bytes(mask.try_into().ok()?);
    let length = mask.leading_ones();
    (length > 0 && mask.checked_shl(length).unwrap_or(0) == 0).then_some(length as u8)
}

fn hostname(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0');
    let good = !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
        && !text.starts_with(['-', '.']);
    good.then(|| text.to_owned())
}

#[cfg(test)]
mod tests;

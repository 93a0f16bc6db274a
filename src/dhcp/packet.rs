//! Parsing of DHCP messages from the wire.
//!
//! The fixed header (RFC 2131 section 2) is checked once, then the options are walked by hand. A decoder that stops
//! at the first option it dislikes loses what follows, and with it the architecture or the relay's data; here each
//! option stands alone. Options spread over several instances are joined (RFC 3396), and `sname` and `file` are read
//! when option 52 says that they hold options. Nothing in this file panics, whatever the bytes are.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddrV4};

use dhcproto::v4::MessageType;

use crate::api::MacAddress;

/// Length of the fixed header with the magic cookie, in bytes.
pub(super) const HEADER: usize = 240;
/// UDP port of servers and relays.
pub const SERVER_PORT: u16 = 67;
const SNAME: std::ops::Range<usize> = 44..108;
/// Where the boot file's name is.
pub(super) const FILE: std::ops::Range<usize> = 108..236;
/// The cookie before the options.
pub(super) const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// The flag of clients that take broadcasts only.
pub(super) const BROADCAST: u16 = 0x8000;
/// Smallest "maximum DHCP message size" a client may state (RFC 2132 section 9.10).
const MIN_MESSAGE_SIZE: u16 = 576;
/// What IP and UDP headers take of the client's maximum message size.
const IP_UDP_HEADERS: usize = 28;
/// Largest reply, so that no Ethernet network has to fragment it.
const MAX_REPLY: usize = 1500 - IP_UDP_HEADERS;

/// Sub-option of option 82 (RFC 8357): the relay hears answers on the port it sent from.
const RELAY_SOURCE_PORT: u8 = 19;

/// Option codes (RFC 2132 unless stated).
pub mod code {
    pub const SUBNET_MASK: u8 = 1;
    pub const HOSTNAME: u8 = 12;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const MAX_SIZE: u8 = 57;
    pub const RENEWAL: u8 = 58;
    pub const REBINDING: u8 = 59;
    pub const VENDOR_CLASS: u8 = 60;
    pub const CLIENT_ID: u8 = 61;
    /// RFC 3004.
    pub const USER_CLASS: u8 = 77;
    /// RFC 3046.
    pub const RELAY: u8 = 82;
    /// RFC 4578.
    pub const ARCHITECTURE: u8 = 93;
    /// RFC 4578.
    pub const MACHINE_ID: u8 = 97;
    /// RFC 3011.
    pub const SUBNET_SELECTION: u8 = 118;
    /// iPXE's encapsulated options.
    pub const IPXE: u8 = 175;
}

/// The message is not one that a DHCP server for Ethernet can answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than the fixed header.
    #[error("{0} bytes are too few for a DHCP message")]
    TooShort(usize),
    /// `op` is not BOOTREQUEST.
    #[error("op {0} is not a request")]
    NotRequest(u8),
    /// `htype` and `hlen` are not those of Ethernet.
    #[error("hardware type {htype} with an address of {hlen} bytes is not Ethernet")]
    NotEthernet {
        /// `htype`
        htype: u8,
        /// `hlen`
        hlen: u8,
    },
    /// The hardware address names no single machine.
    #[error("{0} is not the address of one machine")]
    NotUnicast(MacAddress),
    /// No magic cookie or no message type: BOOTP (RFC 951), which is not served.
    #[error("BOOTP is not served: there is no DHCP message type")]
    Bootp,
}

/// A client's message. Borrows from the packet.
#[derive(Debug)]
pub struct DhcpRequest<'a> {
    /// Message type (option 53).
    pub kind: MessageType,
    /// Transaction, chosen by the client.
    pub xid: u32,
    /// Flags; the first bit asks for broadcast replies.
    pub flags: u16,
    /// Address that the client has and can answer ARP for.
    pub ciaddr: Ipv4Addr,
    /// Relay agent, or zero.
    pub giaddr: Ipv4Addr,
    /// Hardware address.
    pub mac: MacAddress,
    options: Vec<(u8, &'a [u8])>,
}

fn address(bytes: &[u8], at: usize) -> Ipv4Addr {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => Ipv4Addr::new(a, b, c, d),
        _ => Ipv4Addr::UNSPECIFIED,
    }
}

impl<'a> DhcpRequest<'a> {
    /// Reads a message. Options that are cut off or odd are left out; those before and after them are kept as far as
    /// the lengths allow.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < HEADER - MAGIC.len() {
            return Err(Malformed::TooShort(bytes.len()));
        }
        if bytes[0] != 1 {
            return Err(Malformed::NotRequest(bytes[0]));
        }
        if (bytes[1], bytes[2]) != (1, 6) {
            return Err(Malformed::NotEthernet { htype: bytes[1], hlen: bytes[2] });
        }
        let mut mac = [0; 6];
        mac.copy_from_slice(&bytes[28..34]);
        let mac = MacAddress(mac);
        if mac.0[0] & 1 == 1 || mac.0 == [0; 6] {
            return Err(Malformed::NotUnicast(mac));
        }
        if bytes.get(HEADER - MAGIC.len()..HEADER) != Some(MAGIC.as_slice()) {
            return Err(Malformed::Bootp);
        }
        let mut options = Vec::with_capacity(16);
        walk(&bytes[HEADER..], &mut options);
        let overload = options.iter().find(|(code, data)| *code == code::OVERLOAD && data.len() == 1);
        match overload.map_or(0, |(_, data)| data[0]) {
            1 => walk(&bytes[FILE], &mut options),
            2 => walk(&bytes[SNAME], &mut options),
            3 => {
                walk(&bytes[FILE], &mut options);
                walk(&bytes[SNAME], &mut options);
            }
            _ => {}
        }
        let mut request = Self {
            kind: MessageType::Unknown(0),
            xid: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            flags: u16::from_be_bytes([bytes[10], bytes[11]]),
            ciaddr: address(bytes, 12),
            giaddr: address(bytes, 24),
            mac,
            options,
        };
        request.kind =
            request.fixed(code::MESSAGE_TYPE).map(|[kind]| MessageType::from(kind)).ok_or(Malformed::Bootp)?;
        Ok(request)
    }

    /// An option's data, all of its instances joined. `None` when it was not sent.
    pub fn get(&self, code: u8) -> Option<Cow<'a, [u8]>> {
        let mut instances = self.options.iter().filter(|(other, _)| *other == code).map(|(_, data)| *data);
        let first = instances.next()?;
        let Some(second) = instances.next() else { return Some(Cow::Borrowed(first)) };
        let mut joined = [first, second].concat();
        instances.for_each(|data| joined.extend_from_slice(data));
        Some(Cow::Owned(joined))
    }

    /// Whether the option was sent.
    pub fn has(&self, code: u8) -> bool {
        self.options.iter().any(|(other, _)| *other == code)
    }

    /// An option of fixed length. A client that repeats it means the first.
    pub fn fixed<const N: usize>(&self, code: u8) -> Option<[u8; N]> {
        let first = self.options.iter().find(|(other, _)| *other == code)?;
        first.1.try_into().ok().or_else(|| self.get(code)?.as_ref().try_into().ok())
    }

    /// An option that is one address. Zero counts as not sent.
    pub fn address(&self, code: u8) -> Option<Ipv4Addr> {
        self.fixed(code).map(|bytes: [u8; 4]| Ipv4Addr::from(bytes)).filter(|address| !address.is_unspecified())
    }

    /// Whether the client asks for broadcast replies.
    pub fn wants_broadcast(&self) -> bool {
        self.flags & BROADCAST != 0
    }

    /// Client identifier (option 61), unless empty.
    pub fn client_id(&self) -> Option<Cow<'a, [u8]>> {
        self.get(code::CLIENT_ID).filter(|id| !id.is_empty())
    }

    /// Host name that the client sent (option 12): printable ASCII, at most 253 characters.
    pub fn hostname(&self) -> Option<String> {
        let data = self.get(code::HOSTNAME)?;
        let text = std::str::from_utf8(&data).ok()?.trim_end_matches('\0');
        let plain = !text.is_empty() && text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_graphic());
        plain.then(|| text.to_owned())
    }

    /// Subnet that the reply is for, when the message says so: the relay's link selection (RFC 3527), the client's
    /// subnet selection (RFC 3011), the relay's own address.
    pub fn subnet_hint(&self) -> Option<Ipv4Addr> {
        let relayed = !self.giaddr.is_unspecified();
        let link = if relayed { self.relay_option(5) } else { None };
        link.and_then(|data| Some(Ipv4Addr::from(<[u8; 4]>::try_from(data.as_slice()).ok()?)))
            .or_else(|| self.address(code::SUBNET_SELECTION))
            .or(relayed.then_some(self.giaddr))
    }

    /// Server identifier that the relay wants to be named in our place (RFC 5107).
    pub fn server_id_override(&self) -> Option<Ipv4Addr> {
        if self.giaddr.is_unspecified() {
            return None;
        }
        let data = self.relay_option(11)?;
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(data.as_slice()).ok()?))
    }

    /// Where the relay takes the answer, when the message came through one: port 67, unless the relay says that it is
    /// the port it sent from (RFC 8357).
    pub fn relay_address(&self, sent_from: u16) -> Option<SocketAddrV4> {
        if self.giaddr.is_unspecified() {
            return None;
        }
        let own_port = self.relay_option(RELAY_SOURCE_PORT).is_some_and(|data| data.is_empty());
        Some(SocketAddrV4::new(self.giaddr, if own_port { sent_from } else { SERVER_PORT }))
    }

    fn relay_option(&self, code: u8) -> Option<Vec<u8>> {
        let data = self.get(code::RELAY)?;
        let mut rest = data.as_ref();
        while let [found, length, tail @ ..] = rest {
            let value = tail.get(..usize::from(*length))?;
            if *found == code {
                return Some(value.to_vec());
            }
            rest = &tail[value.len()..];
        }
        None
    }

    /// Longest reply the client takes, UDP payload in bytes, 548 to 1472 (option 57).
    pub fn reply_limit(&self) -> usize {
        let stated = self.fixed(code::MAX_SIZE).map_or(MIN_MESSAGE_SIZE, u16::from_be_bytes).max(MIN_MESSAGE_SIZE);
        (usize::from(stated) - IP_UDP_HEADERS).min(MAX_REPLY)
    }
}

/// Collects type-length-value options up to the end marker or the first one that is cut off.
pub(super) fn walk<'a>(mut rest: &'a [u8], options: &mut Vec<(u8, &'a [u8])>) {
    loop {
        match rest {
            [0, tail @ ..] => rest = tail,
            [255, ..] | [] | [_] => return,
            [code, length, tail @ ..] => {
                let Some(value) = tail.get(..usize::from(*length)) else { return };
                options.push((*code, value));
                rest = &tail[value.len()..];
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;

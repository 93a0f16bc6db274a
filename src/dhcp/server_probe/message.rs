//! The question that a search for DHCP servers asks, and what an answer to it says. Pure.

use std::net::Ipv4Addr;
use std::sync::OnceLock;

use crate::api::MacAddress;
use crate::dhcp::frame;
use crate::dhcp::packet::{BROADCAST, HEADER, MAGIC, SERVER_PORT, code, walk};

/// UDP port of clients.
const CLIENT_PORT: u16 = 68;
/// BOOTP's minimum (RFC 1542 section 2.1).
const LENGTH: usize = 300;
/// Ethernet header.
const ETHERNET: usize = 14;
/// DHCPDISCOVER and DHCPOFFER (RFC 2132 section 9.6).
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
/// How the question names itself in the logs of other servers.
const CLASS: &[u8] = b"slipway-server-probe";

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOffer {
    /// The network card that it came from: the server's, or a relay's.
    pub card: MacAddress,
    /// How the server calls itself.
    pub server: Ipv4Addr,
    /// What it offers.
    pub offered: Ipv4Addr,
}

/// The hardware address that this appliance asks for: made up, locally administered, the same while the process runs. Its own server
/// does not answer it.
pub fn own_card() -> MacAddress {
    static CARD: OnceLock<MacAddress> = OnceLock::new();
    *CARD.get_or_init(|| {
        let mut card: [u8; 6] = rand::random();
        card[0] = (card[0] & !1) | 2;
        MacAddress(card)
    })
}

/// A DHCPDISCOVER in a frame to everybody, from the network card `from`.
pub fn discover(from: MacAddress, xid: u32) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    // BOOTREQUEST, Ethernet.
    message[..3].copy_from_slice(&[1, 1, 6]);
    message[4..8].copy_from_slice(&xid.to_be_bytes());
    // Nobody has the hardware address, so an answer to it would not be heard.
    message[10..12].copy_from_slice(&BROADCAST.to_be_bytes());
    message[28..34].copy_from_slice(&own_card().0);
    message[HEADER - MAGIC.len()..].copy_from_slice(&MAGIC);
    message.extend([code::MESSAGE_TYPE, 1, DISCOVER]);
    message.extend([code::PARAMETERS, 2, code::SUBNET_MASK, 3]);
    message.extend([code::VENDOR_CLASS, u8::try_from(CLASS.len()).unwrap_or_default()]);
    message.extend_from_slice(CLASS);
    message.push(255);
    message.resize(LENGTH, 0);
    let source = (from, Ipv4Addr::UNSPECIFIED, CLIENT_PORT);
    let everybody = (MacAddress([0xff; 6]), Ipv4Addr::BROADCAST, SERVER_PORT);
    // It is shorter than a packet.
    frame::udp(source, everybody, &message).unwrap_or_default()
}

/// What a frame says that answers the question with this number; `None` for everything else.
pub fn offer(frame: &[u8], xid: u32) -> Option<ProbeOffer> {
    let card = MacAddress(frame.get(6..12)?.try_into().ok()?);
    if frame.get(12..ETHERNET)? != [0x08, 0x00] {
        return None;
    }
    let packet = &frame[ETHERNET..];
    let (first, protocol) = (*packet.first()?, *packet.get(9)?);
    let header = usize::from(first & 0xf) * 4;
    let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
    if first >> 4 != 4 || header < 20 || protocol != 17 || fragment != 0 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let datagram = packet.get(header..total.min(packet.len()))?;
    let to = u16::from_be_bytes([*datagram.get(2)?, *datagram.get(3)?]);
    let message = datagram.get(8..)?;
    if to != CLIENT_PORT || message.len() < HEADER {
        return None;
    }
    let own = message[..3] == [2, 1, 6]
        && message[4..8] == xid.to_be_bytes()
        && message[28..34] == own_card().0
        && message[HEADER - MAGIC.len()..HEADER] == MAGIC;
    if !own {
        return None;
    }
    let mut options = Vec::new();
    walk(&message[HEADER..], &mut options);
    let option = |wanted: u8| options.iter().find(|(code, _)| *code == wanted).map(|(_, data)| *data);
    let server = Ipv4Addr::from(<[u8; 4]>::try_from(option(code::SERVER_ID)?).ok()?);
    let is_address = !server.is_unspecified() && !server.is_multicast() && !server.is_broadcast();
    let offered = Ipv4Addr::from(<[u8; 4]>::try_from(&message[16..20]).ok()?);
    (is_address && option(code::MESSAGE_TYPE)? == [OFFER]).then_some(ProbeOffer { card, server, offered })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::packet::DhcpRequest;

    const XID: u32 = 0x1234_5678;
    const CARD: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

    /// An answer as servers send it.
    fn answer(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let question = discover(MacAddress([2; 6]), XID);
        let mut message = question[ETHERNET + 28..].to_vec();
        message[0] = 2;
        message[16..20].copy_from_slice(&[10, 0, 0, 77]);
        message.truncate(HEADER);
        message.extend([code::MESSAGE_TYPE, 1, OFFER, code::SERVER_ID, 4, 10, 0, 0, 9, 255]);
        change(&mut message);
        frame::udp((CARD, SERVER, 67), (MacAddress([0xff; 6]), Ipv4Addr::BROADCAST, 68), &message).unwrap()
    }

    #[test]
    fn the_question_is_a_discover_of_nobody_that_wants_a_broadcast() {
        let frame = discover(CARD, XID);
        assert_eq!((&frame[..6], &frame[6..12]), (&[0xff; 6][..], &CARD.0[..]));
        let request = DhcpRequest::parse(&frame[ETHERNET + 28..]).unwrap();
        assert_eq!((request.kind, request.xid), (dhcproto::v4::MessageType::Discover, XID));
        assert!(request.wants_broadcast() && request.mac == own_card() && request.giaddr.is_unspecified());
        assert_eq!(own_card().0[0] & 3, 2, "one machine's, locally administered");
    }

    #[test]
    fn an_offer_to_it_is_heard_and_nothing_else() {
        let wanted = ProbeOffer { card: CARD, server: SERVER, offered: [10, 0, 0, 77].into() };
        let good = answer(|_| {});
        assert_eq!(offer(&good, XID), Some(wanted));
        // Padded to the shortest frame.
        assert_eq!(offer(&[&good[..], &[0; 30]].concat(), XID), Some(wanted));
        assert_eq!(offer(&good, XID + 1), None);
        assert_eq!(offer(&discover(CARD, XID), XID), None, "a question");
        type Change = fn(&mut Vec<u8>);
        let odd: [(&str, Change); 8] = [
            ("another machine's", |message| message[33] ^= 1),
            ("no cookie", |message| message[HEADER - 1] = 0),
            ("an ACK", |message| message[HEADER + 2] = 5),
            ("no server", |message| message.truncate(HEADER + 3)),
            ("half a server", |message| message.truncate(HEADER + 7)),
            ("a group", |message| message[HEADER + 5] = 224),
            ("zero", |message| message[HEADER + 5..HEADER + 9].fill(0)),
            ("an option that is cut off", |message| message[HEADER + 1] = 200),
        ];
        for (what, change) in odd {
            assert_eq!(offer(&answer(change), XID), None, "{what}");
        }
        for length in 0..good.len() - 1 {
            assert_eq!(offer(&good[..length], XID), None, "{length}");
        }
        for (at, byte) in [(12, 0x86), (14, 0x65), (14, 0x41), (23, 6), (20, 0x20), (37, 67)] {
            let mut frame = good.clone();
            frame[at] = byte;
            assert_eq!(offer(&frame, XID), None, "{at}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_frame_makes_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600), at in 0_usize..400) {
            offer(&bytes, XID);
            let mut frame = answer(|_| {});
            if let (Some(byte), Some(with)) = (frame.get_mut(at), bytes.first()) {
                *byte = *with;
            }
            offer(&frame, XID);
        }
    }
}

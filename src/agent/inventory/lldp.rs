//! LLDP (IEEE 802.1AB): what a switch port says of itself.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::api::MacAddress;
use crate::api::metal3::{Lldp, Vlan};
use crate::hex::hex;

/// Where LLDP frames go: the nearest bridge (IEEE 802.1AB-2009 table 7-1).
pub const MULTICAST: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
/// Organisationally unique identifier of IEEE 802.1.
const OUI_8021: [u8; 3] = [0x00, 0x80, 0xc2];
/// Most VLANs kept of one frame.
const MAX_VLANS: usize = 256;

/// A switch port, as its frames describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// Chassis ID; a MAC address in colon form where it is one.
    pub chassis: String,
    /// Port ID.
    pub port: String,
    /// System name, empty when not announced.
    pub system: String,
    /// VLAN of untagged frames, 1 to 4094.
    pub untagged: Option<u16>,
    /// VLANs with their names.
    pub vlans: Vec<(u16, String)>,
}

/// A frame that is not LLDP as the standard wants it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LldpError {
    /// A TLV runs over the end of the frame.
    #[error("cut off in a TLV of type {0}")]
    Cut(u8),
    /// The chassis ID, port ID and time to live must come first, in this order (section 9.2.7.7.1).
    #[error("does not begin with chassis ID, port ID and time to live")]
    Order,
}

impl Neighbour {
    /// Reads an LLDPDU. Optional TLVs that make no sense are skipped.
    ///
    /// # Errors
    /// [`LldpError`] when the mandatory TLVs are absent or the frame is cut.
    pub fn parse(frame: &[u8]) -> Result<Self, LldpError> {
        let mut neighbour = Self::default();
        let mut rest = frame;
        let mut index = 0;
        while let [high, low, after @ ..] = rest {
            let kind = high >> 1;
            let length = usize::from(high & 1) << 8 | usize::from(*low);
            let value = after.get(..length).ok_or(LldpError::Cut(kind))?;
            rest = &after[length..];
            match (index, kind) {
                (0, 1) => neighbour.chassis = identifier(value, &[4], &[5]).ok_or(LldpError::Order)?,
                (1, 2) => neighbour.port = identifier(value, &[3], &[4]).ok_or(LldpError::Order)?,
                (2, 3) if length >= 2 => {}
                (0..=2, _) => return Err(LldpError::Order),
                (_, 0) => break,
                (_, 5) => neighbour.system = text(value),
                (_, 127) => neighbour.organisation(value),
                _ => {}
            }
            index += 1;
        }
        if index < 3 { Err(LldpError::Order) } else { Ok(neighbour) }
    }

    /// An organisationally specific TLV (IEEE 802.1Q annex D.2).
    fn organisation(&mut self, value: &[u8]) {
        let Some((oui, [subtype, value @ ..])) = value.split_first_chunk::<3>() else { return };
        if *oui != OUI_8021 {
            return;
        }
        match (*subtype, value) {
            (1, [high, low, ..]) => {
                let id = u16::from_be_bytes([*high, *low]);
                self.untagged = (1..=4094).contains(&id).then_some(id);
            }
            (3, [high, low, length, name @ ..]) if self.vlans.len() < MAX_VLANS => {
                let id = u16::from_be_bytes([*high, *low]);
                if let Some(name) = name.get(..usize::from(*length)).filter(|_| id <= 4094) {
                    self.vlans.push((id, text(name)));
                }
            }
            _ => {}
        }
    }

    /// As the inventory has it.
    pub fn identity(&self) -> Lldp {
        Lldp { switch_id: self.chassis.clone(), port_id: self.port.clone(), switch_system_name: self.system.clone() }
    }

    /// VLANs as the inventory has them.
    pub fn vlan_list(&self) -> Vec<Vlan> {
        self.vlans.iter().map(|(id, name)| Vlan { id: i64::from(*id), name: name.clone() }).collect()
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let system = if self.system.is_empty() { &self.chassis } else { &self.system };
        write!(f, "port {} of {system}", self.port)
    }
}

/// A chassis or port ID: a subtype and a value, for which subtypes it is a MAC or network address.
fn identifier(value: &[u8], mac: &[u8], network: &[u8]) -> Option<String> {
    let (subtype, value) = value.split_first()?;
    if value.is_empty() {
        return None;
    }
    if mac.contains(subtype)
        && let Ok(address) = <[u8; 6]>::try_from(value)
    {
        return Some(MacAddress(address).to_string());
    }
    if network.contains(subtype) {
        // IANA address family: 1 IP version 4, 2 IP version 6.
        if let [1, a, b, c, d] = value {
            return Some(Ipv4Addr::new(*a, *b, *c, *d).to_string());
        }
        if let Some(address) = value.strip_prefix(&[2]).and_then(|rest| <[u8; 16]>::try_from(rest).ok()) {
            return Some(Ipv6Addr::from(address).to_string());
        }
    }
    Some(text(value))
}

/// Text as it may be shown: control characters out; bytes that are no text in hex.
fn text(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) => text.trim_matches('\0').chars().filter(|character| !character.is_control()).collect(),
        Err(_) => hex(value),
    }
}

/// The frame by which the node makes itself known: its MAC address as chassis and port, two minutes to live.
pub fn announce(mac: MacAddress) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut tlv = |kind: u8, value: &[u8]| {
        frame.extend_from_slice(&[kind << 1, value.len() as u8]);
        frame.extend_from_slice(value);
    };
    let identity = |subtype: u8| [&[subtype], &mac.0[..]].concat();
    tlv(1, &identity(4));
    tlv(2, &identity(3));
    tlv(3, &120u16.to_be_bytes());
    tlv(5, b"slipway-ramdisk");
    tlv(0, &[]);
    // Shortest Ethernet payload; not every driver pads.
    frame.resize(frame.len().max(46), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let header = u16::from(kind) << 9 | value.len() as u16;
        [&header.to_be_bytes(), value].concat()
    }

    fn frame() -> Vec<u8> {
        [
            tlv(1, &[4, 0, 0x1c, 0x73, 0, 0, 0x99]),
            tlv(2, b"\x05Ethernet12"),
            tlv(3, &[0, 120]),
            tlv(4, b"to rack 7"),
            tlv(5, b"tor-7.example"),
            tlv(6, &[b'x'; 300]),
            tlv(127, &[0x00, 0x80, 0xc2, 1, 0, 100]),
            tlv(127, &[0x00, 0x80, 0xc2, 3, 0, 100, 4, b'p', b'r', b'o', b'v']),
            tlv(127, &[0x00, 0x80, 0xc2, 3, 0x0f, 0xff, 1, b'x']),
            tlv(127, &[0x00, 0x80, 0xc2, 3, 0, 200, 9, b's', b'h', b'o', b'r', b't']),
            tlv(127, &[0x00, 0x12, 0x0f, 1, 3, 0x6c, 0, 0, 0x10]),
            tlv(0, &[]),
        ]
        .concat()
    }

    #[test]
    fn reads_identity_and_vlans() {
        let neighbour = Neighbour::parse(&frame()).unwrap();
        assert_eq!(
            neighbour,
            Neighbour {
                chassis: "00:1c:73:00:00:99".into(),
                port: "Ethernet12".into(),
                system: "tor-7.example".into(),
                untagged: Some(100),
                vlans: vec![(100, "prov".into())],
            }
        );
        assert_eq!(neighbour.to_string(), "port Ethernet12 of tor-7.example");
        assert_eq!(neighbour.identity().switch_id, "00:1c:73:00:00:99");
        assert_eq!(neighbour.vlan_list(), [Vlan { id: 100, name: "prov".into() }]);
    }

    #[test]
    fn a_frame_cut_at_any_byte_is_an_error_or_has_less_in_it() {
        let whole = frame();
        let full = Neighbour::parse(&whole).unwrap();
        let mandatory =
            tlv(1, &[4, 0, 0, 0, 0, 0, 0]).len() + tlv(2, b"\x05Ethernet12").len() + tlv(3, &[0, 120]).len();
        for length in 0..whole.len() {
            match Neighbour::parse(&whole[..length]) {
                Ok(neighbour) => {
                    assert!(length >= mandatory, "{length}");
                    assert_eq!(neighbour.chassis, full.chassis);
                    assert!(neighbour.vlans.len() <= full.vlans.len());
                }
                Err(LldpError::Order) => assert!(length < mandatory, "{length}"),
                Err(LldpError::Cut(_)) => {}
            }
        }
    }

    #[test]
    fn mandatory_tlvs_must_come_first() {
        let chassis = tlv(1, &[7, b'a']);
        let port = tlv(2, &[7, b'b']);
        let ttl = tlv(3, &[0, 1]);
        for wrong in [
            vec![port.clone(), chassis.clone(), ttl.clone()],
            vec![chassis.clone(), port.clone(), tlv(3, &[0])],
            vec![chassis.clone(), ttl.clone()],
            vec![tlv(1, &[4]), port.clone(), ttl.clone()],
            vec![tlv(0, &[])],
        ] {
            assert_eq!(Neighbour::parse(&wrong.concat()), Err(LldpError::Order));
        }
        assert!(Neighbour::parse(&[chassis, port, ttl].concat()).is_ok());
    }

    #[test]
    fn every_kind_of_identifier_becomes_text() {
        assert_eq!(identifier(&[5, 1, 10, 0, 0, 1], &[4], &[5]).as_deref(), Some("10.0.0.1"));
        let six = [&[5, 2][..], &Ipv6Addr::LOCALHOST.octets()].concat();
        assert_eq!(identifier(&six, &[4], &[5]).as_deref(), Some("::1"));
        assert_eq!(identifier(&[4, b'x', b'y'], &[4], &[5]).as_deref(), Some("xy"), "too short for a MAC address");
        assert_eq!(identifier(&[7, 0xff, 0], &[4], &[5]).as_deref(), Some("ff00"));
        assert_eq!(identifier(&[7], &[4], &[5]), None);
    }

    #[test]
    fn what_the_node_announces_can_be_read() {
        let mac = MacAddress([0x52, 0x54, 0, 1, 2, 3]);
        let neighbour = Neighbour::parse(&announce(mac)).unwrap();
        assert_eq!((neighbour.chassis, neighbour.port), (mac.to_string(), mac.to_string()));
    }

    proptest::proptest! {
        #[test]
        fn no_frame_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let _either = Neighbour::parse(&bytes);
            let _either = Neighbour::parse(&[frame(), bytes].concat());
        }
    }
}

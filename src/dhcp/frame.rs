//! Ethernet frames for clients that cannot answer ARP yet.

use std::net::Ipv4Addr;

use crate::api::MacAddress;

const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// A UDP datagram in an IPv4 packet in an Ethernet frame. `None` when the payload is too long for one packet.
pub fn udp(
    (source_mac, source, source_port): (MacAddress, Ipv4Addr, u16),
    (mac, address, port): (MacAddress, Ipv4Addr, u16),
    payload: &[u8],
) -> Option<Vec<u8>> {
    let udp_length = u16::try_from(UDP_HEADER + payload.len()).ok()?;
    let ip_length = udp_length.checked_add(u16::try_from(IP_HEADER).ok()?)?;
    let mut frame = Vec::with_capacity(14 + usize::from(ip_length));
    frame.extend(mac.0);
    frame.extend(source_mac.0);
    frame.extend([0x08, 0x00]);
    // Version and length, service, total length, no identification, don't fragment, time to live, UDP.
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[2..4].copy_from_slice(&ip_length.to_be_bytes());
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&address.octets());
    let checksum = fold(sum(&ip));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(ip);
    let mut udp = [0; UDP_HEADER];
    udp[0..2].copy_from_slice(&source_port.to_be_bytes());
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    let pseudo = sum(&source.octets()) + sum(&address.octets()) + 17 + u32::from(udp_length);
    // Zero means "no checksum", so a sum of zero is written as its other form (RFC 768).
    let checksum = match fold(pseudo + sum(&udp) + sum(payload)) {
        0 => u16::MAX,
        other => other,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(udp);
    frame.extend_from_slice(payload);
    Some(frame)
}

/// Sum of 16-bit words (RFC 1071). At most 65,535 bytes, so 32 bits hold it.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_add_up_and_the_lengths_are_right() {
        for payload in [&b"abc"[..], &[0xff; 300], &[]] {
            let from = (MacAddress([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1), 67);
            let to = (MacAddress([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(10, 0, 0, 2), 68);
            let frame = udp(from, to, payload).expect("a frame");
            assert_eq!(frame[..14], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
            assert_eq!(fold(sum(&frame[14..34])), 0, "IP header");
            let length = u32::from(u16::from_be_bytes([frame[38], frame[39]]));
            assert_eq!(length as usize, frame.len() - 34);
            assert_eq!(fold(sum(&frame[26..34]) + 17 + length + sum(&frame[34..])), 0, "UDP");
        }
        let peer = (MacAddress([2; 6]), Ipv4Addr::LOCALHOST, 67);
        assert_eq!(udp(peer, peer, &[0; 65_535]), None);
    }
}

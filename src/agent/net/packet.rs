//! Packet sockets (packet(7)) and the IPv4 and UDP headers that a client without an address needs.

use std::io;
use std::net::Ipv4Addr;

use nix::libc;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::io::unix::AsyncFd;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of LLDP (IEEE 802.1AB).
pub const ETHERTYPE_LLDP: u16 = 0x88cc;
/// Ethernet broadcast.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// A socket for frames of one EtherType on one interface; the kernel adds and removes the Ethernet header.
pub struct PacketSocket {
    socket: AsyncFd<Socket>,
    index: i32,
    ethertype: u16,
}

impl PacketSocket {
    /// Opens the socket on the interface with this index. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// As socket(2) and bind(2).
    pub fn open(index: u32, ethertype: u16) -> io::Result<Self> {
        let index = i32::try_from(index).map_err(io::Error::other)?;
        // Protocol 0 until bound: nothing of other interfaces is queued.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::from(0)))?;
        socket.bind(&link_address(index, ethertype, [0; 6])?)?;
        // SAFETY: a Socket owns its file descriptor and gives the same one until it is dropped, here with the AsyncFd.
        let socket = unsafe { AsyncFd::register(socket)? };
        Ok(Self { socket, index, ethertype })
    }

    /// Sends a payload to an Ethernet address.
    ///
    /// # Errors
    /// As sendto(2).
    pub async fn send(&self, to: [u8; 6], payload: &[u8]) -> io::Result<()> {
        let to = link_address(self.index, self.ethertype, to)?;
        self.socket.async_io(tokio::io::Interest::WRITABLE, |socket| socket.send_to(payload, &to)).await.map(drop)
    }

    /// Receives a payload, cut off at the buffer's length; gives its length.
    ///
    /// # Errors
    /// As recv(2); ENETDOWN when the interface went down.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket
            .async_io(tokio::io::Interest::READABLE, |socket| {
                let mut socket: &Socket = socket;
                io::Read::read(&mut socket, buffer)
            })
            .await
    }
}

fn link_address(index: i32, ethertype: u16, to: [u8; 6]) -> io::Result<SockAddr> {
    let mut hardware = [0; 8];
    hardware[..6].copy_from_slice(&to);
    // SAFETY: the storage is aligned for and larger than sockaddr_ll, and the length set is that of sockaddr_ll.
    unsafe {
        SockAddr::try_init(|storage, length| {
            storage.cast::<libc::sockaddr_ll>().write(libc::sockaddr_ll {
                sll_family: libc::AF_PACKET as u16,
                sll_protocol: ethertype.to_be(),
                sll_ifindex: index,
                sll_hatype: 0,
                sll_pkttype: 0,
                sll_halen: 6,
                sll_addr: hardware,
            });
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
        .map(|((), address)| address)
    }
}

/// An IPv4 packet with a UDP datagram from 0.0.0.0:68 to 255.255.255.255:67 (RFC 791, RFC 768).
pub fn broadcast_datagram(payload: &[u8]) -> Vec<u8> {
    let udp_length = (8 + payload.len()) as u16;
    let mut packet = Vec::with_capacity(28 + payload.len());
    packet.extend_from_slice(&[0x45, 0x10]);
    packet.extend_from_slice(&(20 + udp_length).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend_from_slice(&Ipv4Addr::UNSPECIFIED.octets());
    packet.extend_from_slice(&Ipv4Addr::BROADCAST.octets());
    let sum = checksum(&packet, 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(&68u16.to_be_bytes());
    packet.extend_from_slice(&67u16.to_be_bytes());
    packet.extend_from_slice(&udp_length.to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    // The pseudo header: 0.0.0.0, 255.255.255.255, protocol, length.
    let pseudo = 2 * 0xffff + 17 + u32::from(udp_length);
    let sum = match checksum(&packet[20..], pseudo) {
        0 => 0xffff,
        sum => sum,
    };
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The payload of a UDP datagram to port 68 in an IPv4 packet; `None` for everything else. The UDP checksum is not
/// looked at: the kernel hands over datagrams of the same machine before it is filled in.
pub fn client_payload(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header < 20 || *packet.get(9)? != 17 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    // Fragments are left alone: a DHCP message fits into one packet.
    if u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0 {
        return None;
    }
    let udp = packet.get(header..total)?;
    let length = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    if udp[2..4] != 68u16.to_be_bytes() {
        return None;
    }
    udp.get(8..length)
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_add_up() {
        for payload in [&b"odd"[..], b"even", &[0; 300]] {
            let packet = broadcast_datagram(payload);
            assert_eq!(checksum(&packet[..20], 0), 0, "a header with its checksum sums to zero");
            let pseudo = [&packet[12..20], &[0, 17], &packet[24..26]].concat();
            assert_eq!(checksum(&[&pseudo[..], &packet[20..]].concat(), 0), 0);
            assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
        }
    }

    #[test]
    fn only_datagrams_to_the_client_port_are_read_and_cuts_are_harmless() {
        let mut packet = broadcast_datagram(b"payload");
        assert_eq!(client_payload(&packet), None, "port 67");
        packet[22..24].copy_from_slice(&68u16.to_be_bytes());
        assert_eq!(client_payload(&packet), Some(&b"payload"[..]));
        // Ethernet pads short frames.
        assert_eq!(client_payload(&[&packet[..], &[0; 20]].concat()), Some(&b"payload"[..]));
        for length in 0..packet.len() {
            assert_eq!(client_payload(&packet[..length]), None, "{length}");
        }
        for (index, value) in [(0, 0x65), (0, 0x44), (0, 0x4f), (9, 6), (6, 0x20), (25, 3), (25, 200), (3, 10)] {
            let mut wrong = packet.clone();
            wrong[index] = value;
            assert_eq!(client_payload(&wrong), None, "{index}={value}");
        }
    }
}

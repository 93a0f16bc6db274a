//! ARP probes (RFC 5227 section 2.1.1): whether anybody on the wire uses an address that is about to be offered.
//!
//! Not by the kernel's neighbour table: what that has of an address may be long ago, and each question that nobody answers would
//! take an entry of it. A probe names no sender's address, so nobody learns anything from it.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::bind;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::api::MacAddress;

use super::interface::interfaces;

/// Bytes of an ARP packet for IPv4 with its Ethernet header.
const LENGTH: usize = 42;
/// Packets read at a time: questions of others arrive here, too, and must not keep DHCP from its work.
const AT_ONCE: usize = 64;
/// ARP in an Ethernet frame, Ethernet, IPv4, lengths of their addresses (RFC 826).
const HEAD: [u8; 8] = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4];

/// Sends probes on an interface and hears who answers.
pub struct ArpSocket {
    socket: AsyncFd<Socket>,
    own: MacAddress,
}

impl ArpSocket {
    /// A socket on an interface. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    ///
    /// When the interface is gone or has no link layer, or the kernel refuses.
    pub fn open(interface: &str) -> io::Result<Self> {
        let found = interfaces()?.remove(interface).ok_or(io::ErrorKind::NotFound)?;
        let own = found.mac().filter(|mac| mac.0 != [0; 6]);
        let (Some(link), Some(own)) = (found.link, own) else { return Err(io::ErrorKind::Unsupported.into()) };
        let protocol = i32::from(u16::try_from(libc::ETH_P_ARP).unwrap_or_default().to_be());
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(protocol)))?;
        socket.set_nonblocking(true)?;
        bind(socket.as_raw_fd(), &link)?;
        // SAFETY: a Socket owns its file descriptor and gives the same one until it is dropped, here with the AsyncFd.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Self { socket, own })
    }

    /// Asks who has an address. One that cannot be sent is as one that is lost.
    pub fn ask(&self, address: Ipv4Addr) {
        if let Err(error) = self.socket.get_ref().write(&probe(self.own, address)) {
            tracing::debug!(%address, %error, "cannot ask by ARP who has an address");
        }
    }

    /// Waits until there may be something to hear. Cancel-safe.
    ///
    /// # Errors
    ///
    /// When the runtime ends.
    pub async fn readable(&self) -> io::Result<()> {
        // Not forgotten: `hear` finds out whether there is nothing more.
        self.socket.readable().await.map(drop)
    }

    /// Who said that they have an address, of what has arrived.
    pub fn hear(&self) -> Vec<(Ipv4Addr, MacAddress)> {
        let mut heard = Vec::new();
        let mut buffer = [0; 128];
        for _ in 0..AT_ONCE {
            match self.socket.try_io(Interest::READABLE, |mut socket| socket.read(&mut buffer)) {
                Ok(length) => {
                    heard.extend(answer(&buffer[..length]).filter(|(_, card)| *card != self.own));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        heard
    }
}

/// The question who has an address, to everybody.
fn probe(own: MacAddress, address: Ipv4Addr) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&own.0);
    frame[12..20].copy_from_slice(&HEAD);
    // Request; the sender's card, no address; nobody's card, the address in question.
    frame[21] = 1;
    frame[22..28].copy_from_slice(&own.0);
    frame[38..42].copy_from_slice(&address.octets());
    frame
}

/// What a frame says of who has an address: an answer, or a question of somebody who has one.
fn answer(frame: &[u8]) -> Option<(Ipv4Addr, MacAddress)> {
    let frame: &[u8; LENGTH] = frame.get(..LENGTH)?.try_into().ok()?;
    let is_arp = frame[12..20] == HEAD && frame[20] == 0 && matches!(frame[21], 1 | 2);
    let card = MacAddress(frame[22..28].try_into().ok()?);
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(&frame[28..32]).ok()?);
    (is_arp && !address.is_unspecified()).then_some((address, card))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_asks_for_an_address_and_claims_none() {
        let frame = probe(MacAddress([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 7));
        let wanted = "ffffffffffff02000000000108060001080006040001020000000001000000000000000000000a000007";
        let text: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, wanted);
        assert_eq!(answer(&frame), None);
    }

    #[test]
    fn who_has_an_address_is_read_from_answers_and_questions_and_nothing_else() {
        let good =
            "02000000000102000000000908060001080006040002020000000009 0a000007 020000000001 00000000".replace(' ', "");
        let bytes = |text: &str| -> Vec<u8> {
            (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
        };
        let good = bytes(&good);
        let has = Some((Ipv4Addr::new(10, 0, 0, 7), MacAddress([2, 0, 0, 0, 0, 9])));
        assert_eq!(answer(&good), has);
        // Padded to the shortest frame.
        assert_eq!(answer(&[&good[..], &[0; 18]].concat()), has);
        let with = |at: usize, byte: u8| {
            let mut frame = good.clone();
            frame[at] = byte;
            frame
        };
        assert_eq!(answer(&with(21, 1)), has, "a question");
        for (at, byte) in [(12, 0x81), (13, 0), (15, 6), (17, 6), (18, 8), (19, 16), (20, 1), (21, 3)] {
            assert_eq!(answer(&with(at, byte)), None, "{at}");
        }
        for length in 0..LENGTH {
            assert_eq!(answer(&good[..length]), None, "{length}");
        }
    }
}

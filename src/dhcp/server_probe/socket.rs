//! A socket beside the system's: it sends frames of its own, and hears what is sent to DHCP clients on one interface.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::bind;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::message::{ProbeOffer, offer};
use crate::api::MacAddress;
use crate::dhcp::interface::interfaces;

/// Frames read at a time.
const AT_ONCE: usize = 64;
/// Longest frame read; what is beyond is cut off.
const LONGEST: usize = 2048;

/// UDP to port 68 that is not in fragments, as the kernel's filter says it (BPF): nothing else is copied to this socket.
fn filter() -> [SockFilter; 11] {
    let step = |code: u32, jt, jf, k| SockFilter::new(u16::try_from(code).unwrap_or_default(), jt, jf, k);
    let load = |how: u32, at| step(libc::BPF_LD | how, 0, 0, at);
    let jump = |how: u32, jt, jf, k| step(libc::BPF_JMP | how | libc::BPF_K, jt, jf, k);
    [
        // IPv4's number.
        load(libc::BPF_H | libc::BPF_ABS, 12),
        jump(libc::BPF_JEQ, 0, 7, 0x0800),
        load(libc::BPF_B | libc::BPF_ABS, 23),
        jump(libc::BPF_JEQ, 0, 5, 17),
        load(libc::BPF_H | libc::BPF_ABS, 20),
        jump(libc::BPF_JSET, 3, 0, 0x1fff),
        // The port is behind a header of so many words.
        step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 14),
        load(libc::BPF_H | libc::BPF_IND, 16),
        jump(libc::BPF_JEQ, 1, 0, 68),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0xffff),
    ]
}

/// Sends questions on an interface and hears the answers.
pub struct ProbeSocket {
    socket: AsyncFd<Socket>,
    card: MacAddress,
}

impl ProbeSocket {
    /// A socket on an interface; `None` when that has no link layer, as loopback. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    ///
    /// When the interface is gone, or the kernel refuses.
    pub fn open(interface: &str) -> io::Result<Option<Self>> {
        let found = interfaces()?.remove(interface).ok_or(io::ErrorKind::NotFound)?;
        let card = found.mac().filter(|mac| mac.0 != [0; 6]);
        let (Some(link), Some(card)) = (found.link, card) else { return Ok(None) };
        let protocol = i32::from(u16::try_from(libc::ETH_P_IP).unwrap_or_default().to_be());
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(protocol)))?;
        socket.set_nonblocking(true)?;
        // What came from elsewhere before answers no question: none was asked yet.
        socket.attach_filter(&filter())?;
        bind(socket.as_raw_fd(), &link)?;
        // SAFETY: a Socket owns its file descriptor and gives the same one until it is dropped, here with the AsyncFd.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Some(Self { socket, card }))
    }

    /// The interface's network card.
    pub fn card(&self) -> MacAddress {
        self.card
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// When the kernel does not take it.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.get_ref().write(frame).map(drop)
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

    /// The answers to the question with this number, of what has arrived.
    pub fn hear(&self, xid: u32) -> Vec<ProbeOffer> {
        let mut heard = Vec::new();
        let mut buffer = [0; LONGEST];
        for _ in 0..AT_ONCE {
            match self.socket.try_io(Interest::READABLE, |mut socket| socket.read(&mut buffer)) {
                Ok(length) => heard.extend(buffer.get(..length).and_then(|frame| offer(frame, xid))),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        heard
    }
}

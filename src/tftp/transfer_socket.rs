//! The UDP port of one transfer.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, getsockopt, recvmmsg, sendmsg, sockopt};
use socket2::{Domain, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tracing::debug;

use super::transfer::SendBuffer;

/// Longer than an ACK or an ERROR of any use, in bytes; the rest of a longer packet is cut off.
const PACKET: usize = 600;
/// Packets taken at once. One more than a client in lockstep has under way: to get fewer says that no more are there,
/// which saves asking.
const AT_ONCE: usize = 2;

/// A transfer's own port.
pub(super) struct TransferSocket {
    /// Connected: the kernel looks up the way once and gives it the client's packets only.
    pub socket: UdpSocket,
    client: SocketAddr,
    /// Whether the kernel may cut a window into packets (UDP_SEGMENT); not every network card can.
    segments: bool,
    received: ReceiveBuffer,
}

/// Packets that were taken and not looked at yet.
struct ReceiveBuffer {
    packets: [[u8; PACKET]; AT_ONCE],
    lengths: [usize; AT_ONCE],
    next: usize,
    count: usize,
}

impl ReceiveBuffer {
    /// Takes what the socket has. `WouldBlock` when it has no more, with or without a packet taken.
    fn fill(&mut self, socket: &UdpSocket) -> io::Result<()> {
        (self.next, self.count) = (0, 0);
        let mut headers = MultiHeaders::<()>::preallocate(AT_ONCE, None);
        let mut slices = self.packets.each_mut().map(|packet| [IoSliceMut::new(packet)]);
        let flags = MsgFlags::MSG_DONTWAIT;
        for message in recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None)? {
            self.lengths[self.count] = message.bytes;
            self.count += 1;
        }
        if self.count < AT_ONCE { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    fn next_packet(&mut self) -> Option<&[u8]> {
        let taken = (self.next < self.count).then_some(self.next)?;
        self.next += 1;
        Some(&self.packets[taken][..self.lengths[taken]])
    }
}

impl TransferSocket {
    /// A port of the system's choice at the address that was asked, for this client; and a second socket there, which
    /// gets what anybody else sends to it.
    pub fn open(local: SocketAddr, client: SocketAddr) -> io::Result<(Self, UdpSocket)> {
        let strangers = bind_shared(local)?;
        let socket = bind_shared(strangers.local_addr()?)?;
        socket.connect(client)?;
        let received = ReceiveBuffer { packets: [[0; PACKET]; AT_ONCE], lengths: [0; AT_ONCE], next: 0, count: 0 };
        let opened = Self { socket: UdpSocket::from_std(socket)?, client, segments: true, received };
        Ok((opened, UdpSocket::from_std(strangers)?))
    }

    /// The largest IP packet on the way to the client as far as the kernel knows, in bytes; 1500 when it does not say.
    pub fn path_mtu(&self) -> u32 {
        match self.client {
            SocketAddr::V4(_) => {
                getsockopt(&self.socket, sockopt::IpMtu).ok().and_then(|mtu| u32::try_from(mtu).ok()).unwrap_or(1500)
            }
            // The least that IPv6 has, less its longer header.
            SocketAddr::V6(_) => 1280 - 20,
        }
    }

    /// The client's next packet. To stop waiting for it loses none.
    pub async fn receive(&mut self) -> io::Result<&[u8]> {
        while self.received.next == self.received.count {
            self.socket.readable().await?;
            match self.socket.try_io(Interest::READABLE, || self.received.fill(&self.socket)) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(self.received.next_packet().unwrap_or_default())
    }

    /// Sends packets and forgets them.
    pub async fn send(&mut self, out: &mut SendBuffer) -> io::Result<()> {
        if out.len() > 1 && self.segments {
            if self.send_segments(out).await.is_ok() {
                out.clear();
                return Ok(());
            }
            self.segments = false;
        }
        for packet in out.packets() {
            match self.socket.send(packet).await {
                Ok(_) => {}
                // Congestion or a network that is down for a moment is loss like any other.
                Err(cause) if cause.kind() != io::ErrorKind::InvalidInput => {
                    debug!(peer = %self.client, error = %cause, "cannot send a TFTP packet");
                }
                Err(cause) => return Err(cause),
            }
        }
        out.clear();
        Ok(())
    }

    async fn send_segments(&self, out: &SendBuffer) -> io::Result<()> {
        let Some((bytes, segment)) = out.segments() else { return Ok(()) };
        let segment = u16::try_from(segment).map_err(io::Error::other)?;
        self.socket
            .async_io(Interest::WRITABLE, || {
                let parts = [IoSlice::new(bytes)];
                let control = [ControlMessage::UdpGsoSegments(&segment)];
                sendmsg::<()>(self.socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), None)?;
                Ok(())
            })
            .await
    }
}

fn bind_shared(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

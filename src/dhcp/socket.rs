//! The sockets of one interface.
//!
//! One UDP socket bound to the interface takes what arrives there and nothing else. Clients on the link get a frame from a
//! packet socket, which needs no entry in the neighbour table, of which there may be none left, even for a broadcast; where
//! there is no link layer, a datagram. Answers to relays have a socket of their own: what waits for ARP in the kernel takes
//! room in its send buffer only.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use ipnetwork::Ipv4Network;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, MultiHeaders, SockFlag, SockType, SockaddrIn, bind, recvmmsg, send,
    sendmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::api::MacAddress;
use crate::boot::neighbour;

use super::frame;
use super::interface::ServedInterface;
use super::log::InterfaceLog;
use super::outcome::{Destination, DhcpReply};
use super::relays::{self, Relays};

/// Messages taken with one system call.
const BATCH: usize = 128;
/// Longest message read; what is beyond is cut off.
const LONGEST: usize = 2048;
/// Kernel's buffer for arriving messages, in bytes: a rack that powers on at once.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Kernel's buffer for answers to relays, in bytes: the kernel keeps 212,992 at most for one router that does not answer.
const RELAY_BUFFER: usize = 4 << 20;
/// Where the socket for answers to relays is bound, on an interface where nothing for this address can arrive.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 254);
/// Answers that leave at once. A relay's buffer holds about 160 where nobody made it larger. The kernel cuts one
/// message into 64 at most (UDP_MAX_SEGMENTS), and 32 of the longest answers fit one.
const BURST: usize = 32;
/// Time between bursts.
const GAP: Duration = Duration::from_micros(500);
/// How long a full send buffer may keep an answer; after that it is dropped, as a full network would.
const SEND_PATIENCE: Duration = Duration::from_millis(50);

/// The sockets of one interface and port, open.
pub struct BoundSockets {
    udp: Socket,
    to_relays: Socket,
    raw: Option<(OwnedFd, MacAddress)>,
    links: Vec<Ipv4Network>,
    index: u32,
    port: u16,
}

/// The sockets of one interface and port, in use.
pub struct InterfaceSockets {
    udp: UdpSocket,
    /// Sends only.
    to_relays: Socket,
    relays: Relays,
    raw: Option<(OwnedFd, MacAddress)>,
    /// The interface's addresses, with the networks that are on its link.
    pub links: Vec<Ipv4Network>,
    /// Number of the interface they are bound to; another one under the same name is not served by them.
    pub index: u32,
    port: u16,
    /// Whether the kernel may cut one large message into answers (UDP_SEGMENT); not every network card can.
    segments: bool,
}

/// An answer and the address it comes from.
pub struct Outgoing {
    /// This appliance's address.
    pub server: Ipv4Addr,
    /// Who sent the message.
    pub peer: SocketAddrV4,
    /// The answer.
    pub reply: DhcpReply,
}

/// Why answers were not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendFailure {
    /// Nobody is there, as far as the kernel knows, and enough answers wait already.
    #[error("no answer to DHCP relays that nobody answers for by ARP: they are not there, or somebody makes them up")]
    NobodyThere,
    /// They are there, and do not take them.
    #[error("the send buffer for answers to DHCP relays is full, so answers are dropped")]
    Full,
    /// The kernel refuses.
    #[error("a DHCP answer could not be sent: {0}")]
    Refused(#[from] io::Error),
}

impl SendFailure {
    /// It as a sentence for the log, which has the error in a field.
    pub(super) fn summary(&self) -> &'static str {
        match self {
            Self::NobodyThere => {
                "no answer to DHCP relays that nobody answers for by ARP: they are not there, or somebody makes them up"
            }
            Self::Full => "the send buffer for answers to DHCP relays is full, so answers are dropped",
            Self::Refused(_) => "a DHCP answer could not be sent",
        }
    }

    /// What the kernel says, if it refuses.
    pub(super) fn refused(&self) -> Option<&io::Error> {
        match self {
            Self::Refused(error) => Some(error),
            Self::NobodyThere | Self::Full => None,
        }
    }
}

/// What answers must share to leave together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SendGroup {
    server: Ipv4Addr,
    to: SocketAddrV4,
    length: usize,
}

impl Outgoing {
    /// `None` for what is not sent to an address.
    fn send_group(&self) -> Option<SendGroup> {
        let Destination::Address(to) = self.reply.to else { return None };
        Some(SendGroup { server: self.server, to, length: self.reply.message.len() })
    }
}

impl BoundSockets {
    /// Opens the sockets of an interface.
    ///
    /// # Errors
    ///
    /// When the port is taken or the process may not bind it or the interface. Needs `CAP_NET_BIND_SERVICE` and
    /// `CAP_NET_RAW`.
    pub fn open(name: &str, interface: &ServedInterface, port: u16) -> io::Result<Self> {
        let index = nix::net::if_::if_nametoindex(name)?;
        let udp = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        udp.bind_device(Some(name.as_bytes()))?;
        udp.set_broadcast(true)?;
        udp.set_nonblocking(true)?;
        // Beyond the system's limit with CAP_NET_ADMIN, up to it without.
        if setsockopt(&udp, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            udp.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        udp.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into())?;
        let to_relays = socket_to_relays(name, port, &udp)?;
        // Loopback has no link layer to speak of, and needs no privilege without one.
        let raw = match (interface.link, interface.mac().filter(|mac| mac.0 != [0; 6])) {
            (Some(link), Some(mac)) => {
                // Protocol 0: it sends only, and takes no copy of the interface's traffic.
                let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
                let socket = nix::sys::socket::socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
                bind(socket.as_raw_fd(), &link)?;
                Some((socket, mac))
            }
            _ => None,
        };
        Ok(Self { udp, to_relays, raw, links: interface.links.clone(), index, port })
    }

    /// Hands them to the runtime of the thread that uses them.
    ///
    /// # Errors
    ///
    /// When the runtime takes no more.
    pub fn register(self) -> io::Result<InterfaceSockets> {
        let Self { udp, to_relays, raw, links, index, port } = self;
        let (udp, relays) = (UdpSocket::from_std(udp.into())?, Relays::default());
        Ok(InterfaceSockets { udp, to_relays, relays, raw, links, index, port, segments: true })
    }
}

/// A socket that sends from the same port as `udp`, and to which nothing comes.
fn socket_to_relays(name: &str, port: u16, udp: &Socket) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind_device(Some(name.as_bytes()))?;
    socket.set_nonblocking(true)?;
    if setsockopt(&socket, sockopt::SndBufForce, &RELAY_BUFFER).is_err() {
        socket.set_send_buffer_size(RELAY_BUFFER)?;
    }
    // Loopback may be down.
    socket.set_freebind_v4(true)?;
    // For this moment only: afterwards nobody shares the port.
    udp.set_reuse_address(true)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddrV4::new(NOWHERE, port).into())?;
    udp.set_reuse_address(false)?;
    socket.set_reuse_address(false)?;
    Ok(socket)
}

impl InterfaceSockets {
    /// Waits until there may be something to receive. Cancel-safe.
    pub async fn readable(&self) -> io::Result<()> {
        self.udp.readable().await
    }

    /// Takes what has arrived, at most as many messages as fit the batch; none is no error.
    pub fn receive(&self, received: &mut ReceiveBatch) -> io::Result<usize> {
        received.arrived.clear();
        let fd = self.udp.as_raw_fd();
        match self.udp.try_io(Interest::READABLE, || received.fill(fd)) {
            Ok(()) => Ok(received.arrived.len()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Sends answers and takes them away. Many leave in bursts, between which the thread sleeps. Those that cannot be sent
    /// are dropped with a line in the log: the client asks again.
    pub async fn send(&mut self, answers: &mut Vec<Outgoing>, log: &mut InterfaceLog) {
        for (number, burst) in answers.chunks_mut(BURST).enumerate() {
            if number > 0 {
                thread::sleep(GAP);
            }
            self.send_burst(burst, log).await;
        }
        answers.clear();
    }

    async fn send_burst(&mut self, burst: &mut [Outgoing], log: &mut InterfaceLog) {
        // What goes to one relay leaves together.
        burst.sort_by_key(Outgoing::send_group);
        for run in burst.chunk_by(|one, next| one.send_group() == next.send_group()) {
            match run[0].send_group() {
                Some(group) => self.send_to_relay(group, run, log),
                None => self.send_apart(run, log).await,
            }
        }
    }

    /// Sends answers of one group, as many as need not wait. Never waits itself.
    fn send_to_relay(&mut self, group: SendGroup, answers: &[Outgoing], log: &mut InterfaceLog) {
        let relay = *group.to.ip();
        let admitted = if self.raw.is_some() && relays::may_wait(&self.links, relay) {
            // Whom the kernel says nothing about is not there.
            let (index, now) = (self.index, Instant::now());
            self.relays.admit(now, relay, answers.len(), |relay| neighbour::is_there(index, relay).unwrap_or(false))
        } else {
            answers.len()
        };
        let (sent, left) = answers.split_at(admitted);
        log.unsent(left, &SendFailure::NobodyThere);
        if sent.len() > 1 && self.segments && self.send_together(group, sent, log) {
            return;
        }
        for answer in sent {
            let message = [IoSlice::new(&answer.reply.message)];
            if let Err(error) = send_udp(&self.to_relays, group.server, group.to, &message, None) {
                log.unsent(std::slice::from_ref(answer), &unsent_to_relay(error));
            }
        }
    }

    /// Sends answers of one group and length with one system call. False when that cannot be done.
    fn send_together(&mut self, group: SendGroup, answers: &[Outgoing], log: &mut InterfaceLog) -> bool {
        let Ok(length) = u16::try_from(group.length) else { return false };
        let parts: Vec<_> = answers.iter().map(|answer| IoSlice::new(&answer.reply.message)).collect();
        match send_udp(&self.to_relays, group.server, group.to, &parts, Some(length)) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                log.unsent(answers, &SendFailure::Full);
                true
            }
            Err(error) => {
                // Too long for the network's packets says nothing about the next ones.
                let cannot = [Some(nix::libc::EIO), Some(nix::libc::EINVAL)].contains(&error.raw_os_error());
                self.segments &= !cannot;
                tracing::debug!(to = %group.to, %error, "cannot send DHCP answers together: they are sent one by one");
                false
            }
        }
    }

    async fn send_apart(&self, answers: &[Outgoing], log: &mut InterfaceLog) {
        for answer in answers {
            if let Err(error) = self.patiently(|| self.try_send(answer)).await {
                log.unsent(std::slice::from_ref(answer), &error.into());
            }
        }
    }

    /// Sends, and once more when the kernel had no room at first.
    async fn patiently(&self, send: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match tokio::time::timeout(SEND_PATIENCE, self.udp.writable()).await {
                    Ok(writable) => writable.and_then(|()| send()),
                    Err(_) => Err(io::ErrorKind::TimedOut.into()),
                }
            }
            result => result,
        }
    }

    fn try_send(&self, Outgoing { server, reply, .. }: &Outgoing) -> io::Result<()> {
        let broadcast = SocketAddrV4::new(Ipv4Addr::BROADCAST, 68);
        let message = [IoSlice::new(&reply.message)];
        let (mac, to, without_frame) = match reply.to {
            Destination::Address(to) => return send_udp(&self.to_relays, *server, to, &message, None),
            Destination::Broadcast => (MacAddress([0xff; 6]), broadcast, broadcast),
            Destination::Client { mac, to } => (mac, to, to),
            Destination::Hardware { mac, address } => (mac, SocketAddrV4::new(address, 68), broadcast),
        };
        let frame = self.raw.as_ref().and_then(|(socket, own)| {
            let frame = frame::udp((*own, *server, self.port), (mac, *to.ip(), to.port()), &reply.message)?;
            Some((socket, frame))
        });
        let Some((socket, frame)) = frame else { return send_udp(&self.udp, *server, without_frame, &message, None) };
        match send(socket.as_raw_fd(), &frame, MsgFlags::empty()) {
            Ok(_) => Ok(()),
            Err(nix::Error::EAGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => send_udp(&self.udp, *server, broadcast, &message, None),
        }
    }
}

fn unsent_to_relay(error: io::Error) -> SendFailure {
    if error.kind() == io::ErrorKind::WouldBlock { SendFailure::Full } else { SendFailure::Refused(error) }
}

/// Sends the parts as one message, or as one for each so many bytes.
fn send_udp(
    socket: &impl AsRawFd,
    server: Ipv4Addr,
    to: SocketAddrV4,
    parts: &[IoSlice<'_>],
    segment: Option<u16>,
) -> io::Result<()> {
    let info = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: u32::from(server).to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let source = ControlMessage::Ipv4PacketInfo(&info);
    let control = match &segment {
        Some(segment) => &[source, ControlMessage::UdpGsoSegments(segment)][..],
        None => &[source],
    };
    let to = SockaddrIn::from(to);
    // Not through `try_io`: a full buffer is rare, and then it is the kernel that says when there is room.
    sendmsg(socket.as_raw_fd(), parts, control, MsgFlags::MSG_DONTWAIT, Some(&to))?;
    Ok(())
}

/// Buffers for a batch of messages.
pub struct ReceiveBatch {
    buffers: Vec<Vec<u8>>,
    arrived: Vec<(usize, SocketAddrV4)>,
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        Self { buffers: vec![vec![0; LONGEST]; BATCH], arrived: Vec::with_capacity(BATCH) }
    }
}

impl ReceiveBatch {
    fn fill(&mut self, fd: std::os::fd::RawFd) -> io::Result<()> {
        let mut headers: MultiHeaders<SockaddrIn> = MultiHeaders::preallocate(BATCH, None);
        let mut slices: Vec<_> = self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        for message in recvmmsg(fd, &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)? {
            let source = message.address.map_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), SocketAddrV4::from);
            self.arrived.push((message.bytes, source));
        }
        Ok(())
    }

    /// Whether there may be more.
    pub fn is_full(&self) -> bool {
        self.arrived.len() == BATCH
    }

    /// Forgets the messages.
    pub fn clear(&mut self) {
        self.arrived.clear();
    }

    /// The messages that arrived, with their senders.
    pub fn messages(&self) -> impl Iterator<Item = (&[u8], SocketAddrV4)> {
        let pairs = self.buffers.iter().zip(&self.arrived);
        pairs.map(|(buffer, (length, source))| (buffer.get(..*length).unwrap_or(buffer), *source))
    }
}

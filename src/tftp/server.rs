//! The TFTP server: one port for requests, one task and port for each transfer.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::boot::{BootFiles, FileError, TFTP_FILES, lookup};
use crate::descriptors::port_hint;
use crate::ration::{Ranks, all_alike};

use super::admission::{RateLimit, TransferAdmission, TransferTable};
use super::metrics::{TftpMetrics, TransferOutcome};
use super::packet::{ErrorCode, MAX_REQUEST, RequestedOptions, error, parse_request, printable};
use super::transfer::{FileTransfer, SendBuffer, TransferEnd, TransferProgress};
use super::transfer_socket::TransferSocket;

/// Requests that may wait in the kernel, in bytes: a rack that powers on at once.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Lines about the socket's faults in ten seconds. Clients' faults the log itself rations.
const FAULT_LINES: u32 = 20;
const FAULT_STRETCH: Duration = Duration::from_secs(10);
/// Packets from other ports that a transfer answers: more than a confused client sends.
const MISDIRECTED: u32 = 8;
/// Packets that are no request of ours are answered at most this often in an interval of ten seconds.
const REFUSALS: u32 = 1000;

/// The address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("TFTP cannot listen on {address}: {source}{}", port_hint(.source, "UDP", .address, "boot.tftp"))]
pub struct TftpBindError {
    address: SocketAddr,
    source: io::Error,
}

/// A TFTP server with its socket.
pub struct TftpServer {
    socket: std::net::UdpSocket,
    files: BootFiles,
    ranks: Ranks,
    metrics: TftpMetrics,
}

impl TftpServer {
    /// Listens at this address, port 69 by convention. With an unspecified address, every request is answered
    /// from the address it was sent to.
    pub fn bind(address: SocketAddr, files: BootFiles) -> Result<Self, TftpBindError> {
        let socket = listen(address).map_err(|source| TftpBindError { address, source })?;
        Ok(Self { socket, files, ranks: all_alike(), metrics: TftpMetrics::default() })
    }

    /// The same server with what is known of its clients. When there are too many, strangers have a quarter of the
    /// transfers together.
    #[must_use]
    pub fn ranked_by(self, ranks: Ranks) -> Self {
        Self { ranks, ..self }
    }

    /// What it counts.
    pub fn metrics(&self) -> TftpMetrics {
        self.metrics.clone()
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until shutdown; transfers under way end with it.
    ///
    /// All transfers run in one thread of their own: in lockstep a packet costs little but the wake-up, and a
    /// work-stealing runtime wakes a second thread for each (measured: a third more processor time).
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        let (ended, end) = tokio::sync::oneshot::channel();
        // Ends the thread also when this future is dropped.
        let stop = shutdown.child_token();
        let guard = stop.clone().drop_guard();
        std::thread::Builder::new().name("tftp".into()).spawn(move || {
            let result = runtime.block_on(self.listen(stop));
            runtime.shutdown_background();
            // Nobody waits when the future was dropped.
            let _unheard = ended.send(result);
        })?;
        let result = end.await.unwrap_or_else(|_| Err(io::Error::other("the TFTP thread panicked")));
        drop(guard);
        result
    }

    async fn listen(self, shutdown: CancellationToken) -> io::Result<()> {
        let listener = UdpSocket::from_std(self.socket)?;
        let bound = listener.local_addr()?.ip();
        let mut dispatcher = Dispatcher {
            files: self.files,
            ranks: self.ranks,
            metrics: self.metrics,
            table: TransferTable::default(),
            handles: HashMap::new(),
            tasks: HashMap::new(),
            transfers: JoinSet::new(),
            faults: RateLimit::new(FAULT_LINES),
            refusals: RateLimit::new(REFUSALS),
            begun: Instant::now(),
        };
        let mut buffer = [0; MAX_REQUEST + 1];
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = dispatcher.transfers.join_next_with_id() => match done {
                    Ok((task, ())) => dispatcher.finish(task),
                    Err(cause) => {
                        error!(error = %cause, "a TFTP transfer panicked");
                        dispatcher.metrics.ended(TransferOutcome::Failed);
                        dispatcher.finish(cause.id());
                    }
                },
                received = receive(&listener, &mut buffer, bound) => match received {
                    Ok(Some((length, client, local))) => dispatcher.request(&buffer[..length], client, local),
                    Ok(None) => {}
                    // An ICMP answer to an earlier packet, or memory pressure: neither ends the service.
                    Err(cause) => {
                        dispatcher.socket_failed(&cause);
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                },
            }
        }
        dispatcher.transfers.shutdown().await;
        Ok(())
    }
}

/// Turns the requests of all clients into transfers.
struct Dispatcher {
    files: BootFiles,
    ranks: Ranks,
    metrics: TftpMetrics,
    table: TransferTable,
    handles: HashMap<u64, Arc<TransferHandle>>,
    tasks: HashMap<task::Id, (SocketAddr, u64)>,
    transfers: JoinSet<()>,
    faults: RateLimit<u64>,
    refusals: RateLimit<u64>,
    begun: Instant,
}

/// What the dispatcher and a transfer share.
#[derive(Default)]
struct TransferHandle {
    under_way: AtomicBool,
    repeat: Notify,
    end: CancellationToken,
}

impl Dispatcher {
    fn request(&mut self, packet: &[u8], client: SocketAddr, local: SocketAddr) {
        if client.port() == 0 {
            return;
        }
        let request = match parse_request(packet) {
            Ok(request) => request,
            Err(cause) => {
                warn!(peer = %client, error = %cause, "TFTP request refused");
                self.metrics.ended(TransferOutcome::Refused);
                if let Some(code) = cause.code() {
                    self.refuse(client, local, code, &cause.to_string());
                }
                return;
            }
        };
        let name = match lookup(&TFTP_FILES, request.name) {
            Ok(name) => name,
            Err(cause) => {
                let asked = printable(request.name).into_owned();
                warn!(peer = %client, file = asked, error = %cause, "TFTP request refused");
                let (code, outcome) = match cause {
                    crate::boot::NameError::Path => (ErrorCode::AccessViolation, TransferOutcome::Refused),
                    crate::boot::NameError::Unknown => (ErrorCode::NotFound, TransferOutcome::NotFound),
                };
                self.metrics.ended(outcome);
                self.refuse(client, local, code, &cause.to_string());
                return;
            }
        };
        let former = self.table.id(client);
        let handles = &self.handles;
        let answered = |id: u64| handles.get(&id).is_some_and(|handle| handle.under_way.load(Ordering::Relaxed));
        let rank = (self.ranks)(client.ip().to_canonical());
        match self.table.admit(client, packet, rank, answered) {
            TransferAdmission::Start => {}
            TransferAdmission::Repeat => {
                if let Some(handle) = former.and_then(|id| self.handles.get(&id)) {
                    handle.repeat.notify_one();
                }
                return;
            }
            TransferAdmission::Replace => self.end(former),
            TransferAdmission::InPlaceOf(other) => self.end(Some(other)),
            TransferAdmission::Busy(cause) => {
                warn!(peer = %client, error = %cause, "TFTP request dropped: too many are under way");
                self.metrics.ended(TransferOutcome::Busy);
                return;
            }
        }
        let Some(id) = self.table.id(client) else { return };
        let handle = Arc::new(TransferHandle::default());
        self.handles.insert(id, handle.clone());
        let files = self.files.clone();
        let asked = request.options;
        let (metrics, active) = (self.metrics.clone(), self.metrics.begins());
        let spawned = self.transfers.spawn(async move {
            let ended = tokio::select! {
                () = handle.end.cancelled() => Ok(None),
                ended = serve(&files, name, asked, (client, local), &handle, &metrics) => ended.map(Some),
            };
            drop(active);
            metrics.ended(outcome(&ended));
            report(name, client, ended);
        });
        self.tasks.insert(spawned.id(), (client, id));
    }

    fn end(&mut self, transfer: Option<u64>) {
        if let Some(handle) = transfer.and_then(|id| self.handles.remove(&id)) {
            handle.end.cancel();
        }
    }

    fn finish(&mut self, task: task::Id) {
        let Some((client, id)) = self.tasks.remove(&task) else { return };
        self.handles.remove(&id);
        self.table.finish(client, id);
    }

    fn refuse(&mut self, client: SocketAddr, local: SocketAddr, code: ErrorCode, message: &str) {
        if self.refusals.try_take(self.interval()).is_none() {
            return;
        }
        let mut packet = Vec::new();
        error(&mut packet, code, message);
        // Best effort, as all ERROR packets are (RFC 1350 section 7): the client times out otherwise.
        if let Err(cause) = std::net::UdpSocket::bind(local).and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(&packet, client)
        }) {
            debug!(peer = %client, error = %cause, "cannot send a TFTP ERROR");
        }
    }

    fn interval(&self) -> u64 {
        self.begun.elapsed().as_secs() / FAULT_STRETCH.as_secs()
    }

    /// A line about the socket, which nobody's address is to blame for.
    fn socket_failed(&mut self, cause: &io::Error) {
        if let Some(suppressed) = self.faults.try_take(self.interval()) {
            warn!(error = %cause, left_out = suppressed, "cannot receive by TFTP");
        }
    }
}

fn outcome(ended: &Result<Option<(TransferEnd, usize, Duration)>, TransferError>) -> TransferOutcome {
    match ended {
        Ok(Some((end, ..))) => end.into(),
        Ok(None) => TransferOutcome::Replaced,
        Err(TransferError::File(FileError::Io { source, .. })) if source.kind() == io::ErrorKind::NotFound => {
            TransferOutcome::NotFound
        }
        Err(_) => TransferOutcome::Failed,
    }
}

fn report(name: &str, client: SocketAddr, ended: Result<Option<(TransferEnd, usize, Duration)>, TransferError>) {
    match ended {
        Ok(Some((TransferEnd::Complete, bytes, took))) => {
            info!(peer = %client, file = name, bytes, milliseconds = took.as_millis() as u64, "TFTP file sent");
        }
        Ok(Some((TransferEnd::Aborted { code, message }, ..))) => {
            debug!(peer = %client, file = name, code, message, "TFTP client ended the transfer");
        }
        Ok(Some((TransferEnd::Silent, ..))) => warn!(peer = %client, file = name, "TFTP client stopped answering"),
        Ok(Some((TransferEnd::TooLong, ..))) => warn!(peer = %client, file = name, "TFTP transfer took too long"),
        Ok(None) => debug!(peer = %client, file = name, "TFTP transfer gave way to another"),
        Err(cause) => warn!(peer = %client, file = name, error = %cause, "TFTP transfer failed"),
    }
}

#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("reading was interrupted")]
    Interrupted,
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

async fn serve(
    files: &BootFiles,
    name: &'static str,
    asked: RequestedOptions,
    (client, local): (SocketAddr, SocketAddr),
    handle: &TransferHandle,
    metrics: &TftpMetrics,
) -> Result<(TransferEnd, usize, Duration), TransferError> {
    let (mut transfer_socket, strangers) = TransferSocket::open(local, client)?;
    let loading = files.clone();
    let loaded = task::spawn_blocking(move || loading.load(name)).await.map_err(|_| TransferError::Interrupted)?;
    let mut out = SendBuffer::default();
    let data = match loaded {
        Ok(data) => data,
        Err(cause) => {
            let mut packet = Vec::new();
            error(&mut packet, ErrorCode::NotFound, "boot file missing on the server");
            transfer_socket.socket.send(&packet).await?;
            return Err(cause.into());
        }
    };
    let begun = Instant::now();
    let mut transfer = FileTransfer::new(data, &asked, transfer_socket.path_mtu(), begun);
    transfer.start(begun, &mut out);
    metrics.sends(&out);
    transfer_socket.send(&mut out).await?;
    let alarm = tokio::time::sleep_until(transfer.deadline().into());
    tokio::pin!(alarm);
    let (mut strange, mut misdirected) = ([0; 16], 0);
    let end = loop {
        // The alarm is not moved at every packet: when it rings early, it is set again.
        let progress = tokio::select! {
            biased;
            received = transfer_socket.receive() => match received {
                Ok(packet) => {
                    let progress = transfer.on_packet(Instant::now(), packet, &mut out);
                    if transfer.is_under_way() {
                        handle.under_way.store(true, Ordering::Relaxed);
                    }
                    progress
                }
                // ICMP: nobody there any more, or so somebody says. The client's silence will show.
                Err(_) => TransferProgress::Waiting,
            },
            () = handle.repeat.notified() => {
                transfer.on_repeated_request(&mut out);
                TransferProgress::Waiting
            }
            () = alarm.as_mut() => {
                let progress = transfer.on_time(Instant::now(), &mut out);
                alarm.as_mut().reset(transfer.deadline().into());
                progress
            }
            Ok((length, stranger)) = strangers.recv_from(&mut strange) => {
                if misdirected >= MISDIRECTED || !is_misdirected(&strange[..length]) {
                    continue;
                }
                misdirected += 1;
                let mut packet = Vec::new();
                error(&mut packet, ErrorCode::UnknownTransfer, "unknown transfer ID");
                // Best effort; it must not disturb the transfer (RFC 1350 section 4).
                let _unsent = strangers.try_send_to(&packet, stranger);
                TransferProgress::Waiting
            }
        };
        metrics.sends(&out);
        transfer_socket.send(&mut out).await?;
        if let TransferProgress::Ended(end) = progress {
            break end;
        }
    };
    Ok((end, transfer.size(), begun.elapsed()))
}

fn listen(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    match address {
        SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    // The kernel may grant less; that is no fault.
    if let Err(cause) = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER) {
        debug!(error = %cause, "cannot enlarge the TFTP receive buffer");
    }
    Ok(socket)
}

/// Whether a packet is of a transfer, so that its sender is to be told that it is not of this one (RFC 1350 section 4). An ERROR
/// is never answered: two servers would go on telling each other for ever.
fn is_misdirected(packet: &[u8]) -> bool {
    matches!(packet, [0, 3 | 4, _, _, ..])
}

/// The next packet, its sender, and the address to answer from with port 0. `None` for one that must not be answered.
async fn receive(
    socket: &UdpSocket,
    buffer: &mut [u8],
    bound: IpAddr,
) -> io::Result<Option<(usize, SocketAddr, SocketAddr)>> {
    let got = socket
        .async_io(Interest::READABLE, || {
            let mut control = nix::cmsg_space!(nix::libc::in6_pktinfo, nix::libc::in_pktinfo);
            let mut parts = [IoSliceMut::new(buffer)];
            let message =
                recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
            let mut local = Some(SocketAddr::new(bound, 0));
            for control in message.cmsgs()? {
                match control {
                    ControlMessageOwned::Ipv4PacketInfo(info) => {
                        let to = Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr));
                        let here = Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr));
                        // A request to everybody is nobody's (RFC 1123 section 4.2.3.5).
                        local = (!to.is_broadcast() && !to.is_multicast()).then(|| SocketAddr::new(here.into(), 0));
                    }
                    ControlMessageOwned::Ipv6PacketInfo(info) => {
                        let here = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                        let scope = if here.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
                        local = (!here.is_multicast()).then(|| std::net::SocketAddrV6::new(here, 0, 0, scope).into());
                    }
                    _ => {}
                }
            }
            let sender = message.address.and_then(|address| socket_address(&address));
            Ok(sender.zip(local).map(|(sender, local)| (message.bytes, sender, local)))
        })
        .await?;
    if got.is_none() {
        // Nothing to do for this packet; let others run before the next one.
        task::yield_now().await;
    }
    Ok(got)
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    let v6 = address.as_sockaddr_in6()?;
    Some(std::net::SocketAddrV6::new(v6.ip(), v6.port(), v6.flowinfo(), v6.scope_id()).into())
}

#[cfg(test)]
mod tests;

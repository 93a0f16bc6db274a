//! The DHCP loop of one interface and port: receive, answer, write, send.
//!
//! A thread of its own takes messages in batches. Offers leave at once; leases are collected, and all that came while
//! one write was under way are the next one. Their ACKs leave when it is on disk. So a thousand machines that power on
//! together share the store's flushes, the wake-ups and the system calls. When too many leases wait, the thread stops
//! reading, and the kernel's queue drops what does not fit, as any full queue on the way does; clients ask again.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use futures::poll;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::api::MacAddress;
use crate::boot::HostIndex;
use crate::boot::neighbour::{self, Cards};

use super::batching::Batching;
use super::clock::JumpDetector;
use super::conflict::{ConflictChecks, answered_by_another, quarantine};
use super::interface::interfaces;
use super::leases::{CommitError, Leases, unix_now};
use super::log::Log;
use super::network::{Network, select};
use super::outcome::{Disposition, LeaseWrite, Outcome};
use super::packet::Request;
use super::recent_messages::RecentMessage;
use super::respond::{NetworkContext, PacketInfo, Port, respond};
use super::server::open;
use super::socket::{BoundSockets, Outgoing, ReceiveBatch, Sockets};

/// Leases that may wait before the worker stops reading.
const MOST_WAITING: usize = 4096;
/// Time between looks at what ended and at the interface.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Seconds between looks at leases that should not be kept as long as they say, which takes a look at all of them.
const REVIEW: u64 = 15;
/// How long the last writes may take when the server stops.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Where a worker listens.
#[derive(Clone)]
pub(super) struct ListenAddress {
    pub interface: String,
    pub port: Port,
    /// Its UDP port.
    pub number: u16,
}

/// One interface and port, and the networks on it.
pub(super) struct InterfaceWorker {
    listen: ListenAddress,
    sockets: BoundSockets,
    handler: Handler,
}

impl InterfaceWorker {
    /// A worker without networks.
    pub fn new(listen: ListenAddress, sockets: BoundSockets, leases: Leases, hosts: HostIndex) -> Self {
        let log = Log::new(listen.interface.clone());
        let (conflict_checks, cards): (_, Cards) = (ConflictChecks::default(), Arc::new(|_| None));
        let handler = Handler {
            port: listen.port,
            networks: Vec::new(),
            reserved: Vec::new(),
            leases,
            hosts,
            log,
            conflict_checks,
            cards,
            reviewed: 0,
            clock: JumpDetector::default(),
        };
        Self { listen, sockets, handler }
    }

    /// Whether it is this one.
    pub fn is_at(&self, interface: &str, port: Port) -> bool {
        self.listen.interface == interface && self.listen.port == port
    }

    /// What this machine goes by on an interface, if this worker is there.
    pub fn server_at(&self, interface: &str) -> Option<Ipv4Addr> {
        let first = self.handler.networks.first().filter(|_| self.listen.interface == interface)?;
        Some(first.1.server)
    }

    /// Looks up with these which machine answers at an address.
    pub fn set_cards(&mut self, cards: Cards) {
        self.handler.cards = cards;
    }

    /// Adds a network, with its number in the leases.
    pub fn add(&mut self, index: usize, network: Network) {
        self.handler.networks.push((index, network));
        self.handler.reserved.push(0);
    }

    /// Serves until told to stop; then finishes the writes under way. When this future is dropped before that, nothing
    /// is sent any more.
    ///
    /// # Errors
    ///
    /// When the thread cannot be had or panics.
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ended, end) = oneshot::channel();
        let stop = Shutdown { graceful: shutdown, at_once: CancellationToken::new() };
        let at_once = stop.at_once.clone();
        let body = move || {
            let result = runtime.block_on(self.serve(&stop));
            // Nobody waits when the future was dropped.
            let _unheard = ended.send(result);
        };
        let thread = thread::Builder::new().name("dhcp".into()).spawn(body)?;
        let _ends_with_us = ThreadGuard { at_once, thread: Some(thread) };
        end.await.unwrap_or_else(|_| Err(io::Error::other("the DHCP thread panicked")))
    }

    async fn serve(self, stop: &Shutdown) -> io::Result<()> {
        let Self { listen, sockets, mut handler } = self;
        let mut transport = Transport { sockets: sockets.register()?, listen, down: false };
        let mut received = ReceiveBatch::default();
        let mut batch = WriteBatch::default();
        let mut under_way: Fuse<BoxFuture<'static, CommitResult>> = Fuse::terminated();
        let mut batching = Batching::default();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let reads = batch.writes.len() < MOST_WAITING && !transport.down;
            tokio::select! {
                biased;
                () = stop.at_once.cancelled() => return Ok(()),
                () = stop.graceful.cancelled() => break,
                written = &mut under_way => handler.finish(written, &mut batch.ready),
                _ = housekeeping.tick() => {
                    handler.follow_reservations();
                    let now = handler.now(&mut batch.writes);
                    batch.writes.extend(handler.expire_leases(now));
                    batch.writes.extend(handler.finish_conflict_checks());
                    transport.follow_interface();
                }
                ready = transport.sockets.readable(), if reads => {
                    if let Err(error) = ready {
                        transport.receive_failed(&error, &mut handler.log);
                    }
                }
            }
            if let Poll::Ready(written) = poll!(&mut under_way) {
                handler.finish(written, &mut batch.ready);
            }
            let arrived = if reads && !transport.down {
                receive(&mut transport, &mut handler, &mut received, &mut batch)
            } else {
                received.clear();
                0
            };
            if under_way.is_terminated() && !batch.writes.is_empty() {
                under_way = batch.write(&handler.leases).boxed().fuse();
                // Hands it to the store, which works while the answers are sent.
                if let Poll::Ready(written) = poll!(&mut under_way) {
                    handler.finish(written, &mut batch.ready);
                }
            }
            transport.sockets.send(&mut batch.ready, &mut handler.log).await;
            let delay = batching.delay_after(Instant::now(), arrived);
            if let Some(delay) = delay.filter(|_| !received.is_full()) {
                // Asleep, not waiting: a waiting thread is woken up by every message that arrives.
                thread::sleep(delay);
            }
        }
        let last = async {
            while !under_way.is_terminated() || !batch.writes.is_empty() {
                if under_way.is_terminated() {
                    under_way = batch.write(&handler.leases).boxed().fuse();
                }
                handler.finish((&mut under_way).await, &mut batch.ready);
            }
        };
        tokio::select! {
            biased;
            () = stop.at_once.cancelled() => return Ok(()),
            finished = tokio::time::timeout(LAST_WRITES, last) => if finished.is_err() {
                tracing::warn!(
                    interface = %transport.listen.interface, "DHCP stopped before the last leases were written: their clients were not answered"
                );
            }
        }
        transport.sockets.send(&mut batch.ready, &mut handler.log).await;
        Ok(())
    }
}

/// How a worker is told to end.
struct Shutdown {
    /// After the writes under way.
    graceful: CancellationToken,
    /// Without another answer.
    at_once: CancellationToken,
}

/// Ends the thread and waits for it, so that the port is free and nobody answers any more.
struct ThreadGuard {
    at_once: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        self.at_once.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the end of its channel.
            let _reported = thread.join();
        }
    }
}

/// Answers that may leave, and the next group commit: leases to write with the answers that wait for them.
#[derive(Default)]
struct WriteBatch {
    ready: Vec<Outgoing>,
    writes: Vec<LeaseWrite>,
    waiting: Vec<Outgoing>,
}

impl WriteBatch {
    /// Writes what was collected.
    fn write(&mut self, leases: &Leases) -> impl Future<Output = CommitResult> + Send + 'static {
        let (writes, answers) = (std::mem::take(&mut self.writes), std::mem::take(&mut self.waiting));
        let leases = leases.clone();
        async move { CommitResult { result: leases.commit(writes).await, answers } }
    }
}

/// A write that ended, and the answers that waited for it.
struct CommitResult {
    result: Result<(), CommitError>,
    answers: Vec<Outgoing>,
}

/// Receives and answers what arrived. Returns how many messages.
fn receive(
    transport: &mut Transport,
    handler: &mut Handler,
    received: &mut ReceiveBatch,
    batch: &mut WriteBatch,
) -> usize {
    let arrived = transport.sockets.receive(received).unwrap_or_else(|error| {
        transport.receive_failed(&error, &mut handler.log);
        0
    });
    handler.follow_reservations();
    let now = handler.now(&mut batch.writes);
    for (message, source) in received.messages() {
        handler.answer(now, message, source, batch);
    }
    arrived
}

/// The sockets of a worker, and whether its interface is there.
struct Transport {
    sockets: Sockets,
    listen: ListenAddress,
    /// Whether the interface is gone.
    down: bool,
}

impl Transport {
    fn receive_failed(&mut self, error: &io::Error, log: &mut Log) {
        log.receive_failed(error);
        // Not again before the next look at the interface: an error that stays would keep a processor busy.
        self.down = true;
    }

    /// Opens the sockets again when the interface is made anew.
    fn follow_interface(&mut self) {
        let ListenAddress { interface, number, .. } = &self.listen;
        let index = nix::net::if_::if_nametoindex(interface.as_str()).ok();
        let found = || interfaces().ok().and_then(|all| all.get(interface).cloned());
        if index == Some(self.sockets.index) {
            self.down = false;
            // It may have other addresses by now.
            if let Some(found) = found() {
                self.sockets.links = found.links;
            }
            return;
        }
        if !self.down {
            tracing::warn!(%interface, "the interface is gone: DHCP waits for it");
        }
        self.down = true;
        if index.is_none() {
            return;
        }
        let opened = open(interface, &found().unwrap_or_default(), *number).map_err(|error| error.to_string());
        match opened.and_then(|sockets| sockets.register().map_err(|error| error.to_string())) {
            Ok(sockets) => {
                tracing::info!(%interface, "the interface is back: DHCP serves it again");
                self.sockets = sockets;
                self.down = false;
            }
            Err(error) => tracing::debug!(%interface, error, "cannot serve the interface yet"),
        }
    }
}

/// Answers messages: all that a worker knows beside its sockets.
struct Handler {
    port: Port,
    /// The networks, with their number in the leases.
    networks: Vec<(usize, Network)>,
    /// For each network, which state of its reservations it goes by.
    reserved: Vec<u64>,
    leases: Leases,
    hosts: HostIndex,
    log: Log,
    /// Checks of addresses of known machines that others are said to use.
    conflict_checks: ConflictChecks,
    cards: Cards,
    /// When all leases were looked at, seconds since 1970.
    reviewed: u64,
    clock: JumpDetector,
}

impl Handler {
    /// Goes by the reservations as they are now.
    fn follow_reservations(&mut self) {
        for ((index, network), seen) in self.networks.iter_mut().zip(&mut self.reserved) {
            let live = self.leases.networks().get(*index).map(|leases| &leases.reserved);
            if let Some(reserved) = live.and_then(|live| live.newer_than(seen)) {
                network.set_reserved(reserved);
            }
        }
    }

    /// Answers one message.
    fn answer(&mut self, now: u64, message: &[u8], source: SocketAddrV4, batch: &mut WriteBatch) {
        let request = match Request::parse(message) {
            Ok(request) => request,
            Err(error) => return self.log.malformed(&error, source),
        };
        let Some(&(index, ref network)) = select_indexed(&self.networks, &request) else {
            return self.log.unknown_relay(&request);
        };
        if !network.takes(&request) {
            return self.log.unnamed_relay(network, &request, source);
        }
        let Some(leases) = self.leases.networks().get(index) else { return };
        let hosts = &self.hosts;
        let is_network = |name: &str| self.leases.has_network(name);
        let known = |mac: MacAddress| network.knows(mac, hosts, is_network);
        let host = hosts.by_mac(request.mac);
        let unknown = hosts.unknown_machine(request.mac, network.discovery);
        let context = NetworkContext { network, host: host.as_deref(), hosts, unknown: &unknown, known: &known };
        let packet_info = PacketInfo { source, port: self.port };
        let outcome = respond(now, &request, packet_info, context, &mut leases.table());
        leases.counts.count(&outcome.disposition);
        self.log.outcome(network, &request, source, host.as_deref(), &outcome);
        let Outcome { reply, writes, disposition, .. } = outcome;
        if let Disposition::ConflictReported(address) = disposition
            && self.conflict_checks.start(now, index, request.mac, address)
            && let Err(error) = neighbour::provoke(address)
        {
            tracing::debug!(mac = %request.mac, %address, %error, "cannot ask by ARP who has an address");
        }
        self.leases
            .record_message(request.mac, RecentMessage { at: now, network: index, kind: request.kind, disposition });
        let answer = reply.map(|reply| Outgoing { server: network.server, peer: source, reply });
        if writes.is_empty() {
            batch.ready.extend(answer);
        } else {
            batch.writes.extend(writes);
            batch.waiting.extend(answer);
        }
    }

    /// Decides the conflict checks that are due. Returns the records of the addresses that others have.
    fn finish_conflict_checks(&mut self) -> Vec<LeaseWrite> {
        let now = unix_now();
        let (mut writes, mut own_addresses) = (Vec::new(), None);
        for check in self.conflict_checks.due(now) {
            let Some((_, network)) = self.networks.iter().find(|(index, _)| *index == check.network) else { continue };
            let Some(leases) = self.leases.networks().get(check.network) else { continue };
            let host = self.hosts.by_mac(check.mac);
            let own = [&[check.mac][..], host.as_deref().map_or(&[][..], |host| &host.macs)].concat();
            // Once for all of them.
            let ours = own_addresses.get_or_insert_with(|| {
                let all = interfaces().unwrap_or_default();
                all.into_values().flat_map(|one| one.addresses).collect::<HashSet<Ipv4Addr>>()
            });
            let taken = answered_by_another((self.cards)(check.address), &own) || ours.contains(&check.address);
            let write = taken.then(|| quarantine(now, &check, &mut leases.table())).flatten();
            self.log.conflict_checked(network, host.as_deref(), &check, write.is_some());
            writes.extend(write);
        }
        writes
    }

    fn finish(&mut self, written: CommitResult, ready: &mut Vec<Outgoing>) {
        match written.result {
            Ok(()) => ready.extend(written.answers),
            Err(error) => self.log.not_stored(&error),
        }
    }

    /// Seconds since 1970. When that has jumped, all leases move with it, and their records are to be written anew.
    fn now(&mut self, writes: &mut Vec<LeaseWrite>) -> u64 {
        let now = unix_now();
        let jump = self.clock.observe(now, Instant::now());
        if let Some(by) = jump.filter(|_| self.port == Port::Server) {
            tracing::warn!(seconds = by, "the clock jumped: DHCP leases were moved with it");
            writes.extend(self.networks.iter().flat_map(|(index, _)| self.leases.shift(*index, by)));
        }
        now
    }

    /// Expires leases. Returns the records to remove.
    fn expire_leases(&mut self, now: u64) -> Vec<LeaseWrite> {
        let mut all = Vec::new();
        // Before the first list of hosts is complete, nobody is known.
        let reviews = self.hosts.is_settled() && now.abs_diff(self.reviewed) >= REVIEW;
        if reviews {
            self.reviewed = now;
        }
        for (index, network) in self.networks.iter().filter(|_| self.port == Port::Server) {
            let Some(leases) = self.leases.networks().get(*index) else { continue };
            let is_network = |name: &str| self.leases.has_network(name);
            let known = |mac: MacAddress| network.knows(mac, &self.hosts, is_network);
            let gone = leases.table().advance(now, &known);
            if !gone.is_empty() {
                tracing::debug!(network = %network.name, leases = gone.len(), "old DHCP leases were removed");
            }
            all.extend(gone.into_iter().map(|address| LeaseWrite { address, record: None }));
            if reviews {
                all.extend(self.leases.review(now, *index, u64::from(network.guest_lease), &known));
            }
        }
        all
    }
}

fn select_indexed<'n>(networks: &'n [(usize, Network)], request: &Request<'_>) -> Option<&'n (usize, Network)> {
    let chosen = select(networks.iter().map(|(_, network)| network), request)?;
    networks.iter().find(|(_, network)| std::ptr::eq(network, chosen))
}

//! The DHCP loop of one interface and port: receive, answer, write, send.
//!
//! A thread of its own takes messages in batches. Offers leave at once; leases are collected, and all that came while
//! one write was under way are the next one. Their ACKs leave when it is on disk. So a thousand machines that power on
//! together share the store's flushes, the wake-ups and the system calls. When too many leases wait, the thread stops
//! reading, and the kernel's queue drops what does not fit, as any full queue on the way does; clients ask again.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
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
use crate::boot::neighbour::Cards;

use super::clock::Clock;
use super::doubt::{Doubts, is_anothers, set_aside};
use super::interface::interfaces;
use super::leases::{CommitError, Leases, unix_now};
use super::log::Log;
use super::network::{Network, select};
use super::outcome::{LeaseWrite, Note, Outcome};
use super::pace::Pace;
use super::packet::Request;
use super::respond::{Arrival, Ground, Port, respond};
use super::seen::Message;
use super::server::open;
use super::socket::{Inbox, Opened, Outgoing, Sockets};

/// Leases that may wait before the line stops reading.
const MOST_WAITING: usize = 4096;
/// Time between looks at what ended and at the interface.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Seconds between looks at leases that should not be kept as long as they say, which takes a look at all of them.
const REVIEW: u64 = 15;
/// How long the last writes may take when the server stops.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Where a line is.
#[derive(Clone)]
pub(super) struct Place {
    pub interface: String,
    pub port: Port,
    /// Its number.
    pub number: u16,
}

/// One interface and port, and the networks on it.
pub(super) struct Line {
    place: Place,
    sockets: Opened,
    desk: Desk,
}

impl Line {
    /// A line without networks.
    pub fn new(place: Place, sockets: Opened, leases: Leases, hosts: HostIndex) -> Self {
        let log = Log::new(place.interface.clone());
        let (doubts, cards): (_, Cards) = (Doubts::default(), Arc::new(|_| None));
        let (networks, clock) = (Vec::new(), Clock::default());
        let desk = Desk { port: place.port, networks, leases, hosts, log, doubts, cards, reviewed: 0, clock };
        Self { place, sockets, desk }
    }

    /// Whether it is this one.
    pub fn is_at(&self, interface: &str, port: Port) -> bool {
        self.place.interface == interface && self.place.port == port
    }

    /// What this machine goes by on an interface, if this line is there.
    pub fn server_at(&self, interface: &str) -> Option<Ipv4Addr> {
        let first = self.desk.networks.first().filter(|_| self.place.interface == interface)?;
        Some(first.1.server)
    }

    /// Looks with these which machine answers at an address.
    pub fn look_with(&mut self, cards: Cards) {
        self.desk.cards = cards;
    }

    /// Adds a network, with its number in the leases.
    pub fn add(&mut self, index: usize, network: Network) {
        self.desk.networks.push((index, network));
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
        let stop = Stop { politely: shutdown, at_once: CancellationToken::new() };
        let at_once = stop.at_once.clone();
        let body = move || {
            let result = runtime.block_on(self.serve(&stop));
            // Nobody waits when the future was dropped.
            let _unheard = ended.send(result);
        };
        let thread = thread::Builder::new().name("dhcp".into()).spawn(body)?;
        let _ends_with_us = Ending { at_once, thread: Some(thread) };
        end.await.unwrap_or_else(|_| Err(io::Error::other("the DHCP thread panicked")))
    }

    async fn serve(self, stop: &Stop) -> io::Result<()> {
        let Self { place, sockets, mut desk } = self;
        let mut post = Post { sockets: sockets.register()?, place, down: false };
        let mut inbox = Inbox::default();
        let mut tray = Tray::default();
        let mut under_way: Fuse<BoxFuture<'static, Written>> = Fuse::terminated();
        let mut pace = Pace::default();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let reads = tray.writes.len() < MOST_WAITING && !post.down;
            tokio::select! {
                biased;
                () = stop.at_once.cancelled() => return Ok(()),
                () = stop.politely.cancelled() => break,
                written = &mut under_way => desk.finish(written, &mut tray.ready),
                _ = housekeeping.tick() => {
                    let now = desk.now(&mut tray.writes);
                    tray.writes.extend(desk.let_leases_end(now));
                    tray.writes.extend(desk.settle_doubts());
                    post.follow_interface();
                }
                ready = post.sockets.readable(), if reads => {
                    if let Err(error) = ready {
                        post.receive_failed(&error, &mut desk.log);
                    }
                }
            }
            if let Poll::Ready(written) = poll!(&mut under_way) {
                desk.finish(written, &mut tray.ready);
            }
            let arrived = if reads && !post.down {
                take(&mut post, &mut desk, &mut inbox, &mut tray)
            } else {
                inbox.clear();
                0
            };
            if under_way.is_terminated() && !tray.writes.is_empty() {
                under_way = tray.write(&desk.leases).boxed().fuse();
                // Hands it to the store, which works while the answers are sent.
                if let Poll::Ready(written) = poll!(&mut under_way) {
                    desk.finish(written, &mut tray.ready);
                }
            }
            post.sockets.send(&mut tray.ready, &mut desk.log).await;
            let breath = pace.after(Instant::now(), arrived);
            if let Some(breath) = breath.filter(|_| !inbox.is_full()) {
                // Asleep, not waiting: a waiting thread is woken up by every message that arrives.
                thread::sleep(breath);
            }
        }
        let last = async {
            while !under_way.is_terminated() || !tray.writes.is_empty() {
                if under_way.is_terminated() {
                    under_way = tray.write(&desk.leases).boxed().fuse();
                }
                desk.finish((&mut under_way).await, &mut tray.ready);
            }
        };
        tokio::select! {
            biased;
            () = stop.at_once.cancelled() => return Ok(()),
            finished = tokio::time::timeout(LAST_WRITES, last) => if finished.is_err() {
                tracing::warn!(
                    interface = %post.place.interface, "DHCP stopped before the last leases were written: their clients were not answered"
                );
            }
        }
        post.sockets.send(&mut tray.ready, &mut desk.log).await;
        Ok(())
    }
}

/// How a line is told to end.
struct Stop {
    /// After the writes under way.
    politely: CancellationToken,
    /// Without another answer.
    at_once: CancellationToken,
}

/// Ends the thread and waits for it, so that the port is free and nobody answers any more.
struct Ending {
    at_once: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.at_once.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the end of its channel.
            let _reported = thread.join();
        }
    }
}

/// Answers that may leave, and leases to write with the answers that wait for them.
#[derive(Default)]
struct Tray {
    ready: Vec<Outgoing>,
    writes: Vec<LeaseWrite>,
    waiting: Vec<Outgoing>,
}

impl Tray {
    /// Writes what was collected.
    fn write(&mut self, leases: &Leases) -> impl Future<Output = Written> + Send + 'static {
        let (writes, answers) = (std::mem::take(&mut self.writes), std::mem::take(&mut self.waiting));
        let leases = leases.clone();
        async move { Written { result: leases.commit(writes).await, answers } }
    }
}

/// A write that ended, and the answers that waited for it.
struct Written {
    result: Result<(), CommitError>,
    answers: Vec<Outgoing>,
}

/// Takes what arrived. Returns how many messages.
fn take(post: &mut Post, desk: &mut Desk, inbox: &mut Inbox, tray: &mut Tray) -> usize {
    let arrived = post.sockets.receive(inbox).unwrap_or_else(|error| {
        post.receive_failed(&error, &mut desk.log);
        0
    });
    let now = desk.now(&mut tray.writes);
    for (message, source) in inbox.messages() {
        desk.answer(now, message, source, tray);
    }
    arrived
}

/// Where messages come in and answers leave.
struct Post {
    sockets: Sockets,
    place: Place,
    /// Whether the interface is gone.
    down: bool,
}

impl Post {
    fn receive_failed(&mut self, error: &io::Error, log: &mut Log) {
        log.receive_failed(error);
        // Not again before the next look at the interface: an error that stays would keep a processor busy.
        self.down = true;
    }

    /// Opens the sockets again when the interface is made anew.
    fn follow_interface(&mut self) {
        let Place { interface, number, .. } = &self.place;
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

/// Where messages are answered.
struct Desk {
    port: Port,
    /// The networks, with their number in the leases.
    networks: Vec<(usize, Network)>,
    leases: Leases,
    hosts: HostIndex,
    log: Log,
    /// Addresses of known machines that others are said to use.
    doubts: Doubts,
    cards: Cards,
    /// When all leases were looked at, seconds since 1970.
    reviewed: u64,
    clock: Clock,
}

impl Desk {
    /// Answers one message.
    fn answer(&mut self, now: u64, message: &[u8], source: SocketAddrV4, tray: &mut Tray) {
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
        let known = |mac: MacAddress| network.reservation(mac).is_some() || hosts.is_registered(mac);
        let host = hosts.by_mac(request.mac);
        let stranger = hosts.stranger(request.mac, network.discovery);
        let ground = Ground { network, host: host.as_deref(), hosts, stranger: &stranger, known: &known };
        let arrival = Arrival { source, port: self.port };
        let outcome = respond(now, &request, arrival, ground, &mut leases.table());
        leases.counts.count(&outcome.note);
        self.log.outcome(network, &request, source, host.as_deref(), &outcome);
        let Outcome { reply, writes, note, .. } = outcome;
        if let Note::Doubted(address) = note
            && self.doubts.put(now, index, request.mac, address)
            && let Err(error) = provoke_arp(network.server, address)
        {
            tracing::debug!(mac = %request.mac, %address, %error, "cannot ask by ARP who has an address");
        }
        self.leases.saw(request.mac, Message { at: now, network: index, kind: request.kind, note });
        let answer = reply.map(|reply| Outgoing { server: network.server, peer: source, reply });
        if writes.is_empty() {
            tray.ready.extend(answer);
        } else {
            tray.writes.extend(writes);
            tray.waiting.extend(answer);
        }
    }

    /// Decides about the addresses that were looked at. Returns the records of those that others have.
    fn settle_doubts(&mut self) -> Vec<LeaseWrite> {
        let now = unix_now();
        let (mut writes, mut own_addresses) = (Vec::new(), None);
        for doubt in self.doubts.ripe(now) {
            let Some((_, network)) = self.networks.iter().find(|(index, _)| *index == doubt.network) else { continue };
            let Some(leases) = self.leases.networks().get(doubt.network) else { continue };
            let host = self.hosts.by_mac(doubt.mac);
            let own = [&[doubt.mac][..], host.as_deref().map_or(&[][..], |host| &host.macs)].concat();
            // Once for all of them.
            let ours = own_addresses.get_or_insert_with(|| {
                let all = interfaces().unwrap_or_default();
                all.into_values().flat_map(|one| one.addresses).collect::<HashSet<Ipv4Addr>>()
            });
            let taken = is_anothers((self.cards)(doubt.address), &own) || ours.contains(&doubt.address);
            let write = taken.then(|| set_aside(now, &doubt, &mut leases.table())).flatten();
            self.log.doubt(network, host.as_deref(), &doubt, write.is_some());
            writes.extend(write);
        }
        writes
    }

    fn finish(&mut self, written: Written, ready: &mut Vec<Outgoing>) {
        match written.result {
            Ok(()) => ready.extend(written.answers),
            Err(error) => self.log.not_stored(&error),
        }
    }

    /// Seconds since 1970. When that has jumped, all leases move with it, and their records are to be written anew.
    fn now(&mut self, writes: &mut Vec<LeaseWrite>) -> u64 {
        let now = unix_now();
        let jump = self.clock.look(now, Instant::now());
        if let Some(by) = jump.filter(|_| self.port == Port::Server) {
            tracing::warn!(seconds = by, "the clock jumped: DHCP leases were moved with it");
            writes.extend(self.networks.iter().flat_map(|(index, _)| self.leases.shift(*index, by)));
        }
        now
    }

    /// Lets leases end. Returns the records to remove.
    fn let_leases_end(&mut self, now: u64) -> Vec<LeaseWrite> {
        let mut all = Vec::new();
        // Before the first list of hosts is complete, nobody is known.
        let reviews = self.hosts.is_settled() && now.abs_diff(self.reviewed) >= REVIEW;
        if reviews {
            self.reviewed = now;
        }
        for (index, network) in self.networks.iter().filter(|_| self.port == Port::Server) {
            let Some(leases) = self.leases.networks().get(*index) else { continue };
            let known = |mac: MacAddress| network.reservation(mac).is_some() || self.hosts.is_registered(mac);
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

/// Sends an empty datagram to the discard port (RFC 863), so that the kernel asks by ARP who is there.
fn provoke_arp(from: Ipv4Addr, to: Ipv4Addr) -> io::Result<()> {
    const DISCARD: u16 = 9;
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(&[], (to, DISCARD)).map(drop)
}

fn select_indexed<'n>(networks: &'n [(usize, Network)], request: &Request<'_>) -> Option<&'n (usize, Network)> {
    let chosen = select(networks.iter().map(|(_, network)| network), request)?;
    networks.iter().find(|(_, network)| std::ptr::eq(network, chosen))
}

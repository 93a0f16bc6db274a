//! The DHCP loop of one interface and port: receive, answer, write, send.
//!
//! A thread of its own takes messages in batches. Offers leave at once; leases are collected, and all that came while
//! one write was under way are the next one. Their ACKs leave when it is on disk. So a thousand machines that power on
//! together share the store's flushes, the wake-ups and the system calls. When too many leases wait, the thread stops
//! reading, and the kernel's queue drops what does not fit, as any full queue on the way does; clients ask again.

use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use futures::poll;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::boot::HostIndex;
use crate::boot::neighbour::Cards;

use super::arp::ArpSocket;
use super::assigned::Assigned;
use super::batching::Batching;
use super::bind::open;
use super::handler::Handler;
use super::interface::interfaces;
use super::leases::Leases;
use super::log::InterfaceLog;
use super::respond::Port;
use super::socket::{BoundSockets, InterfaceSockets, ReceiveBatch};
use super::write_batch::{CommitResult, WriteBatch};

/// Leases that may wait before the worker stops reading.
const MOST_WAITING: usize = 4096;
/// Time between looks at what ended and at the interface.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
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
    /// A worker for the networks that are assigned.
    pub fn new(
        listen: ListenAddress,
        sockets: BoundSockets,
        assigned: Arc<Assigned>,
        leases: Leases,
        hosts: HostIndex,
    ) -> Self {
        let log = InterfaceLog::new(listen.interface.clone());
        let handler = Handler::new(listen.port, assigned, leases, hosts, log);
        Self { listen, sockets, handler }
    }

    /// Looks up with these which machine answers at an address.
    pub fn set_cards(&mut self, cards: Cards) {
        self.handler.cards = cards;
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
        let mut transport = Transport { sockets: sockets.register()?, arp: None, listen, down: false };
        let mut received = ReceiveBatch::default();
        let mut batch = WriteBatch::default();
        let mut under_way: Fuse<BoxFuture<'static, CommitResult>> = Fuse::terminated();
        let mut batching = Batching::default();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let reads = batch.writes.len() < MOST_WAITING && !transport.down;
            let waits = handler.waits_until();
            tokio::select! {
                biased;
                () = stop.at_once.cancelled() => return Ok(()),
                () = stop.graceful.cancelled() => break,
                written = &mut under_way => handler.finish(written, &mut batch.ready),
                _ = housekeeping.tick() => {
                    handler.follow();
                    let now = handler.now(&mut batch.writes);
                    batch.writes.extend(handler.expire_leases(now));
                    batch.writes.extend(handler.finish_conflict_checks());
                    transport.follow_interface();
                }
                () = passed(waits), if waits.is_some() => {}
                () = transport.hears(), if waits.is_some() => {}
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
            handler.probe(&mut transport.arp, &transport.listen.interface, &mut batch);
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
    handler.follow();
    let now = handler.now(&mut batch.writes);
    for (message, source) in received.messages() {
        handler.answer(now, message, source, batch);
    }
    arrived
}

/// Waits until a time.
async fn passed(until: Option<Instant>) {
    if let Some(until) = until {
        tokio::time::sleep_until(until.into()).await;
    }
}

/// The sockets of a worker, and whether its interface is there.
struct Transport {
    sockets: InterfaceSockets,
    /// Open while somebody is asked by ARP: what it heard before is no answer.
    arp: Option<ArpSocket>,
    listen: ListenAddress,
    /// Whether the interface is gone.
    down: bool,
}

impl Transport {
    /// Waits until there is something to hear by ARP; for ever when nobody is asked, or nothing can be heard.
    async fn hears(&self) {
        let heard = match &self.arp {
            Some(arp) => arp.readable().await.is_ok(),
            None => false,
        };
        if !heard {
            std::future::pending::<()>().await;
        }
    }

    fn receive_failed(&mut self, error: &io::Error, log: &mut InterfaceLog) {
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

//! Bandwidth scheduler: deployments under way before machines that begin to boot.
//!
//! Kernels, ramdisks and chunks of images take nearly all of the bandwidth. Each answer that carries one holds a permit until
//! its last byte is sent; a client without a permit waits in the queue. A rack that is powered on at once fills the queue of
//! boots, and a deployment passes by it. A client that reads too slowly while others wait loses its permit. Known hosts go
//! first, and strangers have [a share](RankShares) together: whatever they do, a known host gets its ramdisk.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::ration::{Rank, RankShares};

/// Chunks of images sent at once.
pub const DEPLOY_PERMITS: usize = 64;
/// Boot files sent at once.
pub const BOOT_PERMITS: usize = 64;
/// Boot files that may begin while deployments are under way.
pub const BOOT_PERMITS_BESIDE: usize = 8;
/// Chunks at once for one host; an agent asks for six.
const OF_A_HOST: usize = 8;
/// Boot files at once for one address; iPXE asks for one after the other.
const OF_AN_ADDRESS: usize = 2;
/// How many of one client may wait in the queue.
const WAITING_OF_A_CLIENT: usize = 16;
/// How long after its last chunk a deployment still counts as under way.
const UNDER_WAY: Duration = Duration::from_secs(2);
/// Least that is taken of a boot file while others wait, in bytes per second: with less, no ramdisk is there within the
/// time that a boot has. It is looked at after each such time.
const LEAST_RATE: u64 = 40_000;
const RATE_OVER: Duration = Duration::from_secs(60);

/// Who downloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DownloadClient {
    /// A host that is being deployed, as `namespace/name`.
    Host(String),
    /// A machine that boots.
    Machine(IpAddr),
}

impl DownloadClient {
    /// The namespace of a host.
    fn namespace(&self) -> &str {
        match self {
            Self::Host(name) => name.split_once('/').map_or("", |(namespace, _)| namespace),
            Self::Machine(_) => "",
        }
    }
}

/// The permits and who waits for them. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct DownloadScheduler(Arc<Mutex<SchedulerState>>);

/// A permit, until it is dropped.
pub struct DownloadPermit {
    scheduler: DownloadScheduler,
    client: DownloadClient,
    rank: Rank,
    left: Arc<AtomicBool>,
}

/// Too much of this client waits in the queue already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{WAITING_OF_A_CLIENT} requests from the same address wait in line already")]
pub struct QueueFull;

/// A boot file or a chunk on its way.
struct ActiveDownload {
    client: DownloadClient,
    rank: Rank,
    /// Whether its permit was given back.
    left: Arc<AtomicBool>,
    /// Bytes that were taken.
    taken: Arc<AtomicU64>,
    /// When it was looked at last, and what was taken by then.
    looked: (Instant, u64),
    /// Ends its connection.
    hangup: CancellationToken,
}

impl ActiveDownload {
    fn is_slow(&mut self, now: Instant) -> bool {
        let (since, before) = self.looked;
        let passed = now.saturating_duration_since(since);
        if passed < RATE_OVER {
            return false;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        self.looked = (now, taken);
        taken - before < LEAST_RATE.saturating_mul(passed.as_secs())
    }
}

/// One of the two queues.
struct DownloadQueue<T> {
    running: HashMap<DownloadClient, usize>,
    shares: RankShares,
    waiting: VecDeque<QueuedDownload<T>>,
}

/// Somebody in the queue.
struct QueuedDownload<T> {
    client: DownloadClient,
    rank: Rank,
    waiter: T,
}

impl<T> Default for DownloadQueue<T> {
    fn default() -> Self {
        Self { running: HashMap::new(), shares: RankShares::default(), waiting: VecDeque::new() }
    }
}

impl<T> DownloadQueue<T> {
    /// The client that goes next, when the queue has a permit for it: the best known of those that may have more, of them one
    /// of the namespace that has least, then one that has least, and of them the first in the queue.
    fn next(&mut self, permits: usize, of_a_client: usize) -> Option<QueuedDownload<T>> {
        let has = |client: &DownloadClient| self.running.get(client).copied().unwrap_or_default();
        let mut namespaces: HashMap<&str, usize> = HashMap::new();
        for (client, count) in &self.running {
            *namespaces.entry(client.namespace()).or_default() += count;
        }
        let shares = |client: &DownloadClient| match client {
            DownloadClient::Host(_) => namespaces.get(client.namespace()).copied().unwrap_or_default(),
            DownloadClient::Machine(_) => 0,
        };
        let waiting = self.waiting.iter().enumerate().filter(|(_, one)| self.shares.may_take(one.rank, permits));
        let waiting = waiting.map(|(index, one)| (one.rank, shares(&one.client), has(&one.client), index));
        let (.., index) = waiting.filter(|(_, _, count, _)| *count < of_a_client).min()?;
        let next = self.waiting.remove(index)?;
        *self.running.entry(next.client.clone()).or_default() += 1;
        self.shares.add(next.rank);
        Some(next)
    }

    /// The best known of those who wait.
    fn best_waiting(&self) -> Option<Rank> {
        self.waiting.iter().map(|one| one.rank).min()
    }

    fn leave(&mut self, client: &DownloadClient, rank: Rank) {
        let Some(count) = self.running.get_mut(client) else { return };
        *count -= 1;
        self.shares.remove(rank);
        if *count == 0 {
            self.running.remove(client);
        }
    }
}

/// Both queues, without clock and waiters' own kind.
struct Queues<T> {
    deploy: DownloadQueue<T>,
    boot: DownloadQueue<T>,
    last_chunk: Option<Instant>,
    downloads: Vec<ActiveDownload>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self {
            deploy: DownloadQueue::default(),
            boot: DownloadQueue::default(),
            last_chunk: None,
            downloads: Vec::new(),
        }
    }
}

impl<T> Queues<T> {
    fn queue(&mut self, client: &DownloadClient) -> &mut DownloadQueue<T> {
        match client {
            DownloadClient::Host(_) => &mut self.deploy,
            DownloadClient::Machine(_) => &mut self.boot,
        }
    }

    /// Whether a deployment is under way.
    fn deploying(&self, now: Instant) -> bool {
        let lately = self.last_chunk.is_some_and(|last| now < last + UNDER_WAY);
        lately || self.deploy.shares.taken() > 0 || !self.deploy.waiting.is_empty()
    }

    fn boot_permits(&self, now: Instant) -> usize {
        if self.deploying(now) { BOOT_PERMITS_BESIDE } else { BOOT_PERMITS }
    }

    /// Everybody who may go now, in order.
    fn admit(&mut self, now: Instant) -> Vec<QueuedDownload<T>> {
        let mut admitted = Vec::new();
        while let Some(next) = self.deploy.next(DEPLOY_PERMITS, OF_A_HOST) {
            admitted.push(next);
        }
        let permits = self.boot_permits(now);
        while let Some(next) = self.boot.next(permits, OF_AN_ADDRESS) {
            admitted.push(next);
        }
        admitted
    }

    /// Takes the permits of those who take next to nothing, if others wait for one who are as well known.
    fn evict_slow(&mut self, now: Instant) {
        self.downloads.retain(|one| !one.left.load(Ordering::Relaxed));
        let (boot, deploy) = (self.boot.best_waiting(), self.deploy.best_waiting());
        if boot.is_none() && deploy.is_none() {
            return;
        }
        let best = |client: &DownloadClient| if matches!(client, DownloadClient::Host(_)) { deploy } else { boot };
        let (slow, good): (Vec<_>, Vec<_>) = std::mem::take(&mut self.downloads)
            .into_iter()
            .map(|mut one| (best(&one.client).is_some_and(|best| best <= one.rank) && one.is_slow(now), one))
            .partition(|one| one.0);
        self.downloads = good.into_iter().map(|(_, one)| one).collect();
        for (_, one) in slow {
            if !one.left.swap(true, Ordering::Relaxed) {
                match &one.client {
                    DownloadClient::Machine(peer) => {
                        warn!(%peer, "closed the connection of a machine that takes its boot file too slowly while others wait");
                    }
                    DownloadClient::Host(host) => {
                        warn!(
                            %host,
                            "broke off a chunk of an image that the machine takes too slowly while others wait"
                        );
                    }
                }
                self.leave(&one.client, one.rank, now);
                one.hangup.cancel();
            }
        }
    }

    /// Takes the second permit of somebody for one who waits, has none, and is as well known: of those who have most, the
    /// one that began last. Whether there was one to take.
    fn rebalance(&mut self, now: Instant) -> bool {
        let permits = self.boot_permits(now);
        let has = |client: &DownloadClient| self.boot.running.get(client).copied().unwrap_or_default();
        let without = self.boot.waiting.iter().filter(|one| has(&one.client) == 0);
        let Some(rank) = without.map(|one| one.rank).min() else { return false };
        let makes_room = |one: &ActiveDownload| {
            let mut after = self.boot.shares;
            after.remove(one.rank);
            after.may_take(rank, permits)
        };
        let more = self.downloads.iter().enumerate().filter(|(_, one)| {
            !one.left.load(Ordering::Relaxed) && has(&one.client) > 1 && one.rank >= rank && makes_room(one)
        });
        let Some((index, _)) = more.max_by_key(|(index, one)| (has(&one.client), one.rank, *index)) else {
            return false;
        };
        let one = self.downloads.remove(index);
        one.left.store(true, Ordering::Relaxed);
        if let DownloadClient::Machine(peer) = &one.client {
            warn!(%peer, "closed the connection of a machine's second boot file: another machine that has none gets its place");
        }
        self.leave(&one.client, one.rank, now);
        one.hangup.cancel();
        true
    }

    fn leave(&mut self, client: &DownloadClient, rank: Rank, now: Instant) {
        if matches!(client, DownloadClient::Host(_)) {
            self.last_chunk = Some(now);
        }
        self.queue(client).leave(client, rank);
    }
}

type SchedulerState = Queues<oneshot::Sender<DownloadPermit>>;

impl DownloadScheduler {
    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Downloads by queue, state and rank.
    pub fn counts(&self) -> Vec<(&'static str, &'static str, Rank, usize)> {
        let state = self.state();
        // Images are for hosts only.
        let all = [("boot", &state.boot, &Rank::SHARING[..]), ("image", &state.deploy, &[Rank::Known][..])];
        let of = |(name, queue, ranks): (&'static str, &DownloadQueue<_>, &'static [Rank])| {
            let waits = |rank: Rank| {
                let its = |one: &&QueuedDownload<oneshot::Sender<DownloadPermit>>| {
                    one.rank == rank && !one.waiter.is_closed()
                };
                queue.waiting.iter().filter(its).count()
            };
            let count =
                |rank: Rank| [(name, "sent", rank, queue.shares.taken_by(rank)), (name, "waiting", rank, waits(rank))];
            ranks.iter().flat_map(move |rank| count(*rank)).collect::<Vec<_>>()
        };
        all.into_iter().flat_map(of).collect()
    }

    /// Waits for a permit for a client of this rank. Whoever stops waiting leaves the queue.
    ///
    /// # Errors
    /// Too much of this client waits already.
    pub async fn acquire(&self, client: DownloadClient, rank: Rank) -> Result<DownloadPermit, QueueFull> {
        // The appliance itself is no better than what it knows.
        let rank = rank.max(Rank::Known);
        let (sender, mut granted) = oneshot::channel();
        {
            let mut state = self.state();
            let waiting = &mut state.queue(&client).waiting;
            waiting.retain(|one| !one.waiter.is_closed());
            if waiting.iter().filter(|one| one.client == client).count() >= WAITING_OF_A_CLIENT {
                return Err(QueueFull);
            }
            waiting.push_back(QueuedDownload { client, rank, waiter: sender });
        }
        loop {
            self.admit();
            tokio::select! {
                biased;
                permit = &mut granted => match permit {
                    Ok(permit) => return Ok(permit),
                    // The sender is in the queue for as long as this waits.
                    Err(_) => std::future::pending::<()>().await,
                },
                // A deployment ends without anybody leaving a permit.
                () = tokio::time::sleep(UNDER_WAY) => {}
            }
        }
    }

    fn admit(&self) {
        let admitted = {
            let (mut state, now) = (self.state(), Instant::now());
            state.evict_slow(now);
            let mut admitted = state.admit(now);
            while state.rebalance(now) {
                admitted.extend(state.admit(now));
            }
            admitted
        };
        for QueuedDownload { client, rank, waiter } in admitted {
            // A client that does not wait any more gives it back at once: the permit comes back with the error and is dropped.
            drop(waiter.send(DownloadPermit { scheduler: self.clone(), client, rank, left: Arc::default() }));
        }
    }
}

impl Drop for DownloadPermit {
    fn drop(&mut self) {
        if !self.left.swap(true, Ordering::Relaxed) {
            self.scheduler.state().leave(&self.client, self.rank, Instant::now());
            self.scheduler.admit();
        }
    }
}

impl DownloadPermit {
    /// The answer's body, which keeps the permit until it is sent or given up. One that is taken too slowly while others wait
    /// loses it: `hangup` is cancelled, and the body is broken off.
    pub fn hold(self, body: Body, hangup: CancellationToken) -> Body {
        let taken = Arc::<AtomicU64>::default();
        let (client, rank) = (self.client.clone(), self.rank);
        let download = ActiveDownload {
            client,
            rank,
            left: self.left.clone(),
            taken: taken.clone(),
            looked: (Instant::now(), 0),
            hangup: hangup.clone(),
        };
        self.scheduler.state().downloads.push(download);
        Body::new(PermitBody { body, taken, hangup, _permit: self })
    }
}

struct PermitBody {
    body: Body,
    taken: Arc<AtomicU64>,
    hangup: CancellationToken,
    _permit: DownloadPermit,
}

impl HttpBody for PermitBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.hangup.is_cancelled() {
            return Poll::Ready(Some(Err(axum::Error::new("taken too slowly"))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.taken.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;

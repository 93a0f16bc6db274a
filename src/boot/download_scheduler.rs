//! Bandwidth scheduler: deployments under way before machines that begin to boot.
//!
//! Kernels, ramdisks and chunks of images take nearly all of the bandwidth. Each answer that carries one holds a permit until
//! its last byte is sent; a client without a permit waits in the queue. A rack that is powered on at once fills the queue of
//! boots, and a deployment passes by it. A client that reads too slowly while others wait loses its permit. Known hosts go
//! first, and strangers have [a share](Shares) together: whatever they do, a known host gets its ramdisk.

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

use crate::ration::{Rank, Shares};

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
pub struct DownloadScheduler(Arc<Mutex<State>>);

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
struct Download {
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

impl Download {
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
struct Queue<T> {
    running: HashMap<DownloadClient, usize>,
    shares: Shares,
    waiting: VecDeque<Waiter<T>>,
}

/// Somebody in the queue.
struct Waiter<T> {
    client: DownloadClient,
    rank: Rank,
    waiter: T,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { running: HashMap::new(), shares: Shares::default(), waiting: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    /// The client that goes next, when the queue has a permit for it: the best known of those that may have more, of them one
    /// of the namespace that has least, then one that has least, and of them the first in the queue.
    fn next(&mut self, permits: usize, of_a_client: usize) -> Option<Waiter<T>> {
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
    deploy: Queue<T>,
    boot: Queue<T>,
    last_chunk: Option<Instant>,
    downloads: Vec<Download>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { deploy: Queue::default(), boot: Queue::default(), last_chunk: None, downloads: Vec::new() }
    }
}

impl<T> Queues<T> {
    fn queue(&mut self, client: &DownloadClient) -> &mut Queue<T> {
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
    fn admit(&mut self, now: Instant) -> Vec<Waiter<T>> {
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
        let makes_room = |one: &Download| {
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

type State = Queues<oneshot::Sender<DownloadPermit>>;

impl DownloadScheduler {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Downloads by lane, state and rank.
    pub fn counts(&self) -> Vec<(&'static str, &'static str, Rank, usize)> {
        let state = self.state();
        // Images are for hosts only.
        let all = [("boot", &state.boot, &Rank::SHARING[..]), ("image", &state.deploy, &[Rank::Known][..])];
        let of = |(lane, queue, ranks): (&'static str, &Queue<_>, &'static [Rank])| {
            let waits = |rank: Rank| {
                let its = |one: &&Waiter<oneshot::Sender<DownloadPermit>>| one.rank == rank && !one.waiter.is_closed();
                queue.waiting.iter().filter(its).count()
            };
            let count =
                |rank: Rank| [(lane, "sent", rank, queue.shares.taken_by(rank)), (lane, "waiting", rank, waits(rank))];
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
            waiting.push_back(Waiter { client, rank, waiter: sender });
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
        for Waiter { client, rank, waiter } in admitted {
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
        let download = Download {
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
mod tests {
    use futures::FutureExt;

    use super::*;

    fn machine(number: u8) -> DownloadClient {
        DownloadClient::Machine([10, 0, 0, number].into())
    }

    fn host(number: u8) -> DownloadClient {
        DownloadClient::Host(format!("rack/{number}"))
    }

    /// Somebody in the queue who is known.
    fn waits<T>(client: DownloadClient, waiter: T) -> Waiter<T> {
        Waiter { client, rank: Rank::Known, waiter }
    }

    fn stranger(number: u8) -> Waiter<u8> {
        Waiter { client: DownloadClient::Machine([10, 9, 9, number].into()), rank: Rank::Stranger, waiter: number }
    }

    #[test]
    fn deployments_go_first_and_boots_take_what_they_leave() {
        let now = Instant::now();
        let mut table = Queues::<u8>::default();
        for number in 0..200 {
            table.boot.waiting.push_back(waits(machine(number), number));
        }
        assert_eq!(table.admit(now).len(), BOOT_PERMITS);
        // Five hosts with four chunks each pass by the 152 that wait.
        for number in 0..20 {
            table.deploy.waiting.push_back(waits(host(number % 5), number));
        }
        let admitted = table.admit(now);
        assert_eq!(admitted.len(), 20);
        assert!(admitted.iter().all(|one| matches!(one.client, DownloadClient::Host(_))));
        // Boots that end are not followed by others while chunks are under way, until few are left.
        let until_few = (BOOT_PERMITS - BOOT_PERMITS_BESIDE) as u8;
        for number in 0..until_few {
            table.leave(&machine(number), Rank::Known, now);
            assert!(table.admit(now).is_empty(), "{number}");
        }
        table.leave(&machine(until_few), Rank::Known, now);
        let next: Vec<_> = table.admit(now).into_iter().map(|one| one.waiter).collect();
        assert_eq!(next, [BOOT_PERMITS as u8], "in their order");
        // Nor between two chunks; but soon after the last.
        for number in 0..20 {
            table.leave(&host(number % 5), Rank::Known, now);
        }
        assert!(table.admit(now + UNDER_WAY / 2).is_empty());
        assert_eq!(table.admit(now + UNDER_WAY).len(), BOOT_PERMITS - BOOT_PERMITS_BESIDE);
    }

    #[test]
    fn no_client_takes_the_places_of_others() {
        let now = Instant::now();
        let mut table = Queues::<u8>::default();
        for number in 0..100 {
            table.deploy.waiting.push_back(waits(host(1), number));
            table.boot.waiting.push_back(waits(machine(1), number));
        }
        table.deploy.waiting.push_back(waits(host(2), 100));
        let admitted = table.admit(now);
        let of = |client: DownloadClient| admitted.iter().filter(|one| one.client == client).count();
        assert_eq!((of(host(1)), of(host(2)), of(machine(1))), (OF_A_HOST, 1, OF_AN_ADDRESS));
        table.leave(&host(1), Rank::Known, now);
        assert_eq!(table.admit(now).len(), 1);
    }

    #[test]
    fn who_has_none_goes_before_who_has_some() {
        let now = Instant::now();
        let mut table = Queues::<u8>::default();
        // Machine 1 asked a hundred times before the others came.
        table.boot.waiting.extend((0..100).map(|number| waits(machine(1), number)));
        assert_eq!(table.admit(now).len(), OF_AN_ADDRESS);
        for number in 2..=BOOT_PERMITS as u8 {
            table.boot.waiting.push_back(waits(machine(number), number));
        }
        assert_eq!(table.admit(now).len(), BOOT_PERMITS - OF_AN_ADDRESS);
        table.leave(&machine(1), Rank::Known, now);
        assert_eq!(table.admit(now)[0].client, machine(BOOT_PERMITS as u8));
    }

    #[test]
    fn who_has_two_gives_one_to_who_has_none() {
        // deployments under way, rank of those who have two, of who comes, whether one gives way
        let rows = [
            (false, Rank::Known, Rank::Known, true),
            (false, Rank::Untold, Rank::Untold, true),
            (false, Rank::Known, Rank::Stranger, false),
            (true, Rank::Known, Rank::Known, false),
        ];
        for (deploying, rank, comes, gives) in rows {
            let now = Instant::now();
            let mut table = Queues::<u8>::default();
            let mut ends = Vec::new();
            let permits = if rank == Rank::Known { BOOT_PERMITS } else { Shares::of_unknown(BOOT_PERMITS) };
            for number in 0..permits as u8 {
                let client = machine(number / 2);
                table.boot.waiting.push_back(Waiter { client: client.clone(), rank, waiter: number });
                assert_eq!(table.admit(now).len(), 1);
                let (hangup, left) = (CancellationToken::new(), Arc::<AtomicBool>::default());
                let (taken, looked) = (Arc::default(), (now, 0));
                table.downloads.push(Download { client, rank, left, taken, looked, hangup: hangup.clone() });
                ends.push(hangup);
            }
            if deploying {
                table.deploy.waiting.push_back(waits(host(1), 0));
                assert_eq!(table.admit(now).len(), 1);
            }
            // Those who have some wait for more, which ends nobody's.
            table.boot.waiting.push_back(Waiter { client: machine(0), rank, waiter: 250 });
            assert!(table.admit(now).is_empty() && !table.rebalance(now));
            table.boot.waiting.push_back(Waiter { client: machine(200), rank: comes, waiter: 251 });
            assert!(table.admit(now).is_empty());
            assert_eq!(table.rebalance(now), gives, "{deploying} {rank:?} {comes:?}");
            let ended: Vec<_> = (0..ends.len()).filter(|index| ends[*index].is_cancelled()).collect();
            let last = if gives { vec![ends.len() - 1] } else { Vec::new() };
            assert_eq!(ended, last, "the one that began last");
            let next: Vec<_> = table.admit(now).into_iter().map(|one| one.waiter).collect();
            assert_eq!(next, if gives { vec![251] } else { Vec::new() }, "and not who had some");
            assert!(!table.rebalance(now));
        }
    }

    #[test]
    fn who_takes_next_to_nothing_loses_its_place_when_others_wait() {
        let (begin, enough) = (Instant::now(), LEAST_RATE * RATE_OVER.as_secs());
        let mut table = Queues::<u8>::default();
        for number in 0..BOOT_PERMITS as u8 {
            table.boot.waiting.push_back(waits(machine(number), number));
        }
        assert_eq!(table.admit(begin).len(), BOOT_PERMITS);
        let downloads = |number| Download {
            client: machine(number),
            rank: Rank::Known,
            left: Arc::default(),
            taken: Arc::default(),
            looked: (begin, 0),
            hangup: CancellationToken::new(),
        };
        table.downloads = (0..BOOT_PERMITS as u8).map(downloads).collect();
        let seen: Vec<_> = table.downloads.iter().map(|one| (one.taken.clone(), one.hangup.clone())).collect();
        let cut = || seen.iter().enumerate().filter(|(_, (_, hangup))| hangup.is_cancelled()).map(|(index, _)| index);
        // Nobody minds as long as nobody waits.
        let now = begin + RATE_OVER;
        table.evict_slow(now);
        assert_eq!(cut().count(), 0);
        table.boot.waiting.extend((100..103).map(|number| waits(machine(number), number)));
        for (taken, _) in &seen[2..] {
            taken.fetch_add(enough, Ordering::Relaxed);
        }
        table.evict_slow(now);
        assert_eq!(cut().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(table.admit(now).len(), 2);
        // What one took before counts only once.
        for (taken, _) in &seen[3..] {
            taken.fetch_add(enough, Ordering::Relaxed);
        }
        table.evict_slow(now + RATE_OVER / 2);
        assert_eq!(cut().count(), 2, "not before the time is over");
        table.evict_slow(now + RATE_OVER);
        assert_eq!(cut().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((table.boot.shares.taken(), table.downloads.len()), (BOOT_PERMITS - 1, BOOT_PERMITS - 3));
    }

    #[test]
    fn hosts_of_one_namespace_keep_no_others_waiting_however_many_and_slow_they_are() {
        let begin = Instant::now();
        let of = |namespace: &str, number: usize| DownloadClient::Host(format!("{namespace}/{number}"));
        let mut table = Queues::<u8>::default();
        let all = || (0..100).flat_map(|number| std::iter::repeat_n(number, OF_A_HOST));
        table.deploy.waiting.extend(all().map(|number| waits(of("bad", number), 0)));
        assert_eq!(table.admit(begin).len(), DEPLOY_PERMITS);
        let taking: Vec<_> = table.deploy.running.keys().cloned().collect();
        for client in taking {
            for _ in 0..table.deploy.running[&client] {
                table.downloads.push(Download {
                    client: client.clone(),
                    rank: Rank::Known,
                    left: Arc::default(),
                    taken: Arc::default(),
                    looked: (begin, 0),
                    hangup: CancellationToken::new(),
                });
            }
        }
        // It came last, and has what is left of permits before all that wait.
        table.deploy.waiting.extend((0..OF_A_HOST).map(|_| waits(of("good", 1), 1)));
        table.leave(&of("bad", 0), Rank::Known, begin);
        assert_eq!(table.admit(begin).iter().map(|one| one.waiter).collect::<Vec<_>>(), [1]);
        table.evict_slow(begin + RATE_OVER);
        assert!(table.downloads.is_empty(), "nobody took anything");
        let next: Vec<_> = table.admit(begin + RATE_OVER).iter().map(|one| one.waiter).collect();
        assert_eq!(next.iter().filter(|one| **one == 1).count(), OF_A_HOST - 1);
    }

    #[tokio::test]
    async fn a_place_that_was_taken_away_is_not_given_back_a_second_time() {
        let scheduler = DownloadScheduler::default();
        let (first, second) = (
            scheduler.acquire(machine(1), Rank::Known).await.expect("room"),
            scheduler.acquire(machine(1), Rank::Known).await.expect("room"),
        );
        let hangup = CancellationToken::new();
        let mut body = first.hold(Body::from("boot"), hangup.clone());
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert!(frame.is_some_and(|frame| frame.is_ok()));
        {
            let mut state = scheduler.state();
            assert_eq!(state.downloads[0].taken.load(Ordering::Relaxed), 4);
            let (waiter, _granted) = oneshot::channel();
            state.boot.waiting.push_back(waits(machine(1), waiter));
            state.evict_slow(Instant::now() + RATE_OVER);
            assert_eq!((state.boot.shares.taken(), state.downloads.len()), (1, 0));
            state.boot.waiting.clear();
        }
        assert!(hangup.is_cancelled());
        drop(body);
        assert_eq!(scheduler.state().boot.shares.taken(), 1);
        drop(second);
        assert_eq!(scheduler.state().boot.shares.taken(), 0);
    }

    #[tokio::test]
    async fn the_queue_is_not_filled_by_one() {
        let scheduler = DownloadScheduler::default();
        let mut held = Vec::new();
        for _ in 0..OF_AN_ADDRESS {
            held.push(scheduler.acquire(machine(1), Rank::Known).await.expect("room"));
        }
        let mut waiting: Vec<_> =
            (0..WAITING_OF_A_CLIENT).map(|_| Box::pin(scheduler.acquire(machine(1), Rank::Known))).collect();
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
        assert_eq!(scheduler.acquire(machine(1), Rank::Known).await.err(), Some(QueueFull));
        scheduler.acquire(machine(2), Rank::Known).await.expect("room");
        // Who went away waits no more.
        waiting.pop();
        assert!(scheduler.acquire(machine(1), Rank::Known).now_or_never().is_none());
    }

    #[tokio::test]
    async fn places_come_back_when_bodies_end_and_when_nobody_waits_any_more() {
        let scheduler = DownloadScheduler::default();
        let mut held = Vec::new();
        for number in 0..BOOT_PERMITS {
            let permit = scheduler.acquire(machine(number as u8), Rank::Known).await.expect("room");
            held.push(permit.hold(Body::from("boot"), CancellationToken::new()));
        }
        let mut waits = Box::pin(scheduler.acquire(machine(100), Rank::Known));
        let mut gives_up = Box::pin(scheduler.acquire(machine(101), Rank::Known));
        let mut last = Box::pin(scheduler.acquire(machine(102), Rank::Known));
        assert!((&mut waits).now_or_never().is_none() && (&mut gives_up).now_or_never().is_none());
        assert!((&mut last).now_or_never().is_none());
        drop(gives_up);
        held.pop();
        let _first = waits.await;
        held.pop();
        let _second = last.await;
        // Without anybody leaving a permit, boots go on when the deployment is over.
        let chunk = scheduler.acquire(host(1), Rank::Known).await.expect("room");
        held.truncate(BOOT_PERMITS_BESIDE);
        let mut beside = Box::pin(scheduler.acquire(machine(103), Rank::Known));
        assert!((&mut beside).now_or_never().is_none());
        drop(chunk);
        assert!((&mut beside).now_or_never().is_none());
        beside.await.expect("room");
    }

    #[test]
    fn strangers_have_a_quarter_together_and_the_known_go_first() {
        let (now, quarter) = (Instant::now(), BOOT_PERMITS / 4);
        let mut table = Queues::<u8>::default();
        // Thirty strangers were first, and take as much as one may.
        for number in 0..60 {
            table.boot.waiting.push_back(stranger(number % 30));
        }
        assert_eq!(table.admit(now).len(), quarter);
        for number in 0..BOOT_PERMITS as u8 {
            table.boot.waiting.push_back(waits(machine(number), number));
        }
        let admitted = table.admit(now);
        assert_eq!(admitted.len(), BOOT_PERMITS - quarter);
        assert!(admitted.iter().all(|one| one.rank == Rank::Known));
        // A permit of a known host's goes to the next one of those, however long strangers wait.
        table.leave(&machine(0), Rank::Known, now);
        let next = table.admit(now);
        assert_eq!((next.len(), next[0].rank), (1, Rank::Known));
        // While a deployment is under way there are few permits; what strangers hold of before does not count against them.
        let mut table = Queues::<u8>::default();
        table.boot.waiting.extend((0..30).map(stranger));
        assert_eq!(table.admit(now).len(), quarter);
        table.last_chunk = Some(now);
        table.boot.waiting.push_back(waits(machine(1), 1));
        assert_eq!(table.admit(now).len(), 1);
    }

    #[test]
    fn a_slow_host_loses_its_place_to_no_stranger() {
        let begin = Instant::now();
        let mut table = Queues::<u8>::default();
        table.boot.waiting.push_back(waits(machine(1), 1));
        table.boot.waiting.extend((0..30).map(stranger));
        table.admit(begin);
        let downloads = |client: DownloadClient, rank| Download {
            client,
            rank,
            left: Arc::default(),
            taken: Arc::default(),
            looked: (begin, 0),
            hangup: CancellationToken::new(),
        };
        table.downloads = vec![downloads(machine(1), Rank::Known), downloads(stranger(0).client, Rank::Stranger)];
        let cut: Vec<_> = table.downloads.iter().map(|one| one.hangup.clone()).collect();
        table.evict_slow(begin + RATE_OVER);
        assert_eq!(cut.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(), [false, true]);
        // To another host it does.
        table.boot.waiting.push_back(waits(machine(2), 2));
        table.evict_slow(begin + RATE_OVER);
        assert!(cut[0].is_cancelled());
    }

    #[tokio::test]
    async fn a_known_host_gets_its_ramdisk_while_strangers_do_their_worst() {
        let scheduler = DownloadScheduler::default();
        // Ten strangers with ten addresses each, as much at once as they may.
        let address = |number: u8| DownloadClient::Machine([10, 9, 9, number].into());
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for number in 0..200_u8 {
            let mut enters = Box::pin(scheduler.acquire(address(number % 100), Rank::Stranger));
            match (&mut enters).now_or_never() {
                Some(permit) => held.push(permit.expect("room")),
                None => waiting.push(enters),
            }
        }
        let mut hosts = Vec::new();
        for number in 0..Shares::of_unknown(BOOT_PERMITS) as u8 {
            hosts.push(
                scheduler.acquire(machine(number), Rank::Known).now_or_never().expect("a host waits for strangers"),
            );
        }
        assert_eq!(held.len(), Shares::of_strangers(BOOT_PERMITS));
    }
}

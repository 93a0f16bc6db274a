//! Connection limits of boot HTTP: who may have one, and who gives way when there are too many.
//!
//! Whoever opens the most gives way first: of many addresses each keeps as much as the others, whatever one of them does.
//! An address that is known may be forged as well as any other, so this holds for them, too.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::ration::{Rank, RankShares};

/// Connections at once from one address. iPXE opens one or two.
pub(super) const MAX_OF_AN_ADDRESS: usize = 64;
/// How long a connection of a known host waits for a slot. Firmware waits as long for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Of so many slots one more connection may wait.
const SLOTS_TO_ONE_WAITING: usize = 8;

/// Connections. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct BootConnections(Arc<Inner>);

struct Inner {
    slots: usize,
    // std's lock: held for a look, never across an await.
    table: Mutex<BootConnectionTable>,
    freed: Notify,
}

#[derive(Default)]
struct BootConnectionTable {
    addresses: HashMap<IpAddr, usize>,
    shares: RankShares,
    open: HashMap<u64, OpenConnection>,
    waiting: HashMap<u64, QueuedConnection>,
    last: u64,
}

/// A connection that has a slot.
struct OpenConnection {
    address: IpAddr,
    rank: Rank,
    /// Whether a request is answered, or the next one has not come yet.
    busy: bool,
    /// Since when: a number that grows.
    since: u64,
    end: CancellationToken,
}

/// A connection that waits for a slot.
struct QueuedConnection {
    address: IpAddr,
    evicted: CancellationToken,
}

/// A connection that is counted until the last clone is dropped.
#[derive(Clone)]
pub(super) struct ConnectionPermit(Arc<PermitInner>);

struct PermitInner {
    connections: BootConnections,
    number: u64,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConnectionRefused {
    /// [`MAX_OF_AN_ADDRESS`].
    #[error("there are {MAX_OF_AN_ADDRESS} from this address")]
    Address,
    /// The share of this rank.
    #[error("too many are busy")]
    Busy,
    /// Those that wait for a slot.
    #[error("too many are busy, and too many wait")]
    QueueFull,
}

impl BootConnectionTable {
    /// The slot that a newcomer gets when there is none left for it. Never that of somebody better known.
    ///
    /// First of those who have more than their part, then of those who are asking for nothing now, then of who is worse known,
    /// then of who has most; and of these whose it is for longest.
    fn victim(&self, address: IpAddr, rank: Rank, slots: usize) -> Option<u64> {
        let has = |address: &IpAddr| self.addresses.get(address).copied().unwrap_or_default();
        let own = has(&address);
        let part = slots / (self.addresses.len() + usize::from(own == 0)).max(1);
        let others = self.open.iter().filter(|(_, other)| other.rank >= rank);
        let judged = others.filter_map(|(number, other)| {
            let theirs = has(&other.address);
            // From who has no more than the newcomer will have, nothing is taken: the two would only change slots.
            let may = match (other.busy, other.rank > rank) {
                (false, true) => true,
                (false, false) => theirs >= own,
                (true, true) => theirs > own,
                (true, false) => theirs > own + 1,
            };
            let over = theirs > part.max(own + 1);
            may.then_some(((over, !other.busy, other.rank, theirs, Reverse(other.since)), *number))
        });
        judged.max().map(|(_, number)| number)
    }

    /// Takes a slot back. Whether somebody had it.
    fn remove(&mut self, number: u64) -> Option<OpenConnection> {
        let taken = self.open.remove(&number)?;
        self.shares.remove(taken.rank);
        if let Some(count) = self.addresses.get_mut(&taken.address) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&taken.address);
            }
        }
        Some(taken)
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A slot among those that wait; the address that has most of them there gives way.
    fn wait(&mut self, address: IpAddr, most: usize) -> Result<(u64, CancellationToken), ConnectionRefused> {
        if self.waiting.len() >= most {
            let mut count: HashMap<IpAddr, usize> = HashMap::new();
            self.waiting.values().for_each(|one| *count.entry(one.address).or_default() += 1);
            let has = |address: &IpAddr| count.get(address).copied().unwrap_or_default();
            let others = self.waiting.iter().filter(|(_, one)| has(&one.address) > has(&address) + 1);
            let other = others.max_by_key(|(number, one)| (has(&one.address), Reverse(**number)));
            let other = other.map(|(number, _)| *number).ok_or(ConnectionRefused::QueueFull)?;
            if let Some(one) = self.waiting.remove(&other) {
                one.evicted.cancel();
            }
        }
        let (number, evicted) = (self.next_number(), CancellationToken::new());
        self.waiting.insert(number, QueuedConnection { address, evicted: evicted.clone() });
        Ok((number, evicted))
    }
}

impl BootConnections {
    /// For so many connections, those that wait for a slot included.
    pub fn with_limit(connections: usize) -> Self {
        let waiting = connections / (SLOTS_TO_ONE_WAITING + 1);
        Self::new((connections - waiting).max(1))
    }

    /// As many slots, none taken.
    fn new(slots: usize) -> Self {
        Self(Arc::new(Inner { slots, table: Mutex::default(), freed: Notify::new() }))
    }

    /// A slot for a connection, which `end` ends. When there is none, that of somebody who has more of them, or does
    /// nothing with it; never of somebody better known.
    pub fn admit(
        &self,
        address: IpAddr,
        rank: Rank,
        end: &CancellationToken,
    ) -> Result<ConnectionPermit, ConnectionRefused> {
        // The appliance itself is no better than what it knows.
        let rank = rank.max(Rank::Known);
        let mut table = self.table();
        if table.addresses.get(&address).is_some_and(|count| *count >= MAX_OF_AN_ADDRESS) {
            return Err(ConnectionRefused::Address);
        }
        if !table.shares.may_take(rank, self.0.slots) {
            let number = table.victim(address, rank, self.0.slots).ok_or(ConnectionRefused::Busy)?;
            if let Some(other) = table.remove(number) {
                other.end.cancel();
            }
        }
        *table.addresses.entry(address).or_default() += 1;
        table.shares.add(rank);
        let number = table.next_number();
        table.open.insert(number, OpenConnection { address, rank, busy: false, since: number, end: end.clone() });
        drop(table);
        Ok(ConnectionPermit(Arc::new(PermitInner { connections: self.clone(), number })))
    }

    /// Waits for a slot, for so long.
    ///
    /// # Errors
    /// Too many wait, or it took too long.
    pub async fn wait(
        &self,
        address: IpAddr,
        rank: Rank,
        end: &CancellationToken,
        patience: Duration,
    ) -> Result<ConnectionPermit, ConnectionRefused> {
        let (number, evicted) = self.table().wait(address, self.0.slots / SLOTS_TO_ONE_WAITING)?;
        let _queued = QueueGuard { connections: self, number };
        let admitted = async {
            loop {
                self.0.freed.notified().await;
                match self.admit(address, rank, end) {
                    Err(ConnectionRefused::Busy) => {}
                    other => return other,
                }
            }
        };
        tokio::select! {
            biased;
            () = evicted.cancelled() => Err(ConnectionRefused::QueueFull),
            admitted = tokio::time::timeout(patience, admitted) => admitted.unwrap_or(Err(ConnectionRefused::Busy)),
        }
    }

    /// Connections by state and rank.
    pub fn counts(&self) -> Vec<(&'static str, Rank, usize)> {
        let table = self.table();
        let open = |rank: Rank, busy: bool| {
            let its = |taken: &&OpenConnection| taken.rank == rank && taken.busy == busy;
            table.open.values().filter(its).count()
        };
        let served = Rank::SHARING
            .into_iter()
            .flat_map(|rank| [("answered", rank, open(rank, true)), ("idle", rank, open(rank, false))]);
        // Only the known wait.
        served.chain([("waiting", Rank::Known, table.waiting.len())]).collect()
    }

    fn table(&self) -> MutexGuard<'_, BootConnectionTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct QueueGuard<'g> {
    connections: &'g BootConnections,
    number: u64,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        self.connections.table().waiting.remove(&self.number);
    }
}

impl PermitInner {
    fn set_busy(&self, busy: bool) {
        let mut table = self.connections.table();
        let since = table.next_number();
        if let Some(taken) = table.open.get_mut(&self.number) {
            (taken.busy, taken.since) = (busy, since);
        }
    }
}

impl Drop for PermitInner {
    fn drop(&mut self) {
        self.connections.table().remove(self.number);
        // Also when its slot was given to another: who was woken up looks for himself.
        self.connections.0.freed.notify_one();
    }
}

impl ConnectionPermit {
    /// Its request's head has come.
    pub fn begin_request(&self) -> ActiveRequest {
        self.0.set_busy(true);
        ActiveRequest(self.0.clone())
    }
}

/// A request that is answered; when it is dropped, the connection waits for the next one.
pub(super) struct ActiveRequest(Arc<PermitInner>);

impl ActiveRequest {
    /// The answer, which is under way until its body is sent.
    pub fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| Body::new(ActiveBody { body, _asked: self }))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.set_busy(false);
    }
}

struct ActiveBody {
    body: Body,
    _asked: ActiveRequest,
}

impl HttpBody for ActiveBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
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
    use super::*;

    fn admit(
        connections: &BootConnections,
        last: u8,
        rank: Rank,
    ) -> Result<(ConnectionPermit, CancellationToken), ConnectionRefused> {
        let end = CancellationToken::new();
        connections.admit([10, 0, 0, last].into(), rank, &end).map(|permit| (permit, end))
    }

    #[test]
    fn connections_are_counted_by_address() {
        let connections = BootConnections::new(1000);
        let mut some: Vec<_> =
            (0..MAX_OF_AN_ADDRESS).map(|_| admit(&connections, 1, Rank::Known).expect("room")).collect();
        assert_eq!(admit(&connections, 1, Rank::Known).err(), Some(ConnectionRefused::Address));
        assert!(admit(&connections, 2, Rank::Known).is_ok());
        some.pop();
        assert!(admit(&connections, 1, Rank::Known).is_ok());
        drop(some);
        let table = connections.table();
        assert!(table.addresses.is_empty() && table.open.is_empty() && table.shares.taken() == 0);
    }

    #[test]
    fn who_has_not_asked_for_longest_gives_way_to_who_is_as_well_known() {
        let connections = BootConnections::new(8);
        let busy = admit(&connections, 1, Rank::Stranger).expect("room");
        let asked = busy.0.begin_request();
        let idle = admit(&connections, 2, Rank::Stranger).expect("room");
        // Strangers' quarter is full.
        let third = admit(&connections, 3, Rank::Stranger).expect("in the place of the idle one");
        assert!(idle.1.is_cancelled() && !busy.1.is_cancelled());
        let third_asked = third.0.begin_request();
        assert_eq!(admit(&connections, 4, Rank::Stranger).err(), Some(ConnectionRefused::Busy), "both are busy");
        // Between two requests it gives way again.
        drop(third_asked);
        let fourth = admit(&connections, 4, Rank::Stranger).expect("room");
        assert!(third.1.is_cancelled());
        // The known take all the rest, then the strangers' who do not ask, then their own.
        let known: Vec<_> = (10..16).map(|last| admit(&connections, last, Rank::Known).expect("room")).collect();
        assert!(!fourth.1.is_cancelled());
        let _one = admit(&connections, 20, Rank::Known).expect("the stranger's place");
        assert!(fourth.1.is_cancelled() && known.iter().all(|one| !one.1.is_cancelled()));
        let _other = admit(&connections, 21, Rank::Known).expect("the place of the first");
        assert!(known[0].1.is_cancelled() && !busy.1.is_cancelled());
        drop((idle, third, fourth));
        assert_eq!(connections.table().shares.taken(), 8, "who lost a place gives none back");
        drop(asked);
    }

    /// All of them busy: as many known addresses, each with so many connections.
    fn busy(
        connections: &BootConnections,
        addresses: u8,
        each: usize,
    ) -> Vec<(ConnectionPermit, ActiveRequest, CancellationToken)> {
        let mut taken = Vec::new();
        for last in 0..addresses {
            for _ in 0..each {
                let (permit, end) = admit(connections, last, Rank::Known).expect("room");
                let asked = permit.begin_request();
                taken.push((permit, asked, end));
            }
        }
        taken
    }

    fn ended(taken: &[(ConnectionPermit, ActiveRequest, CancellationToken)]) -> Vec<usize> {
        (0..taken.len()).filter(|index| taken[*index].2.is_cancelled()).collect()
    }

    #[test]
    fn when_all_are_busy_the_address_with_most_gives_way_so_that_each_keeps_a_part() {
        // slots, addresses that have them, the newcomer's own before, whether it gets one more
        let rows = [(64, 8, 0, true), (64, 8, 4, true), (64, 8, 6, false), (64, 64, 0, false), (48, 24, 0, true)];
        for (slots, addresses, own, gets) in rows {
            let connections = BootConnections::new(slots);
            let each = (slots - own) / usize::from(addresses);
            let mine: Vec<_> = (0..own).map(|_| admit(&connections, 200, Rank::Known).expect("room")).collect();
            let asked: Vec<_> = mine.iter().map(|(permit, _)| permit.begin_request()).collect();
            let taken = busy(&connections, addresses, each);
            let fills: Vec<_> = (0..slots - own - taken.len())
                .map(|_| {
                    admit(&connections, 202, Rank::Known)
                        .map(|(permit, end)| (permit.begin_request(), permit, end))
                        .expect("room")
                })
                .collect();
            let got = admit(&connections, 200, Rank::Known);
            assert_eq!(got.is_ok(), gets, "{slots} {addresses} {own}");
            assert!(mine.iter().all(|(_, end)| !end.is_cancelled()), "nobody ends his own");
            let all = ended(&taken).len() + fills.iter().filter(|(_, _, end)| end.is_cancelled()).count();
            assert_eq!(all, usize::from(gets), "{slots} {addresses} {own}");
            drop(asked);
        }
    }

    #[test]
    fn an_attackers_further_connections_end_his_own_and_no_honest_ones() {
        let connections = BootConnections::new(96);
        let taken = busy(&connections, 2, 48);
        // An honest machine gets on, asks nothing for a while, and has its slot still after all that they open more.
        let (honest, end) = admit(&connections, 100, Rank::Known).expect("in the place of one of theirs");
        assert_eq!(ended(&taken).len(), 1);
        let mut more = Vec::new();
        for number in 0..200 {
            more.push(admit(&connections, number % 2, Rank::Known));
            assert!(!end.is_cancelled(), "{number}");
        }
        // Nor do fresh addresses of theirs, as long as others have more.
        for last in 2..10 {
            more.push(admit(&connections, last, Rank::Known));
            assert!(more.last().is_some_and(Result::is_ok) && !end.is_cancelled(), "{last}");
        }
        drop((honest, taken));
    }

    #[test]
    fn a_known_host_has_its_first_place_before_a_stranger_who_is_busy() {
        let connections = BootConnections::new(8);
        let strangers: Vec<_> = (0..2).map(|last| admit(&connections, last, Rank::Stranger).expect("room")).collect();
        let asked: Vec<_> = strangers.iter().map(|(permit, _)| permit.begin_request()).collect();
        let known: Vec<_> = (10..16).map(|last| admit(&connections, last, Rank::Known).expect("room")).collect();
        let known_asked: Vec<_> = known.iter().map(|(permit, _)| permit.begin_request()).collect();
        let _first = admit(&connections, 20, Rank::Known).expect("a stranger's place");
        assert!(strangers[0].1.is_cancelled() && known.iter().all(|(_, end)| !end.is_cancelled()));
        assert_eq!(
            admit(&connections, 3, Rank::Stranger).err(),
            Some(ConnectionRefused::Busy),
            "but not the other way round"
        );
        drop((asked, known_asked));
    }

    #[tokio::test]
    async fn known_hosts_wait_for_a_place_in_a_line_that_no_address_fills() {
        let connections = BootConnections::new(32);
        let mut taken = busy(&connections, 32, 1);
        let token = CancellationToken::new();
        let wait_for = |last: u8, patience| {
            let (connections, token) = (connections.clone(), token.clone());
            let address = [10, 0, 0, last].into();
            tokio::spawn(async move { connections.wait(address, Rank::Known, &token, patience).await.map(drop) })
        };
        let wait = |last| wait_for(last, PATIENCE);
        let in_line = async |wanted: usize| {
            while connections.table().waiting.len() != wanted {
                tokio::task::yield_now().await;
            }
        };
        let greedy: Vec<_> = (0..4).map(|_| wait(100)).collect();
        in_line(4).await;
        assert_eq!(wait(100).await.expect("no panic").err(), Some(ConnectionRefused::QueueFull), "it has most of them");
        let honest = wait(101);
        while connections.table().waiting.values().all(|one| one.address != IpAddr::from([10, 0, 0, 101])) {
            tokio::task::yield_now().await;
        }
        in_line(4).await;
        // Places become free: those in line get them, one after the other.
        taken.clear();
        assert_eq!(honest.await.expect("no panic"), Ok(()));
        let mut got = Vec::new();
        for one in greedy {
            got.push(one.await.expect("no panic"));
        }
        assert_eq!(got.iter().filter(|got| **got == Err(ConnectionRefused::QueueFull)).count(), 1, "{got:?}");
        // Nobody waits for ever.
        let taken = busy(&connections, 32, 1);
        assert_eq!(wait_for(100, Duration::from_millis(1)).await.expect("no panic"), Err(ConnectionRefused::Busy));
        assert!(connections.table().waiting.is_empty());
        drop(taken);
    }
}

//! Connection limits of the API listener.
//!
//! There are so many connections in all, so many from one address, and half of them at most for newcomers: clients that
//! have not authenticated yet.
//!
//! A connection begins as a newcomer's. One more of them is always let in, and another goes for it: one of a
//! [rank](crate::ration::Rank) that has more than its share, and there the oldest one from the address that has most of
//! them. So a known host's agent has the time to show who it is however many addresses strangers have, and so has whoever
//! comes from an address of their own while there are fewer of those than slots.
//!
//! Callers, who have authenticated, have three quarters at most. One more of them is let in as well, and another one goes:
//! the oldest of the caller who has most, by [`caller_shares`]. So whoever has one token, and many addresses, keeps nobody out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio_util::sync::CancellationToken;

use super::connection_memory::{CLASSES, ConnectionId, ConnectionMemory, STEP};
use crate::apiserver::shares::caller_shares;
use crate::ration::{Rank, RankShares};

/// What a newcomer sent may still be in memory up to so many bytes: a piece of 16 KiB for each stream and each entry of the
/// table of HPACK, and what is half read.
const NEWCOMERS_INPUT: usize = 6 * 1024 * 1024;
/// The same of a caller, of whom heads and bodies are counted as they are: the buffers.
pub(super) const CALLERS_INPUT: usize = 32 * 1024;

/// The connections of a listener.
#[derive(Clone)]
pub(super) struct ListenerConnections {
    per_address: usize,
    // std's lock: held to count only.
    table: Arc<Mutex<ConnectionTable>>,
}

struct ConnectionTable {
    next: u64,
    /// Connections of each address.
    addresses: HashMap<IpAddr, usize>,
    /// Newcomers of each class; the last gives way first.
    newcomers: [Newcomers; CLASSES],
    /// Newcomers' connections at once.
    most: usize,
    callers: OpenConnections<Arc<str>>,
    /// Callers' connections at once.
    most_of_callers: usize,
    memory: ConnectionMemory,
}

/// Newcomers of one class.
#[derive(Default)]
struct Newcomers {
    /// What they may have when others want slots, too.
    share: usize,
    open: OpenConnections<IpAddr>,
}

/// Connections that are there, by whose they are.
struct OpenConnections<K> {
    count: usize,
    /// Oldest first.
    of: HashMap<K, BTreeMap<u64, CancellationToken>>,
}

impl<K> Default for OpenConnections<K> {
    fn default() -> Self {
        Self { count: 0, of: HashMap::new() }
    }
}

/// A slot among the connections, until it is dropped.
pub(super) struct ConnectionSlot {
    connections: ListenerConnections,
    address: IpAddr,
    number: u64,
    class: usize,
    /// Changes under the lock of the table only; so does what is counted of it there.
    newcomer: AtomicBool,
    caller: OnceLock<Arc<str>>,
    counted: AtomicUsize,
    /// Bytes that were read of the peer in all.
    received: AtomicUsize,
    /// Bytes that its exchanges hold.
    held: AtomicUsize,
    dropped: CancellationToken,
}

impl ListenerConnections {
    /// `most` in all, of which newcomers get half and callers three quarters; `per_address` from one address, or one network of IPv6 (/64). Only
    /// the machine itself (127.0.0.1, ::1) may have more. In memory newcomers may hold `bounds[0]` bytes together, others
    /// `bounds[1]`.
    pub fn new(most: usize, per_address: usize, bounds: [usize; 2]) -> Self {
        let most_of_callers = (most - most / 4).max(1);
        let most = (most / 2).max(1);
        let newcomers = shares(most).map(|share| Newcomers { share, ..Newcomers::default() });
        let memory = ConnectionMemory::new(shares(bounds[0]), bounds[1]);
        let (addresses, callers) = (HashMap::new(), OpenConnections::default());
        let table = ConnectionTable { next: 0, addresses, newcomers, most, callers, most_of_callers, memory };
        Self { per_address, table: Arc::new(Mutex::new(table)) }
    }

    /// A slot for a connection from an address of this rank, when the address has one left.
    pub fn admit(&self, address: IpAddr, rank: Rank) -> Option<ConnectionSlot> {
        let (address, class) = (counted_as(address), class(rank));
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        let count = table.addresses.entry(address).or_default();
        if *count >= self.per_address && !is_this_machine(address) {
            return None;
        }
        *count += 1;
        let dropped = CancellationToken::new();
        table.newcomers[class].open.add(address, number, dropped.clone());
        if table.newcomers.iter().map(|of| of.open.count).sum::<usize>() > table.most {
            table.drop_a_newcomer();
        }
        Some(ConnectionSlot {
            connections: self.clone(),
            address,
            number,
            class,
            newcomer: AtomicBool::new(true),
            caller: OnceLock::new(),
            counted: AtomicUsize::new(0),
            received: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            dropped,
        })
    }

    /// How many there are, by who has them: newcomers of each rank, and callers.
    pub fn counts(&self) -> [(&'static str, usize); CLASSES + 1] {
        let table = self.lock();
        let [known, untold, strangers] = &table.newcomers;
        let of = |rank: Rank, newcomers: &Newcomers| (rank.name(), newcomers.open.count);
        let callers = ("caller", table.callers.count);
        [of(Rank::Known, known), of(Rank::Untold, untold), of(Rank::Stranger, strangers), callers]
    }

    /// Ends a newcomer's connection, if there is one, because there is no slot left at all.
    pub fn make_room(&self) {
        self.lock().drop_a_newcomer();
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What each class may have of so much when others want it, too.
fn shares(most: usize) -> [usize; CLASSES] {
    let (unknown, strangers) = (RankShares::of_unknown(most), RankShares::of_strangers(most));
    [most - unknown, unknown - strangers, strangers]
}

/// Where a rank stands among newcomers. The appliance itself is no better than what it knows.
fn class(rank: Rank) -> usize {
    match rank {
        Rank::Own | Rank::Known => 0,
        Rank::Untold => 1,
        Rank::Stranger => 2,
    }
}

impl ConnectionTable {
    /// One of those who have more than their share, else of the least known that there are.
    fn drop_a_newcomer(&mut self) {
        let over = self.newcomers.iter().rposition(|of| of.open.count > of.share);
        if let Some(class) = over.or_else(|| self.newcomers.iter().rposition(|of| of.open.count > 0)) {
            self.newcomers[class].open.drop_one();
        }
    }
}

impl<K: Hash + Eq + Clone> OpenConnections<K> {
    fn add(&mut self, whose: K, number: u64, dropped: CancellationToken) {
        self.count += 1;
        self.of.entry(whose).or_default().insert(number, dropped);
    }

    fn remove(&mut self, whose: &K, number: u64) {
        let Some(of) = self.of.get_mut(whose) else { return };
        self.count -= usize::from(of.remove(&number).is_some());
        if of.is_empty() {
            self.of.remove(whose);
        }
    }

    fn has(&self, whose: &K, number: u64) -> bool {
        self.of.get(whose).is_some_and(|of| of.contains_key(&number))
    }

    /// The oldest of whoever has most.
    fn drop_one(&mut self) {
        let oldest = |of: &BTreeMap<u64, _>| of.keys().next().copied();
        let most = self.of.iter().max_by_key(|(_, of)| (of.len(), Reverse(oldest(of))));
        let Some((whose, of)) = most else { return };
        if let Some((number, dropped)) = of.first_key_value() {
            let (whose, number) = (whose.clone(), *number);
            dropped.cancel();
            self.remove(&whose, number);
        }
    }
}

impl ConnectionSlot {
    /// Its caller has shown who it is: a user. Of several callers the first counts.
    pub fn vouch(&self, user: &str) {
        if !self.is_newcomer() {
            return;
        }
        let mut table = self.connections.lock();
        if self.is_newcomer() {
            self.count(&mut table, 0);
            self.newcomer.store(false, Ordering::Relaxed);
            table.newcomers[self.class].open.remove(&self.address, self.number);
            let caller = self.caller.get_or_init(|| caller_shares::caller(user).into());
            table.callers.add(caller.clone(), self.number, self.dropped.clone());
            if table.callers.count > table.most_of_callers {
                table.callers.drop_one();
            }
            self.count(&mut table, self.bytes());
        }
    }

    /// Whether it had to go for another caller's, because its own has most.
    pub fn gave_way(&self) -> bool {
        let has = |caller: &Arc<str>| self.connections.lock().callers.has(caller, self.number);
        self.is_dropped() && self.caller.get().is_some_and(|caller| !has(caller))
    }

    /// Whether it has not.
    pub fn is_newcomer(&self) -> bool {
        self.newcomer.load(Ordering::Relaxed)
    }

    /// So many bytes more were read of the peer.
    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.changed();
    }

    /// The connection is closed, and its buffers gone. Its exchanges may be there still.
    pub fn closed(&self) {
        self.received.store(0, Ordering::Relaxed);
        self.changed();
    }

    /// An exchange holds `to` bytes in memory now, after `from`. A connection that holds too much is closed: see
    /// [`ConnectionSlot::is_dropped`].
    pub fn hold(&self, from: usize, to: usize) {
        self.held.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
        self.changed();
    }

    /// What its exchanges hold.
    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// What it holds, in whole steps.
    fn bytes(&self) -> usize {
        let most = if self.is_newcomer() { NEWCOMERS_INPUT } else { CALLERS_INPUT };
        let input = self.received.load(Ordering::Relaxed).min(most);
        (self.held.load(Ordering::Relaxed).saturating_add(input)).next_multiple_of(STEP)
    }

    fn changed(&self) {
        if self.bytes() != self.counted.load(Ordering::Relaxed) {
            let mut table = self.connections.lock();
            self.count(&mut table, self.bytes());
        }
    }

    fn count(&self, table: &mut ConnectionTable, bytes: usize) {
        let before = self.counted.swap(bytes, Ordering::Relaxed);
        let class = self.is_newcomer().then_some(self.class);
        let connection = ConnectionId { class, address: self.address, number: self.number };
        table.memory.change(connection, before, bytes, &self.dropped);
    }

    /// Whether the connection has to go for others.
    pub fn is_dropped(&self) -> bool {
        self.dropped.is_cancelled()
    }

    /// Waits until it has to.
    pub async fn dropped(&self) {
        self.dropped.cancelled().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        self.count(&mut table, 0);
        if self.is_newcomer() {
            table.newcomers[self.class].open.remove(&self.address, self.number);
        }
        if let Some(caller) = self.caller.get() {
            table.callers.remove(caller, self.number);
        }
        if let Some(count) = table.addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                table.addresses.remove(&self.address);
            }
        }
    }
}

/// The addresses by which programs on the appliance reach it. The rest of 127.0.0.0/8 is counted as others are.
fn is_this_machine(address: IpAddr) -> bool {
    address == IpAddr::V4(Ipv4Addr::LOCALHOST) || address == counted_as(IpAddr::V6(Ipv6Addr::LOCALHOST))
}

fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        // One machine may have any address of its network.
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: [usize; 2] = [1 << 20, 1 << 20];

    fn enter(connections: &ListenerConnections, address: &str) -> Option<ConnectionSlot> {
        connections.admit(address.parse().expect("an address"), Rank::Untold)
    }

    fn is_empty(connections: &ListenerConnections) -> bool {
        let table = connections.lock();
        table.addresses.is_empty()
            && table.memory.is_empty()
            && table.newcomers.iter().all(|of| of.open.count == 0 && of.open.of.is_empty())
            && table.callers.count == 0
            && table.callers.of.is_empty()
    }

    fn held(slots: &[ConnectionSlot]) -> usize {
        slots.iter().filter(|slot| !slot.dropped.is_cancelled()).count()
    }

    #[test]
    fn nobody_has_all_the_connections() {
        let connections = ListenerConnections::new(1000, 2, MEMORY);
        let take = |address: &str| enter(&connections, address);
        let first = take("10.0.0.1").expect("a place");
        let _second = take("::ffff:10.0.0.1").expect("a place");
        assert!(take("10.0.0.1").is_none());
        let _other = take("10.0.0.2").expect("a place");
        drop(first);
        let _third = take("10.0.0.1").expect("a place");
        assert!(take("10.0.0.1").is_none());
        // A network of IPv6 is one machine.
        let _six = [take("2001:db8::1"), take("2001:db8::2")].map(|slot| slot.expect("a place"));
        assert!(take("2001:db8::3").is_none() && take("2001:db8:0:1::1").is_some());
        // The machine itself has as many as there are; the rest of its loopback network is others'.
        let many: Vec<Option<ConnectionSlot>> =
            (0..9).map(|_| take("127.0.0.1")).chain((0..9).map(|_| take("::1"))).collect();
        assert!(many.iter().all(Option::is_some));
        let _loopback = [take("127.0.0.2"), take("127.0.0.2")].map(|slot| slot.expect("a place"));
        assert!(take("127.0.0.2").is_none());
        drop((many, _second, _other, _third, _six, _loopback));
        assert!(is_empty(&connections));
    }

    #[test]
    fn the_oldest_newcomer_of_the_address_with_most_goes() {
        let connections = ListenerConnections::new(8, 100, MEMORY);
        let take = |address: &str| enter(&connections, address).expect("a place");
        let gone = |slots: &[ConnectionSlot]| slots.iter().map(|slot| slot.dropped.is_cancelled()).collect::<Vec<_>>();
        let known = take("10.0.0.9");
        known.vouch("known");
        known.vouch("known");
        let flood: Vec<ConnectionSlot> = (0..3).map(|_| take("10.0.0.1")).collect();
        let single = take("10.0.0.2");
        assert_eq!(gone(&flood), [false, false, false]);
        // A fifth one is let in, and one of the flood goes for it.
        let newcomer = take("10.0.0.3");
        assert_eq!(gone(&flood), [true, false, false]);
        // However much is opened from one address, it only takes from its own.
        let more: Vec<ConnectionSlot> = (0..50).map(|_| take("10.0.0.1")).collect();
        assert_eq!(gone(&flood), [true, true, true]);
        assert_eq!(held(&more), 2);
        assert!(!gone(&[single, newcomer, known]).contains(&true));
        // All have gone but two: of many with one each the oldest goes.
        let each: Vec<ConnectionSlot> = (10..15).map(|number| take(&format!("10.0.1.{number}"))).collect();
        assert_eq!(gone(&each), [true, false, false, false, false]);
        drop((flood, more));
        connections.make_room();
        assert_eq!(gone(&each), [true, true, false, false, false]);
        // Who has shown who they are is never asked to go.
        each[2].vouch("each");
        (0..9).for_each(|_| connections.make_room());
        assert_eq!(gone(&each), [true, true, false, true, true]);
        drop(each);
        assert!(is_empty(&connections));
    }

    #[test]
    fn each_rank_keeps_its_share_whatever_others_open() {
        use Rank::{Known, Own, Stranger, Untold};
        // Who opens many, each from an address of its own, in this order; how many of each are left of 32 slots.
        let rows: [(&[Rank], &[usize]); 8] = [
            (&[Stranger], &[32]),
            (&[Known], &[32]),
            (&[Stranger, Known], &[8, 24]),
            (&[Known, Stranger], &[24, 8]),
            (&[Untold, Stranger], &[24, 8]),
            (&[Stranger, Untold, Own], &[8, 16, 8]),
            (&[Known, Untold, Stranger], &[8, 16, 8]),
            (&[Known, Stranger, Untold], &[8, 8, 16]),
        ];
        for (order, wanted) in rows {
            let connections = ListenerConnections::new(64, 1, MEMORY);
            let open = |(network, rank): (usize, &Rank)| -> Vec<ConnectionSlot> {
                let address = |last: u8| IpAddr::from([10, 0, network as u8, last]);
                (0..100).map(|last| connections.admit(address(last), *rank).expect("a place")).collect()
            };
            let all: Vec<_> = order.iter().enumerate().map(open).collect();
            let left: Vec<_> = all.iter().map(|slots| held(slots)).collect();
            assert_eq!(left, wanted, "{order:?}");
            drop(all);
            assert!(is_empty(&connections));
        }
    }

    #[test]
    fn a_known_hosts_one_connection_stays_while_strangers_open_new_ones_for_ever() {
        for rank in [Rank::Stranger, Rank::Untold] {
            let connections = ListenerConnections::new(64, 8, MEMORY);
            let agent = connections.admit([10, 0, 0, 1].into(), Rank::Known).expect("a place");
            let mut all = Vec::new();
            for number in 0..10_000_u16 {
                let [high, low] = number.to_be_bytes();
                all.push(connections.admit([10, 1, high, low].into(), rank).expect("a place"));
            }
            assert_eq!((held(&all), agent.dropped.is_cancelled()), (31, false), "{rank:?}");
            // Nor does it go when others who have shown who they are have taken all the rest.
            (0..31).for_each(|_| connections.make_room());
            assert_eq!((held(&all), agent.dropped.is_cancelled()), (0, false), "{rank:?}");
        }
    }

    #[test]
    fn the_oldest_connection_of_the_caller_with_most_goes() {
        let connections = ListenerConnections::new(16, 100, MEMORY);
        let take = |user: &str| {
            let slot = enter(&connections, "10.0.0.1").expect("a place");
            slot.vouch(user);
            slot
        };
        let other = take("other");
        let greedy: Vec<ConnectionSlot> = (0..30).map(|_| take("system:serviceaccount:rack:bot")).collect();
        // Three quarters of all, but for the other's.
        assert_eq!((held(&greedy), other.is_dropped()), (11, false));
        assert!(greedy[18].gave_way() && !greedy[19].gave_way());
        // The accounts of a namespace are one caller.
        let many: Vec<ConnectionSlot> = (0..9).map(|n| take(&format!("system:serviceaccount:rack:{n}"))).collect();
        assert_eq!((held(&greedy), held(&many)), (2, 9));
        // Others come in, and when each has one, for the oldest.
        let few: Vec<ConnectionSlot> = (0..20).map(|n| take(&format!("user {n}"))).collect();
        assert_eq!((held(&few), held(&many), held(&greedy)), (12, 0, 0));
        // Who has not shown who they are still has places.
        let newcomers: Vec<ConnectionSlot> = (0..4).filter_map(|_| enter(&connections, "10.0.0.2")).collect();
        assert_eq!(held(&newcomers), 4);
        drop((other, greedy, many, few, newcomers));
        assert!(is_empty(&connections));
    }

    #[test]
    fn what_a_connection_holds_ends_the_largest_one_and_moves_when_its_caller_is_known() {
        let connections = ListenerConnections::new(64, 8, [8 * STEP, 16 * STEP]);
        let [large, small, later] =
            [1, 2, 3].map(|last| enter(&connections, &format!("10.0.0.{last}")).expect("a place"));
        large.hold(0, 4 * STEP);
        large.received(1);
        small.hold(0, STEP);
        assert!(!large.is_dropped());
        later.hold(0, 2 * STEP + 1);
        assert_eq!([&large, &small, &later].map(ConnectionSlot::is_dropped), [true, false, false]);
        // A caller's bytes are others', and what it sent is counted as its buffers only.
        small.received(2 * NEWCOMERS_INPUT);
        assert!(small.is_dropped());
        drop(small);
        let known = enter(&connections, "10.0.0.4").expect("a place");
        known.hold(0, STEP);
        known.vouch("known");
        known.received(2 * NEWCOMERS_INPUT);
        known.hold(STEP, 11 * STEP);
        assert!(!known.is_dropped() && !later.is_dropped());
        known.hold(11 * STEP, 13 * STEP);
        assert!(known.is_dropped());
        known.hold(13 * STEP, 0);
        large.hold(4 * STEP, 0);
        drop((large, later, known));
        assert!(is_empty(&connections));
    }
}

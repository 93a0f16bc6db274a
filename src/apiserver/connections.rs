//! Who may have a connection: so many in all, so many from one address, and half of them at most for strangers, who have
//! not shown who they are.
//!
//! A connection begins as a stranger's, so one more stranger is always let in and another goes for it: the oldest one from
//! the address that has most of them. Whoever comes from an address of their own has the time to show who they are,
//! however many connections others open.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The connections of a listener.
#[derive(Clone)]
pub(super) struct Connections {
    per_address: usize,
    strangers: usize,
    // std's lock: held to count only.
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    next: u64,
    addresses: HashMap<IpAddr, Address>,
    /// Connections of strangers.
    strangers: usize,
}

#[derive(Default)]
struct Address {
    connections: usize,
    /// Those of strangers, oldest first.
    strangers: BTreeMap<u64, CancellationToken>,
}

/// A place among the connections, until it is dropped.
pub(super) struct Place {
    connections: Connections,
    address: IpAddr,
    number: u64,
    stranger: AtomicBool,
    dropped: CancellationToken,
}

impl Connections {
    /// `most` in all, of which strangers get half; `per_address` from one address, or one network of IPv6 (/64). Only
    /// the machine itself (127.0.0.1, ::1) may have more.
    pub fn new(most: usize, per_address: usize) -> Self {
        Self { per_address, strangers: (most / 2).max(1), table: Arc::default() }
    }

    /// A place for a connection from an address, when it has one left.
    pub fn enter(&self, address: IpAddr) -> Option<Place> {
        let address = counted_as(address);
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        let of = table.addresses.entry(address).or_default();
        if of.connections >= self.per_address && !is_this_machine(address) {
            return None;
        }
        let dropped = CancellationToken::new();
        of.connections += 1;
        of.strangers.insert(number, dropped.clone());
        table.strangers += 1;
        if table.strangers > self.strangers {
            table.drop_a_stranger();
        }
        Some(Place { connections: self.clone(), address, number, stranger: AtomicBool::new(true), dropped })
    }

    /// Ends a stranger's connection, if there is one, because there is no place left at all.
    pub fn make_room(&self) {
        self.lock().drop_a_stranger();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The oldest of the address that has most.
    fn drop_a_stranger(&mut self) {
        let first = |of: &Address| of.strangers.keys().next().copied().unwrap_or(u64::MAX);
        let most = self.addresses.values_mut().max_by_key(|of| (of.strangers.len(), std::cmp::Reverse(first(of))));
        if let Some((_, dropped)) = most.and_then(|of| of.strangers.pop_first()) {
            self.strangers -= 1;
            dropped.cancel();
        }
    }
}

impl Place {
    /// Its caller has shown who it is.
    pub fn vouch(&self) {
        if !self.stranger.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut table = self.connections.lock();
        let was = table.addresses.get_mut(&self.address).and_then(|of| of.strangers.remove(&self.number));
        table.strangers -= usize::from(was.is_some());
    }

    /// Whether it has not.
    pub fn is_stranger(&self) -> bool {
        self.stranger.load(Ordering::Relaxed)
    }

    /// Waits until the connection has to go for another one.
    pub async fn dropped(&self) {
        self.dropped.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.vouch();
        let mut table = self.connections.lock();
        if let Some(of) = table.addresses.get_mut(&self.address) {
            of.connections -= 1;
            if of.connections == 0 {
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

    fn enter(connections: &Connections, address: &str) -> Option<Place> {
        connections.enter(address.parse().expect("an address"))
    }

    #[test]
    fn nobody_has_all_the_connections() {
        let connections = Connections::new(1000, 2);
        let take = |address: &str| enter(&connections, address);
        let first = take("10.0.0.1").expect("a place");
        let _second = take("::ffff:10.0.0.1").expect("a place");
        assert!(take("10.0.0.1").is_none());
        let _other = take("10.0.0.2").expect("a place");
        drop(first);
        let _third = take("10.0.0.1").expect("a place");
        assert!(take("10.0.0.1").is_none());
        // A network of IPv6 is one machine.
        let _six = [take("2001:db8::1"), take("2001:db8::2")].map(|place| place.expect("a place"));
        assert!(take("2001:db8::3").is_none() && take("2001:db8:0:1::1").is_some());
        // The machine itself has as many as there are; the rest of its loopback network is others'.
        let many: Vec<Option<Place>> = (0..9).map(|_| take("127.0.0.1")).chain((0..9).map(|_| take("::1"))).collect();
        assert!(many.iter().all(Option::is_some));
        let _loopback = [take("127.0.0.2"), take("127.0.0.2")].map(|place| place.expect("a place"));
        assert!(take("127.0.0.2").is_none());
        drop((many, _second, _other, _third, _six, _loopback));
        let table = connections.lock();
        assert!(table.addresses.is_empty() && table.strangers == 0);
    }

    #[test]
    fn the_oldest_stranger_of_the_address_with_most_goes() {
        let connections = Connections::new(8, 100);
        let take = |address: &str| enter(&connections, address).expect("a place");
        let gone = |places: &[Place]| places.iter().map(|place| place.dropped.is_cancelled()).collect::<Vec<_>>();
        let known = take("10.0.0.9");
        known.vouch();
        known.vouch();
        let flood: Vec<Place> = (0..3).map(|_| take("10.0.0.1")).collect();
        let single = take("10.0.0.2");
        assert_eq!(gone(&flood), [false, false, false]);
        // A fifth one is let in, and one of the flood goes for it.
        let newcomer = take("10.0.0.3");
        assert_eq!(gone(&flood), [true, false, false]);
        // However much is opened from one address, it only takes from its own.
        let more: Vec<Place> = (0..50).map(|_| take("10.0.0.1")).collect();
        assert_eq!(gone(&flood), [true, true, true]);
        assert_eq!(more.iter().filter(|place| !place.dropped.is_cancelled()).count(), 2);
        assert!(!gone(&[single, newcomer, known]).contains(&true));
        // All have gone but two: of many with one each the oldest goes.
        let each: Vec<Place> = (10..15).map(|number| take(&format!("10.0.1.{number}"))).collect();
        assert_eq!(gone(&each), [true, false, false, false, false]);
        drop((flood, more));
        connections.make_room();
        assert_eq!(gone(&each), [true, true, false, false, false]);
        // Who is known is never asked to go.
        each[2].vouch();
        (0..9).for_each(|_| connections.make_room());
        assert_eq!(gone(&each), [true, true, false, true, true]);
        drop(each);
        assert!(connections.lock().addresses.is_empty() && connections.lock().strangers == 0);
    }
}

//! Memory of connections: what each holds for its peer, and which is closed when that is too much.
//!
//! Newcomers' connections share one bound, those of callers who have shown who they are another one. When what newcomers
//! hold passes theirs, a [rank](crate::ration::Rank) gives way that has more than its share, and there the connection that
//! holds most, of the address that holds most. Among callers it is the address alone that counts.
//!
//! A connection that has to go still holds what it holds until its tasks have ended. So what is really held is counted, too:
//! when that passes a bound and a half, the connection that asks for more goes at once, unless its rank has less than its
//! share or its address holds little; that it holds little does not help when the bound is passed three times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Range;

use tokio_util::sync::CancellationToken;

/// Parts that newcomers are counted in, by class; callers are the part after them.
pub(super) const CLASSES: usize = 3;
const CALLERS: usize = CLASSES;
/// What is held is counted in steps of so many bytes for each connection, so that small changes cost nothing.
pub(super) const STEP: usize = 8 * 1024;
/// What is little for an address: a connection or two that begin.
const LITTLE: usize = 4 * STEP;

/// Which connection, and whose.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionId {
    /// The class of a newcomer; `None`: a caller.
    pub class: Option<usize>,
    pub address: IpAddr,
    /// Of the connection; the oldest has the smallest.
    pub number: u64,
}

/// Bytes held, by connection.
pub(super) struct ConnectionMemory {
    newcomers: usize,
    callers: usize,
    parts: [MemoryPart; CLASSES + 1],
}

#[derive(Default)]
struct MemoryPart {
    /// What it may hold when others want more, too.
    share: usize,
    /// By connections that stay.
    held: usize,
    /// By those that have to go as well.
    really: usize,
    of: HashMap<IpAddr, OfAddress>,
}

#[derive(Default)]
struct OfAddress {
    held: usize,
    of: BTreeMap<u64, (usize, CancellationToken)>,
}

impl ConnectionMemory {
    /// Bounds in bytes: for newcomers by class, which together are their bound, and for callers.
    pub fn new(shares: [usize; CLASSES], callers: usize) -> Self {
        let mut parts = <[MemoryPart; CLASSES + 1]>::default();
        for (part, share) in parts.iter_mut().zip(shares.into_iter().chain([callers])) {
            part.share = share;
        }
        Self { newcomers: shares.iter().sum(), callers, parts }
    }

    /// A connection holds `to` bytes now, after `from`. Cancels what has to go for it, which may be itself.
    pub fn change(&mut self, connection: ConnectionId, from: usize, to: usize, ends: &CancellationToken) {
        let part = connection.class.unwrap_or(CALLERS);
        self.parts[part].really = (self.parts[part].really + to).saturating_sub(from);
        self.parts[part].put(connection, if ends.is_cancelled() { 0 } else { to }, ends);
        if to <= from {
            return;
        }
        let (group, most) = self.group(part);
        let really = self.sum(&group, |part| part.really);
        let little = self.parts[part].of.get(&connection.address).is_none_or(|of| of.held <= LITTLE);
        let too_much = really > if little { most * 3 } else { most + most / 2 };
        if too_much && self.parts[part].really > self.parts[part].share {
            ends.cancel();
            self.parts[part].put(connection, 0, ends);
        }
        while self.sum(&group, |part| part.held) > most {
            self.end_one(group.clone());
        }
    }

    /// The parts with one bound, and the bound.
    fn group(&self, part: usize) -> (Range<usize>, usize) {
        if part == CALLERS { (CALLERS..CALLERS + 1, self.callers) } else { (0..CLASSES, self.newcomers) }
    }

    fn sum(&self, group: &Range<usize>, of: impl Fn(&MemoryPart) -> usize) -> usize {
        self.parts[group.clone()].iter().map(of).sum()
    }

    /// One of those with more than their share, of whom the last gives way first.
    fn end_one(&mut self, group: Range<usize>) {
        if let Some(part) = self.parts[group].iter_mut().rev().find(|part| part.held > part.share) {
            part.end_one();
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.held == 0 && part.really == 0 && part.of.is_empty())
    }
}

impl MemoryPart {
    fn put(&mut self, connection: ConnectionId, bytes: usize, ends: &CancellationToken) {
        let of = self.of.entry(connection.address).or_default();
        let before = match bytes {
            0 => of.of.remove(&connection.number),
            _ => of.of.insert(connection.number, (bytes, ends.clone())),
        };
        let before = before.map_or(0, |(bytes, _)| bytes);
        of.held = of.held + bytes - before;
        self.held = self.held + bytes - before;
        if of.of.is_empty() {
            self.of.remove(&connection.address);
        }
    }

    /// That which holds most of the address that holds most; of two alike the oldest.
    fn end_one(&mut self) {
        let oldest = |of: &OfAddress| of.of.keys().next().copied();
        let Some((address, of)) = self.of.iter().max_by_key(|(_, of)| (of.held, Reverse(oldest(of)))) else { return };
        let most = of.of.iter().max_by_key(|(number, (bytes, _))| (*bytes, Reverse(**number)));
        let Some((number, (_, ends))) = most else { return };
        let (connection, ends) = (ConnectionId { class: None, address: *address, number: *number }, ends.clone());
        ends.cancel();
        self.put(connection, 0, &ends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of strangers, unless they are callers.
    struct Holds(ConnectionId, usize, CancellationToken);

    impl Holds {
        fn new(class: Option<usize>, host: u8, number: u64) -> Self {
            Self(ConnectionId { class, address: [10, 0, 0, host].into(), number }, 0, CancellationToken::new())
        }

        /// Whether it may hold so many steps.
        fn now(&mut self, memory: &mut ConnectionMemory, steps: usize) -> bool {
            let bytes = steps * STEP;
            memory.change(self.0, std::mem::replace(&mut self.1, bytes), bytes, &self.2);
            self.stays()
        }

        fn stays(&self) -> bool {
            !self.2.is_cancelled()
        }
    }

    const SHARES: [usize; CLASSES] = [25 * STEP, 50 * STEP, 25 * STEP];

    #[test]
    fn the_largest_of_the_largest_address_goes() {
        for class in [Some(2), None] {
            let mut memory = ConnectionMemory::new(SHARES, 100 * STEP);
            let of = |host, number| Holds::new(class, host, number);
            let (mut small, mut large, mut other) = (of(1, 0), of(1, 1), of(2, 2));
            assert!(small.now(&mut memory, 20) && large.now(&mut memory, 40) && other.now(&mut memory, 40));
            let mut late = of(3, 3);
            assert!(late.now(&mut memory, 30));
            assert_eq!([&small, &large, &other, &late].map(Holds::stays), [true, false, true, true], "{class:?}");
            // What grows may have to go itself.
            assert!(!other.now(&mut memory, 90));
            assert_eq!([&small, &late].map(Holds::stays), [true, true], "{class:?}");
            for each in [&mut small, &mut large, &mut other, &mut late] {
                each.now(&mut memory, 0);
            }
            assert!(memory.is_empty());
        }
    }

    #[test]
    fn each_standing_keeps_its_share_and_callers_have_theirs() {
        let mut memory = ConnectionMemory::new(SHARES, 100 * STEP);
        let mut known = Holds::new(Some(0), 1, 0);
        let mut untold = Holds::new(Some(1), 2, 1);
        let mut caller = Holds::new(None, 3, 2);
        assert!(known.now(&mut memory, 25) && untold.now(&mut memory, 50) && caller.now(&mut memory, 100));
        // Many addresses, each with less than the others.
        let mut strangers: Vec<_> = (0..250).map(|host| Holds::new(Some(2), host, 3 + u64::from(host))).collect();
        for stranger in &mut strangers {
            stranger.now(&mut memory, 1);
        }
        assert!(known.stays() && untold.stays() && caller.stays());
        // The oldest have gone; when too many of those are still there, whoever comes goes at once.
        let stay: Vec<_> = (0..250).filter(|number| strangers[*number].stays()).collect();
        assert_eq!(stay, (200..225).collect::<Vec<_>>());
    }

    #[test]
    fn what_has_to_go_counts_until_it_has_gone() {
        let mut memory = ConnectionMemory::new(SHARES, 100 * STEP);
        let mut flood: Vec<_> = (0..300).map(|number| Holds::new(Some(2), 1, number)).collect();
        for one in &mut flood {
            one.now(&mut memory, 10);
        }
        assert!(flood.iter().skip(15).all(|one| !one.stays()), "they went as they came");
        for one in &mut flood[20..] {
            one.now(&mut memory, 0);
        }
        // Twenty times ten are still there. A known host has its share all the same.
        assert!(Holds::new(Some(0), 2, 300).now(&mut memory, 25));
        for one in &mut flood {
            one.now(&mut memory, 0);
        }
        assert!(Holds::new(Some(2), 1, 301).now(&mut memory, 10));
    }

    #[test]
    fn an_address_that_holds_little_is_let_in_while_another_floods() {
        let mut memory = ConnectionMemory::new(SHARES, 100 * STEP);
        let mut flood: Vec<_> = (0..19).map(|number| Holds::new(Some(2), 1, number)).collect();
        for one in &mut flood {
            one.now(&mut memory, 10);
        }
        assert!(!Holds::new(Some(2), 1, 20).now(&mut memory, 1));
        assert!(Holds::new(Some(2), 2, 21).now(&mut memory, 1));
        assert!(!Holds::new(Some(2), 3, 22).now(&mut memory, 5), "that is not little");
    }
}

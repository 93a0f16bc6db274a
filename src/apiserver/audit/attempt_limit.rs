//! Rate limit of audit lines about refused requests. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// The limit is for so long.
pub const STRETCH: Duration = Duration::from_secs(60);
/// Whoever tries again and again: those that are counted one by one. Further ones are counted together, and have no lines.
const COUNTED: usize = 256;

/// Lines in a stretch.
#[derive(Clone, Copy, Debug)]
pub struct LineLimit {
    /// For each.
    pub each: u32,
    /// For all together.
    pub all: u32,
}

/// Lines of failed logins, by address, or by network of IPv6 (/64).
pub const OF_LOGINS: LineLimit = LineLimit { each: 10, all: 100 };

/// Lines of refused requests, by caller.
pub const OF_REFUSALS: LineLimit = LineLimit { each: 30, all: 300 };

#[derive(Debug, Default)]
struct AttemptCount {
    lines: u32,
    left_out: u64,
}

/// Counts attempts by whose they are.
#[derive(Debug)]
pub struct AttemptLimit<K> {
    most: LineLimit,
    /// When the stretch began; it does with the first attempt.
    began: Option<Instant>,
    lines: u32,
    /// `None`: nobody knows whose.
    counts: HashMap<Option<K>, AttemptCount>,
    /// Left out of all further ones.
    others: u64,
}

/// One machine may have any address of its network of IPv6.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

impl<K: Hash + Eq> AttemptLimit<K> {
    /// So many lines in a stretch.
    pub fn new(most: LineLimit) -> Self {
        Self { most, began: None, lines: 0, counts: HashMap::new(), others: 0 }
    }

    /// Whether an attempt has a line; otherwise it is counted.
    pub fn take(&mut self, now: Instant, whose: Option<K>) -> bool {
        self.began.get_or_insert(now);
        let known = self.counts.contains_key(&whose);
        if !known && self.counts.len() >= COUNTED {
            self.others += 1;
            return false;
        }
        let count = self.counts.entry(whose).or_default();
        if count.lines >= self.most.each || self.lines >= self.most.all {
            count.left_out += 1;
            return false;
        }
        count.lines += 1;
        self.lines += 1;
        true
    }

    /// So many got no line after all.
    pub fn leave_out(&mut self, whose: Option<K>, count: u64) {
        match self.counts.get_mut(&whose) {
            Some(found) => found.left_out += count,
            None => self.others += count,
        }
    }

    /// What was left out, by whose it was (`None`: of many), when a stretch is over by now. Then another begins.
    pub fn over(&mut self, now: Instant) -> Vec<(Option<K>, u64)> {
        let over = self.began.is_some_and(|began| now.saturating_duration_since(began) >= STRETCH);
        if over || (self.began.is_none() && self.others > 0) { self.finish() } else { Vec::new() }
    }

    /// What was left out up to now.
    pub fn finish(&mut self) -> Vec<(Option<K>, u64)> {
        let ended = std::mem::replace(self, Self::new(self.most));
        let counts = ended.counts.into_iter().map(|(whose, count)| (whose, count.left_out));
        counts.chain([(None, ended.others)]).filter(|(_, left_out)| *left_out > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(origin(text.parse().unwrap()))
    }

    #[test]
    fn one_address_has_some_lines_and_the_rest_is_counted() {
        let start = Instant::now();
        let mut limit = AttemptLimit::new(OF_LOGINS);
        let mut lines = |peer: &str, count: u32| (0..count).filter(|_| limit.take(start, address(peer))).count();
        assert_eq!(lines("10.0.0.1", 1000), 10);
        assert_eq!((lines("::ffff:10.0.0.1", 5), lines("10.0.0.2", 3)), (0, 3));
        assert_eq!((lines("2001:db8::1", 6), lines("2001:db8::2", 6)), (6, 4));
        assert_eq!(limit.over(start + STRETCH / 2), []);
        let mut ended = limit.over(start + STRETCH);
        ended.sort();
        assert_eq!(ended, [(address("10.0.0.1"), 995), (address("2001:db8::"), 2)]);
        assert!(limit.take(start + STRETCH, address("10.0.0.1")));
        assert_eq!(limit.finish(), []);
    }

    #[test]
    fn all_addresses_together_have_no_more_than_all() {
        let start = Instant::now();
        let mut limit = AttemptLimit::new(OF_LOGINS);
        let peers = 100_000_u32;
        let lines = (0..peers).filter(|peer| limit.take(start, Some(IpAddr::from(peer.to_be_bytes())))).count();
        assert_eq!(lines, OF_LOGINS.all as usize);
        assert!(limit.counts.len() <= COUNTED);
        let left_out: u64 = limit.finish().iter().map(|(_, count)| count).sum();
        assert_eq!(left_out, u64::from(peers - OF_LOGINS.all));
    }

    #[test]
    fn what_got_no_place_is_counted() {
        let now = Instant::now();
        let mut limit = AttemptLimit::new(OF_LOGINS);
        limit.take(now, address("10.0.0.1"));
        limit.leave_out(address("10.0.0.1"), 1);
        limit.leave_out(address("10.0.0.2"), 7);
        assert_eq!(limit.over(now), []);
        let mut ended = limit.over(now + STRETCH);
        ended.sort();
        assert_eq!(ended, [(None, 7), (address("10.0.0.1"), 1)]);
        limit.leave_out(None, 3);
        assert_eq!(limit.over(now), [(None, 3)]);
    }
}

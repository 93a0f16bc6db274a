//! How many failed logins have a line of their own. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// The ration is for so long.
pub const STRETCH: Duration = Duration::from_secs(60);
/// Lines for one address, or for one network of IPv6 (/64).
const PER_ADDRESS: u32 = 10;
/// Lines for all together.
const IN_ALL: u32 = 100;
/// Addresses that are counted one by one. What comes from further ones is counted together, and has no lines.
const ADDRESSES: usize = 256;

#[derive(Debug, Default)]
struct Count {
    lines: u32,
    left_out: u64,
}

/// Counts failed logins.
#[derive(Debug, Default)]
pub struct Ration {
    /// When the stretch began; it does with the first failed login.
    began: Option<Instant>,
    lines: u32,
    /// By address; `None` where there is none.
    counts: HashMap<Option<IpAddr>, Count>,
    /// Left out of all further addresses.
    others: u64,
}

/// One machine may have any address of its network of IPv6.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

impl Ration {
    /// Whether a failed login from this address has a line; otherwise it is counted.
    pub fn take(&mut self, now: Instant, peer: Option<IpAddr>) -> bool {
        self.began.get_or_insert(now);
        let peer = peer.map(origin);
        let known = self.counts.contains_key(&peer);
        if !known && self.counts.len() >= ADDRESSES {
            self.others += 1;
            return false;
        }
        let count = self.counts.entry(peer).or_default();
        if count.lines >= PER_ADDRESS || self.lines >= IN_ALL {
            count.left_out += 1;
            return false;
        }
        count.lines += 1;
        self.lines += 1;
        true
    }

    /// So many from this address got no line after all.
    pub fn leave_out(&mut self, peer: Option<IpAddr>, count: u64) {
        let peer = peer.map(origin);
        match self.counts.get_mut(&peer) {
            Some(found) => found.left_out += count,
            None => self.others += count,
        }
    }

    /// What was left out, by address (`None`: of many addresses), when a stretch is over by now. Then another begins.
    pub fn over(&mut self, now: Instant) -> Vec<(Option<IpAddr>, u64)> {
        let over = self.began.is_some_and(|began| now.saturating_duration_since(began) >= STRETCH);
        if over || (self.began.is_none() && self.others > 0) { self.finish() } else { Vec::new() }
    }

    /// What was left out up to now.
    pub fn finish(&mut self) -> Vec<(Option<IpAddr>, u64)> {
        let ended = std::mem::take(self);
        let counts = ended.counts.into_iter().map(|(peer, count)| (peer, count.left_out));
        counts.chain([(None, ended.others)]).filter(|(_, left_out)| *left_out > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn one_address_has_some_lines_and_the_rest_is_counted() {
        let start = Instant::now();
        let mut ration = Ration::default();
        let mut lines = |peer: &str, count: u32| (0..count).filter(|_| ration.take(start, address(peer))).count();
        assert_eq!(lines("10.0.0.1", 1000), 10);
        assert_eq!((lines("::ffff:10.0.0.1", 5), lines("10.0.0.2", 3)), (0, 3));
        assert_eq!((lines("2001:db8::1", 6), lines("2001:db8::2", 6)), (6, 4));
        assert_eq!(ration.over(start + STRETCH / 2), []);
        let mut ended = ration.over(start + STRETCH);
        ended.sort();
        assert_eq!(ended, [(address("10.0.0.1"), 995), (address("2001:db8::"), 2)]);
        assert!(ration.take(start + STRETCH, address("10.0.0.1")));
        assert_eq!(ration.finish(), []);
    }

    #[test]
    fn all_addresses_together_have_no_more_than_all() {
        let start = Instant::now();
        let mut ration = Ration::default();
        let peers = 100_000_u32;
        let lines = (0..peers).filter(|peer| ration.take(start, Some(IpAddr::from(peer.to_be_bytes())))).count();
        assert_eq!(lines, IN_ALL as usize);
        assert!(ration.counts.len() <= ADDRESSES);
        let left_out: u64 = ration.finish().iter().map(|(_, count)| count).sum();
        assert_eq!(left_out, u64::from(peers - IN_ALL));
    }

    #[test]
    fn what_got_no_place_is_counted() {
        let now = Instant::now();
        let mut ration = Ration::default();
        ration.take(now, address("10.0.0.1"));
        ration.leave_out(address("10.0.0.1"), 1);
        ration.leave_out(address("10.0.0.2"), 7);
        assert_eq!(ration.over(now), []);
        let mut ended = ration.over(now + STRETCH);
        ended.sort();
        assert_eq!(ended, [(None, 7), (address("10.0.0.1"), 1)]);
        ration.leave_out(None, 3);
        assert_eq!(ration.over(now), [(None, 3)]);
    }
}

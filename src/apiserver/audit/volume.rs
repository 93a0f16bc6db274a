//! Shares of the audit log: how much of it one caller writes, so that nobody's lines roll everybody's away. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// A caller's share is this part of the log, each day.
const PART: u64 = 16;
/// That of what Slipway itself writes of one object, which may be what a machine makes it write, is this part of it.
const PART_OF_OBJECT: u64 = 16;
/// While the disk has little room, shares are this part of what they are.
const PART_OF_LITTLE: u64 = 256;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Callers and objects that are counted one by one. When they are more, further ones share a share.
const COUNTED: usize = 16_384;

/// Whose line it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LineOwner {
    /// A caller's.
    Caller(String),
    /// Slipway's own, of an object: what it is, its namespace, its name.
    Object(String, String, String),
    /// Slipway's own, of all objects of a namespace.
    Namespace(String),
    /// Of further ones.
    Others,
}

/// What was written, as far as time has not made it good.
#[derive(Clone, Copy, Debug)]
struct WrittenVolume {
    bytes: u64,
    at: Instant,
}

/// Counts bytes of lines by whose they are.
#[derive(Debug)]
pub struct Volumes {
    share: u64,
    written: HashMap<LineOwner, WrittenVolume>,
}

impl Volumes {
    /// Those of a log of so many bytes.
    pub fn of(log: u64) -> Self {
        Self { share: log / PART, written: HashMap::new() }
    }

    /// Whether a line goes beyond its writer's share, which is small while the disk has little room. If not it is counted.
    /// Who has many objects has one share for them all besides.
    pub fn is_beyond(&mut self, now: Instant, whose: LineOwner, bytes: usize, little_room: bool) -> bool {
        let namespace = match &whose {
            LineOwner::Object(_, namespace, _) if !namespace.is_empty() => {
                Some(LineOwner::Namespace(namespace.clone()))
            }
            _ => None,
        };
        let mut sums = Vec::with_capacity(2);
        for whose in std::iter::once(whose).chain(namespace) {
            let whose = self.counted(now, whose);
            let share = share_of(self.share, &whose);
            let before = self.written.get(&whose).map_or(0, |written| left(*written, share, now));
            let sum = before.saturating_add(bytes as u64);
            if sum > if little_room { share / PART_OF_LITTLE } else { share } {
                return true;
            }
            sums.push((whose, sum));
        }
        self.written.extend(sums.into_iter().map(|(whose, sum)| (whose, WrittenVolume { bytes: sum, at: now })));
        false
    }

    /// As whom somebody is counted.
    fn counted(&mut self, now: Instant, whose: LineOwner) -> LineOwner {
        if self.written.len() >= COUNTED && !self.written.contains_key(&whose) {
            let share = self.share;
            self.written.retain(|whose, written| left(*written, share_of(share, whose), now) > 0);
            if self.written.len() >= COUNTED {
                return LineOwner::Others;
            }
        }
        whose
    }
}

fn share_of(share: u64, whose: &LineOwner) -> u64 {
    if matches!(whose, LineOwner::Object(..)) { share / PART_OF_OBJECT } else { share }
}

/// What of it still counts, when a whole share is made good in a day.
fn left(written: WrittenVolume, share: u64, now: Instant) -> u64 {
    let gone = u128::from(share) * now.saturating_duration_since(written.at).as_millis() / DAY.as_millis();
    written.bytes.saturating_sub(u64::try_from(gone).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str) -> LineOwner {
        LineOwner::Caller(name.into())
    }

    fn object(name: &str) -> LineOwner {
        LineOwner::Object("metal3.io/baremetalhosts".into(), "rack".into(), name.into())
    }

    #[test]
    fn a_caller_has_a_share_each_day() {
        let start = Instant::now();
        let mut volumes = Volumes::of(16_000);
        let mut lines = |whose: fn() -> LineOwner, at: Duration| {
            (0..10_000).take_while(|_| !volumes.is_beyond(start + at, whose(), 10, false)).count()
        };
        for (whose, at, wanted) in [
            ((|| caller("a")) as fn() -> LineOwner, Duration::ZERO, 100),
            (|| caller("a"), Duration::ZERO, 0),
            (|| caller("b"), Duration::ZERO, 100),
            (|| object("a"), Duration::ZERO, 6),
            (|| object("b"), Duration::ZERO, 6),
            (|| caller("a"), DAY / 2, 50),
            (|| caller("b"), DAY * 3, 100),
        ] {
            assert_eq!(lines(whose, at), wanted, "{:?} {at:?}", whose());
        }
    }

    #[test]
    fn a_namespace_has_one_share_for_all_its_objects() {
        let now = Instant::now();
        let mut volumes = Volumes::of(16_000);
        let mut lines = |namespace: &str, from: usize| {
            let object = |number: usize| LineOwner::Object("x/y".into(), namespace.into(), number.to_string());
            (from..from + 1000).filter(|number| !volumes.is_beyond(now, object(*number), 10, false)).count()
        };
        assert_eq!((lines("many", 0), lines("many", 1000), lines("other", 0)), (100, 0, 100));
        // What is of no namespace has no such share.
        assert_eq!(lines("", 0), 1000);
    }

    #[test]
    fn a_share_is_small_while_there_is_little_room() {
        let now = Instant::now();
        let mut volumes = Volumes::of(16 * 256 * 100);
        let mut lines = |whose: fn() -> LineOwner, little_room| {
            (0..10_000).take_while(|_| !volumes.is_beyond(now, whose(), 10, little_room)).count()
        };
        assert_eq!((lines(|| caller("a"), true), lines(|| object("a"), true)), (10, 0));
        assert_eq!((lines(|| caller("a"), false), lines(|| caller("a"), true)), (2550, 0));
    }

    #[test]
    fn not_more_are_counted_than_a_bound_and_who_has_made_it_good_is_forgotten() {
        let start = Instant::now();
        let mut volumes = Volumes::of(16_000);
        for number in 0..COUNTED + 100 {
            volumes.is_beyond(start, caller(&number.to_string()), 10, false);
        }
        assert_eq!(volumes.written.len(), COUNTED + 1);
        assert!(volumes.is_beyond(start, caller("new"), 10, false), "the others have had their share");
        assert!(!volumes.is_beyond(start, caller("7"), 10, false));
        assert!(!volumes.is_beyond(start + DAY * 2, caller("new"), 10, false));
        assert_eq!(volumes.written.len(), 1);
    }
}

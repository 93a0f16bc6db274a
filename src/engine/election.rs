//! Leader election, decided from the Lease alone: no I/O, and no clock but the one that is handed in.
//!
//! The rules are client-go's. A lease is over when its holder did not write it for its whole duration, counted on the
//! watcher's own clock from when it saw the last change: clocks of different machines are never compared. A holder
//! counts its lead from *before* its write, and only for two thirds of the duration, so it has stopped by the time that
//! anybody else may begin.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Longest duration of somebody else's lease that is respected, and the shortest: no appliance has a longer or a shorter one
/// (`engine.lease`), and what is missing or garbled must not make two leaders.
const DURATION_MAX: Duration = Duration::from_secs(300);
const DURATION_MIN: Duration = Duration::from_secs(5);

/// How long is what, all from the lease's duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTiming {
    /// After this time without a renewal others may take over.
    pub lease: Duration,
    /// After this time without a renewal the holder stops by itself.
    pub renew: Duration,
    /// Between two looks at the lease.
    pub retry: Duration,
}

impl ElectionTiming {
    /// client-go's proportions: 15 s, 10 s, 2 s.
    pub fn of(lease: Duration) -> Self {
        Self { lease, renew: lease * 2 / 3, retry: lease * 2 / 15 }
    }
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Who holds it; empty: nobody.
    pub holder: String,
    /// When the holder took it, on its clock.
    pub acquired: Option<Timestamp>,
    /// When the holder wrote it last, on its clock.
    pub renewed: Option<Timestamp>,
    /// How long it holds without a renewal.
    pub duration: Duration,
    /// How often it changed hands.
    pub transitions: i32,
}

/// What to do with the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// Write this, if nobody wrote meanwhile.
    Write(LeaseRecord),
    /// Somebody else holds it.
    Wait,
}

/// One appliance's part in the election.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    timing: ElectionTiming,
    /// What the lease said last, and when it was first seen to say so.
    seen: Option<(LeaseRecord, Instant)>,
    until: Option<Instant>,
}

impl Election {
    /// `identity` must be unique among all processes that take part.
    pub fn new(identity: String, timing: ElectionTiming) -> Self {
        Self { identity, timing, seen: None, until: None }
    }

    /// Until when this appliance leads, if it does.
    pub fn leads_until(&self) -> Option<Instant> {
        self.until
    }

    /// Looks at the lease; `None` when there is none. `wall` is only written down, never compared.
    pub fn decide(&mut self, now: Instant, wall: Timestamp, stored: Option<&LeaseRecord>) -> LeaseDecision {
        let taken = |transitions: i32| {
            LeaseDecision::Write(LeaseRecord {
                holder: self.identity.clone(),
                acquired: Some(wall),
                renewed: Some(wall),
                duration: self.timing.lease,
                transitions,
            })
        };
        let Some(stored) = stored else { return taken(0) };
        if stored.holder == self.identity {
            let renewed = LeaseRecord { renewed: Some(wall), duration: self.timing.lease, ..stored.clone() };
            return LeaseDecision::Write(renewed);
        }
        let decision_if_over = taken(stored.transitions.saturating_add(1));
        // Whatever this appliance believed: somebody else's name is in the lease.
        self.until = None;
        if self.seen.as_ref().is_none_or(|(seen, _)| seen != stored) {
            self.seen = Some((stored.clone(), now));
        }
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        let over = stored.holder.is_empty() || now >= since + stored.duration.clamp(DURATION_MIN, DURATION_MAX);
        if over { decision_if_over } else { LeaseDecision::Wait }
    }

    /// What was decided is written; `asked` is when the request was sent.
    pub fn written(&mut self, asked: Instant) {
        self.seen = None;
        self.until = Some(asked + self.timing.renew);
    }

    /// What to leave behind when this appliance stops: a lease that anybody may take at once.
    pub fn released(&mut self, wall: Timestamp, stored: &LeaseRecord) -> Option<LeaseRecord> {
        self.until = None;
        let released = LeaseRecord {
            holder: String::new(),
            renewed: Some(wall),
            duration: Duration::from_secs(1),
            ..stored.clone()
        };
        (stored.holder == self.identity).then_some(released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn record(holder: &str, renewed: i64, transitions: i32) -> LeaseRecord {
        let renewed = Some(Timestamp::from_second(renewed).unwrap());
        LeaseRecord { holder: holder.into(), acquired: renewed, renewed, duration: LEASE, transitions }
    }

    fn wall(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// What it decides at these seconds, seeing these records: `Some(holder, transitions)` when it writes.
    fn plays(looks: &[(u64, Option<LeaseRecord>)]) -> Vec<Option<i32>> {
        let start = Instant::now();
        let mut election = Election::new("a".into(), ElectionTiming::of(LEASE));
        let look = |(second, stored): &(u64, Option<LeaseRecord>)| match election.decide(
            start + Duration::from_secs(*second),
            wall(1000),
            stored.as_ref(),
        ) {
            LeaseDecision::Write(record) => {
                assert_eq!(record.holder, "a");
                Some(record.transitions)
            }
            LeaseDecision::Wait => None,
        };
        looks.iter().map(look).collect()
    }

    #[tokio::test]
    async fn a_lease_is_taken_when_its_holder_is_silent_for_its_whole_duration() {
        let b = |renewed| Some(record("b", renewed, 4));
        for (looks, wanted) in [
            (vec![(0, None)], vec![Some(0)]),
            (vec![(0, Some(record("", 0, 4)))], vec![Some(5)]),
            (vec![(0, Some(record("a", 0, 4)))], vec![Some(4)]),
            // However old the record says it is: only what was watched counts.
            (vec![(0, b(0)), (14, b(0)), (15, b(0))], vec![None, None, Some(5)]),
            // Every renewal begins it anew, also one by a clock that runs backwards.
            (vec![(0, b(9)), (14, b(8)), (28, b(8)), (29, b(8))], vec![None, None, None, Some(5)]),
            // Another holder is another lease.
            (vec![(0, b(0)), (14, Some(record("c", 0, 5))), (16, Some(record("c", 0, 5)))], vec![None, None, None]),
        ] {
            assert_eq!(plays(&looks), wanted, "{looks:?}");
        }
    }

    #[tokio::test]
    async fn a_lead_ends_before_anybody_else_may_begin() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let timing = ElectionTiming::of(LEASE);
        assert_eq!((timing.renew.as_secs(), timing.retry.as_secs()), (10, 2));
        let (mut a, mut b) = (Election::new("a".into(), timing), Election::new("b".into(), timing));
        let LeaseDecision::Write(first) = a.decide(at(0), wall(0), None) else { panic!() };
        assert_eq!(a.leads_until(), None, "not before it is written");
        a.written(at(0));
        assert_eq!(a.leads_until(), Some(at(10)));
        // b sees it at the earliest when it was sent.
        assert_eq!(b.decide(at(0), wall(0), Some(&first)), LeaseDecision::Wait);
        assert_eq!(b.decide(at(14), wall(0), Some(&first)), LeaseDecision::Wait);
        let LeaseDecision::Write(second) = b.decide(at(15), wall(0), Some(&first)) else { panic!() };
        assert!(a.leads_until().unwrap() < at(15));
        b.written(at(15));
        // Back from the dead, a sees b's name.
        assert_eq!(a.decide(at(16), wall(0), Some(&second)), LeaseDecision::Wait);
        assert_eq!(a.leads_until(), None);
        // b goes in peace: a need not wait.
        let left = b.released(wall(20), &second).unwrap();
        assert_eq!(b.leads_until(), None);
        assert!(
            matches!(a.decide(at(20), wall(20), Some(&left)), LeaseDecision::Write(record) if record.transitions == 2)
        );
        assert_eq!(a.released(wall(20), &second), None, "only one's own lease");
    }

    #[tokio::test]
    async fn a_hostile_duration_is_bounded() {
        let forever = LeaseRecord { duration: Duration::from_secs(u64::from(u32::MAX)), ..record("b", 0, 0) };
        assert_eq!(plays(&[(0, Some(forever.clone())), (300, Some(forever))]), [None, Some(1)]);
        let none = Some(LeaseRecord { duration: Duration::ZERO, ..record("b", 0, 0) });
        assert_eq!(plays(&[(0, none.clone()), (4, none.clone()), (5, none)]), [None, None, Some(1)]);
    }
}

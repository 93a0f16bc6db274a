//! Time since the appliance listens.
//!
//! Since when this appliance can be called, in the time of the clock as it goes now. A clock that is set anew says nothing of
//! who was silent: whoever calls has as long from then on as after a start.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// What a clock may gain or lose between two looks without having been set.
const SLEW: SignedDuration = SignedDuration::from_secs(5);

/// Since when there was somebody to call.
pub(super) struct UpSince(Mutex<UptimeRecord>);

struct UptimeRecord {
    since: Timestamp,
    /// The last look, by both clocks.
    wall: Timestamp,
    at: Instant,
}

impl UpSince {
    pub(super) fn from(wall: Timestamp, at: Instant) -> Self {
        Self(Mutex::new(UptimeRecord { since: wall, wall, at }))
    }

    pub(super) fn since(&self, wall: Timestamp, at: Instant) -> Timestamp {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Of two that look at once the second may come with an earlier time.
        let passed = SignedDuration::try_from(at.saturating_duration_since(known.at)).unwrap_or(SignedDuration::MAX);
        let gained = wall.duration_since(known.wall).saturating_sub(passed);
        if gained.abs() > SLEW {
            known.since = wall;
        }
        known.since = known.since.min(wall);
        (known.wall, known.at) = (wall, at.max(known.at));
        known.since
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_is_set_begins_anew_and_one_that_goes_does_not() {
        let start = Instant::now();
        let wall = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).expect("a time");
        // Seconds that have passed, what the clock says then, since when somebody could call
        for rows in [
            &[(0, 0, 0), (10, 10, 0), (3600, 3603, 0), (3700, 3699, 0)][..],
            &[(10, 10, 0), (20, 90_000, 90_000), (80, 90_060, 90_000)],
            &[(10, 10, 0), (20, -90_000, -90_000), (80, -89_940, -90_000)],
            // A machine that slept.
            &[(10, 10, 0), (11, 40_000, 40_000)],
            &[(1, -2, -2), (2, -1, -2)],
        ] {
            let hearing = UpSince::from(wall(0), start);
            for (passed, says, since) in rows {
                let found = hearing.since(wall(*says), start + Duration::from_secs(*passed));
                assert_eq!(found, wall(*since), "{rows:?} {passed}");
            }
        }
    }
}

//! The clock of leases, which end at a time of day: what to do when that jumps. Pure; time is a parameter.
//!
//! A box at the edge may start years back and be set right minutes later, or be set wrong by somebody. Clients count seconds from
//! their lease on. So when the time of day jumps, all leases move with it: they last as long as their clients believe.

use std::time::Instant;

/// Seconds that the time of day may go another way than the clock of the processor between two looks.
const SLACK: u64 = 30;

/// Notices jumps.
#[derive(Debug, Default)]
pub struct JumpDetector(Option<(u64, Instant)>);

impl JumpDetector {
    /// Looks at the time of day, in seconds since 1970. Returns by how many seconds it jumped since the last look.
    pub fn observe(&mut self, now: u64, instant: Instant) -> Option<i64> {
        let (before, since) = self.0.replace((now, instant))?;
        let expected = before.saturating_add(instant.saturating_duration_since(since).as_secs());
        if now.abs_diff(expected) <= SLACK {
            return None;
        }
        let (now, expected) = (i64::try_from(now).ok()?, i64::try_from(expected).ok()?);
        now.checked_sub(expected)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_jump_is_what_the_time_of_day_does_beside_the_time_that_passes() {
        let begin = Instant::now();
        // Seconds that pass, the time of day, and how far it jumped.
        let rows = [
            (0, 1_000, None),
            (1, 1_001, None),
            (500, 1_500, None),
            (501, 1_530, None),
            (502, 1_561, None),
            (503, 900_000_000, Some(899_998_438)),
            (504, 900_000_001, None),
            (505, 1_000, Some(-899_999_002)),
            (506, u64::MAX, None),
        ];
        let mut clock = JumpDetector::default();
        for (passed, now, wanted) in rows {
            assert_eq!(clock.observe(now, begin + Duration::from_secs(passed)), wanted, "{passed} {now}");
        }
    }
}

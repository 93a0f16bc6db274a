//! The time, as the appliance tells it.
//!
//! A node's own clock may be wrong by years, and is put right at some time. So the time is the `Date` of the appliance's answers (RFC
//! 9110 section 6.6.1) and what the kernel counted since, with the time that the machine slept. Before the first answer it is the node's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

/// A `Date` is of whole seconds, and takes its time to come: so much is no change.
const SLACK: SignedDuration = SignedDuration::from_secs(2);

/// The appliance's clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    anchor: Mutex<Option<Anchor>>,
}

/// What the time was, and what the kernel had counted then.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    date: Timestamp,
    counted: Duration,
}

/// How long the kernel runs, with the time that the machine slept.
pub(super) fn uptime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Clock {
    /// Takes the date of an answer.
    pub fn heard(&self, date: &str) {
        if let Ok(date) = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date) {
            self.set(date, uptime());
        }
    }

    fn set(&self, date: Timestamp, counted: Duration) {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let known = anchor.map(|anchor| at(anchor, counted));
        if known.is_none_or(|known| known.duration_since(date).abs() > SLACK) {
            *anchor = Some(Anchor { date, counted });
        }
    }

    /// Whether the appliance told it.
    pub fn is_told(&self) -> bool {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        match *self.anchor.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(anchor) => at(anchor, uptime()),
            None => Timestamp::now(),
        }
    }
}

fn at(anchor: Anchor, counted: Duration) -> Timestamp {
    let since = SignedDuration::try_from(counted.saturating_sub(anchor.counted)).unwrap_or(SignedDuration::ZERO);
    anchor.date.checked_add(since).unwrap_or(anchor.date)
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_appliances_and_goes_on_by_what_the_kernel_counts() {
        let clock = Clock::default();
        assert!(!clock.is_told());
        clock.heard("not a date");
        assert!(!clock.is_told());
        // Ten years from any clock of today.
        clock.heard("Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(clock.is_told());
        let first: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        assert!(clock.now().duration_since(first) < SignedDuration::from_secs(60));
        let anchor = Anchor { date: first, counted: Duration::from_secs(100) };
        assert_eq!(at(anchor, Duration::from_secs(160)).duration_since(first), SignedDuration::from_secs(60));
        assert_eq!(at(anchor, Duration::from_secs(10)), first, "never back");
    }

    #[test]
    fn a_second_of_difference_is_none_and_a_day_is() {
        let clock = Clock::default();
        let day: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let told = || clock.anchor.lock().unwrap().unwrap().date;
        clock.set(day, Duration::from_secs(100));
        clock.set("2026-01-01T00:00:11Z".parse().unwrap(), Duration::from_secs(110));
        assert_eq!(told(), day);
        clock.set("2026-01-02T00:00:11Z".parse().unwrap(), Duration::from_secs(111));
        assert_ne!(told(), day);
    }
}

//! How fast a step goes, and when that is worth a write: agents tell every second, and a thousand of them must not
//! keep the store busy.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::protocol::Event;

/// Least time between two writes of one phase.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// A step this much further is written at once, in percent.
const WRITE_AT: u64 = 10;
/// The rate is that of so long.
const WINDOW: Duration = Duration::from_secs(15);
/// Shortest time that says anything about a rate.
const SHORTEST: Duration = Duration::from_millis(900);
/// Nobody that was silent for so long is remembered.
const FORGET: Duration = Duration::from_secs(600);

/// What an event is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Bytes a second, once there is enough to tell.
    pub rate: Option<i64>,
    /// Whether it is to be written.
    pub due: bool,
}

/// The steps under way, by namespace and name of the host.
#[derive(Default)]
pub struct Meter(Mutex<HashMap<(String, String), Run>>);

/// One phase of one step.
struct Run {
    step: String,
    phase: String,
    message: Option<String>,
    samples: VecDeque<(Instant, u64)>,
    written: Instant,
    written_percent: u64,
    last: Instant,
}

impl Meter {
    /// Takes an event in that came now.
    pub fn see(&self, host: (String, String), event: &Event, now: Instant) -> Seen {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, run| now.saturating_duration_since(run.last) < FORGET);
        let same = |run: &&mut Run| run.step == event.step && run.phase == event.phase && run.message == event.message;
        if let Some(run) = runs.get_mut(&host).filter(same) {
            return run.go_on(event, now);
        }
        let mut run = Run {
            step: event.step.clone(),
            phase: event.phase.clone(),
            message: event.message.clone(),
            samples: VecDeque::new(),
            written: now,
            written_percent: percent(event),
            last: now,
        };
        run.sample(event, now);
        runs.insert(host, run);
        Seen { rate: None, due: true }
    }
}

impl Run {
    fn go_on(&mut self, event: &Event, now: Instant) -> Seen {
        self.last = now;
        self.sample(event, now);
        let percent = percent(event);
        let due = now.saturating_duration_since(self.written) >= WRITE_EVERY
            || percent >= self.written_percent + WRITE_AT
            || (percent == 100 && self.written_percent < 100);
        if due {
            self.written = now;
            self.written_percent = percent;
        }
        Seen { rate: self.rate(), due }
    }

    fn sample(&mut self, event: &Event, now: Instant) {
        let Some(done) = event.bytes_done else { return };
        if self.samples.back().is_some_and(|(_, before)| done < *before) {
            // It began again.
            self.samples.clear();
        }
        self.samples.push_back((now, done));
        let old = |samples: &VecDeque<(Instant, u64)>| {
            samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW)
        };
        while old(&self.samples) {
            self.samples.pop_front();
        }
    }

    fn rate(&self) -> Option<i64> {
        let ((first, before), (last, done)) = (self.samples.front()?, self.samples.back()?);
        let took = last.saturating_duration_since(*first);
        if took < SHORTEST {
            return None;
        }
        let rate = u128::from(done - before) * 1_000_000_000 / took.as_nanos();
        i64::try_from(rate).ok()
    }
}

fn percent(event: &Event) -> u64 {
    match (event.bytes_done, event.bytes_total) {
        (Some(done), Some(total)) if total > 0 => done.saturating_mul(100) / total,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(phase: &str, done: u64) -> Event {
        Event {
            step: "1.1".into(),
            phase: phase.into(),
            bytes_done: Some(done),
            bytes_total: Some(1_000_000_000),
            message: None,
        }
    }

    #[test]
    fn the_rate_follows_real_time_and_writes_are_few() {
        let meter = Meter::default();
        let start = Instant::now();
        let host = || ("ns".to_owned(), "h".to_owned());
        let see =
            |millis: u64, done: u64| meter.see(host(), &event("writing", done), start + Duration::from_millis(millis));
        let seen = |rate: Option<i64>, due| Seen { rate, due };
        assert_eq!(see(0, 0), seen(None, true), "the first");
        assert_eq!(see(500, 10_000_000), seen(None, false), "too short to tell");
        assert_eq!(see(1_000, 20_000_000), seen(Some(20_000_000), false));
        assert_eq!(see(2_050, 41_000_000), seen(Some(20_000_000), false), "whatever the clock's seconds say");
        assert_eq!(see(5_000, 100_000_000), seen(Some(20_000_000), true), "five seconds, and ten percent");
        assert_eq!(see(5_500, 110_000_000), seen(Some(20_000_000), false));
        assert_eq!(see(6_000, 210_000_000), seen(Some(35_000_000), true), "ten percent more");
        assert_eq!(see(60_000, 210_000_000), seen(Some(0), true), "it stands still");
        assert_eq!(see(61_000, 0), seen(None, false), "and begins again");
        assert!(see(62_000, 1_000_000_000).due, "done");
        assert_eq!(meter.see(host(), &event("checking", 0), start + Duration::from_secs(63)), seen(None, true));
        let other = ("ns".to_owned(), "other".to_owned());
        meter.see(other, &event("x", 0), start + Duration::from_secs(3600));
        assert_eq!(meter.0.lock().expect("free").len(), 1, "who is silent is forgotten");
    }

    #[test]
    fn a_step_without_bytes_is_written_when_it_says_something_new_and_every_five_seconds() {
        let meter = Meter::default();
        let start = Instant::now();
        let see = |seconds: u64, message: Option<&str>| {
            let event = Event {
                step: "1.1".into(),
                phase: "waiting".into(),
                message: message.map(Into::into),
                ..Event::default()
            };
            meter.see(("ns".into(), "h".into()), &event, start + Duration::from_secs(seconds)).due
        };
        for (seconds, message, due) in [
            (0, None, true),
            (1, None, false),
            (2, Some("disk"), true),
            (3, Some("disk"), false),
            (7, Some("disk"), true),
        ] {
            assert_eq!(see(seconds, message), due, "{seconds}");
        }
    }
}

//! Progress of steps: rate, and when it is stored.
//!
//! How fast a step goes, and when that is worth a write: agents tell every second, and a thousand of them must not
//! keep the store busy.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::protocol::StepEvent;

/// Least time between two writes of one host, whatever its agent says.
const PAUSE: Duration = Duration::from_secs(1);
/// Least time between two writes of one phase that has nothing new to say.
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
pub struct EventWorth {
    /// Bytes a second, once there is enough to tell.
    pub rate: Option<i64>,
    /// When it is to be written.
    pub due: ProgressDue,
}

/// When what an agent says is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressDue {
    /// At once.
    Now,
    /// After so long: then what [`ProgressRate::take`] gives, which is the last that was said by then.
    In(Duration),
    /// Not by itself; somebody else may be about to write.
    No,
}

/// The steps under way, by namespace and name of the host.
#[derive(Default)]
pub struct ProgressRate(Mutex<HashMap<(String, String), PhaseRun>>);

/// One phase of one step.
struct PhaseRun {
    step: String,
    phase: String,
    message: Option<String>,
    samples: VecDeque<(Instant, u64)>,
    written: Instant,
    written_percent: u64,
    last: Instant,
    /// What is to be written when the pause is over.
    waiting: Option<StepEvent>,
}

impl ProgressRate {
    /// Takes an event in that came now.
    pub fn see(&self, host: (String, String), event: &StepEvent, now: Instant) -> EventWorth {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, run| now.saturating_duration_since(run.last) < FORGET);
        match runs.get_mut(&host) {
            Some(run) if run.is_about(event) => run.go_on(event, now),
            Some(run) => {
                *run = PhaseRun { written: run.written, waiting: run.waiting.take(), ..PhaseRun::of(event, now) };
                EventWorth { rate: None, due: run.write(event, now) }
            }
            None => {
                runs.insert(host, PhaseRun::of(event, now));
                EventWorth { rate: None, due: ProgressDue::Now }
            }
        }
    }

    /// What was to be written now, and its rate; nothing when it has been written or is past.
    pub fn take(&self, host: &(String, String), now: Instant) -> Option<(StepEvent, Option<i64>)> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let run = runs.get_mut(host)?;
        let event = run.waiting.take()?;
        run.has_written(&event, now);
        Some((event, run.rate()))
    }

    /// A step is over: what was to be written of it is not written any more.
    pub fn end(&self, host: &(String, String)) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = runs.get_mut(host) {
            run.waiting = None;
        }
    }
}

impl PhaseRun {
    /// One that begins now and is written.
    fn of(event: &StepEvent, now: Instant) -> Self {
        let mut run = Self {
            step: event.step.clone(),
            phase: event.phase.clone(),
            message: event.message.clone(),
            samples: VecDeque::new(),
            written: now,
            written_percent: percent(event),
            last: now,
            waiting: None,
        };
        run.sample(event, now);
        run
    }

    fn is_about(&self, event: &StepEvent) -> bool {
        self.step == event.step && self.phase == event.phase && self.message == event.message
    }

    /// When an event that is worth a write is written.
    fn write(&mut self, event: &StepEvent, now: Instant) -> ProgressDue {
        let left = PAUSE.saturating_sub(now.saturating_duration_since(self.written));
        if left.is_zero() {
            self.waiting = None;
            self.has_written(event, now);
            return ProgressDue::Now;
        }
        let others = self.waiting.replace(event.clone());
        if others.is_some() { ProgressDue::No } else { ProgressDue::In(left) }
    }

    fn has_written(&mut self, event: &StepEvent, now: Instant) {
        self.written = now;
        self.written_percent = percent(event);
    }

    fn go_on(&mut self, event: &StepEvent, now: Instant) -> EventWorth {
        self.last = now;
        self.sample(event, now);
        let percent = percent(event);
        let is_worth = self.waiting.is_some()
            || now.saturating_duration_since(self.written) >= WRITE_EVERY
            || percent >= self.written_percent + WRITE_AT
            || (percent == 100 && self.written_percent < 100);
        let due = if is_worth { self.write(event, now) } else { ProgressDue::No };
        EventWorth { rate: self.rate(), due }
    }

    fn sample(&mut self, event: &StepEvent, now: Instant) {
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

fn percent(event: &StepEvent) -> u64 {
    match (event.bytes_done, event.bytes_total) {
        (Some(done), Some(total)) if total > 0 => done.saturating_mul(100) / total,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(phase: &str, done: u64) -> StepEvent {
        StepEvent {
            step: "1.1".into(),
            phase: phase.into(),
            bytes_done: Some(done),
            bytes_total: Some(1_000_000_000),
            message: None,
        }
    }

    #[test]
    fn the_rate_follows_real_time_and_writes_are_few() {
        let meter = ProgressRate::default();
        let start = Instant::now();
        let host = || ("ns".to_owned(), "h".to_owned());
        let see =
            |millis: u64, done: u64| meter.see(host(), &event("writing", done), start + Duration::from_millis(millis));
        let seen = |rate: Option<i64>, due: bool| EventWorth {
            rate,
            due: if due { ProgressDue::Now } else { ProgressDue::No },
        };
        assert_eq!(see(0, 0), seen(None, true), "the first");
        assert_eq!(see(500, 10_000_000), seen(None, false), "too short to tell");
        assert_eq!(see(1_000, 20_000_000), seen(Some(20_000_000), false));
        assert_eq!(see(2_050, 41_000_000), seen(Some(20_000_000), false), "whatever the clock's seconds say");
        assert_eq!(see(5_000, 100_000_000), seen(Some(20_000_000), true), "five seconds, and ten percent");
        assert_eq!(see(5_500, 110_000_000), seen(Some(20_000_000), false));
        assert_eq!(see(6_000, 210_000_000), seen(Some(35_000_000), true), "ten percent more");
        assert_eq!(see(60_000, 210_000_000), seen(Some(0), true), "it stands still");
        assert_eq!(see(61_000, 0), seen(None, false), "and begins again");
        assert_eq!(see(62_000, 1_000_000_000).due, ProgressDue::Now, "done");
        assert_eq!(meter.see(host(), &event("checking", 0), start + Duration::from_secs(63)), seen(None, true));
        let other = ("ns".to_owned(), "other".to_owned());
        meter.see(other, &event("x", 0), start + Duration::from_secs(3600));
        assert_eq!(meter.0.lock().expect("free").len(), 1, "who is silent is forgotten");
    }

    #[test]
    fn of_what_is_said_within_a_second_the_last_is_written_when_it_is_over() {
        let meter = ProgressRate::default();
        let start = Instant::now();
        let host = ("ns".to_owned(), "h".to_owned());
        let at = |millis: u64| start + Duration::from_millis(millis);
        let see = |millis: u64, phase: &str, done: u64| meter.see(host.clone(), &event(phase, done), at(millis)).due;
        let take = |millis: u64| meter.take(&host, at(millis)).map(|(event, _)| (event.phase, event.bytes_done));
        assert_eq!(see(0, "a", 0), ProgressDue::Now);
        assert_eq!(see(100, "b", 0), ProgressDue::In(Duration::from_millis(900)));
        assert_eq!(see(200, "c", 0), ProgressDue::No, "somebody waits already");
        assert_eq!(see(300, "c", 7), ProgressDue::No);
        assert_eq!(take(1_000), Some(("c".into(), Some(7))));
        assert_eq!(take(1_000), None);
        assert_eq!(
            see(1_100, "c", 900_000_000),
            ProgressDue::In(Duration::from_millis(900)),
            "more percent in a second"
        );
        assert_eq!(see(2_000, "d", 0), ProgressDue::Now, "the second is over before who waits for it wakes");
        assert_eq!(take(2_001), None);
        assert_eq!(see(2_500, "e", 0), ProgressDue::In(Duration::from_millis(500)));
        meter.end(&host);
        assert_eq!(take(3_000), None, "its step is over");
        assert_eq!(see(3_000, "f", 0), ProgressDue::Now);
    }

    #[test]
    fn a_step_without_bytes_is_written_when_it_says_something_new_and_every_five_seconds() {
        let meter = ProgressRate::default();
        let start = Instant::now();
        let see = |seconds: u64, message: Option<&str>| {
            let event = StepEvent {
                step: "1.1".into(),
                phase: "waiting".into(),
                message: message.map(Into::into),
                ..StepEvent::default()
            };
            meter.see(("ns".into(), "h".into()), &event, start + Duration::from_secs(seconds)).due == ProgressDue::Now
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

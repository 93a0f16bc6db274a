//! Batching: whether messages come so fast that it is worth letting some gather. Pure; time is a parameter.

use std::time::{Duration, Instant};

/// Messages that come more often than this are many.
const FEW: Duration = Duration::from_millis(1);
/// That many more than a few, and they are let gather.
const BUSY: Duration = Duration::from_millis(8);
/// A storm is forgotten after that.
const LONGEST: Duration = Duration::from_millis(16);
/// How long they gather. A flush of the store costs as much as many messages, and so does waking up; the kernel's queue
/// holds what ten thousand machines could send meanwhile, and no client waits for less than a second.
const GATHER: Duration = Duration::from_millis(4);

/// A bucket that each message fills a little and that time empties.
#[derive(Debug, Default)]
pub struct Batching {
    filled: Duration,
    since: Option<Instant>,
}

impl Batching {
    /// Notes how many messages the turn that ends now had. Returns how long to wait before the next one.
    pub fn delay_after(&mut self, now: Instant, messages: usize) -> Option<Duration> {
        let passed = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let added = FEW.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX));
        self.filled = self.filled.saturating_sub(passed).saturating_add(added).min(LONGEST);
        self.since = Some(now);
        (self.filled >= BUSY).then_some(GATHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_clients_are_answered_at_once_and_a_storm_gathers_until_it_is_over() {
        let mut batching = Batching::default();
        let mut now = Instant::now();
        let mut turn = |passed: u64, messages: usize| {
            now += Duration::from_micros(passed);
            batching.delay_after(now, messages).is_some()
        };
        // Five hundred messages a second, for ever.
        assert!((0..10_000).all(|_| !turn(2_000, 1)));
        // Four thousand, one by one.
        assert!((0..9).all(|_| !turn(250, 1)));
        assert!((0..100).map(|_| turn(250, 1)).filter(|waits| *waits).count() > 90);
        // Forty at a time.
        assert!((0..100).all(|_| turn(4_000, 40)));
        assert!(turn(4_000, 0) && turn(4_000, 0));
        assert!(!turn(4_000, 0) && !turn(0, 1));
    }
}

//! Log suppression: a machine that says the same thing all day, or a thousand that do, leave the log readable.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How long one subject is quiet after a line.
const AGAIN: Duration = Duration::from_secs(60);
/// Lines in each [`AGAIN`], over all subjects.
const LINES: usize = 100;

/// Lets through one line for each subject and minute, and at most so many in all.
#[derive(Debug)]
pub struct LogRateLimit<S> {
    said: HashMap<S, ()>,
    since: Option<Instant>,
    dropped: u64,
}

impl<S> Default for LogRateLimit<S> {
    fn default() -> Self {
        Self { said: HashMap::new(), since: None, dropped: 0 }
    }
}

impl<S: Eq + Hash> LogRateLimit<S> {
    /// Whether a line about the subject may be written now. The second value is how many were left out in the last
    /// minute, once.
    pub fn may_log(&mut self, now: Instant, subject: S) -> (bool, u64) {
        let mut dropped = 0;
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= AGAIN) {
            self.said.clear();
            self.since = Some(now);
            dropped = std::mem::take(&mut self.dropped);
        }
        let may = self.said.len() < LINES && self.said.insert(subject, ()).is_none();
        self.dropped += u64::from(!may);
        (may, dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_speaks_once_a_minute_and_all_together_not_without_end() {
        let mut limit = LogRateLimit::default();
        let start = Instant::now();
        assert_eq!(limit.may_log(start, 1), (true, 0));
        assert_eq!(limit.may_log(start, 1), (false, 0));
        for subject in 2..=1000 {
            assert_eq!(limit.may_log(start, subject).0, subject <= 100, "{subject}");
        }
        assert_eq!(limit.may_log(start + AGAIN, 1), (true, 901));
    }
}

//! How slow a sender may be: whoever brings next to nothing keeps a place from others.

use std::time::Duration;

/// So long a sender is waited for before it is looked at what he brought.
const WINDOW: Duration = Duration::from_secs(10);
/// Least that he brings meanwhile, in bytes. With less, a GiB would take half a day.
const LEAST: u64 = 256 << 10;

/// What a sender brought, and how long he was waited for: what the disk takes is not his fault.
#[derive(Debug)]
pub(super) struct UploadPace {
    window: Duration,
    waited: Duration,
    bytes: u64,
}

impl Default for UploadPace {
    fn default() -> Self {
        Self::new(WINDOW)
    }
}

impl UploadPace {
    /// With a look after so long.
    pub(super) fn new(window: Duration) -> Self {
        Self { window, waited: Duration::ZERO, bytes: 0 }
    }

    /// How long may be waited for what comes next.
    pub(super) fn left(&self) -> Duration {
        self.window.saturating_sub(self.waited)
    }

    /// He was waited for so long, and brought this. Whether it is enough.
    pub(super) fn keeps_up(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.window {
            return true;
        }
        std::mem::replace(self, Self::new(self.window)).bytes >= LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_brings_too_little_in_a_window_is_too_slow() {
        type Steps = &'static [(u64, u64)];
        // seconds, bytes; how many steps he keeps up
        let rows: [(Steps, usize); 6] = [
            (&[(0, 1), (9, 1), (1, 1)], 2),
            (&[(10, 0)], 0),
            (&[(9, LEAST), (1, 0), (9, 0), (1, 0)], 3),
            (&[(9, LEAST), (1, 0), (10, LEAST), (10, LEAST - 1)], 3),
            (&[(60, LEAST)], 1),
            // A byte each second.
            (&[(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)], 9),
        ];
        for (steps, kept_up) in rows {
            let mut pace = UploadPace::default();
            let goes_on = |(seconds, bytes): &&(u64, u64)| pace.keeps_up(Duration::from_secs(*seconds), *bytes);
            assert_eq!(steps.iter().take_while(goes_on).count(), kept_up, "{steps:?}");
        }
        let mut pace = UploadPace::default();
        assert!(pace.keeps_up(Duration::from_secs(4), 0) && pace.left() == Duration::from_secs(6));
    }
}

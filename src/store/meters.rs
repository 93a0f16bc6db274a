//! What the committer counts and measures, for whoever publishes it.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Counters and histograms of a store. Clones share their values.
#[derive(Clone, Debug)]
pub struct Meters {
    /// Groups that went to disk.
    pub commits: Counter,
    /// Requests in a group that went to disk.
    pub group_size: Histogram,
    /// Seconds that a group took to be on disk.
    pub commit_seconds: Histogram,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            commits: Counter::default(),
            group_size: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            // 0.1 ms to 1.6 s.
            commit_seconds: Histogram::new(exponential_buckets(0.0001, 2.0, 15)),
        }
    }
}

impl Meters {
    pub(super) fn committed(&self, requests: usize, took: Duration) {
        self.commits.inc();
        self.group_size.observe(requests as f64);
        self.commit_seconds.observe(took.as_secs_f64());
    }
}

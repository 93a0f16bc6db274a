//! Metrics of the committer.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Counters and histograms of a store. Clones share their values.
#[derive(Clone, Debug)]
pub struct StoreMeters {
    /// Groups that went to disk.
    pub commits: Counter,
    /// Requests in a group that went to disk.
    pub group_size: Histogram,
    /// Seconds that a group took to be on disk.
    pub commit_seconds: Histogram,
    /// Times that the database was written anew.
    pub rewrites: Counter,
    /// Seconds that writing the database anew took.
    pub rewrite_seconds: Histogram,
    /// Bytes that all objects, events and table entries take on disk, once they are written anew.
    pub live_bytes: Gauge,
    /// Bytes that base and journal take of the disk.
    pub disk_bytes: Gauge,
}

impl Default for StoreMeters {
    fn default() -> Self {
        Self {
            commits: Counter::default(),
            group_size: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            // 0.1 ms to 1.6 s.
            commit_seconds: Histogram::new(exponential_buckets(0.0001, 2.0, 15)),
            rewrites: Counter::default(),
            // 10 ms to 10 s.
            rewrite_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 11)),
            live_bytes: Gauge::default(),
            disk_bytes: Gauge::default(),
        }
    }
}

impl StoreMeters {
    pub(super) fn committed(&self, requests: usize, took: Duration) {
        self.commits.inc();
        self.group_size.observe(requests as f64);
        self.commit_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn rewritten(&self, took: Duration) {
        self.rewrites.inc();
        self.rewrite_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn sized(&self, live: usize, disk: u64) {
        self.live_bytes.set(i64::try_from(live).unwrap_or(i64::MAX));
        self.disk_bytes.set(i64::try_from(disk).unwrap_or(i64::MAX));
    }
}

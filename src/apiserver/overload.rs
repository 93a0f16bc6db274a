//! How much is done at once: reads, writes and watches apart, so that none of them starves the others.
//!
//! What is too much is refused at once with 429 and told when to come back; clients of Kubernetes do so by themselves.
//! Slipway's own rooms are never refused: they are few, and the appliance's work depends on them.

use std::sync::Arc;

use http::{Method, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::status::ApiError;

/// Reads under way, as upstream's `--max-requests-inflight`.
pub(super) const READS: usize = 400;
/// Writes under way, as upstream's `--max-mutating-requests-inflight`.
pub(super) const WRITES: usize = 200;
/// Watches.
pub(super) const WATCHES: usize = 10_000;

/// Places for requests.
pub(super) struct Places {
    pub reads: Arc<Semaphore>,
    pub writes: Arc<Semaphore>,
    pub watches: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { reads: places(READS), writes: places(WRITES), watches: places(WATCHES) }
    }
}

impl Places {
    /// A place for a request that is answered at once.
    pub fn for_request(&self, method: &Method) -> Result<OwnedSemaphorePermit, ApiError> {
        take(if is_read(method) { &self.reads } else { &self.writes })
    }

    /// A place for a watch, kept for as long as it lasts.
    pub fn for_watch(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        take(&self.watches)
    }

    /// Reads and writes under way.
    pub fn taken(&self) -> (usize, usize) {
        (READS.saturating_sub(self.reads.available_permits()), WRITES.saturating_sub(self.writes.available_permits()))
    }
}

/// Whether a method only reads.
pub(super) fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn take(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        let message = "Too many requests, please try again later.";
        let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        error.details = serde_json::json!({"retryAfterSeconds": 1});
        error
    })
}

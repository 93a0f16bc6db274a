//! Concurrency limits of the API, shared among callers.
//!
//! How much is done at once: reads, writes, watches and what they take of memory, each apart and shared among callers, so
//! that none of them starves the others.
//!
//! What is too much is refused at once with 429 and told when to come back; clients of Kubernetes do so by themselves.
//! Slipway's own rooms are never refused: they are few, and the appliance's work depends on them.

use http::{Method, StatusCode};

use super::caller_shares::{CallerShare, CallerShares};
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::auth::UserIdentity;
use crate::apiserver::objects::selectors::ObjectSelector;

/// Reads under way, as upstream's `--max-requests-inflight`.
pub(in crate::apiserver) const READS: usize = 400;
/// Writes under way, as upstream's `--max-mutating-requests-inflight`.
pub(in crate::apiserver) const WRITES: usize = 200;
/// Watches.
pub(in crate::apiserver) const WATCHES: usize = 10_000;
/// Logs that are read, most of them for as long as they grow: each is looked at twice a second.
pub(in crate::apiserver) const LOGS: usize = 400;
/// Keys and values in the selector of a watch with which it counts as one more.
const PARTS_OF_A_WATCH: usize = 8;
/// Reads that wait for a revision that is still to come.
const WAITS: usize = 1000;
/// Bytes of bodies that came, of requests that are not done.
const BODY_BYTES: usize = 128 << 20;
/// JSON values that writes work on: each takes up to a kilobyte while its object is patched, checked and completed.
const VALUES: usize = 400_000;
/// Values up to which an object is not worth counting.
const FEW_VALUES: usize = 4000;

/// How many requests are in flight, and what they take.
pub(in crate::apiserver) struct InflightLimits {
    reads: CallerShares,
    writes: CallerShares,
    watches: CallerShares,
    logs: CallerShares,
    waits: CallerShares,
    bodies: CallerShares,
    values: CallerShares,
}

impl Default for InflightLimits {
    fn default() -> Self {
        Self {
            reads: CallerShares::new(READS),
            writes: CallerShares::new(WRITES),
            watches: CallerShares::new(WATCHES),
            logs: CallerShares::new(LOGS),
            waits: CallerShares::new(WAITS),
            bodies: CallerShares::new(BODY_BYTES),
            values: CallerShares::new(VALUES),
        }
    }
}

/// A permit, or none for those who need none.
pub(in crate::apiserver) type InflightPermit = Option<CallerShare>;

impl InflightLimits {
    /// A permit for a request that is answered at once.
    pub fn for_request(&self, method: &Method, identity: &UserIdentity) -> Result<InflightPermit, ApiError> {
        acquire(if is_read(method) { &self.reads } else { &self.writes }, identity, 1)
    }

    /// A permit for a watch, kept for as long as it lasts. Each change is held against the selector of every watch of its kind,
    /// so one with a long selector counts as several.
    pub fn for_watch(&self, identity: &UserIdentity, selector: &ObjectSelector) -> Result<InflightPermit, ApiError> {
        acquire(&self.watches, identity, 1 + selector.parts() / PARTS_OF_A_WATCH)
    }

    /// A permit for a log, kept for as long as it is sent.
    pub fn for_log(&self, identity: &UserIdentity) -> Result<InflightPermit, ApiError> {
        acquire(&self.logs, identity, 1)
    }

    /// A permit to wait for a revision.
    pub fn for_wait(&self, identity: &UserIdentity) -> Result<InflightPermit, ApiError> {
        acquire(&self.waits, identity, 1)
    }

    /// Room for a body, which grows as it comes.
    pub fn for_body(&self, identity: &UserIdentity) -> Result<InflightPermit, ApiError> {
        acquire(&self.bodies, identity, 0)
    }

    /// Room for work on so many values, which are counted only for who is held to them.
    pub fn for_values(
        &self,
        identity: &UserIdentity,
        count: impl FnOnce() -> usize,
    ) -> Result<InflightPermit, ApiError> {
        let values = if identity.is_in_process() { 0 } else { count() };
        if values < FEW_VALUES { Ok(None) } else { acquire(&self.values, identity, values) }
    }

    /// Bytes of bodies of requests that are not done.
    #[cfg(test)]
    pub fn bodies(&self) -> usize {
        self.bodies.taken()
    }

    /// Reads and writes under way.
    pub fn taken(&self) -> (usize, usize) {
        (self.reads.taken(), self.writes.taken())
    }
}

/// Whether a method only reads.
pub(in crate::apiserver) fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn acquire(limit: &CallerShares, identity: &UserIdentity, amount: usize) -> Result<InflightPermit, ApiError> {
    if identity.is_in_process() {
        return Ok(None);
    }
    limit.take(&identity.user, amount).map(Some).ok_or_else(too_many)
}

/// 429.
pub(in crate::apiserver) fn too_many() -> ApiError {
    let message = "Too many requests, please try again later.";
    let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
    error.details = serde_json::json!({"retryAfterSeconds": 1});
    error
}

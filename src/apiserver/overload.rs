//! How much is done at once: reads, writes and watches apart, so that none of them starves the others.
//!
//! What is too much is refused at once with 429 and told when to come back; clients of Kubernetes do so by themselves.
//! Slipway's own rooms are never refused: they are few, and the appliance's work depends on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::status::ApiError;

/// Reads under way, as upstream's `--max-requests-inflight`.
pub(super) const READS: usize = 400;
/// Writes under way, as upstream's `--max-mutating-requests-inflight`.
pub(super) const WRITES: usize = 200;
/// Watches.
pub(super) const WATCHES: usize = 10_000;
/// Watches that are kept for callers who have few, so that no caller takes them all.
const KEPT: usize = WATCHES / 4;
/// How many are few.
const FEW: usize = WATCHES / 40;

/// Places for requests.
pub(super) struct Places {
    pub reads: Arc<Semaphore>,
    pub writes: Arc<Semaphore>,
    watches: Arc<Mutex<Watches>>,
}

/// Watches by caller.
#[derive(Default)]
struct Watches {
    all: usize,
    callers: HashMap<String, usize>,
}

/// A watch's place, until it is dropped.
pub(super) struct WatchPlace {
    watches: Arc<Mutex<Watches>>,
    caller: String,
}

/// Whether a caller who has `own` of `all` watches may have one more.
fn may_watch(all: usize, own: usize) -> bool {
    all < WATCHES - KEPT || (all < WATCHES && own < FEW)
}

/// As whom a user counts. Whoever may make service accounts makes as many as they like, so those of a namespace
/// are one.
pub(super) fn caller(user: &str) -> &str {
    let prefix = "system:serviceaccount:";
    let namespace = user.strip_prefix(prefix).and_then(|rest| rest.find(':'));
    namespace.map_or(user, |length| &user[..prefix.len() + length])
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.all -= 1;
        if let Some(own) = watches.callers.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                watches.callers.remove(&self.caller);
            }
        }
    }
}

impl Default for Places {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { reads: places(READS), writes: places(WRITES), watches: Arc::default() }
    }
}

impl Places {
    /// A place for a request that is answered at once.
    pub fn for_request(&self, method: &Method) -> Result<OwnedSemaphorePermit, ApiError> {
        take(if is_read(method) { &self.reads } else { &self.writes })
    }

    /// A place for a watch of this user, kept for as long as it lasts.
    pub fn for_watch(&self, user: &str) -> Result<WatchPlace, ApiError> {
        let caller = caller(user);
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if !may_watch(watches.all, watches.callers.get(caller).copied().unwrap_or_default()) {
            return Err(too_many());
        }
        watches.all += 1;
        *watches.callers.entry(caller.to_owned()).or_default() += 1;
        Ok(WatchPlace { watches: Arc::clone(&self.watches), caller: caller.to_owned() })
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
    Arc::clone(places).try_acquire_owned().map_err(|_| too_many())
}

fn too_many() -> ApiError {
    let message = "Too many requests, please try again later.";
    let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
    error.details = serde_json::json!({"retryAfterSeconds": 1});
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_the_watches() {
        let places = Places::default();
        let take = |user: &str| places.for_watch(user).ok();
        let greedy: Vec<_> = std::iter::from_fn(|| take("greedy")).collect();
        assert_eq!(greedy.len(), WATCHES - KEPT);
        // Many accounts of one namespace are no more than one caller.
        let accounts: Vec<_> = (0..WATCHES).map_while(|i| take(&format!("system:serviceaccount:rack:a{i}"))).collect();
        assert_eq!(accounts.len(), FEW);
        let others: Vec<_> = (0..9).flat_map(|i| (0..FEW).map(move |_| format!("user {i}"))).collect();
        let others: Vec<_> = others.iter().map(|user| take(user)).collect();
        assert!(others.iter().all(Option::is_some), "the share of the others");
        assert!(take("late").is_none(), "there are {WATCHES} in all");
        drop(others);
        assert!(take("greedy").is_none() && take("late").is_some());
        drop((greedy, accounts));
        let watches = places.watches.lock().expect("unpoisoned");
        assert!(watches.all == 0 && watches.callers.is_empty());
    }

    #[test]
    fn service_accounts_count_by_namespace() {
        for (user, counted) in [
            ("slipway-admin", "slipway-admin"),
            ("system:serviceaccount:rack:bot", "system:serviceaccount:rack"),
            ("system:serviceaccount:rack:other", "system:serviceaccount:rack"),
            ("system:serviceaccount:", "system:serviceaccount:"),
            ("", ""),
        ] {
            assert_eq!(caller(user), counted, "{user}");
        }
    }
}

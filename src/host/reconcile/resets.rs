//! Resets done, remembered until their annotation is removed.
//!
//! Resets that were done and whose requests are still there, because they could not be taken off: by a full disk, or because
//! somebody wrote the host meanwhile. None of them is done again for that. Kept in memory only: after a crash between the
//! two there is one reset more.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;

use crate::api::metal3::BareMetalHost;

/// Requests for a reboot: annotations and what they hold.
pub(in crate::host) type Requests = BTreeMap<String, String>;

/// By UID of the host, the requests that its last reset served.
#[derive(Default)]
pub(in crate::host) struct Resets(Mutex<HashMap<String, Requests>>);

impl Resets {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Requests>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the machine was reset for each of these already.
    pub(in crate::host) fn served(&self, uid: &str, requests: &Requests) -> bool {
        let all = self.all();
        let done = all.get(uid);
        requests.iter().all(|(key, value)| done.is_some_and(|done| done.get(key) == Some(value)))
    }

    pub(in crate::host) fn put(&self, uid: &str, requests: Requests) {
        self.all().insert(uid.to_owned(), requests);
    }

    pub(in crate::host) fn forget(&self, uid: &str) {
        self.all().remove(uid);
    }
}

/// What these annotations of a host ask for.
pub(in crate::host) fn requests(host: &BareMetalHost, keys: &[String]) -> Requests {
    let value = |key: &String| host.annotations().get(key).cloned().unwrap_or_default();
    keys.iter().map(|key| (key.clone(), value(key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_served_is_served_until_it_is_forgotten_and_new_requests_are_not() {
        let requests = |pairs: &[(&str, &str)]| -> Requests {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let resets = Resets::default();
        assert!(!resets.served("u", &requests(&[("a", "")])));
        resets.put("u", requests(&[("a", ""), ("b", "1")]));
        for (uid, pairs, served) in [
            ("u", &[("a", ""), ("b", "1")][..], true),
            ("u", &[("b", "1")], true),
            ("u", &[("b", "2")], false),
            ("u", &[("a", ""), ("c", "")], false),
            ("v", &[("a", "")], false),
        ] {
            assert_eq!(resets.served(uid, &requests(pairs)), served, "{uid} {pairs:?}");
        }
        resets.forget("u");
        assert!(!resets.served("u", &requests(&[("b", "1")])));
    }
}

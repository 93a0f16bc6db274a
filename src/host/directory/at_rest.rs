//! Hosts at rest: which revisions the reconciler knew when it decided to wait.
//!
//! Every write wakes its host, the reconciler's own too, and of its own it knows already. A host that was woken by nothing else
//! need not be looked at again: a look reads the host and all around it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;

use super::host_view::HostView;
use crate::api::metal3::BareMetalHost;
use crate::api::slipway::BootIntent;
use crate::runtime::ObjectKey;

/// Hosts that wait, by name. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::host) struct AtRest(Arc<Mutex<HashMap<ObjectKey, RestState>>>);

enum RestState {
    /// A look is under way.
    Looking,
    /// It waits. No revision where there was no boot intent.
    Resting { host: u64, intent: Option<u64>, until: Instant },
}

impl AtRest {
    fn hosts(&self) -> MutexGuard<'_, HashMap<ObjectKey, RestState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look begins, from whose end on the host may rest.
    pub(in crate::host) fn look(&self, key: ObjectKey) {
        self.hosts().insert(key, RestState::Looking);
    }

    /// The host waits from now on, which was decided of these, unless something else changed during the look. Revisions that are
    /// no numbers tell nothing of what came after.
    pub(in crate::host) fn begin(
        &self,
        key: &ObjectKey,
        host: &BareMetalHost,
        intent: Option<&BootIntent>,
        pause: Duration,
    ) {
        let (Some(host), Ok(intent)) = (revision(host), intent.map(|intent| revision(intent).ok_or(())).transpose())
        else {
            return;
        };
        if let Some(state @ RestState::Looking) = self.hosts().get_mut(key) {
            *state = RestState::Resting { host, intent, until: Instant::now() + pause };
        }
    }

    /// Something else has changed: the host is to be looked at, and again after a look that is under way.
    pub(in crate::host) fn end(&self, key: &ObjectKey) {
        self.hosts().remove(key);
    }

    /// No host waits any more.
    pub(in crate::host) fn clear(&self) {
        self.hosts().clear();
    }

    /// How long the host still waits when these show nothing newer than what was decided of; none when it is to be looked at.
    pub(in crate::host) fn goes_on(
        &self,
        key: &ObjectKey,
        host: &HostView,
        intent: Option<&BootIntent>,
    ) -> Option<Duration> {
        let hosts = self.hosts();
        let Some(RestState::Resting { host: known, intent: known_intent, until }) = hosts.get(key) else { return None };
        let host_is_known = revision(host)? <= *known;
        let intent_is_known = match (intent, known_intent) {
            (None, known) => known.is_none(),
            (Some(intent), Some(known)) => revision(intent)? <= *known,
            (Some(_), None) => false,
        };
        let left = until.checked_duration_since(Instant::now())?;
        (host_is_known && intent_is_known).then_some(left)
    }
}

fn revision(object: &impl ResourceExt) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(revision: &str) -> BareMetalHost {
        let mut host = BareMetalHost::new("h", Default::default());
        host.metadata.resource_version = Some(revision.into());
        host
    }

    fn intent(revision: &str) -> BootIntent {
        let mut intent = BootIntent::new("h", Default::default());
        intent.metadata.resource_version = Some(revision.into());
        intent
    }

    #[test]
    fn a_host_rests_until_something_new_is_seen_or_its_time_has_come() {
        let key: ObjectKey = ("ns".into(), "h".into());
        let minute = Duration::from_secs(60);
        for (known, known_intent, pause, seen, seen_intent, rests) in [
            ("7", Some("9"), minute, "7", Some("9"), true),
            // The watch is behind what was written.
            ("7", Some("9"), minute, "6", Some("8"), true),
            ("7", Some("9"), minute, "8", Some("9"), false),
            ("7", Some("9"), minute, "7", Some("10"), false),
            ("7", Some("9"), minute, "7", None, false),
            ("7", None, minute, "7", None, true),
            ("7", None, minute, "7", Some("1"), false),
            ("7", None, Duration::ZERO, "7", None, false),
            // Revisions of an API server that counts in no numbers.
            ("a", None, minute, "a", None, false),
            ("7", Some("a"), minute, "7", Some("a"), false),
        ] {
            let rest = AtRest::default();
            rest.look(key.clone());
            rest.begin(&key, &host(known), known_intent.map(intent).as_ref(), pause);
            let left = rest.goes_on(&key, &HostView::from(&host(seen)), seen_intent.map(intent).as_ref());
            assert_eq!(left.is_some(), rests, "{known} {known_intent:?} {seen} {seen_intent:?}");
            assert!(left.is_none_or(|left| left <= pause));
        }
    }

    #[test]
    fn what_changes_during_a_look_is_looked_at_after_it() {
        let key: ObjectKey = ("ns".into(), "h".into());
        let rests = |rest: &AtRest| rest.goes_on(&key, &HostView::from(&host("7")), None).is_some();
        let begin = |rest: &AtRest| rest.begin(&key, &host("7"), None, Duration::from_secs(60));
        let rest = AtRest::default();
        rest.look(key.clone());
        rest.end(&key);
        begin(&rest);
        assert!(!rests(&rest));
        rest.look(key.clone());
        assert!(!rests(&rest));
        begin(&rest);
        assert!(rests(&rest));
        rest.end(&key);
        assert!(!rests(&rest));
    }
}

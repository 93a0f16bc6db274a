//! What is under way at the BMCs of hosts is broken off when nobody wants its outcome any more.
//!
//! A host that is deleted while it is detached goes without its machine. A BMC that does not answer would keep it for minutes all the
//! same, until what it was last asked for has failed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::api::metal3::BareMetalHost;
use crate::host::lifecycle;
use crate::runtime::{ObjectKey, WatchChange, Watches, key};

/// Hosts whose machines are asked for nothing more, and what is under way. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::host) struct Interrupts(Arc<Mutex<InterruptState>>);

#[derive(Default)]
struct InterruptState {
    untouched: HashSet<ObjectKey>,
    under_way: HashMap<ObjectKey, CancellationToken>,
}

/// Forgets what was under way, whether it came to its end or was dropped.
struct InterruptGuard<'a> {
    interrupts: &'a Interrupts,
    key: &'a ObjectKey,
}

impl Drop for InterruptGuard<'_> {
    fn drop(&mut self) {
        self.interrupts.known().under_way.remove(self.key);
    }
}

impl Interrupts {
    /// Goes by what the watch tells of hosts.
    pub(in crate::host) fn follow(watches: &mut Watches) -> Self {
        let interrupts = Self::default();
        let told = interrupts.clone();
        watches.observe(move |change: &WatchChange<'_, BareMetalHost>| match change {
            WatchChange::Put(host) => told.set(key(*host), lifecycle::goes_untouched(host)),
            WatchChange::Gone(key) => told.set((*key).clone(), false),
            WatchChange::Listed => {}
        });
        interrupts
    }

    fn known(&self) -> MutexGuard<'_, InterruptState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, key: ObjectKey, untouched: bool) {
        let mut known = self.known();
        if !untouched {
            known.untouched.remove(&key);
            return;
        }
        if let Some(under_way) = known.under_way.get(&key) {
            under_way.cancel();
        }
        known.untouched.insert(key);
    }

    /// Does what is asked of the BMC of this host; none when it was broken off. Of each host one thing is done at a time.
    pub(in crate::host) async fn unless_untouched<T>(
        &self,
        key: &ObjectKey,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let token = CancellationToken::new();
        {
            let mut known = self.known();
            if known.untouched.contains(key) {
                return None;
            }
            known.under_way.insert(key.clone(), token.clone());
        }
        let _under_way = InterruptGuard { interrupts: self, key };
        token.run_until_cancelled(work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_is_asked_for_a_host_that_goes_untouched_is_broken_off() {
        let interrupts = Interrupts::default();
        let keys = [("ns".to_owned(), "a".to_owned()), ("ns".to_owned(), "b".to_owned())];
        let endless = |key: usize| interrupts.unless_untouched::<()>(&keys[key], std::future::pending());
        assert_eq!(interrupts.unless_untouched(&keys[0], async { 7 }).await, Some(7));
        assert!(interrupts.known().under_way.is_empty());
        let (mut first, mut second) = (Box::pin(endless(0)), Box::pin(endless(1)));
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        interrupts.set(keys[0].clone(), true);
        assert_eq!(futures::poll!(&mut first), std::task::Poll::Ready(None));
        assert!(futures::poll!(&mut second).is_pending());
        drop(second);
        assert!(interrupts.known().under_way.is_empty());
        // Asked for later by who has not seen the change yet.
        assert_eq!(endless(0).await, None);
        // Another host of this name.
        interrupts.set(keys[0].clone(), false);
        assert_eq!(interrupts.unless_untouched(&keys[0], async { 7 }).await, Some(7));
    }
}

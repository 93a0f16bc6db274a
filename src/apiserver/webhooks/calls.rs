//! Places of the calls of one configuration: so many at once, shared among callers who wait for their turn.
//!
//! A caller has three quarters of them at most, and the last quarter is for those who have none. Who waits goes on in
//! order of who has fewest calls under way, so that many calls of one caller are no queue in front of the others'.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// The places.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    most: usize,
    // std's lock: held to look who is next.
    state: Arc<Mutex<CallsState>>,
}

#[derive(Debug, Default)]
struct CallsState {
    all: usize,
    callers: HashMap<String, CallerCalls>,
    tickets: u64,
}

#[derive(Debug, Default)]
struct CallerCalls {
    under_way: usize,
    /// In the order in which they came.
    waiting: BTreeMap<u64, oneshot::Sender<CallPlace>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct CallPlace {
    of: Calls,
    caller: String,
}

/// Somebody who waits, until it is dropped.
struct WaitingCall<'c> {
    of: &'c Calls,
    caller: &'c str,
    ticket: u64,
}

impl Calls {
    /// So many.
    pub fn new(most: usize) -> Self {
        Self { most, state: Arc::default() }
    }

    /// Waits for a place for a caller.
    pub async fn acquire(&self, caller: &str) -> CallPlace {
        let (sender, receiver) = oneshot::channel();
        let ticket = self.with(|state| {
            state.tickets += 1;
            state.callers.entry(caller.to_owned()).or_default().waiting.insert(state.tickets, sender);
            state.tickets
        });
        let _waiting = WaitingCall { of: self, caller, ticket };
        self.give();
        match receiver.await {
            Ok(place) => place,
            // Its sender goes with this only.
            Err(_) => std::future::pending().await,
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut CallsState) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives free places to those who are next.
    fn give(&self) {
        while let Some((caller, sender)) = self.with(|state| state.next(self.most)) {
            // A place that nobody takes any more is free again when it is dropped here, without the lock.
            sender.send(CallPlace { of: self.clone(), caller }).ok();
        }
    }
}

impl CallsState {
    /// Who is next, who has a place then.
    fn next(&mut self, most: usize) -> Option<(String, oneshot::Sender<CallPlace>)> {
        let (all, kept) = (self.all, most / 4);
        let may = |caller: &CallerCalls| all < most - kept || (all < most && caller.under_way == 0);
        let waiting = self.callers.iter_mut().filter(|(_, caller)| may(caller));
        let waiting = waiting.filter_map(|(name, caller)| Some((*caller.waiting.first_key_value()?.0, name, caller)));
        let (ticket, name, caller) = waiting.min_by_key(|(ticket, _, caller)| (caller.under_way, *ticket))?;
        let sender = caller.waiting.remove(&ticket)?;
        caller.under_way += 1;
        self.all += 1;
        Some((name.clone(), sender))
    }

    /// Forgets a caller who has nothing and waits for nothing.
    fn tidy(&mut self, caller: &str) {
        if self.callers.get(caller).is_some_and(|one| one.under_way == 0 && one.waiting.is_empty()) {
            self.callers.remove(caller);
        }
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.of.with(|state| {
            state.all -= 1;
            if let Some(caller) = state.callers.get_mut(&self.caller) {
                caller.under_way -= 1;
            }
            state.tidy(&self.caller);
        });
        self.of.give();
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        // What was in its way to nobody is dropped without the lock.
        let _sender = self.of.with(|state| {
            let sender = state.callers.get_mut(self.caller).and_then(|caller| caller.waiting.remove(&self.ticket));
            state.tidy(self.caller);
            sender
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn now(calls: &Calls, caller: &str) -> Option<CallPlace> {
        calls.acquire(caller).now_or_never()
    }

    #[tokio::test]
    async fn who_has_many_calls_leaves_places_for_the_others() {
        let calls = Calls::new(16);
        let mut greedy: Vec<CallPlace> = std::iter::from_fn(|| now(&calls, "greedy")).collect();
        assert_eq!(greedy.len(), 12);
        let other = now(&calls, "other").expect("a place of the last quarter");
        assert!(now(&calls, "other").is_none(), "one each of the last quarter");
        let more: Vec<CallPlace> = ["a", "b", "c", "d"].into_iter().filter_map(|one| now(&calls, one)).collect();
        assert_eq!(more.len(), 3, "there are 16 in all");
        drop((other, more));
        // Who has fewest goes first, however many of the other came before.
        let mut queue: Vec<_> = (0..50).map(|_| Box::pin(calls.acquire("greedy"))).collect();
        assert!(queue.iter_mut().all(|one| one.now_or_never().is_none()));
        let kept: Vec<CallPlace> = ["a", "b", "c", "d"].into_iter().filter_map(|one| now(&calls, one)).collect();
        let mut late = Box::pin(calls.acquire("late"));
        assert!((&mut late).now_or_never().is_none() && kept.len() == 4);
        greedy.pop();
        assert!((&mut late).now_or_never().is_some(), "before all of the greedy one's");
        drop((late, queue, greedy, kept));
        let state = calls.state.lock().expect("unpoisoned");
        assert!(state.all == 0 && state.callers.is_empty(), "{state:?}");
    }

    #[tokio::test]
    async fn who_no_longer_waits_takes_no_place() {
        let calls = Calls::new(1);
        let place = now(&calls, "one").expect("a place");
        let mut gone = Box::pin(calls.acquire("gone"));
        let mut late = Box::pin(calls.acquire("late"));
        assert!((&mut gone).now_or_never().is_none() && (&mut late).now_or_never().is_none());
        drop(gone);
        drop(place);
        assert!(late.now_or_never().is_some());
    }
}

//! Who takes a place among the busy hosts ([`crate::host::machine::takes_place`]): decided for one host at a time, so
//! that a thousand hosts that look at once do not all see the same place free. Who waits is told when one is free.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};

/// Namespace and name of a host.
pub(super) type Key = (String, String);

/// What a decision makes of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has a place.
    Takes,
    /// It waits for one.
    Waits,
    /// It needs none.
    Neither,
}

pub(super) struct Places {
    limit: usize,
    // std's lock: held for one decision, which is a pure function, never across an await.
    inner: Mutex<Option<Inner>>,
    wake: UnboundedSender<Key>,
}

#[derive(Default)]
struct Inner {
    taken: HashSet<Key>,
    /// Hosts that were told of a free place and did not decide yet: it is kept for them.
    called: HashSet<Key>,
    /// Hosts that wait, by their number in the queue.
    queue: BTreeMap<u64, Key>,
    numbers: HashMap<Key, u64>,
    last: u64,
}

impl Inner {
    fn used(&self) -> usize {
        self.taken.len() + self.called.len()
    }

    fn wait(&mut self, host: &Key) {
        if !self.numbers.contains_key(host) {
            self.last += 1;
            self.queue.insert(self.last, host.clone());
            self.numbers.insert(host.clone(), self.last);
        }
    }

    fn wait_no_more(&mut self, host: &Key) {
        if let Some(number) = self.numbers.remove(host) {
            self.queue.remove(&number);
        }
    }

    fn call(&mut self) -> Option<Key> {
        let (_, next) = self.queue.pop_first()?;
        self.numbers.remove(&next);
        self.called.insert(next.clone());
        Some(next)
    }
}

impl Places {
    /// So many places, and the hosts that are to look again as places become free.
    pub(super) fn new(limit: usize) -> (Self, UnboundedReceiver<Key>) {
        let (wake, woken) = unbounded();
        (Self { limit, inner: Mutex::new(None), wake }, woken)
    }

    /// Decides for a host, given how many places others take. `before` says who had one when this process began.
    pub(super) fn decide<T>(
        &self,
        host: &Key,
        before: impl FnOnce() -> HashSet<Key>,
        decision: impl FnOnce(usize) -> (T, Standing),
    ) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = inner.get_or_insert_with(|| Inner { taken: before(), ..Inner::default() });
        let own = inner.taken.contains(host) || inner.called.contains(host);
        let others = inner.used() - usize::from(own);
        let (decided, standing) = decision(others);
        self.stand(inner, host, standing);
        decided
    }

    /// A host that is gone.
    pub(super) fn leave(&self, host: &Key) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = inner.as_mut() {
            self.stand(inner, host, Standing::Neither);
        }
    }

    fn stand(&self, inner: &mut Inner, host: &Key, standing: Standing) {
        inner.called.remove(host);
        match standing {
            Standing::Takes => {
                inner.wait_no_more(host);
                inner.taken.insert(host.clone());
            }
            Standing::Waits => {
                inner.taken.remove(host);
                inner.wait(host);
                // Or two that wait for something else would call each other for ever.
                return;
            }
            Standing::Neither => {
                inner.wait_no_more(host);
                inner.taken.remove(host);
            }
        }
        while self.limit > inner.used()
            && let Some(next) = inner.call()
        {
            // Nobody listens any more only when the process ends.
            self.wake.unbounded_send(next).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        ("rack".into(), format!("h{number}"))
    }

    /// What a host that wants a place gets.
    fn ask(places: &Places, number: usize) -> Standing {
        places.decide(&key(number), HashSet::new, |others| {
            let standing = if others < 2 { Standing::Takes } else { Standing::Waits };
            (standing, standing)
        })
    }

    #[test]
    fn never_more_than_the_limit_and_who_waited_longest_is_told_first() {
        let (places, mut woken) = Places::new(2);
        let standings: Vec<_> = (0..5).map(|number| ask(&places, number)).collect();
        assert_eq!(standings.iter().filter(|standing| **standing == Standing::Takes).count(), 2);
        assert_eq!(ask(&places, 0), Standing::Takes, "who has a place keeps it");
        assert!(woken.try_recv().is_err(), "none is free");
        places.leave(&key(0));
        assert_eq!(woken.try_recv().ok(), Some(key(2)));
        assert_eq!(ask(&places, 2), Standing::Takes);
        assert_eq!(ask(&places, 3), Standing::Waits);
        places.leave(&key(1));
        assert_eq!(woken.try_recv().ok(), Some(key(3)), "asking again does not lose one's turn");
    }

    #[test]
    fn a_place_is_kept_for_who_was_told_of_it() {
        let (places, mut woken) = Places::new(2);
        for number in 0..5 {
            ask(&places, number);
        }
        places.leave(&key(0));
        assert_eq!(woken.try_recv().ok(), Some(key(2)));
        // Others decide meanwhile: neither do they get it, nor is anybody else told of it.
        assert_eq!(ask(&places, 4), Standing::Waits);
        assert_eq!(ask(&places, 1), Standing::Takes);
        assert_eq!(ask(&places, 9), Standing::Waits);
        assert!(woken.try_recv().is_err());
        assert_eq!(ask(&places, 2), Standing::Takes);
        // Two at once, and one who is gone before it could decide.
        places.leave(&key(1));
        places.leave(&key(2));
        assert_eq!([woken.try_recv().ok(), woken.try_recv().ok()], [Some(key(3)), Some(key(4))]);
        places.leave(&key(3));
        assert_eq!(woken.try_recv().ok(), Some(key(9)));
        // Nothing is left of those that are gone.
        for number in 0..10 {
            places.leave(&key(number));
        }
        let inner = places.inner.lock().unwrap();
        let inner = inner.as_ref().unwrap();
        assert!(inner.used() == 0 && inner.queue.is_empty() && inner.numbers.is_empty());
    }

    #[test]
    fn who_was_busy_before_this_process_began_counts() {
        let (places, _woken) = Places::new(2);
        let before = || HashSet::from([key(8), key(9)]);
        let others = places.decide(&key(0), before, |others| (others, Standing::Neither));
        assert_eq!(others, 2);
        places.leave(&key(9));
        assert_eq!(ask(&places, 0), Standing::Takes);
    }
}

//! Cooperative yielding: long work, as a look at very many objects, leaves the processors to others in between.
//!
//! Whoever selects among all objects of a namespace by a long selector keeps a processor busy for a while, and nothing else
//! would be answered while as many do so as there are processors. So one such scan of a caller is made at a time, and all
//! scans together have all processors but one: each looks at some objects, and then it is the turn of the next caller.
//! One whose request is over (it took too long, the client went away) is dropped at the end of its turn.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller_shares;
use crate::apiserver::auth::UserIdentity;

/// Objects that are looked at in one turn.
const OBJECTS: usize = 256;
/// How long a turn takes, when they are large.
const TURN: Duration = Duration::from_millis(1);

/// Those who wait for their turn.
pub(in crate::apiserver) struct ScanScheduler {
    /// As many as are at work at once; tokio's semaphore serves in the order in which it was asked.
    workers: Arc<Semaphore>,
    /// A slot for each caller who has work.
    // std's lock: held for map operations only.
    callers: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for ScanScheduler {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::new((processors - 1).max(1))
    }
}

/// Work of a caller that is under way.
pub(in crate::apiserver) struct Scan<'t> {
    /// None: the appliance's own rooms wait for nobody; they are few.
    slot: Option<CallerSlot<'t>>,
}

/// A turn of a caller, and their slot.
pub(in crate::apiserver) struct ExclusiveTurn<'t> {
    _turn: Option<OwnedSemaphorePermit>,
    _scan: Scan<'t>,
}

struct CallerSlot<'t> {
    // In this order, so that the caller is forgotten with the last of their work.
    _slot: OwnedSemaphorePermit,
    caller: CallerQueue<'t>,
}

/// A caller's slot, as long as somebody has it or waits for it.
struct CallerQueue<'t> {
    scheduler: &'t ScanScheduler,
    caller: String,
    slot: Arc<Semaphore>,
}

impl Drop for CallerQueue<'_> {
    fn drop(&mut self) {
        let mut callers = self.scheduler.callers.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's and this one.
        if Arc::strong_count(&self.slot) <= 2 {
            callers.remove(&self.caller);
        }
    }
}

impl ScanScheduler {
    /// Turns of which as many are taken at once.
    pub fn new(workers: usize) -> Self {
        Self { workers: Arc::new(Semaphore::new(workers)), callers: Mutex::default() }
    }

    /// Waits until no other scan of this caller is under way.
    pub async fn begin(&self, identity: &UserIdentity) -> Scan<'_> {
        if identity.is_in_process() {
            return Scan { slot: None };
        }
        let caller = self.of_caller(caller_shares::caller(&identity.user));
        // Nobody closes it.
        let slot = Arc::clone(&caller.slot).acquire_owned().await.ok();
        Scan { slot: slot.map(|slot| CallerSlot { _slot: slot, caller }) }
    }

    /// Waits for a turn of work that cannot be taken in parts, which is to be done while this is kept, and awaits nothing.
    pub async fn whole(&self, identity: &UserIdentity) -> ExclusiveTurn<'_> {
        let scan = self.begin(identity).await;
        let turn = match &scan.slot {
            Some(_) => self.turn().await,
            None => None,
        };
        ExclusiveTurn { _turn: turn, _scan: scan }
    }

    /// Waits for a turn, whoever asks; it lasts until it is dropped.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // Nobody closes it.
        Arc::clone(&self.workers).acquire_owned().await.ok()
    }

    fn of_caller(&self, caller: &str) -> CallerQueue<'_> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = callers.entry(caller.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        CallerQueue { scheduler: self, caller: caller.to_owned(), slot: Arc::clone(slot) }
    }

    /// Callers who have work.
    #[cfg(test)]
    pub fn callers(&self) -> usize {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Scan<'_> {
    /// Looks at one after the other until there is none left or `goes_on` says that it is enough. Others have their turn
    /// in between.
    pub async fn each<T>(&self, all: impl IntoIterator<Item = T>, mut goes_on: impl FnMut(T) -> bool) {
        let mut all = all.into_iter();
        loop {
            let turn = match &self.slot {
                Some(slot) => slot.caller.scheduler.turn().await,
                None => None,
            };
            let began = Instant::now();
            for _ in 0..OBJECTS {
                let Some(one) = all.next() else { return };
                if !goes_on(one) {
                    return;
                }
                if began.elapsed() >= TURN {
                    break;
                }
            }
            drop(turn);
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::apiserver::auth::Proof;

    fn user(name: &str) -> UserIdentity {
        UserIdentity::new(name, Vec::new(), Proof::Certificate)
    }

    #[tokio::test]
    async fn callers_take_turns_and_one_caller_makes_one_scan_at_a_time() {
        let scheduler = ScanScheduler::new(1);
        let order = RefCell::new(Vec::new());
        let scan = async |name: &'static str, number: u32| {
            let scan = scheduler.begin(&user(name)).await;
            scan.each(0..OBJECTS * 2, |object| {
                if object % OBJECTS == 0 {
                    order.borrow_mut().push((name, number));
                }
                true
            })
            .await;
        };
        tokio::join!(scan("a", 1), scan("a", 2), scan("b", 1), scan("a", 3));
        let a: Vec<u32> = order.borrow().iter().filter(|(name, _)| *name == "a").map(|(_, number)| *number).collect();
        assert_eq!(a, [1, 1, 2, 2, 3, 3]);
        // The second caller waits for one turn of the first, not for its other scans.
        let last = order.borrow().iter().rposition(|(name, _)| *name == "b").unwrap();
        assert!(last <= 4, "{order:?}");
        assert_eq!(scheduler.callers(), 0);
    }

    #[tokio::test]
    async fn who_goes_away_leaves_the_place() {
        let scheduler = ScanScheduler::default();
        let first = scheduler.begin(&user("a")).await;
        let second = user("a");
        let waits = scheduler.begin(&second);
        assert!(futures::FutureExt::now_or_never(waits).is_none());
        assert_eq!(scheduler.callers(), 1);
        drop(first);
        assert_eq!(scheduler.callers(), 0);
        let endless = async {
            scheduler.begin(&user("a")).await.each(std::iter::repeat(()), |()| true).await;
        };
        tokio::select! {
            () = endless => {}
            () = tokio::task::yield_now() => {}
        }
        assert_eq!((scheduler.callers(), scheduler.workers.available_permits() > 0), (0, true));
    }

    #[tokio::test]
    async fn it_ends_when_it_is_enough() {
        let scheduler = ScanScheduler::default();
        for identity in [user("a"), UserIdentity::in_process()] {
            let mut seen = 0;
            scheduler
                .begin(&identity)
                .await
                .each(0.., |object: usize| {
                    seen += 1;
                    object < OBJECTS * 3
                })
                .await;
            assert_eq!(seen, OBJECTS * 3 + 1);
        }
    }
}

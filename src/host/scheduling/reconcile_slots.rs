//! Fair scheduling of reconciliations among namespaces.
//!
//! A limited number of hosts is reconciled at the same time. A reconciliation ("look") lasts as long as the host's BMC needs,
//! so no namespace has all of them, and hosts that were never registered, whose BMCs may not even exist, leave some to those
//! that were.
//!
//! A host that has to wait costs an entry in a queue. When its turn comes it is told, and a look is kept for it until it
//! begins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use prometheus_client::metrics::gauge::Gauge;

use super::fair_queue::FairQueue;
use crate::runtime::ObjectKey;

/// Looks at once. Each takes memory while it waits for its BMC.
pub(in crate::host) const AT_ONCE: usize = 160;
/// Those of them that hosts may have which are not registered.
const NEW: usize = 128;
/// How many of either are left to flows that have few.
const KEPT: usize = 32;
/// How many are few.
const FEW: usize = 8;

/// Who shares: the hosts of a namespace, and those of it that are not registered yet apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReconcileFlow {
    namespace: String,
    registered: bool,
}

/// Whether a flow that has `own` looks may have one more when there are `all`, of which `new` are of hosts that are not
/// registered.
fn may_begin(all: usize, new: usize, own: usize, registered: bool) -> bool {
    let below = |count: usize, most: usize| count < if own < FEW { most } else { most - KEPT };
    below(all, AT_ONCE) && (registered || below(new, NEW))
}

#[derive(Default)]
struct Inner {
    /// Looks under way, and those that are kept for who was told.
    looks: HashMap<ObjectKey, (ReconcileFlow, SlotStage)>,
    /// How many a flow has; none without any.
    shares: HashMap<ReconcileFlow, usize>,
    new: usize,
    queue: FairQueue<ReconcileFlow, ObjectKey>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotStage {
    Told,
    UnderWay,
}

impl Inner {
    fn share(&self, flow: &ReconcileFlow) -> Option<usize> {
        let own = self.shares.get(flow).copied().unwrap_or_default();
        may_begin(self.looks.len(), self.new, own, flow.registered).then_some(own)
    }

    fn put(&mut self, host: ObjectKey, flow: ReconcileFlow, stage: SlotStage) {
        *self.shares.entry(flow.clone()).or_default() += 1;
        self.new += usize::from(!flow.registered);
        self.looks.insert(host, (flow, stage));
    }

    fn take_out(&mut self, host: &ObjectKey) {
        let Some((flow, _)) = self.looks.remove(host) else { return };
        self.new -= usize::from(!flow.registered);
        if let Some(own) = self.shares.get_mut(&flow) {
            *own -= 1;
            if *own == 0 {
                self.shares.remove(&flow);
            }
        }
    }

    fn tell_next(&mut self) -> Option<ObjectKey> {
        let mut queue = std::mem::take(&mut self.queue);
        let next = queue.next(|flow| self.share(flow));
        self.queue = queue;
        let (flow, host) = next?;
        self.put(host.clone(), flow, SlotStage::Told);
        Some(host)
    }
}

/// All looks.
pub(in crate::host) struct ReconcileSlots {
    // std's lock: never held across an await.
    inner: Mutex<Inner>,
    wake: UnboundedSender<ObjectKey>,
    waiting: Gauge,
}

impl Drop for ReconcileSlots {
    fn drop(&mut self) {
        // Another appliance may look at them now.
        self.waiting.set(0);
    }
}

/// A look at a host, until it is dropped.
pub(in crate::host) struct ReconcileSlot {
    looks: Arc<ReconcileSlots>,
    host: ObjectKey,
}

impl Drop for ReconcileSlot {
    fn drop(&mut self) {
        let mut inner = self.looks.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.take_out(&self.host);
        self.looks.tell(&mut inner);
    }
}

impl ReconcileSlots {
    /// No looks yet, and the hosts whose turn comes. `waiting` shows how many wait for theirs.
    pub(in crate::host) fn new(waiting: Gauge) -> (Arc<Self>, UnboundedReceiver<ObjectKey>) {
        let (wake, woken) = unbounded();
        (Arc::new(Self { inner: Mutex::default(), wake, waiting }), woken)
    }

    /// Begins to look at a host; none when it has to wait for its turn, of which it will be told.
    pub(in crate::host) fn begin(self: &Arc<Self>, host: &ObjectKey, registered: bool) -> Option<ReconcileSlot> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let flow = ReconcileFlow { namespace: host.0.clone(), registered };
        let stage = inner.looks.get(host).map(|(_, stage)| *stage);
        match stage {
            // Counted as it was told.
            Some(SlotStage::Told) => {
                if let Some((_, stage)) = inner.looks.get_mut(host) {
                    *stage = SlotStage::UnderWay;
                }
            }
            None if inner.share(&flow).is_some() => {
                inner.queue.leave(host);
                inner.put(host.clone(), flow, SlotStage::UnderWay);
            }
            Some(SlotStage::UnderWay) | None => {
                inner.queue.wait(&flow, host);
                self.show(&inner);
                return None;
            }
        }
        self.show(&inner);
        Some(ReconcileSlot { looks: Arc::clone(self), host: host.clone() })
    }

    /// A host that is gone.
    pub(in crate::host) fn leave(&self, host: &ObjectKey) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.queue.leave(host);
        if inner.looks.get(host).is_some_and(|(_, stage)| *stage == SlotStage::Told) {
            inner.take_out(host);
        }
        self.tell(&mut inner);
    }

    fn tell(&self, inner: &mut Inner) {
        while let Some(next) = inner.tell_next() {
            // Nobody listens any more only when the process ends.
            self.wake.unbounded_send(next).ok();
        }
        self.show(inner);
    }

    fn show(&self, inner: &Inner) {
        self.waiting.set(i64::try_from(inner.queue.len()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_party_leaves_some_to_others_and_new_hosts_to_known_ones() {
        let rows = [
            // all, new, own, registered, whether it may begin
            (0, 0, 0, false, true),
            (127, 0, 127, true, true),
            (128, 0, 128, true, false),
            (128, 0, 7, true, true),
            (159, 0, 7, true, true),
            (160, 0, 0, true, false),
            (95, 95, 95, false, true),
            (96, 96, 96, false, false),
            (96, 96, 0, false, true),
            (96, 96, 0, true, true),
            (96, 96, 8, true, true),
            (128, 128, 0, false, false),
            (128, 128, 0, true, true),
            (128, 128, 8, true, false),
        ];
        for (all, new, own, registered, wanted) in rows {
            assert_eq!(may_begin(all, new, own, registered), wanted, "{all} {new} {own} {registered}");
        }
    }

    fn host(namespace: &str, number: usize) -> ObjectKey {
        (namespace.into(), format!("h{number}"))
    }

    #[test]
    fn whose_turn_comes_is_told_and_a_look_is_kept_for_it() {
        let waiting = Gauge::default();
        let (looks, mut woken) = ReconcileSlots::new(waiting.clone());
        let begin = |namespace: &str, number| looks.begin(&host(namespace, number), true);
        let mut theirs: Vec<_> = (0..AT_ONCE).map_while(|number| begin("theirs", number)).collect();
        assert_eq!(theirs.len(), AT_ONCE - KEPT);
        (200..210).for_each(|number| assert!(begin("theirs", number).is_none()));
        let mut others: Vec<_> = (0..KEPT / FEW)
            .flat_map(|other| (0..FEW).map(move |number| (format!("other-{other}"), number)))
            .map(|(namespace, number)| begin(&namespace, number).expect("what is kept for others"))
            .collect();
        assert!(begin("late", 1).is_none(), "there are no more in all");
        assert_eq!(waiting.get(), 12, "and the first that had to wait");
        assert!(woken.try_recv().is_err());
        theirs.pop();
        assert_eq!(woken.try_recv().ok(), Some(host("late", 1)), "who has none goes first");
        assert!(begin("last", 1).is_none(), "it is kept");
        let late = begin("late", 1).expect("the look that was kept");
        drop(late);
        assert_eq!(woken.try_recv().ok(), Some(host("last", 1)));
        // One that goes before it has begun.
        looks.leave(&host("last", 1));
        others.clear();
        assert_eq!(woken.try_recv().ok(), Some(host("theirs", 128)));
        assert!(woken.try_recv().is_err());
        drop(theirs);
        let told: Vec<_> = std::iter::from_fn(|| woken.try_recv().ok()).collect();
        assert_eq!(told.len(), 10);
        told.iter().for_each(|host| looks.leave(host));
        looks.leave(&host("theirs", 128));
        let inner = looks.inner.lock().unwrap();
        assert!(inner.looks.is_empty() && inner.shares.is_empty() && inner.new == 0 && inner.queue.len() == 0);
        assert_eq!(waiting.get(), 0);
    }
}

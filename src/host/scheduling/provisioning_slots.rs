//! Admission to the busy hosts, one at a time.
//!
//! A busy host has a place ([`crate::host::lifecycle::takes_place`]). Places are given to one host at a time, so that a thousand
//! hosts that ask at once do not all see the same place free. A waiting host is told when one is free.
//!
//! A free place goes to the namespace whose hosts have fewest. A busy host keeps its place. After a turn, however, the place
//! counts for its own namespace only, so that nobody waits for ever for the hosts of others. Beyond the limit there are a
//! fifth more places for namespaces that have fewer than that: a namespace that comes late, when hosts of others hold all
//! places and never answer, begins at once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};

use super::fair_queue::FairQueue;
use crate::host::lifecycle::SlotState;
use crate::runtime::ObjectKey;

/// How long a place is kept for a host that was told of it: it reads its BMC's power first, perhaps.
const CALL: Duration = Duration::from_secs(60);

pub(in crate::host) struct ProvisioningSlots {
    bounds: Mutex<SlotLimits>,
    // std's lock: held for one decision, which is a pure function, never across an await.
    inner: Mutex<Option<Inner>>,
    wake: UnboundedSender<ObjectKey>,
}

/// How many places there are, and how long one counts for everybody.
#[derive(Clone, Copy)]
struct SlotLimits {
    limit: usize,
    turn: Duration,
}

#[derive(Default)]
struct Inner {
    held: HashMap<ObjectKey, HeldSlot>,
    /// The places that count for everybody, by when they end to.
    ends: BTreeSet<(Instant, ObjectKey)>,
    /// By namespace; none without a place.
    shares: HashMap<String, SlotShare>,
    /// Hosts that wait, by namespace.
    queue: FairQueue<String, ObjectKey>,
    /// When the turns end of hosts that rest: resting begins no new one.
    resting: HashMap<ObjectKey, Instant>,
}

struct HeldSlot {
    /// When this place ends to count for other namespaces, or to be kept for who was told of it.
    ends: Instant,
    /// The host was told of it and did not decide yet: it is kept for it.
    called: bool,
}

/// The places of a namespace.
#[derive(Default)]
struct SlotShare {
    all: usize,
    /// Those of them that keep nobody else waiting.
    overdue: usize,
}

impl Inner {
    fn new(taken: HashSet<ObjectKey>, ends: Instant) -> Self {
        let mut inner = Self::default();
        for host in taken {
            inner.give(&host, HeldSlot { ends, called: false }, true);
        }
        inner
    }

    /// Whether a host of this namespace may have one more, of so many.
    fn room(&self, namespace: &str, limit: usize) -> bool {
        let (all, overdue) = self.shares.get(namespace).map_or((0, 0), |share| (share.all, share.overdue));
        let extra = limit / 5;
        let limit = if all < extra { limit + extra } else { limit };
        self.ends.len() + overdue < limit
    }

    fn give(&mut self, host: &ObjectKey, held: HeldSlot, counts: bool) {
        let share = self.shares.entry(host.0.clone()).or_default();
        share.all += 1;
        if counts {
            self.ends.insert((held.ends, host.clone()));
        } else {
            share.overdue += 1;
        }
        self.held.insert(host.clone(), held);
    }

    fn take_back(&mut self, host: &ObjectKey) -> Option<HeldSlot> {
        let held = self.held.remove(host)?;
        let counted = self.ends.remove(&(held.ends, host.clone()));
        if let Some(share) = self.shares.get_mut(&host.0) {
            share.all -= 1;
            share.overdue -= usize::from(!counted);
            if share.all == 0 {
                self.shares.remove(&host.0);
            }
        }
        Some(held)
    }

    /// Notes whose time is over; whether there was one.
    fn expire(&mut self, now: Instant) -> bool {
        let mut some = false;
        while let Some((_, host)) = self.ends.first().filter(|(ends, _)| *ends <= now).cloned() {
            some = true;
            let Some(held) = self.take_back(&host) else { break };
            if held.called {
                // It did not come, so another one goes first.
                self.queue.wait(&host.0, &host);
            } else {
                self.give(&host, held, false);
            }
        }
        some
    }

    fn call(&mut self, limit: usize, ends: Instant) -> Option<ObjectKey> {
        let mut queue = std::mem::take(&mut self.queue);
        let next = queue.next(|namespace| {
            self.room(namespace, limit).then(|| self.shares.get(namespace).map_or(0, |share| share.all))
        });
        self.queue = queue;
        let (_, host) = next?;
        self.give(&host, HeldSlot { ends, called: true }, true);
        Some(host)
    }
}

impl ProvisioningSlots {
    /// So many places, and the hosts that are to look again as places become free. After a `turn` a place keeps hosts
    /// of its own namespace waiting only.
    pub(in crate::host) fn new(limit: usize, turn: Duration) -> (Self, UnboundedReceiver<ObjectKey>) {
        let (wake, woken) = unbounded();
        (Self { bounds: Mutex::new(SlotLimits { limit, turn }), inner: Mutex::new(None), wake }, woken)
    }

    /// From now on there are so many places, and new ones have this turn. Hosts that have one keep it.
    pub(in crate::host) fn set(&self, limit: usize, turn: Duration) {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner) = SlotLimits { limit, turn };
    }

    fn bounds(&self) -> SlotLimits {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides for a host, given whether it has a place or one is free for it. `before` says who had one when this
    /// process began.
    pub(in crate::host) fn decide<T>(
        &self,
        host: &ObjectKey,
        now: Instant,
        before: impl FnOnce() -> HashSet<ObjectKey>,
        decision: impl FnOnce(bool) -> (T, SlotState),
    ) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = inner.get_or_insert_with(|| Inner::new(before(), now + self.bounds().turn));
        if inner.expire(now) {
            self.call(inner, now);
        }
        let room = inner.held.contains_key(host) || inner.room(&host.0, self.bounds().limit);
        let (decided, slot_state) = decision(room);
        self.stand(inner, host, slot_state, now);
        decided
    }

    /// A host that is gone.
    pub(in crate::host) fn leave(&self, host: &ObjectKey) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = inner.as_mut() {
            self.stand(inner, host, SlotState::Neither, Instant::now());
        }
    }

    fn stand(&self, inner: &mut Inner, host: &ObjectKey, slot_state: SlotState, now: Instant) {
        let has = inner.held.get(host).is_some_and(|held| !held.called);
        match slot_state {
            SlotState::Takes => {
                inner.queue.leave(host);
                if !has {
                    inner.take_back(host);
                    let ends = inner.resting.remove(host).unwrap_or(now + self.bounds().turn);
                    inner.give(host, HeldSlot { ends, called: false }, ends > now);
                }
            }
            SlotState::Waits => {
                inner.take_back(host);
                inner.resting.remove(host);
                inner.queue.wait(&host.0, host);
                // Or two that wait for something else would call each other for ever.
                return;
            }
            SlotState::Rests => {
                inner.queue.leave(host);
                if let Some(held) = inner.take_back(host).filter(|held| !held.called) {
                    inner.resting.insert(host.clone(), held.ends);
                }
            }
            // What was kept for it, and its turn, are kept until it has decided.
            SlotState::Undecided if has => drop(inner.take_back(host)),
            SlotState::Undecided => {}
            SlotState::Neither => {
                inner.queue.leave(host);
                inner.take_back(host);
                inner.resting.remove(host);
            }
        }
        self.call(inner, now);
    }

    fn call(&self, inner: &mut Inner, now: Instant) {
        let limit = self.bounds().limit;
        while let Some(next) = inner.call(limit, now + CALL) {
            // Nobody listens any more only when the process ends.
            self.wake.unbounded_send(next).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_secs(900);

    fn key(number: usize) -> ObjectKey {
        ("rack".into(), format!("h{number}"))
    }

    /// What a host that wants a place gets.
    fn ask_at(places: &ProvisioningSlots, host: &ObjectKey, now: Instant) -> SlotState {
        places.decide(host, now, HashSet::new, |room| {
            let slot_state = if room { SlotState::Takes } else { SlotState::Waits };
            (slot_state, slot_state)
        })
    }

    fn ask(places: &ProvisioningSlots, number: usize) -> SlotState {
        ask_at(places, &key(number), Instant::now())
    }

    /// Places with a clock, and hosts by a name like `a1`, of which the first letter is the namespace.
    struct Rack {
        places: ProvisioningSlots,
        woken: UnboundedReceiver<ObjectKey>,
        now: Instant,
    }

    impl Rack {
        fn new(limit: usize) -> Self {
            let (places, woken) = ProvisioningSlots::new(limit, TURN);
            Self { places, woken, now: Instant::now() }
        }

        fn host(name: &str) -> ObjectKey {
            (name[..1].to_owned(), name.to_owned())
        }

        /// Who of these gets a place.
        fn take(&self, names: &[&str]) -> Vec<bool> {
            let ask = |name: &&str| ask_at(&self.places, &Self::host(name), self.now) == SlotState::Takes;
            names.iter().map(ask).collect()
        }

        fn stands(&self, name: &str, slot_state: SlotState) {
            self.places.decide(&Self::host(name), self.now, HashSet::new, |_| ((), slot_state));
        }

        fn leave(&self, names: &[&str]) {
            names.iter().for_each(|name| self.places.leave(&Self::host(name)));
        }

        fn called(&mut self) -> Vec<String> {
            std::iter::from_fn(|| self.woken.try_recv().ok()).map(|(_, name)| name).collect()
        }
    }

    #[test]
    fn never_more_than_the_limit_and_who_waited_longest_is_told_first() {
        let (places, mut woken) = ProvisioningSlots::new(2, TURN);
        let standings: Vec<_> = (0..5).map(|number| ask(&places, number)).collect();
        assert_eq!(standings.iter().filter(|slot_state| **slot_state == SlotState::Takes).count(), 2);
        assert_eq!(ask(&places, 0), SlotState::Takes, "who has a place keeps it");
        assert!(woken.try_recv().is_err(), "none is free");
        places.leave(&key(0));
        assert_eq!(woken.try_recv().ok(), Some(key(2)));
        assert_eq!(ask(&places, 2), SlotState::Takes);
        assert_eq!(ask(&places, 3), SlotState::Waits);
        places.leave(&key(1));
        assert_eq!(woken.try_recv().ok(), Some(key(3)), "asking again does not lose one's turn");
    }

    #[test]
    fn a_place_is_kept_for_who_was_told_of_it() {
        let (places, mut woken) = ProvisioningSlots::new(2, TURN);
        for number in 0..5 {
            ask(&places, number);
        }
        places.leave(&key(0));
        assert_eq!(woken.try_recv().ok(), Some(key(2)));
        // Others decide meanwhile: neither do they get it, nor is anybody else told of it.
        assert_eq!(ask(&places, 4), SlotState::Waits);
        assert_eq!(ask(&places, 1), SlotState::Takes);
        assert_eq!(ask(&places, 9), SlotState::Waits);
        assert!(woken.try_recv().is_err());
        assert_eq!(ask(&places, 2), SlotState::Takes);
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
        assert!(inner.held.is_empty() && inner.ends.is_empty() && inner.shares.is_empty());
        assert!(inner.queue.len() == 0 && inner.resting.is_empty());
    }

    #[test]
    fn who_was_busy_before_this_process_began_counts() {
        let (places, _woken) = ProvisioningSlots::new(2, TURN);
        let before = || HashSet::from([key(8), key(9)]);
        let room = places.decide(&key(0), Instant::now(), before, |room| (room, SlotState::Neither));
        assert!(!room);
        places.leave(&key(9));
        assert_eq!(ask(&places, 0), SlotState::Takes);
    }

    #[test]
    fn a_namespace_that_has_few_begins_while_another_holds_all() {
        let rack = Rack::new(10);
        let names: Vec<String> = (0..12).map(|number| format!("a{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let taken = rack.take(&names).into_iter().filter(|taken| *taken).count();
        assert_eq!(taken, 10, "alone it has the limit");
        assert_eq!(rack.take(&["b1", "b2", "b3"]), [true, true, false]);
        assert_eq!(rack.take(&["c1"]), [false], "no more than a fifth beyond the limit");
        rack.leave(&["b1"]);
        assert_eq!(rack.take(&["c1"]), [true]);
    }

    #[test]
    fn a_free_place_goes_to_the_namespace_that_has_fewest() {
        let mut rack = Rack::new(4);
        assert_eq!(
            rack.take(&["a1", "a2", "a3", "a4", "a5", "a6", "a7"]),
            [true, true, true, true, false, false, false]
        );
        assert_eq!(rack.take(&["b1", "b2", "c1"]), [false, false, false]);
        // Each place that becomes free: who waited longest of who has fewest.
        for (leaves, called) in [("a1", "b1"), ("a2", "c1"), ("a3", "a5"), ("a4", "a6"), ("b1", "b2")] {
            rack.leave(&[leaves]);
            assert_eq!(rack.called(), [called], "{leaves}");
            assert_eq!(rack.take(&[called]), [true]);
        }
    }

    #[test]
    fn after_its_turn_a_place_keeps_only_its_own_namespace_waiting() {
        let mut rack = Rack::new(2);
        rack.take(&["a1", "a2", "a3", "b1"]);
        rack.now += TURN - Duration::from_secs(1);
        assert_eq!(rack.take(&["a1", "a3", "b1", "b2", "b3"]), [true, false, false, false, false]);
        rack.now += Duration::from_secs(1);
        assert_eq!(rack.take(&["a1", "a3"]), [true, false]);
        assert_eq!(rack.called(), ["b1", "b2"]);
        assert_eq!(rack.take(&["b1", "b2", "b3", "c1"]), [true, true, false, false]);
        rack.leave(&["a1"]);
        assert!(rack.called().is_empty(), "two of another's count");
        rack.leave(&["b1"]);
        assert_eq!(rack.called(), ["c1"]);
        rack.leave(&["c1", "b2"]);
        assert_eq!(rack.called(), ["b3"], "of its own namespace another is still busy");
        rack.leave(&["a2"]);
        assert_eq!(rack.called(), ["a3"]);
    }

    #[test]
    fn who_rests_has_no_place_and_keeps_the_end_of_its_turn() {
        let mut rack = Rack::new(1);
        rack.take(&["a1", "b1"]);
        rack.stands("a1", SlotState::Rests);
        assert_eq!(rack.called(), ["b1"]);
        rack.take(&["b1"]);
        // Its machine is in the middle of something: it goes on without asking, and counts.
        rack.stands("a1", SlotState::Takes);
        rack.leave(&["b1"]);
        assert_eq!(rack.take(&["b2"]), [false]);
        // Resting began no new turn.
        rack.now += TURN;
        assert_eq!(rack.take(&["b2", "a2"]), [true, false]);
        // Rests of one that has no place are nothing.
        rack.stands("c1", SlotState::Rests);
        rack.leave(&["a1", "b2", "a2", "c1"]);
        assert!(rack.places.inner.lock().unwrap().as_ref().unwrap().resting.is_empty());
    }

    #[test]
    fn who_has_not_decided_yet_keeps_its_turn_but_not_for_ever() {
        let mut rack = Rack::new(1);
        rack.take(&["a1", "b1", "c1"]);
        rack.stands("b1", SlotState::Undecided);
        rack.leave(&["a1"]);
        assert_eq!(rack.called(), ["b1"]);
        rack.stands("b1", SlotState::Undecided);
        assert!(rack.called().is_empty(), "the place is kept for it");
        assert_eq!(rack.take(&["c1"]), [false]);
        rack.now += CALL * 2;
        assert_eq!(rack.take(&["d1"]), [false]);
        assert_eq!(rack.called(), ["c1"], "now it is the next one's");
        assert_eq!(rack.take(&["c1"]), [true]);
        // Who has a place and is busy no more has given it back, whatever comes next.
        rack.stands("c1", SlotState::Undecided);
        assert_eq!(rack.called(), ["b1"]);
    }
}

//! Whose run is begun next: so many at once, of a namespace no more than half of them, and who was served last waits for those who
//! wait since before that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::kubespray::runs::RunOwner;

/// Who did not ask for so long does not wait any more.
const FRESH: Duration = Duration::from_secs(120);
/// Namespaces of which is known when they were served last.
const SERVED_MAX: usize = 4096;

/// The places. Cheap to clone.
#[derive(Clone)]
pub struct RunPlaces {
    at_once: usize,
    // std's lock: held for a look, never across an await.
    asked: Arc<Mutex<RunQueue>>,
}

#[derive(Default)]
struct RunQueue {
    /// By their UIDs.
    waiting: HashMap<String, QueuedRun>,
    /// Who has a place, and no run that can be seen yet.
    held: BTreeMap<String, String>,
    /// By namespace.
    served: HashMap<String, Instant>,
}

#[derive(Clone, Debug)]
struct QueuedRun {
    namespace: String,
    since: Instant,
    asked: Instant,
}

/// A place, until it is dropped: then the run is to be seen.
pub struct RunPlace {
    of: Arc<Mutex<RunQueue>>,
    uid: String,
}

impl Drop for RunPlace {
    fn drop(&mut self) {
        lock(&self.of).held.remove(&self.uid);
    }
}

fn lock(asked: &Mutex<RunQueue>) -> MutexGuard<'_, RunQueue> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunPlaces {
    /// So many, one at least.
    pub fn new(at_once: usize) -> Self {
        Self { at_once: at_once.max(1), asked: Arc::default() }
    }

    /// How many objects wait.
    pub fn waiting(&self, now: Instant) -> usize {
        let is_fresh = |waiter: &&QueuedRun| now.saturating_duration_since(waiter.asked) < FRESH;
        lock(&self.asked).waiting.values().filter(is_fresh).count()
    }

    /// A place for the run of an object, if it is its turn. `under_way` are the runs that can be seen, each with whose it is.
    pub fn ask(&self, owner: &RunOwner, under_way: &[Option<RunOwner>], now: Instant) -> Option<RunPlace> {
        let mut asked = lock(&self.asked);
        let asked = &mut *asked;
        asked.waiting.retain(|_, waiter| now.saturating_duration_since(waiter.asked) < FRESH);
        let since = asked.waiting.get(&owner.uid).map_or(now, |waiter| waiter.since);
        let me = QueuedRun { namespace: owner.namespace.clone(), since, asked: now };
        asked.waiting.insert(owner.uid.clone(), me);
        // A person's runs take places, too, and are of no namespace.
        let mut seen = asked.held.clone();
        for (number, run) in under_way.iter().enumerate() {
            let (uid, namespace) = run.as_ref().map_or_else(
                || (format!("person {number}"), String::new()),
                |owner| (owner.uid.clone(), owner.namespace.clone()),
            );
            seen.insert(uid, namespace);
        }
        // One at a time over the same nodes.
        if seen.contains_key(&owner.uid) {
            return None;
        }
        if !is_next(&owner.uid, asked, &seen.into_values().collect::<Vec<_>>(), self.at_once) {
            return None;
        }
        asked.waiting.remove(&owner.uid);
        asked.held.insert(owner.uid.clone(), owner.namespace.clone());
        if asked.served.len() >= SERVED_MAX {
            let oldest = asked.served.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone());
            oldest.and_then(|name| asked.served.remove(&name));
        }
        asked.served.insert(owner.namespace.clone(), now);
        Some(RunPlace { of: self.asked.clone(), uid: owner.uid.clone() })
    }
}

/// Whether it is somebody's turn, of those who wait; `running` are the namespaces of all that have a place.
fn is_next(uid: &str, asked: &RunQueue, running: &[String], at_once: usize) -> bool {
    let of_namespace = (at_once / 2).max(1);
    let has_room = |namespace: &str| running.iter().filter(|one| *one == namespace).count() < of_namespace;
    let Some(me) = asked.waiting.get(uid).filter(|me| has_room(&me.namespace)) else { return false };
    let rank = |waiter: &QueuedRun| (asked.served.get(&waiter.namespace).copied(), waiter.since);
    let ahead = asked.waiting.iter().filter(|(_, waiter)| has_room(&waiter.namespace));
    let mut ahead: Vec<_> = ahead.filter(|(other, waiter)| (rank(waiter), other.as_str()) < (rank(me), uid)).collect();
    // Of a namespace that has many, those that find no room are not ahead of anybody.
    ahead.sort_by_key(|(_, waiter)| rank(waiter));
    let namespaces: BTreeSet<&str> = ahead.iter().map(|(_, waiter)| waiter.namespace.as_str()).collect();
    let mine = ahead.iter().filter(|(_, waiter)| waiter.namespace == me.namespace).count();
    let others: usize = namespaces
        .into_iter()
        .filter(|namespace| *namespace != me.namespace)
        .map(|namespace| {
            let wait = ahead.iter().filter(|(_, waiter)| waiter.namespace == namespace).count();
            wait.min(of_namespace.saturating_sub(running.iter().filter(|one| *one == namespace).count()))
        })
        .sum();
    running.len() + others + mine < at_once
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(namespace: &str, uid: &str) -> RunOwner {
        RunOwner { namespace: namespace.into(), name: uid.into(), uid: uid.into() }
    }

    #[test]
    fn a_namespace_has_half_of_the_places_and_never_all() {
        let (places, now) = (RunPlaces::new(4), Instant::now());
        let run = |namespace: &str, uid: &str| Some(owner(namespace, uid));
        let mut under_way = vec![run("a", "1")];
        assert!(places.ask(&owner("a", "2"), &under_way, now).is_some());
        under_way.push(run("a", "2"));
        assert!(places.ask(&owner("a", "3"), &under_way, now).is_none());
        assert!(places.ask(&owner("b", "4"), &under_way, now).is_some());
        // A person's runs count for all.
        under_way.extend([None, None]);
        assert!(places.ask(&owner("b", "4"), &under_way, now).is_none());
    }

    #[test]
    fn what_was_given_and_cannot_be_seen_yet_is_taken() {
        let (places, now) = (RunPlaces::new(2), Instant::now());
        let one = places.ask(&owner("a", "1"), &[], now).unwrap();
        assert!(places.ask(&owner("a", "2"), &[], now).is_none());
        let _two = places.ask(&owner("b", "3"), &[], now).unwrap();
        assert!(places.ask(&owner("c", "4"), &[], now).is_none());
        drop(one);
        assert!(places.ask(&owner("c", "4"), &[], now).is_some());
    }

    #[test]
    fn an_object_has_one_run_at_a_time() {
        let (places, now) = (RunPlaces::new(4), Instant::now());
        let one = owner("a", "1");
        let place = places.ask(&one, &[], now).unwrap();
        assert!(places.ask(&one, &[], now).is_none(), "it was given a place, and its run is not there yet");
        drop(place);
        assert!(places.ask(&one, &[Some(one.clone())], now).is_none(), "its run is under way");
        assert!(places.ask(&one, &[], now).is_some());
    }

    #[test]
    fn with_one_place_namespaces_take_turns() {
        let (places, begun) = (RunPlaces::new(1), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        assert!(places.ask(&owner("a", "1"), &[], at(0)).is_some());
        let busy = [Some(owner("a", "1"))];
        // A namespace that was served waits for one that was not, however many it has, and since when.
        for number in 2..50_u64 {
            assert!(
                places
                    .ask(&owner("a", &number.to_string()), &busy, begun + Duration::from_millis(1000 + number))
                    .is_none()
            );
        }
        assert!(places.ask(&owner("b", "b1"), &busy, at(2)).is_none());
        assert!(places.ask(&owner("a", "2"), &[], at(3)).is_none());
        assert!(places.ask(&owner("b", "b1"), &[], at(3)).is_some());
        assert!(places.ask(&owner("a", "2"), &[], at(4)).is_some());
        // Who has gone holds up nobody.
        assert!(places.ask(&owner("c", "c1"), &busy, at(5)).is_none());
        assert!(places.ask(&owner("a", "3"), &[], at(6)).is_none());
        assert!(places.ask(&owner("a", "3"), &[], at(6 + FRESH.as_secs())).is_some());
    }
}

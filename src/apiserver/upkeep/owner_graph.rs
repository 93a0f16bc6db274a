//! The queue of the garbage collector.
//!
//! Which objects the garbage collector must look at: those that changed in a way that concerns it, and those that name
//! an owner which did. So a deletion costs what depends on it, and not a look at everything.
//!
//! It is a memory of hints. What is missed here (the process ended, a kind came) is found by the look at everything
//! that is made at the start and now and then; that look also forgets what no longer holds.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::apiserver::objects::meta::{FOREGROUND, ORPHAN};
use crate::store::Object;

/// An object: storage, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::apiserver) struct OwnerKey {
    pub storage: Arc<str>,
    pub namespace: String,
    pub name: String,
}

impl OwnerKey {
    pub(in crate::apiserver) fn of(object: &Object) -> Self {
        Self { storage: Arc::clone(&object.resource), namespace: object.namespace.clone(), name: object.name.clone() }
    }
}

/// Dependents of an owner that waits, of which each that goes has the owner looked at.
const LAST: usize = 64;

/// What concerns the garbage collector.
#[derive(Default)]
pub(in crate::apiserver) struct OwnerGraph(Mutex<GraphState>);

#[derive(Default)]
struct GraphState {
    /// By the uid of an owner, objects that named it when they were last seen.
    of: HashMap<Arc<str>, HashSet<Arc<OwnerKey>>>,
    /// The other way round, so that what an object names no longer is forgotten: whoever names others again and again would
    /// fill the memory.
    named: HashMap<Arc<OwnerKey>, OwnerRefs>,
    /// By uid, objects that waited for their dependents when they were last seen.
    waiting: HashMap<String, OwnerKey>,
    pending: PendingChecks,
    /// The namespace whose turn was last.
    last: String,
}

/// Whom an object named.
struct OwnerRefs {
    /// When: changes are not told in their order.
    revision: u64,
    /// In which words.
    ownership: u64,
    owners: Box<[Arc<str>]>,
}

/// What is to be looked at next.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PendingChecks {
    /// These objects, by namespace.
    objects: BTreeMap<String, BTreeSet<OwnerKey>>,
    /// Owners that go or are gone, by uid: everything that names them.
    owners: HashSet<String>,
    /// Everything there is.
    everything: bool,
}

impl PendingChecks {
    /// Whether there is nothing to do.
    pub(in crate::apiserver) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether everything is to be looked at.
    pub(in crate::apiserver) fn everything(&self) -> bool {
        self.everything
    }

    /// The objects, in turns by namespace.
    pub(super) fn by_turns(&self) -> Vec<OwnerKey> {
        let mut all: Vec<(usize, &OwnerKey)> = self.objects.values().flat_map(|keys| keys.iter().enumerate()).collect();
        all.sort_by_key(|(turn, _)| *turn);
        all.into_iter().map(|(_, key)| key.clone()).collect()
    }

    fn put(&mut self, key: OwnerKey) {
        self.objects.entry(key.namespace.clone()).or_default().insert(key);
    }

    fn drop(&mut self, key: &OwnerKey) {
        if let Some(keys) = self.objects.get_mut(&key.namespace) {
            keys.remove(key);
            if keys.is_empty() {
                self.objects.remove(&key.namespace);
            }
        }
    }
}

impl OwnerGraph {
    fn state(&self) -> std::sync::MutexGuard<'_, GraphState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a change: the object as it is now, or its last self when it is gone. Whether it concerns the
    /// collector.
    pub(in crate::apiserver) fn changed(&self, object: &Object, gone: bool) -> bool {
        let key = OwnerKey::of(object);
        if !gone && !object.is_owned() && !object.is_ending() {
            self.state().forget(&key, object.revision);
            return false;
        }
        if !gone && !object.is_ending() && self.state().says_the_same(&key, object) {
            return false;
        }
        let meta = object.metadata();
        let uid = meta["uid"].as_str().unwrap_or_default();
        let mut state = self.state();
        if gone {
            state.forget(&key, object.revision);
            state.waiting.remove(uid);
            let left = |uid: &str| state.of.get(uid).map_or(0, HashSet::len);
            // To look at one of them is to look at all that it waits for.
            let is_due = |left: usize| left <= LAST || left.is_power_of_two();
            let waiting: Vec<OwnerKey> = owners(&meta)
                .filter_map(|owner| owner["uid"].as_str().filter(|uid| is_due(left(uid))))
                .filter_map(|uid| state.waiting.get(uid))
                .cloned()
                .collect();
            waiting.into_iter().for_each(|key| state.pending.put(key));
            state.pending.drop(&key);
        } else {
            state.record(&key, object, &meta);
            state.pending.put(key);
        }
        // Who names it later is looked at by itself.
        if (gone || object.is_ending()) && state.of.contains_key(uid) {
            state.pending.owners.insert(uid.to_owned());
        }
        true
    }

    /// Takes note of an object that was there before.
    pub(in crate::apiserver) fn record(&self, object: &Object) {
        if object.is_owned() || object.is_ending() {
            self.state().record(&OwnerKey::of(object), object, &object.metadata());
        }
    }

    /// Forgets who names whom, to be told anew.
    pub(super) fn begin_anew(&self) {
        let mut state = self.state();
        (state.of, state.named, state.waiting) = Default::default();
    }

    /// Asks for a look at everything.
    pub(in crate::apiserver) fn check_everything(&self) {
        self.state().pending.everything = true;
    }

    /// Asks for another look at an object, as if it had changed.
    pub(super) fn check_again(&self, key: OwnerKey) {
        self.state().pending.put(key);
    }

    /// Asks once more for a look that came to no end.
    pub(super) fn put_back(&self, pending: PendingChecks) {
        let PendingChecks { objects, owners, everything } = pending;
        let mut state = self.state();
        objects.into_values().flatten().for_each(|key| state.pending.put(key));
        state.pending.owners.extend(owners);
        state.pending.everything |= everything;
    }

    /// What is to be looked at next: so many objects at most, in turns by namespace. It counts as done.
    pub(super) fn next_checks(&self, most: usize) -> PendingChecks {
        let mut state = self.state();
        let state = &mut *state;
        for uid in std::mem::take(&mut state.pending.owners) {
            let dependents = state.of.get(uid.as_str()).into_iter().flatten();
            dependents.for_each(|key| state.pending.put(OwnerKey::clone(key)));
        }
        let mut taken =
            PendingChecks { everything: std::mem::take(&mut state.pending.everything), ..PendingChecks::default() };
        let mut count = 0;
        while count < most && !state.pending.objects.is_empty() {
            let after = (Bound::Excluded(state.last.clone()), Bound::Unbounded);
            let next =
                state.pending.objects.range::<String, _>(after).next().or_else(|| state.pending.objects.iter().next());
            let Some(namespace) = next.map(|(namespace, _)| namespace.clone()) else { break };
            if let Some(keys) = state.pending.objects.get_mut(&namespace) {
                taken.objects.entry(namespace.clone()).or_default().extend(keys.pop_first());
                if keys.is_empty() {
                    state.pending.objects.remove(&namespace);
                }
            }
            state.last = namespace;
            count += 1;
        }
        taken
    }

    /// Whether something is still to be looked at.
    pub(super) fn has_more(&self) -> bool {
        !self.state().pending.is_empty()
    }

    /// Objects that named this owner when they were last seen.
    pub(super) fn dependents_of(&self, uid: &str) -> Vec<OwnerKey> {
        self.state().of.get(uid).into_iter().flatten().map(|key| OwnerKey::clone(key)).collect()
    }
}

impl GraphState {
    fn record(&mut self, key: &OwnerKey, object: &Object, meta: &Value) {
        if !self.forget(key, object.revision) {
            return;
        }
        if object.is_ending() && is_held_for_dependents(meta) {
            self.waiting.insert(meta["uid"].as_str().unwrap_or_default().to_owned(), key.clone());
        }
        let key = Arc::new(key.clone());
        let mut named: Vec<Arc<str>> = Vec::new();
        for uid in owners(meta).filter_map(|owner| owner["uid"].as_str()) {
            let uid = self.of.get_key_value(uid).map_or_else(|| Arc::from(uid), |(uid, _)| Arc::clone(uid));
            if self.of.entry(Arc::clone(&uid)).or_default().insert(Arc::clone(&key)) {
                named.push(uid);
            }
        }
        if !named.is_empty() {
            let (revision, ownership) = (object.revision, object.ownership());
            self.named.insert(key, OwnerRefs { revision, ownership, owners: named.into() });
        }
    }

    /// Whether an object names whom it named when it was last seen, which is noted.
    fn says_the_same(&mut self, key: &OwnerKey, object: &Object) -> bool {
        let known = self.named.get_mut(key).filter(|known| known.ownership == object.ownership());
        known.is_some_and(|known| {
            known.revision = known.revision.max(object.revision);
            true
        })
    }

    /// Forgets whom an object named before this revision; whether nothing is known that is newer.
    fn forget(&mut self, key: &OwnerKey, revision: u64) -> bool {
        match self.named.get(key) {
            None => return true,
            Some(named) if named.revision > revision => return false,
            Some(_) => {}
        }
        for uid in self.named.remove(key).into_iter().flat_map(|named| named.owners) {
            if let Some(all) = self.of.get_mut(&uid) {
                all.remove(key);
                if all.is_empty() {
                    self.of.remove(&uid);
                }
            }
        }
        true
    }
}

/// Whether an object that ends does so after its dependents went, or were left behind.
pub(super) fn is_held_for_dependents(meta: &Value) -> bool {
    let mut finalizers = meta["finalizers"].as_array().into_iter().flatten();
    finalizers.any(|one| one == FOREGROUND || one == ORPHAN)
}

/// References to owners.
pub(in crate::apiserver) fn owners(meta: &Value) -> impl Iterator<Item = &Value> {
    meta["ownerReferences"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, meta: Value) -> Object {
        let text = json!({ "metadata": meta }).to_string();
        Object::new("/things".into(), "rack".into(), name.into(), 1, text.as_bytes()).unwrap()
    }

    /// What is to be looked at, and whether everything is.
    fn all(graph: &OwnerGraph) -> (Vec<OwnerKey>, bool) {
        let checks = graph.next_checks(usize::MAX);
        (checks.by_turns(), checks.everything())
    }

    #[test]
    fn namespaces_take_turns_however_much_one_has() {
        let graph = OwnerGraph::default();
        let key = |namespace: &str, number: usize| OwnerKey {
            storage: "/things".into(),
            namespace: namespace.into(),
            name: format!("{number:03}"),
        };
        (0..500).for_each(|number| graph.check_again(key("many", number)));
        let names = |most| {
            let taken = graph.next_checks(most).by_turns();
            taken.into_iter().map(|key| format!("{}/{}", key.namespace, key.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(2), ["many/000", "many/001"]);
        graph.check_again(key("few", 0));
        graph.check_again(key("other", 0));
        assert_eq!(names(4), ["few/000", "many/002", "other/000", "many/003"]);
        assert_eq!(names(1000).len(), 496);
        assert!(!graph.has_more());
    }

    #[test]
    fn a_deletion_concerns_what_names_the_object_and_nothing_else() {
        let graph = OwnerGraph::default();
        assert!(!graph.changed(&object("plain", json!({"uid": "u0"})), false));
        assert!(all(&graph).0.is_empty());
        let owned = object("owned", json!({"uid": "u1", "ownerReferences": [{"uid": "u0"}, {"uid": "u9"}]}));
        assert!(graph.changed(&owned, false));
        assert_eq!(all(&graph).0, [OwnerKey::of(&owned)]);
        // Its other owner waits for it.
        let finalizers = json!({"uid": "u9", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FOREGROUND]});
        let waiting = object("waiting", finalizers);
        assert!(graph.changed(&waiting, false));
        assert_eq!(all(&graph).0, [OwnerKey::of(&owned), OwnerKey::of(&waiting)]);
        assert!(graph.changed(&object("plain", json!({"uid": "u0"})), true));
        assert_eq!(all(&graph).0, [OwnerKey::of(&owned)]);
        assert_eq!(graph.dependents_of("u0"), [OwnerKey::of(&owned)]);
        // It goes: who waits for it is looked at.
        assert!(graph.changed(&owned, true));
        assert_eq!(all(&graph).0, [OwnerKey::of(&waiting)]);
        assert!(graph.dependents_of("u0").is_empty() && graph.dependents_of("u9").is_empty());
        graph.changed(&waiting, true);
        let state = graph.state();
        assert!(state.of.is_empty() && state.named.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn a_change_that_names_the_same_owners_concerns_nobody() {
        let graph = OwnerGraph::default();
        let at = |revision: u64, uid: &str, owner: Value| {
            let text = json!({ "metadata": {"uid": uid, "ownerReferences": [owner]} }).to_string();
            Object::new("/things".into(), "rack".into(), "one".into(), revision, text.as_bytes()).unwrap()
        };
        let owner = json!({"uid": "u0"});
        assert!(graph.changed(&at(1, "u1", owner.clone()), false));
        all(&graph);
        assert!(!graph.changed(&at(3, "u1", owner.clone()), false));
        assert!(all(&graph).0.is_empty());
        // Told late, and of a former state: it is known better.
        assert!(graph.changed(&at(2, "u1", json!({"uid": "u9"})), false));
        assert_eq!((graph.dependents_of("u0").len(), graph.dependents_of("u9").len()), (1, 0));
        // Whether its owner waits for it is said in other words; or it is another one of that name.
        assert!(graph.changed(&at(4, "u1", json!({"uid": "u0", "blockOwnerDeletion": true})), false));
        assert!(graph.changed(&at(5, "u2", json!({"uid": "u0", "blockOwnerDeletion": true})), false));
    }

    #[test]
    fn who_begins_to_go_is_looked_at_with_its_dependents() {
        let graph = OwnerGraph::default();
        let owned = object("owned", json!({"uid": "u1", "ownerReferences": [{"uid": "u0"}]}));
        graph.record(&owned);
        let ending = object("owner", json!({"uid": "u0", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert!(graph.changed(&ending, false));
        assert_eq!(all(&graph).0, [OwnerKey::of(&owned), OwnerKey::of(&ending)]);
        graph.check_everything();
        assert!(all(&graph).1 && !graph.has_more());
    }

    #[test]
    fn what_an_object_names_no_longer_is_forgotten() {
        let graph = OwnerGraph::default();
        let at = |revision: u64, owners: &[&str]| {
            let owners: Vec<_> = owners.iter().map(|uid| json!({ "uid": uid })).collect();
            let text = json!({"metadata": {"uid": "u", "ownerReferences": owners}}).to_string();
            Object::new("/things".into(), "rack".into(), "one".into(), revision, text.as_bytes()).unwrap()
        };
        for revision in 1..100 {
            graph.changed(&at(revision, &[&format!("a{revision}"), &format!("b{revision}"), "both"]), false);
        }
        // Told too late: what is newer counts.
        graph.changed(&at(7, &["late"]), false);
        assert!(graph.dependents_of("late").is_empty());
        assert_eq!(graph.state().of.len(), 3);
        assert_eq!(["a99", "b99", "both"].map(|uid| graph.dependents_of(uid).len()), [1, 1, 1]);
        graph.changed(&at(100, &[]), false);
        let state = graph.state();
        assert!(state.of.is_empty() && state.named.is_empty());
    }
}

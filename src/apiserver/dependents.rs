//! Which objects the garbage collector must look at: those that changed in a way that concerns it, and those that name
//! an owner which did. So a deletion costs what depends on it, and not a look at everything.
//!
//! It is a memory of hints. What is missed here (the process ended, a kind came) is found by the look at everything
//! that is made at the start and now and then; that look also forgets what no longer holds.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::store::Object;

/// An object: storage, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub storage: Arc<str>,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub(super) fn of(object: &Object) -> Self {
        Self { storage: Arc::clone(&object.resource), namespace: object.namespace.clone(), name: object.name.clone() }
    }
}

/// What concerns the garbage collector.
#[derive(Default)]
pub(super) struct Dependents(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By the uid of an owner, objects that named it when they were last seen.
    of: HashMap<String, HashSet<Key>>,
    look: Look,
}

/// What is to be looked at next.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Look {
    /// These objects.
    pub objects: HashSet<Key>,
    /// Owners that go or are gone, by uid: everything that names them.
    pub owners: HashSet<String>,
    /// References to owners of objects that are gone: the owners may be waiting for them. With the namespace.
    pub references: Vec<(String, Value)>,
    /// Everything there is.
    pub everything: bool,
}

impl Look {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Dependents {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a change: the object as it is now, or its last self when it is gone. Whether it concerns the
    /// collector.
    pub(super) fn changed(&self, object: &Object, gone: bool) -> bool {
        if !gone && !object.is_owned() && !object.is_ending() {
            return false;
        }
        let (key, meta) = (Key::of(object), object.metadata());
        let mut known = self.known();
        if gone {
            known.forget(&key, &meta);
            let references = owners(&meta).map(|owner| (object.namespace.clone(), owner.clone()));
            known.look.references.extend(references);
            known.look.objects.remove(&key);
        } else {
            known.note(&key, &meta);
            known.look.objects.insert(key);
        }
        if gone || object.is_ending() {
            known.look.owners.extend(meta["uid"].as_str().map(str::to_owned));
        }
        true
    }

    /// Takes note of an object that was there before.
    pub(super) fn note(&self, object: &Object) {
        if object.is_owned() {
            self.known().note(&Key::of(object), &object.metadata());
        }
    }

    /// Forgets who names whom, to be told anew.
    pub(super) fn begin_anew(&self) {
        self.known().of.clear();
    }

    /// Asks for a look at everything.
    pub(super) fn look_at_everything(&self) {
        self.known().look.everything = true;
    }

    /// What is to be looked at. It counts as done.
    pub(super) fn take(&self) -> Look {
        std::mem::take(&mut self.known().look)
    }

    /// Objects that named this owner when they were last seen.
    pub(super) fn of(&self, uid: &str) -> Vec<Key> {
        self.known().of.get(uid).into_iter().flatten().cloned().collect()
    }
}

impl Known {
    fn note(&mut self, key: &Key, meta: &Value) {
        for uid in owners(meta).filter_map(|owner| owner["uid"].as_str()) {
            self.of.entry(uid.to_owned()).or_default().insert(key.clone());
        }
    }

    fn forget(&mut self, key: &Key, meta: &Value) {
        for uid in owners(meta).filter_map(|owner| owner["uid"].as_str()) {
            if let Some(all) = self.of.get_mut(uid) {
                all.remove(key);
                if all.is_empty() {
                    self.of.remove(uid);
                }
            }
        }
    }
}

/// References to owners.
pub(super) fn owners(meta: &Value) -> impl Iterator<Item = &Value> {
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

    #[test]
    fn a_deletion_concerns_what_names_the_object_and_nothing_else() {
        let dependents = Dependents::default();
        assert!(!dependents.changed(&object("plain", json!({"uid": "u0"})), false));
        assert!(dependents.take().is_empty());
        let owned = object("owned", json!({"uid": "u1", "ownerReferences": [{"uid": "u0"}, {"uid": "u9"}]}));
        assert!(dependents.changed(&owned, false));
        assert_eq!(dependents.take().objects, HashSet::from([Key::of(&owned)]));
        assert!(dependents.changed(&object("plain", json!({"uid": "u0"})), true));
        let look = dependents.take();
        assert_eq!((look.owners, look.objects.len()), (HashSet::from(["u0".to_owned()]), 0));
        assert_eq!(dependents.of("u0"), [Key::of(&owned)]);
        // It goes: those who may wait for it are named.
        assert!(dependents.changed(&owned, true));
        let look = dependents.take();
        assert_eq!(look.references.iter().map(|(_, owner)| &owner["uid"]).collect::<Vec<_>>(), ["u0", "u9"]);
        assert!(dependents.of("u0").is_empty() && dependents.of("u9").is_empty());
        assert!(dependents.known().of.is_empty());
    }

    #[test]
    fn who_begins_to_go_is_looked_at_with_its_dependents() {
        let dependents = Dependents::default();
        let ending = object("owner", json!({"uid": "u0", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert!(dependents.changed(&ending, false));
        let look = dependents.take();
        assert_eq!((look.objects, look.owners), (HashSet::from([Key::of(&ending)]), HashSet::from(["u0".to_owned()])));
        dependents.look_at_everything();
        assert!(dependents.take().everything && dependents.take().is_empty());
    }
}

//! Who is looked at when an object changes: the object that owns it, or whatever it names.

use std::collections::HashMap;
use std::fmt::Debug;

use kube::Resource;
use serde::de::DeserializeOwned;

use super::cache::Wakes;
use super::owners;
use super::watches::{ObjectKey, WatchChange, Watches, key};

/// Has those looked at whom an object of kind `K` concerns, whenever it changes, and when it goes those whom it concerned last.
pub fn on<K>(watches: &mut Watches, wakes: Wakes, concerned: impl Fn(&K) -> Vec<ObjectKey> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut known: HashMap<ObjectKey, Vec<ObjectKey>> = HashMap::new();
    watches.observe(move |change: &WatchChange<'_, K>| {
        let whom = match change {
            WatchChange::Put(object) => {
                let whom = concerned(object);
                let before = if whom.is_empty() {
                    known.remove(&key(*object))
                } else {
                    known.insert(key(*object), whom.clone())
                };
                let mut all = before.unwrap_or_default();
                all.retain(|one| !whom.contains(one));
                all.extend(whom);
                all
            }
            WatchChange::Gone(key) => known.remove(*key).unwrap_or_default(),
            WatchChange::Listed => return,
        };
        whom.into_iter().for_each(|one| wakes.wake(one));
    });
}

/// The owner of this group and kind, of an object with a namespace.
pub fn owner<K: Resource<DynamicType = ()>>(object: &K, group: &str, kind: &str) -> Vec<ObjectKey> {
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    owners::of_kind(object.meta(), group, kind).map(|owner| (namespace, owner.name.clone())).into_iter().collect()
}

/// Tells of an object when its facts are not what they were.
pub fn on_change<K, F>(
    watches: &mut Watches,
    facts: impl Fn(&K) -> F + Send + 'static,
    tell: impl Fn(&ObjectKey, &F) + Send + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    F: PartialEq + Send + 'static,
{
    let mut known: HashMap<ObjectKey, F> = HashMap::new();
    watches.observe::<K>(move |change: &WatchChange<'_, K>| match change {
        WatchChange::Put(object) => {
            let (key, new) = (key(*object), facts(object));
            if known.get(&key) != Some(&new) {
                tell(&key, &new);
                known.insert(key, new);
            }
        }
        WatchChange::Gone(key) => {
            if let Some(last) = known.remove(*key) {
                tell(key, &last);
            }
        }
        WatchChange::Listed => {}
    });
}

//! Caches: slim copies of a kind's objects, and which of them a controller has yet to look at.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt, stream};
use kube::Resource;
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use super::watches::{Change, Key, Watches, key};

/// Names of objects that a controller has yet to look at: each once, however often it was woken for. Cheap to clone.
#[derive(Clone, Default)]
pub struct Wakes(Arc<Waking>);

#[derive(Default)]
struct Waking {
    names: Mutex<HashSet<Key>>,
    more: Notify,
}

impl Wakes {
    /// Has the object looked at.
    pub fn wake(&self, key: Key) {
        self.names().insert(key);
        self.0.more.notify_one();
    }

    fn names(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names, as they come. Only one at a time may read them.
    fn stream(&self) -> impl Stream<Item = Key> + use<> {
        let wakes = self.clone();
        let next = move || {
            let wakes = wakes.clone();
            async move {
                loop {
                    // A wake between the two leaves a permit.
                    let names = std::mem::take(&mut *wakes.names());
                    if !names.is_empty() {
                        return names;
                    }
                    wakes.0.more.notified().await;
                }
            }
        };
        stream::repeat_with(next).then(|next| next).flat_map(stream::iter)
    }
}

/// What a controller keeps of each object of its kind. Cheap to clone.
pub struct Cache<V: Resource<DynamicType = ()> + 'static> {
    store: Store<V>,
    wakes: Wakes,
}

impl<V: Resource<DynamicType = ()> + Clone + 'static> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), wakes: self.wakes.clone() }
    }
}

impl<V: Resource<DynamicType = ()> + Clone + Send + Sync + 'static> Cache<V> {
    /// Keeps `view` of each object of kind `K` from now on. Each is to be looked at when it is new or has changed.
    pub fn new<K>(watches: &mut Watches, view: impl Fn(&K) -> V + Send + 'static) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let (store, mut writer) = reflector::store();
        let cache = Self { store, wakes: Wakes::default() };
        let (kept, mut complete) = (cache.clone(), false);
        watches.observe(move |change: &Change<'_, K>| match change {
            Change::Put(object) => {
                writer.apply_watcher_event(&Event::Apply(view(object)));
                kept.wakes.wake(key(*object));
            }
            Change::Gone(key) => {
                if let Some(gone) = kept.get(key) {
                    writer.apply_watcher_event(&Event::Delete(V::clone(&gone)));
                }
            }
            Change::Listed if complete => {}
            Change::Listed => {
                complete = true;
                settle(&mut writer, &kept.store);
            }
        });
        cache
    }

    /// The object of this name.
    pub fn get(&self, (namespace, name): &Key) -> Option<Arc<V>> {
        self.store.get(&reference(namespace, name))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<V>> {
        self.store.state()
    }

    /// Has objects looked at.
    pub fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    /// Has those looked at of which `wanted` is true.
    pub fn wake_where(&self, wanted: impl Fn(&V) -> bool) {
        for object in self.all().iter().filter(|object| wanted(object)) {
            self.wakes.wake(key(object.as_ref()));
        }
    }

    pub(super) fn store(&self) -> &Store<V> {
        &self.store
    }

    /// What is to be looked at: everything that is there, then what is woken for.
    pub(super) fn woken(&self) -> impl Stream<Item = ObjectRef<V>> + use<V> {
        self.wake_where(|_| true);
        self.wakes.stream().map(|(namespace, name)| reference(&namespace, &name))
    }
}

fn reference<V: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> ObjectRef<V> {
    let reference = ObjectRef::new(name);
    if namespace.is_empty() { reference } else { reference.within(namespace) }
}

/// Says that everything is there. A store hears that from a listing only.
fn settle<V: Resource<DynamicType = ()> + Clone + 'static>(writer: &mut Writer<V>, store: &Store<V>) {
    let all = store.state();
    writer.apply_watcher_event(&Event::Init);
    for object in all {
        writer.apply_watcher_event(&Event::InitApply(V::clone(&object)));
    }
    writer.apply_watcher_event(&Event::InitDone);
}

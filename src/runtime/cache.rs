//! Caches: slim copies of a kind's objects, and which of them a controller has yet to look at.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use kube::Resource;
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use super::grouped::{Mention, Mentions};
use super::watches::{ObjectKey, WatchChange, Watches, key};

/// Objects that are found in one go.
const AT_ONCE: usize = 64;

/// Names of objects that a controller has yet to look at: each once, however often it was woken for. Cheap to clone.
#[derive(Clone, Default)]
pub struct Wakes(Arc<Waking>);

#[derive(Default)]
struct Waking {
    names: Mutex<HashSet<ObjectKey>>,
    more: Notify,
}

impl Wakes {
    /// Has the object looked at.
    pub fn wake(&self, key: ObjectKey) {
        self.names().insert(key);
        self.0.more.notify_one();
    }

    /// Whether the object is yet to be looked at.
    #[cfg(test)]
    pub fn is_woken(&self, key: &ObjectKey) -> bool {
        self.names().contains(key)
    }

    fn names(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names, as they come. Only one at a time may read them.
    fn stream(&self) -> impl Stream<Item = ObjectKey> + use<> {
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
    // std's lock: held for a look, never across an await.
    mentions: Arc<Mutex<Mentions>>,
}

impl<V: Resource<DynamicType = ()> + Clone + 'static> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), wakes: self.wakes.clone(), mentions: self.mentions.clone() }
    }
}

impl<V: Resource<DynamicType = ()> + Clone + Send + Sync + 'static> Cache<V> {
    /// Keeps `view` of each object of kind `K` from now on. Each is to be looked at when it is new or has changed.
    pub fn new<K>(watches: &mut Watches, view: impl Fn(&K) -> V + Send + 'static) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        Self::indexed(watches, view, |_| Vec::new())
    }

    /// The same, and finds objects by what they mention: few things, of names that have bounds.
    pub fn indexed<K>(
        watches: &mut Watches,
        view: impl Fn(&K) -> V + Send + 'static,
        mentions: impl Fn(&K) -> Vec<Mention> + Send + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let (store, mut writer) = reflector::store();
        let cache = Self { store, wakes: Wakes::default(), mentions: Arc::default() };
        let (kept, mut complete) = (cache.clone(), false);
        watches.observe(move |change: &WatchChange<'_, K>| match change {
            WatchChange::Put(object) => {
                let key = key(*object);
                // Found first and woken last: what changes in between wakes it once more.
                kept.mentions().put(&key, mentions(object));
                writer.apply_watcher_event(&Event::Apply(view(object)));
                kept.wakes.wake(key);
            }
            WatchChange::Gone(key) => {
                kept.mentions().put(key, Vec::new());
                if let Some(gone) = kept.get(key) {
                    writer.apply_watcher_event(&Event::Delete(V::clone(&gone)));
                }
            }
            WatchChange::Listed if complete => {}
            WatchChange::Listed => {
                complete = true;
                settle(&mut writer, &kept.store);
            }
        });
        cache
    }

    /// The object of this name.
    pub fn get(&self, (namespace, name): &ObjectKey) -> Option<Arc<V>> {
        self.store.get(&reference(namespace, name))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<V>> {
        self.store.state()
    }

    /// Those that mention something.
    pub fn mentioning(&self, mention: &Mention) -> Vec<Arc<V>> {
        let keys: Vec<ObjectKey> = self.mentions().of(mention).cloned().collect();
        keys.iter().filter_map(|key| self.get(key)).collect()
    }

    /// The first of those that mention something, by name.
    pub fn first_mentioning(&self, mention: &Mention, most: usize) -> Vec<Arc<V>> {
        self.page(mention, None, most).iter().filter_map(|key| self.get(key)).collect()
    }

    /// Those that mention something, in the order of their names. There may be very many, so they are found part by part, and
    /// others have their turn in between.
    pub fn walk_mentioning(&self, mention: &Mention) -> BoxStream<'static, Arc<V>> {
        let (cache, mention) = (self.clone(), mention.clone());
        let next = move |last: Option<Option<ObjectKey>>| {
            let (cache, mention) = (cache.clone(), mention.clone());
            async move {
                let last = last?;
                if last.is_some() {
                    tokio::task::yield_now().await;
                }
                let keys = cache.page(&mention, last.as_ref(), AT_ONCE);
                let part: Vec<_> = keys.iter().filter_map(|key| cache.get(key)).collect();
                Some((stream::iter(part), (keys.len() == AT_ONCE).then(|| keys.last().cloned())))
            }
        };
        stream::unfold(Some(None), next).flatten().boxed()
    }

    fn page(&self, mention: &Mention, last: Option<&ObjectKey>, most: usize) -> Vec<ObjectKey> {
        self.mentions().after(mention, last).take(most).cloned().collect()
    }

    /// How many mention something. None is looked at.
    pub fn count_mentioning(&self, mention: &Mention) -> usize {
        self.mentions().count(mention)
    }

    /// Has those looked at that mention something.
    pub fn wake_mentioning(&self, mention: &Mention) {
        self.mentions().of(mention).for_each(|key| self.wakes.wake(key.clone()));
    }

    fn mentions(&self) -> MutexGuard<'_, Mentions> {
        // Nothing in it can panic between two changes that belong together.
        self.mentions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has objects looked at.
    pub fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    /// Has those looked at of which `wanted` is true: all are looked through, which is not for what happens often.
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

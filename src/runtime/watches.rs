//! One watch of each kind in a process, and everybody who wants to know of its changes.

use std::any::{Any, TypeId};
use std::collections::HashSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Objects that a watch asks for at once when it lists them first. An object of somebody's may have 1.5 MB, and a page is
/// held in memory whole.
const PAGE: u32 = 50;

/// How long after a fault a watch is set up again: at first, and at most.
const PAUSE: Duration = Duration::from_millis(800);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Namespace and name of an object; the namespace is empty where its kind has none.
pub type Key = (String, String);

/// Namespace and name of an object.
pub fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// What a watch tells.
pub enum Change<'a, K> {
    /// An object is there: new, changed, or listed again as it was.
    Put(&'a K),
    /// An object is gone.
    Gone(&'a Key),
    /// Everything that is there has been told: after the first listing, and after each that a broken watch begins with.
    Listed,
}

type Observer<K> = Box<dyn FnMut(&Change<'_, K>) + Send>;

/// The watches of a process: one for each kind that somebody asked for.
#[derive(Default)]
pub struct Watches(Vec<(TypeId, Box<dyn Watched>)>);

/// A kind that is watched, whichever it is.
trait Watched: Any + Send {
    fn run(self: Box<Self>, client: Client, shutdown: CancellationToken) -> BoxFuture<'static, ()>;
}

struct Feed<K> {
    observers: Vec<Observer<K>>,
    known: HashSet<Key>,
    /// What a listing under way has named so far; the rest is gone when it ends.
    listed: HashSet<Key>,
}

impl<K> Default for Feed<K> {
    fn default() -> Self {
        Self { observers: Vec::new(), known: HashSet::new(), listed: HashSet::new() }
    }
}

impl Watches {
    /// Tells the observer of every change of the kind. Observers of a kind are told one after the other, in the order in which
    /// they came here; they must not block.
    pub fn observe<K>(&mut self, observer: impl FnMut(&Change<'_, K>) + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let id = TypeId::of::<K>();
        let at = self.0.iter().position(|(of, _)| *of == id).unwrap_or_else(|| {
            self.0.push((id, Box::new(Feed::<K>::default())));
            self.0.len() - 1
        });
        let feed: &mut dyn Any = self.0[at].1.as_mut();
        if let Some(feed) = feed.downcast_mut::<Feed<K>>() {
            feed.observers.push(Box::new(observer));
        }
    }

    /// Watches until the shutdown.
    pub async fn run(self, client: Client, shutdown: CancellationToken) {
        let feeds = self.0.into_iter().map(|(_, feed)| feed.run(client.clone(), shutdown.clone()));
        futures::future::join_all(feeds).await;
    }
}

impl<K> Watched for Feed<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    fn run(self: Box<Self>, client: Client, shutdown: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.follow(Api::all(client), shutdown))
    }
}

/// Tells the observer of the objects that are to be had here, until the shutdown: for who looks from another process.
pub async fn watch<K>(api: Api<K>, observer: impl FnMut(&Change<'_, K>) + Send + 'static, shutdown: CancellationToken)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let feed = Feed { observers: vec![Box::new(observer) as Observer<K>], ..Feed::default() };
    feed.follow(api, shutdown).await;
}

impl<K> Feed<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn follow(mut self, api: Api<K>, shutdown: CancellationToken) {
        let config = watcher::Config::default().page_size(PAGE);
        let mut events = watcher(api, config).boxed();
        let mut pause = PAUSE;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = shutdown.cancelled() => return,
            };
            match event {
                Some(Ok(event)) => {
                    // That a listing begins says nothing yet.
                    if !matches!(event, Event::Init) {
                        pause = PAUSE;
                    }
                    self.take(event);
                }
                Some(Err(error)) => {
                    warn!(kind = %K::kind(&()), %error, "a watch broke; it is set up again in {pause:?}");
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = shutdown.cancelled() => return,
                    }
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                None => return,
            }
        }
    }
}

impl<K: Resource<DynamicType = ()>> Feed<K> {
    fn take(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.listed.insert(key(&object));
                self.put(&object);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let gone: Vec<Key> = self.known.difference(&listed).cloned().collect();
                gone.iter().for_each(|key| self.gone(key));
                self.tell(&Change::Listed);
            }
            Event::Apply(object) => self.put(&object),
            Event::Delete(object) => self.gone(&key(&object)),
        }
    }

    fn put(&mut self, object: &K) {
        self.known.insert(key(object));
        self.tell(&Change::Put(object));
    }

    fn gone(&mut self, key: &Key) {
        self.known.remove(key);
        self.tell(&Change::Gone(key));
    }

    fn tell(&mut self, change: &Change<'_, K>) {
        self.observers.iter_mut().for_each(|observer| observer(change));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::{ConfigMap, Secret};

    use super::*;

    fn map(name: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        (map.metadata.namespace, map.metadata.name) = (Some("n".into()), Some(name.into()));
        map
    }

    #[test]
    fn a_relist_is_told_as_what_it_changed() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut feed = Feed::<ConfigMap>::default();
        let tell = told.clone();
        feed.observers.push(Box::new(move |change| {
            tell.lock().unwrap().push(match change {
                Change::Put(object) => format!("+{}", object.name_any()),
                Change::Gone((namespace, name)) => format!("-{namespace}/{name}"),
                Change::Listed => "listed".into(),
            });
        }));
        let rows: [(Event<ConfigMap>, &[&str]); 12] = [
            (Event::Init, &[]),
            (Event::InitApply(map("a")), &["+a"]),
            (Event::InitApply(map("b")), &["+b"]),
            (Event::InitDone, &["listed"]),
            (Event::Apply(map("c")), &["+c"]),
            (Event::Delete(map("b")), &["-n/b"]),
            // The watch broke, and a was deleted meanwhile. A listing that broke, too, counts for nothing.
            (Event::Init, &[]),
            (Event::InitApply(map("a")), &["+a"]),
            (Event::Init, &[]),
            (Event::InitApply(map("c")), &["+c"]),
            (Event::InitApply(map("d")), &["+d"]),
            (Event::InitDone, &["-n/a", "listed"]),
        ];
        for (event, wanted) in rows {
            feed.take(event);
            assert_eq!(std::mem::take(&mut *told.lock().unwrap()), wanted);
        }
        assert_eq!(feed.known.len(), 2);
    }

    #[test]
    fn a_kind_is_watched_once_however_many_ask() {
        let mut watches = Watches::default();
        for _ in 0..3 {
            watches.observe::<ConfigMap>(|_| {});
        }
        watches.observe::<Secret>(|_| {});
        assert_eq!(watches.0.len(), 2);
    }
}

//! Shared watches: one for each kind in a process, and everybody who wants to know of its changes.
//!
//! What happens is followed from the first page of a listing on, while the rest is listed: so a listing need not be of one
//! revision, and ends however much is written meanwhile. What is told of an object by the watch counts more than what a page says.

use std::any::{Any, TypeId};
use std::collections::HashSet;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::{error, warn};

use self::meters::WatchMeters;
use super::follow::{self, LONGEST_PAUSE, ListPage, PAUSE, WatchBroken, WatchEvent};
use super::readable::Readable;
use crate::log::named;

pub(super) mod meters;

/// Namespace and name of an object; the namespace is empty where its kind has none.
pub type ObjectKey = (String, String);

/// Namespace and name of an object.
pub fn key(object: &impl ResourceExt) -> ObjectKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// What a watch tells.
pub enum WatchChange<'a, K> {
    /// An object is there: new, changed, or listed again as it was.
    Put(&'a K),
    /// An object is gone.
    Gone(&'a ObjectKey),
    /// Everything that is there has been told: after the first listing, and after each that a broken watch begins with. What
    /// cannot be read is not told at all.
    Listed,
}

type Observer<K> = Box<dyn FnMut(&WatchChange<'_, K>) + Send>;

/// The watches of a process: one for each kind that somebody asked for.
#[derive(Default)]
pub struct Watches(Vec<(TypeId, Box<dyn WatchedKind>)>);

/// A kind that is watched, whichever it is.
trait WatchedKind: Any + Send {
    fn run(self: Box<Self>, client: Client, shutdown: CancellationToken) -> BoxFuture<'static, ()>;
}

struct WatchFeed<K> {
    observers: Vec<Observer<K>>,
    known: HashSet<ObjectKey>,
    /// What cannot be read, and was said so.
    unread: HashSet<ObjectKey>,
    listing: Option<ListingInProgress>,
}

/// A listing under way.
#[derive(Default)]
struct ListingInProgress {
    /// What is there; the rest is gone when it ends.
    named: HashSet<ObjectKey>,
    /// What the watch told of meanwhile, which a page may be behind.
    told: HashSet<ObjectKey>,
}

impl<K> Default for WatchFeed<K> {
    fn default() -> Self {
        Self { observers: Vec::new(), known: HashSet::new(), unread: HashSet::new(), listing: None }
    }
}

impl Watches {
    /// Tells the observer of every change of the kind. Observers of a kind are told one after the other, in the order in which
    /// they came here; they must not block.
    pub fn observe<K>(&mut self, observer: impl FnMut(&WatchChange<'_, K>) + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let id = TypeId::of::<K>();
        let at = self.0.iter().position(|(of, _)| *of == id).unwrap_or_else(|| {
            self.0.push((id, Box::new(WatchFeed::<K>::default())));
            self.0.len() - 1
        });
        let feed: &mut dyn Any = self.0[at].1.as_mut();
        if let Some(feed) = feed.downcast_mut::<WatchFeed<K>>() {
            feed.observers.push(Box::new(observer));
        }
    }

    /// Watches until the shutdown, each kind in a task of its own: none waits for another.
    ///
    /// # Panics
    /// When a feed does, which ends all: who goes by it would not know.
    pub async fn run(self, client: Client, shutdown: CancellationToken) {
        let mut feeds = JoinSet::new();
        for (_, feed) in self.0 {
            feeds.spawn(feed.run(client.clone(), shutdown.clone()));
        }
        while let Some(ended) = feeds.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl<K> WatchedKind for WatchFeed<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    fn run(self: Box<Self>, client: Client, shutdown: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.follow(Api::all(client), shutdown))
    }
}

/// Tells the observer of the objects that are to be had here, until the shutdown: for who looks from another process.
pub async fn watch<K>(
    api: Api<Readable<K>>,
    observer: impl FnMut(&WatchChange<'_, K>) + Send + 'static,
    shutdown: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let feed = WatchFeed { observers: vec![Box::new(observer) as Observer<K>], ..WatchFeed::default() };
    feed.follow(api, shutdown).await;
}

impl<K> WatchFeed<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn follow(mut self, api: Api<Readable<K>>, shutdown: CancellationToken) {
        let (mut pause, mut meters) = (PAUSE, WatchMeters::of(&K::plural(&()), &K::group(&())));
        loop {
            let broken = tokio::select! {
                broken = self.round(&api, &mut pause, &mut meters) => broken,
                () = shutdown.cancelled() => return,
            };
            meters.broke();
            warn!(kind = %K::kind(&()), error = %broken, ?pause, "a watch broke: it is set up again after a pause");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => return,
            }
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Lists everything and tells what happens, until that cannot be had any more. A listing under way is ended even then:
    /// what is there must become known however much is written.
    async fn round(&mut self, api: &Api<Readable<K>>, pause: &mut Duration, meters: &mut WatchMeters) -> WatchBroken {
        let mut page = match follow::page(api, None).await {
            Ok(page) => page,
            Err(broken) => return broken,
        };
        self.listing = Some(ListingInProgress::default());
        let mut events = follow::events(api.clone(), page.revision.clone()).boxed();
        let mut broken = None;
        loop {
            let ListPage { items, rest, .. } = page;
            items.into_iter().for_each(|object| self.listed(object));
            if rest.is_none() {
                self.end_listing();
                meters.listed();
            }
            let mut next = rest.map(|rest| Box::pin(follow::page(api, Some(rest))));
            page = loop {
                tokio::select! {
                    next = async { Some(next.as_mut()?.as_mut().await) }, if next.is_some() => match next {
                        Some(Ok(page)) => break page,
                        Some(Err(error)) => return error,
                        None => {}
                    },
                    event = events.next(), if broken.is_none() => match event {
                        Some(Ok(event)) => {
                            *pause = PAUSE;
                            self.happened(event);
                        }
                        Some(Err(error)) => broken = Some(error),
                        None => broken = Some(WatchBroken::ended()),
                    },
                    else => return broken.unwrap_or_else(WatchBroken::ended),
                }
            };
        }
    }
}

impl<K: Resource<DynamicType = ()>> WatchFeed<K> {
    /// An object of a page.
    fn listed(&mut self, object: Readable<K>) {
        let key = key(&object);
        if let Some(listing) = &mut self.listing {
            if listing.told.contains(&key) {
                return;
            }
            listing.named.insert(key.clone());
        }
        self.put(key, object);
    }

    /// The last page was the last.
    fn end_listing(&mut self) {
        let Some(ListingInProgress { named, .. }) = self.listing.take() else { return };
        let gone: Vec<ObjectKey> = self.known.difference(&named).cloned().collect();
        gone.iter().for_each(|key| self.gone(key));
        self.unread.retain(|key| named.contains(key));
        self.tell(&WatchChange::Listed);
    }

    /// What the watch says.
    fn happened(&mut self, event: WatchEvent<K>) {
        let (WatchEvent::Put(object) | WatchEvent::Gone(object)) = &event else { return };
        let key = key(object);
        if let Some(listing) = &mut self.listing {
            listing.told.insert(key.clone());
            match event {
                WatchEvent::Put(_) => listing.named.insert(key.clone()),
                _ => listing.named.remove(&key),
            };
        }
        match event {
            WatchEvent::Put(object) => self.put(key, object),
            WatchEvent::Gone(_) => self.gone(&key),
            WatchEvent::Progress => {}
        }
    }

    fn put(&mut self, key: ObjectKey, object: Readable<K>) {
        match object {
            Readable::Read(object) => {
                self.unread.remove(&key);
                self.known.insert(key);
                self.tell(&WatchChange::Put(&object));
            }
            // Whoever knows it goes by what it was.
            Readable::Unread(unread) => {
                let (namespace, name) = &key;
                if !self.unread.contains(&key) {
                    let (kind, error) = (K::kind(&()), &unread.1);
                    warn!(%kind, object = %named(namespace, name), error, "cannot read an object: nothing is done about it until it changes");
                    self.unread.insert(key);
                }
            }
        }
    }

    fn gone(&mut self, key: &ObjectKey) {
        self.unread.remove(key);
        if self.known.remove(key) {
            self.tell(&WatchChange::Gone(key));
        }
    }

    fn tell(&mut self, change: &WatchChange<'_, K>) {
        for observer in &mut self.observers {
            // A fault of this program, which an object that stays would bring about again after each restart.
            if catch_unwind(AssertUnwindSafe(|| observer(change))).is_err() {
                let of = match change {
                    WatchChange::Put(object) => Some(key(*object)),
                    WatchChange::Gone(key) => Some((*key).clone()),
                    WatchChange::Listed => None,
                };
                let object = of.as_ref().map(|(namespace, name)| display(named(namespace, name)));
                error!(kind = %K::kind(&()), object, "an observer of a change panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests;

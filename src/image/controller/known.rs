//! A cache of Images: what this process knows of them, whether it imports them or only waits to.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::runtime::controller::Action;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::demand::Demands;
use super::lock;
use super::upkeep::says_its_users;
use crate::api::slipway::Image;
use crate::runtime::tasks::{Job, ObjectVersion};
use crate::runtime::{Cache, Jobs, Slim, WatchChange, Watches, key};

/// The Images that this process knows. Cheap to clone.
#[derive(Clone)]
pub struct Images {
    pub(super) cache: Cache<Slim<Image>>,
    pub(super) shared: Arc<SharedImports>,
    pub(super) demands: Arc<dyn Demands>,
}

impl Images {
    /// None, until the watches run. `demands` says whose they are.
    pub fn new(watches: &mut Watches, demands: Arc<dyn Demands>) -> Self {
        let cache = Cache::new(watches, |image: &Image| Slim::from(image));
        let shared = Arc::<SharedImports>::default();
        let (told, wanted) = (shared.clone(), demands.clone());
        watches.observe(move |change: &WatchChange<'_, Image>| told.take(change, wanted.as_ref()));
        Self { cache, shared, demands }
    }
}

impl Images {
    /// Has an Image looked at.
    pub(in crate::image) fn look_at(&self, image: &Image) {
        self.cache.wakes().wake(key(image));
    }

    /// Imports under way, those included that wait.
    pub fn imports(&self) -> usize {
        self.shared.imports.len()
    }

    /// Imports that wait for others to give them a place.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }
}

/// What imports and the watch tell each other.
#[derive(Default)]
pub(super) struct SharedImports {
    /// Those under way, whether they have a place or wait for one.
    pub imports: Jobs<Import>,
    /// How many of them wait.
    waiting: AtomicUsize,
    /// By name.
    pub failed: Mutex<HashMap<String, FailedImport>>,
    /// By name: the digest of which every file was there last, and when.
    pub checked: Mutex<HashMap<String, (String, Instant)>>,
    /// By name: those whose files could not be looked at last.
    pub unseen: Mutex<HashMap<String, UnseenImage>>,
    /// Names of those of which events tell.
    pub told: Mutex<HashSet<String>>,
    /// Told when something may be named by nobody any more.
    pub collect: Notify,
    /// Told when an Image went of which something may have been sent.
    pub uploads: Notify,
    /// Told when an Image's status does not say who wants it.
    pub look: Notify,
}

impl SharedImports {
    /// One more waits, for as long as this is held.
    pub fn waits(&self) -> impl Drop + use<'_> {
        struct WaitCounter<'w>(&'w AtomicUsize);
        impl Drop for WaitCounter<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitCounter(&self.waiting)
    }
}

/// An import under way, as others see it.
#[derive(Default)]
pub(super) struct Import {
    /// Told when it must end for want of room.
    pub give_way: CancellationToken,
    /// Bytes that it has read of its source.
    pub read: Arc<AtomicU64>,
    /// Parts that it has in the library.
    pub parts: Arc<AtomicU64>,
    /// Of the source.
    pub percent: AtomicU8,
}

impl Job for Import {
    /// When its object is to be looked at again.
    type Done = Action;
    type Error = NotImported;

    /// It is dropped where it is: whatever it had stored is given back.
    const GRACE: Duration = Duration::ZERO;

    fn percent(&self) -> Option<u8> {
        Some(self.percent.load(Ordering::Relaxed))
    }
}

/// Why an image was not imported.
#[derive(Clone, Debug)]
pub(super) enum NotImported {
    /// Its object says so; when it is to be looked at again.
    Told(String, Action),
    /// The API failed.
    Api(Arc<kube::Error>),
}

impl fmt::Display for NotImported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(message, _) => f.write_str(message),
            Self::Api(error) => error.fmt(f),
        }
    }
}

impl From<kube::Error> for NotImported {
    fn from(error: kube::Error) -> Self {
        Self::Api(Arc::new(error))
    }
}

/// An import that failed.
#[derive(Clone)]
pub(super) struct FailedImport {
    pub version: ObjectVersion,
    /// When it is tried again; `None` when that is of no use.
    pub again: Option<Instant>,
}

/// An image whose files could not be looked at.
#[derive(Clone)]
pub(super) struct UnseenImage {
    pub digest: String,
    /// How often, one after the other.
    pub times: i64,
    /// When they are looked at again.
    pub again: Instant,
}

/// Has a collection take place when it is dropped.
pub(super) struct Collect<'a>(pub &'a SharedImports);

impl Drop for Collect<'_> {
    fn drop(&mut self) {
        self.0.collect.notify_one();
    }
}

impl SharedImports {
    /// Stops imports of objects that have gone or changed.
    fn take(&self, change: &WatchChange<'_, Image>, demands: &dyn Demands) {
        match change {
            WatchChange::Put(image) => {
                if let Some(import) = self.imports.find(&key(*image)) {
                    let (now, deleted) = (ObjectVersion::of(*image), image.metadata.deletion_timestamp.is_some());
                    let of = &import.version;
                    if now.uid != of.uid || deleted || now.generation > of.generation {
                        import.cancel();
                    }
                }
                if !says_its_users(demands, image) {
                    self.look.notify_one();
                }
            }
            WatchChange::Gone(key) => {
                if let Some(import) = self.imports.find(key) {
                    import.cancel();
                }
                let (_, name) = key;
                lock(&self.failed).remove(name);
                lock(&self.checked).remove(name);
                lock(&self.unseen).remove(name);
                lock(&self.told).remove(name);
                self.uploads.notify_one();
                self.collect.notify_one();
            }
            WatchChange::Listed => {
                self.uploads.notify_one();
                self.collect.notify_one();
            }
        }
    }
}

//! A cache of Images: what this process knows of them, whether it imports them or only waits to.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use kube::ResourceExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::demand::Demands;
use super::upkeep::says_its_users;
use super::{generation, lock};
use crate::api::slipway::Image;
use crate::runtime::{Cache, Change, Slim, Watches};

/// The Images that this process knows. Cheap to clone.
#[derive(Clone)]
pub struct Images {
    pub(super) cache: Cache<Slim<Image>>,
    pub(super) shared: Arc<Shared>,
    pub(super) demands: Arc<dyn Demands>,
}

impl Images {
    /// None, until the watches run. `demands` says whose they are.
    pub fn new(watches: &mut Watches, demands: Arc<dyn Demands>) -> Self {
        let cache = Cache::new(watches, |image: &Image| Slim::from(image));
        let shared = Arc::<Shared>::default();
        let (told, wanted) = (shared.clone(), demands.clone());
        watches.observe(move |change: &Change<'_, Image>| told.take(change, wanted.as_ref()));
        Self { cache, shared, demands }
    }
}

impl Images {
    /// Imports under way.
    pub fn imports(&self) -> usize {
        lock(&self.shared.running).len()
    }
}

/// What imports and the watch tell each other.
#[derive(Default)]
pub(super) struct Shared {
    /// By name.
    pub running: Mutex<HashMap<String, Running>>,
    /// By name.
    pub failed: Mutex<HashMap<String, Failed>>,
    /// By name: the digest of which every file was there last, and when.
    pub checked: Mutex<HashMap<String, (String, Instant)>>,
    /// Told when something may be named by nobody any more.
    pub collect: Notify,
    /// Told when an Image's status does not say who wants it.
    pub look: Notify,
}

/// An import under way.
pub(super) struct Running {
    pub uid: String,
    pub generation: i64,
    pub stop: CancellationToken,
    /// Told when it must end for want of room.
    pub give_way: CancellationToken,
    /// Bytes that it has read of its source.
    pub read: Arc<AtomicU64>,
}

/// An import that failed.
#[derive(Clone)]
pub(super) struct Failed {
    pub uid: String,
    pub generation: i64,
    /// When it is tried again; `None` when that is of no use.
    pub again: Option<Instant>,
}

impl Shared {
    /// Stops imports of objects that have gone or changed.
    fn take(&self, change: &Change<'_, Image>, demands: &dyn Demands) {
        match change {
            Change::Put(image) => {
                if let Some(running) = lock(&self.running).get(&image.name_any()) {
                    let same = image.uid().as_deref() == Some(running.uid.as_str());
                    let deleted = image.metadata.deletion_timestamp.is_some();
                    if !same || deleted || generation(image) > running.generation {
                        running.stop.cancel();
                    }
                }
                if !says_its_users(demands, image) {
                    self.look.notify_one();
                }
            }
            Change::Gone((_, name)) => {
                if let Some(running) = lock(&self.running).get(name) {
                    running.stop.cancel();
                }
                lock(&self.failed).remove(name);
                lock(&self.checked).remove(name);
                self.collect.notify_one();
            }
            Change::Listed => self.collect.notify_one(),
        }
    }
}

//! The index behind its lock, and who is told of what: what handles, watches and the committer share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use super::{IndexChange, StoreIndex};
use crate::store::meters::StoreMeters;
use crate::store::retired::Retired;
use crate::store::types::StoreWriteError;

/// How the committer does.
#[derive(Clone, Debug)]
enum CommitterState {
    Running,
    /// The disk refused; reads go on.
    Failed(Arc<str>),
}

/// What handles, watches and the committer share.
pub(in crate::store) struct SharedStore {
    // std's lock: held for map operations only, never across an await.
    index: RwLock<StoreIndex>,
    /// Tells watches of a resource that there is news. Beside the index, whose only writer is the committer.
    wakes: Mutex<HashMap<Arc<str>, watch::Sender<()>>>,
    life: watch::Sender<CommitterState>,
    /// The newest revision, for those who wait for one.
    progress: watch::Sender<u64>,
    meters: StoreMeters,
    /// Called after each group of changes.
    on_retired: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// Whether the committer's thread has let go of everything.
    ended: watch::Sender<bool>,
    /// Whether nothing but what gives room back is to be written, as on a full disk.
    #[cfg(test)]
    pub full: std::sync::atomic::AtomicBool,
}

impl SharedStore {
    pub fn new(index: StoreIndex) -> Self {
        Self {
            progress: watch::Sender::new(index.revision()),
            meters: StoreMeters::default(),
            on_retired: Mutex::default(),
            index: RwLock::new(index),
            wakes: Mutex::default(),
            life: watch::Sender::new(CommitterState::Running),
            ended: watch::Sender::new(false),
            #[cfg(test)]
            full: Default::default(),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, StoreIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, StoreIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Store::add_weight`](super::Store::add_weight).
    pub fn add_weight(&self, resource: &Arc<str>, more: usize) {
        self.write().add_weight(resource, more);
    }

    /// See [`Store::weigh_parsed`](super::Store::weigh_parsed).
    pub fn weigh_parsed(&self, resource: &Arc<str>) {
        self.write().weigh_parsed(resource);
    }

    /// Makes the changes of a group visible.
    pub fn apply(&self, group: IndexChange) {
        let (touched, revision) = {
            let mut index = self.write();
            (index.apply(group), index.revision())
        };
        let wakes = self.wakes();
        touched.iter().filter_map(|name| wakes.get(name)).for_each(|wake| wake.send_modify(|()| {}));
        drop(wakes);
        self.progress.send_replace(revision);
        let on_retired = self.on_retired.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(look) = on_retired {
            look();
        }
    }

    /// See [`Store::retired`](super::Store::retired).
    pub fn retired(&self) -> Retired {
        self.read().retired.clone()
    }

    /// See [`Store::set_on_retired`](super::Store::set_on_retired).
    pub fn set_on_retired(&self, look: Arc<dyn Fn() + Send + Sync>) {
        *self.on_retired.lock().unwrap_or_else(PoisonError::into_inner) = Some(look);
    }

    /// Notices that there is news of a resource, or that the store was closed.
    pub fn subscribe(&self, resource: &Arc<str>) -> watch::Receiver<()> {
        self.wakes().entry(Arc::clone(resource)).or_default().subscribe()
    }

    fn wakes(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Sender<()>>> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn reached(&self, revision: u64) {
        // The sender lives as long as `self`: this cannot fail.
        self.progress.subscribe().wait_for(|newest| *newest >= revision).await.ok();
    }

    pub fn meters(&self) -> &StoreMeters {
        &self.meters
    }

    pub fn is_closed(&self) -> bool {
        self.read().is_closed()
    }

    /// Marks the store read-only. The first reason stays.
    pub fn fail(&self, reason: &str) {
        self.life.send_if_modified(|life| match life {
            CommitterState::Running => {
                *life = CommitterState::Failed(reason.into());
                true
            }
            CommitterState::Failed(_) => false,
        });
    }

    /// Ends watches. Called by the committer's thread before it closes the files.
    pub fn close(&self) {
        self.write().closed = true;
        self.wakes().values().for_each(|wake| wake.send_modify(|()| {}));
    }

    /// Called by the committer's thread when the files are closed.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    pub async fn ended(&self) {
        // The sender lives as long as `self`: this cannot fail.
        self.ended.subscribe().wait_for(|ended| *ended).await.ok();
    }

    pub async fn failed(&self) -> String {
        let mut life = self.life.subscribe();
        loop {
            if let CommitterState::Failed(reason) = &*life.borrow_and_update() {
                return reason.to_string();
            }
            if life.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Refuses writes that cannot succeed any more.
    pub fn writable(&self) -> Result<(), StoreWriteError> {
        match &*self.life.borrow() {
            CommitterState::Running => Ok(()),
            CommitterState::Failed(reason) => Err(StoreWriteError::Failed(reason.to_string())),
        }
    }

    /// Why the committer took a request and gave no answer: it ended, and once it has, the reason is known.
    pub async fn unanswered(&self) -> StoreWriteError {
        self.ended().await;
        self.write_error()
    }

    /// Why the committer takes no requests.
    pub fn write_error(&self) -> StoreWriteError {
        match self.writable() {
            Err(error) => error,
            Ok(()) => StoreWriteError::Failed("it is closed".to_owned()),
        }
    }
}

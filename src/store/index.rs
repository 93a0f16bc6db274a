//! What readers see: all objects, and for each resource the events that are still kept.
//!
//! Only the committer changes it, a whole group at a time under one write lock, so that a [`Listing`](super::Listing)
//! and a watch from its revision never miss an event and never see one twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use super::database::Reader;
use super::{Gone, Meters, Object, StoreEvent, WriteError};

/// Text, as it is kept, that the events of one resource may hold in memory and on disk, in bytes: some 1,500 changes of an
/// inspected host.
pub(super) const HISTORY_BYTES: usize = 2 << 20;

/// One event that watches can still get.
pub(super) struct Logged {
    pub revision: u64,
    pub event: StoreEvent,
    /// For a deletion, the object as it was before; the event itself has it at the revision of the deletion.
    pub deleted: Option<Arc<Object>>,
    /// Its place in the log on disk, if it is there, too.
    pub slot: Option<u64>,
}

/// An event that was dropped from the history.
pub(super) struct Trimmed {
    pub resource: Arc<str>,
    pub revision: u64,
    /// Its place in the log on disk.
    pub slot: u64,
}

impl Logged {
    /// The object before this event.
    fn former(&self) -> Option<&Arc<Object>> {
        match &self.event {
            StoreEvent::Added(_) => None,
            StoreEvent::Modified { previous, .. } => Some(previous),
            StoreEvent::Deleted(_) => self.deleted.as_ref(),
        }
    }

    /// What the log on disk must know, now that this event is dropped.
    fn trimmed(&self, resource: &Arc<str>) -> Option<Trimmed> {
        self.slot.map(|slot| Trimmed { resource: Arc::clone(resource), revision: self.revision, slot })
    }
}

/// Objects and events of one resource.
pub(super) struct Resource {
    // Namespace, then name: looked up by `&str`, listed in order.
    objects: BTreeMap<String, BTreeMap<String, Arc<Object>>>,
    count: usize,
    events: VecDeque<Logged>,
    event_bytes: usize,
    /// Events up to this revision are not kept.
    trimmed: u64,
    /// Tells watches of new events; its value is the revision of the last one.
    wake: watch::Sender<u64>,
}

impl Resource {
    fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            count: 0,
            events: VecDeque::new(),
            event_bytes: 0,
            trimmed: 0,
            wake: watch::Sender::new(0),
        }
    }

    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// The first event after a revision.
    pub fn event_after(&self, revision: u64) -> Option<&Logged> {
        self.events.get(self.events.partition_point(|logged| logged.revision <= revision))
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    pub fn insert(&mut self, object: Arc<Object>) {
        let names = self.objects.entry(object.namespace.clone()).or_default();
        if names.insert(object.name.clone(), object).is_none() {
            self.count += 1;
        }
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let Some(names) = self.objects.get_mut(namespace) else { return };
        if names.remove(name).is_some() {
            self.count -= 1;
        }
        if names.is_empty() {
            self.objects.remove(namespace);
        }
    }

    fn push(&mut self, logged: Logged) {
        self.event_bytes += logged.event.object().size();
        self.events.push_back(logged);
    }

    /// Drops the oldest events over the bounds.
    fn trim(&mut self, history: usize, mut dropped: impl FnMut(Logged)) {
        while self.events.len() > history || self.event_bytes > HISTORY_BYTES {
            let Some(logged) = self.events.pop_front() else { return };
            self.event_bytes -= logged.event.object().size();
            self.trimmed = logged.revision;
            dropped(logged);
        }
    }
}

/// All of it.
pub(super) struct Index {
    revision: u64,
    history: usize,
    resources: HashMap<Arc<str>, Resource>,
    closed: bool,
}

impl Index {
    pub fn new(revision: u64, history: usize) -> Self {
        Self { revision, history: history.max(1), resources: HashMap::new(), closed: false }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// How many resources something is known of.
    pub fn resources(&self) -> usize {
        self.resources.len()
    }

    pub fn resource(&self, resource: &str) -> Option<&Resource> {
        self.resources.get(resource)
    }

    /// The resource, made when it is not there: nothing ever happened to it, so all of its events are known.
    pub fn resource_mut(&mut self, resource: &Arc<str>) -> &mut Resource {
        self.resources.entry(Arc::clone(resource)).or_insert_with(Resource::new)
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.resources.get(resource)?.objects.get(namespace)?.get(name)
    }

    pub fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let Some(resource) = self.resources.get(resource) else { return Vec::new() };
        match namespace {
            Some(namespace) => {
                resource.objects.get(namespace).map(|names| names.values().cloned().collect()).unwrap_or_default()
            }
            None => {
                let mut objects = Vec::with_capacity(resource.count);
                objects.extend(resource.objects.values().flat_map(BTreeMap::values).cloned());
                objects
            }
        }
    }

    /// As [`Index::list`], at an earlier revision: what was written since is undone.
    pub fn list_at(&self, name: &str, namespace: Option<&str>, revision: u64) -> Result<Vec<Arc<Object>>, Gone> {
        let resource = self.resources.get(name);
        let oldest = resource.map_or(0, Resource::trimmed);
        if revision < oldest || revision > self.revision {
            return Err(Gone { asked: revision, oldest });
        }
        let mut objects = self.list(name, namespace);
        let Some(resource) = resource else { return Ok(objects) };
        let since = resource.events.partition_point(|logged| logged.revision <= revision);
        let mut before: BTreeMap<(&str, &str), Option<&Arc<Object>>> = BTreeMap::new();
        for logged in resource.events.range(since..) {
            let object = logged.event.object();
            // The first event after the revision says what was there at it.
            before.entry((&object.namespace, &object.name)).or_insert_with(|| logged.former());
        }
        if !before.is_empty() {
            objects.retain(|object| !before.contains_key(&(object.namespace.as_str(), object.name.as_str())));
            let here = |object: &&Arc<Object>| namespace.is_none_or(|namespace| object.namespace == namespace);
            objects.extend(before.into_values().flatten().filter(here).cloned());
            objects.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        }
        Ok(objects)
    }

    /// How many objects each resource has.
    pub fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.resources.iter().map(|(name, resource)| (Arc::clone(name), resource.count)).collect()
    }

    /// Puts in the events that were read from disk, oldest first, and says which no longer fit
    /// and are on disk.
    pub fn restore(&mut self, name: &Arc<str>, trimmed: u64, events: Vec<Logged>) -> Vec<Trimmed> {
        let history = self.history;
        let resource = self.resource_mut(name);
        resource.trimmed = trimmed;
        for logged in events {
            resource.push(logged);
        }
        let mut dropped = Vec::new();
        resource.trim(history, |old| dropped.extend(old.trimmed(name)));
        dropped
    }

    /// Drops the events of a resource up to a revision, and says which of them are on disk. Who has not seen them is
    /// told that they are gone.
    pub fn forget(&mut self, name: &Arc<str>, revision: u64) -> Vec<Trimmed> {
        let resource = self.resource_mut(name);
        let mut dropped = Vec::new();
        while resource.events.front().is_some_and(|logged| logged.revision <= revision) {
            let Some(logged) = resource.events.pop_front() else { break };
            resource.event_bytes -= logged.event.object().size();
            dropped.extend(logged.trimmed(name));
        }
        resource.trimmed = resource.trimmed.max(revision);
        resource.wake.send_modify(|_| {});
        dropped
    }

    /// Makes the changes of one group visible, in order, and says which old events on disk were
    /// dropped for them.
    pub fn apply(&mut self, group: Vec<Logged>) -> Vec<Trimmed> {
        let history = self.history;
        let mut dropped = Vec::new();
        let mut touched: Vec<(Arc<str>, u64)> = Vec::new();
        for logged in group {
            let revision = logged.revision;
            let object = Arc::clone(logged.event.object());
            let resource = self.resource_mut(&object.resource);
            match logged.event {
                StoreEvent::Added(_) | StoreEvent::Modified { .. } => resource.insert(Arc::clone(&object)),
                StoreEvent::Deleted(_) => resource.remove(&object.namespace, &object.name),
            }
            resource.push(logged);
            resource.trim(history, |old| dropped.extend(old.trimmed(&object.resource)));
            self.revision = revision;
            match touched.iter_mut().find(|(name, _)| *name == object.resource) {
                Some((_, last)) => *last = revision,
                None => touched.push((Arc::clone(&object.resource), revision)),
            }
        }
        for (name, revision) in touched {
            if let Some(resource) = self.resources.get(&name) {
                resource.wake.send_replace(revision);
            }
        }
        dropped
    }

    /// Ends all watches.
    fn close(&mut self) {
        self.closed = true;
        for resource in self.resources.values() {
            resource.wake.send_modify(|_| {});
        }
    }
}

/// How the committer does.
#[derive(Clone, Debug)]
enum Life {
    Running,
    /// The disk refused; reads go on.
    Failed(Arc<str>),
}

/// What handles, watches and the committer share.
pub(super) struct Shared {
    // std's lock: held for map operations only, never across an await.
    index: RwLock<Index>,
    /// For scans of tables; taken away when the store is closed, so that the files can be closed, too.
    reader: RwLock<Option<Reader>>,
    life: watch::Sender<Life>,
    /// The newest revision, for those who wait for one.
    progress: watch::Sender<u64>,
    meters: Meters,
    /// Whether the committer's thread has let go of everything.
    ended: watch::Sender<bool>,
}

impl Shared {
    pub fn new(index: Index, reader: Reader) -> Self {
        Self {
            progress: watch::Sender::new(index.revision()),
            meters: Meters::default(),
            index: RwLock::new(index),
            reader: RwLock::new(Some(reader)),
            life: watch::Sender::new(Life::Running),
            ended: watch::Sender::new(false),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the changes of a group visible; returns the old events that were dropped for them.
    pub fn apply(&self, group: Vec<Logged>) -> Vec<Trimmed> {
        let (dropped, revision) = {
            let mut index = self.write();
            (index.apply(group), index.revision())
        };
        self.progress.send_replace(revision);
        dropped
    }

    pub fn forget(&self, name: &Arc<str>, revision: u64) -> Vec<Trimmed> {
        self.write().forget(name, revision)
    }

    pub async fn reached(&self, revision: u64) {
        // The sender lives as long as `self`: this cannot fail.
        self.progress.subscribe().wait_for(|newest| *newest >= revision).await.ok();
    }

    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Reads tables, as long as the store is open.
    pub fn reader(&self) -> RwLockReadGuard<'_, Option<Reader>> {
        self.reader.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the database from readers, waiting for those that are at it, and gives them another one or none.
    pub fn set_reader(&self, reader: Option<Reader>) {
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    pub fn is_closed(&self) -> bool {
        self.read().is_closed()
    }

    /// Marks the store read-only. The first reason stays.
    pub fn fail(&self, reason: &str) {
        self.life.send_if_modified(|life| match life {
            Life::Running => {
                *life = Life::Failed(reason.into());
                true
            }
            Life::Failed(_) => false,
        });
    }

    /// Ends watches and lets go of the database. Called by the committer's thread before it closes the files.
    pub fn close(&self) {
        self.write().close();
        self.set_reader(None);
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
            if let Life::Failed(reason) = &*life.borrow_and_update() {
                return reason.to_string();
            }
            if life.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Refuses writes that cannot succeed any more.
    pub fn writable(&self) -> Result<(), WriteError> {
        match &*self.life.borrow() {
            Life::Running => Ok(()),
            Life::Failed(reason) => Err(WriteError::Failed(reason.to_string())),
        }
    }

    /// Why the committer took a request and gave no answer: it ended, and once it has, the reason is known.
    pub async fn unanswered(&self) -> WriteError {
        self.ended().await;
        self.write_error()
    }

    /// Why the committer takes no requests.
    pub fn write_error(&self) -> WriteError {
        match self.writable() {
            Err(error) => error,
            Ok(()) => WriteError::Failed("it is closed".to_owned()),
        }
    }
}

//! The index in memory, which readers see: all objects, for each resource the events that are still kept, and the tables.
//!
//! Only the committer changes it, a whole group at a time under one write lock, so that a [`Listing`](super::Listing)
//! and a watch from its revision never miss an event and never see one twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use super::TableEntry;
use super::frames::put_size;
use super::object::OBJECT_WEIGHT;
use super::record::{self, Former, Identity};
use super::retired::Retired;
use super::{Gone, Meters, Object, StoreEvent, WriteError};

/// What the events of one resource may hold in memory and on disk, in bytes: 16 MiB, some 8,000 changes of an inspected host.
/// Several of the largest groups that are written at once, for who follows a resource must have the time to read them: else
/// whoever writes large objects would end the watches of all others.
pub(super) const HISTORY_BYTES: usize = 16 << 20;
/// What events that have been there for a while may hold of it, in bytes: 2 MiB, some 1,000 changes of an inspected host. Who
/// follows has long read them.
const OLD_HISTORY_BYTES: usize = 2 << 20;
/// So long events are new: whoever follows the resource may still be reading them.
const NEW: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 4 });
/// What an event takes besides the text of its object, in bytes.
const EVENT_WEIGHT: usize = 512;
/// Bytes that the histories of all resources may take: 64 MiB. There are as many resources as somebody defines.
const HISTORIES_BYTES: usize = 64 << 20;

/// What all objects may take of the memory, in bytes: 512 MiB. The service has 2 GiB.
const WEIGHT: usize = 512 << 20;

/// What those of one namespace may, and those of none, in bytes: 256 MiB.
const WEIGHT_OF_A_NAMESPACE: usize = WEIGHT / 2;

/// Who has more than this of the memory leaves its last quarter to others, in bytes: nearly 13 MiB, a fortieth.
const WEIGHT_OF_LITTLE: usize = WEIGHT / 40;

/// The namespace of the appliance itself and of those who administer it.
const OWN_NAMESPACE: &str = "slipway-system";

/// What all objects may take when one of a namespace that will have `own` bytes of them is made or grows, in bytes. The last
/// quarter is for namespaces that have little. The last sixteenth is for what is of no namespace and for the appliance's own,
/// or many small namespaces would leave nothing for it.
fn bound_of_all(namespace: &str, own: usize) -> usize {
    match namespace {
        "" | OWN_NAMESPACE => WEIGHT,
        _ if own <= WEIGHT_OF_LITTLE => WEIGHT - WEIGHT / 16,
        _ => WEIGHT - WEIGHT / 4,
    }
}

/// Part of its text that an object weighs at least: one letter again and again packs to nothing, and is unpacked by whoever
/// lists it.
const PART_OF_TEXT: usize = 16;

/// What an object takes as it is kept, in bytes, packed or not.
pub(super) fn weight(object: &Object) -> usize {
    (record::size(object) + object.unpacked()).max(object.json_len() / PART_OF_TEXT)
}

/// What is a little more for an object that is there, in bytes: a status, a mark of its deletion.
const LITTLE: usize = 1024;

/// One event that watches can still get.
pub(super) struct Logged {
    pub revision: u64,
    pub event: StoreEvent,
    /// For a deletion, the object as it was before; the event itself has it at the revision of the deletion.
    pub deleted: Option<Arc<Object>>,
    /// Bytes of it on disk; `None` when neither it nor its object is there.
    pub stored: Option<usize>,
    /// When it became visible, or was read from disk.
    pub since: Instant,
}

impl Logged {
    /// The object before this event.
    fn previous(&self) -> Option<&Arc<Object>> {
        match &self.event {
            StoreEvent::Added(_) => None,
            StoreEvent::Modified { previous, .. } => Some(previous),
            StoreEvent::Deleted(_) => self.deleted.as_ref(),
        }
    }

    /// What the log on disk says of it.
    pub fn former(&self) -> Former {
        match (&self.event, self.previous()) {
            (StoreEvent::Modified { .. }, Some(previous)) => Former::Modified(Arc::clone(previous)),
            (StoreEvent::Deleted(_), Some(previous)) => Former::Deleted(Arc::clone(previous)),
            _ => Former::Added,
        }
    }

    /// Bytes that it takes in memory or on disk, whichever is more: there it has the former self.
    fn bytes(&self) -> usize {
        let object = self.event.object();
        EVENT_WEIGHT + (object.size() + object.unpacked()).max(self.stored.unwrap_or(0))
    }

    /// Bytes that it takes on disk.
    fn disk_bytes(&self) -> usize {
        match self.stored {
            Some(bytes) if bytes > 0 => put_size(size_of::<u64>(), bytes),
            _ => 0,
        }
    }
}

/// Bytes that an object takes on disk.
fn disk_bytes(object: &Object) -> usize {
    put_size(object.namespace.len() + 1 + object.name.len(), record::size(object))
}

/// Objects and events of one resource.
pub(super) struct Resource {
    // Namespace, then name: looked up by `&str`, listed in order.
    objects: BTreeMap<String, BTreeMap<String, Arc<Object>>>,
    count: usize,
    events: VecDeque<Logged>,
    event_bytes: usize,
    /// Bytes of all that on disk.
    disk_bytes: usize,
    /// And of its events alone.
    event_disk_bytes: usize,
    /// Whether its objects are in memory only.
    published: bool,
    /// What each of its objects takes besides its text, in bytes.
    each: usize,
    /// Events up to this revision are not kept.
    trimmed: u64,
}

impl Resource {
    fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            count: 0,
            events: VecDeque::new(),
            event_bytes: 0,
            disk_bytes: 0,
            event_disk_bytes: 0,
            published: false,
            each: OBJECT_WEIGHT,
            trimmed: 0,
        }
    }

    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// The first event after a revision.
    pub fn event_after(&self, revision: u64) -> Option<&Logged> {
        self.events.get(self.events.partition_point(|logged| logged.revision <= revision))
    }

    /// Puts an object; says what it weighs, and what its former self did.
    fn insert(&mut self, object: Arc<Object>) -> (usize, usize) {
        self.disk_bytes += self.bytes_of(&object);
        let weight = self.weight_of(&object);
        let names = self.objects.entry(object.namespace.clone()).or_default();
        match names.insert(object.name.clone(), object) {
            None => {
                self.count += 1;
                (weight, 0)
            }
            Some(former) => {
                self.disk_bytes -= self.bytes_of(&former);
                (weight, self.weight_of(&former))
            }
        }
    }

    /// Removes an object; says what it weighed.
    fn remove(&mut self, namespace: &str, name: &str) -> usize {
        let Some(names) = self.objects.get_mut(namespace) else { return 0 };
        let removed = names.remove(name);
        if names.is_empty() {
            self.objects.remove(namespace);
        }
        let Some(former) = removed else { return 0 };
        self.count -= 1;
        self.disk_bytes -= self.bytes_of(&former);
        self.weight_of(&former)
    }

    /// What an object takes of memory or disk, whichever is more, roughly, in bytes; views of what is elsewhere are not counted.
    fn weight_of(&self, object: &Object) -> usize {
        if self.published { 0 } else { weight(object) + self.each }
    }

    fn bytes_of(&self, object: &Object) -> usize {
        if self.published { 0 } else { disk_bytes(object) }
    }

    /// Whether its objects are in memory only.
    pub fn is_published(&self) -> bool {
        self.published
    }

    /// Its objects, in order.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values().flat_map(BTreeMap::values)
    }

    /// Its events, oldest first.
    pub fn events(&self) -> impl Iterator<Item = &Logged> {
        self.events.iter()
    }

    fn push(&mut self, logged: Logged) {
        self.event_bytes += logged.bytes();
        self.disk_bytes += logged.disk_bytes();
        self.event_disk_bytes += logged.disk_bytes();
        self.events.push_back(logged);
    }

    fn drop_oldest(&mut self, retired: &Retired) {
        let Some(logged) = self.events.pop_front() else { return };
        // Neither is there any more, nor in the history: no event before this one is.
        if let Some(previous) = logged.previous() {
            previous.retire(retired);
        }
        if let StoreEvent::Deleted(object) = &logged.event {
            object.retire(retired);
        }
        self.event_bytes -= logged.bytes();
        self.disk_bytes -= logged.disk_bytes();
        self.event_disk_bytes -= logged.disk_bytes();
        self.trimmed = self.trimmed.max(logged.revision);
    }

    /// Drops the oldest events over the bounds.
    fn trim(&mut self, history: usize, retired: &Retired, now: Instant) {
        while let Some(oldest) = self.events.front()
            && is_over(self.events.len(), self.event_bytes, history, now.saturating_duration_since(oldest.since))
        {
            self.drop_oldest(retired);
        }
    }
}

/// Whether the oldest of so many events of a resource, with so many bytes, is to be dropped: it has been there for `age`.
fn is_over(events: usize, bytes: usize, history: usize, age: Duration) -> bool {
    events > history || bytes > HISTORY_BYTES || (bytes > OLD_HISTORY_BYTES && age >= NEW)
}

/// Entries of a table by key.
type Entries = BTreeMap<Bytes, Bytes>;

/// What a group of changes does to the index.
#[derive(Default)]
pub(super) struct Applied {
    /// What happened to objects.
    pub events: Vec<Logged>,
    /// Changes of entries, with their tables.
    pub entries: Vec<(Arc<str>, TableEntry)>,
    /// Resources whose history ends, and at which revision.
    pub forgotten: Vec<(Arc<str>, u64)>,
    /// What could not be read and was deleted, and at which revision.
    pub cleared: Vec<(Identity, u64)>,
}

/// Objects as they are, and what happened to them since a revision. What they were is found without the index.
pub(super) struct Past {
    objects: Vec<Arc<Object>>,
    /// Objects that events left, and what was there before, oldest first.
    since: Vec<(Arc<Object>, Option<Arc<Object>>)>,
}

impl Past {
    /// The objects as they were.
    pub fn objects(self) -> Vec<Arc<Object>> {
        let Self { mut objects, since } = self;
        let mut before: BTreeMap<(&str, &str), Option<&Arc<Object>>> = BTreeMap::new();
        for (object, previous) in &since {
            // The first event after the revision says what was there at it.
            before.entry((&object.namespace, &object.name)).or_insert_with(|| previous.as_ref());
        }
        if !before.is_empty() {
            objects.retain(|object| !before.contains_key(&(object.namespace.as_str(), object.name.as_str())));
            objects.extend(before.into_values().flatten().cloned());
            objects.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        }
        objects
    }
}

/// All of it.
pub(super) struct Index {
    revision: u64,
    history: usize,
    /// Bytes of all events, and how many those may be.
    event_bytes: usize,
    event_bytes_max: usize,
    resources: HashMap<Arc<str>, Resource>,
    /// Records of objects that cannot be read, as they are on disk. There are few.
    unreadable: BTreeMap<Identity, Bytes>,
    tables: BTreeMap<Arc<str>, Entries>,
    table_bytes: usize,
    /// What all objects take of the memory, and those of each namespace.
    weight: usize,
    weights: HashMap<String, usize>,
    retired: Retired,
    closed: bool,
}

impl Index {
    pub fn new(revision: u64, history: usize) -> Self {
        let (resources, tables) = (HashMap::new(), BTreeMap::new());
        Self {
            revision,
            history: history.max(1),
            event_bytes: 0,
            event_bytes_max: HISTORIES_BYTES,
            resources,
            unreadable: BTreeMap::new(),
            tables,
            table_bytes: 0,
            weight: 0,
            weights: HashMap::new(),
            retired: Retired::default(),
            closed: false,
        }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// All resources of which something is known.
    pub fn resources(&self) -> &HashMap<Arc<str>, Resource> {
        &self.resources
    }

    /// Records of objects that cannot be read, as they are on disk.
    pub fn unreadable(&self) -> &BTreeMap<Identity, Bytes> {
        &self.unreadable
    }

    pub fn set_unreadable(&mut self, records: BTreeMap<Identity, Bytes>) {
        self.unreadable = records;
    }

    /// All tables.
    pub fn tables(&self) -> &BTreeMap<Arc<str>, Entries> {
        &self.tables
    }

    /// Puts an object.
    pub fn insert(&mut self, object: Arc<Object>) {
        let namespace = object.namespace.clone();
        let (weight, former) = self.resource_mut(&Arc::clone(&object.resource)).insert(object);
        self.weigh(namespace, weight, former);
    }

    fn remove(&mut self, object: &Object) {
        let weight = self.resource_mut(&object.resource).remove(&object.namespace, &object.name);
        self.weigh(object.namespace.clone(), 0, weight);
    }

    /// Counts this many bytes more for each object of a resource, which others keep in memory beside the store.
    fn add_weight(&mut self, resource: &Arc<str>, more: usize) {
        let of = self.resource_mut(resource);
        of.each += more;
        let there: Vec<_> = of.objects.iter().map(|(namespace, names)| (namespace.clone(), names.len())).collect();
        for (namespace, count) in there {
            self.weigh(namespace, count * more, 0);
        }
    }

    fn weigh(&mut self, namespace: String, more: usize, less: usize) {
        self.weight = self.weight + more - less;
        let own = self.weights.get(&namespace).copied().unwrap_or(0) + more - less;
        match own {
            0 => self.weights.remove(&namespace),
            own => self.weights.insert(namespace, own),
        };
    }

    /// Why no object of this namespace may take so many bytes more, if so. A little more is given to what is there, some
    /// beyond the bound, and a mark of its deletion always.
    pub fn crowded(&self, namespace: &str, more: usize, is_ending: bool) -> Option<WriteError> {
        let own = self.weights.get(namespace).copied().unwrap_or(0);
        let is_over = |weight: usize, bound: usize| match more {
            0 => false,
            1..=LITTLE => weight > bound + bound / 16 && !is_ending,
            more => weight + more > bound,
        };
        if is_over(own, WEIGHT_OF_A_NAMESPACE) {
            let whose = match namespace {
                "" => "objects of no namespace".to_owned(),
                namespace => format!("objects of namespace {namespace}"),
            };
            return Some(WriteError::Crowded { whose, limit: WEIGHT_OF_A_NAMESPACE >> 20 });
        }
        let bound = bound_of_all(namespace, own.saturating_add(more));
        is_over(self.weight, bound).then(|| {
            let whose = match namespace {
                "" => "objects together".to_owned(),
                namespace => format!("objects together, as far as namespace {namespace} may still add to them,"),
            };
            WriteError::Crowded { whose, limit: bound >> 20 }
        })
    }

    /// Puts an entry of a table, or removes it.
    pub fn entry(&mut self, table: &Arc<str>, key: &[u8], value: Option<&[u8]>) {
        let entries = self.tables.entry(Arc::clone(table)).or_default();
        // Copies, for these may be parts of something larger.
        let former = match value {
            Some(value) => {
                self.table_bytes += put_size(key.len(), value.len());
                entries.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))
            }
            None => entries.remove(key),
        };
        if let Some(former) = former {
            self.table_bytes -= put_size(key.len(), former.len());
        }
        if entries.is_empty() {
            self.tables.remove(table);
        }
    }

    /// What all of it takes on disk, once it is written anew, in bytes.
    pub fn disk_bytes(&self) -> usize {
        let unreadable = self.unreadable.iter().map(|(identity, record)| put_size(identity.key().len(), record.len()));
        self.resources.values().map(|resource| resource.disk_bytes).sum::<usize>()
            + self.table_bytes
            + unreadable.sum::<usize>()
    }

    /// Bytes of it that are there as long as nobody deletes them: history is there for a moment.
    pub fn lasting_bytes(&self) -> usize {
        self.disk_bytes() - self.resources.values().map(|resource| resource.event_disk_bytes).sum::<usize>()
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

    /// All objects of a resource with this name, of whichever namespace.
    pub fn named(&self, resource: &str, name: &str) -> Vec<Arc<Object>> {
        let namespaces = self.resources.get(resource).into_iter().flat_map(|resource| resource.objects.values());
        namespaces.filter_map(|names| names.get(name)).cloned().collect()
    }

    /// Resources that have objects in a namespace, and how many, but for those that are in memory only.
    pub fn stored_in(&self, namespace: &str) -> Vec<(Arc<str>, usize)> {
        let unreadable = |name: &Arc<str>| {
            let is_in = |one: &&Identity| one.resource == *name && one.namespace == namespace;
            self.unreadable.keys().filter(is_in).count()
        };
        let stored = self.resources.iter().filter(|(_, resource)| !resource.published);
        let counts = stored.map(|(name, resource)| {
            let readable = resource.objects.get(namespace).map_or(0, BTreeMap::len);
            (name.clone(), readable + unreadable(name))
        });
        counts.filter(|(_, count)| *count > 0).collect()
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

    /// As [`Index::list`], at an earlier revision: what was written since is to be undone.
    pub fn list_at(&self, name: &str, namespace: Option<&str>, revision: u64) -> Result<Past, Gone> {
        let resource = self.resources.get(name);
        let oldest = resource.map_or(0, Resource::trimmed);
        if revision < oldest || revision > self.revision {
            return Err(Gone { asked: revision, oldest });
        }
        let mut since = Vec::new();
        if let Some(resource) = resource {
            let begin = resource.events.partition_point(|logged| logged.revision <= revision);
            let events = resource.events.range(begin..).map(|logged| (logged.event.object(), logged.previous()));
            let here = |(object, _): &(&Arc<Object>, _)| namespace.is_none_or(|one| object.namespace == one);
            since.extend(events.filter(here).map(|(object, previous)| (Arc::clone(object), previous.cloned())));
        }
        Ok(Past { objects: self.list(name, namespace), since })
    }

    /// How many objects each resource has.
    pub fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.resources.iter().map(|(name, resource)| (Arc::clone(name), resource.count)).collect()
    }

    /// Puts in the events that were read from disk, oldest first, as many as are kept.
    pub fn restore(&mut self, name: &Arc<str>, trimmed: u64, events: Vec<Logged>) {
        let (history, retired) = (self.history, self.retired.clone());
        let resource = self.resource_mut(name);
        let before = resource.event_bytes;
        resource.trimmed = trimmed;
        for logged in events {
            resource.push(logged);
        }
        resource.trim(history, &retired, Instant::now());
        let after = resource.event_bytes;
        self.event_bytes = self.event_bytes + after - before;
        self.trim_most();
    }

    /// Drops the oldest events of the resources that have most, over the bound of all.
    fn trim_most(&mut self) {
        while self.event_bytes > self.event_bytes_max {
            let most = self.resources.values_mut().max_by_key(|resource| resource.event_bytes);
            let Some(resource) = most.filter(|resource| resource.event_bytes > 0) else { return };
            let before = resource.event_bytes;
            resource.drop_oldest(&self.retired);
            self.event_bytes -= before - resource.event_bytes;
        }
    }

    /// Drops the events of a resource up to a revision. Who has not seen them is told that they are gone.
    fn forget(&mut self, name: &Arc<str>, revision: u64) {
        let retired = self.retired.clone();
        let resource = self.resource_mut(name);
        let before = resource.event_bytes;
        while resource.events.front().is_some_and(|logged| logged.revision <= revision) {
            resource.drop_oldest(&retired);
        }
        resource.trimmed = resource.trimmed.max(revision);
        let dropped = before - resource.event_bytes;
        self.event_bytes -= dropped;
    }

    /// Makes the changes of one group visible, in order. Says which resources have news.
    fn apply(&mut self, group: Applied) -> Vec<Arc<str>> {
        let (history, retired) = (self.history, self.retired.clone());
        let (mut touched, now): (Vec<Arc<str>>, _) = (Vec::new(), Instant::now());
        for logged in group.events {
            let revision = logged.revision;
            let object = Arc::clone(logged.event.object());
            self.resource_mut(&object.resource).published = logged.stored.is_none();
            match logged.event {
                StoreEvent::Added(_) | StoreEvent::Modified { .. } => self.insert(Arc::clone(&object)),
                StoreEvent::Deleted(_) => self.remove(&object),
            }
            let resource = self.resource_mut(&object.resource);
            let before = resource.event_bytes;
            resource.push(logged);
            resource.trim(history, &retired, now);
            let after = resource.event_bytes;
            self.event_bytes = self.event_bytes + after - before;
            self.trim_most();
            self.revision = revision;
            if !touched.contains(&object.resource) {
                touched.push(Arc::clone(&object.resource));
            }
        }
        for (table, (key, value)) in &group.entries {
            self.entry(table, key, value.as_deref());
        }
        for (identity, revision) in &group.cleared {
            self.unreadable.remove(identity);
            self.revision = self.revision.max(*revision);
        }
        for (name, revision) in &group.forgotten {
            self.forget(name, *revision);
            touched.push(Arc::clone(name));
        }
        touched
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
    /// Tells watches of a resource that there is news. Beside the index, whose only writer is the committer.
    wakes: Mutex<HashMap<Arc<str>, watch::Sender<()>>>,
    life: watch::Sender<Life>,
    /// The newest revision, for those who wait for one.
    progress: watch::Sender<u64>,
    meters: Meters,
    /// Called after each group of changes.
    on_retired: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// Whether the committer's thread has let go of everything.
    ended: watch::Sender<bool>,
    /// Whether nothing but what gives room back is to be written, as on a full disk.
    #[cfg(test)]
    pub full: std::sync::atomic::AtomicBool,
}

impl Shared {
    pub fn new(index: Index) -> Self {
        Self {
            progress: watch::Sender::new(index.revision()),
            meters: Meters::default(),
            on_retired: Mutex::default(),
            index: RwLock::new(index),
            wakes: Mutex::default(),
            life: watch::Sender::new(Life::Running),
            ended: watch::Sender::new(false),
            #[cfg(test)]
            full: Default::default(),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Store::add_weight`](super::Store::add_weight).
    pub fn add_weight(&self, resource: &Arc<str>, more: usize) {
        self.write().add_weight(resource, more);
    }

    /// Makes the changes of a group visible.
    pub fn apply(&self, group: Applied) {
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

    pub fn meters(&self) -> &Meters {
        &self.meters
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

#[cfg(test)]
mod tests {
    use super::super::text::Text;
    use super::*;

    #[test]
    fn what_is_new_may_take_more() {
        const MIB: usize = 1 << 20;
        let (new, old) = (Duration::ZERO, NEW);
        for (events, bytes, age, expected) in [
            (10, 2 * MIB, old, false),
            (10, 2 * MIB + 1, old, true),
            (10, 16 * MIB, new, false),
            (10, 16 * MIB + 1, new, true),
            (11, MIB, new, true),
        ] {
            assert_eq!(is_over(events, bytes, 10, age), expected, "{events} {bytes} {age:?}");
        }
    }

    #[test]
    fn a_namespace_has_half_of_what_all_have() {
        // They share their text.
        let large = Text::Plain(Bytes::from(vec![b' '; 1 << 20]));
        let object = |namespace: &str, number: usize| {
            let (namespace, name) = (namespace.to_owned(), number.to_string());
            Object::with_text("/configmaps".into(), namespace, name, 1, b"{}", || large.clone()).map(Arc::new).unwrap()
        };
        let mut index = Index::new(0, 1);
        let asks = |index: &Index, namespace: &str, more, is_ending| {
            index.crowded(namespace, more, is_ending).map(|error| error.to_string())
        };
        let says = |index: &Index, namespace: &str| asks(index, namespace, 2000, false);
        (0..255).for_each(|number| index.insert(object("a", number)));
        assert_eq!(says(&index, "a"), None);
        index.insert(object("a", 255));
        // Twice the same is there once.
        index.insert(object("a", 255));
        assert!(says(&index, "a").unwrap().contains("the objects of namespace a take the 256 MiB"));
        // What does not grow, or little, is let through, up to a sixteenth more.
        assert_eq!((asks(&index, "a", 0, false), asks(&index, "a", LITTLE, false)), (None, None));
        (256..280).for_each(|number| index.insert(object("a", number)));
        assert!(asks(&index, "a", 1, false).is_some());
        assert_eq!((asks(&index, "a", 0, false), asks(&index, "a", LITTLE, true)), (None, None));
        (256..280).for_each(|number| index.remove(&object("a", number)));
        assert_eq!((says(&index, "b"), says(&index, "")), (None, None));
        // Of the last quarter have who have little, of the last sixteenth the appliance and what is of no namespace.
        (0..13).for_each(|number| index.insert(object("b", number)));
        (0..115).for_each(|number| index.insert(object("", number)));
        let refused = says(&index, "b").unwrap();
        assert!(refused.contains("as far as namespace b may still add to them, take the 384 MiB"), "{refused}");
        assert_eq!((asks(&index, "b", 0, false), asks(&index, "b", LITTLE, true)), (None, None));
        let others = |index: &Index| ["c", "", OWN_NAMESPACE].map(|namespace| says(index, namespace).is_some());
        assert_eq!(others(&index), [false, false, false]);
        (115..211).for_each(|number| index.insert(object("", number)));
        assert_eq!(others(&index), [true, false, false]);
        (211..243).for_each(|number| index.insert(object("", number)));
        assert!(says(&index, OWN_NAMESPACE).unwrap().contains("take the 512 MiB"));
        assert!(says(&index, "").unwrap().contains("the objects together take the 512 MiB"));
        (0..13).for_each(|number| index.remove(&object("b", number)));
        (243..256).for_each(|number| index.insert(object("", number)));
        assert!(says(&index, "").unwrap().contains("the objects of no namespace take"));
        (0..256).for_each(|number| index.remove(&object("", number)));
        index.remove(&object("a", 0));
        index.remove(&object("a", 0));
        assert_eq!((says(&index, "a"), says(&index, ""), index.weights.len()), (None, None, 1));
        (1..256).for_each(|number| index.remove(&object("a", number)));
        assert_eq!((index.weight, index.weights.len(), index.disk_bytes()), (0, 0, 0));
        index.resource_mut(&"/configmaps".into()).published = true;
        index.insert(object("a", 1));
        assert_eq!(index.weight, 0);
        // What others keep of each object counts, of those that are there and of those that come.
        let host = |number: usize| {
            let name = number.to_string();
            Arc::new(Object::new("/hosts".into(), "a".into(), name, 1, b"{}").unwrap())
        };
        index.insert(host(1));
        let before = index.weight;
        index.add_weight(&"/hosts".into(), 10_000);
        assert_eq!(index.weight, before + 10_000);
        index.insert(host(2));
        assert_eq!((index.weight, index.weights["a"]), (2 * before + 20_000, 2 * before + 20_000));
        index.remove(&host(1));
        index.remove(&host(2));
        assert_eq!((index.weight, index.weights.len()), (0, 0));
    }

    #[test]
    fn all_histories_have_a_bound_together_and_the_longest_gives_way() {
        let mut index = Index::new(0, 100);
        let change = |resource: &str, revision: u64| {
            let text = serde_json::json!({ "metadata": {}, "revision": revision }).to_string();
            let object = Object::new(resource.into(), "a".into(), "n".into(), revision, text.as_bytes());
            let event = StoreEvent::Added(object.map(Arc::new).unwrap());
            Logged { revision, event, deleted: None, stored: None, since: Instant::now() }
        };
        let one = change("/many", 10).bytes();
        index.event_bytes_max = 20 * one + one / 2;
        let apply = |index: &mut Index, resource: &str, revision| {
            index.apply(Applied { events: vec![change(resource, revision)], ..Applied::default() });
        };
        (10..=12).for_each(|revision| apply(&mut index, "/less", revision));
        (13..=49).for_each(|revision| apply(&mut index, "/many", revision));
        let of = |index: &Index, name: &str| (index.resources[name].events.len(), index.resources[name].trimmed());
        assert_eq!((of(&index, "/less"), of(&index, "/many").0), ((3, 0), 17));
        assert_eq!(index.event_bytes, index.resources.values().map(|resource| resource.event_bytes).sum::<usize>());
        index.forget(&"/many".into(), 49);
        assert_eq!((of(&index, "/many"), index.event_bytes), ((0, 49), index.resources["/less"].event_bytes));
    }

    #[test]
    fn what_is_kept_unpacked_counts_in_objects_and_in_the_history() {
        // All alike, so that it packs to next to nothing.
        let labels: serde_json::Map<_, _> =
            (0..8000).map(|one| (format!("{}{one}", "a".repeat(50)), "x".into())).collect();
        let owners: Vec<_> = (0..8000).map(|one| serde_json::json!({ "uid": one.to_string() })).collect();
        let of = |metadata: serde_json::Value| {
            let text = serde_json::json!({ "metadata": metadata }).to_string();
            Object::new("/configmaps".into(), "a".into(), "n".into(), 1, text.as_bytes()).map(Arc::new).unwrap()
        };
        for (metadata, least) in [
            (serde_json::json!({ "labels": labels }), 8000 * 115),
            (serde_json::json!({ "ownerReferences": owners }), 8000 * 320),
        ] {
            let object = of(metadata);
            assert!(object.size() < least / 10, "{} bytes: it shows nothing", object.size());
            let mut index = Index::new(0, 100);
            index.insert(Arc::clone(&object));
            assert!(index.weight > least, "{}", index.weight);
            let event = StoreEvent::Added(object);
            let logged = Logged { revision: 1, event, deleted: None, stored: None, since: Instant::now() };
            assert!(logged.bytes() > least, "{}", logged.bytes());
        }
    }
}

//! The index in memory, which readers see: all objects, for each resource the events that are still kept, and the tables.
//!
//! Only the committer changes it, a whole group at a time under one write lock, so that a [`Listing`](super::ObjectListing)
//! and a watch from its revision never miss an event and never see one twice.

mod resource;
mod shared;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

pub(super) use resource::{HISTORY_BYTES, Logged, ResourceIndex};
pub(super) use shared::SharedStore;

use super::TableEntry;
use super::frames::put_size;
use super::record::ObjectIdentity;
use super::retired::Retired;
use super::{Gone, Object, StoreEvent, StoreWriteError};

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

/// What an object that is to go may grow by whatever there is, in bytes: what its controller says of it, and its marks.
const FAREWELL: usize = 16 << 10;

/// What is a little more for an object that is there, in bytes: a status, a mark of its deletion.
const LITTLE: usize = 1024;

/// Entries of a table by key.
type TableEntries = BTreeMap<Bytes, Bytes>;

/// What a group of changes does to the index.
#[derive(Default)]
pub(super) struct IndexChange {
    /// What happened to objects.
    pub events: Vec<Logged>,
    /// Changes of entries, with their tables.
    pub entries: Vec<(Arc<str>, TableEntry)>,
    /// Resources whose history ends, and at which revision.
    pub forgotten: Vec<(Arc<str>, u64)>,
    /// What could not be read and was deleted, and at which revision.
    pub cleared: Vec<(ObjectIdentity, u64)>,
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
pub(super) struct StoreIndex {
    revision: u64,
    history: usize,
    /// Bytes of all events, and how many those may be.
    event_bytes: usize,
    event_bytes_max: usize,
    resources: HashMap<Arc<str>, ResourceIndex>,
    /// Records of objects that cannot be read, as they are on disk. There are few.
    unreadable: BTreeMap<ObjectIdentity, Bytes>,
    tables: BTreeMap<Arc<str>, TableEntries>,
    table_bytes: usize,
    /// What all objects take of the memory, and those of each namespace.
    weight: usize,
    weights: HashMap<String, usize>,
    retired: Retired,
    closed: bool,
}

impl StoreIndex {
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
    pub fn resources(&self) -> &HashMap<Arc<str>, ResourceIndex> {
        &self.resources
    }

    /// Records of objects that cannot be read, as they are on disk.
    pub fn unreadable(&self) -> &BTreeMap<ObjectIdentity, Bytes> {
        &self.unreadable
    }

    pub fn set_unreadable(&mut self, records: BTreeMap<ObjectIdentity, Bytes>) {
        self.unreadable = records;
    }

    /// All tables.
    pub fn tables(&self) -> &BTreeMap<Arc<str>, TableEntries> {
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

    /// Counts objects of a resource as they are parsed, too: those who follow it keep them so.
    fn weigh_parsed(&mut self, resource: &Arc<str>) {
        let of = self.resource_mut(resource);
        if std::mem::replace(&mut of.parsed, true) {
            return;
        }
        let sum = |names: &BTreeMap<String, Arc<Object>>| names.values().map(|object| object.parsed()).sum::<usize>();
        let there: Vec<_> = of.objects.iter().map(|(namespace, names)| (namespace.clone(), sum(names))).collect();
        for (namespace, more) in there {
            self.weigh(namespace, more, 0);
        }
    }

    /// What the text of an object weighs that is there, or comes.
    pub fn weight_of_text(&self, object: &Object) -> usize {
        match self.resources.get(&object.resource) {
            Some(of) => of.weight_of_text(object),
            None => ResourceIndex::new().weight_of_text(object),
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
    pub fn crowded(&self, namespace: &str, more: usize, is_ending: bool) -> Option<StoreWriteError> {
        let own = self.weights.get(namespace).copied().unwrap_or(0);
        let is_over = |weight: usize, bound: usize| match more {
            0 => false,
            1..=LITTLE => weight > bound + bound / 16 && !is_ending,
            more if is_ending && more <= FAREWELL => false,
            more => weight + more > bound,
        };
        if is_over(own, WEIGHT_OF_A_NAMESPACE) {
            let whose = match namespace {
                "" => "objects of no namespace".to_owned(),
                namespace => format!("objects of namespace {namespace}"),
            };
            return Some(StoreWriteError::Crowded { whose, limit: WEIGHT_OF_A_NAMESPACE >> 20 });
        }
        let bound = bound_of_all(namespace, own.saturating_add(more));
        is_over(self.weight, bound).then(|| {
            let whose = match namespace {
                "" => "objects together".to_owned(),
                namespace => format!("objects together, as far as namespace {namespace} may still add to them,"),
            };
            StoreWriteError::Crowded { whose, limit: bound >> 20 }
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

    pub fn resource(&self, resource: &str) -> Option<&ResourceIndex> {
        self.resources.get(resource)
    }

    /// The resource, made when it is not there: nothing ever happened to it, so all of its events are known.
    pub fn resource_mut(&mut self, resource: &Arc<str>) -> &mut ResourceIndex {
        self.resources.entry(Arc::clone(resource)).or_insert_with(ResourceIndex::new)
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
            let is_in = |one: &&ObjectIdentity| one.resource == *name && one.namespace == namespace;
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

    /// As [`StoreIndex::list`], at an earlier revision: what was written since is to be undone.
    pub fn list_at(&self, name: &str, namespace: Option<&str>, revision: u64) -> Result<Past, Gone> {
        let resource = self.resources.get(name);
        let oldest = resource.map_or(0, ResourceIndex::trimmed);
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
    fn apply(&mut self, group: IndexChange) -> Vec<Arc<str>> {
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

#[cfg(test)]
mod tests;

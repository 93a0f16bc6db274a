//! What the files hold, read but not yet understood.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::committer::Writer;
use super::group::{TreeName, key};
use super::index::{Index, Logged};
use super::record::{self, Former, Identity, StoredEvent, number};
use super::seal::Sealer;
use super::{Object, StoreEvent};

/// Events by resource, oldest first.
type Events = HashMap<Arc<str>, Vec<Logged>>;

/// Entries of a tree by key.
type Entries = HashMap<Vec<u8>, Bytes>;

/// All entries.
#[derive(Default)]
pub(super) struct Content {
    /// Numbers.
    pub meta: BTreeMap<Vec<u8>, Bytes>,
    trees: HashMap<String, (TreeName, Entries)>,
}

/// What the content means.
pub(super) struct Loaded {
    /// Objects, events and tables.
    pub index: Index,
    /// Revisions up to this one may be used for objects in memory.
    pub reserved: u64,
    /// Resources known on disk to have objects in memory.
    pub memory: Vec<Arc<str>>,
    /// Whether nobody can tell if it is the newest.
    pub unwitnessed: bool,
}

impl Content {
    /// Puts an entry, or removes it.
    pub fn put(&mut self, tree: &str, key: Vec<u8>, value: Option<Bytes>) -> Result<(), String> {
        let entries = match self.trees.get_mut(tree) {
            Some((_, entries)) => entries,
            None => {
                let name = match TreeName::parse(tree) {
                    None => return Err(format!("it has a tree {} that nobody knows", tree.escape_debug())),
                    Some(TreeName::Meta) => {
                        match value {
                            Some(value) => self.meta.insert(key, value),
                            None => self.meta.remove(&key),
                        };
                        return Ok(());
                    }
                    Some(name) => name,
                };
                &mut self.trees.entry(tree.to_owned()).or_insert_with(|| (name, Entries::new())).1
            }
        };
        match value {
            Some(value) => entries.insert(key, value),
            None => entries.remove(&key),
        };
        Ok(())
    }

    /// Makes sense of all of it.
    pub fn load(self, history: usize, sealer: &Sealer) -> Result<Loaded, String> {
        let Self { meta, trees } = self;
        let reserved = meta_number(&meta, key::RESERVED)?.unwrap_or(0);
        let mut revision = meta_number(&meta, key::REVISION)?.unwrap_or(0).max(reserved);

        let mut objects: HashMap<Identity, Arc<Object>> = HashMap::new();
        let (mut log, mut tables) = (Entries::new(), Vec::new());
        for (name, entries) in trees.into_values() {
            match name {
                TreeName::Objects(resource) => {
                    for (key, value) in entries {
                        let object = Identity::from_key(Arc::clone(&resource), &key)
                            .and_then(|identity| record::decode(identity, &value, sealer))
                            .map_err(|error| {
                                let key = String::from_utf8_lossy(&key).replace('\0', "/");
                                format!("the object {resource} {key} cannot be read: {error}")
                            })?;
                        revision = revision.max(object.revision);
                        objects.insert(Identity::of(&object), Arc::new(object));
                    }
                }
                TreeName::Log => log = entries,
                TreeName::Table(table) => tables.push((table, entries)),
                TreeName::Meta => {}
            }
        }

        let trimmed = marks(&meta, key::TRIMMED)?;
        let memory: Vec<Arc<str>> = marks(&meta, key::MEMORY)?.into_keys().collect();
        let is_kept = |identity: &Identity, revision: u64| {
            revision > trimmed.get(&identity.resource).copied().unwrap_or(0) && !memory.contains(&identity.resource)
        };
        let events = load_events(log, objects.clone(), sealer, is_kept)?;
        if let Some(last) = events.values().flat_map(|events| events.last()).map(|logged| logged.revision).max() {
            revision = revision.max(last);
        }

        let mut index = Index::new(revision, history);
        for object in objects.into_values() {
            index.insert(object);
        }
        for (resource, trimmed) in &trimmed {
            index.restore(resource, *trimmed, Vec::new());
        }
        for resource in &memory {
            // What was in memory is lost, so nobody can go on from before.
            index.restore(resource, revision, Vec::new());
        }
        for (resource, events) in events {
            index.restore(&resource, trimmed.get(&resource).copied().unwrap_or(0), events);
        }
        for (table, entries) in tables {
            entries.iter().for_each(|(key, value)| index.entry(&table, key, Some(value)));
        }
        tracing::info!(revision, resources = index.resources().len(), reserved, "store opened");
        Ok(Loaded { index, reserved, memory, unwitnessed: false })
    }
}

/// The log as events with both their sides: played backwards from the objects as they are now.
fn load_events(
    log: Entries,
    mut after: HashMap<Identity, Arc<Object>>,
    sealer: &Sealer,
    is_kept: impl Fn(&Identity, u64) -> bool,
) -> Result<Events, String> {
    let mut stored = Vec::new();
    for (key, value) in log {
        let bytes = value.len();
        let event = StoredEvent::new(value).map_err(|error| {
            let number = number(&key).unwrap_or(0);
            format!("the event {number} cannot be read: {error}")
        })?;
        if is_kept(&event.identity, event.revision) {
            stored.push((bytes, event));
        }
    }
    stored.sort_unstable_by_key(|(_, event)| std::cmp::Reverse(event.revision));

    let mut events = Events::new();
    let mut writer = Writer::default();
    for (bytes, stored) in stored {
        let StoredEvent { revision, ref identity, .. } = stored;
        let damaged = |reason: &str| format!("the event of revision {revision} cannot be read: {reason}");
        let former = stored.former(sealer).map_err(|error| damaged(&error.to_string()))?;
        let deleted = match &former {
            Former::Deleted(previous) => Some(Arc::clone(previous)),
            _ => None,
        };
        let event = match (&former, after.get(identity)) {
            (Former::Added, Some(now)) => StoreEvent::Added(Arc::clone(now)),
            (Former::Modified(previous), Some(now)) => {
                StoreEvent::Modified { object: Arc::clone(now), previous: Arc::clone(previous) }
            }
            (Former::Deleted(previous), _) => {
                StoreEvent::Deleted(writer.move_to(previous, revision).map_err(|error| damaged(&error.to_string()))?)
            }
            (_, None) => return Err(damaged("what it made is missing")),
        };
        let logged = Logged { revision, event, deleted, stored: Some(bytes) };
        events.entry(Arc::clone(&identity.resource)).or_default().push(logged);
        match former {
            Former::Added => after.remove(identity),
            Former::Modified(previous) | Former::Deleted(previous) => after.insert(identity.clone(), previous),
        };
    }
    for events in events.values_mut() {
        events.reverse();
    }
    Ok(events)
}

fn marks(meta: &BTreeMap<Vec<u8>, Bytes>, prefix: &[u8]) -> Result<BTreeMap<Arc<str>, u64>, String> {
    meta.range(prefix.to_vec()..)
        .take_while(|(key, _)| key.starts_with(prefix))
        .map(|(key, value)| {
            let resource = std::str::from_utf8(&key[prefix.len()..]).map_err(|error| error.to_string())?;
            Ok((resource.into(), number(value).ok_or("a mark is not a number")?))
        })
        .collect()
}

fn meta_number(meta: &BTreeMap<Vec<u8>, Bytes>, key: &[u8]) -> Result<Option<u64>, String> {
    let Some(value) = meta.get(key) else { return Ok(None) };
    match number(value) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("its {} is not a number", String::from_utf8_lossy(key))),
    }
}

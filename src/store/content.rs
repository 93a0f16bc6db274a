//! Loading: what the files hold, read but not yet understood.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::group::{TreeName, key};
use super::index::{Logged, StoreIndex};
use super::record::{self, DecodeError, FormerRecord, ObjectIdentity, StoredEvent, number};
use super::seal::Sealer;
use super::writer::TextWriter;
use super::{Object, StoreEvent};

/// Events by resource, oldest first.
type Events = HashMap<Arc<str>, Vec<Logged>>;

/// Objects that may be unreadable and the rest is still served. What is on disk is known to be what was written there, so
/// such a one was written wrong, as by memory that failed.
const UNREADABLE_MAX: usize = 64;

/// Entries of a tree by key.
type TreeEntries = HashMap<Vec<u8>, Bytes>;

/// All entries.
#[derive(Default)]
pub(super) struct StoreContent {
    /// Numbers.
    pub meta: BTreeMap<Vec<u8>, Bytes>,
    trees: HashMap<String, (TreeName, TreeEntries)>,
}

/// What the content means.
pub(super) struct Loaded {
    /// Objects, events and tables.
    pub index: StoreIndex,
    /// Revisions up to this one may be used for objects in memory.
    pub reserved: u64,
    /// Resources known on disk to have objects in memory.
    pub memory: Vec<Arc<str>>,
    /// Whether nobody can tell if it is the newest.
    pub unwitnessed: bool,
}

impl StoreContent {
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
                &mut self.trees.entry(tree.to_owned()).or_insert_with(|| (name, TreeEntries::new())).1
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

        let mut objects: HashMap<ObjectIdentity, Arc<Object>> = HashMap::new();
        let mut unreadable: BTreeMap<ObjectIdentity, Bytes> = BTreeMap::new();
        let (mut log, mut tables) = (TreeEntries::new(), Vec::new());
        for (name, entries) in trees.into_values() {
            match name {
                TreeName::Objects(resource) => {
                    for (key, value) in entries {
                        let refused = |error: DecodeError| {
                            let key = String::from_utf8_lossy(&key).replace('\0', "/");
                            format!("the object {resource} {key} cannot be read: {error}")
                        };
                        let identity = ObjectIdentity::from_key(Arc::clone(&resource), &key).map_err(refused)?;
                        match record::decode(identity.clone(), &value, sealer) {
                            Ok(object) => {
                                revision = revision.max(object.revision);
                                objects.insert(identity, Arc::new(object));
                            }
                            // Of another version, or by another key, all may be like this one.
                            Err(error @ DecodeError::Format(_)) => return Err(refused(error)),
                            Err(error @ DecodeError::Seal) if !meta.contains_key(key::SEAL) => {
                                return Err(refused(error));
                            }
                            Err(error) if unreadable.len() >= UNREADABLE_MAX => return Err(refused(error)),
                            Err(error) => {
                                tracing::error!(
                                    error = refused(error),
                                    "an object is damaged: it is not shown until it is deleted, or a backup is restored"
                                );
                                revision = revision.max(record::revision(&value).unwrap_or(0));
                                unreadable.insert(identity, value);
                            }
                        }
                    }
                }
                TreeName::Log => log = entries,
                TreeName::Table(table) => tables.push((table, entries)),
                TreeName::Meta => {}
            }
        }

        let mut trimmed = marks(&meta, key::TRIMMED)?;
        let memory: Vec<Arc<str>> = marks(&meta, key::MEMORY)?.into_keys().collect();
        let is_kept = |identity: &ObjectIdentity, revision: u64| {
            revision > trimmed.get(&identity.resource).copied().unwrap_or(0) && !memory.contains(&identity.resource)
        };
        let mut ended: HashSet<Arc<str>> = unreadable.keys().map(|identity| Arc::clone(&identity.resource)).collect();
        let (stored, lost) = stored_events(log, is_kept);
        if lost {
            // It may have been of any.
            ended.extend(stored.iter().map(|(_, event)| Arc::clone(&event.identity.resource)));
            ended.extend(objects.keys().map(|identity| Arc::clone(&identity.resource)));
        }
        let events = loop {
            match load_events(&stored, &ended, objects.clone(), sealer) {
                Ok(events) => break events,
                // Who follows the resource lists it again.
                Err((resource, reason)) => {
                    tracing::error!(
                        resource = &*resource,
                        error = reason,
                        "the history of a resource is damaged: watches of it begin anew"
                    );
                    ended.insert(resource);
                }
            }
        };
        if let Some(last) = stored.first().map(|(_, event)| event.revision) {
            revision = revision.max(last);
        }
        trimmed.extend(ended.into_iter().map(|resource| (resource, revision)));

        let mut index = StoreIndex::new(revision, history);
        for object in objects.into_values() {
            index.insert(object);
        }
        index.set_unreadable(unreadable);
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

/// The events that are kept, newest first, with what they take on disk, in bytes; and whether there are some of which nobody
/// can say what they were about.
fn stored_events(
    log: TreeEntries,
    is_kept: impl Fn(&ObjectIdentity, u64) -> bool,
) -> (Vec<(usize, StoredEvent)>, bool) {
    let (mut stored, mut lost) = (Vec::new(), false);
    for (key, value) in log {
        let bytes = value.len();
        match StoredEvent::new(value) {
            Ok(event) if is_kept(&event.identity, event.revision) => stored.push((bytes, event)),
            Ok(_) => {}
            Err(error) => {
                let event = number(&key).unwrap_or(0);
                tracing::error!(event, %error, "the history is damaged: all watches begin anew");
                lost = true;
            }
        }
    }
    stored.sort_unstable_by_key(|(_, event)| std::cmp::Reverse(event.revision));
    (stored, lost)
}

/// The log as events with both their sides: played backwards from the objects as they are now. Those of resources whose
/// history has ended are left out; else the resource with an event that cannot be read, and why.
fn load_events(
    log: &[(usize, StoredEvent)],
    ended: &HashSet<Arc<str>>,
    mut after: HashMap<ObjectIdentity, Arc<Object>>,
    sealer: &Sealer,
) -> Result<Events, (Arc<str>, String)> {
    let mut events = Events::new();
    let mut writer = TextWriter::default();
    let since = Instant::now();
    for (bytes, stored) in log.iter().filter(|(_, stored)| !ended.contains(&stored.identity.resource)) {
        let StoredEvent { revision, ref identity, .. } = *stored;
        let damaged = |reason: &str| {
            let reason = format!("the event of revision {revision} cannot be read: {reason}");
            (Arc::clone(&identity.resource), reason)
        };
        let former = stored.former(sealer).map_err(|error| damaged(&error.to_string()))?;
        let deleted = match &former {
            FormerRecord::Deleted(previous) => Some(Arc::clone(previous)),
            _ => None,
        };
        // The object that an event made has its revision.
        let made = after.get(identity).filter(|now| now.revision == revision);
        let event = match (&former, made) {
            (FormerRecord::Added, Some(now)) => StoreEvent::Added(Arc::clone(now)),
            (FormerRecord::Modified(previous), Some(now)) => {
                StoreEvent::Modified { object: Arc::clone(now), previous: Arc::clone(previous) }
            }
            (FormerRecord::Deleted(previous), _) => {
                StoreEvent::Deleted(writer.move_to(previous, revision).map_err(|error| damaged(&error.to_string()))?)
            }
            (_, None) => return Err(damaged("what it made is missing")),
        };
        let logged = Logged { revision, event, deleted, stored: Some(*bytes), since };
        events.entry(Arc::clone(&identity.resource)).or_default().push(logged);
        match former {
            FormerRecord::Added => after.remove(identity),
            FormerRecord::Modified(previous) | FormerRecord::Deleted(previous) => {
                after.insert(identity.clone(), previous)
            }
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

//! The database: opening it, reading all of it into the index, and putting groups of changes on disk.

use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{Batch, Db, IVec, Tree};

use super::committer::Writer;
use super::files::{Blobs, lock, open_sled, sync_folders};
use super::index::{Index, Logged};
use super::record::{self, Former, Identity, StoredEvent, number};
use super::repair;
use super::seal::Sealer;
use super::table::TableEntry;
use super::{Object, StoreEvent, StoreOptions};

/// Format of this database.
const FORMAT: u64 = 1;

const OBJECT_TREE: &str = "object:";

/// Name of the tree of a table.
pub(super) fn table_tree(table: &str) -> String {
    format!("table:{table}")
}

/// Keys of the `meta` tree.
mod key {
    pub const FORMAT: &[u8] = b"format";
    pub const REVISION: &[u8] = b"revision";
    pub const RESERVED: &[u8] = b"reserved";
    pub const SEAL: &[u8] = b"seal";
    pub const TRIMMED: &[u8] = b"trimmed\0";
    pub const MEMORY: &[u8] = b"memory\0";
}

/// What was read when the database was opened.
pub(super) struct Loaded {
    pub index: Index,
    /// Revisions up to this one may be used for objects in memory.
    pub reserved: u64,
    pub slots: Slots,
}

/// Events by resource, oldest first.
type Events = HashMap<Arc<str>, Vec<Logged>>;

/// Places in the log.
///
/// A new event takes the place of one that is no longer kept. With growing keys instead, the tree would split at one
/// end and merge at the other for ever, which costs several times the bytes of the event each.
#[derive(Default)]
pub(super) struct Slots {
    free: Vec<u64>,
    /// Those from here on were never used.
    next: u64,
}

impl Slots {
    pub fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub fn give_back(&mut self, slot: u64) {
        self.free.push(slot);
    }
}

/// Changes that go to disk together.
#[derive(Default)]
pub(super) struct Group {
    objects: BTreeMap<Arc<str>, Batch>,
    log: Batch,
    meta: Batch,
    has_meta: bool,
    tables: BTreeMap<Arc<str>, Vec<TableEntry>>,
}

impl Group {
    /// An object's new self (or its end).
    pub fn object(&mut self, identity: &Identity, object: Option<&Object>, sealer: &Sealer) {
        let batch = match self.objects.get_mut(&identity.resource) {
            Some(batch) => batch,
            None => self.objects.entry(Arc::clone(&identity.resource)).or_default(),
        };
        match object {
            Some(object) => batch.insert(identity.key(), record::encode(object, sealer)),
            None => batch.remove(identity.key()),
        }
    }

    /// An event, in a slot whose former event, if any, is marked as trimmed in this group or an earlier one.
    pub fn event(&mut self, slot: u64, identity: &Identity, revision: u64, former: &Former, sealer: &Sealer) {
        self.log.insert(&slot.to_be_bytes(), record::encode_event(identity, revision, former, sealer));
        self.number(key::REVISION, revision);
    }

    /// Events of the resource up to this revision are no longer kept.
    pub fn trimmed(&mut self, resource: &str, revision: u64) {
        self.number(&[key::TRIMMED, resource.as_bytes()].concat(), revision);
    }

    /// Revisions up to this one may be given to objects in memory.
    pub fn reserve(&mut self, revision: u64) {
        self.number(key::RESERVED, revision);
    }

    /// The resource has objects in memory.
    pub fn in_memory(&mut self, resource: &str) {
        self.number(&[key::MEMORY, resource.as_bytes()].concat(), 1);
    }

    /// Entries of a table, in order.
    pub fn entries(&mut self, table: &Arc<str>, entries: Vec<TableEntry>) {
        match self.tables.get_mut(table) {
            Some(all) => all.extend(entries),
            None => {
                self.tables.insert(Arc::clone(table), entries);
            }
        }
    }

    fn number(&mut self, key: &[u8], value: u64) {
        self.meta.insert(key, &value.to_be_bytes());
        self.has_meta = true;
    }
}

/// The open database. Used by the committer's thread alone.
pub(super) struct Disk {
    db: Db,
    meta: Tree,
    log: Tree,
    trees: HashMap<String, Tree>,
    /// Second handle of the log file, for what sled's flush leaves out.
    data: File,
    blobs: Blobs,
    sealer: Sealer,
    /// Resources known on disk to have objects in memory.
    pub memory: Vec<Arc<str>>,
    // Last: released after the database is closed.
    _lock: File,
}

impl Disk {
    /// Opens or makes the database; the error is a sentence for the operator.
    pub fn open(options: &StoreOptions) -> Result<(Self, Loaded), String> {
        let path = &options.path;
        let io = |what: &str, error: io::Error| format!("cannot {what}: {error}");
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| io("make the folder", error))?;
        let lock = lock(path)?;
        repair::sweep(path).map_err(|error| io("clean up after a crash", error))?;
        let db = open_sled(path)?;
        let data = File::open(path.join("db")).map_err(|error| io("open the data file", error))?;
        let mut blobs = Blobs::new(path.join("blobs"));
        // What a crashed predecessor left to the kernel's care is made durable before anything builds on it.
        blobs.sync().and_then(|()| data.sync_all()).map_err(|error| io("sync the data file", error))?;
        sync_folders(path).map_err(|error| io("sync the folder", error))?;

        let tree = |name: &str| db.open_tree(name).map_err(|error| format!("cannot open its tree {name}: {error}"));
        let (meta, log) = (tree("meta")?, tree("log")?);
        let sealer = prepare(&meta, &options.key_file)?;
        db.flush().map_err(|error| error.to_string())?;
        data.sync_data().map_err(|error| io("sync the data file", error))?;

        let mut disk =
            Self { db, meta, log, trees: HashMap::new(), data, blobs, sealer, memory: Vec::new(), _lock: lock };
        let loaded = disk.load(options.history)?;
        Ok((disk, loaded))
    }

    pub fn db(&self) -> Db {
        self.db.clone()
    }

    pub fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// Puts a group on disk. When this returns `Ok`, it would survive a power cut.
    pub fn commit(&mut self, group: Group) -> Result<(), String> {
        self.apply(group).map_err(|error| error.to_string())?;
        // Blobs first: the log must not point at what is not there.
        self.blobs.sync().map_err(|error| format!("cannot sync the blobs: {error}"))?;
        self.db.flush().map_err(|error| error.to_string())?;
        self.data.sync_data().map_err(|error| format!("cannot sync the data file: {error}"))
    }

    /// What sled may have written for itself since the last group: before the files are closed.
    pub fn settle(&mut self) -> Result<(), String> {
        self.commit(Group::default())
    }

    fn apply(&mut self, group: Group) -> sled::Result<()> {
        for (table, entries) in group.tables {
            let tree = self.tree(table_tree(&table))?;
            // Not as a batch: that is written in two parts, each of which wakes all of sled's threads, and nobody
            // needs entries to be there together.
            for (key, value) in entries {
                match value {
                    Some(value) => tree.insert(&key, &*value)?,
                    None => tree.remove(&key)?,
                };
            }
        }
        if !group.has_meta {
            return Ok(());
        }
        let mut trees = vec![self.meta.clone(), self.log.clone()];
        let mut batches = vec![group.meta, group.log];
        for (resource, batch) in group.objects {
            trees.push(self.tree(format!("{OBJECT_TREE}{resource}"))?);
            batches.push(batch);
        }
        trees
            .as_slice()
            .transaction(|views| {
                for (view, batch) in views.iter().zip(&batches) {
                    view.apply_batch(batch)?;
                }
                Ok::<(), ConflictableTransactionError<sled::Error>>(())
            })
            .map_err(|error| match error {
                TransactionError::Abort(error) | TransactionError::Storage(error) => error,
            })
    }

    fn tree(&mut self, name: String) -> sled::Result<Tree> {
        if let Some(tree) = self.trees.get(&name) {
            return Ok(tree.clone());
        }
        let tree = self.db.open_tree(&name)?;
        self.trees.insert(name, tree.clone());
        Ok(tree)
    }

    /// Reads everything.
    fn load(&mut self, history: usize) -> Result<Loaded, String> {
        let reserved = self.meta_number(key::RESERVED)?.unwrap_or(0);
        let mut revision = self.meta_number(key::REVISION)?.unwrap_or(0).max(reserved);

        let mut objects: HashMap<Identity, Arc<Object>> = HashMap::new();
        for name in self.db.tree_names() {
            let Ok(name) = std::str::from_utf8(&name) else { continue };
            let Some(resource) = name.strip_prefix(OBJECT_TREE) else { continue };
            let resource: Arc<str> = resource.into();
            for entry in self.tree(name.to_owned()).map_err(unreadable)?.iter() {
                let (key, value) = entry.map_err(unreadable)?;
                let object = Identity::from_key(Arc::clone(&resource), &key)
                    .and_then(|identity| record::decode(identity, &value, &self.sealer))
                    .map_err(|error| {
                        let key = String::from_utf8_lossy(&key).replace('\0', "/");
                        format!("the object {resource} {key} cannot be read: {error}")
                    })?;
                revision = revision.max(object.revision);
                objects.insert(Identity::of(&object), Arc::new(object));
            }
        }

        let trimmed = self.load_marks(key::TRIMMED)?;
        self.memory = self.load_marks(key::MEMORY)?.into_keys().collect();
        let (events, mut slots) = self.load_events(objects.clone(), &trimmed)?;
        if let Some(last) = events.values().flat_map(|events| events.last()).map(|logged| logged.revision).max() {
            revision = revision.max(last);
        }

        let mut index = Index::new(revision, history);
        for (identity, object) in objects {
            index.resource_mut(&identity.resource).insert(object);
        }
        for (resource, trimmed) in &trimmed {
            index.restore(resource, *trimmed, Vec::new());
        }
        for resource in &self.memory {
            // What was in memory is lost, so nobody can go on from before.
            index.restore(resource, revision, Vec::new());
        }
        let mut group = Group::default();
        for (resource, events) in events {
            let dropped = index.restore(&resource, trimmed.get(&resource).copied().unwrap_or(0), events);
            if let Some(last) = dropped.last() {
                group.trimmed(&resource, last.revision);
            }
            slots.free.extend(dropped.iter().map(|old| old.slot));
        }
        // Low slots first: the log stays small.
        slots.free.sort_unstable_by(|one, other| other.cmp(one));
        if group.has_meta {
            self.commit(group)?;
        }
        tracing::info!(revision, resources = index.resources(), reserved, "store opened");
        Ok(Loaded { index, reserved, slots })
    }

    /// The log as events with both their sides: played backwards from the objects as they are now.
    fn load_events(
        &self,
        mut after: HashMap<Identity, Arc<Object>>,
        trimmed: &BTreeMap<Arc<str>, u64>,
    ) -> Result<(Events, Slots), String> {
        let mut stored = Vec::new();
        let mut slots = Slots::default();
        for entry in self.log.iter() {
            let (key, value) = entry.map_err(unreadable)?;
            let slot = number(&key).ok_or("an event's key is not a number")?;
            slots.next = slot.saturating_add(1);
            let event = StoredEvent::new(value).map_err(|error| format!("the event {slot} cannot be read: {error}"))?;
            let oldest = trimmed.get(&event.identity.resource).copied().unwrap_or(0);
            if event.revision <= oldest || self.memory.contains(&event.identity.resource) {
                slots.free.push(slot);
            } else {
                stored.push((slot, event));
            }
        }
        stored.sort_unstable_by_key(|(_, event)| std::cmp::Reverse(event.revision));

        let mut events = Events::new();
        let mut writer = Writer::default();
        for (slot, stored) in stored {
            let StoredEvent { revision, ref identity, .. } = stored;
            let damaged = |reason: &str| format!("the event of revision {revision} cannot be read: {reason}");
            let former = stored.former(&self.sealer).map_err(|error| damaged(&error.to_string()))?;
            let deleted = match &former {
                Former::Deleted(previous) => Some(Arc::clone(previous)),
                _ => None,
            };
            let event = match (&former, after.get(identity)) {
                (Former::Added, Some(now)) => StoreEvent::Added(Arc::clone(now)),
                (Former::Modified(previous), Some(now)) => {
                    StoreEvent::Modified { object: Arc::clone(now), previous: Arc::clone(previous) }
                }
                (Former::Deleted(previous), _) => StoreEvent::Deleted(
                    writer.move_to(previous, revision).map_err(|error| damaged(&error.to_string()))?,
                ),
                (_, None) => return Err(damaged("what it made is missing")),
            };
            let logged = Logged { revision, event, deleted, slot: Some(slot) };
            events.entry(Arc::clone(&identity.resource)).or_default().push(logged);
            match former {
                Former::Added => after.remove(identity),
                Former::Modified(previous) | Former::Deleted(previous) => after.insert(identity.clone(), previous),
            };
        }
        for events in events.values_mut() {
            events.reverse();
        }
        Ok((events, slots))
    }

    fn load_marks(&self, prefix: &[u8]) -> Result<BTreeMap<Arc<str>, u64>, String> {
        self.meta
            .scan_prefix(prefix)
            .map(|entry| {
                let (key, value) = entry.map_err(unreadable)?;
                let resource = std::str::from_utf8(&key[prefix.len()..]).map_err(|error| error.to_string())?;
                Ok((resource.into(), number(&value).ok_or("a mark is not a number")?))
            })
            .collect()
    }

    fn meta_number(&self, key: &[u8]) -> Result<Option<u64>, String> {
        meta_number(&self.meta, key)
    }
}

fn unreadable(error: sled::Error) -> String {
    format!("cannot read the database: {error}")
}

fn meta_number(meta: &Tree, key: &[u8]) -> Result<Option<u64>, String> {
    let Some(value) = meta.get(key).map_err(unreadable)? else { return Ok(None) };
    match number(&value) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("its {} is not a number", String::from_utf8_lossy(key))),
    }
}

/// Checks or writes the format, and finds or makes the key that belongs to the database.
fn prepare(meta: &Tree, key_file: &Path) -> Result<Sealer, String> {
    match meta_number(meta, key::FORMAT)? {
        None => insert(meta, key::FORMAT, &FORMAT.to_be_bytes())?,
        Some(FORMAT) => {}
        Some(other) => {
            return Err(format!("its format is {other} and this version knows {FORMAT}; use a newer slipway"));
        }
    }
    let check = meta.get(key::SEAL).map_err(unreadable)?;
    match (check, Sealer::load(key_file)?) {
        (Some(check), Some(sealer)) if sealer.matches(&check) => Ok(sealer),
        (Some(_), Some(_)) => Err(format!(
            "the key in {} is not the one that sealed its secrets; put the former key file back",
            key_file.display()
        )),
        (Some(_), None) => Err(format!(
            "its secrets are sealed and the key file {} is missing; put the former key file back",
            key_file.display()
        )),
        (None, found) => {
            let sealer = match found {
                Some(sealer) => sealer,
                None => Sealer::create(key_file)?,
            };
            insert(meta, key::SEAL, &sealer.check_value())?;
            Ok(sealer)
        }
    }
}

fn insert(meta: &Tree, key: &[u8], value: &[u8]) -> Result<(), String> {
    meta.insert(key, value).map(|_: Option<IVec>| ()).map_err(|error| error.to_string())
}

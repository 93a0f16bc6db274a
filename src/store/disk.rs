//! What is on disk: opening it, reading all of it into the index, putting groups of changes there, and rewriting it when
//! it has grown too far beyond what is in it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::committer::Writer;
use super::database::{Database, Reader};
use super::files::{Refusal, lock, sync_folders};
use super::generation::{self, Choice, Found};
use super::group::{Group, LOG, TreeName, key};
use super::index::{Index, Logged};
use super::record::{self, Former, Identity, StoredEvent, number};
use super::seal::Sealer;
use super::slots::Slots;
use super::space::Space;
use super::witness::{self, Said, Statement, Witness};
use super::{Object, StoreEvent, StoreOptions};

/// What the database may take of the disk beyond a multiple of what is in it, in bytes: sled writes whole segments of
/// half a mebibyte, and some of them are always half empty.
const SLACK: u64 = 4 << 20;

/// The same when the disk is low.
const LOW_SLACK: u64 = 2 << 20;

/// How long to wait after a rewriting that failed, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// Bytes of a group while a database is rewritten.
const COPIED: usize = 1 << 18;

/// What was read when the database was opened.
pub(super) struct Loaded {
    pub index: Index,
    /// Revisions up to this one may be used for objects in memory.
    pub reserved: u64,
    pub slots: Slots,
}

/// Events by resource, oldest first.
type Events = HashMap<Arc<str>, Vec<Logged>>;

/// What the database holds, read but not yet understood.
#[derive(Default)]
struct Content {
    meta: BTreeMap<Vec<u8>, Bytes>,
    log: Vec<(Vec<u8>, Bytes)>,
    /// Tree, key, record.
    objects: Vec<(Arc<str>, Vec<u8>, Bytes)>,
}

/// Why a database was not rewritten.
pub(super) enum Rewriting {
    /// It could not be; the former one goes on.
    Given(String),
    /// Which of the two is the one is not known: nothing may be written any more. Opening finds out.
    Torn(String),
}

/// The open database. Used by the committer's thread alone.
pub(super) struct Disk {
    path: PathBuf,
    generation: u64,
    database: Database,
    witness: Witness,
    space: Space,
    sealer: Sealer,
    revision: u64,
    /// What was in it and what it took of the disk when it was rewritten last, in bytes.
    fresh: (u64, u64),
    /// When it may be tried again to rewrite it, and how long after that, once it failed.
    retry: Option<(Instant, Duration)>,
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
        let space = Space::new(path).map_err(|error| io("look for room", error))?;
        let said = witness::read(path).map_err(|error| io("read its witness", error))?;
        let found = generation::find(path).map_err(|error| io("read the folder", error))?;
        let used = options.key_file.exists();
        let (generation, database, content) = match generation::choose(said, &found, used) {
            Choice::New => begin(path, &found)?,
            Choice::OldLayout => match read(path) {
                Ok((database, _)) if database.is_tallied() => {
                    return Err(damaged("its files are not where they belong"));
                }
                Ok((database, content)) => (0, database, content),
                // The key is made after the database: the very first start was not finished, and nothing acknowledged.
                Err(_) if !used => begin(path, &found)?,
                Err(reason) => return Err(reason),
            },
            Choice::Generation(generation) => {
                let (database, content) = read(&generation::folder(path, generation))?;
                (generation, database, content)
            }
            Choice::FirstReadable(generations) => match first_readable(path, &generations) {
                Err(_) if !used => begin(path, &found)?,
                outcome => outcome?,
            },
            Choice::Gone => {
                return Err(format!(
                    "the database is gone, but {} is there; restore a backup (or, to begin anew and lose everything, \
                     move that file and {} away)",
                    options.key_file.display(),
                    path.display()
                ));
            }
        };
        compare(said, generation, &database)?;
        let mut witness = Witness::open(path).map_err(|error| io("open its witness", error))?;
        if database.is_tallied() && said == Said::Nothing {
            // Before the key is made, which tells that there was a database.
            let statement = Statement { generation, sum: database.sum(), revision: 0 };
            witness
                .settle(statement)
                .and_then(|()| sync_folders(path))
                .map_err(|error| io("write its witness", error))?;
        }
        let sealer = find_sealer(&content, options)?;
        let mut disk = Self {
            path: path.clone(),
            generation,
            database,
            witness,
            space,
            sealer,
            revision: 0,
            fresh: (0, 0),
            retry: None,
            memory: Vec::new(),
            _lock: lock,
        };
        let has_seal = content.meta.contains_key(key::SEAL);
        let (loaded, mut group) = disk.load(content, options.history)?;
        disk.revision = loaded.index.revision();
        if !has_seal {
            group.seal(disk.sealer.check_value());
        }
        if disk.database.is_tallied() {
            disk.database.commit(group)?;
            disk.settle_witness()?;
        } else {
            disk.rewrite(&loaded.slots, group, |_| {}).map_err(
                |(Rewriting::Given(error) | Rewriting::Torn(error))| {
                    format!("cannot take over the database of an earlier version: {error}")
                },
            )?;
        }
        if disk.is_bloated()
            && let Err(Rewriting::Torn(error)) = disk.rewrite(&loaded.slots, Group::default(), |_| {})
        {
            return Err(error);
        }
        generation::sweep(path, disk.generation).map_err(|error| io("clean up", error))?;
        sync_folders(path).map_err(|error| io("sync the folder", error))?;
        Ok((disk, loaded))
    }

    /// A handle to read tables.
    pub fn reader(&self) -> Reader {
        self.database.reader()
    }

    pub fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// Whether nothing may grow, because the disk is nearly full.
    pub fn is_low(&mut self) -> bool {
        self.space.look();
        self.space.is_low()
    }

    /// Keys and values of all entries, and what they take of the disk, in bytes.
    pub fn bytes(&self) -> (u64, u64) {
        (self.database.live_bytes(), self.database.disk_bytes().unwrap_or(0))
    }

    /// Whether what is in a slot of the log is too large to lie there unused.
    pub fn is_large(&self, slot: u64) -> bool {
        self.database.is_cut(LOG, &slot.to_be_bytes())
    }

    /// Puts a group on disk. When this returns `Ok`, it would survive a power cut, and the witness knows of it.
    pub fn commit(&mut self, group: Group, revision: u64) -> Result<(), String> {
        self.revision = revision;
        self.database.commit(group)?;
        self.witness.note(self.statement()).map_err(|error| format!("cannot write the witness: {error}"))
    }

    /// What sled may have written for itself since the last group: before the files are closed.
    pub fn settle(&mut self) -> Result<(), String> {
        self.database.flush()?;
        self.witness.sync().map_err(|error| format!("cannot sync the witness: {error}"))
    }

    fn statement(&self) -> Statement {
        Statement { generation: self.generation, sum: self.database.sum(), revision: self.revision }
    }

    fn settle_witness(&mut self) -> Result<(), String> {
        let statement = self.statement();
        self.witness
            .settle(statement)
            .and_then(|()| File::open(&self.path)?.sync_all())
            .map_err(|error| format!("cannot write the witness: {error}"))
    }

    /// Whether the database takes so much more of the disk than what is in it that it should be rewritten: about twice as
    /// much, and somewhat more than it took when it was rewritten last, for small entries take some room of their own.
    pub fn is_bloated(&self) -> bool {
        let (live, size) = self.bytes();
        let (slack, low) = if self.space.is_low() { (LOW_SLACK, true) } else { (SLACK, false) };
        let fits = !low || live + live / 4 + LOW_SLACK < self.space.free();
        // Otherwise a rewriting would gain little, and be due again at once.
        let (was_live, fresh) = self.fresh;
        let changed = size > fresh + live / 2 + slack || live < was_live / 8 * 7;
        let may = self.retry.is_none_or(|(from, _)| Instant::now() >= from);
        fits && changed && may && size > live / 10 * 19 + slack
    }

    /// Writes all that is in the database, and the group, into a new one, which takes its place: `changed` is told how
    /// tables are read from then on. Free slots of the log are left out; the group must say what was trimmed.
    pub fn rewrite(&mut self, slots: &Slots, group: Group, changed: impl FnOnce(Reader)) -> Result<(), Rewriting> {
        let (live, size) = self.bytes();
        let next = self.generation + 1;
        let path = generation::folder(&self.path, next);
        let database = self.copy_to(&path, slots, group).map_err(|error| {
            let wait = self.retry.map_or(RETRY.0, |(_, wait)| (wait * 2).min(RETRY.1));
            self.retry = Some((Instant::now() + wait, wait));
            std::fs::remove_dir_all(&path).ok();
            Rewriting::Given(error)
        })?;
        let former = std::mem::replace(&mut self.database, database);
        let generation = std::mem::replace(&mut self.generation, next);
        self.settle_witness().map_err(Rewriting::Torn)?;
        changed(self.database.reader());
        self.retry = None;
        let (_, now) = self.bytes();
        self.fresh = (live, now);
        tracing::debug!(live, before = size, after = now, generation = next, "the database was rewritten");

        // The files of the old layout lie among ours: the sweep removes those.
        if generation > 0
            && let Err(error) = former.remove()
        {
            tracing::warn!(%error, generation, "cannot remove the database as it was before it was rewritten");
        }
        Ok(())
    }

    fn copy_to(&self, path: &Path, slots: &Slots, last: Group) -> Result<Database, String> {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.to_string()),
            _ => {}
        }
        let mut copy = Database::create(path).map_err(said_of)?;
        let reader = self.database.reader();
        let is_free = slots.is_free();
        let mut group = Group::default();
        let mut bytes = 0;
        for name in reader.trees() {
            let Some(tree) = TreeName::parse(&name) else { continue };
            for entry in reader.entries(&name)? {
                let entry = entry?;
                if Database::is_own(&tree, &entry.key)
                    || (tree == TreeName::Log && number(&entry.key).is_none_or(&is_free))
                {
                    continue;
                }
                if !self.database.is_known(&name, &entry.key, &entry.value) {
                    return Err(damaged("an entry is not what was written"));
                }
                bytes += entry.key.len() + entry.value.len();
                group.entry(tree.clone(), entry.key, Some(entry.value.into()));
                if bytes > COPIED {
                    copy.write(std::mem::take(&mut group), false)?;
                    // sled uses only that room again of which it is sure that it is no longer needed.
                    copy.flush()?;
                    bytes = 0;
                }
            }
        }
        copy.write(group, false)?;
        // Last, and also when there is nothing in it: only a database with a tally is finished.
        copy.write(last, true)?;
        copy.flush()?;
        sync_folders(path).map_err(|error| format!("cannot sync the folder: {error}"))?;
        Ok(copy)
    }

    /// Makes sense of everything that was read; with what is to be written because of it.
    fn load(&mut self, content: Content, history: usize) -> Result<(Loaded, Group), String> {
        let Content { meta, log, objects: records } = content;
        let reserved = meta_number(&meta, key::RESERVED)?.unwrap_or(0);
        let mut revision = meta_number(&meta, key::REVISION)?.unwrap_or(0).max(reserved);

        let mut objects: HashMap<Identity, Arc<Object>> = HashMap::with_capacity(records.len());
        for (resource, key, value) in records {
            let object = Identity::from_key(Arc::clone(&resource), &key)
                .and_then(|identity| record::decode(identity, &value, &self.sealer))
                .map_err(|error| {
                    let key = String::from_utf8_lossy(&key).replace('\0', "/");
                    format!("the object {resource} {key} cannot be read: {error}")
                })?;
            revision = revision.max(object.revision);
            objects.insert(Identity::of(&object), Arc::new(object));
        }

        let trimmed = marks(&meta, key::TRIMMED)?;
        self.memory = marks(&meta, key::MEMORY)?.into_keys().collect();
        let events = self.load_events(log, objects.clone(), &trimmed)?;
        if let Some(last) = events.values().flat_map(|events| events.last()).map(|logged| logged.revision).max() {
            revision = revision.max(last);
        }
        let used: Vec<u64> = events.values().flatten().filter_map(|logged| logged.slot).collect();
        let mut slots = Slots::besides(used);

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
            dropped.iter().for_each(|old| slots.give_back(old.slot));
        }
        tracing::info!(revision, resources = index.resources(), reserved, "store opened");
        Ok((Loaded { index, reserved, slots }, group))
    }

    /// The log as events with both their sides: played backwards from the objects as they are now.
    fn load_events(
        &self,
        log: Vec<(Vec<u8>, Bytes)>,
        mut after: HashMap<Identity, Arc<Object>>,
        trimmed: &BTreeMap<Arc<str>, u64>,
    ) -> Result<Events, String> {
        let mut stored = Vec::new();
        for (key, value) in log {
            let slot = number(&key).ok_or("an event's key is not a number")?;
            let event = StoredEvent::new(value).map_err(|error| format!("the event {slot} cannot be read: {error}"))?;
            let oldest = trimmed.get(&event.identity.resource).copied().unwrap_or(0);
            if event.revision > oldest && !self.memory.contains(&event.identity.resource) {
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
        Ok(events)
    }
}

/// Opens a database and reads all of it.
fn read(path: &Path) -> Result<(Database, Content), String> {
    // sled asserts what it believes of its files, so damage can also be a panic.
    catch_unwind(AssertUnwindSafe(|| -> Result<_, Refusal> {
        let mut database = Database::open(path)?;
        let mut content = Content::default();
        let mut resources: HashMap<String, Arc<str>> = HashMap::new();
        database.read(|tree, key, value| {
            match TreeName::parse(tree) {
                Some(TreeName::Meta) => {
                    content.meta.insert(key.to_vec(), value);
                }
                Some(TreeName::Log) => content.log.push((key.to_vec(), value)),
                Some(TreeName::Objects(resource)) => {
                    let resource = resources.entry(tree.to_owned()).or_insert(resource);
                    content.objects.push((Arc::clone(resource), key.to_vec(), value));
                }
                Some(TreeName::Table(_)) | None => {}
            }
            Ok(())
        })?;
        Ok((database, content))
    }))
    .unwrap_or_else(|_| Err("sled gave up reading it".into()))
    .map_err(said_of)
}

/// What the operator is told.
fn said_of(refusal: Refusal) -> String {
    match refusal {
        Refusal::Damaged(reason) => damaged(&reason),
        Refusal::Other(reason) => reason,
    }
}

/// What the operator is told of damage.
fn damaged(reason: &str) -> String {
    format!("the database is damaged: {reason}; restore a backup")
}

/// Makes the first database. What else lies there was never finished.
fn begin(path: &Path, found: &Found) -> Result<(u64, Database, Content), String> {
    let generation = found.generations.last().map_or(1, |last| last + 1);
    let mut database = Database::create(&generation::folder(path, generation)).map_err(said_of)?;
    database.write(Group::default(), true)?;
    database.flush()?;
    Ok((generation, database, Content::default()))
}

/// The newest generation that was finished, when the witness cannot say which it is.
fn first_readable(path: &Path, generations: &[u64]) -> Result<(u64, Database, Content), String> {
    let mut first = None;
    for generation in generations {
        match read(&generation::folder(path, *generation)) {
            Ok((database, content)) => {
                tracing::error!(
                    generation,
                    "the witness of the database is lost; what is in the database belongs together, but nobody can say \
                     whether it is the newest: check the disk"
                );
                return Ok((*generation, database, content));
            }
            Err(reason) => first.get_or_insert(reason),
        };
    }
    Err(first.unwrap_or_else(|| damaged("it has no generation")))
}

/// Whether the database has all that the witness saw.
fn compare(said: Said, generation: u64, database: &Database) -> Result<(), String> {
    let Said::This(statement) = said else { return Ok(()) };
    let (was, is) = (statement.sum, database.sum());
    if statement.generation != generation || is.sequence > was.sequence || is == was {
        return Ok(());
    }
    if is.sequence < was.sequence {
        return Err(damaged(&format!(
            "its newest {} writes are missing (up to revision {})",
            was.sequence - is.sequence,
            statement.revision
        )));
    }
    Err(damaged("it is not the one that its witness saw"))
}

/// Finds or makes the key that belongs to the database.
fn find_sealer(content: &Content, options: &StoreOptions) -> Result<Sealer, String> {
    let key_file = &options.key_file;
    let check = content.meta.get(key::SEAL);
    match (check, Sealer::load(key_file)?) {
        (Some(check), Some(sealer)) if sealer.matches(check) => Ok(sealer),
        (Some(_), Some(_)) => Err(format!(
            "the key in {} is not the one that sealed its secrets; put the former key file back",
            key_file.display()
        )),
        (Some(_), None) => Err(format!(
            "its secrets are sealed and the key file {} is missing; put the former key file back",
            key_file.display()
        )),
        (None, Some(sealer)) => Ok(sealer),
        (None, None) => Sealer::create(key_file),
    }
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

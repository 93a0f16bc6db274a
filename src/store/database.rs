//! One database of sled: entries in trees, with a tally of all of them, and none so large that sled puts it into a file
//! of its own.
//!
//! # Parts
//!
//! A page of sled has up to some 20 entries, and one over 128 KiB goes to a file of its own, which sled does not sync, misses
//! in silence and never gives back. So an entry over [`WHOLE`] is cut into parts that lie in a tree of their own, under its
//! number and their place, and the value in its stead says so. The first byte of a value tells: [`IN_ONE`] or [`CUT`].
//!
//! # Format
//!
//! Format 1 knew neither parts nor a tally: its values are what they are. It is read, to be rewritten.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rand::RngCore;
use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{Batch, Db, IVec, Tree};

use super::files::{Refusal, open_sled, sync_folders};
use super::group::{Group, META, TreeName};
use super::record::number;
use super::repair;
use super::slots::Slots;
use super::tally::{self, Parts, Sum, Tally};

/// Format that this version writes.
pub(super) const FORMAT: u64 = 2;

/// The format before: no parts, no tally.
const UNTALLIED: u64 = 1;

/// Largest key and value together, in bytes, that are kept in one: 20 of them fit into a page that sled does not put
/// into a file of its own.
const WHOLE: usize = 6000;

/// Bytes of a part.
const PART: usize = 5900;

/// First byte of a value that is all there.
const IN_ONE: u8 = 0;
/// First byte of a value that stands for parts: their number (8 bytes), how many (2), all their bytes (4), big-endian.
const CUT: u8 = 1;

const PARTS: &str = "parts";

mod key {
    /// Entries of the `meta` tree that are not in the tally.
    pub const TALLY: &[u8] = b"tally";
    pub const TALLY_KEY: &[u8] = b"tally-key";
    pub const FORMAT: &[u8] = b"format";
}

/// An open database.
pub(super) struct Database {
    path: PathBuf,
    db: Db,
    trees: HashMap<String, Tree>,
    /// Second handle of the data file, for what sled's flush leaves out.
    data: File,
    tally: Tally,
    /// Numbers for parts.
    parts: Slots,
    format: u64,
}

impl Database {
    /// Makes an empty one in a folder that is not there yet.
    pub fn create(path: &Path) -> Result<Self, Refusal> {
        let mut key = [0; tally::KEY];
        rand::rng().fill_bytes(&mut key);
        let mut database = Self::files(path, key)?;
        database.format = FORMAT;
        let meta = database.tree(META)?;
        put(&meta, key::TALLY_KEY, &key)?;
        put(&meta, key::FORMAT, &FORMAT.to_be_bytes())?;
        database.tally.put(META, key::FORMAT, &FORMAT.to_be_bytes(), None);
        Ok(database)
    }

    /// Opens one. [`Database::read`] must come next.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        repair::sweep(path).map_err(|error| Refusal::io("clean up after a crash", &error))?;
        let mut database = Self::files(path, [0; tally::KEY])?;
        let meta = database.tree(META)?;
        let value = |name: &[u8]| meta.get(name).map_err(unreadable);
        let format = match value(key::FORMAT)? {
            None => return Err("it has no format".into()),
            Some(bytes) if bytes.len() == 8 => number(&bytes),
            Some(bytes) => bytes.split_first().and_then(|(_, bytes)| number(bytes)),
        };
        database.format = match format {
            Some(format @ (UNTALLIED | FORMAT)) => format,
            Some(other) => {
                let reason = format!("its format is {other} and this version knows {FORMAT}; use a newer slipway");
                return Err(Refusal::Other(reason));
            }
            None => return Err("its format is not a number".into()),
        };
        if database.is_tallied() {
            let key = value(key::TALLY_KEY)?.ok_or("its tally has no key")?;
            let key = <[u8; tally::KEY]>::try_from(&*key).map_err(|_| "the key of its tally is not one")?;
            database.tally = Tally::new(key);
        }
        Ok(database)
    }

    fn files(path: &Path, key: [u8; tally::KEY]) -> Result<Self, Refusal> {
        let db = open_sled(path)?;
        let data = File::open(path.join("db")).map_err(|error| Refusal::io("open the data file", &error))?;
        // What a crashed predecessor left to the kernel's care is made durable before anything builds on it.
        data.sync_all().map_err(|error| Refusal::io("sync the data file", &error))?;
        sync_folders(path).map_err(|error| Refusal::io("sync the folder", &error))?;
        let tally = Tally::new(key);
        let (path, trees, parts) = (path.to_owned(), HashMap::new(), Slots::default());
        Ok(Self { path, db, trees, data, tally, parts, format: FORMAT })
    }

    /// Whether it has a tally: it was not made before there was one.
    pub fn is_tallied(&self) -> bool {
        self.format == FORMAT
    }

    /// What its entries add up to.
    pub fn sum(&self) -> Sum {
        self.tally.sum()
    }

    /// Keys and values of all entries, in bytes.
    pub fn live_bytes(&self) -> u64 {
        self.tally.bytes()
    }

    /// What its log takes of the disk, in bytes.
    pub fn disk_bytes(&self) -> io::Result<u64> {
        self.data.metadata().map(|metadata| metadata.blocks() * 512)
    }

    /// A handle to read tables.
    pub fn reader(&self) -> Reader {
        Reader { db: self.db.clone(), framed: self.is_tallied() }
    }

    /// Reads every entry once, hands each to `visit` (tree, key, value), and compares them with the tally.
    pub fn read(&mut self, mut visit: impl FnMut(&str, &[u8], Bytes) -> Result<(), String>) -> Result<(), String> {
        let reader = self.reader();
        let mut used = Vec::new();
        let mut expected = None;
        for name in reader.trees() {
            for entry in reader.entries(&name)? {
                let Entry { key, value, parts } = entry?;
                if name == META && key == key::TALLY {
                    expected = Some(Sum::decode(&value).ok_or("its tally cannot be read")?);
                } else if name != META || key != key::TALLY_KEY {
                    self.tally.put(&name, &key, &value, parts);
                    used.extend(parts.map(|parts| parts.number));
                    visit(&name, &key, value)?;
                }
            }
        }
        self.parts = Slots::besides(used);
        if !self.is_tallied() {
            return Ok(());
        }
        let expected = expected.ok_or("it was not finished")?;
        self.tally.set_sequence(expected.sequence);
        let found = self.tally.sum();
        if found != expected {
            return Err(match expected.count.cmp(&found.count) {
                std::cmp::Ordering::Greater => format!("{} entries are missing", expected.count - found.count),
                std::cmp::Ordering::Less => {
                    format!("{} entries are back that were removed", found.count - expected.count)
                }
                std::cmp::Ordering::Equal => "some entries are not the newest ones".to_owned(),
            });
        }
        Ok(())
    }

    /// Whether an entry is the database's own: each makes these for itself.
    pub fn is_own(tree: &TreeName, key: &[u8]) -> bool {
        *tree == TreeName::Meta && [key::TALLY, key::TALLY_KEY, key::FORMAT].contains(&key)
    }

    /// Whether an entry is what was put there.
    pub fn is_known(&self, tree: &str, key: &[u8], value: &[u8]) -> bool {
        self.tally.has(tree, key, value)
    }

    /// Whether an entry is cut into parts.
    pub fn is_cut(&self, tree: &str, key: &[u8]) -> bool {
        self.tally.parts(tree, key).is_some()
    }

    /// Puts a group on disk: all of it or, after a crash, none. When this returns `Ok`, it would survive a power cut.
    pub fn commit(&mut self, group: Group) -> Result<(), String> {
        if !group.is_empty() {
            self.write(group, true)?;
        }
        self.flush()
    }

    /// Makes durable what was written.
    pub fn flush(&self) -> Result<(), String> {
        self.db.flush().map_err(|error| error.to_string())?;
        self.data.sync_data().map_err(|error| format!("cannot sync the data file: {error}"))
    }

    /// Writes a group; durable after [`Self::flush`]. Without `together`, the group is not a whole: for a database that
    /// nobody relies on yet.
    pub fn write(&mut self, group: Group, together: bool) -> Result<(), String> {
        let mut batches: BTreeMap<TreeName, Batch> = BTreeMap::new();
        let mut cut = Batch::default();
        let mut has_parts = false;
        // Free for other entries only when this group is on disk: all of it is one transaction, so that is at once.
        for (tree, entries) in group.into_entries() {
            let name = tree.name();
            let batch = batches.entry(tree.clone()).or_default();
            for (key, value) in entries {
                if let Some(former) = self.tally.parts(&name, &key) {
                    has_parts = true;
                    (0..former.count).for_each(|place| cut.remove(&part_key(former.number, place)));
                    self.parts.give_back(former.number);
                }
                let Some(value) = value else {
                    self.tally.remove(&name, &key);
                    batch.remove(key);
                    continue;
                };
                let parts = (key.len() + value.len() > WHOLE).then(|| {
                    let count = u16::try_from(value.len().div_ceil(PART)).unwrap_or(u16::MAX);
                    Parts { number: self.parts.take(), count }
                });
                self.tally.put(&name, &key, &value, parts);
                match parts {
                    None => batch.insert(key, [&[IN_ONE], &value[..]].concat()),
                    Some(Parts { number, count }) => {
                        has_parts = true;
                        for (place, part) in (0..count).zip(value.chunks(PART)) {
                            cut.insert(&part_key(number, place), part);
                        }
                        batch.insert(key, stand_in(number, count, value.len()));
                    }
                }
            }
        }
        self.tally.next_sequence();
        batches.entry(TreeName::Meta).or_default().insert(key::TALLY, &self.tally.sum().encode());

        let mut trees = Vec::with_capacity(batches.len() + 1);
        let mut ordered = Vec::with_capacity(batches.len() + 1);
        for (tree, batch) in batches {
            trees.push(self.tree(&tree.name())?);
            ordered.push(batch);
        }
        if has_parts {
            trees.push(self.tree(PARTS)?);
            ordered.push(cut);
        }
        if together { apply_together(&trees, &ordered) } else { apply_singly(&trees, ordered) }
            .map_err(|error| error.to_string())
    }

    fn tree(&mut self, name: &str) -> Result<Tree, String> {
        if let Some(tree) = self.trees.get(name) {
            return Ok(tree.clone());
        }
        let tree = self.db.open_tree(name).map_err(|error| format!("cannot open its tree {name}: {error}"))?;
        self.trees.insert(name.to_owned(), tree.clone());
        Ok(tree)
    }

    /// Closes the files and removes them.
    pub fn remove(self) -> io::Result<()> {
        let Self { path, db, trees, data, .. } = self;
        drop((trees, db, data));
        fs::remove_dir_all(path)
    }
}

fn apply_together(trees: &[Tree], batches: &[Batch]) -> sled::Result<()> {
    trees
        .transaction(|views| {
            for (view, batch) in views.iter().zip(batches) {
                view.apply_batch(batch)?;
            }
            Ok::<(), ConflictableTransactionError<sled::Error>>(())
        })
        .map_err(|error| match error {
            TransactionError::Abort(error) | TransactionError::Storage(error) => error,
        })
}

fn apply_singly(trees: &[Tree], batches: Vec<Batch>) -> sled::Result<()> {
    trees.iter().zip(batches).try_for_each(|(tree, batch)| tree.apply_batch(batch))
}

fn part_key(number: u64, place: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&place.to_be_bytes());
    key
}

fn stand_in(number: u64, count: u16, length: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(15);
    value.push(CUT);
    value.extend_from_slice(&number.to_be_bytes());
    value.extend_from_slice(&count.to_be_bytes());
    value.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    value
}

fn put(meta: &Tree, key: &[u8], value: &[u8]) -> Result<(), String> {
    // The key of the tally is no entry like the others: it must be read before any other can be.
    let value = if key == key::TALLY_KEY { value.to_vec() } else { [&[IN_ONE], value].concat() };
    meta.insert(key, value).map(|_: Option<IVec>| ()).map_err(|error| error.to_string())
}

fn unreadable(error: sled::Error) -> String {
    format!("cannot read the database: {error}")
}

/// One entry, its parts put together.
pub(super) struct Entry {
    /// Key in its tree.
    pub key: Vec<u8>,
    /// All of its value.
    pub value: Bytes,
    parts: Option<Parts>,
}

/// Reads the entries of a database that somebody else may write.
#[derive(Clone)]
pub(super) struct Reader {
    db: Db,
    /// Whether values tell in their first byte what they are.
    framed: bool,
}

impl Reader {
    /// Names of the trees that hold entries.
    pub fn trees(&self) -> Vec<String> {
        let names = self.db.tree_names().into_iter().filter_map(|name| String::from_utf8(name.to_vec()).ok());
        let mut names: Vec<String> = names.filter(|name| name != PARTS && name != "__sled__default").collect();
        names.sort_unstable();
        names
    }

    /// Entries of a tree, in order of key; none when there is no such tree.
    pub fn entries(&self, name: &str) -> Result<impl Iterator<Item = Result<Entry, String>> + use<>, String> {
        // Opening a tree that does not exist would make it.
        let open = |name: &str| match self.db.tree_names().iter().any(|tree| tree == name.as_bytes()) {
            true => self.db.open_tree(name).map(Some).map_err(unreadable),
            false => Ok(None),
        };
        let (tree, parts) = (open(name)?, open(PARTS)?);
        let framed = self.framed;
        let is_meta = name == META;
        Ok(tree.into_iter().flat_map(|tree| tree.iter()).map(move |entry| {
            let (key, value) = entry.map_err(unreadable)?;
            let key = key.to_vec();
            // What the tally needs is not framed: it is written beside the entries.
            if !framed || (is_meta && (key == key::TALLY || key == key::TALLY_KEY)) {
                return Ok(Entry { key, value: Bytes::copy_from_slice(&value), parts: None });
            }
            let damaged =
                || format!("the value of {} cannot be read", String::from_utf8_lossy(&key).replace('\0', "/"));
            match value.split_first() {
                Some((&IN_ONE, value)) => Ok(Entry { value: Bytes::copy_from_slice(value), key, parts: None }),
                Some((&CUT, place)) => {
                    let found = parts.as_ref().and_then(|tree| join(tree, place).transpose()).transpose()?;
                    let (value, parts) = found.ok_or_else(damaged)?;
                    Ok(Entry { key, value, parts: Some(parts) })
                }
                _ => Err(damaged()),
            }
        }))
    }
}

/// Puts the parts together; `None` when they are not all there.
fn join(tree: &Tree, place: &[u8]) -> Result<Option<(Bytes, Parts)>, String> {
    let Some((number, rest)) = place.split_first_chunk::<8>() else { return Ok(None) };
    let Some((count, rest)) = rest.split_first_chunk::<2>() else { return Ok(None) };
    let Ok(length) = <[u8; 4]>::try_from(rest) else { return Ok(None) };
    let parts = Parts { number: u64::from_be_bytes(*number), count: u16::from_be_bytes(*count) };
    let mut value = Vec::new();
    for place in 0..parts.count {
        let Some(part) = tree.get(part_key(parts.number, place)).map_err(unreadable)? else { return Ok(None) };
        value.extend_from_slice(&part);
    }
    let whole = u32::try_from(value.len()) == Ok(u32::from_be_bytes(length));
    Ok(whole.then(|| (value.into(), parts)))
}

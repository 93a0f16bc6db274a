//! The journal: every group of changes since the base was written, in a database of sled, which is its log.
//!
//! A group lies there under its number, whole, and is never changed, so nothing older can stand in its place. Each says what
//! all before it add up to, from the digest of the base on: a chain. sled takes a damaged message of its log for the end
//! of the log; then groups are missing, and as they have numbers without a gap, that shows. That the last ones are
//! missing is for the witness to say.
//!
//! # Parts
//!
//! A page of sled has up to some 20 entries, and one over 128 KiB goes to a file of its own, which sled does not sync, misses
//! in silence and never gives back. So a group is cut into parts of [`PART`] bytes.
//!
//! Key: number of the group (8 bytes), of the part (2 bytes). Value: of the first part, link of the chain (8 bytes), length of
//! the group (4 bytes), and the first bytes of it; of others, the next bytes. Numbers are big-endian.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;
use sled::{Batch, Db, IVec};

use super::files::{Refusal, open_sled, sync_folders};
use super::repair;

/// Bytes of a part: 20 of them fit into a page that sled does not put into a file of its own.
const PART: usize = 5900;

/// Bytes before a group.
const HEADER: usize = 12;

/// Longest group that is believed, in bytes.
const LIMIT: usize = 64 << 20;

/// A place in the journal: the number of a group, and what all up to it add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Groups since the base, of which the first is empty: every journal has one.
    pub sequence: u64,
    /// Link of the chain.
    pub chain: u64,
}

impl Mark {
    /// The mark after one more group.
    fn next(self, group: &[u8]) -> Self {
        let sequence = self.sequence + 1;
        let mut hasher = SipHasher13::new();
        hasher.write_u64(self.chain);
        hasher.write_u64(sequence);
        hasher.write(group);
        Self { sequence, chain: hasher.finish() }
    }
}

/// An open journal.
pub(super) struct Journal {
    path: PathBuf,
    db: Db,
    /// Second handle of the data file, for what sled's flush leaves out.
    data: File,
    last: Mark,
}

impl Journal {
    /// Makes one for the base of this digest, in a folder that is not there yet.
    pub fn create(path: &Path, origin: u64) -> Result<Self, Refusal> {
        let mut journal = Self::files(path, origin)?;
        journal.append(&[])?;
        Ok(journal)
    }

    /// Opens one and hands each group to `visit`, in order, with the mark that it leads to.
    pub fn open(
        path: &Path,
        origin: u64,
        mut visit: impl FnMut(Mark, &[u8]) -> Result<(), String>,
    ) -> Result<Self, Refusal> {
        if !path.is_dir() {
            return Err("its journal is gone".into());
        }
        repair::sweep(path).map_err(|error| Refusal::io("clean up after a crash", &error))?;
        let mut journal = Self::files(path, origin)?;
        let mut unfinished = Vec::new();
        let mut entries = journal.db.iter();
        let mut next = entries.next().transpose().map_err(unreadable)?;
        while let Some((key, value)) = next {
            let sequence = match split(&key) {
                Some((sequence, 0)) => sequence,
                _ => return Err("a group of its journal has no beginning".into()),
            };
            let expected = journal.last.sequence + 1;
            if sequence != expected {
                return Err(format!("{} groups of its journal are missing", sequence.abs_diff(expected)).into());
            }
            let (header, first) = value.split_at_checked(HEADER).ok_or("a group of its journal is cut short")?;
            let chain = header[..8].try_into().map_or(0, u64::from_be_bytes);
            let length = header[8..].try_into().map_or(0, u32::from_be_bytes) as usize;
            if length > LIMIT {
                return Err("a group of its journal is larger than any may be".into());
            }
            let mut group = first.to_vec();
            let mut keys = vec![key];
            loop {
                next = entries.next().transpose().map_err(unreadable)?;
                let Some((key, value)) = &next else { break };
                if split(key) != Some((sequence, u16::try_from(keys.len()).unwrap_or(u16::MAX))) {
                    break;
                }
                group.extend_from_slice(value);
                keys.push(key.clone());
            }
            if group.len() < length && next.is_none() {
                // A crash came between its parts. It was never acknowledged, or the witness knows.
                unfinished = keys;
                break;
            }
            let mark = journal.last.next(&group);
            if group.len() != length || mark.chain != chain {
                return Err("a group of its journal is not what was written".into());
            }
            visit(mark, &group)?;
            journal.last = mark;
        }
        if journal.last.sequence == 0 {
            return Err("its journal is empty".into());
        }
        drop(entries);
        for key in unfinished {
            journal.db.remove(key).map_err(unreadable)?;
        }
        journal.flush()?;
        Ok(journal)
    }

    fn files(path: &Path, origin: u64) -> Result<Self, Refusal> {
        let db = open_sled(path)?;
        let data = File::open(path.join("db")).map_err(|error| Refusal::io("open the data file", &error))?;
        // What a crashed predecessor left to the kernel's care is made durable before anything builds on it.
        data.sync_all().map_err(|error| Refusal::io("sync the data file", &error))?;
        sync_folders(path).map_err(|error| Refusal::io("sync the folder", &error))?;
        Ok(Self { path: path.to_owned(), db, data, last: Mark { sequence: 0, chain: origin } })
    }

    /// Where it is.
    pub fn mark(&self) -> Mark {
        self.last
    }

    /// Bytes that it takes of the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.data.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Puts a group on disk: all of it or, after a crash, none. When this returns `Ok`, it would survive a power cut.
    pub fn append(&mut self, group: &[u8]) -> Result<(), String> {
        let mark = self.last.next(group);
        let length = u32::try_from(group.len()).map_err(|_| "a group is too large")?;
        let (first, rest) = group.split_at(group.len().min(PART));
        let first = [&mark.chain.to_be_bytes()[..], &length.to_be_bytes(), first].concat();
        if rest.is_empty() {
            self.db.insert(key(mark.sequence, 0), first).map(|_: Option<IVec>| ())
        } else {
            let mut batch = Batch::default();
            batch.insert(&key(mark.sequence, 0), first);
            for (place, part) in (1..=u16::MAX).zip(rest.chunks(PART)) {
                batch.insert(&key(mark.sequence, place), part);
            }
            self.db.apply_batch(batch)
        }
        .map_err(|error| error.to_string())?;
        self.flush()?;
        self.last = mark;
        Ok(())
    }

    /// Makes durable what was written.
    pub fn flush(&self) -> Result<(), String> {
        self.db.flush().map_err(|error| error.to_string())?;
        self.data.sync_data().map_err(|error| format!("cannot sync the data file: {error}"))
    }

    /// Closes the files and removes them.
    pub fn remove(self) -> io::Result<()> {
        let Self { path, db, data, .. } = self;
        drop((db, data));
        fs::remove_dir_all(path)
    }
}

fn key(sequence: u64, place: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&sequence.to_be_bytes());
    key[8..].copy_from_slice(&place.to_be_bytes());
    key
}

fn split(key: &[u8]) -> Option<(u64, u16)> {
    let (sequence, place) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*sequence), u16::from_be_bytes(place.try_into().ok()?)))
}

fn unreadable(error: sled::Error) -> String {
    format!("cannot read its journal: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    type Groups = Vec<(Mark, Vec<u8>)>;

    fn open(path: &Path, origin: u64) -> Result<(Journal, Groups), Refusal> {
        let mut groups = Vec::new();
        let journal = Journal::open(path, origin, |mark, group| {
            groups.push((mark, group.to_vec()));
            Ok(())
        })?;
        Ok((journal, groups))
    }

    fn reason(path: &Path, origin: u64) -> String {
        match open(path, origin).map(|_| ()) {
            Err(Refusal::Damaged(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn groups_come_back_and_none_can_be_missing_or_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        assert_eq!(reason(&path, 9), "its journal is gone");
        let mut journal = Journal::create(&path, 9).unwrap();
        let written: Vec<Vec<u8>> =
            [10, 0, PART - 1, PART, PART + 1, 700_000, 20].iter().map(|length| vec![3; *length]).collect();
        let mut marks = vec![journal.mark()];
        for group in &written {
            journal.append(group).unwrap();
            marks.push(journal.mark());
        }
        drop(journal);
        for _ in 0..2 {
            let (_, groups) = open(&path, 9).unwrap();
            assert_eq!(groups.iter().map(|(mark, _)| *mark).collect::<Vec<_>>(), marks);
            assert!(groups.iter().skip(1).map(|(_, group)| group).eq(&written) && groups[0].1.is_empty());
        }
        assert_eq!(fs::read_dir(path.join("blobs")).unwrap().count(), 0);
        assert_eq!(reason(&path, 8), "a group of its journal is not what was written");

        let change = |what: &dyn Fn(&Db)| {
            let db = sled::open(&path).unwrap();
            what(&db);
            db.flush().unwrap();
        };
        let taken = |key: &[u8]| {
            let mut value = None;
            change(&|db| drop(db.remove(key).unwrap()));
            let refused = reason(&path, 9);
            value.get_or_insert(refused).clone()
        };
        // The last part of the sixth: what comes after it shows that it was finished.
        let (last, value) = {
            let db = sled::open(&path).unwrap();
            let (last, value) = db.range(key(7, 0)..key(8, 0)).next_back().unwrap().unwrap();
            (last.to_vec(), value.to_vec())
        };
        assert_eq!(taken(&last), "a group of its journal is not what was written");
        change(&|db| drop(db.insert(&last[..], &value[..]).unwrap()));
        assert_eq!(taken(&key(3, 0)), "1 groups of its journal are missing");
        assert_eq!(taken(&key(1, 0)), "1 groups of its journal are missing");
        change(&|db| db.clear().unwrap());
        assert_eq!(reason(&path, 9), "its journal is empty");
    }

    #[test]
    fn a_group_that_a_crash_cut_short_was_never_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = Journal::create(&path, 1).unwrap();
        journal.append(b"first").unwrap();
        let before = journal.mark();
        journal.append(&[5; 30_000]).unwrap();
        drop(journal);
        let db = sled::open(&path).unwrap();
        db.remove(key(3, 4)).unwrap();
        db.remove(key(3, 5)).unwrap();
        db.flush().unwrap();
        drop(db);
        let (mut journal, groups) = open(&path, 1).unwrap();
        assert_eq!((journal.mark(), groups.len()), (before, 2));
        journal.append(b"instead").unwrap();
        drop(journal);
        let (_, groups) = open(&path, 1).unwrap();
        assert_eq!(groups.last().unwrap().1, b"instead");
    }
}

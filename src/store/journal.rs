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
//! # Room
//!
//! Blocks behind the end of the data file are the journal's already ([`StoreJournal::reserve`], fallocate(2) with
//! `FALLOC_FL_KEEP_SIZE`): whoever fills the disk cannot take them, so what must be written on a full one still is, and sled
//! can be opened, which writes its last segment to the end.
//!
//! # Keys
//!
//! Key: number of the group (8 bytes), of the part (2 bytes). Value: of the first part, link of the chain (8 bytes), length of
//! the group (4 bytes), and the first bytes of it; of others, the next bytes. Numbers are big-endian.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io;
use std::iter::Peekable;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use siphasher::sip::SipHasher13;
use sled::{Batch, Db, IVec};

use super::files::{OpenRefusal, open_sled, sync_data, sync_folders};
use super::repair;

/// Bytes of a part: 20 of them fit into a page that sled does not put into a file of its own.
const PART: usize = 5900;

/// Bytes that file systems give out at once.
const BLOCK: u64 = 4096;

/// Bytes before a group.
const HEADER: usize = 12;

/// Longest group, in bytes; several times what the committer takes together.
const LIMIT: usize = 64 << 20;

/// A place in the journal: the number of a group, and what all up to it add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JournalMark {
    /// Groups since the base, of which the first is empty: every journal has one.
    pub sequence: u64,
    /// Link of the chain.
    pub chain: u64,
}

impl JournalMark {
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
pub(super) struct StoreJournal {
    db: Db,
    /// Second handle of the data file, for what sled's flush leaves out.
    data: File,
    last: JournalMark,
    /// What is there of a group after the last one.
    unfinished: Vec<IVec>,
    /// What the data file took of the disk with what is reserved, in bytes, when it was last known to be whole.
    held: u64,
}

/// What is there of a group: its parts with their places.
#[derive(Default)]
struct GroupParts {
    sequence: u64,
    keys: Vec<IVec>,
    parts: Vec<(u16, IVec)>,
}

impl GroupParts {
    /// The link of the chain and the bytes, when all of it is there.
    fn whole(&self) -> Option<(u64, Vec<u8>)> {
        let in_order = self.parts.iter().zip(0..).all(|((place, _), expected)| *place == expected);
        let (_, first) = self.parts.first().filter(|_| in_order)?;
        let (header, first) = first.split_at_checked(HEADER)?;
        let chain = header[..8].try_into().map_or(0, u64::from_be_bytes);
        let length = header[8..].try_into().map_or(0, u32::from_be_bytes) as usize;
        let mut group = first.to_vec();
        self.parts.iter().skip(1).for_each(|(_, part)| group.extend_from_slice(part));
        (group.len() == length).then_some((chain, group))
    }
}

impl StoreJournal {
    /// Makes one for the base of this digest, in a folder that is not there yet.
    pub fn create(path: &Path, origin: u64) -> Result<Self, OpenRefusal> {
        let mut journal = Self::files(path, origin)?;
        journal.append(&[]).map_err(|error| OpenRefusal::Other(format!("cannot begin its journal: {error}")))?;
        // Of the data file also its length, and the names.
        journal.data.sync_all().map_err(|error| OpenRefusal::io("sync the data file", &error))?;
        sync_folders(path).map_err(|error| OpenRefusal::io("sync the folder", &error))?;
        Ok(journal)
    }

    /// Opens one and hands each group to `visit`, in order, with the mark that it leads to.
    pub fn open(
        path: &Path,
        origin: u64,
        mut visit: impl FnMut(JournalMark, &[u8]) -> Result<(), String>,
    ) -> Result<Self, OpenRefusal> {
        if !path.is_dir() {
            return Err("its journal is gone".into());
        }
        repair::sweep(path).map_err(|error| OpenRefusal::io("clean up after a crash", &error))?;
        let mut journal = Self::files(path, origin)?;
        let mut entries = journal.db.iter().peekable();
        while let Some(found) = next_group(&mut entries)? {
            let expected = journal.last.sequence + 1;
            if found.sequence != expected {
                return Err(format!("{} groups of its journal are missing", found.sequence.abs_diff(expected)).into());
            }
            let whole = found.whole().map(|(chain, group)| (chain, journal.last.next(&group), group));
            match whole {
                Some((chain, mark, group)) if mark.chain == chain => {
                    visit(mark, &group)?;
                    journal.last = mark;
                }
                // A crash, or a disk that refused, came between its parts: it was never acknowledged. Otherwise the witness
                // knows better.
                None if entries.peek().is_none() => journal.unfinished = found.keys,
                _ => return Err("a group of its journal is not what was written".into()),
            }
        }
        drop(entries);
        if journal.last.sequence == 0 {
            return Err("its journal is empty".into());
        }
        Ok(journal)
    }

    fn files(path: &Path, origin: u64) -> Result<Self, OpenRefusal> {
        // What a crashed predecessor left to the kernel's care is made durable before anything builds on it.
        sync_data(path).map_err(|error| OpenRefusal::io("sync the data file", &error))?;
        let held = std::fs::metadata(path.join("db")).map_or(0, |metadata| metadata.blocks() * 512);
        let db = open_sled(path)?;
        let data = OpenOptions::new().read(true).write(true).open(path.join("db"));
        let data = data.map_err(|error| OpenRefusal::io("open the data file", &error))?;
        Ok(Self { db, data, last: JournalMark { sequence: 0, chain: origin }, unfinished: Vec::new(), held })
    }

    /// Where it is.
    pub fn mark(&self) -> JournalMark {
        self.last
    }

    /// Bytes that it takes of the disk, without what is reserved.
    pub fn disk_bytes(&self) -> u64 {
        self.sizes().map_or(0, |(taken, written)| taken.min(written))
    }

    /// Bytes that it can grow by, whoever else takes the rest of the disk.
    pub fn reserved(&self) -> u64 {
        self.sizes().map_or(0, |(taken, written)| taken.saturating_sub(written))
    }

    /// What the data file takes of the disk, and what of it is written; in bytes, in whole blocks.
    fn sizes(&self) -> io::Result<(u64, u64)> {
        let metadata = self.data.metadata()?;
        Ok((metadata.blocks() * 512, metadata.len().next_multiple_of(BLOCK)))
    }

    /// Takes so many bytes behind the end of the data file.
    ///
    /// # Errors
    ///
    /// When there is no such room, or the file system cannot.
    pub fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let signed = |number: u64| i64::try_from(number).map_err(io::Error::other);
        let (_, written) = self.sizes()?;
        fallocate(&self.data, FallocateFlags::FALLOC_FL_KEEP_SIZE, signed(written)?, signed(bytes)?)?;
        self.held = self.sizes()?.0;
        Ok(())
    }

    /// Takes again what was reserved and is not any more, up to so many bytes: sled cuts free segments off the end of its
    /// file, and what is behind the end goes with them.
    ///
    /// # Errors
    ///
    /// As [`Self::reserve`].
    pub fn hold(&mut self, most: u64) -> io::Result<()> {
        let (taken, written) = self.sizes()?;
        if taken >= self.held { Ok(()) } else { self.reserve(most.min(self.held.saturating_sub(written))) }
    }

    /// Puts a group on disk: all of it or, after a crash, none. When this returns `Ok`, it would survive a power cut.
    pub fn append(&mut self, group: &[u8]) -> Result<(), String> {
        if group.len() > LIMIT {
            return Err(format!("a group of {} bytes is more than the {LIMIT} that one may have", group.len()));
        }
        for key in std::mem::take(&mut self.unfinished) {
            self.db.remove(key).map_err(|error| error.to_string())?;
        }
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
}

/// All that is there of the next group.
fn next_group(
    entries: &mut Peekable<impl Iterator<Item = sled::Result<(IVec, IVec)>>>,
) -> Result<Option<GroupParts>, OpenRefusal> {
    let mut found = GroupParts::default();
    while let Some(entry) = entries.peek() {
        let key = entry.as_ref().map_err(|error| unreadable(error.clone()))?.0.clone();
        let (sequence, place) = split(&key).ok_or("an entry of its journal has no number")?;
        if !found.parts.is_empty() && sequence != found.sequence {
            break;
        }
        let Some(Ok((key, value))) = entries.next() else { break };
        found.sequence = sequence;
        found.keys.push(key);
        found.parts.push((place, value));
    }
    Ok((!found.parts.is_empty()).then_some(found))
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
    use std::fs;

    use super::*;

    type Groups = Vec<(JournalMark, Vec<u8>)>;

    fn open(path: &Path, origin: u64) -> Result<(StoreJournal, Groups), OpenRefusal> {
        let mut groups = Vec::new();
        let journal = StoreJournal::open(path, origin, |mark, group| {
            groups.push((mark, group.to_vec()));
            Ok(())
        })?;
        Ok((journal, groups))
    }

    fn reason(path: &Path, origin: u64) -> String {
        match open(path, origin).map(|_| ()) {
            Err(OpenRefusal::Damaged(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn groups_come_back_and_none_can_be_missing_or_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        assert_eq!(reason(&path, 9), "its journal is gone");
        let mut journal = StoreJournal::create(&path, 9).unwrap();
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
            let db = open_sled(&path).unwrap();
            what(&db);
            db.flush().unwrap();
        };
        let without = |key: &[u8]| {
            change(&|db| drop(db.remove(key).unwrap()));
            reason(&path, 9)
        };
        // The last part of the sixth: what comes after it shows that it was finished.
        let (last, value) = {
            let db = open_sled(&path).unwrap();
            let (last, value) = db.range(key(7, 0)..key(8, 0)).next_back().unwrap().unwrap();
            (last.to_vec(), value.to_vec())
        };
        assert_eq!(without(&last), "a group of its journal is not what was written");
        change(&|db| drop(db.insert(&last[..], &value[..]).unwrap()));
        assert_eq!(without(&key(3, 0)), "1 groups of its journal are missing");
        assert_eq!(without(&key(1, 0)), "1 groups of its journal are missing");
        change(&|db| db.clear().unwrap());
        assert_eq!(reason(&path, 9), "its journal is empty");
    }

    #[test]
    fn a_group_that_a_crash_cut_short_was_never_there() {
        // Whichever of its parts are there: sled leaves any of them when a thread could not be made.
        for missing in [&[4, 5][..], &[0], &[2], &[0, 1, 2, 3, 4]] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("journal");
            let mut journal = StoreJournal::create(&path, 1).unwrap();
            journal.append(b"first").unwrap();
            let before = journal.mark();
            journal.append(&[5; 30_000]).unwrap();
            drop(journal);
            let db = open_sled(&path).unwrap();
            missing.iter().for_each(|place| drop(db.remove(key(3, *place)).unwrap().unwrap()));
            db.flush().unwrap();
            drop(db);
            for _ in 0..2 {
                let (journal, groups) = open(&path, 1).unwrap();
                assert_eq!((journal.mark(), groups.len()), (before, 2), "{missing:?}");
            }
            let (mut journal, _) = open(&path, 1).unwrap();
            journal.append(b"instead").unwrap();
            drop(journal);
            let (_, groups) = open(&path, 1).unwrap();
            assert_eq!(groups.last().unwrap().1, b"instead");
        }
    }

    #[test]
    fn what_is_reserved_is_used_and_counts_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = StoreJournal::create(&path, 1).unwrap();
        let (before, had) = (journal.disk_bytes(), journal.reserved());
        journal.reserve(4 << 20).unwrap();
        assert_eq!(journal.disk_bytes(), before);
        let reserved = journal.reserved();
        assert!(reserved >= had + (3 << 20), "{reserved}");
        for _ in 0..5 {
            journal.append(&[7; 300_000]).unwrap();
        }
        assert!(journal.reserved() < reserved - 1_000_000 && journal.disk_bytes() > before + 1_000_000);
    }

    #[test]
    fn what_is_reserved_is_there_after_it_was_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = StoreJournal::create(&path, 1).unwrap();
        journal.reserve(4 << 20).unwrap();
        journal.append(&[7; 10_000]).unwrap();
        let before = journal.sizes().unwrap();
        drop(journal);
        let (mut journal, _) = open(&path, 1).unwrap();
        // sled may cut its file a moment later.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while journal.reserved() < (2 << 20) {
            assert!(std::time::Instant::now() < until, "{before:?} {:?} {}", journal.sizes(), journal.held);
            journal.hold(4 << 20).unwrap();
        }
    }

    #[test]
    fn a_group_that_could_not_be_read_back_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = StoreJournal::create(&path, 1).unwrap();
        let before = journal.mark();
        assert!(journal.append(&vec![0; LIMIT + 1]).unwrap_err().contains("more than the"));
        drop(journal);
        assert_eq!(open(&path, 1).unwrap().0.mark(), before);
    }
}

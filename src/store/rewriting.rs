//! Writing the database anew: everything that is in it at one moment, into a base.
//!
//! It is written by a thread of its own, while changes go on. Those go into the journal of the database as it is,
//! and together once more into the journal of the new one, when that takes its place.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bytes::Bytes;

use super::Object;
use super::base::BaseWriter;
use super::files::OpenRefusal;
use super::generation_files::{NewBase, NewFiles};
use super::group::{LOG, META, TreeName, WriteGroup, key};
use super::index::StoreIndex;
use super::record::{self, FormerRecord, ObjectIdentity};
use super::seal::Sealer;
use super::types::TableItem;

/// How much is written between two syncs, in bytes: 8 MiB. A sync of the journal may have to wait for what others have written
/// to the disk, so that must be little at any time.
const SYNC: u64 = 8 << 20;

/// Most that changes may add up to before they must be in the new journal, in bytes: 32 MiB, half of what a group may have.
const SINCE: usize = 32 << 20;

/// A change of no more than this many bytes is small: 64 KiB, some times a host with its status.
const SMALL: usize = 64 << 10;

/// Everything that is in the database at one moment. Objects are shared with the index.
pub(super) struct Moment {
    objects: Vec<(Arc<str>, Vec<Arc<Object>>)>,
    unreadable: Vec<(ObjectIdentity, Bytes)>,
    events: Vec<(ObjectIdentity, u64, FormerRecord)>,
    tables: Vec<(Arc<str>, Vec<TableItem>)>,
    meta: BTreeMap<Vec<u8>, Bytes>,
}

impl Moment {
    /// What is in the index, and the numbers.
    pub fn of(index: &StoreIndex, mut meta: BTreeMap<Vec<u8>, Bytes>) -> Self {
        let resources = || index.resources().iter().filter(|(_, resource)| !resource.is_published());
        for (name, resource) in resources().filter(|(_, resource)| resource.trimmed() > 0) {
            // Events up to there are not written.
            let mark = Bytes::copy_from_slice(&resource.trimmed().to_be_bytes());
            meta.insert(key::of(key::TRIMMED, name), mark);
        }
        let events = resources().flat_map(|(_, resource)| resource.events());
        let tables = index.tables().iter().map(|(name, entries)| {
            let entries = entries.iter().map(|(key, value)| (key.clone(), value.clone()));
            (Arc::clone(name), entries.collect())
        });
        Self {
            objects: resources()
                .map(|(name, resource)| (Arc::clone(name), resource.objects().cloned().collect()))
                .collect(),
            unreadable: index
                .unreadable()
                .iter()
                .map(|(identity, record)| (identity.clone(), record.clone()))
                .collect(),
            events: events
                .map(|logged| (ObjectIdentity::of(logged.event.object()), logged.revision, logged.former()))
                .collect(),
            tables: tables.collect(),
            meta,
        }
    }

    /// Writes all of it. `proceeds` is asked after each entry whether to go on.
    pub fn write(
        self,
        base: &mut BaseWriter,
        sealer: &Sealer,
        mut proceeds: impl FnMut(&mut BaseWriter) -> io::Result<()>,
    ) -> io::Result<()> {
        for (resource, objects) in self.objects {
            let tree = TreeName::Objects(resource).name();
            for object in objects {
                base.entry(&tree, &ObjectIdentity::of(&object).key(), &record::encode(&object, sealer))?;
                proceeds(base)?;
            }
        }
        for (identity, record) in self.unreadable {
            let tree = TreeName::Objects(Arc::clone(&identity.resource)).name();
            base.entry(&tree, &identity.key(), &record)?;
        }
        for (identity, revision, former) in self.events {
            let event = record::encode_event(&identity, revision, &former, sealer);
            base.entry(LOG, &revision.to_be_bytes(), &event)?;
            proceeds(base)?;
        }
        for (table, entries) in self.tables {
            let tree = TreeName::Table(table).name();
            for (key, value) in entries {
                base.entry(&tree, &key, &value)?;
                proceeds(base)?;
            }
        }
        for (key, value) in self.meta {
            base.entry(META, &key, &value)?;
        }
        Ok(())
    }
}

/// How far the thread is, and whether it is still wanted.
#[derive(Default)]
struct RewriteProgress {
    written: AtomicU64,
    is_done: AtomicBool,
    is_given_up: AtomicBool,
}

/// The database being written anew by a thread of its own.
pub(super) struct Rewriting {
    thread: Option<JoinHandle<Result<NewBase, OpenRefusal>>>,
    progress: Arc<RewriteProgress>,
    began: Instant,
    /// Whether the disk had little room then: it is to give some back.
    began_low: bool,
    /// What it will take of the disk, in bytes.
    size: u64,
    /// What it may grow by together with the database as it is, in bytes, when it was begun.
    room: u64,
    since: WriteGroup,
    since_bytes: usize,
}

impl Rewriting {
    /// Begins it. `size` is what it will take of the disk, in bytes, `room` by how many bytes it and the database as it is may
    /// grow together, `began_low` whether the disk has little room already; `wake` is called when it is at its end.
    ///
    /// # Errors
    ///
    /// When there can be no thread.
    pub fn begin(
        mut files: NewFiles,
        moment: Moment,
        sealer: Arc<Sealer>,
        (size, room): (u64, u64),
        began_low: bool,
        wake: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let progress = Arc::new(RewriteProgress::default());
        let own = Arc::clone(&progress);
        let write = move || {
            let mut synced = 0;
            moment
                .write(&mut files.base, &sealer, |base| {
                    if own.is_given_up.load(Ordering::Relaxed) {
                        return Err(io::Error::other("the store is closed"));
                    }
                    let written = base.bytes();
                    own.written.store(written, Ordering::Relaxed);
                    if written - synced >= SYNC {
                        base.sync()?;
                        synced = written;
                    }
                    Ok(())
                })
                .map_err(|error| OpenRefusal::io("write the base", &error))
                .and_then(|()| files.end())
        };
        let own = Arc::clone(&progress);
        let thread = thread::Builder::new().name("store-anew".to_owned()).spawn(move || {
            let outcome = write();
            own.is_done.store(true, Ordering::Release);
            wake();
            outcome
        })?;
        let (since, since_bytes, began) = (WriteGroup::default(), 0, Instant::now());
        Ok(Self { thread: Some(thread), progress, began, began_low, size, room, since, since_bytes })
    }

    /// Whether it is to take its place now: it is written, or has to wait for nothing more.
    pub fn is_due(&self) -> bool {
        self.progress.is_done.load(Ordering::Acquire) || self.since_bytes >= SINCE
    }

    pub fn began(&self) -> Instant {
        self.began
    }

    pub fn began_low(&self) -> bool {
        self.began_low
    }

    /// Bytes of the disk that it will still take.
    pub fn will_take(&self) -> u64 {
        self.size.saturating_sub(self.progress.written.load(Ordering::Relaxed))
    }

    /// Bytes that it takes of the disk in the end.
    pub fn bytes(&self) -> u64 {
        self.size + self.since_bytes as u64
    }

    /// Notes what was changed meanwhile; `bytes` is what it takes.
    pub fn note(&mut self, group: &WriteGroup, bytes: usize) {
        self.since.add(group);
        self.since_bytes += bytes;
    }

    /// Whether there is room for a change beside others when `left` bytes may still be taken. A large one leaves half of it to
    /// small ones.
    pub fn has_room(&self, left: u64, others: Cost, change: Cost) -> bool {
        let kept = if change.0 <= SMALL { 0 } else { self.room / 2 };
        left >= others.and(change).0 as u64 + kept
    }

    /// Waits for its end. Gives back what was written, and what was changed meanwhile.
    pub fn end(mut self) -> Result<(NewBase, WriteGroup), String> {
        let since = std::mem::take(&mut self.since);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Ok(base))) => Ok((base, since)),
            Some(Ok(Err(refusal))) => Err(refusal.said()),
            Some(Err(_)) | None => Err("the thread that writes it panicked".to_owned()),
        }
    }
}

impl Drop for Rewriting {
    /// The folder belongs to somebody else when the store is closed: nothing may be written there any more.
    fn drop(&mut self) {
        self.progress.is_given_up.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// What a change may take of the room while the database is written anew, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost(usize);

impl Cost {
    /// Of an object that has `former` bytes and is to have `made`. It and its event, which has the former self, go into two
    /// journals. And as much as the former self may be in the database no more, of which three times as much may be taken: it, or
    /// older events.
    pub fn of(former: usize, made: usize) -> Self {
        Self(2 * (former + made) + 3 * former)
    }

    /// Of this and another one.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_changes_leave_room_to_small_ones() {
        let rewriting = Rewriting {
            thread: None,
            progress: Arc::default(),
            began: Instant::now(),
            began_low: false,
            size: 0,
            room: 10 << 20,
            since: WriteGroup::default(),
            since_bytes: 0,
        };
        let (small, large) = (Cost::of(0, 16_000), Cost::of(900_000, 0));
        assert_eq!((small, large), (Cost(32_000), Cost(4_500_000)));
        for (left, expected) in
            [(10 << 20, (true, true)), (9 << 20, (true, false)), (32_000, (true, false)), (0, (false, false))]
        {
            let has_room = |change| rewriting.has_room(left, Cost::default(), change);
            assert_eq!((has_room(small), has_room(large)), expected, "{left}");
        }
        assert!(rewriting.has_room(5 << 20, large, small) && !rewriting.has_room(4 << 20, large, small));
    }
}

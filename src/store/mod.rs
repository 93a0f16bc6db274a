//! The store: every object, its revisions, the events of its changes, and the leases, behind one door to sled.
//!
//! # What a caller gets
//!
//! *Objects* are JSON documents named by (resource, namespace, name). Each change of any object takes the next
//! number of one global sequence, the revision, which is also the object's `metadata.resourceVersion`. *Events* tell
//! what each revision did; [`Store::watch`] replays and follows them. *Tables* are plain bytes for what is too hot
//! for JSON: DHCP leases. Reads come from memory and never wait for the disk. A write returns once it would survive
//! a power cut, and not earlier; nobody sees a change before that either.
//!
//! # One writer
//!
//! One thread, the committer (`committer.rs`), makes all changes. It takes what has queued up (at most 256 requests or
//! 2 MiB), judges each against the index and the requests before it, puts the group on disk, then publishes it to the
//! index and the watches, and last of all answers. The slower the disk, the larger the groups: this is group commit,
//! without a timer.
//!
//! # On disk
//!
//! The folder holds one generation of the database, and what watches over it (`generation.rs`). A generation is a *base*, a
//! plain file with everything that was there when the generation began (`base.rs`), and a *journal*, a database of sled
//! with every group of changes since (`journal.rs`). Both consist of entries of trees (`frames.rs`):
//!
//! | tree | key | value |
//! |---|---|---|
//! | `object:<resource>` | `namespace \0 name` | record: format, revision, JSON text |
//! | `log` | revision, 8 bytes, big-endian | event: kind, revision, `resource \0 namespace \0 name`, record of the *former* self |
//! | `meta` | `revision`, `reserved`, `seal`, `trimmed \0 <resource>`, `memory \0 <resource>` | numbers |
//! | `table:<name>` | the caller's | the caller's |
//!
//! Opening reads the base, then the journal, in order, and has everything in memory; nothing is read from disk after that.
//! When base and journal take about twice the disk that their content needs, the next generation is written from memory and
//! takes the place of the last (`disk.rs`), with what was changed meanwhile in its journal (`rewriting.rs`). No more is taken at
//! any time than three times what is there, and some MiB (`bounds.rs`), so changes for which that leaves no room wait until it is
//! done. When the disk has little room, all changes wait, and nothing may grow beyond what lets it be written anew.
//!
//! The log is an undo log: an event keeps what was there *before* it. What came after it is the former self in the next
//! event of that object or, for the last event, the object itself. So a creation writes its JSON once and a change
//! twice, and all events can be rebuilt with both their sides. The history is bounded per resource, by number
//! ([`StoreOptions::history`]) and by size; a watch from before that is [`Gone`]. What falls out of it is not written to the
//! next generation, where `trimmed` says up to which revision that is.
//!
//! # What is atomic
//!
//! A group, with everything in it: objects, their events, the revision, table entries. It is one entry of the journal, or, when
//! it is large, several in one batch of which the first tells how much there must be. After a crash either all of it is
//! there or none.
//!
//! # What sled does not promise, and what is done about it
//!
//! * `flush()` hands the log to the kernel and waits with `sync_file_range`, which neither flushes the drive's cache
//!   nor the file's length. So a second handle of the data file gets `sync_data` after each flush, before anyone
//!   is answered. sled's own periodic flush is off.
//! * Pages over about 128 KiB go to files of their own, which sled never syncs, misses in silence and never removes. So
//!   large groups are cut into parts, and no page becomes that large.
//! * A damaged message of its log counts as the end of the log, so that what was acknowledged is gone without a word. So
//!   groups have numbers without a gap and a chain of checksums that begins at the base, and a *witness* beside the
//!   database says which group was acknowledged last (`witness.rs`). What does not belong together, or is behind the
//!   witness, is refused. A database that is gone altogether is known by its key file, which is elsewhere.
//! * The data file never shrinks, and what is free in it is found slowly. So it holds only what changed lately.
//! * It cannot be opened on a full disk, and a write that the disk refuses ends it. So some room is kept for opening
//!   (`space.rs`) and some that only the journal can use (`journal.rs`), which has it before a group is taken. Before all is
//!   used up, nothing may grow any more, and then nothing change ([`StoreWriteError::Full`]). Deleting goes on, and ends the
//!   history of the resource instead of writing events.
//! * An error of the disk is remembered inside sled and all later writes fail. So after the first failed write
//!   the store is read-only, says so to [`Store::failed`], and the process is expected to end and be
//!   started again: opening reads back every acknowledged write.
//! * Subscribers of sled fire before data is durable and block the writer when idle. They are not used.
//!
//! What remains: the witness is synced once a second, so a drive that loses power *and* damages what it had written within
//! that second goes unnoticed, if what it damaged is the end of the journal.
//!
//! # What opening repairs
//!
//! Opening takes `<path>/lock` first, so that nothing is touched while another process is at work. Then, in the journal:
//! `snap.*.generating`, a snapshot that a crash left half written, is deleted (sled would take it for a whole one and
//! refuse to open); a `conf` cut short by a crash of the very first start is deleted (sled writes it again); and when
//! sled still reports damage, all `snap.*` and `conf` are moved aside once, with an error in the log of the process,
//! because sled's own log holds everything that they do. A lost witness is made again. A generation that was not finished,
//! or was left when its successor was, is removed. A database of format 1, which was all in sled, is taken over (`legacy.rs`).
//!
//! # Objects in memory only
//!
//! [`Store::publish`] gives views of a truth kept elsewhere (leases shown as resources) the same revisions, index and
//! watches without touching the disk. Their revisions must not be used again after a restart, so blocks of
//! revisions are reserved on disk before use, and a restart continues behind the reserved block. Their events
//! are lost in a restart, so resources with such objects are marked, and a watch of one from before the restart is [`Gone`].
//! The objects of a resource are either all in memory only or all on disk.
//!
//! # Secrets at rest
//!
//! Records of `/secrets`, in the log too, are sealed with XChaCha20-Poly1305 under a key outside the database, bound to
//! resource, namespace and name, so that a record cannot pass for another one. See `seal.rs`.

mod backup;
mod base;
mod bounds;
mod committer;
mod content;
mod disk;
mod files;
mod frames;
mod generation;
mod generation_files;
mod group;
mod index;
mod journal;
mod legacy;
mod meters;
mod object;
mod record;
mod repair;
mod retired;
mod rewriting;
mod seal;
mod space;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod types;
mod watch;
mod witness;
mod writer;

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use committer::{CommitRequest, Committer};
use index::SharedStore;

pub use backup::{NewStore, Snapshot};
pub(crate) use files::make_private_folder;
pub use meters::StoreMeters;
pub use object::{Object, json_len};
pub use retired::Retired;
pub use table::StoreTable;
pub use types::{
    Expect, Gone, KEY_LIMIT, Mutation, OBJECT_LIMIT, ObjectListing, StoreEvent, StoreOpenError, StoreOptions,
    StoreWriteError, TableEntry, TableItem,
};
pub use watch::Watch;

/// Deepest nesting of an object. The JSON parser that reads it back stops at 128.
const DEPTH_LIMIT: usize = 100;

/// Requests that may wait for the committer before [`Store::write`] itself waits.
const QUEUE: usize = 1024;

/// The store. Cheap to clone. Dropping the last clone (and the last [`StoreTable`]) ends the committer after what it has.
#[derive(Clone)]
pub struct Store {
    shared: Arc<SharedStore>,
    requests: mpsc::Sender<CommitRequest>,
    doubt: Option<&'static str>,
}

impl Store {
    /// Opens or creates a store, repairing what a crash left (see the module's description).
    ///
    /// Blocks on the disk; a lock that a store just closed may still hold is waited for, at most two seconds.
    ///
    /// # Errors
    ///
    /// [`StoreOpenError`] when another process has the store, the files cannot be read or made, the key file is not the
    /// one that sealed the secrets, or the database is of a format this version does not know.
    pub fn open(options: StoreOptions) -> Result<Self, StoreOpenError> {
        let path = options.path.clone();
        let (disk, loaded) =
            disk::Database::open(&options).map_err(|reason| StoreOpenError { path: path.clone(), reason })?;
        let doubt = loaded.unwitnessed.then_some(disk::UNWITNESSED);
        let (committer, shared) = Committer::new(disk, loaded);
        let (requests, receiver) = mpsc::channel(QUEUE);
        committer
            .start(receiver, requests.downgrade())
            .map_err(|error| StoreOpenError { path, reason: format!("cannot start the committer: {error}") })?;
        Ok(Self { shared, requests, doubt })
    }

    /// Why nobody can tell whether the newest writes are there, if so. It is in the log, too.
    pub fn doubt(&self) -> Option<&'static str> {
        self.doubt
    }

    /// Whether a folder holds a database, whatever its state.
    pub fn is_in(path: &Path) -> bool {
        generation::find(path).is_ok_and(|found| found.old_layout || !found.generations.is_empty())
    }

    /// The object, if there is one.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.shared.read().get(resource, namespace, name).cloned()
    }

    /// Objects that are there and cannot be read: resource, namespace, name. They are in no list and are not had by [`Store::get`];
    /// nothing takes their place before they are deleted, with [`Expect::Any`]. There are few.
    pub fn unreadable(&self) -> Vec<(Arc<str>, String, String)> {
        let index = self.shared.read();
        let places = index.unreadable().keys().cloned();
        places.map(|place| (place.resource, place.namespace, place.name)).collect()
    }

    /// Whether there is such an object, which cannot be read.
    pub fn is_unreadable(&self, resource: &str, namespace: &str, name: &str) -> bool {
        self.unreadable().iter().any(|one| (&*one.0, &*one.1, &*one.2) == (resource, namespace, name))
    }

    /// All objects of a resource, or those of one namespace (`Some("")`: the cluster-scoped ones).
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> ObjectListing {
        let index = self.shared.read();
        ObjectListing { objects: index.list(resource, namespace), revision: index.revision() }
    }

    /// All objects of a resource that have this name, each of another namespace.
    pub fn named(&self, resource: &str, name: &str) -> Vec<Arc<Object>> {
        self.shared.read().named(resource, name)
    }

    /// Resources that have objects in a namespace, and how many, but for those that are in memory only.
    pub fn stored_in(&self, namespace: &str) -> Vec<(Arc<str>, usize)> {
        self.shared.read().stored_in(namespace)
    }

    /// All objects of a resource, or those of one namespace, as they were at a revision.
    ///
    /// # Errors
    ///
    /// [`Gone`] when the revision was never given, or events after it were dropped.
    pub fn list_at(&self, resource: &str, namespace: Option<&str>, revision: u64) -> Result<ObjectListing, Gone> {
        let past = self.shared.read().list_at(resource, namespace, revision)?;
        Ok(ObjectListing { objects: past.objects(), revision })
    }

    /// Returns once the store has reached a revision; at once when it has.
    pub async fn reached(&self, revision: u64) {
        self.shared.reached(revision).await;
    }

    /// Counts so many bytes more for each object of a resource: what those who follow it keep of an object in memory. To be
    /// said once, before clients come.
    pub fn add_weight(&self, resource: &str, bytes: usize) {
        self.shared.add_weight(&resource.into(), bytes);
    }

    /// Counts objects of a resource also as they are parsed: those who follow it keep them so. To be said once, before clients
    /// come.
    pub fn weigh_parsed(&self, resource: &str) {
        self.shared.weigh_parsed(&resource.into());
    }

    /// What objects take in memory that are gone or replaced, that the history has no longer, and that somebody holds
    /// still.
    pub fn retired(&self) -> Retired {
        self.shared.retired()
    }

    /// What is done after each group of changes, under no lock, before they are answered: whoever gave objects to others
    /// looks whether these hold too much of what is [`retired`](Store::retired). It must be quick and may not write here.
    pub fn set_on_retired(&self, look: Arc<dyn Fn() + Send + Sync>) {
        self.shared.set_on_retired(look);
    }

    /// How many objects each resource has.
    pub fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.shared.read().counts()
    }

    /// What was counted and measured since the store was opened.
    pub fn meters(&self) -> &StoreMeters {
        self.shared.meters()
    }

    /// Whether writes can succeed.
    ///
    /// # Errors
    ///
    /// [`StoreWriteError::Failed`] when the disk refused one, or the store is closed.
    pub fn writable(&self) -> Result<(), StoreWriteError> {
        self.shared.writable()?;
        if self.shared.is_closed() { Err(self.shared.write_error()) } else { Ok(()) }
    }

    /// Makes one change; returns once it is on disk. Deleting returns the last self with the revision of the deletion,
    /// as [`StoreEvent::Deleted`] has it.
    ///
    /// When the future is dropped before it is done, the change may still be made.
    ///
    /// # Errors
    ///
    /// [`StoreWriteError`]; nothing was changed then, with one exception: after [`StoreWriteError::Failed`] the change may or
    /// may not be there when the store is opened again.
    pub async fn write(&self, change: Mutation) -> Result<Arc<Object>, StoreWriteError> {
        self.change(None, change, true).await
    }

    /// Makes two changes of two objects, of which either both are made or none, whatever happens; returns the second once both are
    /// on disk. Whoever sees the second sees the first.
    ///
    /// # Errors
    ///
    /// As [`Store::write`], for whichever of the two cannot be made.
    pub async fn write_both(&self, first: Mutation, change: Mutation) -> Result<Arc<Object>, StoreWriteError> {
        check(&first)?;
        self.change(Some(Box::new(first)), change, true).await
    }

    /// As [`Store::write`], but kept in memory only: views of a truth that somebody else keeps.
    ///
    /// # Errors
    ///
    /// As [`Store::write`], and [`StoreWriteError::Malformed`] when objects of the resource were written, as for writing those
    /// of a resource that were published.
    pub async fn publish(&self, change: Mutation) -> Result<Arc<Object>, StoreWriteError> {
        self.change(None, change, false).await
    }

    async fn change(
        &self,
        first: Option<Box<Mutation>>,
        change: Mutation,
        durable: bool,
    ) -> Result<Arc<Object>, StoreWriteError> {
        check(&change)?;
        self.shared.writable()?;
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(CommitRequest::Mutation { first, change, durable, reply })
            .await
            .map_err(|_| self.shared.write_error())?;
        match answer.await {
            Ok(result) => result,
            Err(_) => Err(self.shared.unanswered().await),
        }
    }

    /// Ends the history of a resource: whoever asks for a revision before now, or watches from one, is told that it is
    /// [`Gone`]. Returns once that is on disk. The objects stay.
    ///
    /// # Errors
    ///
    /// [`StoreWriteError::Failed`] when the disk refused, or the store is closed.
    pub async fn forget(&self, resource: &str) -> Result<(), StoreWriteError> {
        self.shared.writable()?;
        let (reply, answer) = oneshot::channel();
        let request = CommitRequest::Forget { resource: resource.into(), reply };
        self.requests.send(request).await.map_err(|_| self.shared.write_error())?;
        match answer.await {
            Ok(result) => result,
            Err(_) => Err(self.shared.unanswered().await),
        }
    }

    /// Events of a resource after a revision: that of a [`ObjectListing`], of an object, or of the last event seen.
    ///
    /// # Errors
    ///
    /// [`Gone`] when events after that revision were dropped, when the revision was never given, or when the store is closed.
    pub fn watch(&self, resource: &str, after: u64) -> Result<Watch, Gone> {
        Watch::new(&self.shared, resource, after)
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.shared.read().revision()
    }

    /// Whether [`Store::close`] was called or the store ended by itself.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// A table of bytes beside the objects, durable, without revisions: leases. It need not exist before.
    ///
    /// # Errors
    ///
    /// [`StoreWriteError::Malformed`] when the name is empty, longer than 64 bytes, or has a NUL byte;
    /// [`StoreWriteError::Failed`] when the store is closed.
    pub fn table(&self, name: &str) -> Result<StoreTable, StoreWriteError> {
        if name.is_empty() || name.len() > 64 || name.contains('\0') {
            return Err(StoreWriteError::Malformed("a table's name has 1 to 64 bytes and no NUL"));
        }
        if self.shared.is_closed() {
            return Err(self.shared.write_error());
        }
        Ok(StoreTable::new(name.into(), Arc::clone(&self.shared), self.requests.clone()))
    }

    /// Resolves with the reason when the disk refused a write and the store became read-only. Never resolves otherwise.
    ///
    /// The appliance should end then and be started again: opening the store brings back every acknowledged write.
    pub async fn failed(&self) -> String {
        self.shared.failed().await
    }

    /// Has it refuse what a full disk refuses.
    #[cfg(test)]
    pub(crate) fn pretend_full(&self, full: bool) {
        self.shared.full.store(full, std::sync::atomic::Ordering::Relaxed);
    }

    /// Ends the committer after what it has; writes after that fail, watches end with [`Gone`], reads go on.
    ///
    /// When this returns, the files are closed and the store may be opened again.
    pub async fn close(&self) {
        // A send that fails means that the committer is closing or has ended.
        self.requests.send(CommitRequest::Close).await.ok();
        self.shared.ended().await;
    }
}

/// Refuses what could not be read back.
fn check(change: &Mutation) -> Result<(), StoreWriteError> {
    let Mutation { resource, namespace, name, value, .. } = change;
    if resource.is_empty() || name.is_empty() {
        return Err(StoreWriteError::Malformed("it has no name"));
    }
    if resource.contains('\0') || namespace.contains('\0') || name.contains('\0') {
        return Err(StoreWriteError::Malformed("its name has a NUL byte"));
    }
    let size = resource.len() + namespace.len() + name.len();
    if size > KEY_LIMIT {
        return Err(StoreWriteError::TooLarge { size, limit: KEY_LIMIT });
    }
    match value {
        None => Ok(()),
        Some(value) if !value.is_object() => Err(StoreWriteError::Malformed("it is not a JSON object")),
        Some(value) if value.get("metadata").is_some_and(|metadata| !metadata.is_object()) => {
            Err(StoreWriteError::Malformed("its metadata is not a JSON object"))
        }
        Some(value) if deeper_than(value, DEPTH_LIMIT) => Err(StoreWriteError::Malformed("it is nested too deeply")),
        Some(_) => Ok(()),
    }
}

/// Whether a value has more levels than that. Recurses at most `levels` deep.
fn deeper_than(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| deeper_than(item, below)),
        Value::Object(fields) => fields.values().any(|field| deeper_than(field, below)),
        _ => false,
    }
}

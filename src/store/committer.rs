//! The one writer: takes what has queued up, judges it, puts it on disk, shows it, answers.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;
use std::{io, thread};

use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::TableEntry;
use super::content::Loaded;
use super::disk::{CRAMPED, Database, NOT_ANEW, NotAnew, OVERGROWN};
use super::index::SharedStore;
use super::record::{self, ObjectIdentity};
use super::rewriting::{Cost, Moment};
use super::writer::TextWriter;
use super::{Mutation, OBJECT_LIMIT, Object, QUEUE, StoreWriteError, json_len};

mod queue;
mod stage;

pub(super) use queue::CommitRequest;

use queue::{CommitQueue, PendingCommit};

/// Requests of one group.
const GROUP: usize = 256;

/// Bytes of one group after which it takes no more requests.
const GROUP_BYTES: usize = 2 << 20;

/// Revisions reserved at a time for objects in memory.
const BLOCK: u64 = 1 << 16;

type MutationReply = oneshot::Sender<Result<Arc<Object>, StoreWriteError>>;

/// The committer's state.
pub(super) struct Committer {
    shared: Arc<SharedStore>,
    disk: Database,
    /// The last revision given.
    revision: u64,
    /// Objects in memory may have revisions up to this one.
    reserved: u64,
    /// Resources known on disk to have objects in memory.
    memory: Vec<Arc<str>>,
    /// Whether the objects of a resource are on disk, of those that have or had any.
    durable: HashMap<Arc<str>, bool>,
    writer: TextWriter,
    /// What is in the database but for history, in bytes, as it is on disk.
    lasting: usize,
    /// Whether the disk has no room to write it anew if it grew as it was last to.
    is_cramped: bool,
    /// Whether it takes more of the disk than it may, and cannot be written anew now.
    is_overgrown: bool,
    /// Changes that wait until the database is written anew: three times what is in it could be exceeded.
    held: VecDeque<CommitRequest>,
}

impl Committer {
    /// The committer of a database just opened, and what it shares with the handles.
    pub fn new(disk: Database, loaded: Loaded) -> (Self, Arc<SharedStore>) {
        let Loaded { index, reserved, memory, .. } = loaded;
        let (revision, live, lasting) = (index.revision(), index.disk_bytes(), index.lasting_bytes());
        let filled = index.counts().into_iter().filter(|(_, count)| *count > 0);
        let durable = filled.map(|(resource, _)| (resource, true)).collect();
        let shared = Arc::new(SharedStore::new(index));
        let committer = Self {
            shared: Arc::clone(&shared),
            revision,
            reserved,
            memory,
            durable,
            writer: TextWriter::default(),
            is_cramped: false,
            is_overgrown: disk.is_overgrown(live),
            lasting,
            disk,
            held: VecDeque::new(),
        };
        (committer, shared)
    }

    /// Starts the thread. It ends when asked to, or when all senders are gone.
    pub fn start(
        mut self,
        mut requests: mpsc::Receiver<CommitRequest>,
        own: mpsc::WeakSender<CommitRequest>,
    ) -> io::Result<()> {
        thread::Builder::new().name("store".to_owned()).spawn(move || {
            let shared = Arc::clone(&self.shared);
            // The files are closed inside, so that whoever waits for the end may open them again.
            let outcome = catch_unwind(AssertUnwindSafe(move || {
                self.run(&mut requests, &own);
                self.shared.close();
                if let Err(error) = self.disk.settle() {
                    // Nothing acknowledged depends on it.
                    tracing::warn!(
                        error,
                        "cannot tidy the database at shutdown: nothing that was acknowledged is lost"
                    );
                }
            }));
            if outcome.is_err() {
                shared.fail("the committer panicked");
                shared.close();
                tracing::error!("the store's committer panicked: the store is closed");
            }
            shared.end();
        })?;
        Ok(())
    }

    fn run(&mut self, requests: &mut mpsc::Receiver<CommitRequest>, own: &mpsc::WeakSender<CommitRequest>) {
        let mut queue = CommitQueue::default();
        let outcome = loop {
            let Some(first) = queue.wait(requests) else {
                if self.held.is_empty() {
                    break Ok(());
                }
                // What is in the queue is still done.
                match self.complete() {
                    Ok(()) => queue.put_back(&mut self.held),
                    Err(reason) => break Err(reason),
                }
                continue;
            };
            let mut pending = PendingCommit::default();
            let mut next = Some(first);
            while let Some(request) = next.take() {
                self.take(request, requests, &mut pending);
                if !pending.is_full() {
                    next = queue.next(requests);
                }
            }
            if let Err(reason) = self.finish(pending, own) {
                break Err(reason);
            }
            if !self.disk.is_rewriting() {
                queue.put_back(&mut self.held);
            }
        };
        let Err(reason) = outcome else { return };
        tracing::error!(error = reason, "cannot write the database: it is read-only until the appliance is restarted");
        self.shared.fail(&reason);
        queue.put_back(&mut self.held);
        while let Some(request) = queue.wait(requests) {
            match request {
                CommitRequest::Close => requests.close(),
                request => request.refuse(&reason),
            }
        }
    }

    /// Has the database written anew when it takes too much of the disk for what is in it, and knows what may be done when that
    /// cannot be.
    fn tidy(&mut self, own: &mpsc::WeakSender<CommitRequest>) -> Result<(), String> {
        let outcome = self.write_anew(own);
        let (live_bytes, lasting) = {
            let index = self.shared.read();
            (index.disk_bytes(), index.lasting_bytes())
        };
        let is_overgrown = self.disk.is_overgrown(live_bytes);
        if is_overgrown && !self.is_overgrown {
            let disk_bytes = self.disk.bytes();
            tracing::error!(live_bytes, disk_bytes, "{OVERGROWN}");
        }
        self.lasting = lasting;
        self.is_overgrown = is_overgrown;
        outcome
    }

    fn write_anew(&mut self, own: &mpsc::WeakSender<CommitRequest>) -> Result<(), String> {
        if let Err(not) = self.disk.give_up_when_low() {
            return went_on(not);
        }
        if self.disk.is_due() || self.held.len() >= QUEUE {
            self.complete()?;
            if !self.held.is_empty() {
                // They come first.
                return Ok(());
            }
        }
        // Nobody else changes the index; readers go on.
        let index = self.shared.read();
        let live = index.disk_bytes();
        self.shared.meters().sized(live, self.disk.bytes());
        if self.disk.is_rewriting() || !self.disk.is_bloated(live) {
            return Ok(());
        }
        let moment = Moment::of(&index, self.disk.meta().clone());
        drop(index);
        let own = own.clone();
        // When there is no place in the queue, it is looked for after what is in it.
        let wake = move || {
            if let Some(own) = own.upgrade() {
                own.try_send(CommitRequest::Rewritten).ok();
            }
        };
        if let Err(not) = self.disk.begin(moment, live, wake) {
            return went_on(not);
        }
        if self.disk.may_go_on(live) { Ok(()) } else { self.complete() }
    }

    /// Lets the database that was written anew take its place, as soon as it is.
    fn complete(&mut self) -> Result<(), String> {
        match self.disk.complete() {
            Ok(took) => {
                self.shared.meters().rewritten(took);
                self.shared.meters().sized(self.shared.read().disk_bytes(), self.disk.bytes());
                Ok(())
            }
            Err(not) => went_on(not),
        }
    }

    /// Whether a change has to wait until the database is written anew.
    fn has_to_wait(&self, change: &Mutation, durable: bool, pending: &mut PendingCommit) -> bool {
        if !durable || !self.disk.is_rewriting() {
            return false;
        }
        let index = self.shared.read();
        // Of what is changed twice in a group, what it was before.
        let former = index.get(&change.resource, &change.namespace, &change.name);
        let made = change.value.as_ref().map_or(0, json_len);
        let cost = Cost::of(former.map_or(0, |object| record::size(object)), made);
        let has_room = self.disk.has_room_aside(index.disk_bytes(), pending.cost, cost);
        if has_room {
            pending.cost = pending.cost.and(cost);
        }
        !has_room
    }

    /// Judges one request and adds it to the group.
    fn take(
        &mut self,
        request: CommitRequest,
        requests: &mut mpsc::Receiver<CommitRequest>,
        pending: &mut PendingCommit,
    ) {
        match request {
            CommitRequest::Mutation { first, change, durable, reply }
                if first.iter().any(|first| self.has_to_wait(first, durable, pending))
                    || self.has_to_wait(&change, durable, pending) =>
            {
                self.held.push_back(CommitRequest::Mutation { first, change, durable, reply });
            }
            CommitRequest::Mutation { first, change, durable, reply } => {
                let result = match first {
                    Some(first) => self.stage_both(*first, change, durable, pending),
                    None => self.stage(change, durable, pending),
                };
                pending.answers.push((reply, result));
            }
            CommitRequest::Entries { table, entries, reply } => {
                let length = |(key, value): &TableEntry| key.len() + value.as_ref().map_or(0, |value| value.len());
                let bytes = entries.iter().map(length).sum::<usize>();
                if !self.has_room_for(&table, &entries, pending.bytes + bytes) {
                    // A caller that no longer waits is no fault.
                    reply.send(Err(StoreWriteError::Full)).ok();
                    return;
                }
                pending.bytes += bytes;
                pending.disk.entries(&table, &entries);
                pending.index.entries.extend(entries.into_iter().map(|entry| (Arc::clone(&table), entry)));
                pending.entries.push(reply);
            }
            CommitRequest::Forget { resource, reply } => {
                pending.forget(&resource, self.revision);
                pending.entries.push(reply);
            }
            // It is looked for after each group.
            CommitRequest::Rewritten => {}
            // What is in the queue is still done.
            CommitRequest::Close => requests.close(),
        }
    }

    /// Whether entries can be written. What only renews what is there goes on for a while when nothing else does, so that
    /// machines keep their leases; what removes goes on for longest.
    fn has_room_for(&mut self, table: &Arc<str>, entries: &[TableEntry], bytes: usize) -> bool {
        if entries.iter().all(|(_, value)| value.is_none()) {
            return self.disk.has_last_room(bytes, true);
        }
        if self.disk.has_room(bytes) {
            return true;
        }
        let renews = {
            let index = self.shared.read();
            let there = index.tables().get(table);
            entries.iter().all(|(key, value)| {
                let former = there.and_then(|there| there.get(key)).map_or(0, |former| former.len() + RENEWAL);
                value.as_ref().is_none_or(|value| value.len() <= former)
            })
        };
        renews && self.disk.has_last_room(bytes, false)
    }

    /// Whether the database may grow by so many bytes.
    fn may_grow(&mut self, is_low: bool, bytes: usize) -> bool {
        let is_cramped = !self.disk.has_room_anew(self.lasting + bytes);
        if is_cramped && !self.is_cramped && !is_low {
            let (free_bytes, live_bytes) = (self.disk.free(), self.lasting);
            tracing::error!(free_bytes, live_bytes, "{CRAMPED}");
        }
        self.is_cramped = is_cramped;
        !is_low && !is_cramped
    }

    fn is_unreadable(&self, identity: &ObjectIdentity) -> bool {
        self.shared.read().unreadable().contains_key(identity)
    }

    /// Deletes an object that cannot be read. Nobody has seen it, so there is no event of that.
    fn clear(&mut self, identity: ObjectIdentity, pending: &mut PendingCommit) -> Result<Arc<Object>, StoreWriteError> {
        if !self.disk.has_last_room(pending.bytes, true) {
            return Err(StoreWriteError::Full);
        }
        let revision = self.revision + 1;
        let last = json!({"metadata": {"namespace": identity.namespace, "name": identity.name}});
        let last = self.writer.make(&identity, revision, last, OBJECT_LIMIT)?;
        self.revision = revision;
        pending.disk.object(&identity, None, self.disk.sealer());
        pending.disk.revision(revision);
        pending.index.cleared.push((identity.clone(), revision));
        pending.overlay.insert(identity, None);
        Ok(last)
    }

    /// What must be on disk before a revision may go to an object in memory.
    fn prepare_memory(&mut self, resource: &Arc<str>, pending: &mut PendingCommit) {
        if self.revision > self.reserved {
            self.reserved = self.revision + BLOCK;
            pending.disk.reserve(self.reserved);
        }
        if !self.memory.contains(resource) {
            self.memory.push(Arc::clone(resource));
            pending.disk.in_memory(resource);
        }
    }

    /// Disk, index, answers: in this order.
    fn finish(&mut self, pending: PendingCommit, own: &mpsc::WeakSender<CommitRequest>) -> Result<(), String> {
        let PendingCommit { disk, index, answers, entries, .. } = pending;
        let is_durable = !disk.is_empty();
        if is_durable {
            let started = Instant::now();
            let outcome = self.disk.commit(&disk, self.revision);
            self.shared.meters().committed(answers.len() + entries.len(), started.elapsed());
            if let Err(reason) = outcome {
                for (reply, _) in answers {
                    reply.send(Err(StoreWriteError::Failed(reason.clone()))).ok();
                }
                for reply in entries {
                    reply.send(Err(StoreWriteError::Failed(reason.clone()))).ok();
                }
                return Err(reason);
            }
        }
        self.shared.apply(index);
        for (reply, result) in answers {
            reply.send(result).ok();
        }
        for reply in entries {
            reply.send(Ok(())).ok();
        }
        // On a full disk nothing may be written, and yet there may be room by now to write everything anew.
        let is_in_need = self.is_overgrown || self.disk.is_low();
        if is_durable || is_in_need || self.disk.is_due() { self.tidy(own) } else { Ok(()) }
    }
}

/// The database was not written anew: it goes on as it is, unless nobody knows any more which one it is.
fn went_on(not: NotAnew) -> Result<(), String> {
    match not {
        NotAnew::Given(error) => {
            tracing::error!(error, "{NOT_ANEW}");
            Ok(())
        }
        NotAnew::Torn(error) => Err(error),
    }
}

/// What an entry of a table may grow by when the disk is full, in bytes: another name of its machine.
const RENEWAL: usize = 64;

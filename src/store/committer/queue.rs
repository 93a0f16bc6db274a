//! What waits to be written.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{GROUP, GROUP_BYTES, MutationReply};
use crate::store::group::WriteGroup;
use crate::store::index::IndexChange;
use crate::store::record::ObjectIdentity;
use crate::store::rewriting::Cost;
use crate::store::{Mutation, Object, QUEUE, StoreWriteError, TableEntry};

/// What the committer is asked.
pub(in crate::store) enum CommitRequest {
    Mutation {
        /// Of another object, and made just before: both are made, or none.
        first: Option<Box<Mutation>>,
        change: Mutation,
        durable: bool,
        reply: MutationReply,
    },
    Entries {
        table: Arc<str>,
        entries: Vec<TableEntry>,
        reply: oneshot::Sender<Result<(), StoreWriteError>>,
    },
    /// Ends the history of a resource.
    Forget {
        resource: Arc<str>,
        reply: oneshot::Sender<Result<(), StoreWriteError>>,
    },
    /// The database was written anew, and that can take its place.
    Rewritten,
    Close,
}

impl CommitRequest {
    pub(super) fn refuse(self, reason: &str) {
        let error = StoreWriteError::Failed(reason.to_owned());
        // A caller that no longer waits is no fault.
        match self {
            Self::Mutation { reply, .. } => reply.send(Err(error)).is_ok(),
            Self::Entries { reply, .. } | Self::Forget { reply, .. } => reply.send(Err(error)).is_ok(),
            Self::Rewritten | Self::Close => false,
        };
    }
}

/// Requests that go to disk together, judged but not yet visible.
#[derive(Default)]
pub(super) struct PendingCommit {
    pub(super) disk: WriteGroup,
    /// What the objects changed by this group will be.
    pub(super) overlay: HashMap<ObjectIdentity, Option<Arc<Object>>>,
    pub(super) index: IndexChange,
    pub(super) answers: Vec<(MutationReply, Result<Arc<Object>, StoreWriteError>)>,
    pub(super) entries: Vec<oneshot::Sender<Result<(), StoreWriteError>>>,
    pub(super) bytes: usize,
    /// What it may take of the room while the database is written anew.
    pub(super) cost: Cost,
}

impl PendingCommit {
    /// Ends the history of a resource at a revision.
    pub(super) fn forget(&mut self, resource: &Arc<str>, revision: u64) {
        self.disk.trimmed(resource, revision);
        self.index.forgotten.retain(|(one, _)| one != resource);
        self.index.forgotten.push((Arc::clone(resource), revision));
    }

    pub(super) fn is_full(&self) -> bool {
        self.answers.len() + self.entries.len() >= GROUP || self.bytes >= GROUP_BYTES
    }
}

/// Requests in the order in which they are taken: entries of tables go first. They are small, machines wait for their leases,
/// and of objects there may be many megabytes in line.
#[derive(Default)]
pub(super) struct CommitQueue {
    pub(super) entries: VecDeque<CommitRequest>,
    others: VecDeque<CommitRequest>,
}

impl CommitQueue {
    /// The next request, if there is one already.
    pub(super) fn next(&mut self, requests: &mut mpsc::Receiver<CommitRequest>) -> Option<CommitRequest> {
        while self.entries.len() + self.others.len() < QUEUE
            && let Ok(request) = requests.try_recv()
        {
            match request {
                CommitRequest::Entries { .. } => self.entries.push_back(request),
                _ => self.others.push_back(request),
            }
        }
        self.entries.pop_front().or_else(|| self.others.pop_front())
    }

    /// Has these be the next ones after the entries of tables.
    pub(super) fn put_back(&mut self, held: &mut VecDeque<CommitRequest>) {
        held.append(&mut self.others);
        std::mem::swap(held, &mut self.others);
    }

    /// The next request; nothing when no more will come.
    pub(super) fn wait(&mut self, requests: &mut mpsc::Receiver<CommitRequest>) -> Option<CommitRequest> {
        self.next(requests).or_else(|| requests.blocking_recv())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_first_and_nothing_is_lost_when_it_closes() {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let forget = |name: &str| CommitRequest::Forget { resource: name.into(), reply: oneshot::channel().0 };
        let entries = |name: &str| CommitRequest::Entries {
            table: name.into(),
            entries: Vec::new(),
            reply: oneshot::channel().0,
        };
        for request in [forget("a"), entries("b"), forget("c"), CommitRequest::Close, entries("d")] {
            sender.try_send(request).ok().unwrap();
        }
        let mut queue = CommitQueue::default();
        let mut order = String::new();
        while let Some(request) = queue.wait(&mut receiver) {
            match request {
                CommitRequest::Forget { resource: name, .. } | CommitRequest::Entries { table: name, .. } => {
                    order += &name
                }
                CommitRequest::Close => receiver.close(),
                CommitRequest::Mutation { .. } | CommitRequest::Rewritten => {}
            }
            if order == "bda" {
                sender.try_send(entries("e")).ok().unwrap();
                order += "+";
            }
        }
        assert_eq!(order, "bda+ec");
    }
}

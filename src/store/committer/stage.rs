//! One change at a time: whether it may be made, and what it is in a group.

use std::sync::Arc;
use std::time::Instant;

use super::Committer;
use super::queue::PendingCommit;
use crate::store::index::Logged;
use crate::store::record::{self, FormerRecord, ObjectIdentity};
use crate::store::{Expect, Mutation, OBJECT_LIMIT, Object, StoreEvent, StoreWriteError};

/// What of a group comes before a change that is judged, and is not in it yet.
#[derive(Clone, Copy, Default)]
struct GroupAhead {
    revisions: u64,
    bytes: usize,
}

/// A change that may be made.
struct StagedChange {
    identity: ObjectIdentity,
    revision: u64,
    made: Option<Arc<Object>>,
    deleted: Option<Arc<Object>>,
    event: StoreEvent,
    former: FormerRecord,
    /// Whether its event would take the last room.
    low: bool,
}

impl StagedChange {
    /// Bytes that it takes in a group, roughly: the object, and its event with the former self.
    fn bytes(&self) -> usize {
        let former = match &self.former {
            FormerRecord::Added => 0,
            FormerRecord::Modified(former) | FormerRecord::Deleted(former) => record::size(former),
        };
        self.made.as_deref().map_or(0, record::size) + former
    }
}

fn identity_of(change: &Mutation) -> ObjectIdentity {
    let Mutation { resource, namespace, name, .. } = change;
    ObjectIdentity { resource: Arc::clone(resource), namespace: namespace.clone(), name: name.clone() }
}

impl Committer {
    /// Judges a change and adds it to the group.
    pub(super) fn stage(
        &mut self,
        change: Mutation,
        durable: bool,
        pending: &mut PendingCommit,
    ) -> Result<Arc<Object>, StoreWriteError> {
        let identity = identity_of(&change);
        if self.is_unreadable_now(&identity, pending) {
            return match change.value {
                None if change.expect == Expect::Any => self.clear(identity, pending),
                Some(_) if matches!(change.expect, Expect::Any | Expect::Absent) => Err(StoreWriteError::Exists),
                _ => Err(StoreWriteError::NotFound),
            };
        }
        let staged = self.judge_change(change, durable, pending, GroupAhead::default())?;
        Ok(self.put(staged, durable, pending))
    }

    /// Two changes of two objects, of which either both are made or none.
    pub(super) fn stage_both(
        &mut self,
        first: Mutation,
        change: Mutation,
        durable: bool,
        pending: &mut PendingCommit,
    ) -> Result<Arc<Object>, StoreWriteError> {
        if [&first, &change].into_iter().any(|one| self.is_unreadable_now(&identity_of(one), pending)) {
            return Err(StoreWriteError::Exists);
        }
        let first = self.judge_change(first, durable, pending, GroupAhead::default())?;
        let ahead = GroupAhead { revisions: 1, bytes: first.bytes() };
        let second = self.judge_change(change, durable, pending, ahead)?;
        self.put(first, durable, pending);
        Ok(self.put(second, durable, pending))
    }

    /// Whether there is an object that cannot be read, and that nobody has changed in this group.
    fn is_unreadable_now(&self, identity: &ObjectIdentity, pending: &PendingCommit) -> bool {
        !pending.overlay.contains_key(identity)
            && self.shared.read().get(&identity.resource, &identity.namespace, &identity.name).is_none()
            && self.is_unreadable(identity)
    }

    /// Whether a change may be made, and what it comes to. Nothing is changed by it.
    fn judge_change(
        &mut self,
        change: Mutation,
        durable: bool,
        pending: &PendingCommit,
        ahead: GroupAhead,
    ) -> Result<StagedChange, StoreWriteError> {
        let identity = identity_of(&change);
        let Mutation { expect, value, .. } = change;
        let current = match pending.overlay.get(&identity) {
            Some(current) => current.clone(),
            None => self.shared.read().get(&identity.resource, &identity.namespace, &identity.name).cloned(),
        };
        let current = judge(expect, current, value.is_none())?;
        if self.durable.get(&identity.resource).is_some_and(|one| *one != durable) {
            return Err(StoreWriteError::Malformed("the objects of its resource are kept otherwise"));
        }
        let revision = self.revision + 1 + ahead.revisions;
        let bytes = pending.bytes + ahead.bytes;
        // One of the largest size can be marked as well.
        let limit = OBJECT_LIMIT + if current.is_some() { GROWTH } else { 0 };
        let made = value.map(|value| self.writer.make(&identity, revision, value, limit)).transpose()?;
        let sizes = [&made, &current].map(|object| object.as_deref().map_or(0, record::size));
        // The object and its event, which has the former self.
        let fits = !durable || !self.is_overgrown && self.disk.has_room(bytes + sizes[0] + sizes[1]);
        #[cfg(test)]
        let fits = fits && !(durable && self.shared.full.load(std::sync::atomic::Ordering::Relaxed));
        let low = durable && (self.disk.is_low() || !fits);
        if durable && made.is_none() && !self.disk.has_last_room(bytes, true) {
            return Err(StoreWriteError::Full);
        }
        if durable && let Some(made) = &made {
            // Packed: of two texts of one length, one may take much more.
            let crowded = {
                let kept = self.shared.read();
                let before = current.as_deref().map_or(0, |current| kept.weight_of_text(current));
                let more = kept.weight_of_text(made).saturating_sub(before);
                kept.crowded(&identity.namespace, more, made.is_ending())
            };
            if let Some(crowded) = crowded {
                return Err(crowded);
            }
            if !fits || (grows(current.as_deref(), made) && !self.may_grow(low, bytes + sizes[0])) {
                return Err(StoreWriteError::Full);
            }
        }

        let deleted = if made.is_none() { current.clone() } else { None };
        let (event, former) = match (&made, current) {
            (Some(made), None) => (StoreEvent::Added(Arc::clone(made)), FormerRecord::Added),
            (Some(made), Some(previous)) => (
                StoreEvent::Modified { object: Arc::clone(made), previous: Arc::clone(&previous) },
                FormerRecord::Modified(previous),
            ),
            (None, Some(previous)) => {
                (StoreEvent::Deleted(self.writer.move_to(&previous, revision)?), FormerRecord::Deleted(previous))
            }
            (None, None) => return Err(StoreWriteError::NotFound),
        };
        Ok(StagedChange { identity, revision, made, deleted, event, former, low })
    }

    /// Adds a change to the group.
    fn put(&mut self, staged: StagedChange, durable: bool, pending: &mut PendingCommit) -> Arc<Object> {
        let StagedChange { identity, revision, made, deleted, event, former, low } = staged;
        let result = Arc::clone(event.object());
        self.revision = revision;
        if !self.durable.contains_key(&identity.resource) {
            self.durable.insert(Arc::clone(&identity.resource), durable);
        }
        let stored = if !durable {
            self.prepare_memory(&identity.resource, pending);
            None
        } else {
            pending.bytes += pending.disk.object(&identity, made.as_deref(), self.disk.sealer());
            Some(if low {
                // The event's former self would take the room that a deletion is to give back. So the history ends here:
                // who watches lists again.
                pending.disk.revision(revision);
                pending.forget(&identity.resource, revision);
                0
            } else {
                pending.disk.event(&identity, revision, &former, self.disk.sealer())
            })
        };
        // In memory, and in the log on disk.
        pending.bytes += result.size() + stored.unwrap_or(0);
        pending.index.events.push(Logged { revision, event, deleted, stored, since: Instant::now() });
        pending.overlay.insert(identity, made);
        result
    }
}

/// What an object may grow by when the disk is full, in bytes of JSON: a status that says so, a mark of its deletion.
const GROWTH: usize = 1024;

/// Whether a change takes room that is not to be given back.
fn grows(current: Option<&Object>, made: &Object) -> bool {
    current.is_none_or(|current| made.json_len() > current.json_len() + GROWTH)
}

/// Whether a change may be made; gives back what is there.
fn judge(expect: Expect, current: Option<Arc<Object>>, deletes: bool) -> Result<Option<Arc<Object>>, StoreWriteError> {
    match (expect, &current) {
        (Expect::Absent, Some(_)) => Err(StoreWriteError::Exists),
        (Expect::Revision(_) | Expect::Present, None) => Err(StoreWriteError::NotFound),
        (Expect::Revision(expected), Some(object)) if object.revision != expected => {
            Err(StoreWriteError::Conflict { expected, actual: object.revision })
        }
        (Expect::Absent | Expect::Any, None) if deletes => Err(StoreWriteError::NotFound),
        _ => Ok(current),
    }
}

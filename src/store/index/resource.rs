//! What is kept of one resource: its objects, and the events that watches can still get.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::frames::put_size;
use crate::store::object::OBJECT_WEIGHT;
use crate::store::object::Object;
use crate::store::record::{self, FormerRecord};
use crate::store::retired::Retired;
use crate::store::types::StoreEvent;

/// What the events of one resource may hold in memory and on disk, in bytes: 16 MiB, some 8,000 changes of an inspected host.
/// Several of the largest groups that are written at once, for who follows a resource must have the time to read them: else
/// whoever writes large objects would end the watches of all others.
pub(in crate::store) const HISTORY_BYTES: usize = 16 << 20;
/// What events that have been there for a while may hold of it, in bytes: 2 MiB, some 1,000 changes of an inspected host. Who
/// follows has long read them.
const OLD_HISTORY_BYTES: usize = 2 << 20;
/// So long events are new: whoever follows the resource may still be reading them.
const NEW: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 4 });
/// What an event takes besides the text of its object, in bytes.
const EVENT_WEIGHT: usize = 512;

/// Part of its text that an object weighs at least: one letter again and again packs to nothing, and is unpacked by whoever
/// lists it.
const PART_OF_TEXT: usize = 16;

/// What an object takes as it is kept, in bytes, packed or not.
pub(super) fn weight(object: &Object) -> usize {
    (record::size(object) + object.unpacked()).max(object.json_len() / PART_OF_TEXT)
}

/// One event that watches can still get.
pub(in crate::store) struct Logged {
    pub revision: u64,
    pub event: StoreEvent,
    /// For a deletion, the object as it was before; the event itself has it at the revision of the deletion.
    pub deleted: Option<Arc<Object>>,
    /// Bytes of it on disk; `None` when neither it nor its object is there.
    pub stored: Option<usize>,
    /// When it became visible, or was read from disk.
    pub since: Instant,
}

impl Logged {
    /// The object before this event.
    pub(super) fn previous(&self) -> Option<&Arc<Object>> {
        match &self.event {
            StoreEvent::Added(_) => None,
            StoreEvent::Modified { previous, .. } => Some(previous),
            StoreEvent::Deleted(_) => self.deleted.as_ref(),
        }
    }

    /// What the log on disk says of it.
    pub fn former(&self) -> FormerRecord {
        match (&self.event, self.previous()) {
            (StoreEvent::Modified { .. }, Some(previous)) => FormerRecord::Modified(Arc::clone(previous)),
            (StoreEvent::Deleted(_), Some(previous)) => FormerRecord::Deleted(Arc::clone(previous)),
            _ => FormerRecord::Added,
        }
    }

    /// Bytes that it takes in memory or on disk, whichever is more: there it has the former self.
    pub(super) fn bytes(&self) -> usize {
        let object = self.event.object();
        EVENT_WEIGHT + (object.size() + object.unpacked()).max(self.stored.unwrap_or(0))
    }

    /// Bytes that it takes on disk.
    pub(super) fn disk_bytes(&self) -> usize {
        match self.stored {
            Some(bytes) if bytes > 0 => put_size(size_of::<u64>(), bytes),
            _ => 0,
        }
    }
}

/// Bytes that an object takes on disk.
pub(super) fn disk_bytes(object: &Object) -> usize {
    put_size(object.namespace.len() + 1 + object.name.len(), record::size(object))
}

/// Objects and events of one resource.
pub(in crate::store) struct ResourceIndex {
    // Namespace, then name: looked up by `&str`, listed in order.
    pub(super) objects: BTreeMap<String, BTreeMap<String, Arc<Object>>>,
    pub(super) count: usize,
    pub(super) events: VecDeque<Logged>,
    pub(super) event_bytes: usize,
    /// Bytes of all that on disk.
    pub(super) disk_bytes: usize,
    /// And of its events alone.
    pub(super) event_disk_bytes: usize,
    /// Whether its objects are in memory only.
    pub(super) published: bool,
    /// What each of its objects takes besides its text, in bytes.
    pub(super) each: usize,
    /// Whether those who follow it keep its objects parsed.
    pub(super) parsed: bool,
    /// Events up to this revision are not kept.
    pub(super) trimmed: u64,
}

impl ResourceIndex {
    pub(super) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            count: 0,
            events: VecDeque::new(),
            event_bytes: 0,
            disk_bytes: 0,
            event_disk_bytes: 0,
            published: false,
            each: OBJECT_WEIGHT,
            parsed: false,
            trimmed: 0,
        }
    }

    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// The first event after a revision.
    pub fn event_after(&self, revision: u64) -> Option<&Logged> {
        self.events.get(self.events.partition_point(|logged| logged.revision <= revision))
    }

    /// Puts an object; says what it weighs, and what its former self did.
    pub(super) fn insert(&mut self, object: Arc<Object>) -> (usize, usize) {
        self.disk_bytes += self.bytes_of(&object);
        let weight = self.weight_of(&object);
        let names = self.objects.entry(object.namespace.clone()).or_default();
        match names.insert(object.name.clone(), object) {
            None => {
                self.count += 1;
                (weight, 0)
            }
            Some(former) => {
                self.disk_bytes -= self.bytes_of(&former);
                (weight, self.weight_of(&former))
            }
        }
    }

    /// Removes an object; says what it weighed.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> usize {
        let Some(names) = self.objects.get_mut(namespace) else { return 0 };
        let removed = names.remove(name);
        if names.is_empty() {
            self.objects.remove(namespace);
        }
        let Some(former) = removed else { return 0 };
        self.count -= 1;
        self.disk_bytes -= self.bytes_of(&former);
        self.weight_of(&former)
    }

    /// What an object takes of memory or disk, whichever is more, roughly, in bytes; views of what is elsewhere are not counted.
    pub(super) fn weight_of(&self, object: &Object) -> usize {
        if self.published { 0 } else { self.weight_of_text(object) + self.each }
    }

    /// The same without what every object takes.
    pub(super) fn weight_of_text(&self, object: &Object) -> usize {
        weight(object) + if self.parsed { object.parsed() } else { 0 }
    }

    pub(super) fn bytes_of(&self, object: &Object) -> usize {
        if self.published { 0 } else { disk_bytes(object) }
    }

    /// Whether its objects are in memory only.
    pub fn is_published(&self) -> bool {
        self.published
    }

    /// Its objects, in order.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values().flat_map(BTreeMap::values)
    }

    /// Its events, oldest first.
    pub fn events(&self) -> impl Iterator<Item = &Logged> {
        self.events.iter()
    }

    pub(super) fn push(&mut self, logged: Logged) {
        self.event_bytes += logged.bytes();
        self.disk_bytes += logged.disk_bytes();
        self.event_disk_bytes += logged.disk_bytes();
        self.events.push_back(logged);
    }

    pub(super) fn drop_oldest(&mut self, retired: &Retired) {
        let Some(logged) = self.events.pop_front() else { return };
        // Neither is there any more, nor in the history: no event before this one is.
        if let Some(previous) = logged.previous() {
            previous.retire(retired);
        }
        if let StoreEvent::Deleted(object) = &logged.event {
            object.retire(retired);
        }
        self.event_bytes -= logged.bytes();
        self.disk_bytes -= logged.disk_bytes();
        self.event_disk_bytes -= logged.disk_bytes();
        self.trimmed = self.trimmed.max(logged.revision);
    }

    /// Drops the oldest events over the bounds.
    pub(super) fn trim(&mut self, history: usize, retired: &Retired, now: Instant) {
        while let Some(oldest) = self.events.front()
            && is_over(self.events.len(), self.event_bytes, history, now.saturating_duration_since(oldest.since))
        {
            self.drop_oldest(retired);
        }
    }
}

/// Whether the oldest of so many events of a resource, with so many bytes, is to be dropped: it has been there for `age`.
fn is_over(events: usize, bytes: usize, history: usize, age: Duration) -> bool {
    events > history || bytes > HISTORY_BYTES || (bytes > OLD_HISTORY_BYTES && age >= NEW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_may_take_more() {
        const MIB: usize = 1 << 20;
        let (new, old) = (Duration::ZERO, NEW);
        for (events, bytes, age, expected) in [
            (10, 2 * MIB, old, false),
            (10, 2 * MIB + 1, old, true),
            (10, 16 * MIB, new, false),
            (10, 16 * MIB + 1, new, true),
            (11, MIB, new, true),
        ] {
            assert_eq!(is_over(events, bytes, 10, age), expected, "{events} {bytes} {age:?}");
        }
    }
}

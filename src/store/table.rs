//! Tables: durable bytes beside the objects, through the same committer and the same flush.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::committer::CommitRequest;
use super::index::SharedStore;
use super::{KEY_LIMIT, OBJECT_LIMIT, StoreWriteError, TableEntry, TableItem};

/// Largest size of entries that are written together, keys and values, in bytes: 4 MiB.
const ENTRIES_LIMIT: usize = 4 << 20;

/// A table of bytes, which is in memory, too. Cheap to clone.
#[derive(Clone)]
pub struct StoreTable {
    name: Arc<str>,
    shared: Arc<SharedStore>,
    requests: mpsc::Sender<CommitRequest>,
}

impl StoreTable {
    pub(super) fn new(name: Arc<str>, shared: Arc<SharedStore>, requests: mpsc::Sender<CommitRequest>) -> Self {
        Self { name, shared, requests }
    }

    /// Every entry, in order of key.
    pub fn scan(&self) -> Vec<TableItem> {
        let index = self.shared.read();
        let entries = index.tables().get(&self.name).into_iter().flatten();
        entries.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Puts or removes an entry; returns once it is on disk. Many calls share one flush.
    ///
    /// Removing an entry that is not there succeeds. Calls made one after the other take effect in that order. When the
    /// future is dropped before it is done, the change may still be made.
    ///
    /// # Errors
    ///
    /// [`StoreWriteError::TooLarge`] for a key over 1 KiB or a value over 1 MiB; [`StoreWriteError::Full`] and
    /// [`StoreWriteError::Failed`] as for objects.
    pub async fn write(&self, key: Bytes, value: Option<Bytes>) -> Result<(), StoreWriteError> {
        self.write_all(vec![(key, value)]).await
    }

    /// As [`Self::write`] for many entries, in this order; returns once all are on disk. After a crash before that, all
    /// are there or none.
    ///
    /// # Errors
    ///
    /// As [`Self::write`]; when one entry is too large, or all together are larger than 4 MiB, none is written.
    pub async fn write_all(&self, entries: Vec<TableEntry>) -> Result<(), StoreWriteError> {
        for (key, value) in &entries {
            for (size, limit) in [(key.len(), KEY_LIMIT), (value.as_ref().map_or(0, Bytes::len), OBJECT_LIMIT)] {
                if size > limit {
                    return Err(StoreWriteError::TooLarge { size, limit });
                }
            }
        }
        let size = entries.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len)).sum();
        if size > ENTRIES_LIMIT {
            return Err(StoreWriteError::TooLarge { size, limit: ENTRIES_LIMIT });
        }
        self.shared.writable()?;
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(CommitRequest::Entries { table: Arc::clone(&self.name), entries, reply })
            .await
            .map_err(|_| self.shared.write_error())?;
        match answer.await {
            Ok(result) => result,
            Err(_) => Err(self.shared.unanswered().await),
        }
    }
}

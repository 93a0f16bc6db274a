//! Who visits: one record for each token that was used, on disk, so that none is used twice, not even after a restart.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::api::MacAddress;
use crate::store::{Store, Table, WriteError};

/// Name of the store's table.
const TABLE: &str = "discovery";
/// Visits kept; the oldest are forgotten. Their tokens have ended long before.
const KEPT: usize = 4096;

/// A machine that reports itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Visit {
    /// MAC address that its token was made for.
    pub mac: MacAddress,
    /// Address that its session was opened from.
    pub peer: String,
    /// Whether UEFI firmware started it.
    pub uefi: bool,
    /// Unix time in seconds.
    pub opened: i64,
    /// Whether it made a call after it was opened. Until then it may be opened again: the answer may be lost.
    pub used: bool,
    /// Whether its report was taken.
    pub reported: bool,
    /// Namespace and name of the host that its report became.
    pub host: Option<(String, String)>,
}

/// All visits.
pub struct Journal {
    table: Table,
    // std's lock: held for a map operation, never across an await.
    visits: Mutex<HashMap<[u8; 16], Visit>>,
}

impl Journal {
    /// Reads what was written; a record that cannot be read is left out.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub fn open(store: &Store) -> Result<Self, WriteError> {
        let table = store.table(TABLE)?;
        let read = |(key, value): (Bytes, Bytes)| {
            Some((<[u8; 16]>::try_from(key.as_ref()).ok()?, serde_json::from_slice(&value).ok()?))
        };
        let visits = table.scan().into_iter().filter_map(read).collect();
        Ok(Self { table, visits: Mutex::new(visits) })
    }

    fn visits(&self) -> MutexGuard<'_, HashMap<[u8; 16], Visit>> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The visit that a token opened.
    pub fn get(&self, nonce: &[u8; 16]) -> Option<Visit> {
        self.visits().get(nonce).cloned()
    }

    /// Whether a report became this host, by the visit of which it has the number.
    pub fn has_made(&self, namespace: &str, name: &str, visit: &str) -> bool {
        let nonce = u128::from_str_radix(visit, 16).map(u128::to_be_bytes).unwrap_or_default();
        let host = self.visits().get(&nonce).and_then(|visit| visit.host.clone());
        host.is_some_and(|(of, made)| of == namespace && made == name)
    }

    /// Keeps a visit; it is on disk when this returns.
    ///
    /// # Errors
    ///
    /// When the store cannot write. The visit is kept until the process ends all the same: better no second session
    /// than two.
    pub async fn put(&self, nonce: [u8; 16], visit: Visit) -> Result<(), WriteError> {
        let value = serde_json::to_vec(&visit).map_err(|error| WriteError::Failed(error.to_string()))?;
        let oldest = {
            let mut visits = self.visits();
            visits.insert(nonce, visit);
            let surplus = visits.len() > KEPT;
            let oldest = surplus.then(|| visits.iter().min_by_key(|(_, visit)| visit.opened).map(|(nonce, _)| *nonce));
            oldest.flatten().inspect(|nonce| {
                visits.remove(nonce);
            })
        };
        if let Some(oldest) = oldest {
            self.table.write(Bytes::copy_from_slice(&oldest), None).await?;
        }
        self.table.write(Bytes::copy_from_slice(&nonce), Some(value.into())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    #[tokio::test]
    async fn visits_outlive_the_process_and_are_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || {
            let path = folder.path().join("db");
            Store::open(StoreOptions { path, key_file: folder.path().join("key"), history: 10 }).expect("opens")
        };
        let visit = |opened: i64| Visit {
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            peer: "10.0.0.5".into(),
            uefi: true,
            opened,
            used: false,
            reported: false,
            host: None,
        };
        let nonce = |number: usize| {
            let mut nonce = [0; 16];
            nonce[..8].copy_from_slice(&number.to_be_bytes());
            nonce
        };
        let store = open();
        let journal = Journal::open(&store).expect("opens");
        let all = (0..KEPT + 3).map(|number| journal.put(nonce(number), visit(number as i64)));
        for kept in futures::future::join_all(all).await {
            kept.expect("written");
        }
        store.close().await;
        drop((journal, store));
        let store = open();
        let journal = Journal::open(&store).expect("opens");
        assert_eq!(journal.visits().len(), KEPT);
        assert_eq!(journal.get(&nonce(2)), None, "the oldest went");
        assert_eq!(journal.get(&nonce(KEPT)), Some(visit(KEPT as i64)));
        store.close().await;
    }
}

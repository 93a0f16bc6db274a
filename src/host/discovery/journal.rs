//! The journal of visits: one record for each token that was used, on disk, so that none is used twice, not even after a restart.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::api::MacAddress;
use crate::store::{Store, StoreTable, StoreWriteError};

/// Name of the store's table.
const TABLE: &str = "discovery";
/// Visits kept; of more some are forgotten ([`gives_way`]).
const KEPT: usize = 4096;
/// Of these so many that became hosts.
const KEPT_MADE: usize = KEPT / 4 * 3;
/// Seconds after which a visit's token has ended, and its session has had the time to report.
const OVER: i64 = 2 * 60 * 60;

/// A machine that reports itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineVisit {
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
pub struct VisitJournal {
    table: StoreTable,
    // std's lock: held for a map operation, never across an await.
    visits: Mutex<HashMap<[u8; 16], MachineVisit>>,
}

impl VisitJournal {
    /// Reads what was written; a record that cannot be read is left out.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub fn open(store: &Store) -> Result<Self, StoreWriteError> {
        let table = store.table(TABLE)?;
        let read = |(key, value): (Bytes, Bytes)| {
            Some((<[u8; 16]>::try_from(key.as_ref()).ok()?, serde_json::from_slice(&value).ok()?))
        };
        let visits = table.scan().into_iter().filter_map(read).collect();
        Ok(Self { table, visits: Mutex::new(visits) })
    }

    fn visits(&self) -> MutexGuard<'_, HashMap<[u8; 16], MachineVisit>> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The visit that a token opened.
    pub fn get(&self, nonce: &[u8; 16]) -> Option<MachineVisit> {
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
    pub async fn put(&self, nonce: [u8; 16], visit: MachineVisit) -> Result<(), StoreWriteError> {
        let value = serde_json::to_vec(&visit).map_err(|error| StoreWriteError::Failed(error.to_string()))?;
        let forgotten = {
            let mut visits = self.visits();
            let now = visit.opened;
            visits.insert(nonce, visit);
            let surplus = visits.len() > KEPT;
            let forgotten = surplus.then(|| gives_way(&visits, &nonce, now)).flatten();
            forgotten.inspect(|nonce| drop(visits.remove(nonce)))
        };
        if let Some(forgotten) = forgotten {
            self.table.write(Bytes::copy_from_slice(&forgotten), None).await?;
        }
        self.table.write(Bytes::copy_from_slice(&nonce), Some(value.into())).await
    }
}

/// The visit that is forgotten, never the newest: of those that are over and became nothing the oldest; else, of those that
/// became hosts the oldest, when these are too many; else the oldest of the address that has most. Strangers can begin as many
/// visits as they like, and whoever means well has few.
fn gives_way(visits: &HashMap<[u8; 16], MachineVisit>, newest: &[u8; 16], now: i64) -> Option<[u8; 16]> {
    let mut of_peer: HashMap<&str, usize> = HashMap::new();
    let mut made = 0;
    for visit in visits.values() {
        *of_peer.entry(visit.peer.as_str()).or_default() += usize::from(visit.host.is_none());
        made += usize::from(visit.host.is_some());
    }
    let rank = |visit: &MachineVisit| {
        let is_over = visit.reported || now.saturating_sub(visit.opened) > OVER;
        match &visit.host {
            Some(_) => (usize::from(made > KEPT_MADE) * 2, 0),
            None if is_over => (3, 0),
            None => (1, of_peer.get(visit.peer.as_str()).copied().unwrap_or_default()),
        }
    };
    let others = visits.iter().filter(|(nonce, _)| *nonce != newest);
    others.max_by_key(|(nonce, visit)| (rank(visit), Reverse(visit.opened), **nonce)).map(|(nonce, _)| *nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    #[test]
    fn strangers_who_begin_many_visits_end_nobody_elses() {
        let visit = |peer: &str, opened: i64, reported: bool, host: Option<&str>| MachineVisit {
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            peer: peer.into(),
            uefi: true,
            opened,
            used: true,
            reported,
            host: host.map(|name| ("default".to_owned(), name.to_owned())),
        };
        let nonce = |number: u8| [number; 16];
        let honest = visit("10.0.0.5", 100, false, None);
        let mut visits = HashMap::from([
            (nonce(1), honest.clone()),
            (nonce(2), visit("10.0.0.6", 50, true, Some("made"))),
            (nonce(3), visit("10.0.0.9", 300, true, None)),
            (nonce(4), visit("10.0.0.9", 200, true, None)),
            (nonce(5), visit("10.0.0.66", 200, false, None)),
            (nonce(6), visit("10.0.0.66", 250, false, None)),
            (nonce(7), visit("10.0.0.66", 10, false, None)),
        ]);
        // The newest is never forgotten, also when the clock stands back.
        for wanted in [4, 3, 5, 6] {
            let gone = gives_way(&visits, &nonce(7), 300).expect("one");
            assert_eq!(gone, nonce(wanted));
            visits.remove(&gone);
        }
        visits.insert(nonce(8), visit("10.0.0.7", 300 + OVER, false, None));
        assert_eq!(gives_way(&visits, &nonce(8), 300 + OVER), Some(nonce(7)), "it is over");
        visits.remove(&nonce(7));
        assert_eq!(gives_way(&visits, &nonce(8), 300), Some(nonce(1)), "there is nothing else");
    }

    #[tokio::test]
    async fn visits_outlive_the_process_and_are_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || {
            let path = folder.path().join("db");
            Store::open(StoreOptions { path, key_file: folder.path().join("key"), history: 10 }).expect("opens")
        };
        let visit = |opened: i64| MachineVisit {
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
        let journal = VisitJournal::open(&store).expect("opens");
        let all = (0..KEPT + 3).map(|number| journal.put(nonce(number), visit(number as i64)));
        for kept in futures::future::join_all(all).await {
            kept.expect("written");
        }
        store.close().await;
        drop((journal, store));
        let store = open();
        let journal = VisitJournal::open(&store).expect("opens");
        assert_eq!(journal.visits().len(), KEPT);
        assert_eq!(journal.get(&nonce(2)), None, "the oldest went");
        assert_eq!(journal.get(&nonce(KEPT)), Some(visit(KEPT as i64)));
        store.close().await;
    }
}

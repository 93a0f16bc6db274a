//! Eviction of logs: how much room they take, and which one goes when there is no more. Pure: the files are the caller's.
//!
//! Namespaces share the room: of the one that has most the log goes that nothing was added to for longest. So who writes
//! without end, with however many hosts, loses logs of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a log takes beside its bytes: its entry in a folder, that folder, and the rest of its last block.
const BESIDE: u64 = 8 << 10;

/// Which log: namespace, host, generation of the boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogKey {
    /// Namespace of the host.
    pub namespace: String,
    /// Name of the host.
    pub host: String,
    /// Generation of the boot intent.
    pub generation: i64,
}

/// The logs that there are.
#[derive(Debug)]
pub(super) struct Quota {
    most: u64,
    total: u64,
    hosts: HashMap<(String, String), BTreeMap<i64, KeptLog>>,
    namespaces: HashMap<String, Namespace>,
    /// Bytes and name of each namespace.
    by_size: BTreeSet<(u64, String)>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct KeptLog {
    size: u64,
    /// Grows with each addition to any log.
    added: u64,
}

#[derive(Debug, Default)]
struct Namespace {
    bytes: u64,
    /// By the last addition.
    oldest: BTreeSet<(u64, String, i64)>,
}

impl Quota {
    /// Room for so many bytes.
    pub fn new(most: u64) -> Self {
        let (hosts, namespaces) = (HashMap::new(), HashMap::new());
        Self { most, total: 0, hosts, namespaces, by_size: BTreeSet::new(), last: 0 }
    }

    /// A log has this size now, and was the last that something was added to.
    pub fn put(&mut self, log: &LogKey, size: u64) {
        self.remove(log);
        self.last += 1;
        let kept = KeptLog { size: size.saturating_add(BESIDE), added: self.last };
        let host = (log.namespace.clone(), log.host.clone());
        self.hosts.entry(host).or_default().insert(log.generation, kept);
        self.change(&log.namespace, |namespace| {
            namespace.bytes += kept.size;
            namespace.oldest.insert((kept.added, log.host.clone(), log.generation));
        });
        self.total += kept.size;
    }

    /// A log is gone.
    pub fn remove(&mut self, log: &LogKey) {
        let host = (log.namespace.clone(), log.host.clone());
        let Some(boots) = self.hosts.get_mut(&host) else { return };
        let Some(kept) = boots.remove(&log.generation) else { return };
        if boots.is_empty() {
            self.hosts.remove(&host);
        }
        self.change(&log.namespace, |namespace| {
            namespace.bytes -= kept.size;
            namespace.oldest.remove(&(kept.added, log.host.clone(), log.generation));
        });
        self.total -= kept.size;
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Namespace)) {
        let namespace = self.namespaces.entry(name.to_owned()).or_default();
        self.by_size.remove(&(namespace.bytes, name.to_owned()));
        change(namespace);
        if namespace.oldest.is_empty() {
            self.namespaces.remove(name);
        } else {
            self.by_size.insert((namespace.bytes, name.to_owned()));
        }
    }

    /// Logs of a host: generation and bytes, the newest first.
    pub fn of(&self, namespace: &str, host: &str) -> Vec<(i64, u64)> {
        let boots = self.hosts.get(&(namespace.to_owned(), host.to_owned()));
        let boots = boots.into_iter().flatten().rev();
        boots.map(|(generation, kept)| (*generation, kept.size - BESIDE)).collect()
    }

    /// The log that goes, when there are more bytes than there is room for; never this one.
    pub fn surplus(&self, but: &LogKey) -> Option<LogKey> {
        if self.total <= self.most {
            return None;
        }
        self.by_size.iter().rev().find_map(|(_, name)| {
            let logs = self.namespaces.get(name)?.oldest.iter();
            let mut logs = logs.map(|(_, host, generation)| LogKey {
                namespace: name.clone(),
                host: host.clone(),
                generation: *generation,
            });
            logs.find(|log| log != but)
        })
    }

    /// Changes how many bytes there is room for.
    #[cfg(test)]
    pub fn limit(&mut self, most: u64) {
        self.most = most;
    }

    /// What all take together, in bytes.
    #[cfg(test)]
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(namespace: &str, host: &str, generation: i64) -> LogKey {
        LogKey { namespace: namespace.into(), host: host.into(), generation }
    }

    #[test]
    fn who_has_most_loses_the_log_that_nothing_was_added_to_for_longest() {
        const SIZE: u64 = 100 << 10;
        let one = SIZE + BESIDE;
        let mut room = Quota::new(10 * one);
        let quiet = log("good", "h", 1);
        room.put(&quiet, SIZE);
        for generation in 0..9 {
            room.put(&log("bad", "a", generation), SIZE);
            assert_eq!(room.surplus(&quiet), None);
        }
        // Something is added to the oldest.
        room.put(&log("bad", "a", 0), SIZE);
        let new = log("bad", "b", 1);
        room.put(&new, SIZE);
        assert_eq!(room.surplus(&new), Some(log("bad", "a", 1)), "not the good one's, which is older");
        room.remove(&log("bad", "a", 1));
        assert_eq!((room.surplus(&new), room.total()), (None, 10 * one));
        // The last of a namespace does not go for itself.
        let mut room = Quota::new(one);
        room.put(&log("a", "h", 1), SIZE);
        room.put(&log("b", "h", 1), 2 * SIZE);
        assert_eq!(room.surplus(&log("b", "h", 1)), Some(log("a", "h", 1)));
        assert_eq!(room.of("b", "h"), [(1, 2 * SIZE)]);
        room.remove(&log("a", "h", 1));
        room.remove(&log("b", "h", 1));
        room.remove(&log("b", "h", 1));
        assert!(room.total() == 0 && room.hosts.is_empty() && room.namespaces.is_empty() && room.by_size.is_empty());
    }

    /// A fleet's logs, each of them added to again and again, with no work that grows with their number.
    #[test]
    fn many_logs_are_counted_one_by_one() {
        let mut room = Quota::new(u64::MAX);
        for round in 0..5 {
            for number in 0..20_000_u64 {
                let log = log(&format!("n{}", number % 7), &format!("h{number}"), 1);
                room.put(&log, round);
                assert_eq!(room.surplus(&log), None);
            }
        }
        assert_eq!(room.total(), 20_000 * (BESIDE + 4));
    }
}

//! Recording of registrations, one machine at a time (docs/design/host.md, "Whose machine it is").
//!
//! Two hosts that name one machine are decided upon at once, each before the other's record is known here: records go to the API
//! and come back by the watch. Who is about to record a machine is known at once, so that only one of them does.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::api::MacAddress;
use crate::api::slipway::Registration;
use crate::bmc::BmcAddress;

/// So long a record that does not show in the index is waited for: the watch is away, or nothing was written.
const SHOWN: Duration = Duration::from_secs(60);

/// A machine that a host is to be recorded with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claimed {
    /// UID of the host.
    pub uid: String,
    pub mac: Option<MacAddress>,
    /// `spec.bmc.address`, when it is one.
    pub bmc: Option<BmcAddress>,
}

impl Claimed {
    /// Of the host with this UID, as it is recorded.
    pub fn of(uid: &str, record: &Registration) -> Self {
        Self {
            uid: uid.to_owned(),
            mac: record.boot_mac_address.parse().ok(),
            bmc: BmcAddress::parse(&record.bmc_address).ok(),
        }
    }

    fn names_the_same(&self, other: &Self, same_bmc: impl Fn(&BmcAddress, &BmcAddress) -> bool) -> bool {
        let bmcs = self.bmc.as_ref().zip(other.bmc.as_ref());
        (self.mac.is_some() && self.mac == other.mac) || bmcs.is_some_and(|(a, b)| same_bmc(a, b))
    }
}

/// Machines that are being recorded.
#[derive(Default)]
pub(in crate::host) struct Recording(Mutex<Vec<(Claimed, Instant)>>);

/// What is known of other records.
pub(super) trait OtherRecords {
    /// Whether the index has this record, or its host is gone.
    fn shows(&self, claimed: &Claimed) -> bool;
    /// Whether the index has another host as the owner of this machine.
    fn is_anothers(&self, claimed: &Claimed) -> bool;
    /// Whether two addresses are of one machine.
    fn is_same_bmc(&self, a: &BmcAddress, b: &BmcAddress) -> bool;
}

impl Recording {
    /// Whether this host may be recorded with the machine now. Then no other one may, until the index shows it.
    pub(super) fn begin(&self, claimed: &Claimed, shown: &impl OtherRecords, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the index is asked for owners: what it does not show now is kept.
        all.retain(|(other, since)| now.saturating_duration_since(*since) < SHOWN && !shown.shows(other));
        let same = |a: &BmcAddress, b: &BmcAddress| shown.is_same_bmc(a, b);
        let is_taken =
            |(other, _): &(Claimed, Instant)| other.uid != claimed.uid && other.names_the_same(claimed, same);
        if all.iter().any(is_taken) || shown.is_anothers(claimed) {
            return false;
        }
        all.retain(|(other, _)| other.uid != claimed.uid);
        all.push((claimed.clone(), now));
        true
    }

    /// Nothing was written of it.
    pub(super) fn give_up(&self, claimed: &Claimed) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| other != claimed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Barrier;

    use super::*;

    /// An index, by UID.
    #[derive(Default)]
    struct Index(Mutex<HashMap<String, Claimed>>);

    impl OtherRecords for Index {
        fn shows(&self, claimed: &Claimed) -> bool {
            self.0.lock().unwrap().get(&claimed.uid) == Some(claimed)
        }

        fn is_anothers(&self, claimed: &Claimed) -> bool {
            let same = |a: &BmcAddress, b: &BmcAddress| self.is_same_bmc(a, b);
            self.0.lock().unwrap().values().any(|other| other.uid != claimed.uid && other.names_the_same(claimed, same))
        }

        fn is_same_bmc(&self, a: &BmcAddress, b: &BmcAddress) -> bool {
            a.peer() == b.peer()
        }
    }

    fn claimed(uid: &str, mac: &str, bmc: &str) -> Claimed {
        let record = Registration { boot_mac_address: mac.into(), bmc_address: bmc.into(), ..Registration::default() };
        Claimed::of(uid, &record)
    }

    const MAC: &str = "02:00:00:00:00:01";
    const OTHER: &str = "02:00:00:00:00:02";

    #[test]
    fn one_of_two_is_recorded_whenever_the_watch_shows_it() {
        let (recording, index, now) = (Recording::default(), Index::default(), Instant::now());
        let (first, second) = (claimed("a", MAC, "ipmi://10.0.0.1"), claimed("b", MAC, "ipmi://10.0.0.2"));
        assert!(recording.begin(&first, &index, now));
        // Decided upon before the first one's record is known.
        assert!(!recording.begin(&second, &index, now));
        assert!(recording.begin(&first, &index, now), "it may be done twice");
        // It is known now.
        index.0.lock().unwrap().insert("a".into(), first.clone());
        assert!(!recording.begin(&second, &index, now));
        index.0.lock().unwrap().remove("a");
        assert!(recording.begin(&second, &index, now), "the first one names another machine since");
    }

    #[test]
    fn other_machines_and_what_was_not_written_hold_up_nobody() {
        let (recording, index, now) = (Recording::default(), Index::default(), Instant::now());
        let first = claimed("a", MAC, "ipmi://10.0.0.1");
        assert!(recording.begin(&first, &index, now));
        for (mac, bmc, wanted) in [
            (MAC, "", false),
            (OTHER, "ipmi://10.0.0.1", false),
            (OTHER, "ipmi://10.0.0.3", true),
            ("", "", true),
            ("none", "none", true),
        ] {
            assert_eq!(recording.begin(&claimed("b", mac, bmc), &index, now), wanted, "{mac} {bmc}");
        }
        let second = claimed("c", MAC, "ipmi://10.0.0.1");
        assert!(!recording.begin(&second, &index, now + SHOWN - Duration::from_millis(1)));
        recording.give_up(&first);
        assert!(recording.begin(&second, &index, now));
        assert!(!recording.begin(&first, &index, now));
        assert!(recording.begin(&first, &index, now + SHOWN), "a watch that is away is not waited for without end");
    }

    #[test]
    fn of_many_at_once_one_is_recorded() {
        const MANY: usize = 8;
        for _ in 0..200 {
            let (recording, index, barrier) = (Recording::default(), Index::default(), Barrier::new(MANY));
            let recorded: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..MANY)
                    .map(|number| {
                        let (recording, index, barrier) = (&recording, &index, &barrier);
                        scope.spawn(move || {
                            let own = claimed(&number.to_string(), MAC, "");
                            barrier.wait();
                            let may = recording.begin(&own, index, Instant::now());
                            if may {
                                // The watch tells of it.
                                index.0.lock().unwrap().insert(own.uid.clone(), own);
                            }
                            usize::from(may)
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(recorded, 1);
        }
    }
}

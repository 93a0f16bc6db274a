//! Ownership of MAC addresses: one rule for DHCP, booting, sessions and the reconciler.

use std::cmp::Ordering;
use std::sync::Arc;

/// How good a host's claim of a MAC address is. Of two the smaller one has the address.
///
/// A boot address goes before what somebody wrote into a host as its hardware, and a host that was registered with this very
/// address before one that only names it. A network card that an agent reported counts as a boot address from then on: whoever
/// has a machine has all of it. Of two registered ones the one has it that was registered first, which is recorded: a restart, a new
/// leader and a restored backup find the same order. Of two others the one that claimed it first while this process ran,
/// then the older one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootClaim {
    /// The host reported itself and was not accepted yet.
    pub waiting: bool,
    /// It is no boot address, and no agent reported it: it is written in the host's hardware.
    pub card: bool,
    /// The host was not registered with the machine that it names now.
    pub unregistered: bool,
    /// When it was registered with it, Unix time in milliseconds; 0 where that does not count.
    pub registered: i64,
    /// Number of the claim since the start; 0 for those that were there then.
    pub since: u64,
    /// When the host was made, Unix time in seconds.
    pub created: i64,
    /// UID of the host.
    pub uid: Arc<str>,
}

impl BootClaim {
    /// One that no other is better than.
    pub(super) fn best() -> Self {
        let (waiting, card, unregistered) = (false, false, false);
        Self { waiting, card, unregistered, registered: i64::MIN, since: 0, created: i64::MIN, uid: "".into() }
    }

    fn parts(&self) -> (bool, bool, bool, i64, u64, i64, &str) {
        (self.waiting, self.card, self.unregistered, self.registered, self.since, self.created, &self.uid)
    }
}

impl Ord for BootClaim {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for BootClaim {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Numbers claims in the order in which they came. Those of the first list came in no order.
#[derive(Debug, Default)]
pub struct ClaimOrder {
    listed: bool,
    last: u64,
}

impl ClaimOrder {
    /// The first list is complete.
    pub fn settle(&mut self) {
        self.listed = true;
    }

    /// Whether the first list is complete.
    pub fn is_settled(&self) -> bool {
        self.listed
    }

    /// The number of a claim: the one that the host has for this address already, or the next.
    pub fn since(&mut self, already: Option<u64>) -> u64 {
        already.unwrap_or_else(|| {
            self.last += u64::from(self.listed);
            self.last
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first() {
        let claim = |waiting, card, unregistered, registered, since, created, uid: &str| BootClaim {
            waiting,
            card,
            unregistered,
            registered,
            since,
            created,
            uid: uid.into(),
        };
        // Each row goes before the next.
        let rows = [
            claim(false, false, false, 5, 7, 2, "b"),
            claim(false, false, false, 6, 0, 1, "a"),
            claim(false, false, false, 6, 0, 1, "b"),
            claim(false, false, false, 6, 0, 2, "a"),
            claim(false, false, false, 6, 7, 1, "a"),
            claim(false, false, true, 0, 0, 1, "a"),
            claim(false, false, true, 0, 7, 1, "a"),
            claim(false, true, false, 0, 0, 1, "a"),
            claim(true, false, true, 0, 0, 1, "a"),
        ];
        assert!(rows.windows(2).all(|pair| pair[0] < pair[1]));
        let mut order = ClaimOrder::default();
        assert_eq!((order.since(None), order.since(None)), (0, 0));
        order.settle();
        assert_eq!((order.since(None), order.since(Some(0)), order.since(None), order.since(Some(1))), (1, 0, 2, 1));
    }
}

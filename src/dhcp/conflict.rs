//! Checks of declined addresses: whether another machine uses a known machine's address, as a message says.
//!
//! Such a DHCPDECLINE can be sent by anybody who knows the machine's MAC address. So the appliance looks for itself: it sends
//! something there, which makes the kernel ask by ARP, and then looks which card answers. Pure; time is a parameter.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::api::MacAddress;

use super::outcome::LeaseWrite;
use super::record;
use super::table::{Lease, LeaseState, LeaseTable, QUARANTINE};

/// Seconds that an answer by ARP is waited for.
const ANSWERS_WITHIN: u64 = 2;
/// Addresses that are looked at at once; a client declines again what it is given again.
const MOST: usize = 1024;

/// A check of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictCheck {
    /// The address.
    pub address: Ipv4Addr,
    /// The known machine that has it.
    pub mac: MacAddress,
    /// Number of the network.
    pub network: usize,
    since: u64,
}

/// The checks under way.
#[derive(Debug, Default)]
pub struct ConflictChecks(HashMap<Ipv4Addr, ConflictCheck>);

impl ConflictChecks {
    /// Starts a check. Whether it is new, so that something is to be sent there.
    pub fn start(&mut self, now: u64, network: usize, mac: MacAddress, address: Ipv4Addr) -> bool {
        if self.0.len() >= MOST || self.0.contains_key(&address) {
            return false;
        }
        self.0.insert(address, ConflictCheck { address, mac, network, since: now }).is_none()
    }

    /// Ends those of which it is known by now who answers there.
    pub fn due(&mut self, now: u64) -> Vec<ConflictCheck> {
        let due = self.0.extract_if(|_, check| now >= check.since.saturating_add(ANSWERS_WITHIN) || now < check.since);
        due.map(|(_, check)| check).collect()
    }
}

/// Whether another machine than the one with these cards answers. Where nobody answers, or a router stands between, nothing
/// says so but the message.
pub fn answered_by_another(answers: Option<MacAddress>, own: &[MacAddress]) -> bool {
    answers.is_some_and(|answers| !own.contains(&answers))
}

/// Quarantines an address of a machine, because another one uses it: it is given to nobody for a while. Nothing when the machine
/// has another address by now.
pub fn quarantine(now: u64, address: Ipv4Addr, mac: MacAddress, leases: &mut LeaseTable) -> Option<LeaseWrite> {
    let lease = leases.get(address)?;
    if lease.client.mac != mac || !matches!(lease.state, LeaseState::Bound | LeaseState::Offered) {
        return None;
    }
    let declined = Lease { state: LeaseState::Declined, ends: now + QUARANTINE, stored: true, ..lease.clone() };
    let write = LeaseWrite { address, record: Some(record::encode(&declined)) };
    leases.put(declined);
    Some(write)
}

#[cfg(test)]
mod tests {
    use super::super::client::LeaseClient;
    use super::*;

    fn mac(last: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, last])
    }

    fn at(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    #[test]
    fn an_address_is_looked_at_once_and_for_two_seconds() {
        let mut checks = ConflictChecks::default();
        assert!(checks.start(100, 0, mac(1), at(1)));
        assert!(!checks.start(101, 0, mac(1), at(1)), "it is looked at already");
        assert!(checks.start(101, 0, mac(2), at(2)));
        assert!(checks.due(101).is_empty());
        assert_eq!(checks.due(102).iter().map(|check| check.address).collect::<Vec<_>>(), [at(1)]);
        assert_eq!(checks.due(50).len(), 1, "a clock that was put back holds nobody up");
        assert!(checks.start(50, 0, mac(1), at(1)), "and again later");
        let many = (0..2 * MOST).filter(|number| checks.start(50, 0, mac(1), Ipv4Addr::from_bits(*number as u32)));
        assert_eq!(many.count(), MOST - 1);
    }

    #[test]
    fn only_a_card_that_answers_and_is_anothers_confirms_it() {
        let own = [mac(1), mac(2)];
        let rows = [(None, false), (Some(mac(1)), false), (Some(mac(2)), false), (Some(mac(9)), true)];
        for (answers, wanted) in rows {
            assert_eq!(answered_by_another(answers, &own), wanted, "{answers:?}");
        }
    }

    #[test]
    fn an_address_is_quarantined_while_its_machine_has_it() {
        let rows = [
            (1, LeaseState::Bound, true),
            (1, LeaseState::Offered, true),
            (1, LeaseState::Released, false),
            (1, LeaseState::Declined, false),
            (2, LeaseState::Bound, false),
        ];
        for (holder, state, aside) in rows {
            let mut leases = LeaseTable::default();
            let client = LeaseClient { mac: mac(holder), id: None, known: true };
            leases.put(Lease { address: at(1), client, state, ends: 5_000, hostname: None, stored: true });
            let write = quarantine(1_000, at(1), mac(1), &mut leases);
            assert_eq!(write.is_some(), aside, "{holder} {state:?}");
            let Some(write) = write else { continue };
            let lease = leases.get(at(1)).expect("there");
            assert_eq!((lease.state, lease.ends), (LeaseState::Declined, 1_000 + QUARANTINE));
            assert_eq!(write.record, Some(record::encode(lease)));
        }
        assert!(quarantine(1_000, at(1), mac(1), &mut LeaseTable::default()).is_none());
    }
}

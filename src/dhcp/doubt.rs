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

/// An address that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The address.
    pub address: Ipv4Addr,
    /// The known machine that has it.
    pub mac: MacAddress,
    /// Which network, as in the configuration.
    pub network: usize,
    since: u64,
}

/// The addresses that are looked at.
#[derive(Debug, Default)]
pub struct Doubts(HashMap<Ipv4Addr, Doubt>);

impl Doubts {
    /// Notes one. Whether it is new, so that something is to be sent there.
    pub fn put(&mut self, now: u64, network: usize, mac: MacAddress, address: Ipv4Addr) -> bool {
        if self.0.len() >= MOST || self.0.contains_key(&address) {
            return false;
        }
        self.0.insert(address, Doubt { address, mac, network, since: now }).is_none()
    }

    /// Those of which it is known by now who answers there.
    pub fn ripe(&mut self, now: u64) -> Vec<Doubt> {
        let ripe = self.0.extract_if(|_, doubt| now >= doubt.since.saturating_add(ANSWERS_WITHIN) || now < doubt.since);
        ripe.map(|(_, doubt)| doubt).collect()
    }
}

/// Whether another machine than the one with these cards answers. Where nobody answers, or a router stands between, nothing
/// says so but the message.
pub fn is_anothers(answers: Option<MacAddress>, own: &[MacAddress]) -> bool {
    answers.is_some_and(|answers| !own.contains(&answers))
}

/// Takes an address from its machine, because another one uses it; it is given to nobody for a while. Nothing when the machine
/// has another address by now.
pub fn set_aside(now: u64, doubt: &Doubt, leases: &mut LeaseTable) -> Option<LeaseWrite> {
    let lease = leases.get(doubt.address)?;
    if lease.client.mac != doubt.mac || !matches!(lease.state, LeaseState::Bound | LeaseState::Offered) {
        return None;
    }
    let declined = Lease { state: LeaseState::Declined, ends: now + QUARANTINE, stored: true, ..lease.clone() };
    let write = LeaseWrite { address: doubt.address, record: Some(record::encode(&declined)) };
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
        let mut doubts = Doubts::default();
        assert!(doubts.put(100, 0, mac(1), at(1)));
        assert!(!doubts.put(101, 0, mac(1), at(1)), "it is looked at already");
        assert!(doubts.put(101, 0, mac(2), at(2)));
        assert!(doubts.ripe(101).is_empty());
        assert_eq!(doubts.ripe(102).iter().map(|doubt| doubt.address).collect::<Vec<_>>(), [at(1)]);
        assert_eq!(doubts.ripe(50).len(), 1, "a clock that was put back holds nobody up");
        assert!(doubts.put(50, 0, mac(1), at(1)), "and again later");
        let many = (0..2 * MOST).filter(|number| doubts.put(50, 0, mac(1), Ipv4Addr::from_bits(*number as u32)));
        assert_eq!(many.count(), MOST - 1);
    }

    #[test]
    fn only_a_card_that_answers_and_is_anothers_confirms_it() {
        let own = [mac(1), mac(2)];
        let rows = [(None, false), (Some(mac(1)), false), (Some(mac(2)), false), (Some(mac(9)), true)];
        for (answers, wanted) in rows {
            assert_eq!(is_anothers(answers, &own), wanted, "{answers:?}");
        }
    }

    #[test]
    fn an_address_is_set_aside_while_its_machine_has_it() {
        let doubt = Doubt { address: at(1), mac: mac(1), network: 0, since: 0 };
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
            let write = set_aside(1_000, &doubt, &mut leases);
            assert_eq!(write.is_some(), aside, "{holder} {state:?}");
            let Some(write) = write else { continue };
            let lease = leases.get(at(1)).expect("there");
            assert_eq!((lease.state, lease.ends), (LeaseState::Declined, 1_000 + QUARANTINE));
            assert_eq!(write.record, Some(record::encode(lease)));
        }
        assert!(set_aside(1_000, &doubt, &mut LeaseTable::default()).is_none());
    }
}

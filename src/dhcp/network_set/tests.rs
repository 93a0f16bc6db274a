//! Tests of networks that come, change and go while machines have addresses of them.

use super::super::client::LeaseClient;
use super::super::table::LeaseState;
use super::*;
use crate::api::MacAddress;

const HOUR: u64 = 3600;

fn network(name: &str, subnet: &str, pool: &str) -> EffectiveNetwork {
    let pool = if pool.is_empty() { String::new() } else { format!("pool = ['{pool}']") };
    let text = format!("name = '{name}'\ninterface = 'e0'\nsubnet = '{subnet}'\nlease = '1h'\n{pool}");
    EffectiveNetwork { config: toml::from_str(&text).unwrap(), reserved: Reserved::default(), of_file: false }
}

fn lease(address: [u8; 4], state: LeaseState, ends: u64) -> Lease {
    let client = LeaseClient { mac: MacAddress([2, 0, 0, 0, 0, address[3]]), id: None, known: false };
    Lease { address: address.into(), client, state, ends, hostname: None, stored: true }
}

/// The addresses that machines have of each network in force.
fn bound(set: &NetworkSet) -> Vec<(String, usize)> {
    set.in_force().iter().map(|network| (network.name.to_string(), network.table().bound())).collect()
}

#[test]
fn leases_wait_for_their_network_and_last_no_longer_than_new_ones() {
    let leases = [lease([10, 0, 0, 9], LeaseState::Bound, 100 * HOUR), lease([10, 1, 0, 9], LeaseState::Bound, HOUR)];
    let set = NetworkSet::new(leases.into_iter());
    set.put_in_force(0, vec![network("a", "10.0.0.0/24", "10.0.0.5-10.0.0.20")]);
    assert_eq!((bound(&set), set.waiting()), (vec![("a".to_owned(), 1)], 1));
    assert_eq!(set.in_force()[0].table().get([10, 0, 0, 9].into()).unwrap().ends, HOUR);
    // The other one comes later.
    let both = || vec![network("a", "10.0.0.0/24", "10.0.0.5-10.0.0.20"), network("b", "10.1.0.0/24", "")];
    set.put_in_force(0, both());
    assert_eq!((bound(&set), set.waiting()), (vec![("a".into(), 1), ("b".into(), 1)], 0));
    let numbers = || set.in_force().iter().map(|network| network.number).collect::<Vec<_>>();
    let before = numbers();
    set.put_in_force(0, both());
    assert_eq!(numbers(), before, "nothing changed");
}

#[test]
fn a_smaller_pool_keeps_its_leases_and_counts_those_that_end() {
    let set = NetworkSet::new(std::iter::empty());
    set.put_in_force(0, vec![network("a", "10.0.0.0/24", "10.0.0.5-10.0.0.20")]);
    let served = set.in_force()[0].clone();
    for last in [5, 20] {
        served.table().put(lease([10, 0, 0, last], LeaseState::Bound, HOUR));
    }
    served.serve_from([10, 0, 0, 6].into());
    set.put_in_force(0, vec![network("a", "10.0.0.0/24", "10.0.0.5-10.0.0.9")]);
    assert!(Arc::ptr_eq(&served, &set.in_force()[0]) && set.ending().is_empty());
    let table = served.table();
    assert_eq!((table.bound(), table.not_renewed(|_| None)), (2, 1));
    // Its own address is still nobody's.
    assert_eq!(table.usage().pool, 4);
    let others =
        |last: u8| move |address: Ipv4Addr| (address.octets()[3] == 20).then_some(MacAddress([2, 0, 0, 0, 0, last]));
    assert_eq!((table.not_renewed(others(20)), table.not_renewed(others(7))), (0, 1), "reserved for it, or another");
}

#[test]
fn a_network_that_goes_gives_nothing_and_ends_with_its_last_lease() {
    let set = NetworkSet::new(std::iter::empty());
    set.put_in_force(0, vec![network("a", "10.0.0.0/24", "10.0.0.5-10.0.0.20")]);
    let served = set.in_force()[0].clone();
    served.table().put(lease([10, 0, 0, 5], LeaseState::Bound, HOUR));
    served.table().put(lease([10, 0, 0, 6], LeaseState::Released, 10));
    let mut changes = set.changes();
    set.put_in_force(0, Vec::new());
    assert!(changes.has_changed().unwrap() && served.is_ending());
    assert!(set.in_force().is_empty() && set.ending().len() == 1);
    assert!(set.advance(HOUR - 1).is_empty() && set.ending().len() == 1);
    changes.mark_unchanged();
    assert!(set.advance(HOUR).is_empty());
    assert!(set.ending().is_empty() && changes.has_changed().unwrap(), "nobody listens for it any more");
    assert_eq!((set.waiting(), set.take_changed().len()), (2, 2));
    // They are forgotten as those of a network are, and no record is left of them.
    let gone: Vec<_> = set.advance(HOUR + REMEMBER).into_iter().map(|write| (write.address, write.record)).collect();
    assert_eq!(gone, [([10, 0, 0, 5].into(), None), ([10, 0, 0, 6].into(), None)]);
    assert_eq!(set.waiting(), 0);
}

#[test]
fn what_another_network_of_the_subnet_finds_is_the_leases_of_the_former_one() {
    for (subnet, taken) in [("10.0.0.0/24", 2), ("10.0.0.0/25", 1), ("10.0.0.0/16", 2), ("10.9.0.0/24", 0)] {
        let set = NetworkSet::new(std::iter::empty());
        set.put_in_force(0, vec![network("a", "10.0.0.0/24", "")]);
        let former = set.in_force()[0].clone();
        for last in [5, 200] {
            former.table().put(lease([10, 0, 0, last], LeaseState::Bound, HOUR));
        }
        let name = if subnet == "10.0.0.0/24" { "b" } else { "a" };
        set.put_in_force(0, vec![network(name, subnet, "")]);
        assert_eq!(bound(&set), [(name.to_owned(), taken)], "{subnet}");
        assert!(former.is_ending());
        assert_eq!(former.table().bound(), 2 - taken, "nobody has an address twice");
        assert_eq!(set.ending().len(), usize::from(taken < 2), "{subnet}");
    }
}

#[test]
fn a_network_that_is_named_only_has_no_leases() {
    let set = NetworkSet::new([lease([10, 0, 0, 5], LeaseState::Bound, HOUR)].into_iter());
    let mut off = network("a", "10.0.0.0/24", "");
    off.config.mode = NetworkMode::Off;
    set.put_in_force(0, vec![off]);
    assert_eq!((set.in_force().len(), set.waiting()), (0, 1));
}

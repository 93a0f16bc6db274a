//! The lease table by itself: who may have what when.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use crate::api::MacAddress;
use crate::config::AddressRange;

use crate::dhcp::client::LeaseClient;
use crate::dhcp::table::{Lease, LeaseState, LeaseTable, OFFER_HOLD, PoolUsage, REMEMBER};

fn at(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn range(first: u8, last: u8) -> AddressRange {
    AddressRange { first: at(first), last: at(last) }
}

fn client(number: u8, known: bool) -> LeaseClient {
    LeaseClient { mac: MacAddress([2, 0, 0, 0, 0, number]), id: None, known }
}

fn lease(address: u8, client: LeaseClient, state: LeaseState, ends: u64) -> Lease {
    let stored = state != LeaseState::Offered;
    Lease { address: at(address), client, state, ends, hostname: None, stored }
}

fn nobody(_: MacAddress) -> bool {
    false
}

#[test]
fn what_is_held_is_counted() {
    let mut table = LeaseTable::new(vec![range(10, 19), range(30, 30)]);
    table.exclude(at(11));
    table.exclude(at(50));
    assert_eq!(table.usage(), PoolUsage { pool: 10, used: 0, declined: 0 });
    table.put(lease(10, client(1, false), LeaseState::Offered, 100));
    table.put(lease(12, client(2, false), LeaseState::Bound, 50));
    // A reservation.
    table.put(lease(50, client(3, true), LeaseState::Bound, 100));
    table.put(lease(13, client(4, false), LeaseState::Declined, 100));
    assert_eq!(table.usage(), PoolUsage { pool: 10, used: 3, declined: 1 });
    table.advance(60, &nobody);
    assert_eq!(table.usage(), PoolUsage { pool: 10, used: 2, declined: 1 });
}

#[test]
fn fresh_addresses_go_first_then_the_one_left_longest_ago() {
    let mut table = LeaseTable::new(vec![range(10, 11), range(20, 20)]);
    table.exclude(at(11));
    for (number, expected) in [(1, 10), (2, 20)] {
        let address = table.find(None, &client(number, false), &nobody).expect("free");
        assert_eq!(address, at(expected));
        table.put(lease(expected, client(number, false), LeaseState::Bound, 100 + u64::from(number)));
    }
    assert_eq!(table.find(None, &client(3, false), &nobody), None);
    table.advance(102, &nobody);
    assert_eq!(table.find(None, &client(3, false), &nobody), Some(at(10)), "left first");
    assert_eq!(table.find(Some(at(20)), &client(3, false), &nobody), Some(at(20)), "wished and free");
    // Its former client finds it as long as nobody took it.
    assert_eq!(table.of_client(&client(2, false)).map(|lease| lease.address), Some(at(20)));
    let gone = table.advance(102 + REMEMBER, &nobody);
    assert_eq!(gone.into_iter().collect::<HashSet<_>>(), HashSet::from([at(10), at(20)]));
    assert_eq!(table.of_client(&client(2, false)), None);
    assert!(table.find(None, &client(3, false), &nobody).is_some(), "forgotten addresses are free again");
}

#[test]
fn a_known_machines_address_is_kept_after_its_lease() {
    let known = |mac: MacAddress| mac == client(1, true).mac;
    let mut table = LeaseTable::new(vec![range(10, 10)]);
    table.put(lease(10, client(1, true), LeaseState::Bound, 100));
    for now in [101, 100 + REMEMBER, 200 + 3 * REMEMBER] {
        assert!(table.advance(now, &known).is_empty());
        assert_eq!(table.find(Some(at(10)), &client(2, false), &known), None, "at {now}");
        assert_eq!(table.get(at(10)).map(|lease| (lease.state, lease.ends)), Some((LeaseState::Expired, 100)));
    }
    // Nobody knows it any more; that is looked at once in a second.
    table.advance(201 + 3 * REMEMBER, &nobody);
    assert_eq!(table.find(None, &client(2, false), &nobody), Some(at(10)));
}

#[test]
fn offers_lapse_and_a_known_machine_may_take_a_strangers() {
    let known = |mac: MacAddress| mac == client(9, true).mac;
    let mut table = LeaseTable::new(vec![range(10, 10)]);
    table.put(lease(10, client(1, false), LeaseState::Offered, 50 + OFFER_HOLD));
    assert_eq!(table.find(None, &client(2, false), &known), None);
    assert_eq!(table.find(None, &client(9, true), &known), Some(at(10)));
    assert!(table.advance(50 + OFFER_HOLD, &known).is_empty(), "an offer has no record");
    assert_eq!(table.find(None, &client(2, false), &known), Some(at(10)));
}

#[test]
fn a_declined_address_comes_back_when_its_quarantine_ends() {
    let mut table = LeaseTable::new(vec![range(10, 10)]);
    table.put(lease(10, client(1, false), LeaseState::Declined, 500));
    assert_eq!(table.of_client(&client(1, false)), None, "it is nobody's");
    assert_eq!(table.find(None, &client(1, false), &nobody), None);
    assert_eq!(table.advance(500, &nobody), [at(10)]);
    assert_eq!(table.find(None, &client(1, false), &nobody), Some(at(10)));
}

/// Whoever knows the MAC address of a host can decline in its name, one address after the other.
#[test]
fn a_known_machine_gets_what_was_declined_longest_ago_when_nothing_else_is_left() {
    let mut table = LeaseTable::new(vec![range(10, 12)]);
    table.put(lease(10, client(1, true), LeaseState::Declined, 610));
    table.put(lease(11, client(1, true), LeaseState::Declined, 605));
    table.put(lease(12, client(2, true), LeaseState::Bound, 900));
    assert_eq!(table.find(None, &client(3, false), &nobody), None);
    let everybody = |_: MacAddress| true;
    for known in [client(1, true), client(3, true)] {
        assert_eq!(table.find(None, &known, &everybody), Some(at(11)));
    }
    assert_eq!(table.find(None, &client(1, true), &nobody), None, "it goes by its address, and nothing is kept for it");
    table.put(lease(11, client(3, true), LeaseState::Bound, 900));
    assert_eq!(table.find(None, &client(1, true), &everybody), Some(at(10)));
    table.put(lease(10, client(1, true), LeaseState::Bound, 900));
    assert_eq!(table.find(None, &client(4, true), &everybody), None);
}

#[test]
fn changes_are_told_once_and_offers_are_not() {
    let mut table = LeaseTable::new(vec![range(10, 19)]);
    table.put(lease(10, client(1, false), LeaseState::Offered, 50));
    assert!(table.take_changed(9).is_empty());
    table.put(lease(10, client(1, false), LeaseState::Bound, 50));
    assert_eq!(table.take_changed(9), [at(10)]);
    assert!(table.take_changed(9).is_empty());
    table.advance(60, &nobody);
    assert_eq!(table.take_changed(9), [at(10)], "it expired");
    table.put(lease(10, client(2, false), LeaseState::Offered, 100));
    assert_eq!(table.take_changed(9), [at(10)], "the former lease has no view now");
}

/// Anybody can ask for an address and then take another server's offer, again and again.
#[test]
fn an_address_that_becomes_free_is_noted_once() {
    let mut table = LeaseTable::new(vec![range(10, 12)]);
    table.keep_from_guests();
    for number in 0..1000_u32 {
        let address = at(10 + (number % 3) as u8);
        assert_eq!(table.find(Some(address), &client(1, false), &nobody), Some(address));
        table.put(lease(address.octets()[3], client(1, false), LeaseState::Offered, 50));
        table.remove(address);
        assert!(table.noted_free() <= 3, "{number}");
    }
    assert_eq!(table.find(None, &client(1, false), &nobody), Some(at(10)), "in the order in which they became free");
}

#[test]
fn what_ended_is_found_as_it_comes_and_goes_without_looking_at_all_of_it_again() {
    let looks = std::cell::Cell::new(0);
    let known = |mac: MacAddress| {
        looks.set(looks.get() + 1);
        mac.0[4] == 1
    };
    let at = |number: u16| Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + u32::from(number));
    let client = |number: u16, known: bool| {
        let [high, low] = number.to_be_bytes();
        LeaseClient { mac: MacAddress([2, 0, 0, high, u8::from(known), low]), id: None, known }
    };
    let mut table = LeaseTable::new(vec![AddressRange { first: at(0), last: at(9_999) }]);
    table.keep_from_guests();
    let ended = |number: u16, known: bool, ends: u64| Lease {
        address: at(number),
        client: client(number, known),
        state: LeaseState::Expired,
        ends,
        hostname: None,
        stored: true,
    };
    // All was given once; the first half is kept for known machines.
    for number in 0..10_000 {
        table.put(ended(number, number < 5_000, u64::from(number)));
    }
    let guest = client(20_000, false);
    assert!(table.guests_may_take(&known) && !table.is_short(&known));
    assert_eq!(table.find(None, &guest, &known), Some(at(5_000)));
    looks.set(0);
    for number in 0..1_000 {
        assert!(table.guests_may_take(&known));
        let address = table.find(None, &client(20_000 + number, false), &known).expect("one is left");
        assert_eq!(address, at(5_000 + number));
        table.put(Lease { address, state: LeaseState::Bound, ..ended(20_000 + number, false, 90_000) });
    }
    assert!(looks.get() < 20_000, "{} looks", looks.get());
    // What ends now is found at once.
    table.put(Lease { address: at(5_007), ..ended(20_007, false, 1) });
    assert_eq!(table.find(None, &guest, &known), Some(at(5_007)));
    // When all is taken but what is kept, guests get nothing, and known machines what is left.
    for number in 5_000..9_000 {
        table.put(Lease { state: LeaseState::Bound, ..ended(number, false, 90_000) });
    }
    assert!(table.is_short(&known) && !table.guests_may_take(&known));
    assert_eq!(table.find(None, &client(1, true), &known), Some(at(9_000)));
}

#[test]
fn leases_move_with_the_time_of_day() {
    let known = |mac: MacAddress| mac == client(1, true).mac;
    let mut table = LeaseTable::new(vec![range(10, 19)]);
    table.advance(100, &known);
    table.put(lease(10, client(1, true), LeaseState::Expired, 90));
    table.put(lease(11, client(1, true), LeaseState::Bound, 160));
    table.put(lease(12, client(2, false), LeaseState::Offered, 130));
    table.put(lease(13, client(3, false), LeaseState::Declined, 700));
    table.take_changed(9);
    for (by, now) in [(1_000_000, 1_000_100), (-1_000_050, 50)] {
        let stored: HashSet<_> = table.shift(by).into_iter().map(|lease| lease.address).collect();
        assert_eq!(stored, HashSet::from([at(10), at(11), at(13)]));
        let ends = |last| table.get(at(last)).expect("there").ends;
        assert_eq!([ends(11), ends(12), ends(13)], [now + 60, now + 30, now + 600]);
        assert_eq!(table.of_client(&client(1, true)).map(|lease| lease.address), Some(at(11)));
        assert!(table.advance(now + 1, &known).is_empty());
        assert_eq!(table.get(at(11)).expect("there").state, LeaseState::Bound);
    }
    assert!(table.advance(80, &known).is_empty(), "the offer is over");
    assert_eq!((table.get(at(12)), table.get(at(11)).map(|lease| lease.state)), (None, Some(LeaseState::Bound)));
    table.advance(110, &known);
    assert_eq!(table.get(at(11)).map(|lease| lease.state), Some(LeaseState::Expired));
}

#[test]
fn the_pool_may_reach_the_last_address_there_is() {
    let last = Ipv4Addr::BROADCAST;
    let mut table = LeaseTable::new(vec![AddressRange { first: last, last }]);
    assert_eq!(table.find(None, &client(1, false), &nobody), Some(last));
    table.exclude(last);
    assert_eq!(table.find(None, &client(1, false), &nobody), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: no address is given to two clients at a time.
    #[test]
    fn no_address_has_two_clients(steps in proptest::collection::vec((0_u8..5, 0_u8..12, 0_u64..40), 1..200)) {
        let known = |mac: MacAddress| mac.0[5] < 3;
        let mut table = LeaseTable::new(vec![range(10, 15)]);
        let mut now = 1000;
        let mut holds: std::collections::HashMap<u8, (Ipv4Addr, u64)> = std::collections::HashMap::new();
        for (action, number, wait) in steps {
            let client = client(number, number < 3);
            match action {
                0 | 1 => {
                    let had = table.of_client(&client).map(|lease| lease.address);
                    let Some(address) = had.or_else(|| table.find(None, &client, &known)) else { continue };
                    for (other, (held, until)) in &holds {
                        prop_assert!(*other == number || *held != address || *until <= now, "{} has it", other);
                    }
                    let ends = now + 30;
                    table.put(Lease { address, client, state: LeaseState::Bound, ends, hostname: None, stored: true });
                    holds.insert(number, (address, ends));
                }
                2 => {
                    let Some(lease) = table.of_client(&client).cloned() else { continue };
                    table.put(Lease { state: LeaseState::Released, ends: now, ..lease });
                    holds.remove(&number);
                }
                3 => {
                    let Some(lease) = table.of_client(&client).cloned() else { continue };
                    table.put(Lease { state: LeaseState::Declined, ends: now + 20, ..lease });
                    holds.remove(&number);
                }
                _ => {
                    now += wait;
                    table.advance(now, &known);
                }
            }
        }
    }
}

#[test]
fn reservations_come_and_go() {
    let known = |_: MacAddress| false;
    let range = AddressRange { first: at(1), last: at(3) };
    let mut table = LeaseTable::new(vec![range]);
    table.keep_from_guests();
    let client = |last: u8| client(last, false);
    let bind = |table: &mut LeaseTable, address, last| {
        table.put(Lease {
            address,
            client: client(last),
            state: LeaseState::Bound,
            ends: 100,
            hostname: None,
            stored: true,
        });
    };
    table.exclude(at(3));
    table.set_reserved([at(1)]);
    assert_eq!((table.usage().pool, table.in_pool(at(1)), table.in_pool(at(3))), (1, false, false));
    assert_eq!(table.find(Some(at(1)), &client(9), &known), Some(at(2)), "not the reserved one, though it is wished");
    bind(&mut table, at(2), 2);
    assert_eq!(table.find(None, &client(9), &known), None);
    // The cursor has passed it; it is free again all the same, and nothing else is.
    table.set_reserved([]);
    assert_eq!(table.usage().pool, 2);
    assert_eq!(table.find(None, &client(9), &known), Some(at(1)));
    bind(&mut table, at(1), 9);
    // Whoever has an address that is reserved now keeps it until it is over, and it is nobody's after that.
    table.set_reserved([at(1)]);
    assert!(table.get(at(1)).is_some_and(|lease| lease.state == LeaseState::Bound));
    assert_eq!(table.usage().pool, 1);
    table.remove(at(1));
    assert_eq!(table.find(None, &client(8), &known), None);
    table.set_reserved([at(3)]);
    assert_eq!(table.find(None, &client(8), &known), Some(at(1)), "what is kept out for good stays so");
    bind(&mut table, at(1), 8);
    table.set_reserved([]);
    assert_eq!(table.find(None, &client(7), &known), None);
}

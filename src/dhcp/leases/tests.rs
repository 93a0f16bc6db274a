//! Tests of leases: what is written, and what is read back.

use std::path::Path;

use bytes::Bytes;

use super::super::client::LeaseClient;
use super::super::table::{LeaseTable, QUARANTINE};
use super::*;
use crate::config::Config;
use crate::store::StoreOptions;

const NETWORKS: &str = "
        [[network]]
        name = 'a'
        interface = 'eth0'
        subnet = '10.0.0.0/24'
        pool = ['10.0.0.100-10.0.0.199']
        [[network.reservation]]
        mac = '02:00:00:00:00:09'
        address = '10.0.0.9'
        [[network]]
        name = 'beside'
        interface = 'eth0'
        subnet = '10.2.0.0/24'
        mode = 'proxy'
        [[network]]
        name = 'theirs'
        interface = 'eth0'
        subnet = '10.3.0.0/24'
        mode = 'off'
    ";

fn open(folder: &Path) -> Store {
    let options = StoreOptions { path: folder.join("db"), key_file: folder.join("key"), history: 100 };
    Store::open(options).expect("opens")
}

fn write(address: Ipv4Addr, mac: u8, state: LeaseState, ends: u64) -> LeaseWrite {
    let client = LeaseClient { mac: MacAddress([2, 0, 0, 0, 0, mac]), id: None, known: false };
    let lease = Lease { address, client, state, ends, hostname: None, stored: true };
    LeaseWrite { address, record: Some(record::encode(&lease)) }
}

/// A stranger can ask in known machines' names through a relay of a network where they are not.
#[test]
fn a_machine_on_our_wire_is_nobody_behind_a_relay() {
    let text = "
            [[network]]
            name = 'wire'
            interface = 'eth0'
            subnet = '10.0.0.0/24'
            pool = ['10.0.0.100-10.0.0.109']
            [[network]]
            name = 'routed'
            interface = 'eth0'
            subnet = '10.1.0.0/24'
            pool = ['10.1.0.100-10.1.0.109']
        ";
    let folder = tempfile::tempdir().expect("a folder");
    let networks = Config::parse(text, Path::new("x.toml")).expect("good").networks;
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let store = open(folder.path());
    let rows = [
        (LeaseState::Bound, 2_001, &["wire"][..], true),
        (LeaseState::Bound, 2_000, &["wire"], false),
        (LeaseState::Released, 9_000, &["wire"], false),
        (LeaseState::Bound, 9_000, &["wire", "routed"], false),
        (LeaseState::Bound, 9_000, &[], false),
    ];
    for (state, ends, attached, expected) in rows {
        let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
        let address = Ipv4Addr::new(10, 0, 0, 100);
        let client = LeaseClient { mac, id: None, known: true };
        leases.networks()[0].table().put(Lease { address, client, state, ends, hostname: None, stored: true });
        let is_attached = |network: &NetworkConfig| attached.contains(&network.name.as_str());
        let found = leases.also_at(mac, &networks[1], 2_000, &is_attached);
        assert_eq!(found, expected.then_some(address), "{state:?} {ends} {attached:?}");
    }
}

/// A box without a battery starts years back; or somebody sets its clock ahead.
#[tokio::test]
async fn a_clock_that_is_wrong_at_the_start_ends_no_lease_and_keeps_none_for_ever() {
    let folder = tempfile::tempdir().expect("a folder");
    let networks = Config::parse(NETWORKS, Path::new("x.toml")).expect("good").networks;
    let (store, lasts) = (open(folder.path()), networks[0].lease.0.as_secs());
    let now = 1_800_000_000;
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    let leases = Leases::load_at(&store, &networks, now).expect("loads");
    let writes = vec![
        write(address(100), 1, LeaseState::Bound, now + 3_000),
        write(address(101), 2, LeaseState::Bound, now + 1_000),
        write(address(102), 3, LeaseState::Declined, now + 500),
    ];
    leases.commit(writes).await.expect("writes");
    const YEARS: u64 = 300_000_000;
    let rows = [(now, [3_000, 1_000, 500]), (now - YEARS, [lasts, lasts, QUARANTINE]), (now + YEARS, [0, 0, 0])];
    for (start, lefts) in rows {
        let leases = Leases::load_at(&store, &networks, start).expect("loads");
        let loaded = leases.networks();
        let table = loaded[0].table();
        for (last, left) in (100..).zip(lefts) {
            let ends = table.get(address(last)).expect("there").ends;
            assert!(ends <= start + left && (left > 0 || ends + 3_000 >= start), "{start} {last} {ends}");
            assert!(left == 0 || ends == start + left, "{start} {last} {ends}");
        }
        drop(table);
        let gone = leases.networks()[0].table().advance(start + 60, &|_| false);
        assert!(!gone.contains(&address(100)) && !gone.contains(&address(101)), "{start} {gone:?}");
    }
    // And it is set right while it runs.
    let leases = Leases::load_at(&store, &networks, now - YEARS).expect("loads");
    let before = leases.networks()[0].table().get(address(100)).expect("there").ends;
    let writes = leases.shift(&leases.networks()[0], YEARS as i64);
    assert_eq!(writes.len(), 3);
    leases.commit(writes).await.expect("writes");
    let leases = Leases::load_at(&store, &networks, now).expect("loads");
    assert_eq!(leases.networks()[0].table().get(address(100)).expect("there").ends, before + YEARS);
    store.close().await;
}

/// A stranger can ask in known machines' names through a relay of a network where they are not.
#[tokio::test]
async fn a_claim_of_a_machine_that_is_on_another_network_ends_when_the_pool_is_short() {
    let text = "
            [[network]]
            name = 'here'
            interface = 'eth0'
            subnet = '10.0.0.0/24'
            pool = ['10.0.0.100-10.0.0.109']
            unknown_lease = '5m'
            [[network]]
            name = 'there'
            interface = 'eth0'
            subnet = '10.1.0.0/24'
            pool = ['10.1.0.100-10.1.0.109']
        ";
    let folder = tempfile::tempdir().expect("a folder");
    let networks = Config::parse(text, Path::new("x.toml")).expect("good").networks;
    let mac = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
    let store = open(folder.path());
    for (used, present, freed) in [(5_u8, 5_u8, 0), (10, 10, 10), (10, 4, 4), (10, 0, 0)] {
        let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
        let put = |network: usize, address: [u8; 4], last: u8, state, ends| {
            let client = LeaseClient { mac: mac(last), id: None, known: true };
            let lease = Lease { address: address.into(), client, state, ends, hostname: None, stored: true };
            leases.networks()[network].table().put(lease);
        };
        for last in 0..used {
            put(0, [10, 0, 0, 100 + last], last, LeaseState::Expired, 1_000);
        }
        for last in 0..present {
            put(1, [10, 1, 0, 100 + last], last, LeaseState::Bound, 9_000);
        }
        let writes = leases.review(2_000, &leases.networks()[0], 300, &|_| true);
        assert_eq!(writes.len(), freed, "{used} {present}");
        assert!(writes.iter().all(|write| write.record.is_none()));
        assert_eq!(leases.networks()[0].table().get([10, 0, 0, 100].into()).is_none(), freed > 0);
        assert!(
            leases.review(2_000, &leases.networks()[1], 300, &|_| true).is_empty(),
            "where they are they are bound"
        );
    }
    // Hosts that are gone.
    for (used, cut) in [(5_u8, false), (10, true)] {
        let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
        for last in 0..used {
            let client = LeaseClient { mac: mac(last), id: None, known: true };
            let address = [10, 0, 0, 100 + last].into();
            let lease = Lease { address, client, state: LeaseState::Bound, ends: 5_600, hostname: None, stored: true };
            leases.networks()[0].table().put(lease);
        }
        let known = |one: MacAddress| one == mac(0);
        assert!(leases.review(2_000, &leases.networks()[0], 300, &known).is_empty());
        let loaded = leases.networks();
        let mut table = loaded[0].table();
        let ends = |table: &LeaseTable, last: u8| table.get([10, 0, 0, 100 + last].into()).map(|lease| lease.ends);
        assert_eq!((ends(&table, 0), ends(&table, 1)), (Some(5_600), Some(if cut { 2_300 } else { 5_600 })));
        table.advance(2_300, &known);
        let stranger = LeaseClient { mac: mac(77), id: None, known: false };
        assert!(table.find(None, &stranger, &known).is_some());
    }
}

#[tokio::test]
async fn what_was_committed_is_there_after_a_restart_and_damage_costs_one_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let networks = Config::parse(NETWORKS, Path::new("x.toml")).expect("good").networks;
    let at = |last: u8| Ipv4Addr::new(10, 0, 0, last);
    let elsewhere = Ipv4Addr::new(10, 1, 0, 1);
    let store = open(folder.path());
    let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
    let writes = vec![
        write(at(100), 1, LeaseState::Bound, 2_000),
        // The later one of two is the machine's.
        write(at(101), 1, LeaseState::Bound, 3_000),
        write(at(102), 2, LeaseState::Released, 1_000),
        write(at(103), 3, LeaseState::Bound, 1_000),
        write(elsewhere, 4, LeaseState::Bound, 1_000),
    ];
    leases.commit(writes).await.expect("writes");
    leases.commit(vec![LeaseWrite { address: at(103), record: None }]).await.expect("writes");
    store
        .table(TABLE)
        .expect("a table")
        .write(record::key(at(104)), Some(Bytes::from_static(b"\x01\x01")))
        .await
        .expect("writes");
    store.close().await;
    drop((leases, store));

    let store = open(folder.path());
    let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
    let mac = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
    assert_eq!(leases.address_of(mac(1)), Some(at(101)));
    assert_eq!(leases.address_of(mac(2)), Some(at(102)), "what it had last");
    assert_eq!(leases.address_of(mac(3)), None, "removed");
    assert_eq!(leases.address_of(mac(4)), None, "not a network of the configuration");
    assert_eq!(leases.address_of(mac(9)), Some(at(9)), "reserved");
    let rows = [
        (at(101), LeaseOwner::Machine(mac(1))),
        (at(102), LeaseOwner::Nobody),
        (at(9), LeaseOwner::Nobody),
        (elsewhere, LeaseOwner::Outside),
        (Ipv4Addr::new(10, 2, 0, 7), LeaseOwner::Elsewhere),
        (Ipv4Addr::new(10, 3, 0, 7), LeaseOwner::Elsewhere),
    ];
    for (address, wanted) in rows {
        assert_eq!(lease_owner(&networks, Some(&leases), address), wanted, "{address}");
    }
    let hosts = HostIndex::default();
    let machine = |name: &str, last: u8, waiting, registered| {
        let discovery = crate::boot::DiscoveryState { waiting, ..Default::default() };
        hosts.insert(crate::boot::BootHost {
            namespace: "ns".into(),
            name: name.into(),
            uid: name.into(),
            created: 0,
            macs: vec![mac(last)],
            boot_interface: Default::default(),
            intent: None,
            discovery,
            ownership: crate::boot::Ownership { boot_mac: Some(mac(last)), registered, ..Default::default() },
        });
    };
    let by = |cards: &dyn Fn(Ipv4Addr) -> Option<MacAddress>, address: Ipv4Addr| {
        rank(&networks, Some(&leases), &hosts, cards, address.into())
    };
    let ranked = |address: Ipv4Addr| by(&|_| None, address);
    assert_eq!(ranked(at(101)), Rank::Stranger, "an unknown machine's");
    machine("a", 1, true, true);
    assert_eq!(ranked(at(101)), Rank::Stranger, "it only says that it is there");
    machine("a", 1, false, false);
    assert_eq!(ranked(at(101)), Rank::Stranger, "somebody wrote its address into a host");
    machine("a", 1, false, true);
    assert_eq!(ranked(at(101)), Rank::Known);
    // Who has its address without being it, is nobody.
    assert_eq!(by(&|_| Some(mac(1)), at(101)), Rank::Known, "its own card");
    assert_eq!(by(&|_| Some(mac(0x66)), at(101)), Rank::Stranger, "another card");
    // Known where it is at home only.
    let recorded = |home: &str| {
        let mut host = hosts.by_mac(mac(1)).expect("known").as_ref().clone();
        host.ownership.home = home.into();
        hosts.insert(host);
        ranked(at(101))
    };
    let names: Vec<&str> = networks.iter().map(|network| network.name.as_str()).collect();
    assert_eq!((recorded(names[0]), recorded(names[1])), (Rank::Known, Rank::Stranger));
    assert_eq!((recorded("of another name by now"), recorded("")), (Rank::Known, Rank::Known));
    assert_eq!(by(&|asked| panic!("{asked} is asked for"), at(102)), Rank::Stranger, "known without looking");
    assert_eq!((ranked(at(9)), ranked(at(102))), (Rank::Stranger, Rank::Stranger), "nobody has them now");
    assert_eq!((ranked(elsewhere), ranked(Ipv4Addr::new(10, 2, 0, 7))), (Rank::Stranger, Rank::Untold));
    assert_eq!(rank(&networks, None, &hosts, &|_| None, at(101).into()), Rank::Untold);
    assert_eq!(rank(&[], None, &hosts, &|_| None, at(101).into()), Rank::Untold);
    // Beside other appliances leases say nothing; that a network is none of ours is known all the same.
    assert_eq!(lease_owner(&networks, None, at(101)), LeaseOwner::Elsewhere);
    assert_eq!(lease_owner(&networks, None, elsewhere), LeaseOwner::Outside);
    assert_eq!(lease_owner(&[], None, at(101)), LeaseOwner::Outside);
    let text = leases.explain(mac(1), &HostIndex::default());
    assert!(text.contains("10.0.0.101, bound, end 1970-01-01T00:50:00Z"), "{text}");
    assert!(text.contains("its firmware is told nothing to boot: no BareMetalHost"), "{text}");
    assert!(text.contains("no message of it has arrived since Slipway started"), "{text}");
    assert!(leases.explain(mac(9), &HostIndex::default()).contains("10.0.0.9 is reserved for it"));
    let disposition = super::super::outcome::Disposition::Released(at(101));
    leases.record_message(
        mac(1),
        RecentMessage { at: 60, network: "a".into(), kind: dhcproto::v4::MessageType::Release, disposition },
    );
    let text = leases.explain(mac(1), &HostIndex::default());
    assert!(text.contains("  - 1970-01-01T00:01:00Z a: Release: released 10.0.0.101\n"), "{text}");

    store
        .table(TABLE)
        .expect("a table")
        .write(record::key(at(105)), Some(Bytes::from_static(b"\x02")))
        .await
        .expect("writes");
    let error = Leases::load_at(&store, &networks, 1_000).err().expect("a newer version").to_string();
    assert!(error.contains("10.0.0.105") && error.contains("newer"), "{error}");
    store.close().await;
}

//! Tests of the host index: whose a MAC address is.

use super::*;

fn host(name: &str, macs: &[u8]) -> BootHost {
    BootHost {
        namespace: "ns".into(),
        created: 0,
        ownership: Ownership {
            boot_mac: macs.first().map(|n| MacAddress([2, 0, 0, 0, 0, *n])),
            ..Ownership::default()
        },
        name: name.into(),
        uid: name.into(),
        macs: macs.iter().map(|n| MacAddress([2, 0, 0, 0, 0, *n])).collect(),
        boot_interface: BootInterface::Pxe,
        intent: None,
        discovery: DiscoveryState::default(),
    }
}

fn owner(index: &HostIndex, mac: u8) -> Option<String> {
    index.by_mac(MacAddress([2, 0, 0, 0, 0, mac])).map(|host| host.name.clone())
}

#[test]
fn a_newcomer_never_takes_an_address_whatever_comes_first() {
    let newcomer = || BootHost { created: 9, ..host("b", &[1, 3]) };
    for order in [[0, 1], [1, 0]] {
        let index = HostIndex::default();
        for which in order {
            index.insert(if which == 0 { host("a", &[1, 2]) } else { newcomer() });
        }
        assert_eq!(owner(&index, 1).as_deref(), Some("a"), "{order:?}");
        // Every change of the older host comes as another insert.
        index.insert(host("a", &[1, 2]));
        assert_eq!(owner(&index, 1).as_deref(), Some("a"), "{order:?}");
        index.insert(newcomer());
        assert_eq!(owner(&index, 1).as_deref(), Some("a"), "{order:?}");
        index.remove("ns", "a");
        assert_eq!(owner(&index, 1).as_deref(), Some("b"), "{order:?}");
    }
}

#[test]
fn whoever_comes_later_is_recorded_later_also_when_the_clock_was_set_back() {
    let index = HostIndex::default();
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    assert_eq!((index.record_time(5), index.report_time(at(7))), (5, at(7)));
    let record = |since, card| Registration {
        since,
        cards: BTreeMap::from([(mac(9).to_string(), card)]),
        ..Registration::default()
    };
    let known = |record: Registration| {
        let ownership =
            Ownership { boot_mac: Some(mac(1)), registered: true, record: Some(record.into()), ..Ownership::default() };
        BootHost { ownership, ..host("a", &[1]) }
    };
    index.insert(known(record(90_500, 60_000)));
    assert_eq!((index.record_time(10_000), index.record_time(95_000)), (90_501, 95_000));
    // A card counts from the second after the report.
    assert_eq!((index.report_time(at(10)), index.report_time(at(95))), (at(90), at(95)));
    index.insert(known(record(1, 91_000)));
    assert_eq!((index.record_time(10_000), index.report_time(at(10))), (91_001, at(90)));
    index.remove("a", "a");
    assert_eq!(index.record_time(0), 91_001, "it was there all the same");
}

#[test]
fn a_machine_is_contested_by_another_registered_host_with_its_boot_address() {
    let index = HostIndex::default();
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let ownership = |boot: u8, registered| Ownership { boot_mac: Some(mac(boot)), registered, ..Ownership::default() };
    index.insert(BootHost { ownership: ownership(1, true), ..host("a", &[1, 2]) });
    index.insert(BootHost { ownership: ownership(2, false), ..host("b", &[2, 9]) });
    let conflicting = |uid: &str, macs: &[u8]| {
        let found = index.conflicting_host(uid, &macs.iter().map(|last| mac(*last)).collect());
        found.map(|(mac, host)| (mac.0[5], host.name.clone()))
    };
    assert_eq!(conflicting("b", &[1, 2]), Some((1, "a".into())));
    // Who is not registered blocks nobody, nor does a card that is no boot address: some are alike on every board.
    assert_eq!(conflicting("a", &[1, 2]), None);
    assert_eq!(conflicting("b", &[2, 9]), None);
    index.insert(BootHost { ownership: ownership(2, true), ..host("b", &[2, 9]) });
    assert_eq!(conflicting("a", &[1, 2]), Some((2, "b".into())));
    assert_eq!(conflicting("a", &[]), None);
    // A local address, as these are, may be a card of many machines: of a host of another namespace it says nothing.
    index.remove("ns", "b");
    index.insert(BootHost { namespace: "other".into(), ownership: ownership(2, true), ..host("b", &[2, 9]) });
    assert_eq!((conflicting("a", &[1, 2]), conflicting("a", &[2])), (None, Some((2, "b".into()))));
    let universal = MacAddress([0x24, 0, 0, 0, 0, 7]);
    let other = Ownership { boot_mac: Some(universal), ..ownership(2, true) };
    index.insert(BootHost { namespace: "other".into(), ownership: other, macs: vec![universal], ..host("c", &[]) });
    let macs = BTreeSet::from([mac(1), universal]);
    assert_eq!(index.conflicting_host("a", &macs).map(|(mac, _)| mac), Some(universal));
    index.remove("other", "c");
    index.remove("other", "b");
    index.insert(BootHost { ownership: ownership(2, true), ..host("b", &[2, 9]) });
    // Who was registered later with a further card of the machine takes nothing from it, where the machine shows its own.
    let since = |boot: u8, since| {
        let record = Registration { since, ..Registration::default() };
        Ownership { record: Some(record.into()), ..ownership(boot, true) }
    };
    index.insert(BootHost { ownership: since(1, 5), ..host("a", &[1, 2]) });
    index.insert(BootHost { ownership: since(2, 6), ..host("b", &[2, 9]) });
    assert_eq!(conflicting("a", &[1, 2]), None);
    assert_eq!(conflicting("a", &[2]), Some((2, "b".into())));
    assert_eq!(conflicting("b", &[1, 2]), Some((1, "a".into())));
    index.insert(BootHost { ownership: since(2, 5), ..host("b", &[2, 9]) });
    assert_eq!(conflicting("a", &[1, 2]), Some((2, "b".into())));
}

#[test]
fn a_card_that_an_agent_reported_is_its_hosts_as_a_boot_address_is() {
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let of = |name: &str, boot: u8, since: i64, cards: &[(u8, i64)], macs: &[u8]| {
        let cards = cards.iter().map(|(last, at)| (mac(*last).to_string(), *at)).collect();
        let record = Registration { since, cards, ..Registration::default() };
        let ownership = Ownership {
            boot_mac: Some(mac(boot)),
            registered: since > 0,
            record: Some(record.into()),
            ..Ownership::default()
        };
        BootHost { namespace: name.into(), ownership, ..host(name, macs) }
    };
    let before = |index: &HostIndex, uid: &str| index.outranking_host(mac(2), uid, uid).map(|host| host.name.clone());
    // Boot address, registered, when the agent of a reported card 2, whether b's boot address, registered at 50, is a's.
    for (reported, expected) in [(Some(49), true), (Some(51), false), (None, false)] {
        let index = HostIndex::default();
        let cards: Vec<_> = reported.iter().map(|at| (2, *at)).collect();
        index.insert(of("b", 2, 50, &[], &[2]));
        index.insert(of("a", 1, 10, &cards, &[1, 2]));
        assert_eq!(owner(&index, 2).as_deref(), Some(if expected { "a" } else { "b" }), "{reported:?}");
        assert_eq!(before(&index, "b").is_some(), expected, "{reported:?}");
        assert_eq!(before(&index, "a").is_some(), !expected, "{reported:?}");
        // Who is not registered yet has nothing to say; nor has one that nobody knows yet.
        index.insert(of("b", 2, 0, &[], &[2]));
        let has_it = reported.is_some();
        assert_eq!(before(&index, "b").is_some(), has_it, "{reported:?}");
        assert_eq!(before(&index, "c").is_some(), has_it, "{reported:?}");
    }
}

#[test]
fn strangers_are_let_in_up_to_a_limit_and_never_twice() {
    let index = HostIndex::default();
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    index.limit_waiting(2, ["ns".to_owned()].into());
    let waiting = |reported: &[u8]| DiscoveryState {
        waiting: true,
        counts: true,
        reported: reported.iter().map(|last| mac(*last)).collect(),
        let_in: false,
    };
    assert_eq!(index.unknown_machine(mac(9), false), UnknownMachine::Ignored);
    assert_eq!(index.unknown_machine(mac(9), true), UnknownMachine::Discovered);
    index.insert(BootHost { discovery: waiting(&[9]), ..host("a", &[1]) });
    assert_eq!(index.unknown_machine(mac(9), true), UnknownMachine::Reported("ns/a".into()));
    assert_eq!(index.unknown_machine(mac(1), true), UnknownMachine::Ignored, "it is a host's");
    assert!(index.by_mac(mac(9)).is_none(), "what only reported itself is not the host");
    assert_eq!(index.unknown_machine(mac(8), true), UnknownMachine::Discovered);
    // What somebody writes elsewhere keeps no machine from being discovered.
    let elsewhere = |number: u8, let_in: bool| {
        let discovery = DiscoveryState { let_in, ..waiting(&[8]) };
        BootHost { discovery, namespace: "other".into(), ..host(&format!("c{number}"), &[3]) }
    };
    (0..5).for_each(|number| index.insert(elsewhere(number, false)));
    assert_eq!(index.unknown_machine(mac(8), true), UnknownMachine::Discovered);
    index.insert(elsewhere(0, true));
    assert_eq!(index.unknown_machine(mac(8), true), UnknownMachine::Reported("other/c0".into()), "its BMC let us in");
    index.insert(elsewhere(0, false));
    assert_eq!(index.unknown_machine(mac(8), true), UnknownMachine::Discovered);
    index.insert(BootHost { discovery: waiting(&[]), ..host("b", &[2]) });
    assert_eq!(index.unknown_machine(mac(8), true), UnknownMachine::TooMany(2));
    index.insert(BootHost {
        discovery: DiscoveryState { counts: true, ..DiscoveryState::default() },
        ..host("b", &[2])
    });
    assert_eq!(index.unknown_machine(mac(8), true), UnknownMachine::TooMany(2), "b was accepted, and not seen yet");
    index.insert(host("b", &[2]));
    assert_eq!(index.unknown_machine(mac(8), true), UnknownMachine::Discovered, "b was accepted and inspected");
}

/// Whatever is put in, changed and taken out: what is counted and looked up is that of the hosts that are there.
#[test]
fn nothing_is_left_of_former_hosts() {
    let index = HostIndex::default();
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let digests: Vec<Arc<str>> = ["x", "y"].map(Into::into).to_vec();
    let mut random = 7_u32;
    let mut draw = |most: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % most
    };
    let mut model: BTreeMap<String, BootHost> = BTreeMap::new();
    for step in 0..5_000 {
        if step == 100 {
            index.settle();
        }
        let name = format!("h{}", draw(12));
        if draw(4) == 0 {
            index.remove("ns", &name);
            model.remove(&name);
        } else {
            let cards = [(); 3].map(|()| draw(8) as u8);
            let live = (draw(2) == 0).then(|| digests[draw(2) as usize].clone());
            let target = if draw(3) == 0 { BootTarget::Disk } else { BootTarget::LiveIso };
            let plain = host(&name, &cards);
            let made = BootHost {
                // Made anew under the same name, now and then.
                uid: format!("{name}-{}", draw(2)),
                created: i64::from(draw(3)),
                intent: Some(IndexedIntent { generation: 1, target, session_open: false, live_iso: live }),
                discovery: DiscoveryState {
                    waiting: draw(3) == 0,
                    counts: draw(2) == 0,
                    reported: vec![mac(20 + draw(4) as u8); draw(3) as usize],
                    let_in: draw(2) == 0,
                },
                ownership: Ownership { registered: draw(2) == 0, ..plain.ownership.clone() },
                ..plain
            };
            index.insert(made.clone());
            model.insert(name, made);
        }
        let hosts = index.read();
        let of_mac = |last| model.values().filter(|host| host.macs.contains(&mac(last))).count();
        assert!((0..8).all(|last| hosts.claims(mac(last)).count() == of_mac(last)), "{step}");
        for last in 0..8 {
            assert!(hosts.claims(mac(last)).is_sorted_by(|(one, _), (next, _)| one <= next), "{step}");
            assert!(hosts.claims(mac(last)).all(|(_, host)| model.get(&host.name) == Some(host)), "{step}");
        }
        for last in 20..24 {
            let reported = hosts.reported.range((mac(last), 0)..=(mac(last), u64::MAX)).count();
            let wanted = {
                let says = |host: &&BootHost| host.discovery.let_in && host.discovery.reported.contains(&mac(last));
                model.values().filter(says).count()
            };
            assert_eq!(reported, wanted, "{step}");
        }
        let counted = model.values().filter(|host| host.discovery.counts).count();
        assert_eq!(hosts.counted.get("ns").copied().unwrap_or_default(), counted, "{step}");
        assert_eq!(hosts.by_name.len(), model.len(), "{step}");
        assert_eq!(hosts.by_uid.len(), model.len(), "{step}");
        drop(hosts);
        let registered = model.values().any(BootHost::is_registered);
        assert_eq!(index.namespaces().contains("ns"), registered, "{step}");
        for digest in &digests {
            assert_eq!(index.boots_live(digest), model.values().any(|host| host.live() == Some(digest)), "{step}");
        }
    }
}

/// Somebody has as many hosts as there can be, all with the same cards: none of this may grow with their square.
#[test]
fn many_hosts_with_the_same_cards_cost_no_more_than_others() {
    let index = HostIndex::default();
    let cards: Vec<u8> = (0..64).collect();
    let reported: Vec<_> = (100..116).map(|last| MacAddress([2, 0, 0, 0, 0, last])).collect();
    for round in 0..2 {
        for number in 0..4_000 {
            let discovery = DiscoveryState { counts: true, reported: reported.clone(), ..DiscoveryState::default() };
            index.insert(BootHost { created: round, discovery, ..host(&number.to_string(), &cards) });
        }
    }
    index.limit_waiting(5_000, ["ns".to_owned()].into());
    for _ in 0..100_000 {
        assert_eq!(index.unknown_machine(MacAddress([2, 0, 0, 0, 1, 1]), true), UnknownMachine::Discovered);
        assert!(!index.boots_live("none"));
    }
    for number in 0..4_000 {
        index.remove("ns", &number.to_string());
    }
    let hosts = index.read();
    assert!(hosts.by_mac.is_empty() && hosts.reported.is_empty() && hosts.counted.is_empty());
}

#[test]
fn a_host_goes_before_one_that_waits_to_be_accepted() {
    let index = HostIndex::default();
    let waiting = DiscoveryState { waiting: true, ..DiscoveryState::default() };
    index.insert(BootHost { discovery: waiting.clone(), ..host("a", &[1]) });
    assert_eq!(owner(&index, 1).as_deref(), Some("a"));
    index.insert(BootHost { created: 9, ..host("b", &[1]) });
    assert_eq!(owner(&index, 1).as_deref(), Some("b"));
    index.insert(BootHost { discovery: waiting, ..host("a", &[1]) });
    assert_eq!(owner(&index, 1).as_deref(), Some("b"));
    index.insert(host("a", &[1]));
    assert_eq!(owner(&index, 1).as_deref(), Some("a"), "accepted, it is the older one");
}

#[test]
fn who_was_registered_first_has_the_address_in_whatever_order_hosts_are_listed() {
    let record = |since| Some(Registration { since, ..Registration::default() });
    let since = |name: &str, created, since| {
        let plain = registered(name, 1);
        BootHost {
            created,
            ownership: Ownership { record: record(since).map(Arc::new), ..plain.ownership.clone() },
            ..plain
        }
    };
    let hosts = || [since("victim", 9, 50), since("elder", 1, 60), BootHost { created: 0, ..host("oldest", &[1]) }];
    for settled in [false, true] {
        for turn in 0..3 {
            let index = HostIndex::default();
            if settled {
                index.settle();
            }
            let mut hosts = hosts();
            hosts.rotate_left(turn);
            hosts.into_iter().for_each(|host| index.insert(host));
            assert_eq!(owner(&index, 1).as_deref(), Some("victim"), "{settled} {turn}");
            index.remove("ns", "victim");
            assert_eq!(owner(&index, 1).as_deref(), Some("elder"), "{settled} {turn}");
        }
    }
}

fn registered(name: &str, boot: u8) -> BootHost {
    let plain = host(name, &[boot]);
    let ownership = Ownership { registered: true, ..plain.ownership.clone() };
    BootHost { ownership, ..plain }
}

#[test]
fn who_is_registered_keeps_its_address_from_who_claims_it_later_and_from_who_is_not() {
    let index = HostIndex::default();
    // It was there first and is no host yet.
    index.insert(host("idle", &[1]));
    index.insert(BootHost { created: 5, ..registered("victim", 1) });
    assert_eq!(owner(&index, 1).as_deref(), Some("victim"));
    index.insert(registered("elder", 2));
    index.settle();
    // An older one, registered too, gets the address now.
    for _ in 0..2 {
        index.insert(registered("elder", 1));
        assert_eq!(owner(&index, 1).as_deref(), Some("victim"));
        index.insert(BootHost { created: 5, ..registered("victim", 1) });
        assert_eq!(owner(&index, 1).as_deref(), Some("victim"));
    }
    index.remove("ns", "victim");
    assert_eq!(owner(&index, 1).as_deref(), Some("elder"));
    // A host without a boot address has no better claim for what inspection is said to have found.
    let cards = BootHost { ownership: Ownership { registered: true, ..Ownership::default() }, ..host("cards", &[3]) };
    index.insert(cards);
    index.insert(BootHost { created: 9, ..host("own", &[3]) });
    assert_eq!(owner(&index, 3).as_deref(), Some("own"));
}

#[test]
fn registered_are_boot_addresses_of_hosts_that_a_bmc_let_in() {
    let index = HostIndex::default();
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    index.insert(BootHost { macs: vec![mac(1), mac(2)], ..registered("a", 1) });
    index.insert(host("b", &[3]));
    let waiting = DiscoveryState { waiting: true, ..DiscoveryState::default() };
    index.insert(BootHost { discovery: waiting, ..registered("c", 4) });
    assert_eq!([1, 2, 3, 4, 5].map(|last| index.is_registered(mac(last))), [true, false, false, false, false]);
}

#[test]
fn a_boot_address_goes_before_one_that_inspection_found() {
    let index = HostIndex::default();
    index.insert(host("a", &[1, 2]));
    index.insert(BootHost { created: 9, ..host("b", &[2, 3]) });
    assert_eq!(owner(&index, 2).as_deref(), Some("b"));
    assert_eq!(owner(&index, 3).as_deref(), Some("b"));
    index.insert(host("a", &[1]));
    assert_eq!(owner(&index, 2).as_deref(), Some("b"));
    index.remove("ns", "b");
    assert_eq!(owner(&index, 2), None);
    assert_eq!(owner(&index, 1).as_deref(), Some("a"));
}

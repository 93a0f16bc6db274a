//! Who gets an address when there are few.

use super::*;

/// Hosts of one namespace take what they can get: whoever may make hosts has as many as he has addresses for BMCs.
#[test]
fn hosts_of_another_namespace_get_addresses_whatever_the_first_takes() {
    // pool, hosts of the others' namespace, of which are registered before the first takes its own, that get an address
    let rows = [
        ("10.0.0.100-10.0.0.119", 5, true, 1),
        ("10.0.0.100-10.0.0.119", 5, false, 1),
        ("10.0.0.100-10.0.0.199", 20, true, 4),
        ("10.0.0.100-10.0.0.109", 3, true, 1),
    ];
    for (pool, others, before, wanted) in rows {
        let mut world = World::new(&format!("pool=['{pool}']\n"));
        let host = |world: &World, namespace: &str, number: u8| {
            world.hosts.insert(BootHost {
                namespace: namespace.into(),
                created: 0,
                ownership: registered(number),
                name: format!("{namespace}-{number}"),
                uid: format!("u{number}"),
                macs: vec![MacAddress(mac(number))],
                intent: None,
                boot_interface: Default::default(),
                discovery: Default::default(),
            });
        };
        let others = 200..200 + others;
        let come = |world: &World| others.clone().for_each(|number| host(world, "others", number));
        if before {
            come(&world);
        }
        (1..=150).for_each(|number| host(&world, "greedy", number));
        let mut took = 0;
        for _ in 0..3 {
            world.now += 10;
            took = (1..=150).filter(|number| world.lease(*number, vec![]).is_some()).count();
            for number in 1..=150 {
                // Without an offer, too.
                let asks = vec![DhcpOption::RequestedIpAddress(at(100 + number % 100))];
                world.send(&message_of(mac(number), MessageType::Request, asks));
            }
        }
        come(&world);
        world.now += 10;
        let got = others.clone().filter(|number| world.lease(*number, vec![]).is_some()).count();
        assert!(got >= wanted, "{pool} {before}: {got} beside {took}");
        let refused = (1..=150).map(|number| world.discover(number)).filter(|back| back.message.is_none());
        let dispositions: HashSet<_> = refused.map(|back| back.outcome.disposition.to_string()).collect();
        assert!(dispositions.iter().all(|disposition| disposition.contains("kept for hosts of other namespaces")
            || disposition.contains("make it larger")));
        // When the first one's leases are over, the others' hosts go before them, until they have as many.
        world.now += 100_000;
        let got = others.clone().filter(|number| world.lease(*number, vec![]).is_some()).count();
        let equal = usize::from(others.end - others.start).min((took + got) / 2);
        assert!(got >= equal, "{pool} {before}: {got}, once the {took} are over");
        assert!((1..=150).any(|number| world.lease(number, vec![]).is_some()), "and the first keeps the others");
    }
}

#[test]
fn a_known_machines_address_is_its_own_and_an_empty_pool_says_what_to_do() {
    let mut world = World::new("pool=['10.0.0.100-10.0.0.100']\nlease='60s'\n").host(1, None).host(2, None);
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
    world.now += 100_000;
    assert_eq!(world.discover(3).outcome.disposition, Disposition::Dropped(DropReason::PoolEmpty));
    let back = world.discover(2);
    assert_eq!(back.outcome.disposition, Disposition::Dropped(DropReason::PoolEmpty));
    assert!(
        back.outcome.disposition.to_string().contains("give the machine a reservation"),
        "{}",
        back.outcome.disposition
    );
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
    let mut world = World::new("pool=[]\n").host(1, None);
    let back = world.discover(1);
    assert_eq!(back.outcome.disposition, Disposition::Dropped(DropReason::NoPool));
    assert!(
        back.outcome.disposition.to_string().contains("give the machine a reservation"),
        "{}",
        back.outcome.disposition
    );
}

#[test]
fn a_host_that_is_new_gets_an_address_whatever_guests_take() {
    // pool, known machines that are there already, addresses that guests can have, known newcomers that get one; all are of
    // one namespace, and the last of several kept addresses is for another
    let rows = [
        (100..=199_u8, 0_u8, 90, 9),
        (100..=199, 50, 40, 9),
        (100..=109, 0, 9, 1),
        (100..=101, 0, 1, 1),
        (100..=100, 0, 1, 0),
    ];
    for (pool, present, guests, newcomers) in rows {
        let text = format!("pool=['10.0.0.{}-10.0.0.{}']\n", pool.start(), pool.end());
        for way in ["requests", "four messages", "both, and leases that end"] {
            let mut world = World::new(&text);
            for number in 0..present {
                world = world.host(number, None);
                assert!(world.lease(number, vec![]).is_some());
            }
            let mut bound = HashSet::new();
            for round in 0..3_u8 {
                // One stranger, under a name for each address there is.
                for (number, last) in pool.clone().enumerate() {
                    let name = id(&[round, number as u8, 9, 9]);
                    let asks = |kind, more: Vec<DhcpOption>| {
                        message_of([2, 9, 9, 9, round, number as u8], kind, [vec![name.clone()], more].concat())
                    };
                    if way != "four messages" {
                        let back =
                            world.send(&asks(MessageType::Request, vec![DhcpOption::RequestedIpAddress(at(last))]));
                        bound.extend((back.kind() == Some(MessageType::Ack)).then_some(last));
                    }
                    if way != "requests" {
                        let offer = world.send(&asks(MessageType::Discover, vec![]));
                        let Some(offer) = offer.message else { continue };
                        let chosen =
                            vec![DhcpOption::ServerIdentifier(SERVER), DhcpOption::RequestedIpAddress(offer.yiaddr())];
                        let back = world.send(&asks(MessageType::Request, chosen));
                        bound.extend((back.kind() == Some(MessageType::Ack)).then_some(offer.yiaddr().octets()[3]));
                    }
                }
                if way == "both, and leases that end" {
                    world.now += 150;
                }
            }
            let leased =
                bound.iter().filter(|last| world.table.get(at(**last)).is_some_and(|it| it.state == LeaseState::Bound));
            assert_eq!(leased.count(), guests, "{text} {way}");
            let mut got = 0;
            for number in 200..200 + newcomers + 1 {
                world = world.host(number, None);
                got += u8::from(world.lease(number, vec![]).is_some());
            }
            assert_eq!(got, newcomers, "{text} {way}");
        }
    }
}

#[test]
fn a_guest_has_a_short_lease_renews_it_and_gets_a_long_one_when_it_is_known() {
    let mut world = World::new("pool=['10.0.0.100-10.0.0.109']\ndiscovery=true\n");
    let lease = |back: &Back| match back.option(OptionCode::AddressLeaseTime) {
        Some(DhcpOption::AddressLeaseTime(seconds)) => *seconds,
        other => panic!("{other:?}"),
    };
    assert_eq!(lease(&world.discover(1)), 300);
    assert_eq!(lease(&world.select(1, at(100), vec![])), 300);
    // A whole day in the ramdisk, while others take what they can.
    for number in 10..30 {
        world.lease(number, vec![]);
    }
    for _ in 0..576 {
        world.now += 150;
        let back = world.renew(1, at(100));
        assert_eq!((back.kind(), lease(&back)), (Some(MessageType::Ack), 300));
    }
    // It reported itself: its own word changes nothing.
    let known = |waiting, registered| BootHost {
        namespace: "default".into(),
        created: 0,
        ownership: Ownership { boot_mac: Some(MacAddress(mac(1))), registered, paused: false, ..Ownership::default() },
        name: "web-1".into(),
        uid: "u".into(),
        macs: vec![MacAddress(mac(1))],
        intent: None,
        boot_interface: Default::default(),
        discovery: crate::boot::DiscoveryState { waiting, ..Default::default() },
    };
    world.hosts.insert(known(true, true));
    assert_eq!(lease(&world.renew(1, at(100))), 300);
    // Somebody wrote its address into a host, and no BMC let the appliance in.
    world.hosts.insert(known(false, false));
    assert_eq!(lease(&world.renew(1, at(100))), 300);
    world.hosts.insert(known(false, true));
    assert_eq!(lease(&world.renew(1, at(100))), 3600);
    let mut world = World::new("pool=['10.0.0.100-10.0.0.109']\nunknown_lease='2h'\nlease='30m'\n");
    assert_eq!(lease(&world.discover(1)), 1800, "never longer than the others'");
    assert_eq!(lease(&world.select(1, at(100), vec![DhcpOption::AddressLeaseTime(1)])), 60);
}

#[test]
fn addresses_that_somebody_wrote_into_hosts_leave_room_for_a_new_host() {
    let mut world = World::new("pool=['10.0.0.100-10.0.0.119']\n");
    let named: Vec<_> = (20..=120).map(|number| MacAddress(mac(number))).collect();
    let tenant = |name: &str, ownership: Ownership, macs: &[MacAddress]| BootHost {
        namespace: "tenant".into(),
        created: 0,
        ownership,
        name: name.into(),
        uid: name.into(),
        macs: macs.to_vec(),
        intent: None,
        boot_interface: Default::default(),
        discovery: Default::default(),
    };
    // Further cards of a registered host, and a boot address of one that never was.
    world.hosts.insert(tenant("cards", registered(20), &named[..60]));
    for one in &named[60..] {
        let ownership = Ownership { boot_mac: Some(*one), ..Ownership::default() };
        world.hosts.insert(tenant(&one.to_string(), ownership, &[*one]));
    }
    let taken = (21..=120).filter(|number| world.discover(*number).kind().is_some()).count();
    assert_eq!(taken, 18, "a tenth of the pool is kept");
    let mut world = world.host(1, None);
    let offered = world.discover(1).kind();
    assert_eq!(offered, Some(MessageType::Offer));
    world.lease(20, vec![]);
    // What they had is nobody's when it is over, also while their hosts are there.
    world.now += 8 * 3600;
    let back = (2..=9).filter(|number| world.discover(*number).kind().is_some()).count();
    assert_eq!(back, 8);
}

/// Anybody can ask in the name of a machine that is in another network.
#[test]
fn machines_that_are_at_home_elsewhere_leave_room_for_a_new_host() {
    for (home, own, taken) in
        [("elsewhere", None, 18), ("", None, 20), ("renamed", None, 20), ("elsewhere", Some(21), 19)]
    {
        let reservation =
            own.map(|number| format!("reservation=[{{mac='{}',address='10.0.0.119'}}]\n", MacAddress(mac(number))));
        let settings = format!("pool=['10.0.0.100-10.0.0.119']\n{}", reservation.unwrap_or_default());
        let mut world = World::new(&settings);
        for number in 20..=60 {
            let ownership = Ownership { home: home.into(), ..registered(number) };
            let (name, macs) = (number.to_string(), vec![MacAddress(mac(number))]);
            world.hosts.insert(BootHost {
                namespace: format!("tenant-{number}"),
                created: 0,
                ownership,
                uid: name.clone(),
                name,
                macs,
                intent: None,
                boot_interface: Default::default(),
                discovery: Default::default(),
            });
        }
        let given = (20..=60).filter(|number| world.discover(*number).kind().is_some()).count();
        assert_eq!(given, taken, "{home} {own:?}");
    }
}

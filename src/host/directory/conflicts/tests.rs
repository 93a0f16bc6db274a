//! Tests of what hosts claim of each other: MAC addresses, BMCs, machines.

use kube::Resource;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::slipway::{ANNOTATION_DISCOVERED, DISCOVERED_PENDING};
use crate::boot::BootHost;

fn parsed(mut host: serde_json::Value) -> BareMetalHost {
    host["spec"]["online"] = json!(true);
    serde_json::from_value(host).unwrap()
}

fn host(name: &str, made: u8, mac: Option<u8>, busy: bool) -> BareMetalHost {
    let state = if busy { "inspecting" } else { "available" };
    parsed(json!({
        "metadata": {"name": name, "namespace": "rack", "uid": format!("u-{name}"),
            "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
        "spec": {"online": true, "bootMACAddress": mac.map(|last| format!("02:00:00:00:00:{last:02X}"))},
        "status": {"operationalStatus": "OK", "provisioning": {"state": state}},
    }))
}

/// Tells both of a change, as the watch does; a host that says so was registered with what it named first.
fn take(conflicts: &ConflictIndex, change: &WatchChange<'_, BareMetalHost>) {
    match change {
        WatchChange::Put(host) => {
            put(conflicts, host);
            conflicts.take(&WatchChange::Put(&HostView::from(*host)));
        }
        WatchChange::Gone(key) => {
            conflicts.index.remove(&key.0, &key.1);
            conflicts.take(&WatchChange::Gone(key));
        }
        WatchChange::Listed => {
            conflicts.index.settle();
            conflicts.take(&WatchChange::Listed);
        }
    }
}

fn put(conflicts: &ConflictIndex, host: &BareMetalHost) {
    let uid = host.uid().unwrap_or_default();
    let created = host.creation_timestamp().map(|made| made.0);
    let (boot_mac, bmc) = (host.boot_mac(), host.bmc_address().unwrap_or_default());
    let known = conflicts.index.by_uid(&uid).and_then(|known| known.ownership.record.clone());
    let record = known.or_else(|| {
        crate::host::lifecycle::says_registered(host).then(|| {
            Registration {
                boot_mac_address: boot_mac.map(|mac| mac.to_string()).unwrap_or_default(),
                bmc_address: bmc.to_owned(),
                since: created.map_or(1, |made| made.as_millisecond()),
                ..Registration::default()
            }
            .into()
        })
    });
    let registered = record.as_ref().is_some_and(|record| record.has_mac(boot_mac));
    let waiting = crate::host::discovery::waits(host);
    conflicts.index.insert(BootHost {
        namespace: host.namespace().unwrap_or_default(),
        name: host.name_any(),
        uid,
        created: created.map_or(0, |made| made.as_second()),
        macs: boot_mac.into_iter().collect(),
        boot_interface: Default::default(),
        intent: None,
        discovery: crate::boot::DiscoveryState { waiting, ..Default::default() },
        ownership: crate::boot::Ownership { boot_mac, registered, record, ..Default::default() },
    });
}

#[test]
fn the_first_host_with_a_mac_address_has_it() {
    let conflicts = ConflictIndex::default();
    let (first, second) = (host("first", 1, Some(0xAB), true), host("second", 2, Some(0xAB), true));
    take(&conflicts, &WatchChange::Put(&second));
    take(&conflicts, &WatchChange::Put(&first));
    assert_eq!(conflicts.mac_owner(&second, "02:00:00:00:00:ab").as_deref(), Some("BareMetalHost rack/first"));
    assert_eq!(conflicts.mac_owner(&first, "02:00:00:00:00:AB"), None);
    assert_eq!(conflicts.busy().len(), 2);
    // It gets another address.
    take(&conflicts, &WatchChange::Put(&host("first", 1, Some(0xCD), false)));
    assert_eq!(conflicts.mac_owner(&second, "02:00:00:00:00:AB"), None);
    assert_eq!(conflicts.busy(), HashSet::from([("rack".to_owned(), "second".to_owned())]));
    // Of the same second is first who has the smaller UID.
    let twin = host("a-twin", 2, Some(0xAB), false);
    take(&conflicts, &WatchChange::Put(&twin));
    assert_eq!(conflicts.mac_owner(&second, "02:00:00:00:00:AB").as_deref(), Some("BareMetalHost rack/a-twin"));
}

/// A host with this boot address (0: none), whose inspection found these cards.
fn owner(name: &str, made: u8, boot: u8, cards: &[u8], registered: bool) -> BareMetalHost {
    let mac = |last: u8| format!("02:00:00:00:00:{last:02x}");
    let nics: Vec<_> = cards.iter().map(|last| json!({ "mac": mac(*last) })).collect();
    let uid = format!("u-{name}");
    parsed(json!({
        "metadata": {"name": name, "namespace": "rack", "uid": uid,
            "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
        "spec": {"online": true, "bmc": {"address": "ipmi://10.0.0.1", "credentialsName": "s"},
            "bootMACAddress": (boot > 0).then(|| mac(boot))},
        "status": {"provisioning": {"state": "available", "ID": if registered { uid.as_str() } else { "" }},
            "hardware": {"nics": nics}},
    }))
}

#[test]
fn a_host_keeps_its_machine_against_a_newcomer_and_against_who_is_not_registered() {
    // who asks for the address 7, who else has it, whether that one has the better claim
    let rows = [
        // A card is no claim that keeps anybody from his boot address: anybody can write one.
        (owner("new", 9, 7, &[], false), owner("old", 1, 1, &[1, 7], true), false),
        (owner("new", 1, 7, &[], false), owner("old", 9, 1, &[1, 7], true), false),
        (owner("old", 1, 7, &[], true), owner("new", 9, 7, &[], false), false),
        (owner("old", 1, 7, &[], false), owner("new", 9, 7, &[], true), true),
        (owner("old", 1, 7, &[], true), owner("new", 9, 7, &[], true), false),
        (owner("new", 9, 7, &[], true), owner("old", 1, 7, &[], true), true),
        (owner("new", 9, 7, &[], false), owner("old", 1, 7, &[], false), true),
        (owner("old", 1, 7, &[], false), owner("new", 9, 7, &[], false), false),
        (owner("new", 9, 7, &[], false), owner("old", 1, 1, &[1], true), false),
    ];
    for (asks, other, counts) in rows {
        let conflicts = ConflictIndex::default();
        take(&conflicts, &WatchChange::Put(&asks));
        take(&conflicts, &WatchChange::Put(&other));
        let expected = counts.then(|| format!("BareMetalHost rack/{}", other.name_any()));
        assert_eq!(conflicts.mac_owner(&asks, "02:00:00:00:00:07"), expected, "{asks:?} {other:?}");
        for host in [asks, other] {
            take(&conflicts, &WatchChange::Gone(&key(&host)));
        }
        let known = conflicts.known();
        assert!(known.by_bmc.0.is_empty() && known.hosts.is_empty());
    }
    let address = BmcAddress::parse("ipmi://10.0.0.1").unwrap();
    for (asks, other, counts) in [
        (owner("old", 1, 0, &[], false), owner("new", 9, 0, &[], true), true),
        (owner("new", 9, 0, &[], true), owner("old", 1, 0, &[], false), false),
        (owner("new", 9, 0, &[], true), owner("old", 1, 0, &[], true), true),
        (owner("old", 1, 0, &[], true), owner("new", 9, 0, &[], true), false),
    ] {
        let conflicts = ConflictIndex::default();
        take(&conflicts, &WatchChange::Put(&asks));
        take(&conflicts, &WatchChange::Put(&other));
        let expected = counts.then(|| format!("BareMetalHost rack/{}", other.name_any()));
        assert_eq!(conflicts.bmc_owner(&asks, &address), expected, "{asks:?} {other:?}");
    }
}

fn elsewhere(host: BareMetalHost) -> BareMetalHost {
    let mut host = host;
    host.meta_mut().namespace = Some("tenant".into());
    host
}

#[test]
fn nobody_takes_or_blocks_a_machine_of_another_namespace_by_naming_it() {
    let address = BmcAddress::parse("ipmi://10.0.0.1").unwrap();
    let victim = |registered| owner("victim", 5, 7, &[], registered);
    let both = |conflicts: &ConflictIndex, host: &BareMetalHost| {
        (conflicts.mac_owner(host, "02:00:00:00:00:07"), conflicts.bmc_owner(host, &address))
    };
    // Older, with the same addresses, and no BMC ever let it in.
    let idle = elsewhere(owner("idle", 1, 7, &[7], false));
    for registered in [false, true] {
        let conflicts = ConflictIndex::default();
        take(&conflicts, &WatchChange::Put(&idle));
        take(&conflicts, &WatchChange::Put(&victim(registered)));
        assert_eq!(both(&conflicts, &victim(registered)), (None, None), "{registered}");
    }
    // Who is registered has it, and is not named to others.
    let conflicts = ConflictIndex::default();
    take(&conflicts, &WatchChange::Put(&victim(true)));
    let elder = |boot| elsewhere(owner("elder", 1, boot, &[], true));
    let harmless = json!({
        "metadata": {"name": "elder", "namespace": "tenant", "uid": "u-elder", "creationTimestamp": "2026-01-01T00:00:01Z"},
        "spec": {"bmc": {"address": "ipmi://10.0.0.9", "credentialsName": "s"}, "bootMACAddress": "02:00:00:00:00:08"},
        "status": {"provisioning": {"state": "available", "ID": "u-elder"}},
    });
    take(&conflicts, &WatchChange::Put(&parsed(harmless)));
    take(&conflicts, &WatchChange::Listed);
    let hidden = || Some("a BareMetalHost in another namespace".to_owned());
    assert_eq!(both(&conflicts, &idle), (hidden(), hidden()));
    // An older one, registered too, gets the same addresses now: it comes later all the same.
    for _ in 0..2 {
        take(&conflicts, &WatchChange::Put(&elder(7)));
        assert_eq!(both(&conflicts, &elder(7)), (hidden(), hidden()));
        assert_eq!(both(&conflicts, &victim(true)), (None, None));
        take(&conflicts, &WatchChange::Put(&victim(true)));
    }
}

#[test]
fn a_host_that_waits_to_be_accepted_has_neither_address_nor_bmc() {
    let conflicts = ConflictIndex::default();
    let (stranger, own) = (owner("stranger", 1, 7, &[7, 8], false), owner("own", 9, 7, &[], false));
    let address = BmcAddress::parse("ipmi://10.0.0.1").unwrap();
    let owners = || (conflicts.mac_owner(&own, "02:00:00:00:00:07"), conflicts.bmc_owner(&own, &address));
    take(&conflicts, &WatchChange::Put(&own));
    let annotated = json!({ ANNOTATION_DISCOVERED: DISCOVERED_PENDING });
    let mut waiting = stranger.clone();
    waiting.meta_mut().annotations = serde_json::from_value(annotated).unwrap();
    take(&conflicts, &WatchChange::Put(&waiting));
    assert_eq!(owners(), (None, None));
    // Accepted, it is a host as every other.
    take(&conflicts, &WatchChange::Put(&stranger));
    assert_eq!(owners(), (Some("BareMetalHost rack/stranger".into()), Some("BareMetalHost rack/stranger".into())));
}

#[test]
fn the_first_host_with_a_bmc_has_the_machine_behind_it() {
    let at = |name: &str, made: u8, address: &str| -> BareMetalHost {
        parsed(json!({
            "metadata": {"name": name, "namespace": "rack", "uid": format!("u-{name}"),
                "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
            "spec": {"online": true, "bmc": {"address": address, "credentialsName": "s"}},
        }))
    };
    for (first, second, same) in [
        ("ipmi://10.0.0.1", "10.0.0.1:623", true),
        ("ipmi://10.0.0.1", "libvirt://10.0.0.1", true),
        ("ipmi://10.0.0.1", "ipmi://10.0.0.1:6230", false),
        ("ipmi://10.0.0.1", "redfish://10.0.0.1", false),
        ("redfish://bmc.test/redfish/v1/Systems/1", "redfish-virtualmedia://BMC.test/redfish/v1/Systems/1/", true),
        ("redfish://bmc.test/redfish/v1/Systems/1", "redfish://bmc.test/redfish/v1/Systems/2", false),
        ("redfish://bmc.test", "redfish://bmc.test/redfish/v1/Systems/2", true),
        ("redfish://10.0.0.1/redfish/v1/Systems/1", "redfish://[::ffff:10.0.0.1]/redfish/v1/systems/%31", true),
    ] {
        let conflicts = ConflictIndex::default();
        let (old, new) = (at("old", 1, first), at("new", 2, second));
        take(&conflicts, &WatchChange::Put(&new));
        take(&conflicts, &WatchChange::Put(&old));
        let owner = |host, address| conflicts.bmc_owner(host, &BmcAddress::parse(address).unwrap());
        assert_eq!(owner(&new, second).as_deref(), same.then_some("BareMetalHost rack/old"), "{first} {second}");
        assert_eq!(owner(&old, first), None, "{first} {second}");
        take(&conflicts, &WatchChange::Gone(&key(&old)));
        assert_eq!(owner(&new, second), None);
        take(&conflicts, &WatchChange::Gone(&key(&new)));
        assert!(conflicts.known().by_bmc.0.is_empty());
    }
}

#[test]
fn a_controller_is_known_by_its_address_at_any_port_and_by_any_protocol() {
    let mut owner = owner("owner", 1, 7, &[], true);
    let conflicts = ConflictIndex::default();
    take(&conflicts, &WatchChange::Put(&owner));
    let asks = elsewhere(host("asks", 2, None, false));
    let shared = |asks: &BareMetalHost, address: &str, found: &[&str]| {
        let found: Vec<IpAddr> = found.iter().map(|ip| ip.parse().unwrap()).collect();
        conflicts.is_anothers_controller(asks, &BmcAddress::parse(address).unwrap(), &found)
    };
    assert!(shared(&asks, "redfish+http://[::ffff:10.0.0.1]:8001/redfish/v1/Systems/9", &[]));
    assert!(shared(&asks, "ipmi://bmc.test", &["10.0.0.7", "10.0.0.1"]));
    assert!(!shared(&asks, "ipmi://bmc.test", &["10.0.0.7"]));
    assert!(!shared(&owner, "ipmi://10.0.0.1", &["10.0.0.1"]), "its own namespace's");
    // Who is not registered has nothing.
    owner.meta_mut().uid = Some("another".into());
    take(&conflicts, &WatchChange::Put(&owner));
    assert!(!shared(&asks, "ipmi://10.0.0.1", &["10.0.0.1"]));
    take(&conflicts, &WatchChange::Gone(&key(&owner)));
    assert!(conflicts.known().by_controller.0.is_empty());
}

#[test]
fn the_later_one_of_two_with_one_serial_number_is_told_of_the_first() {
    let vendor = |maker: &str, serial: &str| HardwareSystemVendor {
        manufacturer: maker.into(),
        serial_number: serial.into(),
        ..HardwareSystemVendor::default()
    };
    let with = |name: &str, made: u8, vendor: &HardwareSystemVendor| -> BareMetalHost {
        parsed(json!({
            "metadata": {"name": name, "namespace": "rack", "uid": format!("u-{name}"),
                "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
            "spec": {"online": true},
            "status": {"hardware": {"systemVendor": vendor}},
        }))
    };
    for (first, second, same) in [
        (("Maker", "S1"), ("maker ", " s1"), true),
        (("Maker", "S1"), ("Other", "S1"), false),
        (("Maker", "S1"), ("Maker", "S2"), false),
        (("Maker", "0123456789"), ("Maker", "0123456789"), false),
        (("Maker", ""), ("Maker", ""), false),
    ] {
        let (first, second) = (vendor(first.0, first.1), vendor(second.0, second.1));
        let (old, new) = (with("old", 1, &first), with("new", 2, &second));
        let conflicts = ConflictIndex::default();
        take(&conflicts, &WatchChange::Put(&new));
        take(&conflicts, &WatchChange::Put(&old));
        assert_eq!(
            conflicts.twin(&new, &second).as_deref(),
            same.then_some("BareMetalHost rack/old"),
            "{first:?} {second:?}"
        );
        assert_eq!(conflicts.twin(&old, &first), None, "{first:?} {second:?}");
        take(&conflicts, &WatchChange::Gone(&key(&old)));
        assert_eq!(conflicts.twin(&new, &second), None);
        take(&conflicts, &WatchChange::Gone(&key(&new)));
        assert!(conflicts.known().by_board.0.is_empty());
    }
}

#[test]
fn who_is_gone_has_nothing() {
    let conflicts = ConflictIndex::default();
    let (stays, goes) = (host("stays", 2, Some(1), true), host("goes", 1, Some(1), true));
    take(&conflicts, &WatchChange::Put(&stays));
    take(&conflicts, &WatchChange::Put(&goes));
    assert_eq!(conflicts.mac_owner(&stays, "02:00:00:00:00:01").as_deref(), Some("BareMetalHost rack/goes"));
    take(&conflicts, &WatchChange::Gone(&key(&goes)));
    assert_eq!((conflicts.mac_owner(&stays, "02:00:00:00:00:01"), conflicts.busy().len()), (None, 1));
    take(&conflicts, &WatchChange::Gone(&key(&stays)));
    assert!(conflicts.known().by_bmc.0.is_empty());
}

proptest! {
    /// Whatever comes and goes, the answers are those of looking at everybody.
    #[test]
    fn answers_are_those_of_a_scan(
        events in prop::collection::vec((0..6_u8, any::<bool>(), prop::option::of(0..3_u8), any::<bool>()), 0..40)
    ) {
        let conflicts = ConflictIndex::default();
        let mut all: HashMap<u8, BareMetalHost> = HashMap::new();
        for (who, stays, mac, busy) in events {
            let host = host(&format!("h{who}"), who / 2, mac, busy);
            if stays {
                take(&conflicts, &WatchChange::Put(&host));
                all.insert(who, host);
            } else {
                take(&conflicts, &WatchChange::Gone(&key(&host)));
                all.remove(&who);
            }
        }
        prop_assert_eq!(conflicts.busy().len(), all.values().filter(|host| HostView::from(*host).takes_place()).count());
        for one in all.values() {
            let others = || all.values().filter(|other| other.uid() != one.uid());
            if let Some(mac) = one.boot_mac() {
                let same = others().filter(|other| other.boot_mac() == Some(mac) && age(*other) < age(one));
                let first = same.min_by_key(|other| age(*other));
                let first = first.map(|other| format!("BareMetalHost rack/{}", other.name_any()));
                prop_assert_eq!(conflicts.mac_owner(one, &mac.to_string()), first);
            }
        }
    }
}

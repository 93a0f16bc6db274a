//! What a decision about one host asks of all the others: who has its MAC address, its BMC or its machine, and how many are
//! busy. Kept by the watch, so that an answer costs the same in a rack of any size.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::view::HostView;
use super::{machine, places, view};
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, HardwareSystemVendor};
use crate::bmc::BmcAddress;
use crate::bmc::address::Endpoint;

type Key = (Option<String>, String);

/// Who was there first: when it was made, then its UID.
pub(super) type Age = (Option<Timestamp>, Option<String>);

/// All hosts, as decisions about one of them look at them.
#[derive(Default)]
pub(super) struct Crowd(Mutex<Known>);

#[derive(Default)]
struct Known {
    hosts: HashMap<Key, Arc<Member>>,
    /// By the MAC addresses of their machines.
    by_mac: Shared<MacAddress>,
    /// By protocol, address and port of the BMC.
    by_bmc: Shared<Arc<str>>,
    /// By maker and serial number.
    by_board: Shared<Arc<str>>,
    busy: HashSet<Key>,
    /// What a relist in progress has named so far; the rest is gone when it ends.
    relisted: HashSet<Key>,
}

/// A host. There is one of it, however often it is listed.
struct Member {
    key: Key,
    age: Age,
    registered: bool,
    macs: Vec<MacAddress>,
    /// Its BMC, and the system behind it, where one is named.
    bmc: Option<(Arc<str>, Option<String>)>,
    board: Option<Arc<str>>,
}

impl Member {
    /// Who comes first among those that have something in common.
    fn rank(&self) -> (&Age, &Key) {
        (&self.age, &self.key)
    }
}

/// Who has what, the first one first. It is nearly always one.
struct Shared<K>(HashMap<K, Vec<Arc<Member>>>);

impl<K> Default for Shared<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Shared<K> {
    fn put(&mut self, what: K, member: &Arc<Member>) {
        let all = self.0.entry(what).or_insert_with(|| Vec::with_capacity(1));
        let at = all.partition_point(|other| other.rank() < member.rank());
        all.insert(at, Arc::clone(member));
    }

    fn take_out(&mut self, what: &K, member: &Arc<Member>) {
        let Some(all) = self.0.get_mut(what) else { return };
        all.retain(|other| !Arc::ptr_eq(other, member));
        if all.is_empty() {
            self.0.remove(what);
        }
    }

    fn first<Q: Eq + Hash + ?Sized>(&self, what: &Q, counts: impl Fn(&Member) -> bool) -> Option<&Member>
    where
        K: Borrow<Q>,
    {
        self.0.get(what)?.iter().map(|member| &**member).find(|member| counts(member))
    }
}

/// What tells one BMC from another, and the system that is named behind it. An address that names none means the only
/// system there.
fn place(address: &BmcAddress) -> (String, Option<String>) {
    match &address.endpoint {
        Endpoint::Ipmi { .. } => (format!("ipmi/{}", address.peer()), None),
        Endpoint::Redfish { system, .. } => (format!("redfish/{}", address.peer()), system.clone()),
    }
}

pub(super) fn age(host: &impl ResourceExt) -> Age {
    (host.creation_timestamp().map(|time| time.0), host.uid())
}

/// A host that claims a machine.
pub(super) trait Claimant: ResourceExt {
    /// Whether it was registered with the machine that it names now.
    fn is_registered(&self) -> bool;
}

impl Claimant for HostView {
    fn is_registered(&self) -> bool {
        self.is_registered()
    }
}

impl Claimant for BareMetalHost {
    fn is_registered(&self) -> bool {
        machine::is_registered(self)
    }
}

impl Crowd {
    /// Takes an event of the watch in.
    pub(super) fn take(&self, event: &Event<HostView>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => known.relisted.clear(),
            Event::Apply(host) => known.put(host),
            Event::InitApply(host) => {
                known.put(host);
                known.relisted.insert(key(host));
            }
            Event::InitDone => {
                let relisted = std::mem::take(&mut known.relisted);
                let gone: Vec<Key> = known.hosts.keys().filter(|key| !relisted.contains(*key)).cloned().collect();
                gone.iter().for_each(|key| known.remove(key));
            }
            Event::Delete(host) => known.remove(&key(host)),
        }
    }

    /// Another host whose machine has this host's boot MAC address, as its own boot address or as a card that inspection
    /// found: `namespace/name`. Of two that are not registered yet it is the first one's; who is registered has it
    /// already, and of two such nobody can say whose it is.
    pub(super) fn mac_owner(&self, host: &impl Claimant, mac: &str) -> Option<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (own, own_age, registered) = (key(host), age(host), host.is_registered());
        let counts = |other: &Member| other.key != own && (other.registered || (!registered && other.age < own_age));
        known.by_mac.first(&mac.parse().ok()?, counts).map(|other| label(&other.key))
    }

    /// Another host with the machine behind this BMC address: one that is registered with it, or was there before this
    /// one: `namespace/name`.
    pub(super) fn bmc_owner(&self, host: &impl Claimant, address: &BmcAddress) -> Option<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (bmc, wanted) = place(address);
        let (own, own_age, unregistered) = (key(host), age(host), !host.is_registered());
        let counts = |other: &Member| {
            let system = other.bmc.as_ref().and_then(|(_, system)| system.as_ref());
            let same = system.is_none() || wanted.is_none() || system == wanted.as_ref();
            other.key != own && same && (!other.registered, &other.age) < (unregistered, &own_age)
        };
        known.by_bmc.first(bmc.as_str(), counts).map(|other| label(&other.key))
    }

    /// Another host that was there before this one and whose hardware has the same maker and serial number:
    /// `namespace/name`.
    pub(super) fn twin(&self, host: &impl ResourceExt, vendor: &HardwareSystemVendor) -> Option<String> {
        let board = view::identity(vendor)?;
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.by_board.first(board.as_str(), |_| true)?;
        (first.age < age(host)).then(|| label(&first.key))
    }

    /// The hosts that are inspected, written or cleaned, as far as the watch has told.
    pub(super) fn busy(&self) -> HashSet<places::Key> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.busy.iter().map(|(namespace, name)| (namespace.clone().unwrap_or_default(), name.clone())).collect()
    }
}

impl Known {
    fn put(&mut self, host: &HostView) {
        let key = key(host);
        self.remove(&key);
        // A machine that only reported itself keeps no other host from its own.
        let claims = Some(host).filter(|host| !host.waits());
        let bmc = claims.and_then(|host| BmcAddress::parse(host.bmc_address()?).ok()).map(|address| place(&address));
        let member = Arc::new(Member {
            key: key.clone(),
            age: age(host),
            registered: host.is_registered(),
            macs: claims.into_iter().flat_map(HostView::macs).collect(),
            bmc: bmc.map(|(bmc, system)| (bmc.into(), system)),
            board: host.board().map(Arc::from),
        });
        for mac in &member.macs {
            self.by_mac.put(*mac, &member);
        }
        if let Some((bmc, _)) = &member.bmc {
            self.by_bmc.put(Arc::clone(bmc), &member);
        }
        if let Some(board) = &member.board {
            self.by_board.put(Arc::clone(board), &member);
        }
        if host.takes_place() {
            self.busy.insert(key.clone());
        }
        self.hosts.insert(key, member);
    }

    fn remove(&mut self, key: &Key) {
        let Some(member) = self.hosts.remove(key) else { return };
        self.busy.remove(key);
        for mac in &member.macs {
            self.by_mac.take_out(mac, &member);
        }
        if let Some((bmc, _)) = &member.bmc {
            self.by_bmc.take_out(bmc, &member);
        }
        if let Some(board) = &member.board {
            self.by_board.take_out(board, &member);
        }
    }
}

fn key(host: &impl ResourceExt) -> Key {
    (host.namespace(), host.name_any())
}

fn label((namespace, name): &Key) -> String {
    format!("{}/{name}", namespace.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use kube::Resource;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::api::slipway::{ANNOTATION_DISCOVERED, DISCOVERED_PENDING};

    fn host(name: &str, made: u8, mac: Option<u8>, busy: bool) -> HostView {
        let state = if busy { "inspecting" } else { "available" };
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "rack", "uid": format!("u-{name}"),
                "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
            "spec": {"online": true, "bootMACAddress": mac.map(|last| format!("02:00:00:00:00:{last:02X}"))},
            "status": {"operationalStatus": "OK", "provisioning": {"state": state}},
        }))
        .unwrap()
    }

    #[test]
    fn the_first_host_with_a_mac_address_has_it() {
        let crowd = Crowd::default();
        let (first, second) = (host("first", 1, Some(0xAB), true), host("second", 2, Some(0xAB), true));
        crowd.take(&Event::Apply(second.clone()));
        crowd.take(&Event::Apply(first.clone()));
        assert_eq!(crowd.mac_owner(&second, "02:00:00:00:00:ab").as_deref(), Some("rack/first"));
        assert_eq!(crowd.mac_owner(&first, "02:00:00:00:00:AB"), None);
        assert_eq!(crowd.busy().len(), 2);
        // It gets another address.
        crowd.take(&Event::Apply(host("first", 1, Some(0xCD), false)));
        assert_eq!(crowd.mac_owner(&second, "02:00:00:00:00:AB"), None);
        assert_eq!(crowd.busy(), HashSet::from([("rack".to_owned(), "second".to_owned())]));
        // Of the same second is first who has the smaller UID.
        let twin = host("a-twin", 2, Some(0xAB), false);
        crowd.take(&Event::Apply(twin.clone()));
        assert_eq!(crowd.mac_owner(&second, "02:00:00:00:00:AB").as_deref(), Some("rack/a-twin"));
    }

    /// A host with this boot address (0: none), whose inspection found these cards.
    fn owner(name: &str, made: u8, boot: u8, cards: &[u8], registered: bool) -> HostView {
        let mac = |last: u8| format!("02:00:00:00:00:{last:02x}");
        let nics: Vec<_> = cards.iter().map(|last| json!({ "mac": mac(*last) })).collect();
        let uid = format!("u-{name}");
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "rack", "uid": uid,
                "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
            "spec": {"online": true, "bmc": {"address": "ipmi://10.0.0.1", "credentialsName": "s"},
                "bootMACAddress": (boot > 0).then(|| mac(boot))},
            "status": {"provisioning": {"state": "available", "ID": if registered { uid.as_str() } else { "" }},
                "hardware": {"nics": nics}},
        }))
        .unwrap()
    }

    #[test]
    fn a_host_keeps_its_machine_against_a_newcomer_and_of_two_registered_ones_nobody_has_it() {
        // who asks for the address 7, who else has it, whether that one counts
        let rows = [
            // A slip: the other host's second card, which only inspection knows.
            (owner("new", 9, 7, &[], false), owner("old", 1, 1, &[1, 7], true), true),
            (owner("new", 1, 7, &[], false), owner("old", 9, 1, &[1, 7], true), true),
            (owner("old", 1, 7, &[], true), owner("new", 9, 7, &[], false), false),
            // One that is older and had no address until now.
            (owner("old", 1, 7, &[], true), owner("new", 9, 7, &[], true), true),
            (owner("new", 9, 7, &[], true), owner("old", 1, 7, &[], true), true),
            (owner("new", 9, 7, &[], false), owner("old", 1, 7, &[], false), true),
            (owner("old", 1, 7, &[], false), owner("new", 9, 7, &[], false), false),
            (owner("new", 9, 7, &[], false), owner("old", 1, 1, &[1], true), false),
        ];
        for (asks, other, counts) in rows {
            let crowd = Crowd::default();
            crowd.take(&Event::Apply(asks.clone()));
            crowd.take(&Event::Apply(other.clone()));
            let expected = counts.then(|| format!("rack/{}", other.name_any()));
            assert_eq!(crowd.mac_owner(&asks, "02:00:00:00:00:07"), expected, "{asks:?} {other:?}");
            for host in [asks, other] {
                crowd.take(&Event::Delete(host));
            }
            let known = crowd.0.lock().unwrap();
            assert!(known.by_mac.0.is_empty() && known.by_bmc.0.is_empty() && known.hosts.is_empty());
        }
        let address = BmcAddress::parse("ipmi://10.0.0.1").unwrap();
        for (asks, other, counts) in [
            (owner("old", 1, 0, &[], false), owner("new", 9, 0, &[], true), true),
            (owner("new", 9, 0, &[], true), owner("old", 1, 0, &[], false), false),
            (owner("new", 9, 0, &[], true), owner("old", 1, 0, &[], true), true),
            (owner("old", 1, 0, &[], true), owner("new", 9, 0, &[], true), false),
        ] {
            let crowd = Crowd::default();
            crowd.take(&Event::Apply(asks.clone()));
            crowd.take(&Event::Apply(other.clone()));
            let expected = counts.then(|| format!("rack/{}", other.name_any()));
            assert_eq!(crowd.bmc_owner(&asks, &address), expected, "{asks:?} {other:?}");
        }
    }

    #[test]
    fn a_host_that_waits_to_be_accepted_has_neither_address_nor_bmc() {
        let crowd = Crowd::default();
        let (stranger, own) = (owner("stranger", 1, 7, &[7, 8], false), owner("own", 9, 7, &[], false));
        let address = BmcAddress::parse("ipmi://10.0.0.1").unwrap();
        let owners = || (crowd.mac_owner(&own, "02:00:00:00:00:07"), crowd.bmc_owner(&own, &address));
        crowd.take(&Event::Apply(own.clone()));
        let annotated = json!({ ANNOTATION_DISCOVERED: DISCOVERED_PENDING });
        let mut waiting = stranger.clone();
        waiting.meta_mut().annotations = serde_json::from_value(annotated).unwrap();
        crowd.take(&Event::Apply(waiting));
        assert_eq!(owners(), (None, None));
        // Accepted, it is a host as every other.
        crowd.take(&Event::Apply(stranger));
        assert_eq!(owners(), (Some("rack/stranger".into()), Some("rack/stranger".into())));
    }

    #[test]
    fn the_first_host_with_a_bmc_has_the_machine_behind_it() {
        let at = |name: &str, made: u8, address: &str| -> HostView {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "rack", "uid": format!("u-{name}"),
                    "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
                "spec": {"online": true, "bmc": {"address": address, "credentialsName": "s"}},
            }))
            .unwrap()
        };
        for (first, second, same) in [
            ("ipmi://10.0.0.1", "10.0.0.1:623", true),
            ("ipmi://10.0.0.1", "libvirt://10.0.0.1", true),
            ("ipmi://10.0.0.1", "ipmi://10.0.0.1:6230", false),
            ("ipmi://10.0.0.1", "redfish://10.0.0.1", false),
            ("redfish://bmc.test/redfish/v1/Systems/1", "redfish-virtualmedia://BMC.test/redfish/v1/Systems/1/", true),
            ("redfish://bmc.test/redfish/v1/Systems/1", "redfish://bmc.test/redfish/v1/Systems/2", false),
            ("redfish://bmc.test", "redfish://bmc.test/redfish/v1/Systems/2", true),
        ] {
            let crowd = Crowd::default();
            let (old, new) = (at("old", 1, first), at("new", 2, second));
            crowd.take(&Event::Apply(new.clone()));
            crowd.take(&Event::Apply(old.clone()));
            let owner = |host, address| crowd.bmc_owner(host, &BmcAddress::parse(address).unwrap());
            assert_eq!(owner(&new, second).as_deref(), same.then_some("rack/old"), "{first} {second}");
            assert_eq!(owner(&old, first), None, "{first} {second}");
            crowd.take(&Event::Delete(old.clone()));
            assert_eq!(owner(&new, second), None);
            crowd.take(&Event::Delete(new.clone()));
            assert!(crowd.0.lock().unwrap().by_bmc.0.is_empty());
        }
    }

    #[test]
    fn the_later_one_of_two_with_one_serial_number_is_told_of_the_first() {
        let vendor = |maker: &str, serial: &str| HardwareSystemVendor {
            manufacturer: maker.into(),
            serial_number: serial.into(),
            ..HardwareSystemVendor::default()
        };
        let with = |name: &str, made: u8, vendor: &HardwareSystemVendor| -> HostView {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "rack", "uid": format!("u-{name}"),
                    "creationTimestamp": format!("2026-01-01T00:00:{made:02}Z")},
                "spec": {"online": true},
                "status": {"hardware": {"systemVendor": vendor}},
            }))
            .unwrap()
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
            let crowd = Crowd::default();
            crowd.take(&Event::Apply(new.clone()));
            crowd.take(&Event::Apply(old.clone()));
            assert_eq!(crowd.twin(&new, &second).as_deref(), same.then_some("rack/old"), "{first:?} {second:?}");
            assert_eq!(crowd.twin(&old, &first), None, "{first:?} {second:?}");
            crowd.take(&Event::Delete(old));
            assert_eq!(crowd.twin(&new, &second), None);
            crowd.take(&Event::Delete(new));
            assert!(crowd.0.lock().unwrap().by_board.0.is_empty());
        }
    }

    #[test]
    fn a_relist_forgets_who_is_gone() {
        let crowd = Crowd::default();
        let (stays, goes) = (host("stays", 2, Some(1), true), host("goes", 1, Some(1), true));
        crowd.take(&Event::Apply(stays.clone()));
        crowd.take(&Event::Apply(goes));
        crowd.take(&Event::Init);
        crowd.take(&Event::InitApply(stays.clone()));
        assert_eq!(crowd.mac_owner(&stays, "02:00:00:00:00:01").as_deref(), Some("rack/goes"));
        crowd.take(&Event::InitDone);
        assert_eq!((crowd.mac_owner(&stays, "02:00:00:00:00:01"), crowd.busy().len()), (None, 1));
        crowd.take(&Event::Delete(stays));
        assert!(crowd.0.lock().unwrap().by_mac.0.is_empty());
    }

    proptest! {
        /// Whatever comes and goes, the answers are those of looking at everybody.
        #[test]
        fn answers_are_those_of_a_scan(
            events in prop::collection::vec((0..6_u8, any::<bool>(), prop::option::of(0..3_u8), any::<bool>()), 0..40)
        ) {
            let crowd = Crowd::default();
            let mut all: HashMap<u8, HostView> = HashMap::new();
            for (who, stays, mac, busy) in events {
                let host = host(&format!("h{who}"), who / 2, mac, busy);
                if stays {
                    crowd.take(&Event::Apply(host.clone()));
                    all.insert(who, host);
                } else {
                    crowd.take(&Event::Delete(host));
                    all.remove(&who);
                }
            }
            prop_assert_eq!(crowd.busy().len(), all.values().filter(|host| host.takes_place()).count());
            for one in all.values() {
                let others = || all.values().filter(|other| other.uid() != one.uid());
                if let Some(mac) = one.boot_mac_address() {
                    let same = others().filter(|other| other.boot_mac_address() == Some(mac) && age(*other) < age(one));
                    let first = same.min_by_key(|other| age(*other)).map(|other| format!("rack/{}", other.name_any()));
                    prop_assert_eq!(crowd.mac_owner(one, mac), first);
                }
            }
        }
    }
}

//! What a decision about one host asks of all the others: who has its MAC address, its BMC or its machine, and how many are
//! busy. Kept by the watch, so that an answer costs the same in a rack of any size.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::view::HostView;
use super::{machine, places, view};
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, HardwareSystemVendor};
use crate::api::slipway::Registration;
use crate::bmc::BmcAddress;
use crate::bmc::address::{BmcHost, Endpoint};
use crate::boot::{Claim, ClaimOrder, HostIndex};
use crate::outbound::plain;

type Key = (Option<String>, String);

/// Who was there first: when it was made, then its UID.
pub(super) type Age = (Option<Timestamp>, Option<String>);

/// All hosts, as decisions about one of them look at them.
#[derive(Default)]
pub(super) struct Crowd {
    known: Mutex<Known>,
    /// What they were registered with. DHCP and booting answer from the same.
    index: HostIndex,
}

#[derive(Default)]
struct Known {
    hosts: HashMap<Key, Arc<Member>>,
    /// By the MAC address that they boot with.
    by_mac: Shared<MacAddress>,
    /// By protocol, address and port of the BMC.
    by_bmc: Shared<Arc<str>>,
    /// By the host of the BMC's address, in one form.
    by_controller: Shared<Arc<str>>,
    /// By maker and serial number.
    by_board: Shared<Arc<str>>,
    busy: HashSet<Key>,
    order: ClaimOrder,
    /// What a relist in progress has named so far; the rest is gone when it ends.
    relisted: HashSet<Key>,
}

/// A host. There is one of it, however often it is listed.
struct Member {
    key: Key,
    age: Age,
    /// Whether its status says that it is registered; its record has to say so as well.
    says: bool,
    boot_mac: Option<MacAddress>,
    /// Its BMC, and the system behind it, where one is named.
    bmc: Option<(Arc<str>, Option<String>)>,
    /// `spec.bmc.address`, when it is one.
    bmc_address: Option<Arc<str>>,
    controller: Option<Arc<str>>,
    board: Option<Arc<str>>,
    /// The numbers of its claims of the boot address and of the BMC.
    since: Since,
}

#[derive(Clone, Copy, Default)]
struct Since {
    mac: u64,
    bmc: u64,
}

impl Member {
    /// Who comes first among those that have something in common.
    fn rank(&self) -> (&Age, &Key) {
        (&self.age, &self.key)
    }

    /// How it is named to who has a host in this namespace: what others have is none of his affair.
    fn shown(&self, namespace: Option<&str>) -> String {
        if self.key.0.as_deref() == namespace {
            format!("BareMetalHost {}", label(&self.key))
        } else {
            "a BareMetalHost in another namespace".to_owned()
        }
    }
}

/// Of a boot address or a BMC, by a host that does not wait to be accepted.
fn claim((created, uid): &Age, registered: Option<i64>, since: u64) -> Claim {
    Claim {
        waiting: false,
        card: false,
        unregistered: registered.is_none(),
        registered: registered.unwrap_or_default(),
        since,
        created: created.map_or(0, |created| created.as_second()),
        uid: uid.clone().unwrap_or_default(),
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

    fn all<Q: Eq + Hash + ?Sized>(&self, what: &Q) -> impl Iterator<Item = &Member>
    where
        K: Borrow<Q>,
    {
        self.0.get(what).into_iter().flatten().map(|member| &**member)
    }
}

/// What tells one BMC from another, and the system that is named behind it. An address that names none means the only
/// system there.
fn place(address: &BmcAddress) -> (String, Option<String>) {
    match &address.endpoint {
        Endpoint::Ipmi { .. } => (format!("ipmi/{}", address.peer()), None),
        // Services that tell apart what differs in capitals only are not known.
        Endpoint::Redfish { system, .. } => {
            (format!("redfish/{}", address.peer()), system.as_deref().map(str::to_ascii_lowercase))
        }
    }
}

/// The controller that an address names, by whatever port and protocol.
fn controller(host: &BmcHost) -> String {
    match host {
        BmcHost::Ip(ip) => plain(*ip).to_string(),
        BmcHost::Name(name) => name.clone(),
    }
}

pub(super) fn age(host: &impl ResourceExt) -> Age {
    (host.creation_timestamp().map(|time| time.0), host.uid())
}

/// A host that claims a machine.
pub(super) trait Claimant: ResourceExt {
    /// Whether its status says that it is registered.
    fn says_registered(&self) -> bool;
    /// The MAC address that it boots with.
    fn boot_mac(&self) -> Option<MacAddress>;
    /// `spec.bmc.address`
    fn bmc_address(&self) -> Option<&str>;
}

impl Claimant for HostView {
    fn says_registered(&self) -> bool {
        self.says_registered()
    }

    fn boot_mac(&self) -> Option<MacAddress> {
        self.boot_mac()
    }

    fn bmc_address(&self) -> Option<&str> {
        self.bmc_address()
    }
}

impl Claimant for BareMetalHost {
    fn says_registered(&self) -> bool {
        machine::says_registered(self)
    }

    fn boot_mac(&self) -> Option<MacAddress> {
        self.spec.boot_mac_address.as_deref()?.parse().ok()
    }

    fn bmc_address(&self) -> Option<&str> {
        self.spec.bmc.as_ref().map(|bmc| bmc.address.as_str())
    }
}

impl Crowd {
    /// Knows nobody yet; `index` has what they were registered with.
    pub(super) fn new(index: HostIndex) -> Self {
        Self { known: Mutex::default(), index }
    }

    /// Whether everybody is known that was there at the start. Before, the first one of two may be missing.
    pub(super) fn is_listed(&self) -> bool {
        self.known().order.is_settled()
    }

    /// Whether a host was registered with what it names now.
    pub(super) fn is_registered(&self, host: &impl Claimant) -> bool {
        self.registered(host).is_some()
    }

    /// When, Unix time in milliseconds.
    fn registered(&self, host: &impl Claimant) -> Option<i64> {
        let names = (host.boot_mac(), host.bmc_address().unwrap_or_default());
        self.recorded(&host.uid()?, host.says_registered(), names)
    }

    fn recorded(&self, uid: &str, says: bool, (mac, bmc): (Option<MacAddress>, &str)) -> Option<i64> {
        let known = self.index.by_uid(uid)?;
        let counts = |record: &&Registration| says || Timestamp::now().as_millisecond() < record.until;
        let record = known.standing.record.as_ref().filter(|record| record.fits(mac, bmc)).filter(counts)?;
        Some(record.since)
    }

    fn since(&self, member: &Member) -> Option<i64> {
        let names = (member.boot_mac, member.bmc_address.as_deref().unwrap_or_default());
        self.recorded(member.age.1.as_deref()?, member.says, names)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event of the watch in.
    pub(super) fn take(&self, event: &Event<HostView>) {
        let mut known = self.known();
        match event {
            Event::Init => known.relisted.clear(),
            Event::Apply(host) => known.put(host),
            Event::InitApply(host) => {
                known.put(host);
                known.relisted.insert(key(host));
            }
            Event::InitDone => {
                known.order.settle();
                let relisted = std::mem::take(&mut known.relisted);
                let gone: Vec<Key> = known.hosts.keys().filter(|key| !relisted.contains(*key)).cloned().collect();
                gone.iter().for_each(|key| known.remove(key));
            }
            Event::Delete(host) => known.remove(&key(host)),
        }
    }

    /// The other host that has this host's boot MAC address, as one of this host's namespace is told of it: the one with
    /// the best [`Claim`], when that is better than this host's. Who is not registered keeps nobody of another namespace
    /// from an address: anybody can name one.
    pub(super) fn mac_owner(&self, host: &impl Claimant, mac: &str) -> Option<String> {
        let known = self.known();
        let mac: MacAddress = mac.parse().ok()?;
        let own = known.hosts.get(&key(host)).filter(|own| own.boot_mac == Some(mac));
        self.better(host, own.map(|own| own.since.mac), known.by_mac.all(&mac).map(|other| (other, other.since.mac)))
    }

    /// The other host that has the machine behind this BMC address, by the same rule.
    pub(super) fn bmc_owner(&self, host: &impl Claimant, address: &BmcAddress) -> Option<String> {
        let known = self.known();
        let (bmc, wanted) = place(address);
        let is_same = |system: &Option<String>| system.is_none() || wanted.is_none() || *system == wanted;
        let own = known.hosts.get(&key(host)).filter(|own| own.bmc.as_ref().is_some_and(|(at, _)| **at == *bmc));
        let same = known.by_bmc.all(bmc.as_str()).filter(|other| other.bmc.as_ref().is_some_and(|(_, at)| is_same(at)));
        self.better(host, own.map(|own| own.since.bmc), same.map(|other| (other, other.since.bmc)))
    }

    /// Whether a registered host of another namespace names the controller of this address, or one of those found behind it.
    pub(super) fn is_anothers_controller(
        &self,
        host: &impl ResourceExt,
        address: &BmcAddress,
        found: &[IpAddr],
    ) -> bool {
        let known = self.known();
        let namespace = host.namespace();
        let names = found.iter().map(IpAddr::to_string).chain([controller(&address.host)]);
        let is_anothers = |other: &Member| other.key.0 != namespace && self.since(other).is_some();
        names.into_iter().any(|name| known.by_controller.all(name.as_str()).any(is_anothers))
    }

    /// Another host that was there before this one and whose hardware has the same maker and serial number, as one of
    /// this host's namespace is told of it.
    pub(super) fn twin(&self, host: &impl ResourceExt, vendor: &HardwareSystemVendor) -> Option<String> {
        let board = view::identity(vendor)?;
        let known = self.known();
        let first = known.by_board.all(board.as_str()).next()?;
        (first.age < age(host)).then(|| first.shown(host.namespace().as_deref()))
    }

    /// The hosts that are inspected, written or cleaned, as far as the watch has told.
    pub(super) fn busy(&self) -> HashSet<places::Key> {
        let known = self.known();
        known.busy.iter().map(|(namespace, name)| (namespace.clone().unwrap_or_default(), name.clone())).collect()
    }

    /// Which of these others, with the numbers of their claims, has what this host claims under the number `own`.
    fn better<'a>(
        &self,
        host: &impl Claimant,
        own: Option<u64>,
        others: impl Iterator<Item = (&'a Member, u64)>,
    ) -> Option<String> {
        let (this, namespace) = (key(host), host.namespace());
        // One that the watch has not told of yet comes last.
        let own = claim(&age(host), self.registered(host), own.unwrap_or(u64::MAX));
        let better = others
            .filter(|(other, _)| other.key != this)
            .map(|(other, number)| (claim(&other.age, self.since(other), number), other))
            .filter(|(theirs, other)| !theirs.unregistered || other.key.0 == namespace)
            .filter(|(theirs, _)| *theirs < own);
        better.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, other)| other.shown(namespace.as_deref()))
    }
}

impl Known {
    fn put(&mut self, host: &HostView) {
        let key = key(host);
        let former = self.hosts.get(&key).cloned().filter(|former| former.age == age(host));
        self.remove(&key);
        // A machine that only reported itself keeps no other host from its own.
        let claims = Some(host).filter(|host| !host.waits());
        let address = claims.and_then(|host| BmcAddress::parse(host.bmc_address()?).ok());
        let bmc_address = address.is_some().then(|| host.bmc_address().map(Arc::from)).flatten();
        let controller = address.as_ref().map(|address| Arc::from(controller(&address.host)));
        let bmc = address.map(|address| place(&address));
        let boot_mac = claims.and_then(HostView::boot_mac);
        let at = |bmc: &Option<(Arc<str>, Option<String>)>| bmc.as_ref().map(|(at, _)| Arc::clone(at));
        let bmc = bmc.map(|(at, system)| (Arc::from(at), system));
        let former = former.as_deref();
        let same_mac = former.filter(|former| former.boot_mac == boot_mac).map(|former| former.since.mac);
        let same_bmc = former.filter(|former| at(&former.bmc) == at(&bmc)).map(|former| former.since.bmc);
        let since = Since { mac: self.order.since(same_mac), bmc: self.order.since(same_bmc) };
        let member = Arc::new(Member {
            key: key.clone(),
            age: age(host),
            says: host.says_registered(),
            boot_mac,
            bmc,
            bmc_address,
            controller,
            board: host.board().map(Arc::from),
            since,
        });
        if let Some(mac) = member.boot_mac {
            self.by_mac.put(mac, &member);
        }
        if let Some((bmc, _)) = &member.bmc {
            self.by_bmc.put(Arc::clone(bmc), &member);
        }
        if let Some(controller) = &member.controller {
            self.by_controller.put(Arc::clone(controller), &member);
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
        if let Some(mac) = &member.boot_mac {
            self.by_mac.take_out(mac, &member);
        }
        if let Some((bmc, _)) = &member.bmc {
            self.by_bmc.take_out(bmc, &member);
        }
        if let Some(controller) = &member.controller {
            self.by_controller.take_out(controller, &member);
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
    use crate::boot::BootHost;

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

    /// Takes an event in; a host that says so was registered with what it named first.
    fn take(crowd: &Crowd, event: &Event<HostView>) {
        if let Event::Apply(host) | Event::InitApply(host) = event
            && crowd.index.by_uid(&host.uid().unwrap_or_default()).is_none()
        {
            let bmc_address = host.bmc_address().unwrap_or_default().to_owned();
            let boot_mac_address = host.boot_mac().map(|mac| mac.to_string()).unwrap_or_default();
            let since = host.creation_timestamp().map_or(1, |made| made.0.as_millisecond());
            put(crowd, host, Registration { boot_mac_address, bmc_address, since, until: 0 });
        }
        crowd.take(event);
    }

    fn put(crowd: &Crowd, host: &HostView, record: Registration) {
        crowd.index.insert(BootHost {
            namespace: host.namespace().unwrap_or_default(),
            name: host.name_any(),
            uid: host.uid().unwrap_or_default(),
            created: host.creation_timestamp().map_or(0, |made| made.0.as_second()),
            macs: host.boot_mac().into_iter().collect(),
            way: Default::default(),
            intent: None,
            discovery: Default::default(),
            standing: crate::boot::Standing { record: Some(record), ..Default::default() },
        });
    }

    #[test]
    fn the_first_host_with_a_mac_address_has_it() {
        let crowd = Crowd::default();
        let (first, second) = (host("first", 1, Some(0xAB), true), host("second", 2, Some(0xAB), true));
        take(&crowd, &Event::Apply(second.clone()));
        take(&crowd, &Event::Apply(first.clone()));
        assert_eq!(crowd.mac_owner(&second, "02:00:00:00:00:ab").as_deref(), Some("BareMetalHost rack/first"));
        assert_eq!(crowd.mac_owner(&first, "02:00:00:00:00:AB"), None);
        assert_eq!(crowd.busy().len(), 2);
        // It gets another address.
        take(&crowd, &Event::Apply(host("first", 1, Some(0xCD), false)));
        assert_eq!(crowd.mac_owner(&second, "02:00:00:00:00:AB"), None);
        assert_eq!(crowd.busy(), HashSet::from([("rack".to_owned(), "second".to_owned())]));
        // Of the same second is first who has the smaller UID.
        let twin = host("a-twin", 2, Some(0xAB), false);
        take(&crowd, &Event::Apply(twin.clone()));
        assert_eq!(crowd.mac_owner(&second, "02:00:00:00:00:AB").as_deref(), Some("BareMetalHost rack/a-twin"));
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
            let crowd = Crowd::default();
            take(&crowd, &Event::Apply(asks.clone()));
            take(&crowd, &Event::Apply(other.clone()));
            let expected = counts.then(|| format!("BareMetalHost rack/{}", other.name_any()));
            assert_eq!(crowd.mac_owner(&asks, "02:00:00:00:00:07"), expected, "{asks:?} {other:?}");
            for host in [asks, other] {
                take(&crowd, &Event::Delete(host));
            }
            let known = crowd.known();
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
            take(&crowd, &Event::Apply(asks.clone()));
            take(&crowd, &Event::Apply(other.clone()));
            let expected = counts.then(|| format!("BareMetalHost rack/{}", other.name_any()));
            assert_eq!(crowd.bmc_owner(&asks, &address), expected, "{asks:?} {other:?}");
        }
    }

    fn elsewhere(host: HostView) -> HostView {
        let mut host = host;
        host.meta_mut().namespace = Some("tenant".into());
        host
    }

    #[test]
    fn nobody_takes_or_blocks_a_machine_of_another_namespace_by_naming_it() {
        let address = BmcAddress::parse("ipmi://10.0.0.1").unwrap();
        let victim = |registered| owner("victim", 5, 7, &[], registered);
        let both = |crowd: &Crowd, host: &HostView| {
            (crowd.mac_owner(host, "02:00:00:00:00:07"), crowd.bmc_owner(host, &address))
        };
        // Older, with the same addresses, and no BMC ever let it in.
        let idle = elsewhere(owner("idle", 1, 7, &[7], false));
        for registered in [false, true] {
            let crowd = Crowd::default();
            take(&crowd, &Event::Apply(idle.clone()));
            take(&crowd, &Event::Apply(victim(registered)));
            assert_eq!(both(&crowd, &victim(registered)), (None, None), "{registered}");
        }
        // Who is registered has it, and is not named to others.
        let crowd = Crowd::default();
        take(&crowd, &Event::InitApply(victim(true)));
        let elder = |boot| elsewhere(owner("elder", 1, boot, &[], true));
        let harmless = json!({
            "metadata": {"name": "elder", "namespace": "tenant", "uid": "u-elder", "creationTimestamp": "2026-01-01T00:00:01Z"},
            "spec": {"bmc": {"address": "ipmi://10.0.0.9", "credentialsName": "s"}, "bootMACAddress": "02:00:00:00:00:08"},
            "status": {"provisioning": {"state": "available", "ID": "u-elder"}},
        });
        take(&crowd, &Event::InitApply(serde_json::from_value(harmless).unwrap()));
        take(&crowd, &Event::InitDone);
        let hidden = || Some("a BareMetalHost in another namespace".to_owned());
        assert_eq!(both(&crowd, &idle), (hidden(), hidden()));
        // An older one, registered too, gets the same addresses now: it comes later all the same.
        for _ in 0..2 {
            take(&crowd, &Event::Apply(elder(7)));
            assert_eq!(both(&crowd, &elder(7)), (hidden(), hidden()));
            assert_eq!(both(&crowd, &victim(true)), (None, None));
            take(&crowd, &Event::Apply(victim(true)));
        }
    }

    #[test]
    fn a_host_that_waits_to_be_accepted_has_neither_address_nor_bmc() {
        let crowd = Crowd::default();
        let (stranger, own) = (owner("stranger", 1, 7, &[7, 8], false), owner("own", 9, 7, &[], false));
        let address = BmcAddress::parse("ipmi://10.0.0.1").unwrap();
        let owners = || (crowd.mac_owner(&own, "02:00:00:00:00:07"), crowd.bmc_owner(&own, &address));
        take(&crowd, &Event::Apply(own.clone()));
        let annotated = json!({ ANNOTATION_DISCOVERED: DISCOVERED_PENDING });
        let mut waiting = stranger.clone();
        waiting.meta_mut().annotations = serde_json::from_value(annotated).unwrap();
        take(&crowd, &Event::Apply(waiting));
        assert_eq!(owners(), (None, None));
        // Accepted, it is a host as every other.
        take(&crowd, &Event::Apply(stranger));
        assert_eq!(owners(), (Some("BareMetalHost rack/stranger".into()), Some("BareMetalHost rack/stranger".into())));
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
            ("redfish://10.0.0.1/redfish/v1/Systems/1", "redfish://[::ffff:10.0.0.1]/redfish/v1/systems/%31", true),
        ] {
            let crowd = Crowd::default();
            let (old, new) = (at("old", 1, first), at("new", 2, second));
            take(&crowd, &Event::Apply(new.clone()));
            take(&crowd, &Event::Apply(old.clone()));
            let owner = |host, address| crowd.bmc_owner(host, &BmcAddress::parse(address).unwrap());
            assert_eq!(owner(&new, second).as_deref(), same.then_some("BareMetalHost rack/old"), "{first} {second}");
            assert_eq!(owner(&old, first), None, "{first} {second}");
            take(&crowd, &Event::Delete(old.clone()));
            assert_eq!(owner(&new, second), None);
            take(&crowd, &Event::Delete(new.clone()));
            assert!(crowd.known().by_bmc.0.is_empty());
        }
    }

    #[test]
    fn a_controller_is_known_by_its_address_at_any_port_and_by_any_protocol() {
        let mut owner = owner("owner", 1, 7, &[], true);
        let crowd = Crowd::default();
        take(&crowd, &Event::Apply(owner.clone()));
        let asks = elsewhere(host("asks", 2, None, false));
        let shared = |asks: &HostView, address: &str, found: &[&str]| {
            let found: Vec<IpAddr> = found.iter().map(|ip| ip.parse().unwrap()).collect();
            crowd.is_anothers_controller(asks, &BmcAddress::parse(address).unwrap(), &found)
        };
        assert!(shared(&asks, "redfish+http://[::ffff:10.0.0.1]:8001/redfish/v1/Systems/9", &[]));
        assert!(shared(&asks, "ipmi://bmc.test", &["10.0.0.7", "10.0.0.1"]));
        assert!(!shared(&asks, "ipmi://bmc.test", &["10.0.0.7"]));
        assert!(!shared(&owner, "ipmi://10.0.0.1", &["10.0.0.1"]), "its own namespace's");
        // Who is not registered has nothing.
        owner.meta_mut().uid = Some("another".into());
        take(&crowd, &Event::Apply(owner.clone()));
        assert!(!shared(&asks, "ipmi://10.0.0.1", &["10.0.0.1"]));
        take(&crowd, &Event::Delete(owner));
        assert!(crowd.known().by_controller.0.is_empty());
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
            take(&crowd, &Event::Apply(new.clone()));
            take(&crowd, &Event::Apply(old.clone()));
            assert_eq!(
                crowd.twin(&new, &second).as_deref(),
                same.then_some("BareMetalHost rack/old"),
                "{first:?} {second:?}"
            );
            assert_eq!(crowd.twin(&old, &first), None, "{first:?} {second:?}");
            take(&crowd, &Event::Delete(old));
            assert_eq!(crowd.twin(&new, &second), None);
            take(&crowd, &Event::Delete(new));
            assert!(crowd.known().by_board.0.is_empty());
        }
    }

    #[test]
    fn a_relist_forgets_who_is_gone() {
        let crowd = Crowd::default();
        let (stays, goes) = (host("stays", 2, Some(1), true), host("goes", 1, Some(1), true));
        take(&crowd, &Event::Apply(stays.clone()));
        take(&crowd, &Event::Apply(goes));
        take(&crowd, &Event::Init);
        take(&crowd, &Event::InitApply(stays.clone()));
        assert_eq!(crowd.mac_owner(&stays, "02:00:00:00:00:01").as_deref(), Some("BareMetalHost rack/goes"));
        take(&crowd, &Event::InitDone);
        assert_eq!((crowd.mac_owner(&stays, "02:00:00:00:00:01"), crowd.busy().len()), (None, 1));
        take(&crowd, &Event::Delete(stays));
        assert!(crowd.known().by_mac.0.is_empty());
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
                    take(&crowd, &Event::Apply(host.clone()));
                    all.insert(who, host);
                } else {
                    take(&crowd, &Event::Delete(host));
                    all.remove(&who);
                }
            }
            prop_assert_eq!(crowd.busy().len(), all.values().filter(|host| host.takes_place()).count());
            for one in all.values() {
                let others = || all.values().filter(|other| other.uid() != one.uid());
                if let Some(mac) = one.boot_mac() {
                    let same = others().filter(|other| other.boot_mac() == Some(mac) && age(*other) < age(one));
                    let first = same.min_by_key(|other| age(*other));
                    let first = first.map(|other| format!("BareMetalHost rack/{}", other.name_any()));
                    prop_assert_eq!(crowd.mac_owner(one, &mac.to_string()), first);
                }
            }
        }
    }
}

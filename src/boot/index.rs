//! The host index: which host has a MAC address, kept in memory for DHCP and boot.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use jiff::Timestamp;

use crate::api::MacAddress;
use crate::api::slipway::{BootTarget, Registration};
use crate::bmc::BootInterface;

use super::UnknownMachine;
use super::claim::{BootClaim, ClaimOrder};

/// Where the claims of an address begin; made once, for it is asked for at each packet.
static BEST: OnceLock<BootClaim> = OnceLock::new();

/// What booting needs to know of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootHost {
    /// Namespace of the BareMetalHost.
    pub namespace: String,
    /// Name of the BareMetalHost.
    pub name: String,
    /// UID of the BareMetalHost.
    pub uid: String,
    /// When the BareMetalHost was created, Unix time in seconds.
    pub created: i64,
    /// Hardware addresses it is known by: `spec.bootMACAddress` first, then those that inspection found.
    pub macs: Vec<MacAddress>,
    /// How the ramdisk reaches it.
    pub boot_interface: BootInterface,
    /// What it is to boot.
    pub intent: Option<IndexedIntent>,
    /// What discovery has to do with it.
    pub discovery: DiscoveryState,
    /// How firmly it has its machine.
    pub ownership: Ownership,
}

impl BootHost {
    /// Whether its machine's agent reported which network cards it has.
    pub fn was_inspected(&self) -> bool {
        self.macs.len() > 1 || self.ownership.record.as_ref().is_some_and(|record| !record.cards.is_empty())
    }
}

/// How firmly a host has its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// `spec.bootMACAddress`.
    pub boot_mac: Option<MacAddress>,
    /// Whether it was registered with the boot address that it names now.
    pub registered: bool,
    /// Whether somebody paused it: nothing further is done with its machine.
    pub paused: bool,
    /// What it was registered with, as recorded, while that counts; other than what it names now where it names another
    /// machine since.
    pub record: Option<Arc<Registration>>,
    /// Network of the configuration that its machine boots from; empty while nobody knows, or while it says anew what it is.
    pub home: String,
}

impl Ownership {
    /// When it was registered with the machine that it names now, Unix time in milliseconds; 0 if it was not.
    fn since(&self) -> i64 {
        self.record.as_ref().filter(|_| self.registered).map_or(0, |record| record.since)
    }

    /// When its machine's agent reported this network card first, Unix time in milliseconds.
    fn reported(&self, mac: MacAddress) -> Option<i64> {
        self.record.as_ref()?.cards.get(&mac.to_string()).copied()
    }
}

/// What discovery has to do with a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryState {
    /// It reported itself and was not accepted yet.
    pub waiting: bool,
    /// It counts towards the limit: nobody but its machine has said yet that there is such a machine.
    pub counts: bool,
    /// Addresses of unknown machines that turned out to be this one. They have no part in what is the host's.
    pub reported: Vec<MacAddress>,
    /// Its BMC let the appliance in.
    pub let_in: bool,
}

impl BootHost {
    fn is_registered(&self) -> bool {
        !self.discovery.waiting && self.ownership.registered
    }

    /// How good its claim of an address is.
    fn claim(&self, mac: MacAddress, uid: &Arc<str>, since: u64) -> BootClaim {
        let boots = self.ownership.boot_mac == Some(mac);
        let reported = self.ownership.reported(mac).filter(|_| !boots);
        let registered = if boots { self.ownership.since() } else { reported.unwrap_or_default() };
        BootClaim {
            waiting: self.discovery.waiting,
            card: !boots && reported.is_none(),
            unregistered: reported.is_none() && !self.ownership.registered,
            registered,
            since: if boots { since } else { 0 },
            created: self.created,
            uid: uid.clone(),
        }
    }

    /// The live ISO that it boots.
    fn live(&self) -> Option<&Arc<str>> {
        self.intent.as_ref().filter(|intent| intent.target == BootTarget::LiveIso)?.live_iso.as_ref()
    }
}

/// The part of a boot intent that the decision needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedIntent {
    /// Generation of the intent.
    pub generation: i64,
    /// What to boot.
    pub target: BootTarget,
    /// Whether the session of this generation was opened.
    pub session_open: bool,
    /// For a live ISO: digest in the image library.
    pub live_iso: Option<Arc<str>>,
}

/// Hosts by MAC address, in memory. Cheap to clone; all clones see the same hosts.
#[derive(Clone, Default)]
pub struct HostIndex {
    // std's lock: held for a map operation, never across an await.
    hosts: Arc<RwLock<IndexedHosts>>,
    /// Discovered hosts that may wait to be accepted or inspected; 0: not limited here.
    waiting_limit: Arc<AtomicUsize>,
}

/// What is asked for is looked up, or counted as it changes: strangers ask, at each packet, and somebody may have many hosts
/// with the same addresses.
#[derive(Default)]
struct IndexedHosts {
    /// All that claim an address, the best claim first. It is nearly always one.
    by_mac: BTreeMap<ClaimKey, Arc<BootHost>>,
    by_name: HashMap<(String, String), HostEntry>,
    by_uid: HashMap<Arc<str>, HostEntry>,
    /// Addresses of unknown machines that turned out to be a host, with the host's number.
    reported: BTreeMap<(MacAddress, u64), Arc<BootHost>>,
    /// Hosts of each namespace that count towards the limit of discovery.
    counted: HashMap<String, usize>,
    /// The namespaces where discovery makes hosts.
    discovered_in: BTreeSet<String>,
    /// Registered hosts of each namespace.
    namespaces: HashMap<String, usize>,
    /// Hosts that boot each live ISO.
    live: HashMap<Arc<str>, usize>,
    order: ClaimOrder,
    last: u64,
    /// The latest time in all records that were ever put in, Unix time in milliseconds.
    newest: i64,
}

/// A claim of an address, with the host's number.
type ClaimKey = (MacAddress, BootClaim, u64);

/// A host that was put in.
#[derive(Clone)]
struct HostEntry {
    host: Arc<BootHost>,
    uid: Arc<str>,
    /// The number of its claim of its boot address.
    since: u64,
    /// Which one of all that were ever put in.
    number: u64,
}

impl HostEntry {
    fn claim_keys(&self) -> impl Iterator<Item = ClaimKey> {
        self.host.macs.iter().map(|mac| (*mac, self.host.claim(*mac, &self.uid, self.since), self.number))
    }
}

impl HostIndex {
    /// The host with this hardware address: the one with the best [`BootClaim`].
    pub fn by_mac(&self, mac: MacAddress) -> Option<Arc<BootHost>> {
        self.read().claims(mac).next().map(|(_, host)| host.clone())
    }

    /// Whether an address is the boot address of a registered host, that is of one whose BMC let the appliance in.
    /// Whoever may make hosts can write any number of other addresses into them.
    pub fn is_registered(&self, mac: MacAddress) -> bool {
        self.registered(mac).is_some()
    }

    /// The registered host with this boot address.
    pub fn registered(&self, mac: MacAddress) -> Option<Arc<BootHost>> {
        let registered = |host: &Arc<BootHost>| host.is_registered() && host.ownership.boot_mac == Some(mac);
        self.by_mac(mac).filter(registered)
    }

    /// The namespaces that have registered hosts.
    pub fn namespaces(&self) -> BTreeSet<String> {
        self.read().namespaces.keys().cloned().collect()
    }

    /// Whether all hosts are in it: the first list was complete.
    pub fn is_settled(&self) -> bool {
        self.read().order.is_settled()
    }

    /// The first list of hosts is complete: from now on claims come one after the other.
    pub fn settle(&self) {
        self.write().order.settle();
    }

    /// Sets how many discovered hosts may wait to be accepted or inspected (at least 1), in these namespaces: as many
    /// strangers are let in. Who may write hosts elsewhere can write into them what discovery does, so what such a host says of
    /// discovery counts only when its BMC let the appliance in. To be called before hosts are put in.
    pub fn limit_waiting(&self, limit: usize, namespaces: BTreeSet<String>) {
        self.waiting_limit.store(limit.max(1), Ordering::Relaxed);
        self.write().discovered_in = namespaces;
    }

    /// What is done about this hardware address if it is no host's, on a network where `discovery` is on or off.
    pub fn unknown_machine(&self, mac: MacAddress, discovery: bool) -> UnknownMachine {
        if !discovery {
            return UnknownMachine::Ignored;
        }
        let hosts = self.read();
        if hosts.claims(mac).next().is_some() {
            return UnknownMachine::Ignored;
        }
        if let Some((_, host)) = hosts.reported.range((mac, 0)..=(mac, u64::MAX)).next() {
            return UnknownMachine::Reported(format!("{}/{}", host.namespace, host.name));
        }
        let limit = self.waiting_limit.load(Ordering::Relaxed);
        let counted = || hosts.discovered_in.iter().filter_map(|name| hosts.counted.get(name)).sum::<usize>();
        if limit > 0 && counted() >= limit { UnknownMachine::TooMany(limit) } else { UnknownMachine::Discovered }
    }

    /// The host with this name.
    pub fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<BootHost>> {
        self.read().by_name.get(&(namespace.to_owned(), name.to_owned())).map(|entry| entry.host.clone())
    }

    /// The host with this UID.
    pub fn by_uid(&self, uid: &str) -> Option<Arc<BootHost>> {
        self.read().by_uid.get(uid).map(|entry| entry.host.clone())
    }

    /// The host that goes before the one with this UID at an address: the one with the best [`BootClaim`], when that is better
    /// than its own. Who is not registered keeps nobody of another namespace from an address: anybody can name one.
    pub fn outranking_host(&self, mac: MacAddress, uid: &str, namespace: &str) -> Option<Arc<BootHost>> {
        let hosts = self.read();
        // One that is not known yet comes last. Behind the first that waits or has no more than a card there is none.
        let others = hosts.claims(mac).take_while(|(claim, host)| host.uid != uid && !claim.waiting && !claim.card);
        let mut others = others.filter(|(claim, host)| !claim.unregistered || host.namespace == namespace);
        others.next().map(|(_, host)| host.clone())
    }

    /// Another host than this one that is registered and has one of these addresses as its boot address, with the address. One
    /// that was registered later than this one, with its own boot address among these, takes nothing from it: anybody can name
    /// a further card of a machine that he does not have. Nor does one of another namespace by a [local](MacAddress::is_local)
    /// address, which may be a card of many machines.
    pub fn conflicting_host(&self, uid: &str, macs: &BTreeSet<MacAddress>) -> Option<(MacAddress, Arc<BootHost>)> {
        let hosts = self.read();
        let own = hosts.by_uid.get(uid).map(|entry| &*entry.host);
        let shows_it = |own: &&BootHost| own.ownership.boot_mac.is_some_and(|mac| macs.contains(&mac));
        let shown = own.filter(|own| own.ownership.registered).filter(shows_it);
        let since = shown.map_or(i64::MAX, |own| own.ownership.since());
        macs.iter().find_map(|mac| {
            let has_it = |(_, host): &(&BootClaim, &Arc<BootHost>)| {
                let says_nothing = mac.is_local() && shown.is_some_and(|own| own.namespace != host.namespace);
                let is_its = host.uid != uid
                    && host.ownership.registered
                    && host.ownership.boot_mac == Some(*mac)
                    && !says_nothing;
                is_its && host.ownership.since() <= since
            };
            let (_, other) = hosts.claims(*mac).find(has_it)?;
            Some((*mac, other.clone()))
        })
    }

    /// The time that a record gets which is made at this time, Unix time in milliseconds: later than that of every record
    /// there was. Who was there first is told by these times, and a clock that was set back must not let a newcomer go before.
    pub fn record_time(&self, now: i64) -> i64 {
        now.max(self.read().newest.saturating_add(1))
    }

    /// The same for an agent's report, in whole seconds: the cards that it names are had from the end of that second on.
    pub fn report_time(&self, now: Timestamp) -> Timestamp {
        let second = self.read().newest.saturating_add(999) / 1000 - 1;
        now.max(Timestamp::from_second(second).unwrap_or(now))
    }

    /// Whether a host's boot intent is this live ISO.
    pub fn boots_live(&self, digest: &str) -> bool {
        self.read().live.contains_key(digest)
    }

    /// Puts a host in, in the place of its former self.
    pub fn insert(&self, host: BootHost) {
        let mut hosts = self.write();
        let key = (host.namespace.clone(), host.name.clone());
        let former = hosts.by_uid.get(host.uid.as_str());
        let same = former.filter(|former| former.host.ownership.boot_mac == host.ownership.boot_mac);
        let already = same.map(|former| former.since);
        hosts.forget(&key);
        hosts.last += 1;
        let (since, number) = (hosts.order.since(already), hosts.last);
        let host = Arc::new(host);
        let entry = HostEntry { uid: host.uid.as_str().into(), since, number, host };
        hosts.count(&entry.host);
        if let Some(record) = &entry.host.ownership.record {
            hosts.newest = record.cards.values().copied().chain([record.since]).fold(hosts.newest, i64::max);
        }
        for key in entry.claim_keys() {
            hosts.by_mac.insert(key, entry.host.clone());
        }
        if entry.host.discovery.let_in || hosts.discovered_in.contains(&entry.host.namespace) {
            for mac in &entry.host.discovery.reported {
                hosts.reported.insert((*mac, number), entry.host.clone());
            }
        }
        hosts.by_uid.insert(entry.uid.clone(), entry.clone());
        hosts.by_name.insert(key, entry);
    }

    /// Takes a host out.
    pub fn remove(&self, namespace: &str, name: &str) {
        self.write().forget(&(namespace.to_owned(), name.to_owned()));
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, IndexedHosts> {
        self.hosts.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, IndexedHosts> {
        self.hosts.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl IndexedHosts {
    /// Who claims an address, the best claim first.
    fn claims(&self, mac: MacAddress) -> impl Iterator<Item = (&BootClaim, &Arc<BootHost>)> {
        let from = BEST.get_or_init(BootClaim::best);
        let all = self.by_mac.range((mac, from.clone(), 0)..);
        all.take_while(move |((of, ..), _)| *of == mac).map(|((_, claim, _), host)| (claim, host))
    }

    fn forget(&mut self, key: &(String, String)) {
        let Some(old) = self.by_name.remove(key) else { return };
        // A host that was made anew under the same name is another one.
        if self.by_uid.get(&old.uid).is_some_and(|held| held.number == old.number) {
            self.by_uid.remove(&old.uid);
        }
        for key in old.claim_keys() {
            self.by_mac.remove(&key);
        }
        for mac in &old.host.discovery.reported {
            self.reported.remove(&(*mac, old.number));
        }
        if old.host.discovery.counts {
            decrement(&mut self.counted, old.host.namespace.as_str());
        }
        if old.host.is_registered() {
            decrement(&mut self.namespaces, old.host.namespace.as_str());
        }
        if let Some(digest) = old.host.live() {
            decrement(&mut self.live, digest);
        }
    }

    fn count(&mut self, host: &BootHost) {
        if host.discovery.counts {
            *self.counted.entry(host.namespace.clone()).or_default() += 1;
        }
        if host.is_registered() {
            *self.namespaces.entry(host.namespace.clone()).or_default() += 1;
        }
        if let Some(digest) = host.live() {
            *self.live.entry(digest.clone()).or_default() += 1;
        }
    }
}

/// One less of this.
fn decrement<K: Eq + Hash + std::borrow::Borrow<str>>(counts: &mut HashMap<K, usize>, of: &str) {
    let Some(count) = counts.get_mut(of) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(of);
    }
}

#[cfg(test)]
mod tests;

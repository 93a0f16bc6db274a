//! Claims across hosts: MAC addresses, BMCs, machines, places.
//!
//! What a decision about one host asks of all the others: who has its MAC address, its BMC or its machine, and how many are
//! busy. Kept by the watch, so that an answer costs the same in a rack of any size.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;

use super::host_view::{self, HostView};
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, HardwareSystemVendor};
use crate::api::slipway::Registration;
use crate::bmc::BmcAddress;
use crate::bmc::address::{BmcEndpoint, BmcHost};
use crate::boot::{BootClaim, ClaimOrder, HostIndex};
use crate::log;
use crate::outbound::plain;
use crate::runtime::{ObjectKey, WatchChange, key};

/// Order of hosts by age: when each was made, then its UID.
pub(in crate::host) type Age = (Option<Timestamp>, Option<String>);

/// All hosts, as decisions about one of them look at them.
#[derive(Default)]
pub(in crate::host) struct ConflictIndex {
    known: Mutex<ConflictState>,
    /// What they were registered with. DHCP and booting answer from the same.
    index: HostIndex,
}

#[derive(Default)]
struct ConflictState {
    hosts: HashMap<ObjectKey, Arc<IndexedHost>>,
    /// By protocol, address and port of the BMC.
    by_bmc: Holders<Arc<str>>,
    /// By the host of the BMC's address, in one form.
    by_controller: Holders<Arc<str>>,
    /// By maker and serial number.
    by_board: Holders<Arc<str>>,
    busy: HashSet<ObjectKey>,
    order: ClaimOrder,
}

/// A host. There is one of it, however often it is listed.
struct IndexedHost {
    key: ObjectKey,
    age: Age,
    /// Its BMC, and the system behind it, where one is named.
    bmc: Option<(Arc<str>, Option<String>)>,
    /// `spec.bmc.address`, when it is one.
    bmc_address: Option<Arc<str>>,
    controller: Option<Arc<str>>,
    board: Option<Arc<str>>,
    /// The number of its claim of the BMC.
    since: u64,
}

impl IndexedHost {
    /// Who comes first among those that have something in common.
    fn rank(&self) -> (&Age, &ObjectKey) {
        (&self.age, &self.key)
    }
}

/// How a host is named to who has one in this namespace: what others have is none of his affair.
fn shown(key: &ObjectKey, namespace: &str) -> String {
    if key.0 == namespace {
        format!("BareMetalHost {}", log::named(&key.0, &key.1))
    } else {
        "a BareMetalHost in another namespace".to_owned()
    }
}

/// Of a BMC, by a host that does not wait to be accepted.
fn claim((created, uid): &Age, registered: Option<i64>, since: u64) -> BootClaim {
    BootClaim {
        waiting: false,
        card: false,
        unregistered: registered.is_none(),
        registered: registered.unwrap_or_default(),
        since,
        created: created.map_or(0, |created| created.as_second()),
        uid: uid.as_deref().unwrap_or_default().into(),
    }
}

/// The hosts that claim each thing, the first one first. It is nearly always one.
struct Holders<K>(HashMap<K, Vec<Arc<IndexedHost>>>);

impl<K> Default for Holders<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Holders<K> {
    fn put(&mut self, what: K, member: &Arc<IndexedHost>) {
        let all = self.0.entry(what).or_insert_with(|| Vec::with_capacity(1));
        let at = all.partition_point(|other| other.rank() < member.rank());
        all.insert(at, Arc::clone(member));
    }

    fn take_out(&mut self, what: &K, member: &Arc<IndexedHost>) {
        let Some(all) = self.0.get_mut(what) else { return };
        all.retain(|other| !Arc::ptr_eq(other, member));
        if all.is_empty() {
            self.0.remove(what);
        }
    }

    fn all<Q: Eq + Hash + ?Sized>(&self, what: &Q) -> impl Iterator<Item = &IndexedHost>
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
        BmcEndpoint::Ipmi { .. } => (format!("ipmi/{}", address.peer()), None),
        // Services that tell apart what differs in capitals only are not known.
        BmcEndpoint::Redfish { system, .. } => {
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

/// Whether two addresses are of one machine.
pub(in crate::host) fn is_same_bmc(a: &BmcAddress, b: &BmcAddress) -> bool {
    let ((a, of_a), (b, of_b)) = (place(a), place(b));
    a == b && (of_a.is_none() || of_b.is_none() || of_a == of_b)
}

pub(in crate::host) fn age(host: &impl ResourceExt) -> Age {
    (host.creation_timestamp().map(|time| time.0), host.uid())
}

/// A host that claims a machine.
pub(in crate::host) trait Claimant: ResourceExt {
    /// The MAC address that it boots with.
    fn boot_mac(&self) -> Option<MacAddress>;
    /// `spec.bmc.address`
    fn bmc_address(&self) -> Option<&str>;
}

impl Claimant for HostView {
    fn boot_mac(&self) -> Option<MacAddress> {
        self.boot_mac()
    }

    fn bmc_address(&self) -> Option<&str> {
        self.bmc_address()
    }
}

impl Claimant for BareMetalHost {
    fn boot_mac(&self) -> Option<MacAddress> {
        self.spec.boot_mac_address.as_deref()?.parse().ok()
    }

    fn bmc_address(&self) -> Option<&str> {
        self.spec.bmc.as_ref().map(|bmc| bmc.address.as_str())
    }
}

impl ConflictIndex {
    /// Knows nobody yet; `index` has what they were registered with.
    pub(in crate::host) fn new(index: HostIndex) -> Self {
        Self { known: Mutex::default(), index }
    }

    /// Whether everybody is known that was there at the start. Before, the first one of two may be missing.
    pub(in crate::host) fn is_listed(&self) -> bool {
        self.known().order.is_settled()
    }

    /// Whether a host was registered with what it names now.
    pub(in crate::host) fn is_registered(&self, host: &impl Claimant) -> bool {
        let fits = |record: &Registration| record.fits(host.boot_mac(), host.bmc_address().unwrap_or_default());
        self.record(host.uid().as_deref()).is_some_and(|record| fits(&record))
    }

    fn record(&self, uid: Option<&str>) -> Option<Arc<Registration>> {
        self.index.by_uid(uid?)?.ownership.record.clone()
    }

    /// When a host was registered with this BMC, Unix time in milliseconds.
    fn registered(&self, uid: Option<&str>, bmc_address: &str) -> Option<i64> {
        let host = self.index.by_uid(uid?)?;
        host.ownership.record.as_ref().filter(|record| record.has_bmc(bmc_address)).map(|record| record.since)
    }

    fn since(&self, member: &IndexedHost) -> Option<i64> {
        self.registered(member.age.1.as_deref(), member.bmc_address.as_deref().unwrap_or_default())
    }

    fn known(&self) -> MutexGuard<'_, ConflictState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the watch tells.
    pub(in crate::host) fn take(&self, change: &WatchChange<'_, HostView>) {
        let mut known = self.known();
        match change {
            WatchChange::Put(host) => known.put(host),
            WatchChange::Gone(key) => known.remove(key),
            WatchChange::Listed => known.order.settle(),
        }
    }

    /// The other host that has this host's boot MAC address, as one of this host's namespace is told of it: the same one that
    /// DHCP and booting answer.
    pub(in crate::host) fn mac_owner(&self, host: &impl Claimant, mac: &str) -> Option<String> {
        let namespace = host.namespace().unwrap_or_default();
        let owner = self.index.outranking_host(mac.parse().ok()?, &host.uid().unwrap_or_default(), &namespace)?;
        Some(shown(&(owner.namespace.clone(), owner.name.clone()), &namespace))
    }

    /// The other host that has the machine behind this BMC address, by the rule for MAC addresses: the one with the best
    /// [`BootClaim`], when that is better than this host's.
    pub(in crate::host) fn bmc_owner(&self, host: &impl Claimant, address: &BmcAddress) -> Option<String> {
        let known = self.known();
        let (bmc, wanted) = place(address);
        let is_same = |system: &Option<String>| system.is_none() || wanted.is_none() || *system == wanted;
        let own = known.hosts.get(&key(host)).filter(|own| own.bmc.as_ref().is_some_and(|(at, _)| **at == *bmc));
        let same = known.by_bmc.all(bmc.as_str()).filter(|other| other.bmc.as_ref().is_some_and(|(_, at)| is_same(at)));
        self.better(host, own.map(|own| own.since), same)
    }

    /// Whether a registered host of another namespace names the controller of this address, or one of those found behind it.
    pub(in crate::host) fn is_anothers_controller(
        &self,
        host: &impl ResourceExt,
        address: &BmcAddress,
        found: &[IpAddr],
    ) -> bool {
        let known = self.known();
        let namespace = host.namespace().unwrap_or_default();
        let names = found.iter().map(IpAddr::to_string).chain([controller(&address.host)]);
        let is_anothers = |other: &IndexedHost| other.key.0 != namespace && self.since(other).is_some();
        names.into_iter().any(|name| known.by_controller.all(name.as_str()).any(is_anothers))
    }

    /// Another host that was there before this one and whose hardware has the same maker and serial number, as one of
    /// this host's namespace is told of it.
    pub(in crate::host) fn twin(&self, host: &impl ResourceExt, vendor: &HardwareSystemVendor) -> Option<String> {
        let board = host_view::identity(vendor)?;
        let known = self.known();
        let first = known.by_board.all(board.as_str()).next()?;
        (first.age < age(host)).then(|| shown(&first.key, &host.namespace().unwrap_or_default()))
    }

    /// The hosts that are inspected, written or cleaned, as far as the watch has told.
    pub(in crate::host) fn busy(&self) -> HashSet<ObjectKey> {
        let known = self.known();
        known.busy.clone()
    }

    /// Which of these others has what this host claims under the number `own`.
    fn better<'a>(
        &self,
        host: &impl Claimant,
        own: Option<u64>,
        others: impl Iterator<Item = &'a IndexedHost>,
    ) -> Option<String> {
        let this = key(host);
        let namespace = &this.0;
        let registered = self.registered(host.uid().as_deref(), host.bmc_address().unwrap_or_default());
        // One that the watch has not told of yet comes last.
        let own = claim(&age(host), registered, own.unwrap_or(u64::MAX));
        let better = others
            .filter(|other| other.key != this)
            .map(|other| (claim(&other.age, self.since(other), other.since), other))
            .filter(|(theirs, other)| !theirs.unregistered || other.key.0 == *namespace)
            .filter(|(theirs, _)| *theirs < own);
        better.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, other)| shown(&other.key, namespace))
    }
}

impl ConflictState {
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
        let at = |bmc: &Option<(Arc<str>, Option<String>)>| bmc.as_ref().map(|(at, _)| Arc::clone(at));
        let bmc = bmc.map(|(at, system)| (Arc::from(at), system));
        let former = former.as_deref();
        let same = former.filter(|former| at(&former.bmc) == at(&bmc)).map(|former| former.since);
        let since = self.order.since(same);
        let member = Arc::new(IndexedHost {
            key: key.clone(),
            age: age(host),
            bmc,
            bmc_address,
            controller,
            board: host.board().map(Arc::from),
            since,
        });
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

    fn remove(&mut self, key: &ObjectKey) {
        let Some(member) = self.hosts.remove(key) else { return };
        self.busy.remove(key);
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

#[cfg(test)]
mod tests;

//! Watches that keep the memory of boot and sessions current: hosts by MAC address, and boot intents.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use tokio::sync::watch;

use crate::api::MacAddress;
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost};
use crate::api::slipway::{ANNOTATION_NETWORK, ANNOTATION_REGISTRATION, ANNOTATION_REPORTED, BootIntent, Registration};
use crate::bmc::BmcAddress;
use crate::boot::{BootHost, DiscoveryState, HostIndex, IndexedIntent, Ownership};
use crate::host::lifecycle;
use crate::runtime::{ObjectKey, WatchChange, Watches, key};

/// More cards than any machine has.
const MAX_CARDS: usize = 256;
/// Addresses that a machine reported itself by, of which no more are written ([`ANNOTATION_REPORTED`]).
const MAX_REPORTED: usize = 16;

/// An intent as last seen, and a way to wait for its next change.
type Latest = watch::Sender<Option<Arc<BootIntent>>>;

/// Boot intents in memory. Cheap to clone.
#[derive(Clone, Default)]
pub struct Intents(Arc<Mutex<HashMap<ObjectKey, Latest>>>);

impl Intents {
    /// The intent of a host as last seen, and its changes. A host without an intent has `None`.
    pub fn follow(&self, namespace: &str, name: &str) -> watch::Receiver<Option<Arc<BootIntent>>> {
        let mut intents = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        intents.entry((namespace.to_owned(), name.to_owned())).or_default().subscribe()
    }

    /// The intent of a host as last seen.
    pub(in crate::host) fn get(&self, key: &ObjectKey) -> Option<Arc<BootIntent>> {
        let intents = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        intents.get(key).and_then(|latest| latest.borrow().clone())
    }

    fn set(&self, key: ObjectKey, intent: Option<Arc<BootIntent>>) {
        let mut intents = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sender = intents.entry(key.clone()).or_default();
        let gone = intent.is_none();
        sender.send_replace(intent);
        if gone && sender.receiver_count() == 0 {
            intents.remove(&key);
        }
    }
}

#[derive(Default)]
struct FeederState {
    hosts: HashMap<ObjectKey, BootHost>,
    /// With what its host was registered with.
    intents: HashMap<ObjectKey, (Arc<BootIntent>, Option<Arc<Registration>>)>,
    /// Whether all hosts, and all intents, were listed once.
    listed: (bool, bool),
    /// When records end that count for a while only, Unix time in milliseconds, and whose they are.
    lapse: BTreeSet<(i64, ObjectKey)>,
}

/// Keeps index and intents as the watches tell. The receiver is told once both kinds were listed.
pub fn follow(watches: &mut Watches, index: HostIndex, intents: Intents) -> watch::Receiver<bool> {
    let (tell, ready) = watch::channel(false);
    let known = Arc::new(Mutex::new(FeederState::default()));
    let (known_too, index_too, ready_too) = (known.clone(), index.clone(), tell.clone());
    watches.observe(move |change: &WatchChange<'_, BareMetalHost>| {
        let mut known = lock(&known);
        known.let_records_lapse(Timestamp::now().as_millisecond(), &index);
        if let Some(key) = known.take_host(change) {
            return known.publish(&key, Timestamp::now().as_millisecond(), &index);
        }
        index.settle();
        ready_too.send_replace(known.listed == (true, true));
    });
    watches.observe(move |change: &WatchChange<'_, BootIntent>| {
        let mut known = lock(&known_too);
        known.let_records_lapse(Timestamp::now().as_millisecond(), &index_too);
        if let Some(key) = known.take_intent(change, &intents) {
            return known.publish(&key, Timestamp::now().as_millisecond(), &index_too);
        }
        tell.send_replace(known.listed == (true, true));
    });
    ready
}

fn lock(known: &Mutex<FeederState>) -> MutexGuard<'_, FeederState> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FeederState {
    /// Takes in what the watch tells; the key of the host that must be published anew.
    fn take_host(&mut self, change: &WatchChange<'_, BareMetalHost>) -> Option<ObjectKey> {
        match change {
            WatchChange::Put(host) => Some(self.put_host(host)),
            WatchChange::Gone(key) => {
                self.hosts.remove(*key);
                Some((*key).clone())
            }
            WatchChange::Listed => {
                self.listed.0 = true;
                None
            }
        }
    }

    fn take_intent(&mut self, change: &WatchChange<'_, BootIntent>, intents: &Intents) -> Option<ObjectKey> {
        match change {
            WatchChange::Put(intent) => Some(self.put_intent(intent, intents)),
            WatchChange::Gone(key) => {
                self.intents.remove(*key);
                intents.set((*key).clone(), None);
                Some((*key).clone())
            }
            WatchChange::Listed => {
                self.listed.1 = true;
                None
            }
        }
    }

    fn put_host(&mut self, host: &BareMetalHost) -> ObjectKey {
        let key = key(host);
        self.hosts.insert(key.clone(), boot_host(host));
        key
    }

    fn put_intent(&mut self, intent: &BootIntent, intents: &Intents) -> ObjectKey {
        let key = key(intent);
        let record = intent.registration().map(|record| Arc::new(record.with_report(intent)));
        let mut intent = intent.clone();
        intent.metadata.managed_fields = None;
        // Read already.
        intent.annotations_mut().remove(ANNOTATION_REGISTRATION);
        // Nobody here asks for it, and it is larger than all the rest.
        if let Some(status) = &mut intent.status {
            status.inventory = None;
        }
        let intent = Arc::new(intent);
        intents.set(key.clone(), Some(intent.clone()));
        self.intents.insert(key.clone(), (intent, record));
        key
    }

    /// Nobody tells of the end of a record: whenever there is other news, those are looked at that have ended.
    fn let_records_lapse(&mut self, now: i64, index: &HostIndex) {
        while let Some((_, key)) = self.lapsed(now) {
            self.publish(&key, now, index);
        }
    }

    fn lapsed(&mut self, now: i64) -> Option<(i64, ObjectKey)> {
        self.lapse.first().is_some_and(|(until, _)| *until <= now).then(|| self.lapse.pop_first()).flatten()
    }

    fn publish(&mut self, key: &ObjectKey, now: i64, index: &HostIndex) {
        match self.hosts.get(key) {
            Some(host) => {
                let own = self.intents.get(key).filter(|(intent, _)| intent.is_of(&host.uid));
                let counts = |record: &Arc<Registration>| record.counts(host.ownership.registered, now);
                let record = own.and_then(|(_, record)| record.clone()).filter(counts);
                let until = record.as_ref().map_or(0, |record| record.until);
                if until > now {
                    self.lapse.insert((until, key.clone()));
                }
                let registered = record.as_ref().is_some_and(|record| record.has_mac(host.ownership.boot_mac));
                let mut macs = host.macs.clone();
                let reported = record.iter().flat_map(|record| record.cards.keys()).filter_map(|mac| mac.parse().ok());
                macs.extend(reported.filter(|mac| !host.macs.contains(mac)).collect::<Vec<_>>());
                // A machine that says anew what it is may have been moved.
                let stays = own.is_some_and(|(intent, _)| !intent.inspects());
                let seen = record.as_ref().filter(|_| stays).map(|record| record.network.clone());
                let said = Some(host.ownership.home.clone()).filter(|said| !said.is_empty());
                let home = said.or(seen).unwrap_or_default();
                let ownership = Ownership { registered, record, home, ..host.ownership.clone() };
                let intent = own.map(|(intent, _)| indexed(intent));
                index.insert(BootHost { macs, intent, ownership, ..host.clone() });
            }
            None => index.remove(&key.0, &key.1),
        }
    }
}

/// What booting needs to know of a host, its intent apart.
fn boot_host(host: &BareMetalHost) -> BootHost {
    let found = host.status.as_ref().and_then(|status| status.hardware.as_ref());
    let discovery = discovery(host);
    // Before somebody accepted it, a machine's word about its further addresses keeps no other machine from its own; nor do
    // those that somebody wrote into a host whose BMC never let the appliance in.
    let counts = !discovery.waiting && crate::host::discovery::was_let_in(host);
    let nics = found.filter(|_| counts).map_or(&[][..], |hardware| &hardware.nics);
    let mut macs: Vec<MacAddress> = Vec::new();
    let texts = host.spec.boot_mac_address.iter().chain(nics.iter().map(|nic| &nic.mac).take(MAX_CARDS));
    for mac in texts.filter_map(|text| text.parse().ok()) {
        if !macs.contains(&mac) {
            macs.push(mac);
        }
    }
    let boot_mac = host.spec.boot_mac_address.as_deref().and_then(|mac| mac.parse().ok());
    let paused = host.annotations().contains_key(ANNOTATION_PAUSED);
    // Whether it is registered, its record says, which is in the intent.
    let registered = lifecycle::says_registered(host);
    let home = host.annotations().get(ANNOTATION_NETWORK).cloned().unwrap_or_default();
    let ownership = Ownership { boot_mac, registered, paused, record: None, home };
    let bmc = host.spec.bmc.as_ref().and_then(|bmc| BmcAddress::parse(&bmc.address).ok());
    BootHost {
        namespace: host.namespace().unwrap_or_default(),
        name: host.name_any(),
        uid: host.uid().unwrap_or_default(),
        created: host.creation_timestamp().map_or(0, |created| created.0.as_second()),
        macs,
        boot_interface: bmc.map(|address| address.capabilities().boot).unwrap_or_default(),
        intent: None,
        discovery,
        ownership,
    }
}

fn discovery(host: &BareMetalHost) -> DiscoveryState {
    let reported = host.annotations().get(ANNOTATION_REPORTED).map(String::as_str).unwrap_or_default();
    DiscoveryState {
        waiting: crate::host::discovery::waits(host),
        counts: crate::host::discovery::counts(host),
        reported: reported.split(',').filter_map(|mac| mac.trim().parse().ok()).take(MAX_REPORTED).collect(),
        let_in: crate::host::discovery::was_let_in(host),
    }
}

/// What booting needs to know of an intent.
fn indexed(intent: &BootIntent) -> IndexedIntent {
    let session = intent.status.as_ref().and_then(|status| status.session.as_ref());
    IndexedIntent {
        generation: intent.spec.generation,
        target: intent.spec.target,
        session_open: session.is_some_and(|session| session.generation == intent.spec.generation),
        live_iso: intent.spec.live_iso.as_deref().map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::BareMetalHostSpec;
    use crate::api::metal3::HardwareDetails;
    use crate::api::slipway::{
        ANNOTATION_REGISTRATION, BootIntentSpec, BootIntentStatus, IntentStep, SessionStatus, StepAction, StepResult,
    };
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    /// A copy of a moved host has its machine for a while, although no BMC let the appliance in for it.
    #[test]
    fn a_record_that_counts_for_a_while_ends_when_there_is_other_news() {
        const MAC: &str = "02:00:00:00:00:01";
        let (index, intents, mut known) = (HostIndex::default(), Intents::default(), FeederState::default());
        let now = 1_000_000;
        let spec = BareMetalHostSpec { boot_mac_address: Some(MAC.into()), ..BareMetalHostSpec::default() };
        let mut host = BareMetalHost::new("h", spec);
        host.metadata.namespace = Some("ns".into());
        host.metadata.uid = Some("u".into());
        let record =
            Registration { boot_mac_address: MAC.into(), since: 5, until: now + 100, ..Registration::default() };
        let mut intent = BootIntent::new("h", BootIntentSpec::default());
        intent.metadata.namespace = Some("ns".into());
        let record = serde_json::to_string(&record).expect("JSON");
        intent.annotations_mut().insert(ANNOTATION_REGISTRATION.into(), record);
        let key = known.put_host(&host);
        known.publish(&key, now, &index);
        let key = known.put_intent(&intent, &intents);
        known.publish(&key, now, &index);
        let mac = MAC.parse().expect("an address");
        assert!(index.is_registered(mac));
        known.let_records_lapse(now + 99, &index);
        assert!(index.is_registered(mac));
        known.let_records_lapse(now + 100, &index);
        assert!(!index.is_registered(mac) && known.lapse.is_empty());
    }

    /// The first network that a machine calls from is its home, until it is inspected in another one.
    #[test]
    fn a_machine_is_at_home_where_it_reported_itself() {
        const MAC: &str = "02:00:00:00:00:01";
        let (index, intents, mut known) = (HostIndex::default(), Intents::default(), FeederState::default());
        let spec = BareMetalHostSpec { boot_mac_address: Some(MAC.into()), ..BareMetalHostSpec::default() };
        let mut host = BareMetalHost::new("h", spec);
        host.metadata.namespace = Some("ns".into());
        let key = known.put_host(&host);
        // recorded, the session's network, whether it is to inspect, whether it has; the home
        for (recorded, network, inspects, has, home) in [
            ("", "", false, false, ""),
            ("", "a", false, false, "a"),
            ("a", "b", false, false, "a"),
            ("a", "b", true, false, ""),
            ("a", "b", true, true, ""),
            ("b", "b", false, false, "b"),
            ("b", "", false, false, "b"),
        ] {
            let record = Registration {
                boot_mac_address: MAC.into(),
                since: 5,
                network: recorded.into(),
                ..Registration::default()
            };
            let step = IntentStep { id: "1.1".into(), action: StepAction::Inspect, ..IntentStep::default() };
            let steps = if inspects { vec![step] } else { Vec::new() };
            let mut intent = BootIntent::new("h", BootIntentSpec { steps, ..BootIntentSpec::default() });
            intent.metadata.namespace = Some("ns".into());
            let text = serde_json::to_string(&record).expect("JSON");
            intent.annotations_mut().insert(ANNOTATION_REGISTRATION.into(), text);
            let result = StepResult {
                id: "1.1".into(),
                succeeded: true,
                finished: Some(Time(Timestamp::now())),
                ..StepResult::default()
            };
            intent.status = Some(BootIntentStatus {
                session: Some(SessionStatus { network: network.into(), ..SessionStatus::default() }),
                results: if has { vec![result] } else { Vec::new() },
                inventory: has.then(HardwareDetails::default),
                ..BootIntentStatus::default()
            });
            known.put_intent(&intent, &intents);
            known.publish(&key, 1_000_000, &index);
            let found = index.by_name("ns", "h").expect("known").ownership.clone();
            assert_eq!(found.home, home, "{recorded} {network} {inspects} {has}");
            // What the host says counts first.
            host.annotations_mut().insert(ANNOTATION_NETWORK.into(), "said".into());
            known.put_host(&host);
            known.publish(&key, 1_000_000, &index);
            assert_eq!(index.by_name("ns", "h").expect("known").ownership.home, "said");
            host.annotations_mut().clear();
            known.put_host(&host);
            // What is recorded when the next boot begins.
            let next = record.with_report(&intent).network;
            let wanted = if has || recorded.is_empty() { network } else { recorded };
            assert_eq!(next, wanted, "{recorded} {network} {inspects} {has}");
        }
    }
}

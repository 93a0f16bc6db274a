//! Keeps what booting and the sessions read in memory current: hosts by MAC address, and boot intents.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::machine;
use crate::api::MacAddress;
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost};
use crate::api::slipway::{ANNOTATION_REPORTED, BootIntent};
use crate::bmc::BmcAddress;
use crate::boot::{BootHost, Discovery, HostIndex, IndexedIntent, Standing};
use crate::engine::watching;

/// More cards than any machine has.
const MAX_CARDS: usize = 256;

type Key = (String, String);

/// An intent as last seen, and a way to wait for its next change.
type Latest = watch::Sender<Option<Arc<BootIntent>>>;

/// Boot intents in memory. Cheap to clone.
#[derive(Clone, Default)]
pub struct Intents(Arc<Mutex<HashMap<Key, Latest>>>);

impl Intents {
    /// The intent of a host as last seen, and its changes. A host without an intent has `None`.
    pub fn follow(&self, namespace: &str, name: &str) -> watch::Receiver<Option<Arc<BootIntent>>> {
        let mut intents = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        intents.entry((namespace.to_owned(), name.to_owned())).or_default().subscribe()
    }

    fn set(&self, key: Key, intent: Option<Arc<BootIntent>>) {
        let mut intents = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sender = intents.entry(key.clone()).or_default();
        let gone = intent.is_none();
        sender.send_replace(intent);
        if gone && sender.receiver_count() == 0 {
            intents.remove(&key);
        }
    }
}

enum Seen {
    Host(Box<watcher::Event<BareMetalHost>>),
    Intent(Box<watcher::Event<BootIntent>>),
}

#[derive(Default)]
struct Known {
    /// With the address of the BMC.
    hosts: HashMap<Key, (BootHost, String)>,
    intents: HashMap<Key, Arc<BootIntent>>,
    /// What a relist in progress has named so far; the rest is gone when it ends.
    relisted_hosts: HashSet<Key>,
    relisted_intents: HashSet<Key>,
}

/// Follows hosts and intents until the shutdown. `ready` is told once both were listed.
pub async fn keep(
    client: Client,
    index: HostIndex,
    intents: Intents,
    ready: watch::Sender<bool>,
    shutdown: CancellationToken,
) {
    let hosts = watcher(Api::<BareMetalHost>::all(client.clone()), watching());
    let wanted = watcher(Api::<BootIntent>::all(client), watching());
    let mut events = stream::select(
        hosts.default_backoff().map_ok(|event| Seen::Host(Box::new(event))).boxed(),
        wanted.default_backoff().map_ok(|event| Seen::Intent(Box::new(event))).boxed(),
    );
    let mut known = Known::default();
    let mut listed = (false, false);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = shutdown.cancelled() => return,
        };
        match event {
            Some(Ok(seen)) => {
                let hosts_listed = matches!(&seen, Seen::Host(event) if matches!(**event, watcher::Event::InitDone));
                listed.0 |= hosts_listed;
                listed.1 |= matches!(&seen, Seen::Intent(event) if matches!(**event, watcher::Event::InitDone));
                for key in known.take(seen, &intents) {
                    known.publish(&key, &index);
                }
                if hosts_listed {
                    index.settle();
                }
                if listed == (true, true) {
                    ready.send_replace(true);
                }
            }
            Some(Err(error)) => warn!(%error, "watch of hosts and intents broke; it is set up again"),
            None => return,
        }
    }
}

impl Known {
    /// Takes an event in; the keys whose hosts must be published anew.
    fn take(&mut self, seen: Seen, intents: &Intents) -> Vec<Key> {
        match seen {
            Seen::Host(event) => self.take_host(*event),
            Seen::Intent(event) => self.take_intent(*event, intents),
        }
    }

    fn take_host(&mut self, event: watcher::Event<BareMetalHost>) -> Vec<Key> {
        match event {
            watcher::Event::Init => {
                self.relisted_hosts.clear();
                Vec::new()
            }
            watcher::Event::Apply(host) => vec![self.put_host(host)],
            watcher::Event::InitApply(host) => {
                let key = self.put_host(host);
                self.relisted_hosts.insert(key.clone());
                vec![key]
            }
            watcher::Event::InitDone => {
                let gone: Vec<Key> = self.hosts.keys().filter(|k| !self.relisted_hosts.contains(*k)).cloned().collect();
                for key in &gone {
                    self.hosts.remove(key);
                }
                gone
            }
            watcher::Event::Delete(host) => {
                let key = key(&host);
                self.hosts.remove(&key);
                vec![key]
            }
        }
    }

    fn take_intent(&mut self, event: watcher::Event<BootIntent>, intents: &Intents) -> Vec<Key> {
        let gone = match event {
            watcher::Event::Init => {
                self.relisted_intents.clear();
                return Vec::new();
            }
            watcher::Event::Apply(intent) => return vec![self.put_intent(intent, intents)],
            watcher::Event::InitApply(intent) => {
                let key = self.put_intent(intent, intents);
                self.relisted_intents.insert(key.clone());
                return vec![key];
            }
            watcher::Event::InitDone => {
                self.intents.keys().filter(|k| !self.relisted_intents.contains(*k)).cloned().collect()
            }
            watcher::Event::Delete(intent) => vec![key(&intent)],
        };
        for key in &gone {
            self.intents.remove(key);
            intents.set(key.clone(), None);
        }
        gone
    }

    fn put_host(&mut self, host: BareMetalHost) -> Key {
        let key = key(&host);
        let bmc = host.spec.bmc.as_ref().map(|bmc| bmc.address.clone());
        let bmc = bmc.filter(|address| BmcAddress::parse(address).is_ok()).unwrap_or_default();
        self.hosts.insert(key.clone(), (boot_host(&host), bmc));
        key
    }

    fn put_intent(&mut self, mut intent: BootIntent, intents: &Intents) -> Key {
        let key = key(&intent);
        intent.metadata.managed_fields = None;
        // Nobody here asks for it, and it is larger than all the rest.
        if let Some(status) = &mut intent.status {
            status.inventory = None;
        }
        let intent = Arc::new(intent);
        intents.set(key.clone(), Some(intent.clone()));
        self.intents.insert(key.clone(), intent);
        key
    }

    fn publish(&self, key: &Key, index: &HostIndex) {
        match self.hosts.get(key) {
            Some((host, bmc)) => {
                let own = self.intents.get(key).filter(|intent| intent.is_of(&host.uid));
                let record = own.and_then(|intent| intent.registration());
                let now = Timestamp::now().as_millisecond();
                let registered = record.as_ref().is_some_and(|record| {
                    record.fits(host.standing.boot_mac, bmc) && (host.standing.registered || now < record.until)
                });
                let standing = Standing { registered, record, ..host.standing.clone() };
                let intent = own.map(|intent| indexed(intent));
                index.insert(BootHost { intent, standing, ..host.clone() });
            }
            None => index.remove(&key.0, &key.1),
        }
    }
}

fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// What booting needs to know of a host, its intent apart.
fn boot_host(host: &BareMetalHost) -> BootHost {
    let found = host.status.as_ref().and_then(|status| status.hardware.as_ref());
    let discovery = discovery(host);
    // Before somebody accepted it, a machine's word about its further addresses keeps no other machine from its own; nor do
    // those that somebody wrote into a host whose BMC never let the appliance in.
    let counts = !discovery.waiting && super::discovery::was_let_in(host);
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
    // Its record, which is in the intent, has to say so as well.
    let standing = Standing { boot_mac, registered: machine::says_registered(host), paused, record: None };
    let bmc = host.spec.bmc.as_ref().and_then(|bmc| BmcAddress::parse(&bmc.address).ok());
    BootHost {
        namespace: host.namespace().unwrap_or_default(),
        name: host.name_any(),
        uid: host.uid().unwrap_or_default(),
        created: host.creation_timestamp().map_or(0, |created| created.0.as_second()),
        macs,
        way: bmc.map(|address| address.capabilities().boot).unwrap_or_default(),
        intent: None,
        discovery,
        standing,
    }
}

fn discovery(host: &BareMetalHost) -> Discovery {
    let reported = host.annotations().get(ANNOTATION_REPORTED).map(String::as_str).unwrap_or_default();
    Discovery {
        waiting: super::discovery::waits(host),
        counts: super::discovery::counts(host),
        reported: reported.split(',').filter_map(|mac| mac.trim().parse().ok()).take(MAX_CARDS).collect(),
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

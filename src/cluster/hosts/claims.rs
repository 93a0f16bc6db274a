//! Hosts that machines are about to take: machines that are looked at at the same time do not all go for the same one.
//!
//! Whose a host is is in the host, and it is taken in the very version that was read. What is here only spares the attempts
//! that would fail. A host is about to be taken as long as the look lasts that is to take it, however that ends: what is kept for a
//! machine that got another one, or none, nobody would ever have.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::time::Instant;

use super::choose::{
    Choice, HardwareView, HostCandidate, HostView, Way, Wish, choose, had_by, has_credentials, hosts_of, refusal,
};
use super::consumer::{Consumer, MachineId, MachineKind};
use crate::api::metal3::{BareMetalHost, HardwareData};
use crate::runtime::{Cache, Key, Wakes, Watches, key};

/// How long a host that was taken counts as such before that is heard of: it is told of at once, unless a watch is broken.
const UNHEARD: Duration = Duration::from_secs(30);

/// The hosts to choose from. Cheap to clone.
#[derive(Clone)]
pub struct Hosts {
    hosts: Cache<HostView>,
    hardware: Cache<HardwareView>,
    taken: Arc<Mutex<Taking>>,
}

/// Hosts that are about to be taken, and whom that keeps waiting.
#[derive(Default)]
struct Taking {
    by_host: HashMap<Key, Intent>,
    /// Machines that got no host while others were about to take some.
    waiting: HashSet<MachineId>,
    /// How machines of each kind are looked at again.
    wakes: HashMap<MachineKind, Wakes>,
}

/// A machine is about to take a host.
struct Intent {
    machine: MachineId,
    /// Set once it has taken it: until then that is to be heard of.
    until: Option<Instant>,
}

/// There is no host now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoHost {
    /// Why not.
    pub why: String,
    /// Whether others were about to take hosts, which may come to nothing.
    pub is_passing: bool,
}

/// A host that a machine is about to take. When it is dropped untaken, others may have it, and those are looked at that waited.
pub struct Pick {
    hosts: Hosts,
    host: Key,
    /// How it was chosen.
    pub way: Way,
    is_taken: bool,
}

impl Pick {
    /// Name of the host.
    pub fn name(&self) -> &str {
        &self.host.1
    }

    /// The machine has taken it.
    pub fn taken(mut self) {
        self.is_taken = true;
    }
}

impl Drop for Pick {
    fn drop(&mut self) {
        self.hosts.end(&self.host, self.is_taken);
    }
}

impl Hosts {
    /// None yet, until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        let hosts = Cache::indexed(watches, |object: &BareMetalHost| object.into(), HostView::mentions);
        let hardware = Cache::new(watches, |object: &HardwareData| HardwareView::from(object));
        Self { hosts, hardware, taken: Arc::default() }
    }

    /// Has machines of this kind that got no host looked at again by these wakes.
    pub fn wake_by(&self, kind: MachineKind, wakes: Wakes) {
        self.taking().wakes.insert(kind, wakes);
    }

    /// Chooses a host for a machine, which is about to take it then.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn pick(&self, wish: &Wish) -> Result<Pick, NoHost> {
        let (machine, namespace) = (&wish.machine, &wish.machine.namespace);
        let mut taken = self.taking();
        let now = Instant::now();
        let is_heard_of =
            |host: &Key| self.hosts.get(host).is_none_or(|host| matches!(host.consumer, Consumer::Machine(_)));
        taken.by_host.retain(|host, intent| {
            let is_past = intent.until.is_some_and(|until| until <= now || is_heard_of(host));
            intent.machine != *machine && !is_past
        });
        taken.waiting.remove(machine);
        let hosts = self.hosts.mentioning(&hosts_of(namespace));
        let hardware: Vec<_> = hosts.iter().map(|host| (host, self.hardware.get(&key(host.as_ref())))).collect();
        let candidates: Vec<HostCandidate<'_>> = hardware
            .iter()
            .map(|(host, inspected)| HostCandidate {
                host,
                capacity: inspected.as_ref().and_then(|one| one.capacity.as_ref()).or(host.capacity.as_ref()),
                taken: taken.by_host.contains_key(&key(host.as_ref())),
            })
            .collect();
        match choose(wish, &candidates) {
            Choice::Host(name, way) => {
                let host = (namespace.clone(), name.to_owned());
                taken.by_host.insert(host.clone(), Intent { machine: machine.clone(), until: None });
                Ok(Pick { hosts: self.clone(), host, way, is_taken: false })
            }
            Choice::None(why) => {
                let is_passing = candidates.iter().any(|one| one.taken);
                if is_passing {
                    taken.waiting.insert(machine.clone());
                }
                Err(NoHost { why, is_passing })
            }
        }
    }

    /// A look has ended that was to take a host.
    fn end(&self, host: &Key, is_taken: bool) {
        let mut taken = self.taking();
        if is_taken {
            if let Some(intent) = taken.by_host.get_mut(host) {
                intent.until = Some(Instant::now() + UNHEARD);
            }
            return;
        }
        taken.by_host.remove(host);
        let here: Vec<MachineId> = taken.waiting.extract_if(|machine| machine.namespace == host.0).collect();
        for machine in here {
            if let Some(wakes) = taken.wakes.get(&machine.kind) {
                wakes.wake((machine.namespace, machine.name));
            }
        }
    }

    /// A machine is gone, and waits for nothing.
    pub fn forget(&self, machine: &MachineId) {
        self.taking().waiting.remove(machine);
    }

    fn taking(&self) -> MutexGuard<'_, Taking> {
        // Nothing in it can panic between two changes that belong together.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a machine may have a host, as it is now.
    pub fn may_have(&self, wish: &Wish, found: &BareMetalHost) -> bool {
        let view = HostView::from(found);
        let inspected = self.hardware.get(&key(found));
        let capacity = inspected.as_ref().and_then(|one| one.capacity.as_ref()).or(view.capacity.as_ref());
        refusal(wish, &HostCandidate { host: &view, capacity, taken: false }).is_none()
    }

    /// The other hosts of a host's namespace that have this Secret for their BMCs.
    pub fn with_credentials(&self, host: &BareMetalHost, secret: &str) -> Vec<Arc<HostView>> {
        let mut all = self.hosts.mentioning(&has_credentials(&host.namespace().unwrap_or_default(), secret));
        all.retain(|other| other.metadata.name != host.metadata.name);
        all
    }

    /// The host that a machine has, as far as is known.
    pub fn of(&self, machine: &MachineId) -> Option<String> {
        let all = self.hosts.mentioning(&had_by(machine));
        all.into_iter().find(|host| host.consumer.is(machine))?.metadata.name.clone()
    }
}

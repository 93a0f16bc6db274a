//! Hosts that machines are about to take: machines that are looked at at the same time do not all go for the same one.
//!
//! Whose a host is is in the host, and it is taken in the very version that was read. What is here only spares the attempts
//! that would fail. A host is about to be taken as long as the look lasts that is to take it, however that ends: what is kept for a
//! machine that got another one, or none, nobody would ever have.
//!
//! Of a namespace one machine chooses at a time, and looks at those hosts only that it might get: the others are counted. Whoever
//! has many hosts or machines keeps nobody waiting but himself.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt;
use kube::ResourceExt;
use tokio::time::Instant;

use super::choose::{
    CandidateHost, ChoiceReason, Choosing, HardwareView, HostCandidate, HostChoice, HostRefusal, HostWish, NAMED, Shut,
    free_in, had_by, has_credentials, kept_for, kept_in, refusal, shut_in,
};
use super::consumer::{Consumer, MachineId, MachineKind};
use super::names::LABEL_REUSE;
use crate::api::metal3::{BareMetalHost, HardwareData};
use crate::runtime::{Cache, Mention, ObjectKey, Wakes, Watches, key};

/// How long a host that was taken counts as such before that is heard of: it is told of at once, unless a watch is broken.
const UNHEARD: Duration = Duration::from_secs(30);

/// The hosts to choose from. Cheap to clone.
#[derive(Clone)]
pub struct HostPool {
    hosts: Cache<CandidateHost>,
    hardware: Cache<HardwareView>,
    taken: Arc<Mutex<Taking>>,
}

/// Hosts that are about to be taken, and whom that keeps waiting.
#[derive(Default)]
struct Taking {
    by_host: HashMap<ObjectKey, Intent>,
    /// Machines of each namespace that got no host while others were about to take some.
    waiting: HashMap<String, HashSet<MachineId>>,
    /// Whose turn it is to choose, of each namespace where somebody does.
    turns: HashMap<String, Weak<tokio::sync::Mutex<()>>>,
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
    pub reason: String,
    /// Whether others were about to take hosts, which may come to nothing.
    pub is_passing: bool,
    /// How many hosts were looked at; the others were counted.
    pub looked_at: usize,
}

/// A host that a machine is about to take. When it is dropped untaken, others may have it, and those are looked at that waited.
pub struct Pick {
    hosts: HostPool,
    host: ObjectKey,
    /// How it was chosen.
    pub way: ChoiceReason,
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

impl Taking {
    /// A machine waits for nothing.
    fn let_go(&mut self, machine: &MachineId) {
        if let Some(here) = self.waiting.get_mut(&machine.namespace) {
            here.remove(machine);
            if here.is_empty() {
                self.waiting.remove(&machine.namespace);
            }
        }
    }
}

impl HostPool {
    /// None yet, until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        let hosts = Cache::indexed(watches, |object: &BareMetalHost| object.into(), CandidateHost::mentions);
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
    pub async fn pick(&self, wish: &HostWish) -> Result<Pick, NoHost> {
        let (machine, namespace) = (&wish.machine, &wish.machine.namespace);
        let turn = self.turn(namespace);
        let _turn = turn.lock().await;
        let taken = self.begin(machine);
        let mut choosing = Choosing::new(wish);
        self.look(&mut choosing, &had_by(machine), &taken).await;
        let kept = wish.reuse.as_deref().map(|whom| kept_for(namespace, whom));
        if let Some(kept) = &kept
            && !choosing.is_decided()
        {
            self.look(&mut choosing, kept, &taken).await;
        }
        if !choosing.is_decided() {
            self.look(&mut choosing, &free_in(namespace), &taken).await;
            self.pass_over(&mut choosing, kept.as_ref());
        }
        let looked_at = choosing.looked_at();
        match choosing.end() {
            HostChoice::Host(name, way) => {
                let host = (namespace.clone(), name);
                let mut taking = self.taking();
                taking.let_go(machine);
                taking.by_host.insert(host.clone(), Intent { machine: machine.clone(), until: None });
                drop(taking);
                Ok(Pick { hosts: self.clone(), host, way, is_taken: false })
            }
            HostChoice::None(reason) => Err(NoHost { reason, is_passing: !taken.is_empty(), looked_at }),
        }
    }

    /// Begins a choice: what the machine was about to take it takes no more. Says which hosts of its namespace others are about to
    /// take; when there are any, it waits for them from now on.
    fn begin(&self, machine: &MachineId) -> HashSet<String> {
        let mut taking = self.taking();
        let now = Instant::now();
        let is_heard_of =
            |host: &ObjectKey| self.hosts.get(host).is_none_or(|host| matches!(host.consumer, Consumer::Machine(_)));
        taking.by_host.retain(|host, intent| {
            let is_past = intent.until.is_some_and(|until| until <= now || is_heard_of(host));
            intent.machine != *machine && !is_past
        });
        let here = taking.by_host.keys().filter(|(namespace, _)| *namespace == machine.namespace);
        let taken: HashSet<String> = here.map(|(_, name)| name.clone()).collect();
        if taken.is_empty() {
            taking.let_go(machine);
        } else {
            taking.waiting.entry(machine.namespace.clone()).or_default().insert(machine.clone());
        }
        taken
    }

    /// Shows a choice the hosts that mention something.
    async fn look(&self, choosing: &mut Choosing<'_>, which: &Mention, taken: &HashSet<String>) {
        let mut hosts = self.hosts.walk_mentioning(which);
        while let Some(host) = hosts.next().await {
            let name = key(host.as_ref());
            let inspected = self.hardware.get(&name);
            let capacity = inspected.as_ref().and_then(|one| one.capacity.as_ref()).or(host.capacity.as_ref());
            choosing.look(&HostCandidate { host: &host, capacity, taken: taken.contains(&name.1) });
        }
    }

    /// Counts the hosts of the namespace that a machine cannot get, whatever it wants, but for those that are `kept` for it.
    fn pass_over(&self, choosing: &mut Choosing<'_>, kept: Option<&Mention>) {
        let HostWish { machine, reuse, .. } = choosing.wish();
        let namespace = &machine.namespace;
        for reason in Shut::ALL {
            let which = shut_in(namespace, reason);
            let (count, first) = (self.hosts.count_mentioning(&which), self.hosts.first_mentioning(&which, NAMED));
            choosing.pass_over(&HostRefusal::Shut(reason), count, first.iter().map(Arc::as_ref));
        }
        let own = kept.map_or(0, |kept| self.hosts.count_mentioning(kept));
        let count = self.hosts.count_mentioning(&kept_in(namespace)).saturating_sub(own);
        if count > 0 {
            let mut first = self.hosts.first_mentioning(&kept_in(namespace), own + NAMED);
            first.retain(|host| host.label(LABEL_REUSE) != reuse.as_deref());
            choosing.pass_over(&HostRefusal::Kept, count, first.iter().map(Arc::as_ref));
        }
    }

    /// The turn to choose of a namespace.
    pub(in crate::cluster) fn turn(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut taking = self.taking();
        if let Some(turn) = taking.turns.get(namespace).and_then(Weak::upgrade) {
            return turn;
        }
        taking.turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        taking.turns.insert(namespace.to_owned(), Arc::downgrade(&turn));
        turn
    }

    /// A look has ended that was to take a host.
    fn end(&self, host: &ObjectKey, is_taken: bool) {
        let mut taken = self.taking();
        if is_taken {
            if let Some(intent) = taken.by_host.get_mut(host) {
                intent.until = Some(Instant::now() + UNHEARD);
            }
            return;
        }
        taken.by_host.remove(host);
        for machine in taken.waiting.remove(&host.0).into_iter().flatten() {
            if let Some(wakes) = taken.wakes.get(&machine.kind) {
                wakes.wake((machine.namespace, machine.name));
            }
        }
    }

    /// A machine is gone, and waits for nothing.
    pub fn forget(&self, machine: &MachineId) {
        self.taking().let_go(machine);
    }

    fn taking(&self) -> MutexGuard<'_, Taking> {
        // Nothing in it can panic between two changes that belong together.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a machine may have a host, as it is now.
    pub fn may_have(&self, wish: &HostWish, found: &BareMetalHost) -> bool {
        let view = CandidateHost::from(found);
        let inspected = self.hardware.get(&key(found));
        let capacity = inspected.as_ref().and_then(|one| one.capacity.as_ref()).or(view.capacity.as_ref());
        refusal(wish, &HostCandidate { host: &view, capacity, taken: false }).is_none()
    }

    /// The other hosts of a host's namespace that have this Secret for their BMCs.
    pub fn with_credentials(&self, host: &BareMetalHost, secret: &str) -> Vec<Arc<CandidateHost>> {
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

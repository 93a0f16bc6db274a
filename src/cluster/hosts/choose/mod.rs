//! Which host a machine gets. Pure, and the same hosts always give the same answer.
//!
//! Candidates are hosts of the machine's own namespace. Of those that may be had, the first in this order is taken:
//!
//! 1. the one that the machine has already;
//! 2. of those that are kept for its control plane or deployment, one that is available. While there are such hosts and none is
//!    available the machine waits for them;
//! 3. hosts in the wanted failure domain, when there are any, else all;
//! 4. among them the smallest that suffices: least memory, then fewest processors, then by name. What nobody inspected counts as
//!    smallest, where nothing is needed of the hardware.

mod host;
mod needs;
mod refusal;
mod selector;
#[cfg(test)]
mod tests;

pub use host::{Barred, CandidateHost, HardwareView, free_in, had_by, has_credentials, kept_for, kept_in, shut_in};
pub use needs::{Capacity, HardwareLack, NeedFault, Needs, quantity};
pub use refusal::{HostRefusal, NAMED, Reasons, Shut};
pub use selector::{CompiledSelector, SelectorFault, Unmet};

use super::consumer::{Consumer, MachineId};
use super::names::{LABEL_FAILURE_DOMAIN, LABEL_REUSE};

/// What a machine wants of a host.
#[derive(Clone, Debug, Default)]
pub struct HostWish {
    /// Which machine.
    pub machine: MachineId,
    /// Name of its cluster; none where machines are of no cluster.
    pub cluster: Option<String>,
    /// Labels that the host must have.
    pub selector: CompiledSelector,
    /// Hardware that it must have.
    pub needs: Needs,
    /// For whom hosts may be kept that it gets: `cp-<control plane>` or `md-<deployment>`.
    pub reuse: Option<String>,
    /// Where it had better be.
    pub failure_domain: Option<String>,
}

/// A host that may be given away.
#[derive(Clone, Copy, Debug)]
pub struct HostCandidate<'a> {
    /// The host.
    pub host: &'a CandidateHost,
    /// Its hardware, where anybody knows.
    pub capacity: Option<&'a Capacity>,
    /// Whether another machine is about to take it.
    pub taken: bool,
}

/// What becomes of a wish.
#[derive(Clone, Debug, PartialEq)]
pub enum HostChoice {
    /// This host.
    Host(String, ChoiceReason),
    /// No host now, and why not.
    None(String),
}

/// How a host was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChoiceReason {
    /// The machine has it already.
    Had,
    /// It is kept for the machine.
    Kept,
    /// It is free.
    Free,
}

/// Chooses of hosts that are all at hand.
pub fn choose(wish: &HostWish, candidates: &[HostCandidate<'_>]) -> HostChoice {
    let mut mine: Vec<_> = candidates
        .iter()
        .filter(|one| one.host.metadata.namespace.as_deref() == Some(&wish.machine.namespace))
        .collect();
    // What order they come in says nothing.
    mine.sort_by(|a, b| a.host.metadata.name.cmp(&b.host.metadata.name));
    let mut choosing = Choosing::new(wish);
    mine.into_iter().for_each(|one| choosing.look(one));
    choosing.end()
}

/// What a host is chosen by among those that may be had: the least is the best. How, whether it is elsewhere than it had better be,
/// bytes of memory, processors, name.
type HostRank = (ChoiceReason, bool, u64, u64, String);

/// A choice under way: it is shown one host after the other, in the order of their names, which those go by that it tells of.
#[derive(Debug)]
pub struct Choosing<'w> {
    wish: &'w HostWish,
    best: Option<HostRank>,
    /// Whether hosts are kept for the machine that it gets, at once or later.
    is_kept_for: bool,
    /// Hosts that are kept for the machine, and why it does not get them now.
    kept: Reasons,
    /// Every host that it does not get.
    passed: Reasons,
    looked_at: usize,
}

impl<'w> Choosing<'w> {
    /// Nothing was looked at yet.
    pub fn new(wish: &'w HostWish) -> Self {
        let (kept, passed) = Default::default();
        Self { wish, best: None, is_kept_for: false, kept, passed, looked_at: 0 }
    }

    /// Looks at a host.
    pub fn look(&mut self, one: &HostCandidate<'_>) {
        self.looked_at += 1;
        let host = one.host;
        if host.consumer.is(&self.wish.machine) {
            return self.offer(one, ChoiceReason::Had);
        }
        let kept_for = host.label(LABEL_REUSE);
        let reason = match (refusal(self.wish, one), kept_for) {
            (Some(reason), _) => reason,
            (None, None) => return self.offer(one, ChoiceReason::Free),
            (None, Some(_)) => {
                self.is_kept_for = true;
                if host.is_available() {
                    return self.offer(one, ChoiceReason::Kept);
                }
                HostRefusal::Shut(Shut::State)
            }
        };
        if kept_for.is_some() && kept_for == self.wish.reuse.as_deref() {
            self.kept.add(host, &reason);
        }
        self.passed.add(host, &reason);
    }

    /// Takes note of so many hosts that the machine does not get, of which these are the first.
    pub fn pass_over<'h>(
        &mut self,
        reason: &HostRefusal,
        hosts: usize,
        first: impl IntoIterator<Item = &'h CandidateHost>,
    ) {
        self.passed.add_all(reason, hosts, first);
    }

    /// Whether other free hosts change nothing any more.
    pub fn is_decided(&self) -> bool {
        self.is_kept_for || self.best.as_ref().is_some_and(|(way, ..)| *way < ChoiceReason::Free)
    }

    /// For what.
    pub fn wish(&self) -> &'w HostWish {
        self.wish
    }

    /// How many hosts were looked at.
    pub fn looked_at(&self) -> usize {
        self.looked_at
    }

    /// What becomes of the wish.
    pub fn end(self) -> HostChoice {
        match self.best {
            Some((way, .., name)) if way < ChoiceReason::Free || !self.is_kept_for => HostChoice::Host(name, way),
            _ if self.is_kept_for => {
                HostChoice::None(format!("Waiting for a host that is kept for reuse. {}", self.kept.summary()))
            }
            _ => HostChoice::None(self.passed.summary()),
        }
    }

    fn offer(&mut self, one: &HostCandidate<'_>, way: ChoiceReason) {
        let wanted = self.wish.failure_domain.as_deref();
        let is_near = wanted.is_some_and(|domain| one.host.label(LABEL_FAILURE_DOMAIN) == Some(domain));
        let (memory, cpus) = one.capacity.map(|capacity| (capacity.memory, capacity.cpus)).unwrap_or_default();
        let name = one.host.metadata.name.clone().unwrap_or_default();
        // The first by name of those that a machine has, wherever they are.
        let rank =
            if way == ChoiceReason::Had { (way, false, 0, 0, name) } else { (way, !is_near, memory, cpus, name) };
        if self.best.as_ref().is_none_or(|best| rank < *best) {
            self.best = Some(rank);
        }
    }
}

/// Why the machine does not get a host. One that is kept for it may be in any state.
pub fn refusal(wish: &HostWish, one: &HostCandidate<'_>) -> Option<HostRefusal> {
    let host = one.host;
    match host.shut() {
        // What it has itself is nobody else's, but may be unfit all the same.
        Some(Shut::Claimed) if host.consumer.is(&wish.machine) => {
            if let Some(unfit) = host.unfit() {
                return Some(HostRefusal::Shut(unfit));
            }
        }
        Some(reason) => return Some(HostRefusal::Shut(reason)),
        None => {}
    }
    let Some(labels) = &host.labels else { return Some(HostRefusal::Shut(Shut::Labels)) };
    if let Some(unmet) = wish.selector.unmet(labels) {
        return Some(HostRefusal::Unmet(unmet));
    }
    if let Some(kept_for) = host.label(LABEL_REUSE)
        && wish.reuse.as_deref() != Some(kept_for)
    {
        return Some(HostRefusal::Kept);
    }
    // Of those that have what is not shut, only a cluster is left.
    if let Consumer::Other { name, .. } = &host.consumer
        && Some(name) != wish.cluster.as_ref()
    {
        return Some(HostRefusal::Shut(Shut::Claimed));
    }
    if one.taken {
        return Some(HostRefusal::Taken);
    }
    wish.needs.lack(one.capacity).map(HostRefusal::Lack)
}

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

use std::cmp::Reverse;

pub use host::{Barred, HardwareView, HostView, had_by, has_credentials, hosts_of};
pub use needs::{Capacity, Lack, NeedFault, Needs, quantity};
pub use refusal::{Refusal, summary};
pub use selector::{Selector, SelectorFault, Unmet};

use super::consumer::{Consumer, MachineId};
use super::names::{LABEL_FAILURE_DOMAIN, LABEL_REUSE};

/// What a machine wants of a host.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Which machine.
    pub machine: MachineId,
    /// Name of its cluster; none where machines are of no cluster.
    pub cluster: Option<String>,
    /// Labels that the host must have.
    pub selector: Selector,
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
    pub host: &'a HostView,
    /// Its hardware, where anybody knows.
    pub capacity: Option<&'a Capacity>,
    /// Whether another machine is about to take it.
    pub taken: bool,
}

/// What becomes of a wish.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice<'a> {
    /// This host.
    Host(&'a str, Way),
    /// No host now, and why not.
    None(String),
}

/// How a host was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The machine has it already.
    Had,
    /// It is kept for the machine.
    Kept,
    /// It is free.
    Free,
}

/// Chooses.
pub fn choose<'a>(wish: &Wish, candidates: &[HostCandidate<'a>]) -> Choice<'a> {
    let mut mine: Vec<HostCandidate<'a>> = candidates
        .iter()
        .filter(|one| one.host.metadata.namespace.as_deref() == Some(&wish.machine.namespace))
        .copied()
        .collect();
    // What order they come in says nothing.
    mine.sort_by(|a, b| a.host.metadata.name.cmp(&b.host.metadata.name));
    let had = |one: &&HostCandidate<'a>| one.host.consumer.is(&wish.machine);
    if let Some(name) = mine.iter().find(had).and_then(|one| one.host.metadata.name.as_deref()) {
        return Choice::Host(name, Way::Had);
    }
    let (mut passed, mut kept, mut free) = (Vec::new(), Vec::new(), Vec::new());
    for one in mine {
        match refusal(wish, &one) {
            Some(refusal) => passed.push((one.host, refusal)),
            None if one.host.label(LABEL_REUSE).is_some() => kept.push(one),
            None => free.push(one),
        }
    }
    if !kept.is_empty() {
        let Some(name) = first(wish, kept.iter().filter(|one| one.host.is_available())) else {
            passed.extend(kept.iter().map(|one| (one.host, Refusal::State(one.host.state.as_str()))));
            passed.retain(|(host, _)| host.label(LABEL_REUSE).is_some());
            return Choice::None(format!("Waiting for a host that is kept for reuse. {}", summary(&passed)));
        };
        return Choice::Host(name, Way::Kept);
    }
    match first(wish, free.iter()) {
        Some(name) => Choice::Host(name, Way::Free),
        None => Choice::None(summary(&passed)),
    }
}

fn first<'a, 'c>(wish: &Wish, all: impl Iterator<Item = &'c HostCandidate<'a>>) -> Option<&'a str>
where
    'a: 'c,
{
    let is_near = |one: &HostCandidate<'_>| {
        wish.failure_domain.as_deref().is_some_and(|domain| one.host.label(LABEL_FAILURE_DOMAIN) == Some(domain))
    };
    let size =
        |one: &HostCandidate<'_>| one.capacity.map(|capacity| (capacity.memory, capacity.cpus)).unwrap_or_default();
    let best = all.min_by(|a, b| {
        let order = |one: &HostCandidate<'_>| (Reverse(is_near(one)), size(one));
        order(a).cmp(&order(b)).then_with(|| a.host.metadata.name.cmp(&b.host.metadata.name))
    })?;
    best.host.metadata.name.as_deref()
}

/// Why the machine does not get a host. One that is kept for it may be in any state.
pub fn refusal(wish: &Wish, one: &HostCandidate<'_>) -> Option<Refusal> {
    let host = one.host;
    if host.metadata.deletion_timestamp.is_some() {
        return Some(Refusal::Deleting);
    }
    let Some(labels) = &host.labels else { return Some(Refusal::Labels) };
    if let Some(unmet) = wish.selector.unmet(labels) {
        return Some(Refusal::Unmet(unmet));
    }
    let kept_for = host.label(LABEL_REUSE);
    let is_claimed = match &host.consumer {
        Consumer::Nobody => false,
        // Its cluster holds it for whoever comes next.
        Consumer::Other { kind, name } => {
            !(kept_for.is_some() && kind == "Cluster" && Some(name) == wish.cluster.as_ref())
        }
        Consumer::Machine(machine) => *machine != wish.machine,
    };
    if let Some(kept_for) = kept_for
        && wish.reuse.as_deref() != Some(kept_for)
    {
        return Some(Refusal::Kept(kept_for.to_owned()));
    }
    if is_claimed {
        return Some(Refusal::Claimed(host.consumer.clone()));
    }
    if one.taken {
        return Some(Refusal::Taken);
    }
    if let Some(barred) = host.barred {
        return Some(Refusal::Barred(barred));
    }
    if !host.error.is_empty() {
        return Some(Refusal::Failed(host.error.clone()));
    }
    if host.has_image {
        return Some(Refusal::HasImage);
    }
    if kept_for.is_none() && !host.is_available() {
        return Some(Refusal::State(host.state.as_str()));
    }
    wish.needs.lack(one.capacity).map(Refusal::Lack)
}

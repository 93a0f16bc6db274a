//! Which machine goes, where a new one is made, and which are due by their age.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{EtcdMember, Plane, PlannedMachine, WellState};

/// Where a new machine is made: where the fewest are that stay, then where the fewest are at all.
pub(super) fn fewest(plane: &Plane) -> Option<String> {
    let stays = |machine: &PlannedMachine| machine.outdated.is_empty() && machine.deleted.is_none();
    let counted = counts(plane, stays);
    counted.into_iter().min_by_key(|(name, counts)| (*counts, *name)).map(|(name, _)| name.to_owned())
}

/// How many machines are in each failure domain: those of a kind, and all.
fn counts(plane: &Plane, of_kind: impl Fn(&PlannedMachine) -> bool) -> BTreeMap<&str, (usize, usize)> {
    let mut counts: BTreeMap<&str, (usize, usize)> =
        plane.failure_domains.iter().map(|name| (name.as_str(), (0, 0))).collect();
    for machine in &plane.machines {
        if let Some((kind, all)) = machine.failure_domain.as_deref().and_then(|name| counts.get_mut(name)) {
            *kind += usize::from(of_kind(machine));
            *all += 1;
        }
    }
    counts
}

/// The machine that goes: one that somebody marked, then an outdated one that is ill, then an outdated one, then one that is not
/// well, for no other may go while it is there, then any; of these the oldest of where the most are.
pub(super) fn to_delete(plane: &Plane) -> Option<&PlannedMachine> {
    let outdated = |machine: &PlannedMachine| machine.needs_rollout();
    let any_is = |machine: &PlannedMachine, of: &dyn Fn(WellState) -> bool| {
        machine.node.is_some() && machine.health.parts(plane.etcd_managed).iter().any(|(_, state)| of(*state))
    };
    let ill = |machine: &PlannedMachine| any_is(machine, &|state| state == WellState::False);
    // Of one that comes nothing is known either.
    let has_joined = |machine: &PlannedMachine| {
        let is_its = |member: &EtcdMember| Some(&member.name) == machine.node.as_ref();
        !plane.etcd_managed || plane.members().iter().any(is_its)
    };
    let all = |of_kind: &dyn Fn(&PlannedMachine) -> bool| -> Vec<&PlannedMachine> {
        plane.machines.iter().filter(|machine| of_kind(machine)).collect()
    };
    let eligible = [
        all(&|machine| machine.delete_first && outdated(machine)),
        all(&|machine| machine.delete_first),
        all(&|machine| outdated(machine) && ill(machine)),
        all(&outdated),
        all(&|machine| has_joined(machine) && any_is(machine, &|state| state != WellState::True)),
        all(&|_| true),
    ];
    let eligible = eligible.into_iter().find(|machines| !machines.is_empty())?;
    most(plane, &eligible)
}

/// The oldest of where the most machines are. What is nowhere, or where nothing should be any more, comes first.
fn most<'m>(plane: &'m Plane, eligible: &[&'m PlannedMachine]) -> Option<&'m PlannedMachine> {
    let known = |machine: &PlannedMachine| {
        machine.failure_domain.as_ref().is_some_and(|name| plane.failure_domains.contains(name))
    };
    let strays: Vec<&PlannedMachine> = eligible.iter().copied().filter(|machine| !known(machine)).collect();
    if !strays.is_empty() {
        return oldest(&strays);
    }
    let counted = counts(plane, |machine| eligible.iter().any(|other| other.name == machine.name));
    // Only where an eligible one is.
    let places = counted.into_iter().filter(|(_, (eligible, _))| *eligible > 0);
    let (name, _) = places.max_by_key(|(name, (eligible, all))| (*eligible, *all, std::cmp::Reverse(*name)))?;
    let there: Vec<&PlannedMachine> =
        eligible.iter().copied().filter(|machine| machine.failure_domain.as_deref() == Some(name)).collect();
    oldest(&there)
}

fn oldest<'m>(machines: &[&'m PlannedMachine]) -> Option<&'m PlannedMachine> {
    machines.iter().copied().min_by_key(|machine| (machine.created, &machine.name))
}

/// When machines are replaced though nothing changed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RolloutRules {
    /// Machines that are older are replaced once this time has come.
    pub after: Option<Timestamp>,
    /// Machines are replaced whose certificates end within so many days.
    pub certificate_days: Option<i32>,
}

/// Why a machine is due by its age: made at `created`, and with certificates until `expires`.
pub fn rollout_dates(
    rules: RolloutRules,
    created: Timestamp,
    expires: Option<Timestamp>,
    now: Timestamp,
) -> Vec<String> {
    let mut reason = Vec::new();
    if let (Some(days), Some(expires)) = (rules.certificate_days.filter(|days| *days > 0), expires)
        && expires.duration_since(now) < SignedDuration::from_hours(i64::from(days) * 24)
    {
        reason.push("Certificates will expire soon".to_owned());
    }
    if rules.after.is_some_and(|after| created < after && after < now) {
        reason.push("KubeadmControlPlane spec.rollout.after expired".to_owned());
    }
    reason
}

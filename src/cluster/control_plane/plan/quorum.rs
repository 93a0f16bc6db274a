//! Whether a control plane stands a change.

use super::{EtcdMember, Plane, WellState};

/// Whether a machine's whole control plane is well. Its parts talk to each other alone: one is worth nothing without the others.
fn is_well(plane: &Plane, machine: &super::PlannedMachine) -> bool {
    let health = &machine.health;
    let etcd = !plane.etcd_managed || health.etcd_pod == WellState::True;
    etcd && [health.api_server, health.controller_manager, health.scheduler]
        .iter()
        .all(|state| *state == WellState::True)
}

/// Whether a machine is left whose control plane is well, without this one.
pub(super) fn components_stand(plane: &Plane, without: Option<&str>) -> bool {
    let others = plane.machines.iter().filter(|machine| Some(machine.name.as_str()) != without);
    others.into_iter().any(|machine| is_well(plane, machine))
}

/// Whether etcd has a quorum of members that are well, once one joins and may be ill, or the member of this name has left.
pub(super) fn etcd_stands(plane: &Plane, joins: bool, without: Option<&str>) -> bool {
    let members = plane.members();
    let (mut voting, mut ill, mut learners) = (0, 0, 0);
    if joins {
        voting += 1;
        // One member cannot become two otherwise.
        ill += usize::from(members.len() > 1);
    }
    for member in members {
        if member.name.is_empty() {
            // It is starting.
            learners += 1;
            ill += 1;
        } else if Some(member.name.as_str()) != without {
            if member.learner {
                learners += 1;
            } else {
                voting += 1;
            }
            ill += usize::from(!member_is_well(plane, member));
        }
    }
    // Whoever learns will vote: that is waited for.
    learners == 0 && has_quorum(voting, ill)
}

fn has_quorum(voting: usize, ill: usize) -> bool {
    voting.saturating_sub(ill) > voting / 2
}

/// Names of the members that are not well, without one.
pub(super) fn ill_members<'p>(plane: &'p Plane, without: Option<&str>) -> Vec<&'p str> {
    let others = plane.members().iter().filter(|member| Some(member.name.as_str()) != without);
    let ill = others.filter(|member| member.name.is_empty() || member.learner || !member_is_well(plane, member));
    ill.map(|member| if member.name.is_empty() { "one that has not started" } else { member.name.as_str() }).collect()
}

/// Whether so many machines are unhealthy that etcd on the others has no quorum.
pub(super) fn is_lost(plane: &Plane) -> bool {
    let ill = plane.machines.iter().filter(|machine| machine.unhealthy).count();
    plane.etcd_managed && !has_quorum(plane.machines.len(), ill)
}

/// Whether a member is well, as far as its machine knows; one without a machine has at least no alarm. That etcd lists a member
/// says nothing of whether it lives: one on a node that nobody hears of may be dead, and is not counted on.
fn member_is_well(plane: &Plane, member: &EtcdMember) -> bool {
    let hosts = |machine: &&super::PlannedMachine| machine.node.as_deref() == Some(member.name.as_str());
    match plane.machines.iter().find(hosts) {
        Some(machine) => machine.health.etcd_member == WellState::True && machine.health.etcd_pod == WellState::True,
        None => !plane.etcd.iter().flat_map(|etcd| &etcd.alarms).any(|(id, _)| *id == member.id),
    }
}

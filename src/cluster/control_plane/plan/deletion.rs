//! Machines that go, and members of etcd that nobody owns.

use super::{ControlPlaneAction, EtcdMember, Handover, Plane, PlannedMachine, nodes, quorum};

/// Removes a member of etcd that belongs to no machine: one whose machine went without it, or that somebody added by hand.
pub(super) fn stray_member(plane: &Plane) -> Option<ControlPlaneAction> {
    if !plane.etcd_managed || plane.machines.is_empty() {
        return None;
    }
    let nodes = nodes(plane);
    let mut strays: Vec<&EtcdMember> =
        plane.members().iter().filter(|member| !nodes.contains(member.name.as_str())).collect();
    // A kubelet registers its node before etcd on it has a name: the one without a name may be that node's.
    let lacks = nodes.iter().any(|node| !plane.members().iter().any(|member| member.name == *node));
    strays.retain(|member| !(member.name.is_empty() && lacks));
    // It may belong to a machine whose node is not known yet.
    if strays.is_empty() || plane.machines.iter().any(|machine| machine.node.is_none()) {
        return None;
    }
    strays.sort_by_key(|member| (&member.name, member.id));
    let stray = strays.first().copied()?;
    // One that has not started will never: there is no machine for it. It has no vote either.
    let stands = stray.name.is_empty() || quorum::etcd_stands(plane, false, Some(&stray.name));
    if plane.members().len() < 2 || !stands || !quorum::components_stand(plane, None) {
        return None;
    }
    Some(ControlPlaneAction::RemoveMember(stray.clone()))
}

/// Waits for the machine that is being deleted, and lets it go once its member of etcd has left.
pub(super) fn deleting(plane: &Plane) -> Option<ControlPlaneAction> {
    let going = plane.machines.iter().filter(|machine| machine.is_deleting());
    let wait = |reason: String| Some(ControlPlaneAction::Wait(reason));
    // One after the other.
    if let Some(machine) = going.clone().find(|machine| !machine.hook) {
        return wait(format!("Machine {} is being deleted", machine.name));
    }
    let machine = going.min_by_key(|machine| (machine.deleted, &machine.name))?;
    let name = &machine.name;
    if plane.hook_is_last && machine.other_hooks {
        return wait(format!("Machine {name} is held by a hook of somebody else"));
    }
    if !machine.awaits_hook {
        return wait(format!("Machine {name} is being drained"));
    }
    let released = |handover, member| Some(ControlPlaneAction::Release { machine: name.clone(), handover, member });
    if plane.machines.len() <= 1 {
        return released(None, None);
    }
    if !quorum::components_stand(plane, Some(name)) {
        return wait(format!("without Machine {name} no control plane components would be healthy"));
    }
    if !plane.etcd_managed {
        return released(None, None);
    }
    if plane.members().is_empty() {
        return wait(format!("Machine {name} stays until the members of etcd are known"));
    }
    // Without a node there is no member that could be named: if one comes, it belongs to nobody and goes.
    let Some(node) = &machine.node else { return released(None, None) };
    if !quorum::etcd_stands(plane, false, Some(node)) {
        return wait(format!("without Machine {name} etcd could lose its quorum"));
    }
    match handover(plane, machine) {
        Ok(handover) => released(handover, plane.members().iter().find(|member| member.name == *node).cloned()),
        Err(reason) => wait(reason),
    }
}

/// Who takes the lead of etcd when a machine goes; an error when that cannot be said.
pub(super) fn handover(plane: &Plane, machine: &PlannedMachine) -> Result<Option<Handover>, String> {
    if !plane.etcd_managed {
        return Ok(None);
    }
    let Some(node) = &machine.node else { return Ok(None) };
    if plane.etcd.as_ref().is_none_or(|etcd| !etcd.members.iter().any(|member| member.id == etcd.leader)) {
        return Err("the leader of etcd is not known".into());
    }
    if !plane.leads(machine) {
        return Ok(None);
    }
    match plane.heirs(machine) {
        heirs if heirs.is_empty() => Err(format!("Machine {} leads etcd, and no other one could", machine.name)),
        to => Ok(Some(Handover { from: node.clone(), to })),
    }
}

//! Whether a control plane can be used.

use super::{ControlPlaneStatusInput, ShownMachine};
use crate::cluster::control_plane::health::{ETCD_MEMBER, PODS};
use crate::runtime::conditions::ConditionVerdict;

/// Whether it can: its certificates are there, a machine has all of its parts in health, and etcd has a quorum.
pub(super) fn verdict(report: &ControlPlaneStatusInput<'_>, certificates: bool) -> ConditionVerdict {
    let no = |reason: Vec<String>| ConditionVerdict::no("NotAvailable", reason.join("\n"));
    if !report.initialized {
        return no(vec!["Control plane not yet initialized".into()]);
    }
    let members = report.etcd.map(|etcd| etcd.members.as_slice()).unwrap_or_default();
    if report.etcd_managed && report.etcd.is_none() {
        return ConditionVerdict::unknown("InspectionFailed", "The members of etcd are not known");
    }
    // Machines without an identity have nothing yet that could be well.
    let running: Vec<&ShownMachine> = report.machines.iter().filter(|machine| machine.has_provider_id).collect();
    let well = running.iter().filter(|machine| is_well(machine, report.etcd_managed)).count();
    let voting = members.iter().filter(|member| !member.learner && !member.name.is_empty()).count();
    let of = |name: &str| report.machines.iter().find(|machine| machine.node.as_deref() == Some(name));
    let healthy =
        members.iter().filter(|member| of(&member.name).is_some_and(|machine| holds(machine, ETCD_MEMBER))).count();
    let quorum = voting / 2 + 1;
    let etcd =
        || format!("* {healthy} of {} etcd members are healthy, {quorum} are needed for a quorum", members.len());
    let parts = || {
        let all = report.machines.len();
        format!("* {well} of {all} Machines have healthy control plane components, at least 1 is needed")
    };
    let mut lacking = Vec::new();
    if report.deleting.is_some() {
        lacking.push("* The control plane is being deleted".into());
    }
    if !certificates {
        lacking.push("* Certificates are not available".into());
    }
    if report.etcd_managed && healthy < quorum {
        lacking.push(etcd());
    }
    if well == 0 {
        lacking.push(parts());
    }
    if !lacking.is_empty() {
        return no(lacking);
    }
    let mut told = Vec::new();
    if report.etcd_managed && healthy < members.len() {
        told.push(etcd());
    }
    if well < running.len() {
        told.push(parts());
    }
    ConditionVerdict { message: told.join("\n"), ..ConditionVerdict::yes("Available") }
}

fn holds(machine: &ShownMachine, type_: &str) -> bool {
    machine.parts.get(type_).is_some_and(ConditionVerdict::is_true)
}

fn is_well(machine: &ShownMachine, etcd_managed: bool) -> bool {
    let pods = PODS.iter().filter(|(_, pod)| etcd_managed || *pod != "etcd");
    pods.map(|(type_, _)| *type_).all(|type_| holds(machine, type_)) && (!etcd_managed || holds(machine, ETCD_MEMBER))
}

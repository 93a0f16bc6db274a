//! What the status of a MachineDeployment says. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::rollout::DesiredDeployment;
use crate::api::cluster::DeploymentPhase;
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineDeploymentStatus, MachineSet};
use crate::cluster::contract::{count_versions, pause, version_of};
use crate::runtime::conditions::{self, ConditionVerdict, Severity};
use crate::runtime::owners;

/// Everything that the status is made of.
pub(super) struct MachineDeploymentStatusInput<'a> {
    pub deployment: &'a MachineDeployment,
    pub cluster: Option<&'a Cluster>,
    pub sets: &'a [Arc<MachineSet>],
    /// The set of the template as it is now.
    pub newest: Option<&'a MachineSet>,
    pub machines: &'a [Arc<Machine>],
    pub selector: String,
    pub wish: DesiredDeployment,
}

fn owns(set: &MachineSet, machine: &Machine) -> bool {
    let owner = owners::controller(&machine.metadata);
    owner.is_some_and(|owner| Some(owner.uid.as_str()) == set.metadata.uid.as_deref())
}

fn count(number: usize) -> Option<i32> {
    Some(i32::try_from(number).unwrap_or(i32::MAX))
}

/// The status that follows.
pub(super) fn status(view: &MachineDeploymentStatusInput<'_>, now: Timestamp) -> MachineDeploymentStatus {
    let MachineDeploymentStatusInput { deployment, machines, wish, .. } = view;
    let mut status = deployment.status.clone().unwrap_or_default();
    let says = |machine: &Machine, type_: &str| {
        machine.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, type_))
    };
    let of = |type_: &str| machines.iter().filter(|machine| says(machine, type_)).count();
    // What machines say of it was found out by others, who may not have seen yet that the template is another one.
    let is_current = |machine: &Machine| view.newest.is_none_or(|set| owns(set, machine)) && says(machine, "UpToDate");
    let current = machines.iter().filter(|machine| is_current(machine)).count();
    let (is, available) = (machines.len(), of("Available"));
    let deleted = deployment.metadata.deletion_timestamp.is_some();
    let wished = if deleted { 0 } else { wish.replicas };
    status.selector = Some(view.selector.clone()).filter(|selector| !selector.is_empty());
    status.replicas = count(is);
    status.ready_replicas = count(of("Ready"));
    status.available_replicas = count(available);
    status.up_to_date_replicas = count(current);
    status.versions = count_versions(machines.iter().filter_map(|machine| version_of(machine)));
    status.observed_generation = deployment.metadata.generation;
    status.phase = Some(match is.cmp(&wished) {
        std::cmp::Ordering::Less => DeploymentPhase::ScalingUp,
        std::cmp::Ordering::Greater => DeploymentPhase::ScalingDown,
        std::cmp::Ordering::Equal if current == is && available == is => DeploymentPhase::Running,
        // Some are yet to become what they should be, or are replaced.
        std::cmp::Ordering::Equal => DeploymentPhase::ScalingUp,
    });
    let least = wished.saturating_sub(wish.lacking);
    let enough = if available >= least {
        ConditionVerdict::yes("Available")
    } else {
        ConditionVerdict::no("NotAvailable", format!("{available} machines are available, at least {least} must be"))
    };
    let all = vec![
        ("Available", enough.clone()),
        ("MachinesReady", every(machines, "Ready", ["Ready", "NotReady", "ReadyUnknown"])),
        ("MachinesUpToDate", every(machines, "UpToDate", ["UpToDate", "NotUpToDate", "UpToDateUnknown"])),
        ("RollingOut", rolling_out(machines)),
        ("ScalingUp", scaling_up(view, is, wished)),
        ("ScalingDown", scaling_down(is, wished)),
        ("Remediating", remediating(view)),
        (
            "Deleting",
            if deleted {
                let message = format!("waiting for {} MachineSets", view.sets.len());
                ConditionVerdict { message, ..ConditionVerdict::yes("Deleting") }
            } else {
                ConditionVerdict::no("NotDeleting", "")
            },
        ),
        (pause::PAUSED, paused(view)),
    ];
    for (type_, verdict) in &all {
        conditions::set(&mut status.conditions, type_, verdict, deployment.metadata.generation, now);
    }
    let old = status.deprecated.get_or_insert_default().v1beta1.get_or_insert_default();
    old.ready_replicas = count(of("NodeReady"));
    old.available_replicas = count(available);
    old.updated_replicas = count(current);
    old.unavailable_replicas = count(wished.saturating_sub(available));
    let ready = match view.sets.iter().any(|set| set.status.is_some()) || wished == 0 {
        true => ConditionVerdict::yes("MachineSetReady"),
        false => ConditionVerdict::no("WaitingForMachineSet", ""),
    };
    for (type_, verdict) in [("Ready", enough.clone()), ("Available", enough), ("MachineSetReady", ready)] {
        conditions::set_old(&mut old.conditions, type_, &verdict, Severity::Warning, now);
    }
    status
}

fn paused(view: &MachineDeploymentStatusInput<'_>) -> ConditionVerdict {
    if view.deployment.spec.paused == Some(true) {
        return ConditionVerdict {
            message: "spec.paused of the MachineDeployment is true".into(),
            ..ConditionVerdict::yes("Paused")
        };
    }
    pause::verdict(view.cluster, view.deployment)
}

fn every(machines: &[Arc<Machine>], type_: &str, reasons: [&str; 3]) -> ConditionVerdict {
    let of = machines.iter().map(|machine| {
        let own = machine.status.as_ref().and_then(|status| conditions::find(&status.conditions, type_));
        (machine.metadata.name.as_deref().unwrap_or_default(), own.map(ConditionVerdict::of))
    });
    conditions::all(of, reasons)
}

fn lack(machines: &[Arc<Machine>], type_: &str) -> Vec<String> {
    let is = |machine: &Machine| {
        machine.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, type_))
    };
    machines.iter().filter(|machine| is(machine)).filter_map(|machine| machine.metadata.name.clone()).collect()
}

fn rolling_out(machines: &[Arc<Machine>]) -> ConditionVerdict {
    let old = lack(machines, "UpToDate").len();
    if old == 0 {
        return ConditionVerdict::no("NotRollingOut", "");
    }
    ConditionVerdict { message: format!("{old} machines are not up to date"), ..ConditionVerdict::yes("RollingOut") }
}

fn scaling_up(view: &MachineDeploymentStatusInput<'_>, is: usize, wished: usize) -> ConditionVerdict {
    let blocked = view.sets.iter().find_map(|set| {
        let found = conditions::find(&set.status.as_ref()?.conditions, "ScalingUp")?;
        found.message.contains("is blocked").then(|| found.message.clone())
    });
    if is >= wished && blocked.is_none() {
        return ConditionVerdict::no("NotScalingUp", "");
    }
    let message = blocked.unwrap_or_else(|| format!("scaling up from {is} to {wished} machines"));
    ConditionVerdict { message, ..ConditionVerdict::yes("ScalingUp") }
}

fn scaling_down(is: usize, wished: usize) -> ConditionVerdict {
    if is <= wished {
        return ConditionVerdict::no("NotScalingDown", "");
    }
    ConditionVerdict {
        message: format!("scaling down from {is} to {wished} machines"),
        ..ConditionVerdict::yes("ScalingDown")
    }
}

fn remediating(view: &MachineDeploymentStatusInput<'_>) -> ConditionVerdict {
    let names = lack(view.machines, "OwnerRemediated");
    if names.is_empty() {
        return ConditionVerdict::no("NotRemediating", "");
    }
    ConditionVerdict {
        message: names.into_iter().take(10).collect::<Vec<_>>().join(", "),
        ..ConditionVerdict::yes("Remediating")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::RolloutType;
    use crate::api::cluster::v1beta2::MachineStatus;

    #[test]
    fn a_deployment_says_how_many_machines_are_what_they_should_be() {
        let deployment = MachineDeployment::new("d", Default::default());
        let machine = |up_to_date: bool| {
            let mut machine = Machine::new("m", Default::default());
            let mut status = MachineStatus::default();
            let verdict =
                if up_to_date { ConditionVerdict::yes("UpToDate") } else { ConditionVerdict::no("NotUpToDate", "") };
            for (type_, verdict) in [("UpToDate", verdict), ("Available", ConditionVerdict::yes("Available"))] {
                conditions::set(&mut status.conditions, type_, &verdict, None, Timestamp::UNIX_EPOCH);
            }
            machine.status = Some(status);
            Arc::new(machine)
        };
        let of = |replicas: usize, machines: &[Arc<Machine>]| {
            let wish =
                DesiredDeployment { replicas, surge: 1, lacking: 1, by: RolloutType::RollingUpdate, paused: false };
            let view = MachineDeploymentStatusInput {
                deployment: &deployment,
                cluster: None,
                sets: &[],
                newest: None,
                machines,
                selector: "a=b".into(),
                wish,
            };
            let status = status(&view, Timestamp::UNIX_EPOCH);
            let is = |type_: &str| conditions::find(&status.conditions, type_).unwrap().status == "True";
            (status.phase.unwrap(), is("Available"), is("RollingOut"), status.up_to_date_replicas)
        };
        // The set of a template that has just become another one has no machine that says so yet.
        let newest = MachineSet::new("s", Default::default());
        let wish =
            || DesiredDeployment { replicas: 1, surge: 1, lacking: 1, by: RolloutType::RollingUpdate, paused: false };
        let view = MachineDeploymentStatusInput {
            deployment: &deployment,
            cluster: None,
            sets: &[],
            newest: Some(&newest),
            machines: &[machine(true)],
            selector: "a=b".into(),
            wish: wish(),
        };
        assert_eq!(status(&view, Timestamp::UNIX_EPOCH).up_to_date_replicas, Some(0));
        let (new, old) = (machine(true), machine(false));
        assert_eq!(of(2, &[new.clone(), new.clone()]), (DeploymentPhase::Running, true, false, Some(2)));
        assert_eq!(of(2, std::slice::from_ref(&new)), (DeploymentPhase::ScalingUp, true, false, Some(1)));
        assert_eq!(of(3, std::slice::from_ref(&new)), (DeploymentPhase::ScalingUp, false, false, Some(1)));
        assert_eq!(of(2, &[new.clone(), old.clone()]), (DeploymentPhase::ScalingUp, true, true, Some(1)));
        assert_eq!(of(1, &[new, old]), (DeploymentPhase::ScalingDown, true, true, Some(1)));
    }
}

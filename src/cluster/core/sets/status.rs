//! What the status of a MachineSet says. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::cluster::v1beta2::{Cluster, Machine, MachineSet, MachineSetStatus};
use crate::cluster::contract::{count_versions, pause, version_of};
use crate::runtime::conditions::{self, ConditionVerdict, Severity};

/// Everything that the status is made of.
pub(super) struct MachineSetStatusInput<'a> {
    pub set: &'a MachineSet,
    pub cluster: Option<&'a Cluster>,
    pub machines: &'a [Arc<Machine>],
    pub selector: String,
    /// Why no machine can be made now.
    pub objection: Option<String>,
}

fn count(number: usize) -> Option<i32> {
    Some(i32::try_from(number).unwrap_or(i32::MAX))
}

fn says(machine: &Machine, type_: &str) -> bool {
    machine.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, type_))
}

/// The status that follows.
pub(super) fn status(view: &MachineSetStatusInput<'_>, now: Timestamp) -> MachineSetStatus {
    let MachineSetStatusInput { set, machines, .. } = view;
    let mut status = set.status.clone().unwrap_or_default();
    let of = |type_: &str| count(machines.iter().filter(|machine| says(machine, type_)).count());
    status.selector = Some(view.selector.clone()).filter(|selector| !selector.is_empty());
    status.replicas = count(machines.len());
    status.ready_replicas = of("Ready");
    status.available_replicas = of("Available");
    status.up_to_date_replicas = of("UpToDate");
    status.versions = count_versions(machines.iter().filter_map(|machine| version_of(machine)));
    status.observed_generation = set.metadata.generation;
    let wished = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let deleted = set.metadata.deletion_timestamp.is_some();
    let wished = if deleted { 0 } else { wished };
    let (is, names) = (machines.len(), |type_: &str| every(machines, type_));
    let scaling_up = if is < wished {
        let message = view.objection.clone().unwrap_or_default();
        let scale = format!("scaling up from {is} to {wished} machines");
        let message = if message.is_empty() { scale } else { format!("{scale} is blocked: {message}") };
        ConditionVerdict { message, ..ConditionVerdict::yes("ScalingUp") }
    } else {
        ConditionVerdict::no("NotScalingUp", view.objection.clone().unwrap_or_default())
    };
    let scaling_down = if is > wished {
        let message = format!("scaling down from {is} to {wished} machines");
        ConditionVerdict { message, ..ConditionVerdict::yes("ScalingDown") }
    } else {
        ConditionVerdict::no("NotScalingDown", "")
    };
    let deleting = if deleted {
        ConditionVerdict { message: format!("waiting for {is} Machines"), ..ConditionVerdict::yes("Deleting") }
    } else {
        ConditionVerdict::no("NotDeleting", "")
    };
    let ready = names("Ready");
    let all = [
        ("ScalingUp", scaling_up),
        ("ScalingDown", scaling_down),
        ("MachinesReady", ready.clone()),
        ("MachinesUpToDate", names("UpToDate")),
        ("Remediating", remediating(machines)),
        ("Deleting", deleting),
        (pause::PAUSED, pause::verdict(view.cluster, *set)),
    ];
    for (type_, verdict) in &all {
        conditions::set(&mut status.conditions, type_, verdict, set.metadata.generation, now);
    }
    let old = status.deprecated.get_or_insert_default().v1beta1.get_or_insert_default();
    let node_ready = count(machines.iter().filter(|machine| says(machine, "NodeReady")).count());
    old.ready_replicas = node_ready;
    old.available_replicas = status.available_replicas;
    old.fully_labeled_replicas = count(machines.len());
    let resized = match (is, wished) {
        (is, wished) if is < wished => {
            ConditionVerdict::no("ScalingUp", format!("scaling up from {is} to {wished} machines"))
        }
        (is, wished) if is > wished => {
            ConditionVerdict::no("ScalingDown", format!("scaling down from {is} to {wished} machines"))
        }
        _ => ConditionVerdict::yes("Resized"),
    };
    let created = match &view.objection {
        Some(reason) => ConditionVerdict::no("PreflightCheckFailed", reason.clone()),
        None => ConditionVerdict::yes("MachinesCreated"),
    };
    for (type_, verdict) in [("MachinesCreated", created), ("MachinesReady", ready), ("Resized", resized)] {
        conditions::set_old(&mut old.conditions, type_, &verdict, Severity::Warning, now);
    }
    let (ready, severity) = conditions::summary_old(&old.conditions, &["MachinesCreated", "Resized", "MachinesReady"]);
    conditions::set_old(&mut old.conditions, "Ready", &ready, severity, now);
    status
}

fn every(machines: &[Arc<Machine>], type_: &str) -> ConditionVerdict {
    let of = machines.iter().map(|machine| {
        let own = machine.status.as_ref().and_then(|status| conditions::find(&status.conditions, type_));
        (machine.metadata.name.as_deref().unwrap_or_default(), own.map(ConditionVerdict::of))
    });
    let [yes, no, unknown] = match type_ {
        "Ready" => ["Ready", "NotReady", "ReadyUnknown"],
        _ => ["UpToDate", "NotUpToDate", "UpToDateUnknown"],
    };
    conditions::all(of, [yes, no, unknown])
}

fn remediating(machines: &[Arc<Machine>]) -> ConditionVerdict {
    let names: Vec<String> = machines
        .iter()
        .filter(|machine| {
            machine.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, "OwnerRemediated"))
        })
        .map(|machine| machine.name_any())
        .take(10)
        .collect();
    if names.is_empty() {
        ConditionVerdict::no("NotRemediating", "")
    } else {
        ConditionVerdict { message: names.join(", "), ..ConditionVerdict::yes("Remediating") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_says_what_it_does_about_how_many_machines() {
        let mut set = MachineSet::new("s", Default::default());
        let machines = [Arc::new(Machine::new("m", Default::default()))];
        for (replicas, up, down) in [(3, "True", "False"), (1, "False", "False"), (0, "False", "True")] {
            set.spec.replicas = Some(replicas);
            let view = MachineSetStatusInput {
                set: &set,
                cluster: None,
                machines: &machines,
                selector: "a=b".into(),
                objection: None,
            };
            let status = status(&view, Timestamp::UNIX_EPOCH);
            let is = |type_: &str| conditions::find(&status.conditions, type_).unwrap().status.clone();
            assert_eq!((is("ScalingUp").as_str(), is("ScalingDown").as_str()), (up, down), "{replicas}");
            assert_eq!((status.replicas, status.ready_replicas), (Some(1), Some(0)));
            assert_eq!(is("MachinesReady"), "Unknown");
        }
        let summed = |replicas: i32, ready: bool| {
            let mut set = MachineSet::new("s", Default::default());
            set.spec.replicas = Some(replicas);
            let mut machine = Machine::new("m", Default::default());
            machine.spec.version = Some("v1.35.0".into());
            if ready {
                let own = machine.status.get_or_insert_default();
                conditions::set(
                    &mut own.conditions,
                    "Ready",
                    &ConditionVerdict::yes("Ready"),
                    None,
                    Timestamp::UNIX_EPOCH,
                );
            }
            let machines = [Arc::new(machine)];
            let view = MachineSetStatusInput {
                set: &set,
                cluster: None,
                machines: &machines,
                selector: "a=b".into(),
                objection: None,
            };
            let status = status(&view, Timestamp::UNIX_EPOCH);
            assert_eq!(status.versions, count_versions(["v1.35.0"]));
            let old = status.deprecated.unwrap().v1beta1.unwrap().conditions;
            let ready = old.into_iter().find(|condition| condition.type_ == "Ready").unwrap();
            (ready.status, ready.reason.unwrap_or_default(), ready.severity.unwrap_or_default())
        };
        let texts = |status: &str, reason: &str, severity: &str| (status.into(), reason.into(), severity.into());
        assert_eq!(summed(1, true), texts("True", "", ""));
        assert_eq!(summed(2, true), texts("False", "ScalingUp", "Warning"));
        assert_eq!(summed(1, false), texts("Unknown", "ReadyUnknown", ""));
        set.spec.replicas = Some(3);
        let objection = Some("the control plane is being made".to_owned());
        let view =
            MachineSetStatusInput { set: &set, cluster: None, machines: &[], selector: String::new(), objection };
        let status = status(&view, Timestamp::UNIX_EPOCH);
        let up = conditions::find(&status.conditions, "ScalingUp").unwrap();
        assert!(up.message.ends_with("is blocked: the control plane is being made"), "{}", up.message);
    }
}

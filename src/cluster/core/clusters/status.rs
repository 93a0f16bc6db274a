//! What the status of a Cluster says. Pure.

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::cluster::keys::LABEL_CONTROL_PLANE;
use crate::api::cluster::v1beta2::{Cluster, ClusterStatus, Machine, MachineDeployment, MachineSet};
use crate::api::cluster::{CLUSTER_VERSIONS_MAX, FailureDomain, Polarity, ReplicaCounts};
use crate::cluster::contract::{count_versions, pause, version_of};
use crate::cluster::core::seen::{SeenObject, mirrored};
use crate::runtime::conditions::{self, ConditionVerdict, Severity};
use crate::runtime::owners;

/// Everything that the status is made of.
pub(super) struct ClusterStatusInput<'a> {
    pub cluster: &'a Cluster,
    pub infrastructure: SeenObject,
    pub control_plane: SeenObject,
    /// Machines that the control plane's object counts.
    pub counted: ReplicaCounts,
    /// Where its machines may be, as the infrastructure says; `None` when that is not there.
    pub domains: Option<Vec<FailureDomain>>,
    pub machines: &'a [std::sync::Arc<Machine>],
    pub sets: &'a [std::sync::Arc<MachineSet>],
    pub deployments: &'a [std::sync::Arc<MachineDeployment>],
    /// Whether the cluster's API server answers; `None` before there is one.
    pub probe: Option<Result<(), String>>,
    /// What a deletion waits for.
    pub deleting: Option<ConditionVerdict>,
}

/// Whether a machine is one of the control plane.
pub(super) fn is_control_plane(machine: &Machine) -> bool {
    machine.labels().contains_key(LABEL_CONTROL_PLANE)
}

/// Where a cluster is in its life.
fn phase(cluster: &Cluster, provisioned: bool) -> &'static str {
    let named = cluster.spec.infrastructure_ref.is_some() || cluster.spec.control_plane_ref.is_some();
    if cluster.metadata.deletion_timestamp.is_some() {
        return "Deleting";
    }
    match (provisioned && has_endpoint(cluster), named) {
        (true, _) => "Provisioned",
        (false, true) => "Provisioning",
        (false, false) => "Pending",
    }
}

/// Whether it is known where the API server is reached.
pub(super) fn has_endpoint(cluster: &Cluster) -> bool {
    let endpoint = cluster.spec.control_plane_endpoint.as_ref();
    endpoint.is_some_and(|endpoint| !endpoint.host.is_empty() && endpoint.port.is_some_and(|port| port > 0))
}

/// The status that follows from what was seen.
pub(super) fn status(view: &ClusterStatusInput<'_>, now: Timestamp) -> ClusterStatus {
    let cluster = view.cluster;
    let mut status = cluster.status.clone().unwrap_or_default();
    let mut done = status.initialization.clone().unwrap_or_default();
    // Once it is so it stays so, whatever becomes of the objects.
    let is_done = |seen: &SeenObject| matches!(seen, SeenObject::There { done: true, .. });
    if is_done(&view.infrastructure) {
        done.infrastructure_provisioned = Some(true);
    }
    let alone = matches!(view.control_plane, SeenObject::Unnamed);
    let by_machine = alone && view.machines.iter().any(|machine| is_control_plane(machine) && has_node(machine));
    if is_done(&view.control_plane) || by_machine {
        done.control_plane_initialized = Some(true);
    }
    let provisioned = done.infrastructure_provisioned == Some(true);
    let initialized = done.control_plane_initialized == Some(true);
    if done != Default::default() {
        status.initialization = Some(done);
    }
    if let Some(domains) = &view.domains {
        status.failure_domains.clone_from(domains);
    }
    status.phase = Some(phase(cluster, provisioned).to_owned());
    status.observed_generation = cluster.metadata.generation;
    let (planes, workers): (Vec<_>, Vec<_>) = view.machines.iter().partition(|machine| is_control_plane(machine));
    status.control_plane = Some(if alone { counted(&planes, planes.len()) } else { view.counted.clone() });
    status.workers = Some(counted(&workers, wished(view, &workers)));
    set_conditions(&mut status, view, initialized, &planes, &workers, now);
    status
}

fn has_node(machine: &Machine) -> bool {
    machine.status.as_ref().is_some_and(|status| status.node_ref.is_some())
}

fn says(machine: &Machine, type_: &str) -> bool {
    machine.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, type_))
}

fn count(number: usize) -> Option<i32> {
    Some(i32::try_from(number).unwrap_or(i32::MAX))
}

fn counted(machines: &[&std::sync::Arc<Machine>], wished: usize) -> ReplicaCounts {
    let of = |type_: &str| count(machines.iter().filter(|machine| says(machine, type_)).count());
    let mut versions = count_versions(machines.iter().filter_map(|machine| version_of(machine)));
    versions.truncate(CLUSTER_VERSIONS_MAX);
    ReplicaCounts {
        desired_replicas: count(wished),
        replicas: count(machines.len()),
        up_to_date_replicas: of("UpToDate"),
        ready_replicas: of("Ready"),
        available_replicas: of("Available"),
        versions,
    }
}

/// Workers wished for: by deployments, by sets of nobody, and machines of nobody.
fn wished(view: &ClusterStatusInput<'_>, workers: &[&std::sync::Arc<Machine>]) -> usize {
    let number = |replicas: Option<i32>| usize::try_from(replicas.unwrap_or(1)).unwrap_or(0);
    let deployed: usize = view.deployments.iter().map(|one| number(one.spec.replicas)).sum();
    let sets = view.sets.iter().filter(|set| owners::controller(&set.metadata).is_none());
    let alone = workers.iter().filter(|machine| owners::controller(&machine.metadata).is_none()).count();
    deployed + sets.map(|set| number(set.spec.replicas)).sum::<usize>() + alone
}

fn set_conditions(
    status: &mut ClusterStatus,
    view: &ClusterStatusInput<'_>,
    initialized: bool,
    planes: &[&std::sync::Arc<Machine>],
    workers: &[&std::sync::Arc<Machine>],
    now: Timestamp,
) {
    let cluster = view.cluster;
    let infrastructure = mirrored(&view.infrastructure, ["Ready", "NotReady", "DoesNotExist"]);
    let control_plane = match &view.control_plane {
        SeenObject::Unnamed if planes.is_empty() => {
            ConditionVerdict::unknown("NotAvailable", "there is no control plane yet")
        }
        SeenObject::Unnamed => every(planes, "Available", ["Available", "NotAvailable", "AvailableUnknown"]),
        seen => mirrored(seen, ["Available", "NotAvailable", "DoesNotExist"]),
    };
    let initialized = if initialized {
        ConditionVerdict::yes("Initialized")
    } else {
        ConditionVerdict::no("NotInitialized", "the control plane's API server has not answered yet")
    };
    let probe = match &view.probe {
        Some(Ok(())) => ConditionVerdict::yes("ProbeSucceeded"),
        Some(Err(reason)) => ConditionVerdict::no("ProbeFailed", reason.clone()),
        None => ConditionVerdict::no("ProbeFailed", "there is no API server to ask yet"),
    };
    let deployed = view.deployments.iter().map(|one| {
        let own = one.status.as_ref().and_then(|status| conditions::find(&status.conditions, "Available"));
        (one.metadata.name.as_deref().unwrap_or_default(), own.map(ConditionVerdict::of))
    });
    let workers_available = conditions::all(deployed, ["Available", "NotAvailable", "AvailableUnknown"]);
    let deleting = view.deleting.clone().unwrap_or_else(|| ConditionVerdict::no("NotDeleting", ""));
    let all: Vec<(&str, ConditionVerdict)> = vec![
        ("InfrastructureReady", infrastructure.clone()),
        ("ControlPlaneInitialized", initialized.clone()),
        ("ControlPlaneAvailable", control_plane.clone()),
        ("WorkersAvailable", workers_available),
        ("ControlPlaneMachinesReady", every(planes, "Ready", ["Ready", "NotReady", "ReadyUnknown"])),
        ("WorkerMachinesReady", every(workers, "Ready", ["Ready", "NotReady", "ReadyUnknown"])),
        ("ControlPlaneMachinesUpToDate", every(planes, "UpToDate", ["UpToDate", "NotUpToDate", "UpToDateUnknown"])),
        ("WorkerMachinesUpToDate", every(workers, "UpToDate", ["UpToDate", "NotUpToDate", "UpToDateUnknown"])),
        ("RemoteConnectionProbe", probe),
        ("RollingOut", some(view, "RollingOut", ["RollingOut", "NotRollingOut"])),
        ("ScalingUp", some(view, "ScalingUp", ["ScalingUp", "NotScalingUp"])),
        ("ScalingDown", some(view, "ScalingDown", ["ScalingDown", "NotScalingDown"])),
        ("Remediating", remediating(view)),
        ("Deleting", deleting),
        (pause::PAUSED, pause::verdict(Some(cluster), cluster)),
    ];
    let generation = cluster.metadata.generation;
    for (type_, verdict) in &all {
        conditions::set(&mut status.conditions, type_, verdict, generation, now);
    }
    let available = available(cluster, &status.conditions);
    conditions::set(&mut status.conditions, "Available", &available, generation, now);
    let ready = if infrastructure.is_true() && control_plane.is_true() {
        ConditionVerdict::yes("Ready")
    } else if infrastructure.is_true() {
        control_plane.clone()
    } else {
        infrastructure.clone()
    };
    let old = conditions::older(&mut status.deprecated);
    for (type_, verdict) in [
        ("Ready", ready),
        ("InfrastructureReady", infrastructure),
        ("ControlPlaneInitialized", initialized),
        ("ControlPlaneReady", control_plane),
    ] {
        conditions::set_old(old, type_, &verdict, Severity::Info, now);
    }
}

/// Whether a cluster can be used: what counts, and what the cluster adds to it.
fn available(cluster: &Cluster, all: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]) -> ConditionVerdict {
    let own = ["RemoteConnectionProbe", "InfrastructureReady", "ControlPlaneAvailable", "WorkersAvailable"];
    let find = |type_: &str| conditions::find(all, type_).map(ConditionVerdict::of);
    let mut parts: Vec<(&str, Option<ConditionVerdict>, bool)> =
        own.iter().map(|type_| (*type_, find(type_), true)).collect();
    parts.push(("Deleting", find("Deleting"), false));
    for gate in cluster.spec.availability_gates.iter().take(32) {
        let good = gate.polarity.unwrap_or_default() == Polarity::Positive;
        parts.push((&gate.condition_type, find(&gate.condition_type), good));
    }
    conditions::summary(&parts, ["Available", "NotAvailable", "AvailableUnknown"])
}

/// What the same condition of several machines says.
fn every(machines: &[&std::sync::Arc<Machine>], type_: &str, reasons: [&str; 3]) -> ConditionVerdict {
    let of = machines.iter().map(|machine| {
        let own = machine.status.as_ref().and_then(|status| conditions::find(&status.conditions, type_));
        (machine.metadata.name.as_deref().unwrap_or_default(), own.map(ConditionVerdict::of))
    });
    conditions::all(of, reasons)
}

/// Whether one of those that keep machines says that it is doing something.
fn some(view: &ClusterStatusInput<'_>, type_: &str, [yes, no]: [&str; 2]) -> ConditionVerdict {
    let deployments = view
        .deployments
        .iter()
        .filter(|one| one.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, type_)));
    let sets = view.sets.iter().filter(|set| {
        owners::controller(&set.metadata).is_none()
            && set.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, type_))
    });
    let names: Vec<String> = deployments
        .map(|one| format!("MachineDeployment {}", one.name_any()))
        .chain(sets.map(|set| format!("MachineSet {}", set.name_any())))
        .take(10)
        .collect();
    if names.is_empty() {
        ConditionVerdict::no(no, "")
    } else {
        ConditionVerdict { message: names.join(", "), ..ConditionVerdict::yes(yes) }
    }
}

fn remediating(view: &ClusterStatusInput<'_>) -> ConditionVerdict {
    let names: Vec<String> = view
        .machines
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
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::cluster::ApiEndpoint;
    use crate::api::cluster::v1beta2::{ClusterInitialization, ContractReference, MachineStatus, NodeReference};

    fn there(done: bool, condition: Option<ConditionVerdict>) -> SeenObject {
        SeenObject::There { what: "X \"x\"".into(), done, condition, deleted: false, failure: None }
    }

    fn view<'a>(
        cluster: &'a Cluster,
        machines: &'a [Arc<Machine>],
        infrastructure: SeenObject,
        control_plane: SeenObject,
    ) -> ClusterStatusInput<'a> {
        ClusterStatusInput {
            cluster,
            infrastructure,
            control_plane,
            counted: ReplicaCounts::default(),
            domains: None,
            machines,
            sets: &[],
            deployments: &[],
            probe: None,
            deleting: None,
        }
    }

    fn says<'s>(status: &'s ClusterStatus, type_: &str) -> (&'s str, &'s str) {
        let condition = conditions::find(&status.conditions, type_).unwrap();
        (&condition.status, &condition.reason)
    }

    #[test]
    fn phases_are_as_published() {
        let mut cluster = Cluster::new("c", Default::default());
        let of = |cluster: &Cluster, done| {
            status(&view(cluster, &[], there(done, None), SeenObject::Unnamed), Timestamp::UNIX_EPOCH).phase.unwrap()
        };
        assert_eq!(of(&cluster, false), "Pending");
        cluster.spec.infrastructure_ref = Some(ContractReference::default());
        assert_eq!((of(&cluster, false), of(&cluster, true)), ("Provisioning".into(), "Provisioning".into()));
        cluster.spec.control_plane_endpoint = Some(ApiEndpoint { host: "x".into(), port: Some(6443) });
        assert_eq!((of(&cluster, false), of(&cluster, true)), ("Provisioning".into(), "Provisioned".into()));
        cluster.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(of(&cluster, true), "Deleting");
    }

    #[test]
    fn what_was_done_once_stays_done() {
        let mut cluster = Cluster::new("c", Default::default());
        let first = status(&view(&cluster, &[], there(true, None), there(true, None)), Timestamp::UNIX_EPOCH);
        let both =
            ClusterInitialization { infrastructure_provisioned: Some(true), control_plane_initialized: Some(true) };
        assert_eq!(first.initialization, Some(both.clone()));
        cluster.status = Some(first);
        let gone = || SeenObject::Missing("there is no X \"x\"".into());
        let later = status(&view(&cluster, &[], gone(), gone()), Timestamp::UNIX_EPOCH);
        assert_eq!(later.initialization, Some(both));
        assert_eq!(says(&later, "InfrastructureReady"), ("False", "DoesNotExist"));
        assert_eq!(says(&later, "ControlPlaneInitialized"), ("True", "Initialized"));
    }

    #[test]
    fn without_an_object_for_it_a_machine_shows_the_control_plane() {
        let cluster = Cluster::new("c", Default::default());
        let mut machine = Machine::new("m", Default::default());
        machine.metadata.labels = Some([(LABEL_CONTROL_PLANE.to_owned(), String::new())].into());
        let of = |machine: &Machine| {
            let machines = [Arc::new(machine.clone())];
            status(&view(&cluster, &machines, there(true, None), SeenObject::Unnamed), Timestamp::UNIX_EPOCH)
        };
        assert_eq!(says(&of(&machine), "ControlPlaneInitialized"), ("False", "NotInitialized"));
        machine.status = Some(MachineStatus { node_ref: Some(NodeReference::default()), ..Default::default() });
        let status = of(&machine);
        assert_eq!(says(&status, "ControlPlaneInitialized"), ("True", "Initialized"));
        assert_eq!(status.control_plane.unwrap().replicas, Some(1));
        assert_eq!(status.workers.unwrap().replicas, Some(0));
    }

    #[test]
    fn a_cluster_is_available_when_all_of_it_is() {
        let cluster = Cluster::new("c", Default::default());
        let mut all = view(&cluster, &[], there(true, None), there(true, Some(ConditionVerdict::yes("Available"))));
        let of = |view: &ClusterStatusInput<'_>| status(view, Timestamp::UNIX_EPOCH);
        assert_eq!(says(&of(&all), "Available"), ("False", "NotAvailable"), "nobody answers");
        all.probe = Some(Ok(()));
        assert_eq!(says(&of(&all), "Available"), ("True", "Available"));
        all.infrastructure = there(true, Some(ConditionVerdict::no("NoDisk", "no disk")));
        let status = of(&all);
        assert_eq!(says(&status, "InfrastructureReady"), ("False", "NoDisk"));
        let available = conditions::find(&status.conditions, "Available").unwrap();
        assert_eq!(available.message, "* InfrastructureReady: no disk");
        let old = &status.deprecated.as_ref().unwrap().v1beta1.as_ref().unwrap().conditions;
        assert_eq!((old[0].type_.as_str(), old[0].status.as_str()), ("Ready", "False"));
    }
}

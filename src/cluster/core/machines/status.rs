//! What the status of a Machine says. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use crate::api::cluster::v1beta2::{Cluster, Machine, MachineStatus, NodeReference};
use crate::api::cluster::{MachineAddress, Polarity};
use crate::cluster::contract::pause;
use crate::cluster::core::seen::{SeenObject, mirrored};
use crate::runtime::conditions::{self, ConditionVerdict, Severity, Truth, whole};

/// What was seen of a machine's node.
pub(super) enum MachineNode {
    /// Nobody looked: why.
    NotYet(String),
    /// The cluster cannot be asked.
    Unreachable(String),
    /// The cluster has none.
    Missing,
    /// It is there.
    There(Box<Node>),
}

/// Everything that the status is made of.
pub(super) struct MachineStatusInput<'a> {
    pub machine: &'a Machine,
    pub cluster: Option<&'a Cluster>,
    pub bootstrap: SeenObject,
    pub infrastructure: SeenObject,
    /// Addresses and place that the infrastructure says.
    pub addresses: Option<Vec<MachineAddress>>,
    pub failure_domain: Option<String>,
    /// When the certificates of its API server end.
    pub expiry: Option<Timestamp>,
    pub node: MachineNode,
    /// What a deletion waits for.
    pub deleting: Option<ConditionVerdict>,
}

/// Where a machine is in its life.
fn phase(machine: &Machine, bootstrapped: bool, provisioned: bool, has_node: bool) -> &'static str {
    if machine.metadata.deletion_timestamp.is_some() {
        return "Deleting";
    }
    match (bootstrapped, provisioned, has_node) {
        (_, true, true) => "Running",
        (_, true, false) if machine.spec.provider_id.is_some() => "Provisioned",
        (true, ..) => "Provisioning",
        _ => "Pending",
    }
}

/// The status that follows from what was seen.
pub(super) fn status(view: &MachineStatusInput<'_>, now: Timestamp) -> MachineStatus {
    let machine = view.machine;
    let mut status = machine.status.clone().unwrap_or_default();
    let mut done = status.initialization.clone().unwrap_or_default();
    if machine.spec.bootstrap.data_secret_name.is_some() {
        done.bootstrap_data_secret_created = Some(true);
    }
    let there = matches!(view.infrastructure, SeenObject::There { done: true, .. });
    if there && machine.spec.provider_id.is_some() {
        done.infrastructure_provisioned = Some(true);
    }
    let bootstrapped = done.bootstrap_data_secret_created == Some(true);
    let provisioned = done.infrastructure_provisioned == Some(true);
    if done != Default::default() {
        status.initialization = Some(done);
    }
    if let Some(addresses) = &view.addresses {
        status.addresses.clone_from(addresses);
    }
    if let Some(domain) = view.failure_domain.as_ref().or(machine.spec.failure_domain.as_ref()) {
        status.failure_domain = Some(domain.clone());
    }
    if let Some(expiry) = view.expiry {
        status.certificates_expiry_date = Some(Time(whole(expiry)));
    }
    if let MachineNode::There(node) = &view.node {
        status.node_ref = Some(NodeReference { name: node.name_any() });
        status.node_info = node.status.as_ref().and_then(|status| status.node_info.clone());
    }
    status.observed_generation = machine.metadata.generation;
    let phase = phase(machine, bootstrapped, provisioned, status.node_ref.is_some());
    if status.phase.as_deref() != Some(phase) {
        status.phase = Some(phase.to_owned());
        status.last_updated = Some(Time(whole(now)));
    }
    set_conditions(&mut status, view, now);
    set_failure(&mut status, view);
    status
}

/// Whether the node of a machine is ready, and whether nothing else is wrong with it.
fn of_node(view: &MachineStatusInput<'_>, known: &MachineStatus) -> (ConditionVerdict, ConditionVerdict) {
    let both = |truth: Truth, reason: &str, message: String| {
        let verdict = ConditionVerdict { truth, reason: reason.to_owned(), message };
        (verdict.clone(), verdict)
    };
    match &view.node {
        MachineNode::NotYet(message) => both(Truth::Unknown, "InspectionFailed", message.clone()),
        MachineNode::Unreachable(message) => both(Truth::Unknown, "ConnectionDown", message.clone()),
        MachineNode::Missing => match &known.node_ref {
            Some(node) => both(Truth::False, "NodeDeleted", format!("the node {:?} is gone", node.name)),
            None => {
                let id = view.machine.spec.provider_id.as_deref().unwrap_or_default();
                both(Truth::Unknown, "NodeDoesNotExist", format!("no node has the provider ID {id} yet"))
            }
        },
        MachineNode::There(node) => (ready(node), healthy(node)),
    }
}

fn ready(node: &Node) -> ConditionVerdict {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let Some(ready) = conditions.into_iter().find(|condition| condition.type_ == "Ready") else {
        return ConditionVerdict::unknown("NodeReadyUnknown", "the node does not say whether it is ready");
    };
    let message = ready.message.clone().unwrap_or_default();
    match Truth::read(&ready.status) {
        Truth::True => ConditionVerdict { message, ..ConditionVerdict::yes("NodeReady") },
        Truth::False => ConditionVerdict::no("NodeNotReady", message),
        Truth::Unknown => ConditionVerdict::unknown("NodeReadyUnknown", message),
    }
}

fn healthy(node: &Node) -> ConditionVerdict {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let (mut parts, mut seen_ready) = (Vec::new(), false);
    for condition in conditions {
        let good = match condition.type_.as_str() {
            "Ready" => true,
            "MemoryPressure" | "DiskPressure" | "PIDPressure" => false,
            _ => continue,
        };
        seen_ready |= good;
        let verdict = ConditionVerdict {
            truth: Truth::read(&condition.status),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        };
        parts.push((condition.type_.as_str(), Some(verdict), good));
    }
    if !seen_ready {
        parts.push(("Ready", None, true));
    }
    conditions::summary(&parts, ["NodeHealthy", "NodeNotHealthy", "NodeHealthyUnknown"])
}

fn set_conditions(status: &mut MachineStatus, view: &MachineStatusInput<'_>, now: Timestamp) {
    let machine = view.machine;
    let bootstrap = match &view.bootstrap {
        SeenObject::Unnamed if machine.spec.bootstrap.data_secret_name.is_some() => {
            ConditionVerdict::yes("DataSecretProvided")
        }
        seen => mirrored(seen, ["Ready", "NotReady", "DoesNotExist"]),
    };
    let infrastructure = mirrored(&view.infrastructure, ["Ready", "NotReady", "DoesNotExist"]);
    let (node_ready, node_healthy) = of_node(view, status);
    let deleting = view.deleting.clone().unwrap_or_else(|| ConditionVerdict::no("NotDeleting", ""));
    // A machine is replaced, and never updated as it stands; others' tools look for it.
    let updating = ConditionVerdict::no("NotUpdating", "");
    let generation = machine.metadata.generation;
    let all = [
        ("BootstrapConfigReady", &bootstrap),
        ("InfrastructureReady", &infrastructure),
        ("NodeReady", &node_ready),
        ("NodeHealthy", &node_healthy),
        ("Deleting", &deleting),
        ("Updating", &updating),
    ];
    for (type_, verdict) in all {
        conditions::set(&mut status.conditions, type_, verdict, generation, now);
    }
    let paused = pause::verdict(view.cluster, machine);
    conditions::set(&mut status.conditions, pause::PAUSED, &paused, generation, now);
    let ready = readiness(machine, &status.conditions);
    conditions::set(&mut status.conditions, "Ready", &ready, generation, now);
    let available = available(machine, &status.conditions, now);
    conditions::set(&mut status.conditions, "Available", &available, generation, now);
    let old_ready = match (bootstrap.is_true(), infrastructure.is_true()) {
        (true, true) => node_healthy.clone(),
        (true, false) => infrastructure.clone(),
        (false, _) => bootstrap.clone(),
    };
    let old = conditions::older(&mut status.deprecated);
    for (type_, verdict) in [
        ("Ready", old_ready),
        ("BootstrapReady", bootstrap),
        ("InfrastructureReady", infrastructure),
        ("NodeHealthy", node_healthy),
    ] {
        conditions::set_old(old, type_, &verdict, Severity::Info, now);
    }
}

/// Whether a machine is ready: what counts, and what the machine adds to it.
fn readiness(machine: &Machine, all: &[Condition]) -> ConditionVerdict {
    let find = |type_: &str| conditions::find(all, type_).map(ConditionVerdict::of);
    let always = ["InfrastructureReady", "BootstrapConfigReady", "NodeHealthy"];
    let mut parts: Vec<(&str, Option<ConditionVerdict>, bool)> =
        always.iter().map(|type_| (*type_, find(type_), true)).collect();
    // These count only where somebody sets them.
    for type_ in ["HealthCheckSucceeded", "OwnerRemediated", "ExternallyRemediated"] {
        parts.extend(find(type_).map(|verdict| (type_, Some(verdict), true)));
    }
    parts.extend(["Deleting", "Updating"].map(|type_| (type_, find(type_), false)));
    for gate in machine.spec.readiness_gates.iter().take(32) {
        let good = gate.polarity.unwrap_or_default() == Polarity::Positive;
        parts.push((&gate.condition_type, find(&gate.condition_type), good));
    }
    conditions::summary(&parts, ["Ready", "NotReady", "ReadyUnknown"])
}

/// Seconds until a machine that is ready has been so for long enough.
pub(super) fn until_available(machine: &Machine, all: &[Condition], now: Timestamp) -> Option<i64> {
    let ready = conditions::find(all, "Ready").filter(|ready| ready.status == "True")?;
    let wanted = i64::from(machine.spec.min_ready_seconds.unwrap_or(0));
    Some((wanted - now.duration_since(ready.last_transition_time.0).as_secs()).max(0))
}

fn available(machine: &Machine, all: &[Condition], now: Timestamp) -> ConditionVerdict {
    match until_available(machine, all, now) {
        None => ConditionVerdict::no("NotReady", ""),
        Some(0) => ConditionVerdict::yes("Available"),
        Some(_) => ConditionVerdict::no("WaitingForMinReadySeconds", ""),
    }
}

/// A fault that the infrastructure or the bootstrap tells of, where clients of the older version see it.
fn set_failure(status: &mut MachineStatus, view: &MachineStatusInput<'_>) {
    let of = |seen: &SeenObject| match seen {
        SeenObject::There { failure, .. } => failure.clone(),
        _ => None,
    };
    let Some((reason, message)) = of(&view.infrastructure).or_else(|| of(&view.bootstrap)) else { return };
    let old = status.deprecated.get_or_insert_default().v1beta1.get_or_insert_default();
    old.failure_reason = Some(reason).filter(|reason| !reason.is_empty());
    old.failure_message = Some(message).filter(|message| !message.is_empty());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::cluster::v1beta2::MachineInitialization;

    fn there(done: bool) -> SeenObject {
        SeenObject::There { what: "X \"x\"".into(), done, condition: None, deleted: false, failure: None }
    }

    fn node(ready: &str) -> MachineNode {
        let node = json!({"metadata": {"name": "web-1"}, "status": {"conditions": [
            {"type": "Ready", "status": ready, "reason": "KubeletReady"},
            {"type": "DiskPressure", "status": "False"},
        ]}});
        MachineNode::There(Box::new(serde_json::from_value(node).unwrap()))
    }

    fn view(machine: &Machine, infrastructure: SeenObject, node: MachineNode) -> MachineStatusInput<'_> {
        MachineStatusInput {
            machine,
            cluster: None,
            bootstrap: there(true),
            infrastructure,
            addresses: None,
            failure_domain: None,
            expiry: None,
            node,
            deleting: None,
        }
    }

    fn early() -> MachineNode {
        MachineNode::NotYet("the control plane is not there yet".into())
    }

    fn says<'s>(status: &'s MachineStatus, type_: &str) -> (&'s str, &'s str) {
        let condition = conditions::find(&status.conditions, type_).unwrap();
        (&condition.status, &condition.reason)
    }

    #[test]
    fn phases_are_as_published() {
        let mut machine = Machine::new("m", Default::default());
        let of = |machine: &Machine, done, node| {
            status(&view(machine, there(done), node), Timestamp::UNIX_EPOCH).phase.unwrap()
        };
        assert_eq!(of(&machine, false, early()), "Pending");
        machine.spec.bootstrap.data_secret_name = Some("s".into());
        assert_eq!(of(&machine, false, early()), "Provisioning");
        assert_eq!(of(&machine, true, early()), "Provisioning", "its identity is not known");
        machine.spec.provider_id = Some("metal3://1".into());
        assert_eq!(of(&machine, true, early()), "Provisioned");
        assert_eq!(of(&machine, true, MachineNode::Missing), "Provisioned");
        assert_eq!(of(&machine, true, node("False")), "Running");
        machine.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(of(&machine, true, node("True")), "Deleting");
    }

    #[test]
    fn a_machine_is_available_when_it_has_been_ready_for_long_enough() {
        let mut machine = Machine::new("m", Default::default());
        machine.spec.provider_id = Some("metal3://1".into());
        machine.spec.min_ready_seconds = Some(30);
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = status(&view(&machine, there(true), node("True")), at(100));
        assert_eq!(says(&first, "Ready"), ("True", "Ready"));
        assert_eq!(says(&first, "Updating"), ("False", "NotUpdating"));
        assert_eq!(says(&first, "Available"), ("False", "WaitingForMinReadySeconds"));
        assert_eq!(first.node_ref, Some(NodeReference { name: "web-1".into() }));
        machine.status = Some(first);
        let later = status(&view(&machine, there(true), node("True")), at(129));
        assert_eq!(until_available(&machine, &later.conditions, at(129)), Some(1));
        assert_eq!(later, machine.status.clone().unwrap(), "nothing to write");
        let later = status(&view(&machine, there(true), node("True")), at(130));
        assert_eq!(says(&later, "Available"), ("True", "Available"));
        machine.status = Some(later);
        let lost = status(&view(&machine, there(true), MachineNode::Unreachable("silence".into())), at(140));
        assert_eq!((says(&lost, "NodeReady"), says(&lost, "Ready").0), (("Unknown", "ConnectionDown"), "Unknown"));
        assert_eq!(says(&lost, "Available"), ("False", "NotReady"));
        let gone = status(&view(&machine, there(true), MachineNode::Missing), at(140));
        assert_eq!(says(&gone, "NodeHealthy"), ("False", "NodeDeleted"));
    }

    #[test]
    fn what_was_done_once_stays_done_and_failures_are_told() {
        let mut machine = Machine::new("m", Default::default());
        machine.spec.bootstrap.data_secret_name = Some("s".into());
        machine.spec.provider_id = Some("metal3://1".into());
        let first = status(&view(&machine, there(true), early()), Timestamp::UNIX_EPOCH);
        let both =
            MachineInitialization { infrastructure_provisioned: Some(true), bootstrap_data_secret_created: Some(true) };
        assert_eq!(first.initialization, Some(both.clone()));
        machine.status = Some(first);
        let broken = SeenObject::There {
            what: "X \"x\"".into(),
            done: false,
            condition: Some(ConditionVerdict::no("", "no disk")),
            deleted: false,
            failure: Some(("Broken".into(), String::new())),
        };
        let later = status(&view(&machine, broken, early()), Timestamp::UNIX_EPOCH);
        assert_eq!(later.initialization, Some(both));
        assert_eq!(says(&later, "InfrastructureReady"), ("False", "NotReady"));
        let old = later.deprecated.unwrap().v1beta1.unwrap();
        assert_eq!((old.failure_reason.as_deref(), old.failure_message), (Some("Broken"), None));
    }
}

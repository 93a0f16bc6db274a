//! What a control plane shows of itself. Pure.

mod available;
mod old;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::health::{self, ETCD_MEMBER, Verdicts};
use super::plan::{ControlPlaneAction, ControlPlaneDecision, EtcdStatus, RECOVERY, Remediation};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::LABEL_CONTROL_PLANE;
use crate::api::control_plane::v1beta2::{ControlPlaneInitialization, KubeadmControlPlaneStatus, LastRemediation};
use crate::cluster::contract::count_versions;
use crate::runtime::conditions::{self, ConditionVerdict, Truth};

/// A machine that takes longer to go is named.
const SLOW_DELETION: SignedDuration = SignedDuration::from_mins(15);
/// Machines that a message names.
const NAMED: usize = 3;

/// A machine, as far as the status goes.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownMachine {
    pub(super) name: String,
    pub(super) version: Option<String>,
    pub(super) node: Option<String>,
    pub(super) deleted: Option<Timestamp>,
    pub(super) has_provider_id: bool,
    /// A health check failed.
    pub(super) unhealthy: bool,
    /// What its conditions say: Ready, Available, UpToDate, OwnerRemediated.
    pub(super) said: BTreeMap<&'static str, ConditionVerdict>,
    /// How its parts are.
    pub(super) parts: Verdicts,
    /// What it replaces.
    pub(super) replaces: Option<Remediation>,
}

impl ShownMachine {
    fn holds(&self, type_: &str) -> bool {
        self.said.get(type_).is_some_and(ConditionVerdict::is_true)
    }

    /// Whether it is to be replaced by the control plane.
    fn to_remediate(&self) -> bool {
        self.unhealthy && self.said.get(OWNER_REMEDIATED).is_some_and(|verdict| verdict.truth == Truth::False)
    }
}

/// Condition by which a health check asks the owner of a machine to replace it.
pub(super) const OWNER_REMEDIATED: &str = "OwnerRemediated";

/// How the deletion of a control plane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deleting {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What there is to show.
pub(super) struct ControlPlaneStatusInput<'a> {
    pub(super) cluster: &'a str,
    pub(super) generation: Option<i64>,
    pub(super) desired: usize,
    pub(super) etcd_managed: bool,
    pub(super) initialized: bool,
    pub(super) paused: ConditionVerdict,
    /// `None` as long as nobody looked.
    pub(super) certificates: Option<ConditionVerdict>,
    pub(super) machines: &'a [ShownMachine],
    /// Nodes that are ready, where that is known.
    pub(super) ready_nodes: Option<usize>,
    pub(super) etcd: Option<&'a EtcdStatus>,
    /// What is wrong with the parts, beside what machines say.
    pub(super) contact: &'a health::Contact,
    pub(super) decision: Option<&'a ControlPlaneDecision>,
    /// Why nothing can be made.
    pub(super) blocked: Option<String>,
    pub(super) deleting: Option<Deleting>,
    pub(super) remediation: Option<Remediation>,
    pub(super) now: Timestamp,
}

/// The status, as it was and with what is known now.
pub(super) fn status(
    mut status: KubeadmControlPlaneStatus,
    report: &ControlPlaneStatusInput<'_>,
) -> KubeadmControlPlaneStatus {
    let count =
        |of: &dyn Fn(&ShownMachine) -> bool| number(report.machines.iter().filter(|machine| of(machine)).count());
    status.selector = Some(format!("{LABEL_CLUSTER}={},{LABEL_CONTROL_PLANE}", report.cluster));
    status.replicas = Some(number(report.machines.len()));
    status.ready_replicas = Some(count(&|machine| machine.holds("Ready")));
    status.available_replicas = Some(count(&|machine| machine.holds("Available")));
    status.up_to_date_replicas = Some(count(&|machine| machine.holds("UpToDate")));
    status.versions = count_versions(report.machines.iter().filter_map(|machine| machine.version.as_deref()));
    if let Some(oldest) = status.versions.first() {
        status.version = Some(oldest.version.clone());
    }
    if report.initialized {
        status.initialization = Some(ControlPlaneInitialization { control_plane_initialized: Some(true) });
    }
    status.observed_generation = report.generation.filter(|generation| *generation > 0);
    status.last_remediation = last_remediation(report).or(status.last_remediation);
    let mut set = |type_: &str, verdict: &ConditionVerdict| {
        conditions::set(&mut status.conditions, type_, verdict, report.generation, report.now);
    };
    if let Some(certificates) = &report.certificates {
        set("CertificatesAvailable", certificates);
    }
    set("Paused", &report.paused);
    let parts = whole(report);
    for (type_, verdict) in &parts {
        set(type_, verdict);
    }
    let certificates = conditions::is_true(&status.conditions, "CertificatesAvailable");
    let mut verdicts = vec![("Available", available::verdict(report, certificates))];
    verdicts.extend(progress(report));
    for (type_, verdict) in &verdicts {
        conditions::set(&mut status.conditions, type_, verdict, report.generation, report.now);
    }
    old::show(&mut status, report, &parts);
    status
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// What is being replaced, or was last.
fn last_remediation(report: &ControlPlaneStatusInput<'_>) -> Option<LastRemediation> {
    let of_machines = report.machines.iter().filter_map(|machine| machine.replaces.clone());
    let last = report.remediation.clone().or_else(|| of_machines.max_by_key(|remediation| remediation.timestamp))?;
    Some(LastRemediation {
        machine: last.machine,
        time: Time(conditions::whole(last.timestamp)),
        retry_count: last.retry_count.max(0),
    })
}

/// How etcd and the parts of the control plane are as a whole.
fn whole(report: &ControlPlaneStatusInput<'_>) -> Vec<(&'static str, ConditionVerdict)> {
    const REASONS: [&str; 3] = ["Healthy", "NotHealthy", "HealthUnknown"];
    let unknown = match report.contact {
        health::Contact::Early => Some(ConditionVerdict::unknown("InspectionFailed", waiting(report))),
        health::Contact::Down(reason) => Some(ConditionVerdict::unknown("ConnectionDown", reason.clone())),
        health::Contact::Seen(_) => None,
    };
    let of_parts = |wanted: &dyn Fn(&str) -> bool| {
        let parts = report.machines.iter().flat_map(|machine| {
            let parts = machine.parts.iter().filter(|(type_, _)| wanted(type_));
            parts.map(|(_, verdict)| (machine.name.as_str(), Some(verdict.clone())))
        });
        conditions::all(parts, REASONS)
    };
    let is_member = |type_: &str| type_ == ETCD_MEMBER;
    let mut verdicts = Vec::new();
    if report.etcd_managed {
        let mut verdict = unknown.clone().unwrap_or_else(|| of_parts(&is_member));
        if report.contact.is_down() && !report.machines.is_empty() {
            verdict.message = format!("{}\n{}", verdict.message, if_lost(report.machines.len()));
        }
        let hosts: Vec<health::MachineHealth> = report.machines.iter().map(host).collect();
        let strays = health::strays(&hosts, report.etcd);
        if !strays.is_empty() {
            let mut lines: Vec<String> = strays.iter().map(|stray| format!("* {stray}")).collect();
            lines.extend((!verdict.message.is_empty()).then(|| verdict.message.clone()));
            verdict = ConditionVerdict::no("NotHealthy", lines.join("\n"));
        }
        verdicts.push(("EtcdClusterHealthy", verdict));
    }
    let parts = unknown.unwrap_or_else(|| of_parts(&|type_| !is_member(type_)));
    verdicts.push(("ControlPlaneComponentsHealthy", parts));
    verdicts
}

/// What there is to do about a cluster that is silent because most of its machines are lost: nothing is replaced in it.
fn if_lost(machines: usize) -> String {
    let losses = machines - machines / 2;
    format!("Where {losses} or more of the {machines} Machines are lost, etcd has no quorum. {RECOVERY}")
}

fn host(machine: &ShownMachine) -> health::MachineHealth {
    health::MachineHealth { node: machine.node.clone(), ..health::MachineHealth::default() }
}

fn waiting(report: &ControlPlaneStatusInput<'_>) -> String {
    report.blocked.clone().unwrap_or_else(|| "Waiting for the control plane to be initialized".into())
}

/// What is under way.
fn progress(report: &ControlPlaneStatusInput<'_>) -> Vec<(&'static str, ConditionVerdict)> {
    let machines = report.machines;
    let initialized = if report.initialized {
        ConditionVerdict::yes("Initialized")
    } else {
        ConditionVerdict::no("NotInitialized", "")
    };
    let said = |type_: &'static str, reasons| {
        if machines.is_empty() {
            return ConditionVerdict::yes("NoReplicas");
        }
        conditions::all(
            machines.iter().map(|machine| (machine.name.as_str(), machine.said.get(type_).cloned())),
            reasons,
        )
    };
    let deleting = match &report.deleting {
        None => ConditionVerdict::no("NotDeleting", ""),
        Some(Deleting { reason, message }) => {
            ConditionVerdict { message: message.clone(), ..ConditionVerdict::yes(reason) }
        }
    };
    vec![
        ("Initialized", initialized),
        ("MachinesReady", said("Ready", ["Ready", "NotReady", "ReadyUnknown"])),
        ("MachinesUpToDate", said("UpToDate", ["UpToDate", "NotUpToDate", "UpToDateUnknown"])),
        ("RollingOut", rolling_out(machines)),
        ("ScalingUp", scaling_up(report)),
        ("ScalingDown", scaling_down(report)),
        ("Remediating", remediating(machines)),
        ("Deleting", deleting),
    ]
}

fn yes(reason: &str, message: String) -> ConditionVerdict {
    ConditionVerdict { message, ..ConditionVerdict::yes(reason) }
}

fn rolling_out(machines: &[ShownMachine]) -> ConditionVerdict {
    let outdated: Vec<&ConditionVerdict> = machines
        .iter()
        .filter_map(|machine| machine.said.get("UpToDate"))
        .filter(|verdict| verdict.truth == Truth::False)
        .collect();
    if outdated.is_empty() {
        return ConditionVerdict::no("NotRollingOut", "");
    }
    let mut reasons: Vec<&str> = outdated.iter().flat_map(|verdict| verdict.message.lines()).collect();
    // What changed of the version comes first.
    reasons.sort_by_key(|reason| (!reason.starts_with("* Version"), *reason));
    reasons.dedup();
    let lines = [format!("Rolling out {} not up-to-date replicas", outdated.len())];
    let lines = lines.into_iter().chain(reasons.into_iter().map(str::to_owned));
    yes("RollingOut", lines.collect::<Vec<_>>().join("\n"))
}

/// Why machines are neither made nor deleted.
fn hindrances(report: &ControlPlaneStatusInput<'_>) -> Vec<String> {
    let preflight = report.decision.map(|decision| &decision.preflight);
    let mut lines: Vec<String> =
        preflight.map(|preflight| preflight.messages().into_iter().map(str::to_owned).collect()).unwrap_or_default();
    // What exactly is waited for.
    if let Some(ControlPlaneDecision { action: ControlPlaneAction::Wait(reason), preflight, .. }) = report.decision
        && !reason.is_empty()
        && preflight.faults.is_empty()
        && !preflight.messages().iter().any(|line| line.trim_start_matches("* ") == reason)
    {
        lines.push(format!("* {reason}"));
    }
    lines.extend(
        preflight.into_iter().flat_map(|preflight| &preflight.faults).take(NAMED).map(|fault| format!("* {fault}")),
    );
    lines.extend(report.blocked.iter().map(|reason| format!("* {reason}")));
    lines
}

fn sentence(begin: String, because: &[String]) -> String {
    if because.is_empty() { begin } else { format!("{begin} is blocked because:\n{}", because.join("\n")) }
}

fn wanted(report: &ControlPlaneStatusInput<'_>) -> usize {
    if report.deleting.is_some() { 0 } else { report.desired }
}

fn scaling_up(report: &ControlPlaneStatusInput<'_>) -> ConditionVerdict {
    let (current, desired) = (report.machines.len(), wanted(report));
    if current >= desired {
        let message = report.blocked.as_ref().map(|reason| format!("Scaling up would be blocked because {reason}"));
        return ConditionVerdict::no("NotScalingUp", message.unwrap_or_default());
    }
    let begin = format!("Scaling up from {current} to {desired} replicas");
    yes("ScalingUp", sentence(begin, &hindrances(report)))
}

fn scaling_down(report: &ControlPlaneStatusInput<'_>) -> ConditionVerdict {
    let (current, desired) = (report.machines.len(), wanted(report));
    if current <= desired {
        return ConditionVerdict::no("NotScalingDown", "");
    }
    let mut because = hindrances(report);
    because.extend(slow(report.machines, report.now).map(|slow| format!("* {slow}")));
    yes("ScalingDown", sentence(format!("Scaling down from {current} to {desired} replicas"), &because))
}

fn remediating(machines: &[ShownMachine]) -> ConditionVerdict {
    let to_remediate: Vec<&ShownMachine> = machines.iter().filter(|machine| machine.to_remediate()).collect();
    if to_remediate.is_empty() {
        let ill: Vec<&str> =
            machines.iter().filter(|machine| machine.unhealthy).map(|machine| machine.name.as_str()).collect();
        let message =
            if ill.is_empty() { String::new() } else { format!("{} not healthy, not to be remediated", few(&ill)) };
        return ConditionVerdict::no("NotRemediating", message);
    }
    let said = to_remediate.iter().map(|machine| (machine.name.as_str(), machine.said.get(OWNER_REMEDIATED).cloned()));
    yes("Remediating", conditions::all(said, ["", "", ""]).message)
}

/// Machines that take long to go.
pub(super) fn slow(machines: &[ShownMachine], now: Timestamp) -> Option<String> {
    let since =
        |machine: &ShownMachine| machine.deleted.is_some_and(|deleted| now.duration_since(deleted) > SLOW_DELETION);
    let slow: Vec<&str> =
        machines.iter().filter(|machine| since(machine)).map(|machine| machine.name.as_str()).collect();
    (!slow.is_empty()).then(|| format!("{} being deleted for more than 15 min", few(&slow)))
}

/// Some names of machines with their verb.
fn few(names: &[&str]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match (names.len(), more) {
        (1, _) => format!("Machine {named} is"),
        (_, 0) => format!("Machines {named} are"),
        _ => format!("Machines {named} and {more} more are"),
    }
}

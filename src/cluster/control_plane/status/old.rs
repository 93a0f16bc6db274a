//! The same for clients of v1beta1.

use super::{ControlPlaneStatusInput, number};
use crate::api::control_plane::v1beta2::{ControlPlaneDeprecatedStatus, KubeadmControlPlaneStatus};
use crate::cluster::control_plane::plan::ControlPlaneAction;
use crate::runtime::conditions::{self, ConditionVerdict, Severity, Truth, find_old, set_old, summary_old};

/// Conditions that `Ready` sums up.
const PARTS: [&str; 6] =
    ["MachinesCreated", "MachinesSpecUpToDate", "Resized", "MachinesReady", "Available", "CertificatesAvailable"];

/// Puts in what v1beta1 shows.
pub(super) fn show(
    status: &mut KubeadmControlPlaneStatus,
    report: &ControlPlaneStatusInput<'_>,
    parts: &[(&'static str, ConditionVerdict)],
) {
    let replicas = report.machines.len();
    let old: &mut ControlPlaneDeprecatedStatus =
        status.deprecated.get_or_insert_default().v1beta1.get_or_insert_default();
    old.updated_replicas = status.up_to_date_replicas.unwrap_or_default();
    let ready = report.ready_nodes.unwrap_or_default().min(replicas);
    old.ready_replicas = number(ready);
    old.unavailable_replicas = number(replicas - ready);
    let mut set = |type_: &str, verdict: &ConditionVerdict, severity| {
        set_old(&mut old.conditions, type_, verdict, severity, report.now);
    };
    match &report.certificates {
        Some(verdict) if verdict.truth == Truth::True => set("CertificatesAvailable", verdict, Severity::Info),
        Some(verdict) => {
            let verdict = ConditionVerdict::no("CertificatesGenerationFailed", verdict.message.clone());
            set("CertificatesAvailable", &verdict, Severity::Warning);
        }
        None => {}
    }
    if report.initialized {
        set("Available", &ConditionVerdict::yes("Available"), Severity::Info);
    } else if replicas > 0 || report.decision.is_some() {
        set("Available", &ConditionVerdict::no("WaitingForKubeadmInit", ""), Severity::Info);
    }
    set("Resized", &resized(report), Severity::Warning);
    let creating = report.decision.map(|decision| &decision.action);
    match &report.blocked {
        Some(message) => set(
            "MachinesCreated",
            &ConditionVerdict::no("InfrastructureTemplateCloningFailed", message.clone()),
            Severity::Error,
        ),
        None if matches!(
            creating,
            Some(ControlPlaneAction::Initialize { .. } | ControlPlaneAction::Join { .. }) | None
        ) && replicas == 0 => {}
        None => set("MachinesCreated", &ConditionVerdict::yes("MachinesCreated"), Severity::Info),
    }
    let outdated = replicas.saturating_sub(usize::try_from(old.updated_replicas).unwrap_or_default());
    if report.decision.is_some_and(|decision| decision.rolling_out) {
        let message =
            format!("Rolling {outdated} replicas with outdated spec ({} replicas up to date)", old.updated_replicas);
        let verdict = ConditionVerdict::no("RollingUpdateInProgress", message);
        set_old(&mut old.conditions, "MachinesSpecUpToDate", &verdict, Severity::Warning, report.now);
    } else if find_old(&old.conditions, "MachinesSpecUpToDate").is_some() {
        let verdict = ConditionVerdict::yes("MachinesSpecUpToDate");
        set_old(&mut old.conditions, "MachinesSpecUpToDate", &verdict, Severity::Info, report.now);
    }
    if replicas > 0 {
        let said = report.machines.iter().map(|machine| (machine.name.as_str(), machine.said.get("Ready").cloned()));
        let ready = conditions::all(said, ["Ready", "MachinesNotReady", "MachinesNotReady"]);
        let ready = if ready.is_true() { ready } else { ConditionVerdict { truth: Truth::False, ..ready } };
        set_old(&mut old.conditions, "MachinesReady", &ready, Severity::Warning, report.now);
    }
    for (type_, verdict) in parts {
        let of = |end: &str| format!("{}{end}", type_.trim_end_matches("Healthy"));
        let verdict = match verdict.truth {
            Truth::True => verdict.clone(),
            Truth::False => ConditionVerdict { reason: of("Unhealthy"), ..verdict.clone() },
            Truth::Unknown => ConditionVerdict { reason: of("Unknown"), ..verdict.clone() },
        };
        set_old(&mut old.conditions, type_, &verdict, Severity::Error, report.now);
    }
    let (ready, severity) = summary_old(&old.conditions, &PARTS);
    set_old(&mut old.conditions, "Ready", &ready, severity, report.now);
}

fn resized(report: &ControlPlaneStatusInput<'_>) -> ConditionVerdict {
    let (current, desired) = (report.machines.len(), report.desired);
    if report.deleting.is_some() {
        return ConditionVerdict::no(
            "Deleting",
            report.deleting.as_ref().map(|deleting| deleting.message.clone()).unwrap_or_default(),
        );
    }
    let change = |way: &str| format!("Scaling {way} control plane to {desired} replicas (actual {current})");
    match current.cmp(&desired) {
        std::cmp::Ordering::Less => ConditionVerdict::no("ScalingUp", change("up")),
        std::cmp::Ordering::Greater => ConditionVerdict::no("ScalingDown", change("down")),
        std::cmp::Ordering::Equal => ConditionVerdict::yes("Resized"),
    }
}

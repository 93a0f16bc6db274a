//! Unhealthy machines: which is replaced, and when that is not done.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{ControlPlaneAction, Plane, PlannedMachine, WellState, deletion, quorum};
use crate::runtime::conditions::whole;

/// How often an unhealthy machine is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    /// Replacements that may fail in turn; without end when nothing is said.
    pub most: Option<i32>,
    /// Seconds between two of them.
    pub period: Option<i32>,
    /// A machine that was well for so many seconds has a trouble of its own.
    pub healthy_period: Option<i32>,
}

/// Without a word of the user's, an hour.
const HEALTHY_PERIOD: i32 = 3600;

/// A replacement, as it is noted at the control plane and at the machine that comes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// The machine that was replaced.
    pub machine: String,
    /// When.
    pub timestamp: Timestamp,
    /// Which try this is.
    pub retry_count: i32,
}

impl Remediation {
    /// As it stands in an annotation. Nothing when somebody wrote something else there: tries are counted anew then.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// For an annotation.
    pub fn written(&self) -> String {
        serde_json::json!({
            "machine": self.machine, "timestamp": whole(self.timestamp), "retryCount": self.retry_count,
        })
        .to_string()
    }
}

/// Why an unhealthy machine is not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemediationRefusal {
    /// Its name.
    pub machine: String,
    /// `CannotBeRemediated` or `RemediationDeferred`.
    pub reason: &'static str,
    /// Why.
    pub message: String,
}

/// What is done about unhealthy machines.
pub(super) enum RemediationStep {
    Nothing,
    Replace(ControlPlaneAction),
    Refuse(RemediationRefusal),
}

/// Whether what is noted at the control plane has been done: a machine came that bears the note, or none is lacking any more.
pub fn remediated(plane: &Plane) -> bool {
    let Some(noted) = &plane.remediation else { return false };
    let came = |machine: &PlannedMachine| machine.replaces.as_ref() == Some(noted) || machine.created > noted.timestamp;
    let needless = plane.machine(&noted.machine).is_none() && plane.machines.len() >= plane.replicas;
    // It is well again before it was replaced.
    let is_dropped = plane.machine(&noted.machine).is_some_and(|machine| {
        let is_ill = machine.unhealthy && machine.to_remediate;
        !machine.is_deleting() && !is_ill
    });
    needless || is_dropped || plane.machines.iter().any(came)
}

pub(super) fn next(plane: &Plane) -> RemediationStep {
    let ill = plane.machines.iter().filter(|machine| machine.unhealthy && machine.to_remediate);
    let Some(machine) = ill.min_by_key(|machine| urgency(machine, plane.etcd_managed)) else {
        return RemediationStep::Nothing;
    };
    if machine.is_deleting() {
        return RemediationStep::Nothing;
    }
    let refuse = |reason, message: String| {
        RemediationStep::Refuse(RemediationRefusal { machine: machine.name.clone(), reason, message })
    };
    let remediation = match &plane.remediation {
        // It was noted, and not yet deleted.
        Some(noted) if noted.machine == machine.name => noted.clone(),
        Some(_) => return RemediationStep::Nothing,
        None => match retry(plane, machine) {
            Ok(remediation) => remediation,
            Err((reason, message)) => return refuse(reason, message),
        },
    };
    if !plane.initialized {
        return RemediationStep::Replace(ControlPlaneAction::Replace { remediation, handover: None });
    }
    if plane.machines.len() <= 1 {
        return refuse(CANNOT, "It is the only Machine of the control plane".into());
    }
    if plane.machines.iter().any(|other| !other.unhealthy && other.node.is_none()) {
        return refuse(DEFERRED, "Another Machine of the control plane is still being provisioned".into());
    }
    if plane.is_deleting() {
        return refuse(DEFERRED, "Another Machine of the control plane is still being deleted".into());
    }
    if plane.etcd_managed && plane.members().is_empty() {
        if quorum::is_lost(plane) {
            let ill = plane.machines.iter().filter(|machine| machine.unhealthy).count();
            let all = plane.machines.len();
            let message = format!(
                "etcd does not answer, and {ill} of {all} Machines are unhealthy: it has no quorum, and no other Machine could \
                 join. {RECOVERY}"
            );
            return refuse(CANNOT, message);
        }
        return refuse(DEFERRED, "The members of etcd are not known".into());
    }
    if !quorum::components_stand(plane, Some(&machine.name)) {
        let message = "Without it no Machine would be left whose control plane components are all healthy; mend one of the others \
                       first";
        return refuse(CANNOT, message.into());
    }
    if let Some(message) = quorum_lost_without(plane, machine) {
        return refuse(CANNOT, message);
    }
    match deletion::handover(plane, machine) {
        Ok(handover) => RemediationStep::Replace(ControlPlaneAction::Replace { remediation, handover }),
        Err(message) => refuse(CANNOT, message),
    }
}

/// Members that a message names.
const NAMED: usize = 5;

const CANNOT: &str = "CannotBeRemediated";
const DEFERRED: &str = "RemediationDeferred";

/// What users do when etcd has lost its quorum.
pub(in crate::cluster::control_plane) const RECOVERY: &str = "Bring one of them back (power, network, kubelet), or recover etcd by hand: \
     docs/cluster.md, \"When etcd has lost its quorum\"";

/// Why etcd does not stand without a machine; nothing when it does.
fn quorum_lost_without(plane: &Plane, machine: &PlannedMachine) -> Option<String> {
    // Its member has no name that could be known, or is not ours.
    let node = machine.node.as_deref().filter(|_| plane.etcd_managed)?;
    if quorum::etcd_stands(plane, false, Some(node)) {
        return None;
    }
    let ill = quorum::ill_members(plane, Some(node));
    let named = ill.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    Some(format!("Without it etcd could lose its quorum: of its other members these are not well: {named}. {RECOVERY}"))
}

/// The most broken one comes first: the others have a better chance once it is replaced.
fn urgency(machine: &PlannedMachine, etcd_managed: bool) -> impl Ord + use<> {
    let PlannedMachine { health, .. } = machine;
    let well = |state: WellState| state == WellState::True;
    let etcd = if etcd_managed { (well(health.etcd_member), well(health.etcd_pod)) } else { (true, true) };
    let parts = [health.api_server, health.controller_manager, health.scheduler, health.node].map(well);
    (!machine.remediate_first, machine.node.is_some(), etcd, parts, machine.created, machine.name.clone())
}

/// The note for a replacement, or why it is too early or too late for one.
fn retry(plane: &Plane, machine: &PlannedMachine) -> Result<Remediation, (&'static str, String)> {
    let first = Remediation { machine: machine.name.clone(), timestamp: whole(plane.now), retry_count: 0 };
    let Some(last) = &machine.replaces else { return Ok(first) };
    let since = |seconds: i32| SignedDuration::from_secs(i64::from(seconds.max(0)));
    let passed = plane.now.duration_since(last.timestamp);
    if passed >= since(plane.retries.healthy_period.unwrap_or(HEALTHY_PERIOD)) {
        return Ok(first);
    }
    let period = plane.retries.period.unwrap_or_default();
    if passed < since(period) {
        return Err((DEFERRED, format!("The last try was less than {period} s ago (retryPeriodSeconds)")));
    }
    if let Some(most) = plane.retries.most.filter(|most| last.retry_count >= *most) {
        return Err((CANNOT, format!("{most} replacements failed already (maxRetry)")));
    }
    Ok(Remediation { retry_count: last.retry_count.saturating_add(1), ..first })
}

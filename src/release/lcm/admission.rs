//! Who may change what of an LCMMachine's status. Pure.
//!
//! Roles say who may write the objects: Slipway itself and administrators, and of the status of its own machine the agent, as the
//! ServiceAccount `lcm-NAME`. These rules say which fields the agent may write: what it alone can know.

use serde_json::{Map, Value};

use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};

/// What the name of an agent's account begins with.
pub(super) const ACCOUNT: &str = "lcm-";
/// What an agent writes of the status.
const OF_AGENT: [&str; 7] = [
    "addresses",
    "agentVersion",
    "hostInfo",
    "lastHeard",
    "lcmAgentUpgradeStatus",
    "observedGeneration",
    "stateItemStatuses",
];
/// What an agent writes of `status.reboot`.
const OF_AGENTS_REBOOT: [&str; 2] = ["completed", "errorMessage"];
/// Bytes of a status that an agent writes.
const STATUS_MAX: usize = 768 << 10;
/// What the user name of a ServiceAccount begins with.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Rules for a change of an LCMMachine.
///
/// # Errors
///
/// Every rule that it breaks.
pub(super) fn machine(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let identity = request.identity;
    if identity.is_in_process() {
        return Ok(());
    }
    let errors = judge(&identity.user, request.operation, request.status, request.object, request.old);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn judge(user: &str, operation: AdmissionOperation, status: bool, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let Some((namespace, account)) = user.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':')) else {
        return Vec::new();
    };
    let Some(name) = account.strip_prefix(ACCOUNT) else { return Vec::new() };
    let meta = &new["metadata"];
    if meta["namespace"] != namespace || meta["name"] != name {
        let reason = format!("{account} is the account of the agent of {namespace}/{name}, and of no other machine");
        return vec![FieldError::forbidden("metadata.name", reason)];
    }
    if operation != AdmissionOperation::Update || !status {
        return vec![FieldError::forbidden("spec", "an agent writes the status of its machine, and nothing else")];
    }
    let none = Value::Null;
    let (new, old) = (&new["status"], old.map_or(&none, |old| &old["status"]));
    let mut errors = Vec::new();
    let empty = Map::new();
    let (now, before) = (new.as_object().unwrap_or(&empty), old.as_object().unwrap_or(&empty));
    for key in now.keys().chain(before.keys().filter(|key| !now.contains_key(*key))) {
        if OF_AGENT.contains(&key.as_str()) || now.get(key) == before.get(key) {
            continue;
        }
        if key == "reboot" && rest(&new["reboot"]) == rest(&old["reboot"]) {
            continue;
        }
        errors.push(FieldError::forbidden(format!("status.{key}"), "the appliance writes it, and no agent does"));
    }
    if new.to_string().len() > STATUS_MAX {
        let reason = format!("an agent's status has {} KiB at most", STATUS_MAX >> 10);
        errors.push(FieldError::forbidden("status", reason));
    }
    errors
}

/// A reboot without what the agent writes of it.
fn rest(reboot: &Value) -> Map<String, Value> {
    let mut map = reboot.as_object().cloned().unwrap_or_default();
    OF_AGENTS_REBOOT.iter().for_each(|key| drop(map.remove(*key)));
    map
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(name: &str, status: Value) -> Value {
        json!({"metadata": {"namespace": "rack", "name": name}, "status": status})
    }

    #[test]
    fn an_agent_writes_what_it_alone_can_know_of_its_own_machine() {
        let own = "system:serviceaccount:rack:lcm-a";
        let before = json!({"state": "Deploy", "conditions": [], "reboot": {"requestedAt": "2026-01-01T00:00:00Z"},
            "stateItemStatuses": {"x": {"exitCode": 1}}});
        let with = |change: Value| {
            let mut status = before.clone();
            json_patch::merge(&mut status, &change);
            status
        };
        for (user, name, change, wanted) in [
            (own, "a", json!({"stateItemStatuses": {"x": {"exitCode": 0}}, "agentVersion": "2", "lastHeard": "z"}), ""),
            (
                own,
                "a",
                json!({"reboot": {"completed": true}, "addresses": [], "hostInfo": {}, "observedGeneration": 3}),
                "",
            ),
            (own, "a", json!({"lcmAgentUpgradeStatus": {"attempt": 1}}), ""),
            (own, "a", json!({"state": "Ready"}), "status.state"),
            (own, "a", json!({"state": null}), "status.state"),
            (own, "a", json!({"conditions": [{"type": "Ready"}]}), "status.conditions"),
            (own, "a", json!({"reboot": {"requestedAt": "2027-01-01T00:00:00Z"}}), "status.reboot"),
            (own, "a", json!({"reboot": null}), "status.reboot"),
            (own, "a", json!({"release": "r2"}), "status.release"),
            (own, "a", json!({"kubernetesCordonDrain": "cordondrained"}), "status.kubernetesCordonDrain"),
            (own, "a", json!({"prepareDeletionPhase": "completed"}), "status.prepareDeletionPhase"),
            (own, "a", json!({"tokenSecret": "other"}), "status.tokenSecret"),
            (own, "a", json!({"maintenance": true}), "status.maintenance"),
            (own, "a", json!({"agentVersion": "x".repeat(STATUS_MAX)}), "KiB at most"),
            // A neighbour, here and elsewhere.
            (own, "b", json!({"agentVersion": "2"}), "no other machine"),
            ("system:serviceaccount:other:lcm-a", "a", json!({"agentVersion": "2"}), "no other machine"),
            // Whoever else may, by a role.
            ("system:serviceaccount:rack:tools", "a", json!({"state": "Ready"}), ""),
            ("ann", "a", json!({"state": "Ready"}), ""),
        ] {
            let (new, old) = (machine(name, with(change.clone())), machine(name, before.clone()));
            let errors = judge(user, AdmissionOperation::Update, true, &new, Some(&old));
            let said = format!("{errors:?}");
            assert!(said.contains(wanted) && errors.is_empty() == wanted.is_empty(), "{user} {change}: {said}");
        }
        for (operation, status) in [
            (AdmissionOperation::Create, false),
            (AdmissionOperation::Update, false),
            (AdmissionOperation::Delete, false),
        ] {
            let one = machine("a", before.clone());
            assert!(!judge(own, operation, status, &one, Some(&one)).is_empty(), "{operation:?}");
        }
    }
}

//! What is kept of an LCMMachine: what counts for its cluster, and not the scripts in its steps.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::steps::{PHASES, StepsDigest, of_phase, print};
use crate::api::lcm::{
    ANNOTATION_GRACEFUL_REBOOT, ANNOTATION_INDEX, ANNOTATION_WAS_DEPLOYED, ANNOTATION_WAS_READY, LCMMachine,
    LCMMachineSpec, LCMMachineStatus, MachineRole, Phase,
};
use crate::cluster::workload::brief;
use crate::runtime::conditions::is_true;
use crate::runtime::{Mention, essence};

/// Label of machines of the control plane, whatever its value.
pub(super) const LABEL_CONTROL_PLANE: &str = "cluster.sigs.k8s.io/control-plane";
/// The condition that says whether an agent is heard.
pub(super) const AGENT_HEARD: &str = "AgentHeard";
/// Annotations that are kept.
const ANNOTATIONS: [&str; 4] =
    [ANNOTATION_INDEX, ANNOTATION_WAS_DEPLOYED, ANNOTATION_WAS_READY, ANNOTATION_GRACEFUL_REBOOT];
/// Bytes of an annotation's value.
const VALUE_MAX: usize = 64;

/// A step, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepView {
    pub name: String,
    pub phase: Phase,
    pub hash: String,
}

/// A step that failed last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub step: String,
    pub code: i32,
    pub attempt: i32,
    pub message: String,
}

/// A machine.
#[derive(Clone, Debug)]
pub(super) struct LcmMachineView {
    metadata: ObjectMeta,
    /// Without steps.
    pub spec: LCMMachineSpec,
    pub steps: Vec<StepView>,
    /// Digests of all that the steps of each phase say.
    pub prints: [StepsDigest; 3],
    /// Hashes of steps that are done, by name.
    pub done: BTreeMap<String, String>,
    pub failed: Option<Failed>,
    /// The step that is under way.
    pub working: Option<String>,
    /// Without what became of steps, and what the machine is.
    pub status: LCMMachineStatus,
    is_control: bool,
}

impl From<&LCMMachine> for LcmMachineView {
    fn from(machine: &LCMMachine) -> Self {
        let mut metadata = essence(&machine.metadata);
        let kept =
            ANNOTATIONS.iter().filter_map(|key| Some(((*key).to_owned(), machine.annotations().get(*key)?.clone())));
        metadata.annotations = Some(kept.filter(|(_, value)| value.len() <= VALUE_MAX).collect());
        let items = &machine.spec.state_items;
        let steps: Vec<StepView> = items
            .iter()
            .map(|item| StepView { name: item.name.clone(), phase: item.phase, hash: item.hash() })
            .collect();
        let mut status = machine.status.clone().unwrap_or_default();
        let became = std::mem::take(&mut status.state_item_statuses);
        status.host_info = None;
        let of = |step: &StepView| became.get(&step.name).filter(|status| status.hash == step.hash);
        let failed = steps.iter().find_map(|step| {
            let status = of(step)?;
            let code = status.exit_code.filter(|code| *code != 0)?;
            let message = brief(status.message.lines().last().unwrap_or_default());
            Some(Failed { step: step.name.clone(), code, attempt: status.attempt, message })
        });
        let working = steps.iter().find(|step| of(step).is_none_or(|status| status.exit_code != Some(0)));
        let done = became.iter().filter(|(_, status)| status.exit_code == Some(0));
        Self {
            is_control: machine.labels().contains_key(LABEL_CONTROL_PLANE),
            spec: LCMMachineSpec { state_items: Vec::new(), ..machine.spec.clone() },
            prints: PHASES.map(|phase| print(of_phase(items, phase))),
            working: working.map(|step| step.name.clone()),
            done: done.map(|(name, status)| (name.clone(), status.hash.clone())).collect(),
            metadata,
            steps,
            failed,
            status,
        }
    }
}

impl LcmMachineView {
    /// What it is in its cluster: a bastion where that is said, else by its label.
    pub(super) fn role(&self) -> MachineRole {
        match self.spec.role {
            Some(MachineRole::Bastion) => MachineRole::Bastion,
            _ if self.is_control => MachineRole::Control,
            _ => MachineRole::Worker,
        }
    }

    /// Its address in the cluster, as its agent reports it; what is none is left out, for it becomes a parameter of others' steps.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let mut all = self.status.addresses.iter().filter(|one| one.type_ == "InternalIP");
        all.find_map(|one| one.address.parse().ok())
    }

    /// The name that its system has, as its agent reports it.
    pub(super) fn hostname(&self) -> Option<&str> {
        let mut all = self.status.addresses.iter().filter(|one| one.type_ == "Hostname");
        all.find_map(|one| Some(one.address.as_str()).filter(|name| !name.is_empty() && name.len() <= 253))
    }

    /// Whether it has an annotation.
    pub(super) fn has(&self, annotation: &str) -> bool {
        self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotation))
    }

    /// Its place in the order.
    pub(super) fn rank(&self) -> (i64, i64, String) {
        let index = self.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_INDEX)?.parse().ok());
        let created = self.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
        (index.unwrap_or(i64::MAX), created, self.name_any())
    }

    /// Whether a step of this name and content is done.
    pub(super) fn is_done(&self, name: &str, hash: &str) -> bool {
        self.done.get(name).is_some_and(|done| done == hash)
    }

    /// Whether it goes.
    pub(super) fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

/// What a machine is found by: its cluster.
pub(super) fn mentions(machine: &LCMMachine) -> Vec<Mention> {
    vec![of_cluster(&machine.namespace().unwrap_or_default(), &machine.spec.cluster_name)]
}

/// The machines of a cluster.
pub(super) fn of_cluster(namespace: &str, cluster: &str) -> Mention {
    Mention::new("LCMCluster", namespace, cluster)
}

/// What of a machine has its cluster looked at: its cluster, and a digest of what counts. That its agent was heard again counts only
/// where it was not.
pub(super) fn facts(machine: &LCMMachine) -> (String, StepsDigest) {
    let view = LcmMachineView::from(machine);
    let mut status = view.status.clone();
    if is_true(&status.conditions, AGENT_HEARD) {
        status.last_heard = None;
    }
    status.lcm_agent_upgrade_status = None;
    status.observed_generation = None;
    let failed = view.failed.as_ref().map(|one| (&one.step, one.code, one.attempt, &one.message));
    let goes = view.is_deleted();
    let text =
        json!([view.spec, status, view.done, failed, view.working, view.metadata.annotations, view.is_control, goes]);
    let mut digest = Sha256::new();
    digest.update(text.to_string());
    view.prints.iter().for_each(|print| digest.update(print));
    (machine.spec.cluster_name.clone(), digest.finalize().into())
}

impl Resource for LcmMachineView {
    type DynamicType = ();
    type Scope = <LCMMachine as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        LCMMachine::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        LCMMachine::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        LCMMachine::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        LCMMachine::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::Value;

    use super::*;

    /// A machine of this metadata, spec and status.
    pub(in crate::release::lcm) fn view(metadata: Value, spec: Value, status: Value) -> LcmMachineView {
        LcmMachineView::from(&machine(metadata, spec, status))
    }

    fn machine(metadata: Value, spec: Value, status: Value) -> LCMMachine {
        let whole = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine", "metadata": metadata, "spec": spec,
            "status": status});
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn what_an_agent_says_is_taken_for_what_it_is() {
        let status = json!({"addresses": [{"type": "InternalIP", "address": "{{ lookup('pipe', 'id') }}"},
            {"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": ""}, {"type": "Hostname", "address": "n"}]});
        let one = view(json!({"name": "m", "labels": {LABEL_CONTROL_PLANE: "true"}}), json!({}), status);
        assert_eq!((one.address(), one.hostname()), ("10.0.0.7".parse().ok(), Some("n")));
        assert_eq!(one.role(), MachineRole::Control);
        assert_eq!(view(json!({"name": "m"}), json!({"type": "control"}), json!({})).role(), MachineRole::Worker);
        assert_eq!(view(json!({"name": "m"}), json!({"type": "bastion"}), json!({})).role(), MachineRole::Bastion);
    }

    #[test]
    fn a_step_is_done_by_its_hash_and_its_exit_code() {
        let item = json!({"name": "a", "phase": "deploy", "params": {"script": "x"}});
        let hash = view(json!({"name": "m"}), json!({"stateItems": [item]}), json!({})).steps[0].hash.clone();
        for (status, done, working, code) in [
            (json!({"hash": hash, "exitCode": 0}), true, None, None),
            (json!({"hash": hash, "exitCode": 3, "attempt": 2, "message": "one\ntwo"}), false, Some("a"), Some(3)),
            (json!({"hash": hash}), false, Some("a"), None),
            // Of what it was before.
            (json!({"hash": "0", "exitCode": 0}), false, Some("a"), None),
            (json!({"hash": "0", "exitCode": 3}), false, Some("a"), None),
        ] {
            let status = json!({"stateItemStatuses": {"a": status}});
            let one = view(json!({"name": "m"}), json!({"stateItems": [item]}), status.clone());
            assert_eq!(one.is_done("a", &hash), done, "{status}");
            assert_eq!((one.working.as_deref(), one.failed.as_ref().map(|one| one.code)), (working, code), "{status}");
            assert!(one.failed.is_none_or(|one| one.message == "two" && one.attempt == 2));
        }
    }

    #[test]
    fn that_an_agent_is_heard_again_and_again_is_no_news() {
        let of = |heard: &str, condition: &str| {
            let condition = json!({"type": AGENT_HEARD, "status": condition, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let status = json!({"lastHeard": heard, "conditions": [condition]});
            facts(&machine(json!({"name": "m"}), json!({}), status))
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        assert_eq!(of(early, "True"), of(late, "True"));
        assert_ne!(of(early, "False"), of(late, "False"));
    }
}

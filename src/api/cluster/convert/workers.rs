//! MachineSet, MachineDeployment and MachineHealthCheck between their versions. Pure.

use serde_json::{Map, Value, json};

use super::{CONDITIONS, NEW, OLD, duration, references_from_storage, references_to_storage, seconds};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::{LABEL_DEPLOYMENT, LABEL_SET};
use crate::api::conversion::{Moves, alter, newer, older};

const READY: (&str, &str) = ("status.readyReplicas", "status.deprecated.v1beta1.readyReplicas");
const AVAILABLE: (&str, &str) = ("status.availableReplicas", "status.deprecated.v1beta1.availableReplicas");
const NEW_READY: (&str, &str) = ("status.v1beta2.readyReplicas", "status.readyReplicas");
const NEW_AVAILABLE: (&str, &str) = ("status.v1beta2.availableReplicas", "status.availableReplicas");
const NEW_UP_TO_DATE: (&str, &str) = ("status.v1beta2.upToDateReplicas", "status.upToDateReplicas");
const MIN_READY: (&str, &str) = ("spec.minReadySeconds", "spec.template.spec.minReadySeconds");
const NAMING: (&str, &str) = ("spec.machineNamingStrategy", "spec.machineNaming");
const DRAIN: (&str, &str) =
    ("spec.template.spec.nodeDrainTimeout", "spec.template.spec.deletion.nodeDrainTimeoutSeconds");
const DETACH: (&str, &str) =
    ("spec.template.spec.nodeVolumeDetachTimeout", "spec.template.spec.deletion.nodeVolumeDetachTimeoutSeconds");
const DELETION: (&str, &str) =
    ("spec.template.spec.nodeDeletionTimeout", "spec.template.spec.deletion.nodeDeletionTimeoutSeconds");

const SET: Moves = &[
    CONDITIONS[0],
    CONDITIONS[1],
    CONDITIONS[2],
    CONDITIONS[3],
    READY,
    AVAILABLE,
    ("status.fullyLabeledReplicas", "status.deprecated.v1beta1.fullyLabeledReplicas"),
    NEW_READY,
    NEW_AVAILABLE,
    NEW_UP_TO_DATE,
    MIN_READY,
    NAMING,
    DRAIN,
    DETACH,
    DELETION,
    ("spec.deletePolicy", "spec.deletion.order"),
];

const DEPLOYMENT: Moves = &[
    CONDITIONS[0],
    CONDITIONS[3],
    READY,
    AVAILABLE,
    ("status.updatedReplicas", "status.deprecated.v1beta1.updatedReplicas"),
    ("status.unavailableReplicas", "status.deprecated.v1beta1.unavailableReplicas"),
    NEW_READY,
    NEW_AVAILABLE,
    NEW_UP_TO_DATE,
    MIN_READY,
    NAMING,
    DRAIN,
    DETACH,
    DELETION,
    ("spec.strategy.rollingUpdate.deletePolicy", "spec.deletion.order"),
    ("spec.strategy.rollingUpdate.maxSurge", "spec.rollout.strategy.rollingUpdate.maxSurge"),
    ("spec.strategy.rollingUpdate.maxUnavailable", "spec.rollout.strategy.rollingUpdate.maxUnavailable"),
    ("spec.strategy.type", "spec.rollout.strategy.type"),
    ("spec.strategy.remediation.maxInFlight", "spec.remediation.maxInFlight"),
    ("spec.rolloutAfter", "spec.rollout.after"),
];

const HEALTH_CHECK: Moves = &[
    CONDITIONS[0],
    CONDITIONS[3],
    ("spec.nodeStartupTimeout", "spec.checks.nodeStartupTimeoutSeconds"),
    ("spec.unhealthyConditions", "spec.checks.unhealthyNodeConditions"),
    ("spec.unhealthyMachineConditions", "spec.checks.unhealthyMachineConditions"),
    ("spec.maxUnhealthy", "spec.remediation.triggerIf.unhealthyLessThanOrEqualTo"),
    ("spec.unhealthyRange", "spec.remediation.triggerIf.unhealthyInRange"),
    ("spec.remediationTemplate", "spec.remediation.templateRef"),
];

const REFERENCES: [&str; 2] = ["spec.template.spec.bootstrap.configRef", "spec.template.spec.infrastructureRef"];
const TIMEOUTS: [&str; 3] = ["nodeDrainTimeout", "nodeVolumeDetachTimeout", "nodeDeletionTimeout"];
const UNHEALTHY: [&str; 2] = ["spec.checks.unhealthyNodeConditions", "spec.checks.unhealthyMachineConditions"];

/// A MachineSet of v1beta1 in v1beta2.
pub fn set_to_storage(old: &Value) -> Value {
    template_to_storage(newer(old, NEW, SET))
}

/// A MachineSet of v1beta2 in v1beta1.
pub fn set_from_storage(new: &Value) -> Value {
    template_from_storage(older(new, OLD, SET))
}

/// A MachineDeployment of v1beta1 in v1beta2.
pub fn deployment_to_storage(old: &Value) -> Value {
    let mut new = template_to_storage(newer(old, NEW, DEPLOYMENT));
    // What is replaced at once says how: the newer version wants it said.
    alter(&mut new, "spec.rollout.strategy", |strategy| {
        let mut strategy = strategy.as_object().filter(|strategy| !strategy.contains_key("type"))?.clone();
        strategy.insert("type".into(), "RollingUpdate".into());
        Some(strategy.into())
    });
    new
}

/// A MachineDeployment of v1beta2 in v1beta1.
pub fn deployment_from_storage(new: &Value) -> Value {
    template_from_storage(older(new, OLD, DEPLOYMENT))
}

/// A MachineHealthCheck of v1beta1 in v1beta2.
pub fn health_check_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, HEALTH_CHECK);
    alter(&mut new, "spec.checks.nodeStartupTimeoutSeconds", |text| Some(seconds(text.as_str()?)?.into()));
    for path in UNHEALTHY {
        alter(&mut new, path, |list| {
            each(list, |condition| {
                if let Some(seconds) = condition.get("timeout").and_then(Value::as_str).and_then(seconds) {
                    condition.remove("timeout");
                    condition.insert("timeoutSeconds".into(), seconds.into());
                }
            })
        });
    }
    alter(&mut new, "spec.remediation.templateRef", |reference| named(reference, None));
    new
}

/// A MachineHealthCheck of v1beta2 in v1beta1.
pub fn health_check_from_storage(new: &Value) -> Value {
    let namespace = new["metadata"].get("namespace").cloned();
    let mut new = new.clone();
    alter(&mut new, "spec.checks.nodeStartupTimeoutSeconds", |seconds| Some(duration(seconds.as_u64()?).into()));
    for path in UNHEALTHY {
        alter(&mut new, path, |list| {
            each(list, |condition| {
                if let Some(seconds) = condition.get("timeoutSeconds").and_then(Value::as_u64) {
                    condition.remove("timeoutSeconds");
                    condition.insert("timeout".into(), duration(seconds).into());
                }
            })
        });
    }
    alter(&mut new, "spec.remediation.templateRef", |reference| named(reference, namespace));
    older(&new, OLD, HEALTH_CHECK)
}

fn each(list: &Value, change: impl Fn(&mut Map<String, Value>)) -> Option<Value> {
    let mut list = list.as_array()?.clone();
    list.iter_mut().filter_map(Value::as_object_mut).for_each(change);
    Some(list.into())
}

fn named(reference: &Value, namespace: Option<Value>) -> Option<Value> {
    let get = |key: &str| reference.get(key);
    let mut named = json!({"apiVersion": get("apiVersion")?, "kind": get("kind")?, "name": get("name")?});
    if let Some(namespace) = namespace {
        named["namespace"] = namespace;
    }
    Some(named)
}

fn template_to_storage(mut new: Value) -> Value {
    references_to_storage(&mut new, &REFERENCES);
    for timeout in TIMEOUTS {
        alter(&mut new, &format!("spec.template.spec.deletion.{timeout}Seconds"), |text| {
            Some(seconds(text.as_str()?)?.into())
        });
    }
    new
}

fn template_from_storage(mut old: Value) -> Value {
    references_from_storage(&mut old, &REFERENCES);
    for timeout in TIMEOUTS {
        alter(&mut old, &format!("spec.template.spec.{timeout}"), |seconds| Some(duration(seconds.as_u64()?).into()));
    }
    old
}

/// Selects by the cluster, and by its own name where nothing else is said; labels of the template are to fit.
pub fn complete_set(set: &mut Value) {
    complete_selector(set, LABEL_SET);
}

/// The same for a MachineDeployment, which is to say how it replaces machines.
pub fn complete_deployment(deployment: &mut Value) {
    complete_selector(deployment, LABEL_DEPLOYMENT);
    let path: &[&str] = if deployment["apiVersion"] == OLD { &["strategy"] } else { &["rollout", "strategy"] };
    let Some(mut place) = deployment.get_mut("spec") else { return };
    for name in path {
        let Some(next) = within(place, name) else { return };
        place = next;
    }
    let Some(strategy) = place.as_object_mut() else { return };
    let by_and_by = strategy.entry("type").or_insert_with(|| "RollingUpdate".into()).as_str() == Some("RollingUpdate");
    if by_and_by && let Some(Value::Object(update)) = within(place, "rollingUpdate") {
        update.entry("maxSurge").or_insert_with(|| 1.into());
        update.entry("maxUnavailable").or_insert_with(|| 0.into());
    }
}

/// A MachineHealthCheck has the label of its cluster, and waits ten minutes for a node.
pub fn complete_health_check(check: &mut Value) {
    let Some(cluster) = check["spec"]["clusterName"].as_str().map(str::to_owned) else { return };
    label(check, &["metadata", "labels"], LABEL_CLUSTER, &cluster);
    if check["apiVersion"] == OLD {
        if let Some(spec) = check["spec"].as_object_mut() {
            spec.entry("nodeStartupTimeout").or_insert_with(|| "10m0s".into());
        }
    } else if let Some(Value::Object(checks)) = check.get_mut("spec").and_then(|spec| within(spec, "checks")) {
        checks.entry("nodeStartupTimeoutSeconds").or_insert_with(|| 600.into());
    }
}

fn complete_selector(object: &mut Value, own_label: &str) {
    let Some(cluster) = object["spec"]["clusterName"].as_str().map(str::to_owned) else { return };
    label(object, &["metadata", "labels"], LABEL_CLUSTER, &cluster);
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.entry("replicas").or_insert_with(|| 1.into());
        spec.entry("selector").or_insert_with(|| json!({}));
    }
    let empty = |value: &Value| value.as_object().is_none_or(Map::is_empty);
    let expressions = object["spec"]["selector"]["matchExpressions"].as_array().is_some_and(|list| !list.is_empty());
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    if let Some(name) = name
        && !expressions
        && empty(&object["spec"]["selector"]["matchLabels"])
    {
        label(object, &["spec", "selector", "matchLabels"], own_label, &name);
        label(object, &["spec", "template", "metadata", "labels"], own_label, &name);
    }
    label(object, &["spec", "selector", "matchLabels"], LABEL_CLUSTER, &cluster);
    label(object, &["spec", "template", "metadata", "labels"], LABEL_CLUSTER, &cluster);
    alter(object, "spec.template.spec.version", super::with_v);
}

fn label(object: &mut Value, path: &[&str], key: &str, value: &str) {
    let mut place = object;
    for name in path {
        let Some(next) = within(place, name) else { return };
        place = next;
    }
    if let Some(labels) = place.as_object_mut() {
        labels.insert(key.to_owned(), value.into());
    }
}

/// A member, which is an object when it was not there; `None` where there can be none.
fn within<'v>(value: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let map = value.as_object_mut()?;
    let place = map.entry(name).or_insert_with(|| json!({}));
    if place.is_null() {
        *place = json!({});
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(old: bool) -> Value {
        let reference = |group: &str, kind: &str| {
            if old {
                json!({"apiVersion": format!("{group}.cluster.x-k8s.io/v1beta1"), "kind": kind, "name": "w",
                    "namespace": "rack"})
            } else {
                json!({"apiGroup": format!("{group}.cluster.x-k8s.io"), "kind": kind, "name": "w"})
            }
        };
        let mut spec = json!({
            "clusterName": "c", "version": "v1.35.0",
            "bootstrap": {"configRef": reference("bootstrap", "KubeadmConfigTemplate")},
            "infrastructureRef": reference("infrastructure", "Metal3MachineTemplate"),
        });
        if old {
            spec["nodeDrainTimeout"] = "1m0s".into();
        } else {
            spec["deletion"] = json!({"nodeDrainTimeoutSeconds": 60});
            spec["minReadySeconds"] = 5.into();
        }
        json!({"metadata": {"labels": {"a": "b"}}, "spec": spec})
    }

    #[test]
    fn a_set_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "MachineSet", "metadata": {"name": "w", "namespace": "rack"},
            "spec": {"clusterName": "c", "replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "deletePolicy": "Oldest",
                "minReadySeconds": 5, "machineNamingStrategy": {"template": "x-{{ .random }}"}, "template": template(true)},
            "status": {"replicas": 3, "readyReplicas": 2, "availableReplicas": 1, "fullyLabeledReplicas": 3,
                "conditions": [{"type": "Ready"}], "failureReason": "Oops",
                "v1beta2": {"readyReplicas": 1, "availableReplicas": 0, "upToDateReplicas": 3,
                    "conditions": [{"type": "ScalingUp"}]}},
        });
        let new = json!({
            "apiVersion": NEW, "kind": "MachineSet", "metadata": {"name": "w", "namespace": "rack"},
            "spec": {"clusterName": "c", "replicas": 3, "selector": {"matchLabels": {"a": "b"}},
                "deletion": {"order": "Oldest"}, "machineNaming": {"template": "x-{{ .random }}"},
                "template": template(false)},
            "status": {"replicas": 3, "readyReplicas": 1, "availableReplicas": 0, "upToDateReplicas": 3,
                "conditions": [{"type": "ScalingUp"}],
                "deprecated": {"v1beta1": {"readyReplicas": 2, "availableReplicas": 1, "fullyLabeledReplicas": 3,
                    "conditions": [{"type": "Ready"}], "failureReason": "Oops"}}},
        });
        assert_eq!(set_to_storage(&old), new);
        assert_eq!(set_from_storage(&new), old);
    }

    #[test]
    fn a_deployment_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "MachineDeployment", "metadata": {"name": "w", "namespace": "rack"},
            "spec": {"clusterName": "c", "selector": {}, "minReadySeconds": 5, "rolloutAfter": "2026-01-01T00:00:00Z",
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%",
                    "deletePolicy": "Newest"}, "remediation": {"maxInFlight": 2}}, "template": template(true)},
            "status": {"updatedReplicas": 1, "unavailableReplicas": 2, "readyReplicas": 1, "phase": "Running",
                "v1beta2": {"upToDateReplicas": 1}},
        });
        let new = json!({
            "apiVersion": NEW, "kind": "MachineDeployment", "metadata": {"name": "w", "namespace": "rack"},
            "spec": {"clusterName": "c", "selector": {}, "deletion": {"order": "Newest"}, "remediation": {"maxInFlight": 2},
                "rollout": {"after": "2026-01-01T00:00:00Z", "strategy": {"type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}}}, "template": template(false)},
            "status": {"upToDateReplicas": 1, "phase": "Running",
                "deprecated": {"v1beta1": {"updatedReplicas": 1, "unavailableReplicas": 2, "readyReplicas": 1}}},
        });
        assert_eq!(deployment_to_storage(&old), new);
        assert_eq!(deployment_from_storage(&new), old);
    }

    #[test]
    fn a_health_check_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "MachineHealthCheck", "metadata": {"name": "h", "namespace": "rack"},
            "spec": {"clusterName": "c", "selector": {"matchLabels": {"a": "b"}}, "maxUnhealthy": "40%",
                "unhealthyRange": "[1-3]", "nodeStartupTimeout": "5m0s",
                "unhealthyConditions": [{"type": "Ready", "status": "False", "timeout": "1m30s"}],
                "unhealthyMachineConditions": [{"type": "NodeReady", "status": "False", "timeout": "10s"}],
                "remediationTemplate": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                    "kind": "Metal3RemediationTemplate", "name": "r", "namespace": "rack"}},
            "status": {"conditions": [{"type": "RemediationAllowed"}], "targets": ["m"]},
        });
        let new = json!({
            "apiVersion": NEW, "kind": "MachineHealthCheck", "metadata": {"name": "h", "namespace": "rack"},
            "spec": {"clusterName": "c", "selector": {"matchLabels": {"a": "b"}},
                "checks": {"nodeStartupTimeoutSeconds": 300,
                    "unhealthyNodeConditions": [{"type": "Ready", "status": "False", "timeoutSeconds": 90}],
                    "unhealthyMachineConditions": [{"type": "NodeReady", "status": "False", "timeoutSeconds": 10}]},
                "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "40%", "unhealthyInRange": "[1-3]"},
                    "templateRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                        "kind": "Metal3RemediationTemplate", "name": "r"}}},
            "status": {"deprecated": {"v1beta1": {"conditions": [{"type": "RemediationAllowed"}]}}, "targets": ["m"]},
        });
        assert_eq!(health_check_to_storage(&old), new);
        assert_eq!(health_check_from_storage(&new), old);
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        for (version, strategy) in [(OLD, "/spec/strategy"), (NEW, "/spec/rollout/strategy")] {
            let mut one = json!({"apiVersion": version, "metadata": {"name": "w"},
                "spec": {"clusterName": "c", "template": {"spec": {"version": "1.35.0"}}}});
            complete_deployment(&mut one);
            let labels = json!({LABEL_CLUSTER: "c", LABEL_DEPLOYMENT: "w"});
            assert_eq!(one["spec"]["selector"]["matchLabels"], labels);
            assert_eq!(one["spec"]["template"]["metadata"]["labels"], labels);
            assert_eq!(one["metadata"]["labels"], json!({LABEL_CLUSTER: "c"}));
            assert_eq!(
                (&one["spec"]["replicas"], &one["spec"]["template"]["spec"]["version"]),
                (&json!(1), &json!("v1.35.0"))
            );
            let wanted = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
            assert_eq!(one.pointer(strategy), Some(&wanted));
            let once = one.clone();
            complete_deployment(&mut one);
            assert_eq!(one, once);
        }
        let mut own = json!({"apiVersion": NEW, "metadata": {"name": "w"}, "spec": {"clusterName": "c", "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}}, "rollout": {"strategy": {"type": "OnDelete"}}, "template": {}}});
        complete_deployment(&mut own);
        assert_eq!(own["spec"]["selector"]["matchLabels"], json!({"a": "b", LABEL_CLUSTER: "c"}));
        assert_eq!(
            (&own["spec"]["replicas"], &own["spec"]["rollout"]["strategy"]),
            (&json!(0), &json!({"type": "OnDelete"}))
        );
        let mut check = json!({"apiVersion": NEW, "spec": {"clusterName": "c"}});
        complete_health_check(&mut check);
        assert_eq!(check["spec"]["checks"], json!({"nodeStartupTimeoutSeconds": 600}));
        let mut check = json!({"apiVersion": OLD, "spec": {"clusterName": "c", "nodeStartupTimeout": "0s"}});
        complete_health_check(&mut check);
        assert_eq!(check["spec"]["nodeStartupTimeout"], "0s");
        for mut odd in [json!({}), json!(7), json!({"spec": 7}), json!({"spec": {"clusterName": 7}})] {
            complete_deployment(&mut odd);
            complete_set(&mut odd);
            complete_health_check(&mut odd);
        }
    }
}

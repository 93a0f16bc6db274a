//! Between `cluster.x-k8s.io/v1beta1` and `/v1beta2`. Pure.
//!
//! What one version cannot say is not its business: whoever stores objects finds it by going there and back. What a
//! class says of a cluster (`spec.topology`) has the same shape in both, but for the class itself.

mod workers;

use serde_json::{Map, Value, json};

pub use workers::{
    complete_deployment, complete_health_check, complete_set, deployment_from_storage, deployment_to_storage,
    health_check_from_storage, health_check_to_storage, set_from_storage, set_to_storage,
};

use crate::api::conversion::{Moves, alter, newer, older};

const OLD: &str = "cluster.x-k8s.io/v1beta1";
const NEW: &str = "cluster.x-k8s.io/v1beta2";

/// Fields of every status that follows Cluster API's contract.
pub(in crate::api) const CONDITIONS: [(&str, &str); 4] = [
    ("status.conditions", "status.deprecated.v1beta1.conditions"),
    ("status.failureReason", "status.deprecated.v1beta1.failureReason"),
    ("status.failureMessage", "status.deprecated.v1beta1.failureMessage"),
    ("status.v1beta2.conditions", "status.conditions"),
];

const CLUSTER: Moves = &[
    CONDITIONS[0],
    CONDITIONS[1],
    CONDITIONS[2],
    CONDITIONS[3],
    ("status.v1beta2.controlPlane", "status.controlPlane"),
    ("status.v1beta2.workers", "status.workers"),
    ("status.infrastructureReady", "status.initialization.infrastructureProvisioned"),
    ("status.controlPlaneReady", "status.initialization.controlPlaneInitialized"),
    ("spec.topology.class", "spec.topology.classRef.name"),
    ("spec.topology.classNamespace", "spec.topology.classRef.namespace"),
];

const MACHINE: Moves = &[
    CONDITIONS[0],
    CONDITIONS[1],
    CONDITIONS[2],
    CONDITIONS[3],
    ("status.infrastructureReady", "status.initialization.infrastructureProvisioned"),
    ("status.bootstrapReady", "status.initialization.bootstrapDataSecretCreated"),
    ("spec.nodeDrainTimeout", "spec.deletion.nodeDrainTimeoutSeconds"),
    ("spec.nodeVolumeDetachTimeout", "spec.deletion.nodeVolumeDetachTimeoutSeconds"),
    ("spec.nodeDeletionTimeout", "spec.deletion.nodeDeletionTimeoutSeconds"),
];

const REFERENCES: [&str; 3] = ["spec.controlPlaneRef", "spec.infrastructureRef", "spec.bootstrap.configRef"];
const TIMEOUTS: [&str; 3] = ["nodeDrainTimeout", "nodeVolumeDetachTimeout", "nodeDeletionTimeout"];

/// A Cluster of v1beta1 in v1beta2.
pub fn cluster_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, CLUSTER);
    references_to_storage(&mut new, &REFERENCES);
    alter(&mut new, "status.failureDomains", domains_to_storage);
    new
}

/// A Cluster of v1beta2 in v1beta1.
pub fn cluster_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, CLUSTER);
    references_from_storage(&mut old, &REFERENCES);
    alter(&mut old, "status.failureDomains", domains_from_storage);
    old
}

/// A Machine of v1beta1 in v1beta2.
pub fn machine_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, MACHINE);
    references_to_storage(&mut new, &REFERENCES);
    for timeout in TIMEOUTS {
        alter(&mut new, &format!("spec.deletion.{timeout}Seconds"), |text| Some(seconds(text.as_str()?)?.into()));
    }
    alter(&mut new, "status.nodeRef", |node| Some(json!({"name": node.get("name")?})));
    new
}

/// A Machine of v1beta2 in v1beta1.
pub fn machine_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, MACHINE);
    references_from_storage(&mut old, &REFERENCES);
    for timeout in TIMEOUTS {
        alter(&mut old, &format!("spec.{timeout}"), |seconds| Some(duration(seconds.as_u64()?).into()));
    }
    alter(&mut old, "status.nodeRef", |node| {
        Some(json!({"apiVersion": "v1", "kind": "Node", "name": node.get("name")?}))
    });
    // The older version has no word for it.
    alter(&mut old, "status.phase", |phase| (phase == "Updating").then(|| "Running".into()));
    old
}

/// Versions of Kubernetes have a `v` in front, in either version of a Machine.
pub fn complete_machine(machine: &mut Value) {
    alter(machine, "spec.version", with_v);
}

fn with_v(version: &Value) -> Option<Value> {
    let version = version.as_str().filter(|version| version.starts_with(|first: char| first.is_ascii_digit()))?;
    Some(format!("v{version}").into())
}

/// What is referred to is named by its group, and lies in the same namespace.
fn references_to_storage(object: &mut Value, paths: &[&str]) {
    for path in paths {
        alter(object, path, |reference| {
            let group = reference.get("apiVersion")?.as_str()?.split_once('/')?.0;
            Some(json!({"apiGroup": group, "kind": reference.get("kind")?, "name": reference.get("name")?}))
        });
    }
}

fn references_from_storage(object: &mut Value, paths: &[&str]) {
    let namespace = object["metadata"].get("namespace").cloned();
    for path in paths {
        alter(object, path, |reference| {
            let version = format!("{}/v1beta1", reference.get("apiGroup")?.as_str()?);
            let mut old =
                json!({"apiVersion": version, "kind": reference.get("kind")?, "name": reference.get("name")?});
            if let Some(namespace) = &namespace {
                old["namespace"] = namespace.clone();
            }
            Some(old)
        });
    }
}

/// A map of failure domains by name as a list.
pub(in crate::api) fn domains_to_storage(domains: &Value) -> Option<Value> {
    let list = domains.as_object()?.iter().map(|(name, domain)| {
        let mut domain = domain.as_object()?.clone();
        domain.insert("name".into(), name.as_str().into());
        Some(Value::Object(domain))
    });
    list.collect::<Option<Vec<Value>>>().map(Value::from)
}

/// A list of failure domains as a map by name.
pub(in crate::api) fn domains_from_storage(domains: &Value) -> Option<Value> {
    let map = domains.as_array()?.iter().map(|domain| {
        let mut domain = domain.as_object()?.clone();
        let name = domain.remove("name")?.as_str()?.to_owned();
        Some((name, Value::Object(domain)))
    });
    map.collect::<Option<Map<String, Value>>>().map(Value::Object)
}

/// Whole seconds of a duration as Go writes it (`1h2m3s`); nothing when it has a fraction or is none.
pub(in crate::api) fn seconds(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (mut total, mut rest) = (0_u64, text);
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|char: char| char.is_ascii_digit()).unwrap_or(rest.len());
        let factor = match &rest[..unit] {
            "h" => 3600,
            "m" => 60,
            "s" => 1,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(factor)?)?;
        rest = &rest[unit..];
    }
    (!text.is_empty()).then_some(total)
}

/// Seconds as Go writes a duration.
pub(crate) fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "Cluster", "metadata": {"name": "c", "namespace": "rack"},
            "spec": {
                "paused": false,
                "clusterNetwork": {"pods": {"cidrBlocks": ["10.0.0.0/8"]}},
                "controlPlaneRef": {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "KubeadmControlPlane",
                    "name": "c", "namespace": "rack"},
                "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Cluster",
                    "name": "c", "namespace": "rack"},
                "topology": {"class": "metal", "classNamespace": "classes", "version": "v1.35.0", "workers": {"x": 1}},
            },
            "status": {
                "phase": "Provisioned", "infrastructureReady": true, "controlPlaneReady": false,
                "failureReason": "Oops", "failureMessage": "oops",
                "conditions": [{"type": "Ready", "status": "True"}],
                "failureDomains": {"a": {"controlPlane": true}, "b": {"attributes": {"row": "2"}}},
                "v1beta2": {"conditions": [{"type": "Available", "status": "True"}], "workers": {"replicas": 3},
                    "controlPlane": {"replicas": 1}},
            },
        });
        let new = json!({
            "apiVersion": NEW, "kind": "Cluster", "metadata": {"name": "c", "namespace": "rack"},
            "spec": {
                "paused": false,
                "clusterNetwork": {"pods": {"cidrBlocks": ["10.0.0.0/8"]}},
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "c"},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Cluster", "name": "c"},
                "topology": {"classRef": {"name": "metal", "namespace": "classes"}, "version": "v1.35.0",
                    "workers": {"x": 1}},
            },
            "status": {
                "phase": "Provisioned",
                "initialization": {"infrastructureProvisioned": true, "controlPlaneInitialized": false},
                "conditions": [{"type": "Available", "status": "True"}], "workers": {"replicas": 3},
                "controlPlane": {"replicas": 1},
                "failureDomains": [{"name": "a", "controlPlane": true}, {"name": "b", "attributes": {"row": "2"}}],
                "deprecated": {"v1beta1": {"failureReason": "Oops", "failureMessage": "oops",
                    "conditions": [{"type": "Ready", "status": "True"}]}},
            },
        });
        assert_eq!(cluster_to_storage(&old), new);
        assert_eq!(cluster_from_storage(&new), old);
    }

    #[test]
    fn a_machine_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "Machine", "metadata": {"name": "m", "namespace": "rack"},
            "spec": {
                "clusterName": "c", "version": "v1.35.0", "nodeDrainTimeout": "1m30s", "nodeDeletionTimeout": "10s",
                "bootstrap": {"configRef": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KubeadmConfig",
                    "name": "m", "namespace": "rack"}},
                "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Machine",
                    "name": "m", "namespace": "rack"},
            },
            "status": {
                "bootstrapReady": true, "infrastructureReady": false,
                "nodeRef": {"apiVersion": "v1", "kind": "Node", "name": "web-1"},
            },
        });
        let new = json!({
            "apiVersion": NEW, "kind": "Machine", "metadata": {"name": "m", "namespace": "rack"},
            "spec": {
                "clusterName": "c", "version": "v1.35.0",
                "deletion": {"nodeDrainTimeoutSeconds": 90, "nodeDeletionTimeoutSeconds": 10},
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": "m"}},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Machine", "name": "m"},
            },
            "status": {
                "initialization": {"bootstrapDataSecretCreated": true, "infrastructureProvisioned": false},
                "nodeRef": {"name": "web-1"},
            },
        });
        assert_eq!(machine_to_storage(&old), new);
        assert_eq!(machine_from_storage(&new), old);
    }

    #[test]
    fn durations_are_as_go_writes_them() {
        for (text, number) in [("0s", 0), ("10s", 10), ("1m30s", 90), ("1h0m0s", 3600), ("25h1m1s", 90061)] {
            assert_eq!(seconds(text), Some(number), "{text}");
            assert_eq!(duration(number), text);
        }
        assert_eq!((seconds("90s"), seconds("2h"), seconds("0")), (Some(90), Some(7200), Some(0)));
        for text in ["", "1", "s", "1.5s", "-1s", "1d", "99999999999999999999s", "9999999999999999999h", "1s2"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn versions_of_machines_have_a_v() {
        for (given, wanted) in [("1.35.0", "v1.35.0"), ("v1.35.0", "v1.35.0"), ("latest", "latest"), ("", "")] {
            let mut machine = json!({"spec": {"version": given}});
            complete_machine(&mut machine);
            assert_eq!(machine["spec"]["version"], wanted);
        }
        let mut machine = json!({"spec": {}});
        complete_machine(&mut machine);
        assert_eq!(machine, json!({"spec": {}}));
    }
}

//! Between `infrastructure.cluster.x-k8s.io/v1beta1` and `/v1beta2`. Pure.
//!
//! What one version cannot say is not its business: whoever stores objects finds it by going there and back.

use serde_json::{Value, json};

use crate::api::cluster::convert::{CONDITIONS, domains_from_storage, domains_to_storage};
use crate::api::conversion::{Moves, alter, at, newer, older};

pub(super) const OLD: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
pub(super) const NEW: &str = "infrastructure.cluster.x-k8s.io/v1beta2";

const READY: (&str, &str) = ("status.ready", "status.initialization.provisioned");
const CLUSTER: Moves = &[CONDITIONS[0], CONDITIONS[1], CONDITIONS[2], CONDITIONS[3], READY];
const MACHINE: Moves = &[
    CONDITIONS[0],
    CONDITIONS[1],
    CONDITIONS[2],
    CONDITIONS[3],
    READY,
    ("spec.image.format", "spec.image.diskFormat"),
];
const MACHINE_TEMPLATE: Moves = &[("spec.template.spec.image.format", "spec.template.spec.image.diskFormat")];

/// A Metal3Cluster of v1beta1 in v1beta2.
pub fn cluster_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, CLUSTER);
    cluster_spec_to_storage(&mut new, "spec");
    alter(&mut new, "status.failureDomains", domains_to_storage);
    new
}

/// A Metal3Cluster of v1beta2 in v1beta1.
pub fn cluster_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, CLUSTER);
    cluster_spec_from_storage(&mut old, "spec");
    alter(&mut old, "status.failureDomains", domains_from_storage);
    old
}

/// A Metal3ClusterTemplate of v1beta1 in v1beta2.
pub fn cluster_template_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, &[]);
    cluster_spec_to_storage(&mut new, "spec.template.spec");
    new
}

/// A Metal3ClusterTemplate of v1beta2 in v1beta1.
pub fn cluster_template_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, &[]);
    cluster_spec_from_storage(&mut old, "spec.template.spec");
    old
}

/// A Metal3Machine of v1beta1 in v1beta2.
pub fn machine_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, MACHINE);
    drop_phase(&mut new);
    machine_spec_to_storage(&mut new, "spec");
    alter(&mut new, "status.renderedData", reference_to_storage);
    new
}

/// A Metal3Machine of v1beta2 in v1beta1.
pub fn machine_from_storage(new: &Value) -> Value {
    older(new, OLD, MACHINE)
}

/// A Metal3MachineTemplate of v1beta1 in v1beta2.
pub fn machine_template_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, MACHINE_TEMPLATE);
    machine_spec_to_storage(&mut new, "spec.template.spec");
    new
}

/// A Metal3MachineTemplate of v1beta2 in v1beta1.
pub fn machine_template_from_storage(new: &Value) -> Value {
    older(new, OLD, MACHINE_TEMPLATE)
}

fn cluster_spec_to_storage(object: &mut Value, spec: &str) {
    alter(object, &format!("{spec}.failureDomains"), domains_to_storage);
    alter(object, spec, |spec| {
        let mut spec = spec.as_object()?.clone();
        let opposite = spec.remove("noCloudProvider")?.as_bool()?;
        spec.entry("cloudProviderEnabled").or_insert_with(|| (!opposite).into());
        Some(spec.into())
    });
}

fn cluster_spec_from_storage(object: &mut Value, spec: &str) {
    alter(object, &format!("{spec}.failureDomains"), domains_from_storage);
    alter(object, spec, |spec| {
        let enabled = at(spec, "cloudProviderEnabled")?.as_bool()?;
        let mut spec = spec.as_object()?.clone();
        spec.insert("noCloudProvider".into(), (!enabled).into());
        Some(spec.into())
    });
}

fn machine_spec_to_storage(object: &mut Value, spec: &str) {
    alter(object, &format!("{spec}.dataTemplate"), reference_to_storage);
    // An image without a URL is none.
    alter(object, spec, |spec| {
        let mut spec = spec.as_object()?.clone();
        let url = spec.get("image")?.get("url").and_then(Value::as_str).unwrap_or_default();
        url.is_empty().then(|| spec.remove("image"))?;
        Some(spec.into())
    });
}

/// Only the name and the namespace of what is referred to are said.
pub(super) fn reference_to_storage(reference: &Value) -> Option<Value> {
    let mut new = json!({"name": reference.get("name")?});
    if let Some(namespace) = reference.get("namespace") {
        new["namespace"] = namespace.clone();
    }
    Some(new)
}

fn drop_phase(machine: &mut Value) {
    if let Some(Value::Object(status)) = machine.get_mut("status") {
        status.remove("phase");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "Metal3Cluster", "metadata": {"name": "c"},
            "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}, "noCloudProvider": true,
                "cloudProviderEnabled": false, "failureDomains": {"a": {"controlPlane": true}}},
            "status": {"ready": true, "failureReason": "Oops", "conditions": [{"type": "Ready"}],
                "v1beta2": {"conditions": [{"type": "Paused"}]}, "failureDomains": {"a": {"controlPlane": true}}},
        });
        let new = json!({
            "apiVersion": NEW, "kind": "Metal3Cluster", "metadata": {"name": "c"},
            "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}, "cloudProviderEnabled": false,
                "failureDomains": [{"name": "a", "controlPlane": true}]},
            "status": {"initialization": {"provisioned": true}, "conditions": [{"type": "Paused"}],
                "deprecated": {"v1beta1": {"failureReason": "Oops", "conditions": [{"type": "Ready"}]}},
                "failureDomains": [{"name": "a", "controlPlane": true}]},
        });
        assert_eq!(cluster_to_storage(&old), new);
        assert_eq!(cluster_from_storage(&new), old);
        let template = |version: &str, object: &Value| json!({"apiVersion": version, "spec": {"template": {"spec": object["spec"]}}});
        assert_eq!(cluster_template_to_storage(&template(OLD, &old)), template(NEW, &new));
        assert_eq!(cluster_template_from_storage(&template(NEW, &new)), template(OLD, &old));
        // The old field alone says the opposite.
        let given = json!({"spec": {"noCloudProvider": false}});
        assert_eq!(cluster_to_storage(&given)["spec"], json!({"cloudProviderEnabled": true}));
    }

    #[test]
    fn a_machine_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "Metal3Machine", "metadata": {"name": "m"},
            "spec": {"image": {"url": "http://x/y", "checksum": "aa", "format": "raw"}, "dataTemplate": {"name": "t"}},
            "status": {"ready": false, "failureMessage": "oops", "renderedData": {"name": "d", "namespace": "rack"}},
        });
        let new = json!({
            "apiVersion": NEW, "kind": "Metal3Machine", "metadata": {"name": "m"},
            "spec": {"image": {"url": "http://x/y", "checksum": "aa", "diskFormat": "raw"}, "dataTemplate": {"name": "t"}},
            "status": {"initialization": {"provisioned": false}, "deprecated": {"v1beta1": {"failureMessage": "oops"}},
                "renderedData": {"name": "d", "namespace": "rack"}},
        });
        assert_eq!(machine_to_storage(&old), new);
        assert_eq!(machine_from_storage(&new), old);
        let template = |version: &str, object: &Value| json!({"apiVersion": version, "spec": {"template": {"spec": object["spec"]}}});
        assert_eq!(machine_template_to_storage(&template(OLD, &old)), template(NEW, &new));
        assert_eq!(machine_template_from_storage(&template(NEW, &new)), template(OLD, &old));
        // What v1beta2 does not have.
        let given = json!({"spec": {"image": {}, "customDeploy": {"method": "x"},
            "dataTemplate": {"kind": "Metal3DataTemplate", "name": "t"}}, "status": {"phase": "Running"}});
        let wanted = json!({"apiVersion": NEW, "spec": {"customDeploy": {"method": "x"}, "dataTemplate": {"name": "t"}},
            "status": {}});
        assert_eq!(machine_to_storage(&given), wanted);
    }
}

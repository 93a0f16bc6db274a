//! Labels of a host that its node is to have: those with the prefixes that an annotation of the Metal3Cluster names.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Map, Value, json};

use crate::api::metal3::BareMetalHost;
use crate::cluster::infrastructure::names::LABEL_NODE_HOST;
use crate::cluster::workload::{WorkloadError, Workloads};

/// Annotation of a Metal3Cluster: prefixes of labels, with commas between.
pub const ANNOTATION_PREFIXES: &str = "metal3.io/metal3-label-sync-prefixes";
/// How often nodes are looked at.
pub const PAUSE: Duration = Duration::from_secs(60);
/// Prefixes, at most.
const MOST: usize = 64;

/// What of a node's labels is to change, as a merge patch of them. What Kubernetes itself gives a node is never taken away.
pub fn changes(prefixes: &str, host: &BTreeMap<String, String>, node: &BTreeMap<String, String>) -> Map<String, Value> {
    let prefixes: Vec<&str> = prefixes.split(',').map(str::trim).filter(|one| !one.is_empty()).take(MOST).collect();
    let is_named = |key: &str| key.split_once('/').is_some_and(|(prefix, _)| prefixes.contains(&prefix));
    let is_kubernetes = |key: &str| {
        let domain = key.split('/').next().unwrap_or_default();
        ["kubernetes.io", "k8s.io"].iter().any(|own| domain == *own || domain.ends_with(&format!(".{own}")))
    };
    let mut changes = Map::new();
    for (key, value) in host.iter().filter(|(key, value)| is_named(key) && node.get(*key) != Some(*value)) {
        changes.insert(key.clone(), json!(value));
    }
    for key in node.keys().filter(|key| is_named(key) && !host.contains_key(*key)) {
        if !is_kubernetes(key) && key != LABEL_NODE_HOST {
            changes.insert(key.clone(), Value::Null);
        }
    }
    changes
}

/// Gives a node the labels of its host.
///
/// # Errors
///
/// When the cluster cannot be asked.
pub async fn sync(
    workloads: &Workloads,
    client: &Client,
    (cluster, node): (&str, &str),
    prefixes: &str,
    host: &BareMetalHost,
) -> Result<(), WorkloadError> {
    let workload = workloads.get(client, &host.namespace().unwrap_or_default(), cluster).await?;
    let Some(found) = workload.node(node).await? else { return Ok(()) };
    let changes = changes(prefixes, host.labels(), found.labels());
    if changes.is_empty() {
        return Ok(());
    }
    let patch = json!({ "metadata": { "labels": changes } });
    let api = Api::<Node>::all(workload.client().clone());
    let patched = api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await;
    workload.node_changed().await;
    Ok(patched.map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_with_the_prefixes_are_the_hosts() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        let host = map(&[("rack.test/row", "2"), ("rack.test/slot", "7"), ("other.test/x", "y"), ("plain", "z")]);
        let node = map(&[
            ("rack.test/row", "1"),
            ("rack.test/slot", "7"),
            ("rack.test/gone", "x"),
            ("other.test/z", "kept"),
            ("node.kubernetes.io/kind", "kept"),
            ("metal3.io/uuid", "kept"),
        ]);
        let wanted = json!({"rack.test/row": "2", "rack.test/gone": null});
        let prefixes = " rack.test , node.kubernetes.io,metal3.io,";
        assert_eq!(Value::from(changes(prefixes, &host, &node)), wanted);
        assert!(changes("", &host, &node).is_empty());
    }
}

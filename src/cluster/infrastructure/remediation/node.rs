//! What is done with the node of a machine that is brought back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Map, Value, json};

use super::decide::{ANNOTATIONS_BACKUP, LABELS_BACKUP, OUT_OF_SERVICE, OUT_OF_SERVICE_VALUE, is_out_of_service};
use crate::api::infrastructure::remediation::v1beta2::Metal3Remediation;
use crate::runtime::objects;

/// Bytes of a node's labels or annotations that are kept; an object has room for no more.
const KEPT: usize = 64 << 10;

/// Whether nothing on a node is ending any more, and no volume is attached to it.
///
/// # Errors
///
/// What its cluster says.
pub(super) async fn is_drained(client: &Client, node: &Node) -> Result<bool, kube::Error> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    if !taints.into_iter().flatten().any(is_out_of_service) {
        return Ok(false);
    }
    let name = node.name_any();
    let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let pods = Api::<Pod>::all(client.clone()).list(&params).await?;
    if pods.items.iter().any(|pod| pod.metadata.deletion_timestamp.is_some()) {
        return Ok(false);
    }
    let mut is_free = true;
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    objects::each(&attachments, |attachment| is_free &= attachment.spec.node_name != name).await?;
    Ok(is_free)
}

/// Takes the node out of service.
pub(super) async fn taint(client: &Client, node: &Node, now: Timestamp) -> Result<(), kube::Error> {
    let mut taints = taints(node);
    taints.push(Taint {
        key: OUT_OF_SERVICE.to_owned(),
        value: Some(OUT_OF_SERVICE_VALUE.to_owned()),
        effect: "NoExecute".to_owned(),
        time_added: Some(Time(now)),
    });
    patch(client, node, json!({ "spec": { "taints": taints } })).await
}

/// Takes it back into service.
pub(super) async fn untaint(client: &Client, node: &Node) -> Result<(), kube::Error> {
    let mut taints = taints(node);
    taints.retain(|taint| !is_out_of_service(taint));
    patch(client, node, json!({ "spec": { "taints": taints } })).await
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// Deletes the node, if it is still the one at hand.
pub(super) async fn delete(client: &Client, node: &Node) -> Result<(), kube::Error> {
    let preconditions = Some(Preconditions { uid: node.uid(), ..Preconditions::default() });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    match Api::<Node>::all(client.clone()).delete(&node.name_any(), &params).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// What is kept of a node that is deleted, as annotations. What is too large is not kept.
pub(super) fn backup(node: &Node) -> Value {
    let text = |map: &BTreeMap<String, String>| {
        let text = json!(map).to_string();
        if text.len() <= KEPT { text } else { "{}".to_owned() }
    };
    json!({ ANNOTATIONS_BACKUP: text(node.annotations()), LABELS_BACKUP: text(node.labels()) })
}

/// Gives a node that came again what the one before it had, where it has nothing else.
pub(super) async fn restore(client: &Client, node: &Node, kept: &Metal3Remediation) -> Result<(), kube::Error> {
    let labels = lacking(kept.annotations().get(LABELS_BACKUP), node.labels());
    let annotations = lacking(kept.annotations().get(ANNOTATIONS_BACKUP), node.annotations());
    if labels.is_empty() && annotations.is_empty() {
        return Ok(());
    }
    patch(client, node, json!({ "metadata": { "labels": labels, "annotations": annotations } })).await
}

fn lacking(kept: Option<&String>, there: &BTreeMap<String, String>) -> Map<String, Value> {
    let kept: BTreeMap<String, String> = kept.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    kept.into_iter().filter(|(key, _)| !there.contains_key(key)).map(|(key, value)| (key, value.into())).collect()
}

async fn patch(client: &Client, node: &Node, mut patch: Value) -> Result<(), kube::Error> {
    patch["metadata"]["resourceVersion"] = json!(node.resource_version());
    let api = Api::<Node>::all(client.clone());
    match api.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        patched => patched.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_came_again_gets_what_it_lacks() {
        let mut node = Node::default();
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        node.metadata.labels = Some(map(&[("role", "worker"), ("zone", "a")]));
        let kept = backup(&node);
        let text = kept[LABELS_BACKUP].as_str().map(str::to_owned);
        let there = map(&[("zone", "b")]);
        assert_eq!(Value::from(lacking(text.as_ref(), &there)), json!({"role": "worker"}));
        assert!(lacking(Some(&"no JSON".to_owned()), &there).is_empty() && lacking(None, &there).is_empty());
        node.metadata.annotations = Some(map(&[("much", &"x".repeat(KEPT))]));
        assert_eq!(backup(&node)[ANNOTATIONS_BACKUP], "{}");
    }
}

//! The LCMMachine of a Machine: empty but for what the Machine itself says. Who fills in its steps is `release::lcm`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Map, Value, json};

use super::machine_spec::{self, MachineWish};
use super::machines::MachineError;
use crate::api::kaas::LABEL_UPDATE_GROUP;
use crate::api::lcm::{ANNOTATION_INDEX, LCMCluster, LCMMachine, LCMMachineSpec};
use crate::api::machine_api::Machine;
use crate::release::keep::{self, KeepError};
use crate::release::names::{self, LABEL_CLUSTER, LABEL_CONTROL_PLANE, PARAM_NODE_LABELS};
use crate::runtime::changes::{change, difference};

/// Fields of the spec that are the provider's, of the Machine. All others are `release::lcm`'s.
const OURS: &[&str] = &["cidr", "distribution", "interface", "maintenance", "stateItemsOverwrites", "updateGroup"];

/// Has the LCMMachine of a Machine be there, with what the Machine says.
///
/// # Errors
///
/// When it is somebody else's, or of another cluster; what the API says.
pub async fn provide(
    api: &Api<LCMMachine>,
    machine: &Machine,
    cluster: &LCMCluster,
    wish: &MachineWish,
    system: &str,
    owner: &OwnerReference,
) -> Result<LCMMachine, MachineError> {
    let wanted = wanted(machine, cluster, wish, system);
    let Some(found) = keep::own(api, &machine.name_any(), owner).await? else {
        let mut made = wanted;
        made.metadata.owner_references = Some(vec![owner.clone()]);
        return api.create(&PostParams::default(), &made).await.map_err(|error| KeepError::from(error).into());
    };
    if found.spec.cluster_name != wanted.spec.cluster_name {
        let reason = format!(
            "it is a machine of the cluster {}, and stays in it: make another Machine",
            found.spec.cluster_name
        );
        return Err(MachineError::Waits(reason));
    }
    let is_plane = |object: &LCMMachine| object.labels().contains_key(LABEL_CONTROL_PLANE);
    if is_plane(&found) != is_plane(&wanted) {
        let reason =
            format!("the label {LABEL_CONTROL_PLANE} has changed, and a machine stays what it is in its cluster");
        return Err(MachineError::Waits(reason));
    }
    match missing(&json!(found), &json!(wanted)) {
        Some(patch) => Ok(change(api, &found, patch).await?),
        None => Ok(found),
    }
}

fn wanted(machine: &Machine, cluster: &LCMCluster, wish: &MachineWish, system: &str) -> LCMMachine {
    let name = machine.name_any();
    let of_machine = |key: &str| machine.labels().get(key).map(|value| (key.to_owned(), value.clone()));
    let labels = [LABEL_CLUSTER, LABEL_CONTROL_PLANE].into_iter().filter_map(of_machine).collect();
    let index = wish.upgrade_index.map(|index| (ANNOTATION_INDEX.to_owned(), index.to_string()));
    let spec = LCMMachineSpec {
        cluster_name: cluster.name_any(),
        service_account: names::agent(&name),
        state_items_overwrites: overwrites(machine, cluster, wish),
        maintenance: wish.maintenance,
        distribution: system.to_owned(),
        update_group: machine.labels().get(LABEL_UPDATE_GROUP).cloned().unwrap_or_default(),
        interface: wish.interface.clone(),
        cidr: wish.cidr.clone(),
        ..LCMMachineSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: machine.namespace(),
        labels: Some(labels),
        annotations: index.map(|index| BTreeMap::from([index])),
        ..ObjectMeta::default()
    };
    LCMMachine { metadata, spec, status: None }
}

/// Labels of the node, for those steps that ask for them: which have the parameter in the release.
fn overwrites(
    machine: &Machine,
    cluster: &LCMCluster,
    wish: &MachineWish,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let role = if machine.labels().contains_key(LABEL_CONTROL_PLANE) { "control" } else { "worker" };
    let steps = cluster.spec.machine_types.get(role).into_iter().flatten();
    let asking = steps.filter(|step| step.params.contains_key(PARAM_NODE_LABELS));
    let param = || BTreeMap::from([(PARAM_NODE_LABELS.to_owned(), machine_spec::label_text(wish))]);
    asking.map(|step| (step.name.clone(), param())).collect()
}

/// What makes an LCMMachine what is wanted of it: of the provider's fields only. Its place in the order goes when it is not said any more.
fn missing(found: &Value, wanted: &Value) -> Option<Value> {
    let mut spec = Map::new();
    for field in OURS {
        spec.extend(
            difference(&found["spec"][field], &wanted["spec"][field]).map(|other| ((*field).to_owned(), other)),
        );
    }
    let mut patch = Map::new();
    if !spec.is_empty() {
        patch.insert("spec".to_owned(), spec.into());
    }
    let index = |object: &Value| object["metadata"]["annotations"][ANNOTATION_INDEX].clone();
    if index(found) != index(wanted) {
        patch.insert("metadata".to_owned(), json!({"annotations": {ANNOTATION_INDEX: index(wanted)}}));
    }
    (!patch.is_empty()).then(|| json!(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(labels: Value) -> Machine {
        serde_json::from_value(json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "rack", "labels": labels}, "spec": {"providerSpec": {}}}))
        .unwrap()
    }

    fn cluster() -> LCMCluster {
        serde_json::from_value(
            json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster", "metadata": {"name": "edge"},
            "spec": {"machineTypes": {
                "control": [{"name": "label", "params": {"nodeLabels": "", "script": "x"}}, {"name": "join"}],
                "worker": [{"name": "join"}],
            }}}),
        )
        .unwrap()
    }

    #[test]
    fn it_is_empty_but_for_what_the_machine_says() {
        let wish = MachineWish {
            upgrade_index: Some(3),
            node_labels: vec![("role".into(), "db".into())],
            ..MachineWish::default()
        };
        let labels =
            json!({LABEL_CLUSTER: "edge", LABEL_CONTROL_PLANE: "true", LABEL_UPDATE_GROUP: "db", "other": "x"});
        let made = json!(wanted(&machine(labels), &cluster(), &wish, "ubuntu/noble"));
        assert_eq!(made["metadata"]["labels"], json!({LABEL_CLUSTER: "edge", LABEL_CONTROL_PLANE: "true"}));
        assert_eq!(made["metadata"]["annotations"], json!({ANNOTATION_INDEX: "3"}));
        let spec = json!({"clusterName": "edge", "serviceAccount": "lcm-m", "distribution": "ubuntu/noble", "updateGroup": "db", "maintenance": false,
            "rebootRequired": false, "haltAgent": false, "prepareDeletion": false, "forceDeletion": false,
            "stateItemsOverwrites": {"label": {"nodeLabels": "role=db"}}});
        assert_eq!(made["spec"], spec);
        // No step of workers asks for labels.
        let worker = wanted(&machine(json!({LABEL_CLUSTER: "edge"})), &cluster(), &wish, "");
        assert!(worker.spec.state_items_overwrites.is_empty() && worker.labels().len() == 1);
    }

    #[test]
    fn only_the_providers_fields_are_written() {
        let found = json!({"metadata": {"annotations": {ANNOTATION_INDEX: "1", "other": "x"}},
            "spec": {"clusterName": "edge", "type": "worker", "stateItems": [{"name": "a"}], "maintenance": false, "release": "r1"}});
        let same = json!({"metadata": {"annotations": {ANNOTATION_INDEX: "1"}}, "spec": {"maintenance": false}});
        assert_eq!(missing(&found, &same), None);
        let other = json!({"metadata": {}, "spec": {"maintenance": true, "distribution": "d"}});
        let patch = json!({"spec": {"maintenance": true, "distribution": "d"}, "metadata": {"annotations": {ANNOTATION_INDEX: null}}});
        assert_eq!(missing(&found, &other), Some(patch));
    }
}

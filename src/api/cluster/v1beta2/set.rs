//! MachineSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MachineSpec;
use crate::api::cluster::{
    DeletionOrder, MachineNaming, OldReplicaStatus, TemplateMeta, VersionCount, conditions, version_counts,
};

/// Machines that are alike: what they should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineSet",
    plural = "machinesets",
    singular = "machineset",
    shortname = "ms",
    category = "cluster-api",
    namespaced,
    status = "MachineSetStatus",
    scale = r#"{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}"#,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterName","description":"Cluster of the machines"}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".spec.replicas","description":"Machines wished for"}"#,
    printcolumn = r#"{"name":"Current","type":"integer","jsonPath":".status.replicas","description":"Machines that are there"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas","description":"Machines that are ready"}"#,
    printcolumn = r#"{"name":"Available","type":"integer","jsonPath":".status.availableReplicas","description":"Machines that have been ready for long enough"}"#,
    printcolumn = r#"{"name":"Up-to-date","type":"integer","jsonPath":".status.upToDateReplicas","description":"Machines that are as they should be"}"#,
    printcolumn = r#"{"name":"Paused","type":"string","jsonPath":".status.conditions[?(@.type==\"Paused\")].status","description":"Whether nothing is done about it","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.template.spec.version","description":"Version of Kubernetes"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.clusterName == oldSelf.clusterName", "message": "clusterName cannot be changed"},
    {"rule": "self.selector == oldSelf.selector", "message": "selector cannot be changed"},
    {"rule": "self.template.spec.clusterName == self.clusterName", "message": "the template is of another cluster"}
]))]
pub struct MachineSetSpec {
    /// Name of the cluster.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Machines wished for; 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// How machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming: Option<MachineNaming>,
    /// Which machines are its own.
    #[schemars(extend("x-kubernetes-map-type" = "atomic", "x-kubernetes-validations" = crate::api::cluster::bounded_selector()))]
    pub selector: LabelSelector,
    /// What a machine is like.
    pub template: MachineTemplateSpec,
    /// Which machines go first when there are too many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<SetDeletion>,
}

/// What a machine is like that is made for others.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineTemplateSpec {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMeta>,
    /// What it should be. Both references are to templates.
    pub spec: MachineSpec,
}

/// Which machines go first when there are too many.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct SetDeletion {
    /// By which order; at random when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<DeletionOrder>,
}

/// Machines that are alike: what they are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The selector as text, for who scales it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub selector: Option<String>,
    /// Machines that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Machines that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines that have been ready for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// Versions that machines have, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "version_counts")]
    pub versions: Vec<VersionCount>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<DeprecatedReplicaStatus>,
}

/// What a status with counted machines keeps of v1beta1.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct DeprecatedReplicaStatus {
    /// Of v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<OldReplicaStatus>,
}

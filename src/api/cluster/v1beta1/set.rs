//! MachineSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MachineSpec;
use crate::api::cluster::{
    DeletionOrder, MachineNaming, NewReplicaStatus, OldCondition, TemplateMeta, VersionCount, version_counts,
};

/// Machines that are alike: what they should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta1",
    kind = "MachineSet",
    plural = "machinesets",
    singular = "machineset",
    shortname = "ms",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "MachineSetStatus",
    scale = r#"{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}"#,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterName","description":"Cluster of the machines"}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".spec.replicas","description":"Machines wished for","priority":10}"#,
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".status.replicas","description":"Machines that are there"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas","description":"Machines whose node is ready"}"#,
    printcolumn = r#"{"name":"Available","type":"integer","jsonPath":".status.availableReplicas","description":"Machines whose node has been ready for long enough"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.template.spec.version","description":"Version of Kubernetes"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.clusterName == oldSelf.clusterName", "message": "clusterName cannot be changed"},
    {"rule": "self.selector == oldSelf.selector", "message": "selector cannot be changed"},
    {"rule": "!has(self.template) || self.template.spec.clusterName == self.clusterName", "message": "the template is of another cluster"}
]))]
pub struct MachineSetSpec {
    /// Name of the cluster.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Machines wished for; 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Seconds that a machine's node must be ready to count as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,
    /// Which machines go first when there are too many; at random when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_policy: Option<DeletionOrder>,
    /// Which machines are its own.
    #[schemars(extend("x-kubernetes-map-type" = "atomic", "x-kubernetes-validations" = crate::api::cluster::bounded_selector()))]
    pub selector: LabelSelector,
    /// What a machine is like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<MachineTemplateSpec>,
    /// How machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming_strategy: Option<MachineNaming>,
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

/// Machines that are alike: what they are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetStatus {
    /// The selector as text, for who scales it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub selector: Option<String>,
    /// Machines that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Machines with all labels of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fully_labeled_replicas: Option<i32>,
    /// Machines whose node is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines whose node has been ready for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Fault that nobody will mend, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The same, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10240))]
    pub failure_message: Option<String>,
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// Versions that machines have, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "version_counts")]
    pub versions: Vec<VersionCount>,
    /// What v1beta2 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<NewReplicaStatus>,
}

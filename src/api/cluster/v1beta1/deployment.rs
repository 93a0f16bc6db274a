//! MachineDeployment.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MachineTemplateSpec;
use crate::api::cluster::{
    DeletionOrder, DeploymentPhase, MachineNaming, NewReplicaStatus, OldCondition, RolloutType, VersionCount,
    version_counts,
};

/// Machines that are alike, and are replaced when what they should be changes.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta1",
    kind = "MachineDeployment",
    plural = "machinedeployments",
    singular = "machinedeployment",
    shortname = "md",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "MachineDeploymentStatus",
    scale = r#"{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}"#,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterName","description":"Cluster of the machines"}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".spec.replicas","description":"Machines wished for","priority":10}"#,
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".status.replicas","description":"Machines that are there"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas","description":"Machines whose node is ready"}"#,
    printcolumn = r#"{"name":"Updated","type":"integer","jsonPath":".status.updatedReplicas","description":"Machines that are as they should be"}"#,
    printcolumn = r#"{"name":"Unavailable","type":"integer","jsonPath":".status.unavailableReplicas","description":"Machines that lack"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"What is done about it"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.template.spec.version","description":"Version of Kubernetes"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.clusterName == oldSelf.clusterName", "message": "clusterName cannot be changed"},
    {"rule": "self.selector == oldSelf.selector", "message": "selector cannot be changed"},
    {"rule": "self.template.spec.clusterName == self.clusterName", "message": "the template is of another cluster"}
]))]
pub struct MachineDeploymentSpec {
    /// Name of the cluster.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Machines wished for; 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// All machines are replaced that are older than this, once it has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_after: Option<Time>,
    /// Which machines are its own.
    #[schemars(extend("x-kubernetes-map-type" = "atomic", "x-kubernetes-validations" = crate::api::cluster::bounded_selector()))]
    pub selector: LabelSelector,
    /// What a machine is like.
    pub template: MachineTemplateSpec,
    /// How machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<MachineDeploymentStrategy>,
    /// How machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming_strategy: Option<MachineNaming>,
    /// Seconds that a machine's node must be ready to count as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,
    /// Kept as it is given; old MachineSets go when they have no machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Whether machines are not replaced for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Kept as it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

/// How machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentStrategy {
    /// By the appliance, or by whoever deletes them.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RolloutType>,
    /// How many at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<MachineRollingUpdate>,
    /// How machines that fail are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<RemediationStrategy>,
}

/// How many machines are replaced at once: numbers, or parts of those wished for (`25%`).
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineRollingUpdate {
    /// Machines that may lack; 0 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Machines that may be there besides; 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Which machines go first when there are too many; at random when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_policy: Option<DeletionOrder>,
}

/// How machines that fail are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RemediationStrategy {
    /// Of the machines wished for, so many at once; all when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<IntOrString>,
}

/// Machines that are replaced: what they are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentStatus {
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The selector as text, for who scales it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub selector: Option<String>,
    /// Machines that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Machines whose node is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines whose node has been ready for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines that lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,
    /// What is done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DeploymentPhase>,
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

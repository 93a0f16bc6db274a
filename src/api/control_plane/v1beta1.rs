//! `controlplane.cluster.x-k8s.io/v1beta1`, served for the manifests and clients that there are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ControlPlaneMachineNaming, ControlPlaneRollingUpdate, RolloutStrategyType};
use crate::api::bootstrap::v1beta1::KubeadmConfigSpec;
use crate::api::cluster::v1beta2::MachineTaint;
use crate::api::cluster::{ConditionGate, OldCondition, TemplateMeta, VersionCount, conditions, gates, version_counts};
use crate::api::metal3::ObjectReference;

/// A control plane that kubeadm makes: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "KubeadmControlPlane",
    plural = "kubeadmcontrolplanes",
    singular = "kubeadmcontrolplane",
    shortname = "kcp",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "KubeadmControlPlaneStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.x-k8s\\.io/cluster-name","description":"Cluster of the control plane"}"#,
    printcolumn = r#"{"name":"Initialized","type":"boolean","jsonPath":".status.initialized","description":"Whether its API server has answered"}"#,
    printcolumn = r#"{"name":"API Server Available","type":"boolean","jsonPath":".status.ready","description":"Whether its API server takes requests"}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".spec.replicas","description":"Machines wished for","priority":10}"#,
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".status.replicas","description":"Machines that are there"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas","description":"Machines whose nodes are ready"}"#,
    printcolumn = r#"{"name":"Updated","type":"integer","jsonPath":".status.updatedReplicas","description":"Machines that are as they should be"}"#,
    printcolumn = r#"{"name":"Unavailable","type":"integer","jsonPath":".status.unavailableReplicas","description":"Machines whose nodes are not ready"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.version","description":"Version of Kubernetes"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmControlPlaneSpec {
    /// Machines wished for; 1 when unset. Where etcd runs on them an odd number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Version of Kubernetes, `v` in front.
    #[schemars(length(min = 1, max = 256))]
    pub version: String,
    /// How its machines are.
    pub machine_template: MachineTemplate,
    /// How kubeadm makes them.
    pub kubeadm_config_spec: KubeadmConfigSpec,
    /// Before what machines are replaced by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_before: Option<RolloutBefore>,
    /// Machines that are older are replaced once this time has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_after: Option<Time>,
    /// How machines are replaced by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}))]
    pub rollout_strategy: Option<ControlPlaneRolloutStrategy>,
    /// How unhealthy machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation_strategy: Option<ControlPlaneRemediationStrategy>,
    /// How its machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming_strategy: Option<ControlPlaneMachineNaming>,
}

/// How machines of a control plane are. Timeouts are durations, of which zero means without end.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineTemplate {
    /// Labels and annotations that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMeta>,
    /// Template of what they run on.
    pub infrastructure_ref: ObjectReference,
    /// Further conditions that count for a machine's `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "gates")]
    pub readiness_gates: Vec<ConditionGate>,
    /// Time for draining the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_timeout: Option<String>,
    /// Time for letting go of the node's volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_volume_detach_timeout: Option<String>,
    /// Time for deleting the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_deletion_timeout: Option<String>,
    /// Taints that their nodes are to have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1, "maxItems" = 64,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]
    ))]
    pub taints: Vec<MachineTaint>,
}

/// Before what machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutBefore {
    /// Days before their certificates end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_days: Option<i32>,
}

/// How machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneRolloutStrategy {
    /// In which way.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RolloutStrategyType>,
    /// How, where it is one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<ControlPlaneRollingUpdate>,
}

/// How unhealthy machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneRemediationStrategy {
    /// Replacements that may become unhealthy in turn; without end when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retry: Option<i32>,
    /// Time before the replacement of a replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<String>,
    /// Time after which a trouble is a new one; an hour when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_healthy_period: Option<String>,
}

/// A control plane that kubeadm makes: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmControlPlaneStatus {
    /// Labels of its machines, as a query has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub selector: Option<String>,
    /// Machines that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Oldest version that a machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub version: Option<String>,
    /// Versions that its machines have, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "version_counts")]
    pub versions: Vec<VersionCount>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Machines whose nodes are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines whose nodes are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,
    /// The API server has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialized: Option<bool>,
    /// The API server takes requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Fault that nobody will mend, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The same, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10240))]
    pub failure_message: Option<String>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// The unhealthy machine that was replaced last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_remediation: Option<LastRemediation>,
    /// What v1beta2 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<NewStatus>,
}

/// The unhealthy machine that was replaced last.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastRemediation {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub machine: String,
    /// When.
    pub timestamp: Time,
    /// Replacements before that became unhealthy in turn.
    pub retry_count: i32,
}

/// Fields of a status in v1beta2 that v1beta1 shows apart.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NewStatus {
    /// Conditions of the new form, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Machines that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines that are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
}

/// A template of control planes, for classes of clusters.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "KubeadmControlPlaneTemplate",
    plural = "kubeadmcontrolplanetemplates",
    singular = "kubeadmcontrolplanetemplate",
    category = "cluster-api",
    namespaced,
    deprecated,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
pub struct KubeadmControlPlaneTemplateSpec {
    /// The template.
    pub template: ControlPlaneTemplate,
}

/// A control plane as a template has it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ControlPlaneTemplate {
    /// Labels and annotations that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMeta>,
    /// What it should be.
    pub spec: ControlPlaneTemplateSpec,
}

/// A control plane as a template has it: without machines and version, which the cluster says.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneTemplateSpec {
    /// How its machines are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_template: Option<TemplateMachineTemplate>,
    /// How kubeadm makes them.
    pub kubeadm_config_spec: KubeadmConfigSpec,
    /// Before what machines are replaced by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_before: Option<RolloutBefore>,
    /// Machines that are older are replaced once this time has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_after: Option<Time>,
    /// How machines are replaced by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}))]
    pub rollout_strategy: Option<ControlPlaneRolloutStrategy>,
    /// How unhealthy machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation_strategy: Option<ControlPlaneRemediationStrategy>,
    /// How its machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming_strategy: Option<ControlPlaneMachineNaming>,
}

/// How machines are, in a template of control planes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMachineTemplate {
    /// Labels and annotations that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMeta>,
    /// Time for draining the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_timeout: Option<String>,
    /// Time for letting go of the node's volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_volume_detach_timeout: Option<String>,
    /// Time for deleting the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_deletion_timeout: Option<String>,
    /// Taints that their nodes are to have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1, "maxItems" = 64,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]
    ))]
    pub taints: Vec<MachineTaint>,
}

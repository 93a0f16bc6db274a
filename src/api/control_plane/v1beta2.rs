//! `controlplane.cluster.x-k8s.io/v1beta2`, the version that objects are stored in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ControlPlaneMachineNaming, ControlPlaneRollingUpdate, RolloutStrategyType};
use crate::api::bootstrap::v1beta2::KubeadmConfigSpec;
use crate::api::cluster::v1beta2::{ContractReference, MachineTaint};
use crate::api::cluster::{ConditionGate, OldCondition, TemplateMeta, VersionCount, conditions, gates, version_counts};

/// A control plane that kubeadm makes: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmControlPlane",
    plural = "kubeadmcontrolplanes",
    singular = "kubeadmcontrolplane",
    shortname = "kcp",
    category = "cluster-api",
    namespaced,
    status = "KubeadmControlPlaneStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.x-k8s\\.io/cluster-name","description":"Cluster of the control plane"}"#,
    printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status","description":"Whether the control plane can be used"}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".spec.replicas","description":"Machines wished for"}"#,
    printcolumn = r#"{"name":"Current","type":"integer","jsonPath":".status.replicas","description":"Machines that are there"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas","description":"Machines that are ready"}"#,
    printcolumn = r#"{"name":"Available","type":"integer","jsonPath":".status.availableReplicas","description":"Machines that are available"}"#,
    printcolumn = r#"{"name":"Up-to-date","type":"integer","jsonPath":".status.upToDateReplicas","description":"Machines that are as they should be"}"#,
    printcolumn = r#"{"name":"Paused","type":"string","jsonPath":".status.conditions[?(@.type==\"Paused\")].status","description":"Whether nothing is done about it","priority":10}"#,
    printcolumn = r#"{"name":"Initialized","type":"boolean","jsonPath":".status.initialization.controlPlaneInitialized","description":"Whether its API server has answered"}"#,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeadm_config_spec: Option<KubeadmConfigSpec>,
    /// When and how machines are replaced by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<ControlPlaneRollout>,
    /// How unhealthy machines are replaced.
    #[serde(default, rename = "remediation", skip_serializing_if = "Option::is_none")]
    pub remediation: Option<RemediationRules>,
    /// How its machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub machine_naming: Option<ControlPlaneMachineNaming>,
}

/// How machines of a control plane are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineTemplate {
    /// Labels and annotations that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub metadata: Option<TemplateMeta>,
    /// What else.
    pub spec: ControlPlaneMachineTemplateSpec,
}

/// How machines of a control plane are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneMachineTemplateSpec {
    /// Template of what they run on.
    pub infrastructure_ref: ContractReference,
    /// Further conditions that count for a machine's `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "gates")]
    pub readiness_gates: Vec<ConditionGate>,
    /// How they are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<ControlPlaneMachineDeletion>,
    /// Taints that their nodes are to have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1, "maxItems" = 64,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]
    ))]
    pub taints: Vec<MachineTaint>,
}

/// How machines are deleted. Zero means without end.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneMachineDeletion {
    /// Seconds for draining the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_drain_timeout_seconds: Option<i32>,
    /// Seconds for letting go of the node's volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_volume_detach_timeout_seconds: Option<i32>,
    /// Seconds for deleting the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// When and how machines are replaced by others.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneRollout {
    /// Before something happens to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<RolloutBefore>,
    /// Machines that are older are replaced once this time has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
    /// How.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<ControlPlaneRolloutStrategy>,
}

/// Before what machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RolloutBefore {
    /// Days before their certificates end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 7))]
    pub certificates_expiry_days: Option<i32>,
}

/// How machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneRolloutStrategy {
    /// In which way.
    #[serde(rename = "type")]
    pub type_: RolloutStrategyType,
    /// How, where it is one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub rolling_update: Option<ControlPlaneRollingUpdate>,
}

/// How unhealthy machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RemediationRules {
    /// Replacements that may become unhealthy in turn; without end when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retry: Option<i32>,
    /// Seconds before the replacement of a replacement; none when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub retry_period_seconds: Option<i32>,
    /// Seconds after which a trouble is a new one; an hour when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_healthy_period_seconds: Option<i32>,
}

/// A control plane that kubeadm makes: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmControlPlaneStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// What is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ControlPlaneInitialization>,
    /// Labels of its machines, as a query has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub selector: Option<String>,
    /// Machines that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Machines that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines that are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// Versions that its machines have, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "version_counts")]
    pub versions: Vec<VersionCount>,
    /// Oldest version that a machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub version: Option<String>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// The unhealthy machine that was replaced last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_remediation: Option<LastRemediation>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<Deprecated>,
}

/// What of a control plane is done once, and stays done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneInitialization {
    /// The API server has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

/// The unhealthy machine that was replaced last.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastRemediation {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub machine: String,
    /// When.
    pub time: Time,
    /// Replacements before that became unhealthy in turn.
    #[schemars(range(min = 0))]
    pub retry_count: i32,
}

/// What a status in v1beta2 keeps of v1beta1.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Deprecated {
    /// Of v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<ControlPlaneDeprecatedStatus>,
}

/// Fields of a status in v1beta1 that v1beta2 no longer has.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneDeprecatedStatus {
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// Fault that nobody will mend, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The same, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub failure_message: Option<String>,
    /// Machines that are as they should be.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Machines whose nodes are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Machines whose nodes are not.
    #[serde(default)]
    pub unavailable_replicas: i32,
}

/// A template of control planes, for classes of clusters.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmControlPlaneTemplate",
    plural = "kubeadmcontrolplanetemplates",
    singular = "kubeadmcontrolplanetemplate",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"ClusterClass","type":"string","jsonPath":".metadata.ownerReferences[?(@.kind==\"ClusterClass\")].name","description":"Class that the template is of"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
pub struct KubeadmControlPlaneTemplateSpec {
    /// The template.
    pub template: ControlPlaneTemplate,
}

/// A control plane as a template has it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTemplate {
    /// Labels and annotations that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub metadata: Option<TemplateMeta>,
    /// What it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ControlPlaneTemplateSpec>,
}

/// A control plane as a template has it: without machines and version, which the cluster says.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTemplateSpec {
    /// How its machines are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_template: Option<TemplateMachineTemplate>,
    /// How kubeadm makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeadm_config_spec: Option<KubeadmConfigSpec>,
    /// When and how machines are replaced by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<ControlPlaneRollout>,
    /// How unhealthy machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<RemediationRules>,
    /// How its machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub machine_naming: Option<ControlPlaneMachineNaming>,
}

/// How machines are, in a template of control planes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct TemplateMachineTemplate {
    /// Labels and annotations that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub metadata: Option<TemplateMeta>,
    /// What else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<TemplateMachineTemplateSpec>,
}

/// How machines are, in a template of control planes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct TemplateMachineTemplateSpec {
    /// How they are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<ControlPlaneMachineDeletion>,
    /// Taints that their nodes are to have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1, "maxItems" = 64,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]
    ))]
    pub taints: Vec<MachineTaint>,
}

//! `cluster.x-k8s.io/v1beta2`, the version that objects are stored in.

mod deployment;
mod health_check;
mod set;

use k8s_openapi::api::core::v1::NodeSystemInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ApiEndpoint, ClusterNetwork, ConditionGate, DeprecatedStatus, FailureDomain, LABEL, MachineAddress,
    MachineDeletionStatus, ReplicaCounts, SUBDOMAIN, conditions, failure_domains, gates,
};

pub use deployment::*;
pub use health_check::*;
pub use set::*;

/// A Kubernetes cluster: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Cluster",
    plural = "clusters",
    singular = "cluster",
    shortname = "cl",
    category = "cluster-api",
    namespaced,
    status = "ClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"ClusterClass","type":"string","jsonPath":".spec.topology.classRef.name","description":"Class, for clusters that have one"}"#,
    printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status","description":"Whether the cluster can be used"}"#,
    printcolumn = r#"{"name":"CP Desired","type":"integer","jsonPath":".status.controlPlane.desiredReplicas","description":"Control plane machines wished for"}"#,
    printcolumn = r#"{"name":"CP Current","type":"integer","jsonPath":".status.controlPlane.replicas","description":"Control plane machines that are there","priority":10}"#,
    printcolumn = r#"{"name":"CP Ready","type":"integer","jsonPath":".status.controlPlane.readyReplicas","description":"Control plane machines that are ready","priority":10}"#,
    printcolumn = r#"{"name":"CP Available","type":"integer","jsonPath":".status.controlPlane.availableReplicas","description":"Control plane machines that are available"}"#,
    printcolumn = r#"{"name":"CP Up-to-date","type":"integer","jsonPath":".status.controlPlane.upToDateReplicas","description":"Control plane machines that are as they should be"}"#,
    printcolumn = r#"{"name":"W Desired","type":"integer","jsonPath":".status.workers.desiredReplicas","description":"Workers wished for"}"#,
    printcolumn = r#"{"name":"W Current","type":"integer","jsonPath":".status.workers.replicas","description":"Workers that are there","priority":10}"#,
    printcolumn = r#"{"name":"W Ready","type":"integer","jsonPath":".status.workers.readyReplicas","description":"Workers that are ready","priority":10}"#,
    printcolumn = r#"{"name":"W Available","type":"integer","jsonPath":".status.workers.availableReplicas","description":"Workers that are available"}"#,
    printcolumn = r#"{"name":"W Up-to-date","type":"integer","jsonPath":".status.workers.upToDateReplicas","description":"Workers that are as they should be"}"#,
    printcolumn = r#"{"name":"Paused","type":"string","jsonPath":".status.conditions[?(@.type==\"Paused\")].status","description":"Whether nothing is done about it","priority":10}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"Where the cluster is in its life"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.topology.version","description":"Version of Kubernetes, for clusters of a class"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterSpec {
    /// Whether nothing is to be done about the cluster and what belongs to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Networks inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<ClusterNetwork>,
    /// Where its API server is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ApiEndpoint>,
    /// Object that makes the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref: Option<ContractReference>,
    /// Object that makes what the cluster runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ContractReference>,
    /// How a cluster of a class is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Conditions that count for `Available`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "gates")]
    pub availability_gates: Vec<ConditionGate>,
}

/// An object of another room of Cluster API, in the namespace of the one that names it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractReference {
    /// Its kind.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub kind: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
    /// Its group. The version is the one that both sides know.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub api_group: String,
}

/// How a cluster of a class is made. The rest of it, which may be large, is kept in the object as it is given: nobody here acts on it,
/// so it is not read.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Topology {
    /// The class.
    pub class_ref: ClassReference,
    /// Version of Kubernetes.
    #[schemars(length(min = 1, max = 256))]
    pub version: String,
}

/// A class of clusters.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ClassReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
    /// Its namespace; the cluster's own when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL))]
    pub namespace: Option<String>,
}

/// A Kubernetes cluster: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// What is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ClusterInitialization>,
    /// Machines of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ReplicaCounts>,
    /// Other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<ReplicaCounts>,
    /// Where its machines may be, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "failure_domains")]
    pub failure_domains: Vec<FailureDomain>,
    /// Where the cluster is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Pending", "Provisioning", "Provisioned", "Deleting", "Failed", "Unknown"]))]
    pub phase: Option<String>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<DeprecatedStatus>,
}

/// What of a cluster is done once, and stays done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterInitialization {
    /// What the cluster runs on is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
    /// The API server answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

/// A machine of a cluster: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    plural = "machines",
    singular = "machine",
    shortname = "ma",
    category = "cluster-api",
    namespaced,
    status = "MachineStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterName","description":"Cluster of the machine"}"#,
    printcolumn = r#"{"name":"Node Name","type":"string","jsonPath":".status.nodeRef.name","description":"Node that the machine is"}"#,
    printcolumn = r#"{"name":"Provider ID","type":"string","jsonPath":".spec.providerID","description":"Identity of the machine at its provider","priority":10}"#,
    printcolumn = r#"{"name":"Failure domain","type":"string","jsonPath":".status.failureDomain","description":"Where the machine is"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether the machine is ready"}"#,
    printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status","description":"Whether it has been ready for long enough"}"#,
    printcolumn = r#"{"name":"Up-to-date","type":"string","jsonPath":".status.conditions[?(@.type==\"UpToDate\")].status","description":"Whether it is as its owner wants it"}"#,
    printcolumn = r#"{"name":"Internal-IP","type":"string","jsonPath":".status.addresses[?(@.type==\"InternalIP\")].address","description":"Address inside","priority":10}"#,
    printcolumn = r#"{"name":"External-IP","type":"string","jsonPath":".status.addresses[?(@.type==\"ExternalIP\")].address","description":"Address from outside","priority":10}"#,
    printcolumn = r#"{"name":"OS-Image","type":"string","jsonPath":".status.nodeInfo.osImage","description":"Operating system of the node","priority":10}"#,
    printcolumn = r#"{"name":"Paused","type":"string","jsonPath":".status.conditions[?(@.type==\"Paused\")].status","description":"Whether nothing is done about it","priority":10}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"Where the machine is in its life"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.version","description":"Version of Kubernetes"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// Name of the cluster.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Where its user data comes from.
    #[schemars(extend("x-kubernetes-validations" = [{"rule": "has(self.configRef) || has(self.dataSecretName)", "message": "either configRef or dataSecretName is required"}]))]
    pub bootstrap: Bootstrap,
    /// Object that makes what the machine runs on.
    pub infrastructure_ref: ContractReference,
    /// Version of Kubernetes, `v` in front.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub version: Option<String>,
    /// Identity of the machine at its provider, as the node has it.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub provider_id: Option<String>,
    /// Where it is to be: a name of the cluster's status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
    /// Seconds that it must be ready to count as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,
    /// Conditions that count for `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "gates")]
    pub readiness_gates: Vec<ConditionGate>,
    /// How it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {"nodeDeletionTimeoutSeconds": 10}))]
    pub deletion: Option<MachineDeletion>,
    /// Taints that its node is to have, by key and effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1, "maxItems" = 64,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]
    ))]
    pub taints: Vec<MachineTaint>,
}

/// Where a machine's user data comes from.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// Object that makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<ContractReference>,
    /// Secret that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub data_secret_name: Option<String>,
}

/// How a machine is deleted. Zero means without end.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeletion {
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
    #[schemars(range(min = 0), extend("default" = 10))]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// What the key of a taint may be.
const TAINT_KEY: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";

/// A taint that a machine's node is to have.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineTaint {
    /// Its key.
    #[schemars(length(min = 1, max = 317), regex(pattern = TAINT_KEY))]
    pub key: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"))]
    pub value: Option<String>,
    /// What it does to pods.
    #[schemars(extend("enum" = ["NoSchedule", "PreferNoSchedule", "NoExecute"]))]
    pub effect: String,
    /// Whether it is put back when somebody takes it away.
    #[schemars(extend("enum" = ["Always", "OnInitialization"]))]
    pub propagation: String,
}

/// A machine of a cluster: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// What is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<MachineInitialization>,
    /// The node that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeReference>,
    /// What the node says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeSystemInfo>,
    /// When the phase changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<MachineAddress>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
    /// Where the machine is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [
        "Pending", "Provisioning", "Provisioned", "Running", "Updating", "Deleting", "Deleted", "Failed", "Unknown"
    ]))]
    pub phase: Option<String>,
    /// When the certificates of a control plane machine end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_date: Option<Time>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// How far its deletion is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionStatus>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<DeprecatedStatus>,
}

/// What of a machine is done once, and stays done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineInitialization {
    /// What the machine runs on is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
    /// The secret with the user data is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_data_secret_created: Option<bool>,
}

/// A node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct NodeReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
}

//! `cluster.k8s.io/v1alpha1`: Cluster and Machine of the Machine API, as Cluster API published it until 2019.
//!
//! `providerSpec.value` is of an API group of its own, by which whoever provides machines knows those that are its
//! (<https://github.com/kubernetes-sigs/cluster-api/tree/v0.1.10/pkg/apis/cluster/v1alpha1>).

use k8s_openapi::api::core::v1::{NodeAddress, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::metal3::{ObjectReference, any_object};

mod cluster;

pub use cluster::{
    CidrBlocks, Cluster, MachineApiClusterNetwork, MachineApiClusterSpec, MachineApiClusterStatus, MachineApiEndpoint,
};

/// The API group.
pub const GROUP: &str = "cluster.k8s.io";

/// A machine of whatever provider: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.k8s.io",
    version = "v1alpha1",
    kind = "Machine",
    plural = "machines",
    singular = "machine",
    shortname = "ma",
    namespaced,
    status = "MachineApiStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"ProviderID","type":"string","jsonPath":".spec.providerID","description":"Identity of the machine at its provider"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"How far the machine is"}"#,
    printcolumn = r#"{"name":"Host","type":"string","jsonPath":".metadata.annotations.metal3\\.io/BareMetalHost","description":"BareMetalHost that it has"}"#,
    printcolumn = r#"{"name":"NodeName","type":"string","jsonPath":".status.nodeRef.name","description":"Node that it is","priority":1}"#,
    printcolumn = r#"{"name":"Error","type":"string","jsonPath":".status.errorReason","description":"Fault that keeps it from going on"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct MachineApiSpec {
    /// Metadata of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub metadata: Option<Value>,
    /// Taints of its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// What its provider needs to know.
    #[serde(default)]
    pub provider_spec: ProviderSpec,
    /// Versions of what runs on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<MachineVersions>,
    /// Where its kubelet has its configuration from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub config_source: Option<Value>,
    /// Identity of the machine at its provider.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
}

/// What a machine's provider needs to know.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProviderSpec {
    /// An object of the provider's own kind; its `apiVersion` and `kind` say whose machine this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub value: Option<Value>,
    /// Where it is said instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub value_from: Option<Value>,
}

/// Versions of what runs on a machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineVersions {
    /// Version of the kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<String>,
    /// Version of the control plane; workers have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<String>,
}

/// A machine of whatever provider: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineApiStatus {
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<ObjectReference>,
    /// When this was written last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Versions of what runs on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<MachineVersions>,
    /// Fault that keeps it from going on, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_reason: Option<String>,
    /// The same, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// What its provider notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub provider_status: Option<Value>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// Conditions, as nodes have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<NodeCondition>,
    /// What was done last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub last_operation: Option<Value>,
    /// How far it is, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

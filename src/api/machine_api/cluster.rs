//! The Cluster of the Machine API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ProviderSpec;
use crate::api::metal3::any_object;

/// A cluster of whatever provider: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.k8s.io",
    version = "v1alpha1",
    kind = "Cluster",
    plural = "clusters",
    singular = "cluster",
    shortname = "cl",
    namespaced,
    status = "MachineApiClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Release","type":"string","jsonPath":".spec.providerSpec.value.release","description":"Release that it is to have"}"#,
    printcolumn = r#"{"name":"Ready","type":"boolean","jsonPath":".status.providerStatus.ready","description":"Whether it is as it is to be"}"#,
    printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.providerStatus.nodes.requested","description":"Nodes that are wanted"}"#,
    printcolumn = r#"{"name":"ReadyNodes","type":"integer","jsonPath":".status.providerStatus.nodes.ready","description":"Nodes that are ready"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What it waits for","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct MachineApiClusterSpec {
    /// Networks of pods and services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<MachineApiClusterNetwork>,
    /// What its provider needs to know.
    #[serde(default)]
    pub provider_spec: ProviderSpec,
}

/// Networks of a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineApiClusterNetwork {
    /// Of its services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<CidrBlocks>,
    /// Of its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<CidrBlocks>,
    /// Domain of its services.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_domain: String,
}

/// Networks, as `10.96.0.0/16`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CidrBlocks {
    /// One, or one of each IP version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub cidr_blocks: Vec<String>,
}

/// A cluster of whatever provider: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineApiClusterStatus {
    /// Where its API server is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_endpoints: Vec<MachineApiEndpoint>,
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
    /// `Ready`, and what it depends on, with times and reasons; `providerStatus.conditions` has them in the published form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Where an API server is reached.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineApiEndpoint {
    /// Name or address.
    #[serde(default)]
    pub host: String,
    /// TCP port.
    #[serde(default)]
    pub port: i32,
}

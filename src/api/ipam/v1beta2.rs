//! `ipam.cluster.x-k8s.io/v1beta2`, the version that objects are stored in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::cluster::{OldCondition, SUBDOMAIN, conditions};

/// A claim of an address of any provider's pool.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ipam.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "IPAddressClaim",
    plural = "ipaddressclaims",
    singular = "ipaddressclaim",
    category = "cluster-api",
    namespaced,
    status = "IPAddressClaimStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Pool Name","type":"string","jsonPath":".spec.poolRef.name","description":"Pool that the address is to be of"}"#,
    printcolumn = r#"{"name":"Pool Kind","type":"string","jsonPath":".spec.poolRef.kind","description":"Kind of the pool"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct IPAddressClaimSpec {
    /// Cluster that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: Option<String>,
    /// Pool of the claim's namespace that it wants an address of.
    pub pool_ref: PoolReference,
}

/// A pool of any provider, in the namespace of what refers to it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolReference {
    /// Its API group.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub api_group: String,
    /// Its kind.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub kind: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
}

/// An object of the same namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct NameReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
}

/// What became of a claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct IPAddressClaimStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// IPAddress that it got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_ref: Option<NameReference>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<ClaimDeprecatedStatus>,
}

/// What a claim's status keeps of v1beta1.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ClaimDeprecatedStatus {
    /// Of v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<OldConditions>,
}

/// Conditions of v1beta1.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct OldConditions {
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
}

/// An address that was given to a claim.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ipam.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "IPAddress",
    plural = "ipaddresses",
    singular = "ipaddress",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.address","description":"The address"}"#,
    printcolumn = r#"{"name":"Pool Name","type":"string","jsonPath":".spec.poolRef.name","description":"Pool that the address is of"}"#,
    printcolumn = r#"{"name":"Pool Kind","type":"string","jsonPath":".spec.poolRef.kind","description":"Kind of the pool"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct IPAddressSpec {
    /// Claim that it is for.
    pub claim_ref: NameReference,
    /// Pool that it is of.
    pub pool_ref: PoolReference,
    /// The address.
    #[schemars(length(min = 1, max = 39))]
    pub address: String,
    /// Length of the network's prefix.
    #[schemars(range(min = 0, max = 128))]
    pub prefix: i32,
    /// Router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 39))]
    pub gateway: Option<String>,
}

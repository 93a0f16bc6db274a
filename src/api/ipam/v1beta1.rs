//! `ipam.cluster.x-k8s.io/v1beta1`, served for the manifests and clients that there are.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LocalReference, TypedReference};
use crate::api::cluster::{NewConditions, OldCondition};

/// A claim of an address of any provider's pool.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ipam.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "IPAddressClaim",
    plural = "ipaddressclaims",
    singular = "ipaddressclaim",
    category = "cluster-api",
    namespaced,
    deprecated,
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
    pub pool_ref: TypedReference,
}

/// What became of a claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IPAddressClaimStatus {
    /// IPAddress that it got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_ref: Option<LocalReference>,
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// What v1beta2 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<NewConditions>,
}

/// An address that was given to a claim.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ipam.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "IPAddress",
    plural = "ipaddresses",
    singular = "ipaddress",
    category = "cluster-api",
    namespaced,
    deprecated,
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
    pub claim_ref: LocalReference,
    /// Pool that it is of.
    pub pool_ref: TypedReference,
    /// The address.
    #[schemars(length(min = 1, max = 39))]
    pub address: String,
    /// Length of the network's prefix.
    pub prefix: i64,
    /// Router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 39))]
    pub gateway: Option<String>,
}

//! `ipam.metal3.io/v1alpha1`: pools of addresses, claims of one, and the addresses that were given.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::metal3::ObjectReference;

/// The API group.
pub const GROUP: &str = "ipam.metal3.io";
/// Finalizer of a pool.
pub const FINALIZER_POOL: &str = "ippool.ipam.metal3.io";
/// Finalizer of a claim.
pub const FINALIZER_CLAIM: &str = "ipclaim.ipam.metal3.io";
/// Finalizer of an address.
pub const FINALIZER_ADDRESS: &str = "ipaddress.ipam.metal3.io";

/// How an address is written, nearly: IPv6 has too many forms for a pattern, so admission reads it.
pub(in crate::api) const ADDRESS: &str = r"^((([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\.){3}([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])|[0-9a-fA-F:]*:[0-9a-fA-F:]*)$";
/// The same with the length of a network's prefix.
const SUBNET: &str = r"^((([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\.){3}([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])/([0-9]|[1-2][0-9]|3[0-2])|[0-9a-fA-F:]*:[0-9a-fA-F:]*/([0-9]|[1-9][0-9]|1[0-1][0-9]|12[0-8]))$";

/// Addresses that machines may have.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ipam.metal3.io",
    version = "v1alpha1",
    kind = "IPPool",
    plural = "ippools",
    singular = "ippool",
    shortname = "ipp",
    shortname = "ippool",
    shortname = "m3ipp",
    shortname = "m3ippool",
    shortname = "m3ippools",
    shortname = "metal3ipp",
    shortname = "metal3ippool",
    shortname = "metal3ippools",
    category = "cluster-api",
    namespaced,
    status = "IPPoolStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.x-k8s\\.io/cluster-name","description":"Cluster that it is for"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolSpec {
    /// Cluster that it is for: it goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Ranges of addresses; one is used up before the next is begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<IPRange>,
    /// Addresses that are kept for claims of these names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "by_name")]
    pub pre_allocations: BTreeMap<String, String>,
    /// Length of the network's prefix, for ranges that say none.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 128))]
    pub prefix: i64,
    /// Router, for ranges that say none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = ADDRESS))]
    pub gateway: Option<String>,
    /// Name servers, for ranges that say none.
    #[serde(default, rename = "dnsServers", skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = ADDRESS)))]
    pub dns_servers: Vec<String>,
    /// What the names of its IPAddress objects begin with.
    #[schemars(length(min = 1))]
    pub name_prefix: String,
    /// Which of the free addresses of a range is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "sequential"))]
    pub allocation_strategy: Option<AllocationStrategy>,
}

/// Which of the free addresses of a range is given.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AllocationStrategy {
    /// The lowest.
    #[default]
    Sequential,
    /// Any.
    Random,
}

/// A range of addresses. It begins at `start`, or behind the first address of `subnet`, and ends at `end`, with `subnet`, or with
/// the last address there is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IPRange {
    /// First address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = ADDRESS))]
    pub start: Option<String>,
    /// Last address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = ADDRESS))]
    pub end: Option<String>,
    /// Network that all addresses are of, as `address/length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = SUBNET))]
    pub subnet: Option<String>,
    /// Length of the network's prefix.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 128))]
    pub prefix: i64,
    /// Router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = ADDRESS))]
    pub gateway: Option<String>,
    /// Name servers.
    #[serde(default, rename = "dnsServers", skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = ADDRESS)))]
    pub dns_servers: Vec<String>,
}

/// Which addresses of a pool are whose.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolStatus {
    /// When this changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Addresses, by the names of their claims.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "by_name")]
    pub indexes: BTreeMap<String, String>,
}

/// A claim of an address.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ipam.metal3.io",
    version = "v1alpha1",
    kind = "IPClaim",
    plural = "ipclaims",
    singular = "ipclaim",
    shortname = "ipc",
    shortname = "ipclaim",
    shortname = "m3ipc",
    shortname = "m3ipclaim",
    shortname = "m3ipclaims",
    shortname = "metal3ipc",
    shortname = "metal3ipclaim",
    shortname = "metal3ipclaims",
    category = "cluster-api",
    namespaced,
    status = "IPClaimStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
pub struct IPClaimSpec {
    /// IPPool of the claim's namespace that it wants an address of.
    pub pool: ObjectReference,
}

/// What became of a claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IPClaimStatus {
    /// IPAddress that it got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<ObjectReference>,
    /// Why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// An address that was given to a claim.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ipam.metal3.io",
    version = "v1alpha1",
    kind = "IPAddress",
    plural = "ipaddresses",
    singular = "ipaddress",
    shortname = "ipa",
    shortname = "ipaddress",
    shortname = "m3ipa",
    shortname = "m3ipaddress",
    shortname = "m3ipaddresses",
    shortname = "metal3ipa",
    shortname = "metal3ipaddress",
    shortname = "metal3ipaddresses",
    category = "metal3",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct IPAddressSpec {
    /// IPClaim that it is for.
    pub claim: ObjectReference,
    /// IPPool that it is of.
    pub pool: ObjectReference,
    /// Length of the network's prefix.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 128))]
    pub prefix: i64,
    /// Router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = ADDRESS))]
    pub gateway: Option<String>,
    /// The address.
    #[schemars(regex(pattern = ADDRESS))]
    pub address: String,
    /// Name servers.
    #[serde(default, rename = "dnsServers", skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = ADDRESS)))]
    pub dns_servers: Vec<String>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Addresses by name.
fn by_name(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": ADDRESS},
    })
}

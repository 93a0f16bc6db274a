//! `infrastructure.cluster.x-k8s.io/v1beta1`, served for the manifests and clients that there are: data for machines.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    BondHash, BondMode, EthernetLink, FromPool, INTERFACE, LinkNetworks, MacSource, MetaDataFromAnnotation,
    MetaDataFromLabel, MetaDataHostInterface, MetaDataIndex, MetaDataNamespace, MetaDataObjectName, MetaDataString,
    Services, VlanLink,
};
use crate::api::metal3::{ObjectReference, SecretReference};

/// From which the data of machines is made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "Metal3DataTemplate",
    plural = "metal3datatemplates",
    singular = "metal3datatemplate",
    shortname = "m3dt",
    shortname = "m3datatemplate",
    shortname = "m3datatemplates",
    shortname = "metal3dt",
    shortname = "metal3datatemplate",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "Metal3DataTemplateStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.x-k8s\\.io/cluster-name","description":"Cluster that it is for"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataTemplateSpec {
    /// Cluster that it is for.
    #[schemars(length(min = 1))]
    pub cluster_name: String,
    /// Deprecated: another name of the template.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub template_reference: String,
    /// Meta data. It does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<MetaData>,
    /// Network data. It does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<TemplateNetworkData>,
}

/// Meta data, of which later entries count more: interfaces, pools, indexes, namespaces, names, labels, annotations, texts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MetaData {
    /// Texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strings: Vec<MetaDataString>,
    /// Names of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub object_names: Vec<MetaDataObjectName>,
    /// The machine's index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<MetaDataIndex>,
    /// The namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<MetaDataNamespace>,
    /// Addresses.
    #[serde(default, rename = "ipAddressesFromIPPool", skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses_from_pool: Vec<FromPool>,
    /// Lengths of networks' prefixes.
    #[serde(default, rename = "prefixesFromIPPool", skip_serializing_if = "Vec::is_empty")]
    pub prefixes_from_pool: Vec<FromPool>,
    /// Routers.
    #[serde(default, rename = "gatewaysFromIPPool", skip_serializing_if = "Vec::is_empty")]
    pub gateways_from_pool: Vec<FromPool>,
    /// Name servers, joined by commas.
    #[serde(default, rename = "dnsServersFromIPPool", skip_serializing_if = "Vec::is_empty")]
    pub dns_servers_from_pool: Vec<FromPool>,
    /// MAC addresses of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_host_interfaces: Vec<MetaDataHostInterface>,
    /// Labels of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_labels: Vec<MetaDataFromLabel>,
    /// Annotations of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_annotations: Vec<MetaDataFromAnnotation>,
}

/// Network data.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct TemplateNetworkData {
    /// Links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<Links>,
    /// Networks on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<LinkNetworks>,
    /// Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Services>,
}

/// Links.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Links {
    /// Network cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub ethernets: Vec<EthernetLink>,
    /// Bonds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub bonds: Vec<BondLink>,
    /// VLANs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub vlans: Vec<VlanLink>,
}

/// Link: several network cards as one.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BondLink {
    /// How it uses its links.
    pub bond_mode: BondMode,
    /// What its hash is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond_xmit_hash_policy: Option<BondHash>,
    /// By which others refer to it.
    #[schemars(length(min = 1, max = 512))]
    pub id: String,
    /// Name that the interface gets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 15), regex(pattern = INTERFACE))]
    pub name: String,
    /// Largest packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 9000), extend("default" = 1500))]
    pub mtu: Option<i32>,
    /// MAC address that it gets.
    pub mac_address: MacSource,
    /// More of what the kernel's driver is told, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "anything_by_name")]
    pub parameters: BTreeMap<String, Value>,
    /// Links that it is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub bond_links: Vec<String>,
}

/// Which machines have which index.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataTemplateStatus {
    /// When this changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Indexes, by the names of claims.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub indexes: BTreeMap<String, i64>,
}

/// A claim of data for a machine.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "Metal3DataClaim",
    plural = "metal3dataclaims",
    singular = "metal3dataclaim",
    shortname = "m3dc",
    shortname = "m3dataclaim",
    shortname = "m3dataclaims",
    shortname = "metal3dc",
    shortname = "metal3dataclaim",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "Metal3DataClaimStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataClaimSpec {
    /// Metal3DataTemplate of the claim's namespace.
    pub template: ObjectReference,
}

/// What became of a claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataClaimStatus {
    /// Metal3Data that was made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendered_data: Option<ObjectReference>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// Data of a machine.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "Metal3Data",
    plural = "metal3datas",
    singular = "metal3data",
    shortname = "m3d",
    shortname = "m3data",
    shortname = "m3datas",
    shortname = "metal3d",
    shortname = "metal3data",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "Metal3DataStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataSpec {
    /// Index of the machine in its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub index: Option<i32>,
    /// Deprecated: another name of the template.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub template_reference: String,
    /// Secret with the meta data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<SecretReference>,
    /// Secret with the network data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<SecretReference>,
    /// Metal3DataClaim that it was made for.
    pub claim: ObjectReference,
    /// Metal3DataTemplate that it was made from.
    pub template: ObjectReference,
}

/// How far the data is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataStatus {
    /// Whether the Secrets are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// Anything by name.
fn anything_by_name(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true},
    })
}

//! `infrastructure.cluster.x-k8s.io/v1beta2`, the version that objects are stored in: data for machines.

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
use crate::api::cluster::by_key;
use crate::api::infrastructure::v1beta2::Metal3Reference;
use crate::api::metal3::SecretReference;

/// From which the data of machines is made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
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
    status = "Metal3DataTemplateStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.x-k8s\\.io/cluster-name","description":"Cluster that it is for"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataTemplateSpec {
    /// Deprecated: nobody goes by it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub cluster_name: String,
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
    #[schemars(schema_with = "by_key_of::<MetaDataString>")]
    pub strings: Vec<MetaDataString>,
    /// Names of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<MetaDataObjectName>")]
    pub object_names: Vec<MetaDataObjectName>,
    /// The machine's index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<MetaDataIndex>")]
    pub indexes: Vec<MetaDataIndex>,
    /// The namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<MetaDataNamespace>")]
    pub namespaces: Vec<MetaDataNamespace>,
    /// Addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<FromPool>")]
    pub ip_addresses_from_pool: Vec<FromPool>,
    /// Lengths of networks' prefixes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<FromPool>")]
    pub prefixes_from_pool: Vec<FromPool>,
    /// Routers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<FromPool>")]
    pub gateways_from_pool: Vec<FromPool>,
    /// Name servers, joined by commas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<FromPool>")]
    pub dns_servers_from_pool: Vec<FromPool>,
    /// MAC addresses of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<MetaDataHostInterface>")]
    pub from_host_interfaces: Vec<MetaDataHostInterface>,
    /// Labels of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<MetaDataFromLabel>")]
    pub from_labels: Vec<MetaDataFromLabel>,
    /// Annotations of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_key_of::<MetaDataFromAnnotation>")]
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
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.ethernets) || self.ethernets.all(link, !has(link.mtu) || link.mtu >= 1280)", "message": "mtu must be at least 1280", "fieldPath": ".ethernets"},
    {"rule": "!has(self.bonds) || self.bonds.all(link, !has(link.mtu) || link.mtu >= 1280)", "message": "mtu must be at least 1280", "fieldPath": ".bonds"},
    {"rule": "!has(self.vlans) || self.vlans.all(link, !has(link.mtu) || link.mtu >= 1280)", "message": "mtu must be at least 1280", "fieldPath": ".vlans"},
]))]
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub parameters: Vec<BondParameter>,
    /// Links that it is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub bond_links: Vec<String>,
}

/// Something that the kernel's driver of bonds is told.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct BondParameter {
    /// Its name, without `bond_`.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "anything")]
    pub value: Value,
}

/// Which machines have which index.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataTemplateStatus {
    /// When this changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Claims and their indexes, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "by_index")]
    pub indexes: Vec<IndexEntry>,
}

/// The index of a claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct IndexEntry {
    /// Name of the claim.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// Its index.
    #[schemars(range(min = 0))]
    pub index: i32,
}

/// A claim of data for a machine.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
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
    status = "Metal3DataClaimStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataClaimSpec {
    /// Metal3DataTemplate of the claim's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Metal3Reference>,
}

/// What became of a claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3DataClaimStatus {
    /// Metal3Data that was made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendered_data: Option<Metal3Reference>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub error_message: Option<String>,
}

/// Data of a machine.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
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
    /// Secret with the meta data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<SecretReference>,
    /// Secret with the network data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<SecretReference>,
    /// Metal3DataClaim that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Metal3Reference>,
    /// Metal3DataTemplate that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Metal3Reference>,
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
    #[schemars(length(min = 1, max = 512))]
    pub error_message: Option<String>,
}

fn anything(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// Entries by their keys in the meta data.
fn by_key_of<T: JsonSchema>(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    by_key::<T>(generator, "key", 512)
}

/// Indexes as a list by index: of as many machines as there are.
fn by_index(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    by_key::<IndexEntry>(generator, "index", 100_000)
}

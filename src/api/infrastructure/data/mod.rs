//! Data for machines: templates of meta data and network data, claims of them, and what was made. Both versions.
//!
//! What is alike in the two versions stands here; each has a file of its own, and [`convert`] says how one becomes the other.

pub mod convert;
pub mod v1beta1;
pub mod v1beta2;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::cluster::SUBDOMAIN;
use crate::api::ipam::metal3::ADDRESS;

/// Finalizer of a Metal3DataTemplate.
pub const FINALIZER_TEMPLATE: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
/// Finalizer of a Metal3DataClaim, and of the Metal3Data that was made for it.
pub const FINALIZER_CLAIM: &str = "metal3dataclaim.infrastructure.cluster.x-k8s.io";
/// Finalizer of a Metal3Data, and of the claims of addresses that were made for it.
pub const FINALIZER_DATA: &str = "metal3data.infrastructure.cluster.x-k8s.io";
/// Type of the Secrets with the data.
pub const SECRET_TYPE: &str = "infrastructure.cluster.x-k8s.io/secret";
/// Group of the pools that are meant where none is named.
pub const DEFAULT_POOL_GROUP: &str = "ipam.metal3.io";
/// Their kind.
pub const DEFAULT_POOL_KIND: &str = "IPPool";

/// What the name of a network interface may be.
const INTERFACE: &str = r"^[a-zA-Z][a-zA-Z0-9._-]*$";

/// Which of the objects that stand for a machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum MachineObject {
    /// The Machine of Cluster API.
    #[default]
    Machine,
    /// The Metal3Machine.
    Metal3Machine,
    /// The BareMetalHost that it runs on.
    BareMetalHost,
}

/// Meta data: a text.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MetaDataString {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
    /// The text.
    #[schemars(length(max = 512))]
    pub value: String,
}

/// Meta data: the name of an object.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MetaDataObjectName {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
    /// Which object.
    pub object: MachineObject,
}

/// Meta data: the machine's index, reckoned: prefix, offset + index × step, suffix.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MetaDataIndex {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
    /// What is added to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub offset: Option<i32>,
    /// By what it is multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 1))]
    pub step: Option<i32>,
    /// Text before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub prefix: String,
    /// Text behind it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub suffix: String,
}

/// Meta data: the namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MetaDataNamespace {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
}

/// Meta data: something of the address that the machine has of a pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FromPool {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
    /// Name of the pool.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// API group of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), extend("default" = DEFAULT_POOL_GROUP))]
    pub api_group: Option<String>,
    /// Kind of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), extend("default" = DEFAULT_POOL_KIND))]
    pub kind: Option<String>,
}

/// Meta data: the MAC address of one of the host's network interfaces.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MetaDataHostInterface {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
    /// Name of the interface in the host's hardware.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub interface: String,
    /// Whether it is the one that the host boots from.
    #[serde(default, rename = "fromBootMAC", skip_serializing_if = "Option::is_none")]
    pub from_boot_mac: Option<bool>,
}

/// Meta data: a label of an object; empty when it has none.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MetaDataFromLabel {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
    /// Which object.
    pub object: MachineObject,
    /// Key of the label.
    #[schemars(length(min = 1, max = 512))]
    pub label: String,
}

/// Meta data: an annotation of an object; empty when it has none.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MetaDataFromAnnotation {
    /// Key in the meta data.
    #[schemars(length(min = 1, max = 512))]
    pub key: String,
    /// Which object.
    pub object: MachineObject,
    /// Key of the annotation.
    #[schemars(length(min = 1, max = 512))]
    pub annotation: String,
}

/// An annotation of an object.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct FromAnnotation {
    /// Which object.
    pub object: MachineObject,
    /// Key of the annotation.
    #[schemars(length(min = 1, max = 512))]
    pub annotation: String,
}

/// Where the MAC address of a link is found; the first that is given counts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MacSource {
    /// The address itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub string: Option<String>,
    /// Name of a network interface in the host's hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub from_host_interface: Option<String>,
    /// An annotation that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_annotation: Option<FromAnnotation>,
}

/// Link: a network card.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EthernetLink {
    /// What it is to whoever runs the machine.
    #[serde(rename = "type")]
    pub type_: EthernetType,
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
    /// Which card it is.
    pub mac_address: MacSource,
}

/// Type of a network card, as OpenStack names them.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EthernetType {
    /// Bridge.
    Bridge,
    /// Distributed virtual switch.
    Dvs,
    /// Virtual switch in the card.
    HwVeb,
    /// Hyper-V.
    Hyperv,
    /// Open vSwitch.
    Ovs,
    /// Tap.
    Tap,
    /// Of a process of its own.
    Vhostuser,
    /// Xen's.
    Vif,
    /// A card.
    #[default]
    Phy,
}

/// How a bond uses its links.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum BondMode {
    /// Each in turn.
    BalanceRr,
    /// One, the others when it fails.
    #[default]
    ActiveBackup,
    /// By a hash.
    BalanceXor,
    /// All at once.
    Broadcast,
    /// By load, for sending.
    BalanceTlb,
    /// By load, for both directions.
    BalanceAlb,
    /// By LACP.
    #[serde(rename = "802.3ad")]
    Lacp,
}

/// What the hash of a bond is made of.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondHash {
    /// MAC addresses.
    #[default]
    #[serde(rename = "layer2")]
    Layer2,
    /// Addresses and ports.
    #[serde(rename = "layer3+4")]
    Layer34,
    /// MAC and IP addresses.
    #[serde(rename = "layer2+3")]
    Layer23,
}

/// Link: a VLAN on another link.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VlanLink {
    /// Number of the VLAN.
    #[serde(rename = "vlanID")]
    #[schemars(range(min = 0, max = 4096))]
    pub vlan_id: i32,
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
    /// The link below it.
    #[schemars(length(min = 1, max = 512))]
    pub vlan_link: String,
}

/// Networks on links.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct LinkNetworks {
    /// IPv4 with an address of a pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipv4: Vec<StaticNetwork>,
    /// IPv6 with an address of a pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipv6: Vec<StaticNetwork>,
    /// IPv4 by DHCP.
    #[serde(default, rename = "ipv4DHCP", skip_serializing_if = "Vec::is_empty")]
    pub ipv4_dhcp: Vec<DynamicNetwork>,
    /// IPv6 by DHCP.
    #[serde(default, rename = "ipv6DHCP", skip_serializing_if = "Vec::is_empty")]
    pub ipv6_dhcp: Vec<DynamicNetwork>,
    /// IPv6 by router advertisements.
    #[serde(default, rename = "ipv6SLAAC", skip_serializing_if = "Vec::is_empty")]
    pub ipv6_slaac: Vec<DynamicNetwork>,
}

/// A network in which the machine has an address of a pool. The annotation counts more than the reference, and that more than the
/// name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StaticNetwork {
    /// Its name.
    #[schemars(length(min = 1, max = 512))]
    pub id: String,
    /// The link that it is on.
    #[schemars(length(min = 1, max = 512))]
    pub link: String,
    /// Name of an IPPool.
    #[serde(default, rename = "ipAddressFromIPPool", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub ip_address_from_ip_pool: String,
    /// A pool of any provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_pool_ref: Option<DataPoolReference>,
    /// An annotation that has the name of an IPPool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_pool_annotation: Option<FromAnnotation>,
    /// Routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub routes: Vec<NetworkRoute>,
}

/// A network that gives the machine its address.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct DynamicNetwork {
    /// Its name.
    #[schemars(length(min = 1, max = 512))]
    pub id: String,
    /// The link that it is on.
    #[schemars(length(min = 1, max = 512))]
    pub link: String,
    /// Routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub routes: Vec<NetworkRoute>,
}

/// A pool of addresses, of the same namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DataPoolReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
    /// Its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"),
        extend("default" = DEFAULT_POOL_KIND)
    )]
    pub kind: Option<String>,
    /// Its API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN), extend("default" = DEFAULT_POOL_GROUP))]
    pub api_group: Option<String>,
}

/// A route.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct NetworkRoute {
    /// Address of the network that it leads to.
    #[schemars(regex(pattern = ADDRESS))]
    pub network: String,
    /// Length of the network's prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 128))]
    pub prefix: Option<i32>,
    /// The router.
    pub gateway: Gateway,
    /// Services behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Services>,
}

/// Where a router's address is found; the first that is given counts, of pools the annotation.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gateway {
    /// The address itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = ADDRESS))]
    pub string: Option<String>,
    /// Name of an IPPool.
    #[serde(default, rename = "fromIPPool", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub from_ip_pool: Option<String>,
    /// A pool of any provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_pool_ref: Option<DataPoolReference>,
    /// An annotation that has the name of an IPPool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_pool_annotation: Option<FromAnnotation>,
}

/// Name servers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Services {
    /// Their addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512), inner(regex(pattern = ADDRESS)))]
    pub dns: Vec<String>,
    /// Name of an IPPool that says more of them.
    #[serde(default, rename = "dnsFromIPPool", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub dns_from_ip_pool: Option<String>,
}

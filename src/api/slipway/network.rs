//! Networks that DHCP serves.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network that DHCP serves, as `[[network]]` of the configuration says it. Cluster-scoped.
///
/// Those of the configuration are shown by this kind, too, and can only be changed there.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "Network",
    plural = "networks",
    singular = "network",
    status = "NetworkStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Subnet","type":"string","jsonPath":".spec.subnet","description":"Its addresses"}"#,
    printcolumn = r#"{"name":"Interface","type":"string","jsonPath":".spec.interface","description":"Interface it is on"}"#,
    printcolumn = r#"{"name":"Mode","type":"string","jsonPath":".spec.mode","description":"How DHCP behaves there"}"#,
    printcolumn = r#"{"name":"Pool","type":"integer","jsonPath":".status.poolAddresses","description":"Addresses of the pool"}"#,
    printcolumn = r#"{"name":"Leased","type":"integer","jsonPath":".status.leased","description":"Addresses that are offered or leased, reservations among them"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether it is served"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","description":"Why it is served or not"}"#,
    printcolumn = r#"{"name":"Only Server","type":"string","jsonPath":".status.conditions[?(@.type==\"OnlyServer\")].status","description":"Whether no other DHCP server was seen there"}"#,
    printcolumn = r#"{"name":"Declined","type":"integer","jsonPath":".status.declined","description":"Addresses that somebody uses who did not get them here","priority":1}"#,
    printcolumn = r#"{"name":"Not Renewed","type":"integer","jsonPath":".status.notRenewed","description":"Leases that machines still have and that will not be renewed","priority":1}"#,
    printcolumn = r#"{"name":"Server","type":"string","jsonPath":".status.server","description":"Address of the appliance there","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What is wrong","priority":1}"#,
    printcolumn = r#"{"name":"Other Servers","type":"string","jsonPath":".status.conditions[?(@.type==\"OnlyServer\")].message","description":"Which other servers","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// Of a network in `slipway.toml` its name there, which may be none that an object can have. Empty for others: they are
    /// called as their object is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Interface it is on, or on which its relays' messages arrive.
    #[schemars(length(min = 1, max = 15))]
    pub interface: String,
    /// Its addresses, as `172.22.0.0/24`.
    #[schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$"))]
    pub subnet: String,
    /// `authoritative`, `reservations`, `proxy` or `off`.
    #[serde(default = "authoritative")]
    #[schemars(regex(pattern = r"^(authoritative|reservations|proxy|off)$"))]
    pub mode: String,
    /// Ranges for machines without a reservation, as `172.22.0.100-172.22.0.199`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub pool: Vec<String>,
    /// Address of the appliance there; found on the interface when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Default router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<String>,
    /// DNS servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 63))]
    pub dns: Vec<String>,
    /// NTP servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 63))]
    pub ntp: Vec<String>,
    /// Domain name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub domain: Option<String>,
    /// The only relays that are heard; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub relays: Vec<String>,
    /// Whether unknown machines report themselves.
    #[serde(default)]
    pub discovery: bool,
    /// Whether a boot script goes to a machine only when the network card that answers at its address is the host's.
    #[serde(default = "yes")]
    pub check_cards: bool,
    /// How long a lease holds, in seconds.
    #[serde(default = "lease_seconds")]
    #[schemars(range(min = 60, max = 4_294_967_294_i64))]
    pub lease_seconds: i64,
    /// How long a lease of a machine holds that is neither a BareMetalHost nor has a reservation, in seconds; never longer than
    /// `leaseSeconds`.
    #[serde(default = "unknown_lease_seconds")]
    #[schemars(range(min = 60, max = 4_294_967_294_i64))]
    pub unknown_lease_seconds: i64,
}

fn authoritative() -> String {
    "authoritative".into()
}

fn yes() -> bool {
    true
}

fn lease_seconds() -> i64 {
    3600
}

fn unknown_lease_seconds() -> i64 {
    300
}

/// How a network is doing.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Address of the appliance there, from which it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Addresses of the pool, without those that are never given from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_addresses: Option<i64>,
    /// Addresses that are offered or leased, reservations among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<i64>,
    /// Addresses that somebody uses who did not get them here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declined: Option<i64>,
    /// Leases that machines still have and that will not be renewed: the pool was made smaller, or the subnet is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_renewed: Option<i64>,
    /// `Ready`: whether it is served. `OnlyServer`: whether no other DHCP server was seen there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

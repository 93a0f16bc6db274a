//! Leases of DHCP, as they are shown.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A DHCP lease, read-only. Cluster-scoped, named by its address.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "DHCPLease",
    plural = "dhcpleases",
    singular = "dhcplease",
    shortname = "dl",
    derive = "PartialEq",
    selectable = ".spec.macAddress",
    selectable = ".spec.address",
    selectable = ".spec.host",
    selectable = ".spec.hostname",
    selectable = ".spec.network",
    selectable = ".spec.state",
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.address","description":"Leased address"}"#,
    printcolumn = r#"{"name":"MAC","type":"string","jsonPath":".spec.macAddress","description":"Hardware address"}"#,
    printcolumn = r#"{"name":"State","type":"string","jsonPath":".spec.state","description":"State of the lease"}"#,
    printcolumn = r#"{"name":"Host","type":"string","jsonPath":".spec.host","description":"Known host"}"#,
    printcolumn = r#"{"name":"Hostname","type":"string","jsonPath":".spec.hostname","description":"Name the client gave","priority":1}"#,
    printcolumn = r#"{"name":"Expires","type":"string","jsonPath":".spec.expires","description":"When it ends"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DHCPLeaseSpec {
    /// The address.
    pub address: String,
    /// Hardware address of the client, in lower case with colons.
    pub mac_address: String,
    /// Client identifier (option 61), hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Name of the network in `slipway.toml`.
    pub network: String,
    /// `bound`, `declined`, `released` or `expired`.
    pub state: String,
    /// `namespace/name` of the known host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Host name that the client sent (option 12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// When the lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
}

/// On a DHCPLease: name of the network, where a label's value may be that.
pub const LABEL_NETWORK: &str = "slipway.dev/network";
/// On a DHCPLease: namespace of the known host.
pub const LABEL_HOST_NAMESPACE: &str = "slipway.dev/host-namespace";
/// On a DHCPLease: name of the known host, where a label's value may be that.
pub const LABEL_HOST: &str = "slipway.dev/host";

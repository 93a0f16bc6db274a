//! Whose an address always is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose reservation an address is, as `[[network.reservation]]` of the configuration says it. Cluster-scoped.
///
/// Those of the configuration are shown by this kind, too, under names that begin with `slipway.toml-`.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "Reservation",
    plural = "reservations",
    singular = "reservation",
    shortname = "rsv",
    status = "ReservationStatus",
    derive = "PartialEq",
    selectable = ".spec.macAddress",
    selectable = ".spec.address",
    selectable = ".spec.hostname",
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.address","description":"Reserved address"}"#,
    printcolumn = r#"{"name":"MAC","type":"string","jsonPath":".spec.macAddress","description":"Hardware address it is for"}"#,
    printcolumn = r#"{"name":"Network","type":"string","jsonPath":".status.network","description":"Network of the address"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether the machine has the address, or gets it when it asks"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","description":"Why it is ready or not"}"#,
    printcolumn = r#"{"name":"Hostname","type":"string","jsonPath":".spec.hostname","description":"Name the machine is told","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What is wrong","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ReservationSpec {
    /// Hardware address, six hex pairs with `:`.
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub mac_address: String,
    /// Its IPv4 address, of a network; inside or outside the pool.
    #[schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"))]
    pub address: String,
    /// Host name handed out (option 12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?$"))]
    pub hostname: Option<String>,
}

/// What became of a reservation.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReservationStatus {
    /// Name of the network that the address is of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// `Ready`: whether it is in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// With this begin the names of the reservations of `slipway.toml`; their address follows.
pub const RESERVATION_OF_FILE: &str = "slipway.toml-";

//! A server as its owner describes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::metal3::{BootMode, ErrorType, ObjectReference, OperationalStatus, ProvisioningState};

/// A server, of which a BareMetalHost of the same name is made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "BareMetalHostInventory",
    plural = "baremetalhostinventories",
    singular = "baremetalhostinventory",
    shortname = "bmhi",
    namespaced,
    status = "BareMetalHostInventoryStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"State","type":"string","jsonPath":".status.provisioning.state","description":"Provisioning status"}"#,
    printcolumn = r#"{"name":"BMC","type":"string","jsonPath":".spec.bmc.address","description":"Address of management controller","priority":1}"#,
    printcolumn = r#"{"name":"Online","type":"boolean","jsonPath":".spec.online","description":"Whether the server should be powered on"}"#,
    printcolumn = r#"{"name":"Power","type":"boolean","jsonPath":".status.poweredOn","description":"Whether it is"}"#,
    printcolumn = r#"{"name":"Error","type":"string","jsonPath":".status.errorType","description":"Type of the most recent error"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether its host is as it says"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BareMetalHostInventorySpec {
    /// Whether the server should be powered on. One that a machine has is powered as the machine says.
    #[serde(default)]
    pub online: bool,
    /// How to reach the server's management controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<InventoryBmc>,
    /// MAC address of the NIC that the server boots from, six hex pairs with `:`. Immutable once set.
    #[serde(default, rename = "bootMACAddress", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub boot_mac_address: Option<String>,
    /// Firmware mode to boot in; UEFI when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<BootMode>,
    /// Deprecated: name of a hardware profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_profile: Option<String>,
    /// What the server is called elsewhere. Kept.
    #[serde(default, rename = "externalID", skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// Kept, without effect: who has the server its BareMetalHost says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_ref: Option<ObjectReference>,
}

/// The management controller of a server.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InventoryBmc {
    /// URL of the BMC; the scheme selects the protocol and the way to boot.
    #[serde(default)]
    pub address: String,
    /// BareMetalHostCredential of the same namespace.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub bmh_credentials_name: String,
    /// Accept any TLS certificate from the BMC.
    #[serde(default)]
    pub disable_certificate_verification: bool,
}

/// What is known of a server.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BareMetalHostInventoryStatus {
    /// Overall condition of its host.
    #[serde(default)]
    pub operational_status: OperationalStatus,
    /// Which operation failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<ErrorType>,
    /// Why, in words for the operator.
    #[serde(default)]
    pub error_message: String,
    /// Failures since the last success.
    #[serde(default)]
    pub error_count: i64,
    /// Power as last read from the BMC.
    #[serde(default)]
    pub powered_on: bool,
    /// Where the host is in its life.
    #[serde(default)]
    pub provisioning: InventoryProvisioning,
    /// Resolved hardware profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_profile: Option<String>,
    /// The generation that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Credentials`, `Mirrored` and `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]
    ))]
    pub conditions: Vec<Condition>,
}

/// Where a host is in its life.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InventoryProvisioning {
    /// State, as its BareMetalHost has it.
    #[serde(default)]
    pub state: ProvisioningState,
    /// The provisioner's identity of the machine.
    #[serde(default, rename = "ID")]
    pub id: String,
}

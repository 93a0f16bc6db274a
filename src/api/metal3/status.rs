//! A BareMetalHost's status: where it is in its life, and what it is about.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::*;

/// A host's provisioning state, published strings (docs/design/host.md, "States").
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum ProvisioningState {
    /// Not looked at yet.
    #[default]
    #[serde(rename = "")]
    None,
    /// No BMC details.
    Unmanaged,
    /// BMC access is being checked.
    Registering,
    /// Legacy, treated as `preparing`.
    #[serde(rename = "match profile")]
    MatchProfile,
    /// The hardware is being looked at.
    Inspecting,
    /// Cleaning and settings before the host can be used.
    Preparing,
    /// Legacy alias of `available`.
    Ready,
    /// May be provisioned.
    Available,
    /// An image is being written.
    Provisioning,
    /// The image is on the disk and the host was started from it.
    Provisioned,
    /// Runs an operating system that somebody else installed.
    #[serde(rename = "externally provisioned")]
    ExternallyProvisioned,
    /// The image is being removed.
    Deprovisioning,
    /// Power goes off before the host is forgotten.
    #[serde(rename = "powering off before delete")]
    PoweringOffBeforeDelete,
    /// The host is being forgotten.
    Deleting,
}

impl ProvisioningState {
    /// The published string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Unmanaged => "unmanaged",
            Self::Registering => "registering",
            Self::MatchProfile => "match profile",
            Self::Inspecting => "inspecting",
            Self::Preparing => "preparing",
            Self::Ready => "ready",
            Self::Available => "available",
            Self::Provisioning => "provisioning",
            Self::Provisioned => "provisioned",
            Self::ExternallyProvisioned => "externally provisioned",
            Self::Deprovisioning => "deprovisioning",
            Self::PoweringOffBeforeDelete => "powering off before delete",
            Self::Deleting => "deleting",
        }
    }
}

/// Overall condition of a host.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OperationalStatus {
    /// Nothing known yet.
    #[default]
    #[serde(rename = "")]
    None,
    /// All is well.
    OK,
    /// Known, without BMC details.
    #[serde(rename = "discovered")]
    Discovered,
    /// The last operation failed.
    #[serde(rename = "error")]
    Error,
    /// Waits for capacity.
    #[serde(rename = "delayed")]
    Delayed,
    /// Detached from the provisioner.
    #[serde(rename = "detached")]
    Detached,
    /// Being serviced.
    #[serde(rename = "servicing")]
    Servicing,
}

/// Which operation failed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum ErrorType {
    /// A provisioned host could not be registered again.
    #[serde(rename = "provisioned registration error")]
    ProvisionedRegistration,
    /// The BMC could not be used.
    #[serde(rename = "registration error")]
    Registration,
    /// Inspection failed.
    #[serde(rename = "inspection error")]
    Inspection,
    /// Preparing failed.
    #[serde(rename = "preparation error")]
    Preparation,
    /// Provisioning or deprovisioning failed.
    #[serde(rename = "provisioning error")]
    Provisioning,
    /// Power could not be changed.
    #[serde(rename = "power management error")]
    PowerManagement,
    /// Servicing failed.
    #[serde(rename = "servicing error")]
    Servicing,
    /// Detaching failed.
    #[serde(rename = "detach error")]
    Detach,
}

/// A physical server: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BareMetalHostStatus {
    /// Overall condition.
    #[serde(default)]
    pub operational_status: OperationalStatus,
    /// Which operation failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<ErrorType>,
    /// Why, in words for the operator. Empty when there is no error.
    #[serde(default)]
    pub error_message: String,
    /// Failures since the last success; drives the back-off.
    #[serde(default)]
    pub error_count: i64,
    /// Failed attempts to provision the current image.
    #[serde(default)]
    pub provisioning_fail_count: i64,
    /// The image that was tried last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_image: Option<HostImage>,
    /// When this status was written last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Resolved hardware profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_profile: Option<String>,
    /// The hardware found; HardwareData holds the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareDetails>,
    /// Where the host is in its life.
    #[serde(default)]
    pub provisioning: ProvisionStatus,
    /// Credentials that worked last.
    #[serde(default)]
    pub good_credentials: CredentialsStatus,
    /// Credentials that were tried last.
    #[serde(default)]
    pub tried_credentials: CredentialsStatus,
    /// Power as last read from the BMC.
    #[serde(default)]
    pub powered_on: bool,
    /// When operations began and ended.
    #[serde(default)]
    pub operation_history: OperationHistory,
    /// Standard conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]
    ))]
    pub conditions: Vec<Condition>,
    /// What the host does or waits for now. Slipway's own; clients of Metal3 pass it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<HostProgress>,
    /// Addresses that DHCP leases to its machine now, that of `spec.bootMACAddress` first. Slipway's own, as `progress`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<HostAddress>,
}

/// An address that is leased to a card of a host's machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HostAddress {
    /// The IPv4 address.
    #[serde(default)]
    pub address: String,
    /// Hardware address of the card, in lower case with colons.
    #[serde(default)]
    pub mac_address: String,
    /// Name of the network.
    #[serde(default)]
    pub network: String,
}

/// What a host does or waits for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HostProgress {
    /// What it does, in a few words.
    #[serde(default)]
    pub phase: String,
    /// The agent's step, empty when none is under way.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// Bytes done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<i64>,
    /// Bytes in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<i64>,
    /// Bytes a second, over the last quarter of a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,
    /// Seconds until the step is done, if it goes on like this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<i64>,
    /// Why it waits, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When the wait ends as a failure, or a rest between two attempts with the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// When the phase began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Where a host is in its life.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionStatus {
    /// State, published strings.
    #[serde(default)]
    pub state: ProvisioningState,
    /// The provisioner's identity of the machine.
    #[serde(default, rename = "ID")]
    pub id: String,
    /// The image on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<HostImage>,
    /// The hints that were used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_device_hints: Option<RootDeviceHints>,
    /// The firmware mode that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<BootMode>,
    /// RAID as applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raid: Option<RaidConfig>,
    /// Deprecated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub firmware: Option<serde_json::Value>,
    /// Deploy method as applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_deploy: Option<CustomDeploy>,
}

/// Which version of a secret was used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsStatus {
    /// The secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretReference>,
    /// Its resourceVersion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_version: Option<String>,
}

/// When operations began and ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OperationHistory {
    /// Registration.
    #[serde(default)]
    pub register: OperationMetric,
    /// Inspection.
    #[serde(default)]
    pub inspect: OperationMetric,
    /// Provisioning.
    #[serde(default)]
    pub provision: OperationMetric,
    /// Deprovisioning.
    #[serde(default)]
    pub deprovision: OperationMetric,
}

/// Begin and end of one operation; `null` while not reached.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct OperationMetric {
    /// When it began.
    #[serde(default)]
    pub start: Option<Time>,
    /// When it ended.
    #[serde(default)]
    pub end: Option<Time>,
}

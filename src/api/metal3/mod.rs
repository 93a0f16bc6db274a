//! `metal3.io/v1alpha1`: BareMetalHost, HardwareData and DataImage, as Metal3's baremetal-operator publishes them.
//!
//! Field names, enum strings and printer columns are the published ones, so that existing manifests and
//! clients work unchanged. Optional fields are left out of the JSON when unset; the status fields that
//! upstream always serialises are always serialised here too.

mod data_image;
mod hardware;
mod network;
mod raid;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded;

pub use data_image::{AttachedImage, DataImage, DataImageError, DataImageSpec, DataImageStatus};
pub use hardware::{
    Cpu, HardwareBios, HardwareData, HardwareDataSpec, HardwareDetails, HardwareFirmware, HardwareSystemVendor, Lldp,
    Nic, Storage, Vlan,
};
pub use network::{HostNetworkAttachmentReference, NetworkInterface, SwitchPort};
pub use raid::{HardwareRaidLevel, HardwareRaidVolume, RaidConfig, SoftwareRaidLevel, SoftwareRaidVolume};

/// Stops every reconciliation of the host, whatever its value.
pub const ANNOTATION_PAUSED: &str = "baremetalhost.metal3.io/paused";
/// Leaves the machine alone, whatever its value; `{"deleteAction":"delay"|"delete","force":bool}` says more.
pub const ANNOTATION_DETACHED: &str = "baremetalhost.metal3.io/detached";
/// Asks for a new inspection (`""`) or, deprecated, for none (`disabled`).
pub const ANNOTATION_INSPECT: &str = "inspect.metal3.io";
/// A status to take over, as JSON, for a host that has none yet.
pub const ANNOTATION_STATUS: &str = "baremetalhost.metal3.io/status";
/// The hardware as JSON, from whoever inspected it; only with inspection disabled.
pub const ANNOTATION_HARDWARE_DETAILS: &str = "inspect.metal3.io/hardwaredetails";
/// Reboots once; with `/<key>` appended, holds the host off until removed.
pub const ANNOTATION_REBOOT: &str = "reboot.metal3.io";
/// Finalizer that the host's reconciler puts on each BareMetalHost.
pub const FINALIZER_HOST: &str = "baremetalhost.metal3.io";
/// Finalizer on HardwareData, released when its host goes.
pub const FINALIZER_HARDWARE_DATA: &str = "baremetalhost.metal3.io/hardwareData";
/// Finalizer on a DataImage, released when its host's virtual drive is empty.
pub const FINALIZER_DATA_IMAGE: &str = "dataimage.metal3.io";
/// Finalizer on the BMC secret, released when its host goes.
pub const FINALIZER_SECRET: &str = "baremetalhost.metal3.io/secret";

/// Entries of `spec.taints`.
pub const MAX_TAINTS: usize = 100;
/// Entries of `spec.networkInterfaces`.
pub const MAX_NETWORK_INTERFACES: usize = 256;
/// Volumes of each kind in `spec.raid`.
pub const MAX_VOLUMES: usize = 128;
/// Disks of one volume.
pub const MAX_VOLUME_DISKS: usize = 256;
/// Bytes of the whole spec as JSON.
pub const MAX_SPEC: usize = 64 << 10;

/// A physical server: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metal3.io",
    version = "v1alpha1",
    kind = "BareMetalHost",
    plural = "baremetalhosts",
    singular = "baremetalhost",
    shortname = "bmh",
    shortname = "bmhost",
    namespaced,
    status = "BareMetalHostStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.operationalStatus","description":"Operational status","priority":1}"#,
    printcolumn = r#"{"name":"State","type":"string","jsonPath":".status.provisioning.state","description":"Provisioning status"}"#,
    printcolumn = r#"{"name":"Consumer","type":"string","jsonPath":".spec.consumerRef.name","description":"Consumer using this host"}"#,
    printcolumn = r#"{"name":"BMC","type":"string","jsonPath":".spec.bmc.address","description":"Address of management controller","priority":1}"#,
    printcolumn = r#"{"name":"Online","type":"string","jsonPath":".spec.online","description":"Whether the host is online or not"}"#,
    printcolumn = r#"{"name":"Error","type":"string","jsonPath":".status.errorType","description":"Type of the most recent error"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time duration since creation of BaremetalHost"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BareMetalHostSpec {
    /// Whether the server should be powered on.
    pub online: bool,
    /// How to reach the server's management controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<BmcDetails>,
    /// MAC address of the NIC that the server boots from, six hex pairs with `:`. Immutable once set.
    #[serde(default, rename = "bootMACAddress", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub boot_mac_address: Option<String>,
    /// Firmware mode to boot in; UEFI when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<BootMode>,
    /// The image to provision. Setting its URL asks for provisioning, removing it for deprovisioning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// A deploy method other than writing an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_deploy: Option<CustomDeploy>,
    /// Secret with the user data (`userData`, else `value`) for the config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<SecretReference>,
    /// Secret with extra meta data (`metaData`, else `value`) for the config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<SecretReference>,
    /// Secret with OpenStack network data (`networkData`, else `value`) for the config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<SecretReference>,
    /// Secret with network data for the ramdisk, and for the config drive when `networkData` is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprovisioning_network_data_name: Option<String>,
    /// Which disk receives the image; all hints given must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_device_hints: Option<RootDeviceHints>,
    /// RAID volumes to build while preparing; not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raid: Option<RaidConfig>,
    /// What is wiped before the host becomes available: `metadata` (default) or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automated_cleaning_mode: Option<AutomatedCleaningMode>,
    /// Who uses this host. Advisory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_ref: Option<ObjectReference>,
    /// The host already runs an operating system that must be kept.
    #[serde(default, skip_serializing_if = "is_false")]
    pub externally_provisioned: bool,
    /// CPU architecture; only `x86_64` is supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Reboot where a power-off would be done. Needs `online: true`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disable_power_off: bool,
    /// How the hardware is inspected; `agent` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspection_mode: Option<InspectionMode>,
    /// Top-of-rack switch settings of the NICs; not supported yet.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "bounded::list::<_, _, MAX_NETWORK_INTERFACES>"
    )]
    pub network_interfaces: Vec<NetworkInterface>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Deprecated: name of a hardware profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_profile: Option<String>,
    /// Deprecated and refused: firmware settings are not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "bounded::value")]
    #[schemars(schema_with = "any_object")]
    pub firmware: Option<serde_json::Value>,
    /// Deprecated: accepted and kept, without effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::values::<_, MAX_TAINTS>")]
    #[schemars(schema_with = "any_object_list")]
    pub taints: Vec<serde_json::Value>,
}

/// The management controller of a host.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BmcDetails {
    /// URL of the BMC; the scheme selects the protocol and the way to boot.
    #[serde(default)]
    pub address: String,
    /// Secret in the host's namespace with `username` and `password`.
    #[serde(default)]
    pub credentials_name: String,
    /// Accept any TLS certificate from the BMC.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disable_certificate_verification: bool,
}

/// Firmware mode.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMode {
    /// UEFI without Secure Boot.
    #[default]
    UEFI,
    /// UEFI with Secure Boot; not supported yet.
    UEFISecureBoot,
    /// BIOS.
    #[serde(rename = "legacy")]
    Legacy,
}

/// An operating system image and how to check it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Where the image is.
    pub url: String,
    /// Checksum, or the URL of a file of checksums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// `md5`, `sha256`, `sha512` or `auto` (by the checksum's length).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum_type: Option<ChecksumType>,
    /// `raw`, `qcow2`, `vdi`, `vmdk` or `live-iso`; found out when unset. An empty string counts as unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Secret with registry credentials for `oci` URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci_auth_secret_name: Option<String>,
}

/// Algorithm of an image checksum.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ChecksumType {
    /// MD5.
    Md5,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// By the length of the checksum: 32, 64 or 128 hex digits.
    #[default]
    Auto,
}

/// A deploy method other than writing an image.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct CustomDeploy {
    /// Name of the method.
    pub method: String,
}

/// A secret; an empty namespace means the referring object's own.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct SecretReference {
    /// Name of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Namespace of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A reference to any object, as core/v1 ObjectReference.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// Group and version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Resource version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Path of a field inside the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
}

/// Which disk is the root disk. All hints given must match.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RootDeviceHints {
    /// `/dev/<name>` or `/dev/disk/by-path/<name>`, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// SCSI address `host:channel:target:lun`, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<String>,
    /// Part of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Part of the vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Serial number, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial_number: Option<String>,
    /// Smallest size, in GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_size_gigabytes: Option<i64>,
    /// World wide name, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// World wide name with the vendor extension, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn_with_extension: Option<String>,
    /// The vendor extension of the world wide name, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn_vendor_extension: Option<String>,
    /// Whether the disk has rotating platters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
}

/// What is wiped before a host becomes available.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AutomatedCleaningMode {
    /// Partition tables and file system signatures of every disk.
    #[default]
    Metadata,
    /// Nothing.
    Disabled,
}

/// How the hardware is inspected.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum InspectionMode {
    /// By booting the ramdisk.
    #[default]
    Agent,
    /// Out of band, through Redfish.
    Fast,
    /// Not at all.
    Disabled,
}

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
    pub last_attempted_image: Option<Image>,
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
    pub conditions: Vec<Condition>,
    /// What the host does or waits for now. Slipway's own; clients of Metal3 pass it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<HostProgress>,
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
    pub image: Option<Image>,
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

fn is_false(value: &bool) -> bool {
    !*value
}

/// An object whose content is kept as it was given.
pub(crate) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

fn any_object_list(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } })
}

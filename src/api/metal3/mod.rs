//! `metal3.io/v1alpha1`: BareMetalHost, HardwareData and DataImage, as Metal3's baremetal-operator publishes them.
//!
//! Field names, enum strings and printer columns are the published ones, so that existing manifests and
//! clients work unchanged. Optional fields are left out of the JSON when unset; the status fields that
//! upstream always serialises are always serialised here too.

mod data_image;
mod hardware;
mod network;
mod raid;
mod status;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bounded;

pub use data_image::{AttachedImage, DataImage, DataImageError, DataImageSpec, DataImageStatus};
pub use hardware::{
    Cpu, HardwareBios, HardwareData, HardwareDataSpec, HardwareDetails, HardwareFirmware, HardwareSystemVendor, Lldp,
    Nic, Storage, Vlan,
};
pub use network::{HostNetworkAttachmentReference, NetworkInterface, SwitchPort};
pub use raid::{HardwareRaidLevel, HardwareRaidVolume, RaidConfig, SoftwareRaidLevel, SoftwareRaidVolume};
pub use status::{
    BareMetalHostStatus, CredentialsStatus, ErrorType, HostAddress, HostProgress, OperationHistory, OperationMetric,
    OperationalStatus, ProvisionStatus, ProvisioningState,
};

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

/// A host without a `spec` is one that nobody wishes anything of, as in Go, where the field is always there.
pub fn complete_host(host: &mut Value) {
    fill_in(host, json!({"online": false}));
}

/// A HardwareData without a `spec` says nothing.
pub fn complete_hardware(data: &mut Value) {
    fill_in(data, json!({}));
}

fn fill_in(object: &mut Value, spec: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.entry("spec").or_insert(spec);
    }
}

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
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".status.addresses[0].address","description":"Address leased to its machine now, of its boot MAC address first","priority":1}"#,
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
    pub image: Option<HostImage>,
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
pub struct HostImage {
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
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
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
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
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

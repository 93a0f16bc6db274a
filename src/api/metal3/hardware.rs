//! HardwareData: what inspection finds (docs/design/host.md, "Inspection and HardwareData").

use std::collections::BTreeSet;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::api::bounded;

/// Network cards, disks and processor flags that are read of a machine: more than the largest server has.
const MAX_PARTS: usize = 1024;
/// Names that are read of one disk.
const MAX_NAMES: usize = 64;
/// VLANs that are read of one network card: as many as there are (IEEE 802.1Q).
const MAX_VLANS: usize = 4094;

/// The hardware of a host, found by inspection. Same name and namespace as its BareMetalHost.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metal3.io",
    version = "v1alpha1",
    kind = "HardwareData",
    plural = "hardwaredata",
    singular = "hardwaredata",
    shortname = "hd",
    namespaced,
    derive = "PartialEq",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time duration since creation of HardwareData"}"#
)]
pub struct HardwareDataSpec {
    /// The hardware.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "hardware")]
    pub hardware: Option<HardwareDetails>,
}

/// The hardware of a machine (docs/design/host.md, "Inspection and HardwareData").
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HardwareDetails {
    /// Maker, product, serial number, from SMBIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_vendor: Option<HardwareSystemVendor>,
    /// Firmware, from SMBIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<HardwareFirmware>,
    /// Physical memory in MiB.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ram_mebibytes: i64,
    /// Network interfaces; one with two addresses appears twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_PARTS>")]
    pub nics: Vec<Nic>,
    /// Disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_PARTS>")]
    pub storage: Vec<Storage>,
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Host name as the ramdisk sees it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hostname: String,
}

impl HardwareDetails {
    /// In one line, for a console or a log: how many of what there are.
    pub fn summary(&self) -> String {
        let interfaces: BTreeSet<&str> = self.nics.iter().map(|nic| nic.name.as_str()).collect();
        format!(
            "{} processors, {} MiB of memory, {} network interfaces, {} disks",
            self.cpu.as_ref().map_or(0, |cpu| cpu.count),
            self.ram_mebibytes,
            interfaces.len(),
            self.storage.len()
        )
    }
}

/// Maker of the machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HardwareSystemVendor {
    /// Manufacturer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manufacturer: String,
    /// Product.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub product_name: String,
    /// Serial number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial_number: String,
}

/// Firmware of the machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct HardwareFirmware {
    /// BIOS or UEFI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bios: Option<HardwareBios>,
}

/// BIOS or UEFI.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct HardwareBios {
    /// Release date.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub date: String,
    /// Vendor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vendor: String,
    /// Version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
}

/// Processors.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// `x86_64` or `aarch64`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// Model name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Clock in MHz, rounded.
    #[serde(default, skip_serializing_if = "is_zero_f64")]
    pub clock_megahertz: f64,
    /// Feature flags, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_PARTS>")]
    pub flags: Vec<String>,
    /// Logical CPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: i64,
}

/// One address of a network interface.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    /// Kernel name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// PCI vendor and device id, `0x1af4 0x1000`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// MAC address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// IP address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Link speed in Gbit/s, 0 when unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub speed_gbps: i64,
    /// VLANs that the switch announces.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_VLANS>")]
    pub vlans: Vec<Vlan>,
    /// Untagged VLAN.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vlan_id: i64,
    /// Whether the machine booted from this interface.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pxe: bool,
    /// The switch's LLDP identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lldp: Option<Lldp>,
    /// PCI address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pci_address: String,
}

/// A VLAN announced by a switch.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Vlan {
    /// 0 to 4094.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4094))]
    pub id: i64,
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// What a switch port says of itself (IEEE 802.1AB).
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Lldp {
    /// Chassis ID.
    #[serde(default, rename = "switchID", skip_serializing_if = "String::is_empty")]
    pub switch_id: String,
    /// Port ID.
    #[serde(default, rename = "portID", skip_serializing_if = "String::is_empty")]
    pub port_id: String,
    /// System name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub switch_system_name: String,
}

/// A disk.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// `/dev/disk/by-path/...` when known, else the kernel's device.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Other device names.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_NAMES>")]
    pub alternate_names: Vec<String>,
    /// Whether the disk has rotating platters.
    #[serde(default, skip_serializing_if = "is_false")]
    pub rotational: bool,
    /// `HDD`, `SSD` or `NVME`.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size_bytes: i64,
    /// Vendor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vendor: String,
    /// Model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Serial number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial_number: String,
    /// World wide name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wwn: String,
    /// Vendor extension of the world wide name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wwn_vendor_extension: String,
    /// World wide name with the extension.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wwn_with_extension: String,
    /// SCSI address `host:channel:target:lun`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hctl: String,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

fn is_zero_f64(value: &f64) -> bool {
    *value == 0.0
}

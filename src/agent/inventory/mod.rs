//! The hardware inventory, as HardwareData wants it.
//!
//! Everything is read below a root folder: `/` on the node, a made-up tree in tests.

pub mod bmc;
pub mod cpu;
pub mod disks;
mod ipmi;
pub mod lldp;
pub mod nics;
mod path_id;
pub mod smbios;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use crate::api::MacAddress;
use crate::api::metal3::{HardwareDetails, HardwareFirmware};
use lldp::Neighbour;
use smbios::Smbios;

/// What is known of the network and not in sysfs.
#[derive(Clone, Debug, Default)]
pub struct ObservedNetwork {
    /// Addresses by interface.
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Switch ports by interface.
    pub neighbours: BTreeMap<String, Neighbour>,
    /// Interface that the firmware booted from.
    pub boot: Option<MacAddress>,
}

/// Reads the whole inventory. What cannot be read is left out.
pub fn read(root: &Path, observed: &ObservedNetwork) -> HardwareDetails {
    let smbios = Smbios::read(root);
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let ram_mebibytes = smbios::memory(&smbios, &meminfo);
    let Smbios { bios, system, .. } = smbios;
    HardwareDetails {
        system_vendor: (system != Default::default()).then_some(system),
        firmware: (bios != Default::default()).then_some(HardwareFirmware { bios: Some(bios) }),
        ram_mebibytes,
        nics: nics::read(root, &observed.addresses, &observed.neighbours, observed.boot),
        storage: disks::disks(root),
        cpu: Some(cpu::read(root)),
        hostname: std::fs::read_to_string(root.join("proc/sys/kernel/hostname"))
            .map(|name| name.trim().to_owned())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_machine_without_firmware_tables_still_has_an_inventory() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 2030000 kB\n").unwrap();
        fs::write(root.path().join("proc/cpuinfo"), "processor : 0\nprocessor : 1\nmodel name : QEMU\n").unwrap();
        fs::write(root.path().join("proc/sys/kernel/hostname"), "node-1\n").unwrap();
        let hardware = read(root.path(), &ObservedNetwork::default());
        let json = serde_json::to_value(&hardware).unwrap();
        let expected = serde_json::json!({
            "ramMebibytes": 1984, "hostname": "node-1",
            "cpu": {"arch": std::env::consts::ARCH, "model": "QEMU", "count": 2},
        });
        assert_eq!(json, expected);
        assert_eq!(hardware.summary(), "2 processors, 1984 MiB of memory, 0 network interfaces, 0 disks");
    }
}

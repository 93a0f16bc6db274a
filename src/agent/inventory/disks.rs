//! Disks as the inventory and the root device hints have them, from sysfs.

use std::path::{Path, PathBuf};

use super::path_id;
use crate::agent::disk::device_path;
use crate::api::metal3::Storage;

/// Read-only devices below this size in bytes are installation media and the like, not disks.
const READ_ONLY_LEAST: i64 = 1 << 30;

/// Every disk of the machine that an image could be written to, by kernel name. Left out: loop, RAM and optical
/// devices, what has no medium, hidden paths of multipath NVMe, boot partitions of eMMC, and devices made by software.
pub fn disks(root: &Path) -> Vec<Storage> {
    let Ok(entries) = std::fs::read_dir(root.join("sys/block")) else { return Vec::new() };
    let mut found: Vec<(String, Storage)> = Vec::new();
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if let Some(disk) = disk(root, &name, &entry.path()) {
            found.push((name, disk));
        }
    }
    // sdb before sdaa, nvme2n1 before nvme10n1.
    found.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
    found.into_iter().map(|(_, disk)| disk).collect()
}

/// Whether a disk is a USB stick, a card in a USB reader, or what a BMC shows as one. Other buses are not asked: kernels
/// have called the disks of hot-plug SATA bays removable.
pub fn is_removable(root: &Path, disk: &Storage) -> bool {
    let device = device_path(disk);
    // The kernel writes `!` where a device's name has a `/`.
    let Some(name) = device.to_str().and_then(|path| path.strip_prefix("/dev/")) else { return false };
    let Ok(path) = std::fs::canonicalize(root.join("sys/block").join(name.replace('/', "!"))) else { return false };
    text(&path.join("removable")) == "1" && path.to_string_lossy().contains("/usb")
}

fn disk(root: &Path, name: &str, link: &Path) -> Option<Storage> {
    let virtual_names = ["loop", "ram", "zram", "sr", "fd", "md", "dm-", "nbd", "mtd"];
    if virtual_names.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    if name.starts_with("mmcblk") && (name.contains("boot") || name.contains("rpmb")) {
        return None;
    }
    let path = std::fs::canonicalize(link).ok()?;
    let inside = path.to_string_lossy().into_owned();
    // An NVMe drive with several controllers hangs below its virtual subsystem.
    if inside.contains("/devices/virtual/") && !inside.contains("/nvme-subsystem/") {
        return None;
    }
    let read = |file: &str| text(&path.join(file));
    if read("hidden") == "1" {
        return None;
    }
    let size_bytes = read("size").parse::<i64>().ok()?.checked_mul(512)?;
    if size_bytes <= 0 || (read("ro") == "1" && size_bytes < READ_ONLY_LEAST) {
        return None;
    }
    let rotational = read("queue/rotational") == "1";
    let kernel = format!("/dev/{name}");
    let names = path_id::names(root, &path, name);
    let by_path = names.iter().map(|name| format!("/dev/disk/by-path/{name}"));
    let identity = DiskIdentity::read(&path);
    Some(Storage {
        name: by_path.clone().next().unwrap_or_else(|| kernel.clone()),
        alternate_names: std::iter::once(kernel).chain(by_path).collect(),
        rotational,
        type_: if rotational {
            "HDD"
        } else if name.starts_with("nvme") {
            "NVME"
        } else {
            "SSD"
        }
        .to_owned(),
        size_bytes,
        vendor: read("device/vendor"),
        model: identity.model,
        serial_number: identity.serial,
        wwn: identity.wwn,
        wwn_vendor_extension: identity.extension,
        wwn_with_extension: identity.wwn_with_extension,
        hctl: std::fs::canonicalize(path.join("device"))
            .ok()
            .and_then(|device| Some(device.file_name()?.to_str()?.to_owned()))
            .filter(|name| path_id::hctl(name).is_some())
            .unwrap_or_default(),
    })
}

#[derive(Debug, Default, PartialEq, Eq)]
struct DiskIdentity {
    model: String,
    serial: String,
    wwn: String,
    extension: String,
    wwn_with_extension: String,
}

impl DiskIdentity {
    fn read(path: &Path) -> Self {
        let mut identity = Self { model: text(&path.join("device/model")), ..Self::default() };
        // NVMe, virtio, eMMC.
        identity.serial = [path.join("device/serial"), path.join("serial")]
            .iter()
            .map(|file: &PathBuf| text(file))
            .find(|serial| !serial.is_empty())
            .unwrap_or_default();
        if identity.serial.is_empty()
            && let Ok(page) = std::fs::read(path.join("device/vpd_pg80"))
        {
            identity.serial = unit_serial(&page);
        }
        let wwid = [path.join("wwid"), path.join("device/wwid")]
            .iter()
            .map(|file: &PathBuf| text(file))
            .find(|wwid| !wwid.is_empty())
            .unwrap_or_default();
        identity.take_wwid(&wwid);
        if let Ok(page) = std::fs::read(path.join("device/vpd_pg89")) {
            identity.take_ata(&page);
        }
        identity
    }

    /// The kernel's world wide id: `naa.…` and `eui.…` are what udev calls the WWN; the first 64 bits of an NAA 6 are
    /// the name and the last 64 its vendor extension.
    fn take_wwid(&mut self, wwid: &str) {
        let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(digits) = wwid.strip_prefix("naa.").filter(|digits| hex(digits)) {
            let (name, extension) = digits.split_at(digits.len().min(16));
            self.wwn = format!("0x{}", name.to_ascii_lowercase());
            self.wwn_with_extension = format!("0x{}", digits.to_ascii_lowercase());
            if !extension.is_empty() {
                self.extension = format!("0x{}", extension.to_ascii_lowercase());
            }
        } else if ["eui.", "nvme.", "uuid."].iter().any(|prefix| wwid.starts_with(prefix)) {
            self.wwn = wwid.to_owned();
            self.wwn_with_extension = wwid.to_owned();
        }
    }

    /// The ATA information page (SAT): the drive's own IDENTIFY DEVICE data from byte 60 on. The SCSI inquiry
    /// cuts the model off at 16 characters.
    fn take_ata(&mut self, page: &[u8]) {
        let Some(identify) = page.get(60..60 + 512).filter(|_| page[1] == 0x89) else { return };
        let word = |index: usize| u16::from_le_bytes([identify[2 * index], identify[2 * index + 1]]);
        let swapped = |from: usize, to: usize| {
            let bytes: Vec<u8> = (from..to).flat_map(|index| word(index).to_be_bytes()).collect();
            printable(&bytes)
        };
        let (serial, model) = (swapped(10, 20), swapped(27, 47));
        if !serial.is_empty() {
            self.serial = serial;
        }
        if !model.is_empty() {
            self.model = model;
        }
        // Word 87: bits 15:14 say that it is valid, bit 8 that there is a world wide name.
        if word(87) & 0xc100 == 0x4100 && word(108) != 0 {
            let name = format!("0x{:04x}{:04x}{:04x}{:04x}", word(108), word(109), word(110), word(111));
            self.wwn.clone_from(&name);
            self.wwn_with_extension = name;
        }
    }
}

/// The unit serial number page (SPC): length in bytes 2 and 3, then text.
fn unit_serial(page: &[u8]) -> String {
    match page {
        [_, 0x80, high, low, rest @ ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            printable(&rest[..length.min(rest.len())])
        }
        _ => String::new(),
    }
}

fn printable(bytes: &[u8]) -> String {
    let text: String =
        String::from_utf8_lossy(bytes).chars().filter(|character| !character.is_control()).take(256).collect();
    text.trim().to_owned()
}

fn text(path: &Path) -> String {
    std::fs::read(path).map(|bytes| printable(&bytes)).unwrap_or_default()
}

#[cfg(test)]
mod tests;

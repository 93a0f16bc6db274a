//! Tests of the disk inventory against folders that look like sysfs.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;

/// A sysfs to put devices into.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Makes the folders on the way to a device; each `name@subsystem` gets its subsystem.
    fn device(&self, way: &str) -> PathBuf {
        let mut path = self.0.path().join("sys/devices");
        for step in way.split('/') {
            let (name, subsystem) = step.split_once('@').unwrap_or((step, ""));
            path.push(name);
            fs::create_dir_all(&path).unwrap();
            if !subsystem.is_empty() && !path.join("subsystem").is_symlink() {
                symlink(format!("/sys/bus/{subsystem}"), path.join("subsystem")).unwrap();
            }
        }
        path
    }

    fn write(&self, path: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
    }

    /// A block device below `way`, whose last step is its device.
    fn disk(&self, way: &str, name: &str, bytes: u64, files: &[(&str, &str)]) -> PathBuf {
        let device = self.device(way);
        let block = if name.starts_with("nvme") { device.join(name) } else { device.join("block").join(name) };
        fs::create_dir_all(&block).unwrap();
        symlink(&device, block.join("device")).unwrap();
        let size = (bytes / 512).to_string();
        self.write(&block, &[("size", size.as_str()), ("ro", "0"), ("queue/rotational", "0")]);
        self.write(&block, files);
        fs::create_dir_all(self.0.path().join("sys/block")).unwrap();
        symlink(&block, self.0.path().join("sys/block").join(name)).unwrap();
        device
    }

    fn names(&self) -> Vec<(String, Vec<String>)> {
        let short = |name: &String| name.replace("/dev/disk/by-path/", "");
        disks(self.0.path())
            .iter()
            .map(|disk| (short(&disk.name), disk.alternate_names.iter().map(short).collect()))
            .collect()
    }
}

const GIB: u64 = 1 << 30;
const ROOT: &str = "pci0000:00";

fn named(name: &str, alternates: &[&str]) -> (String, Vec<String>) {
    (name.into(), alternates.iter().map(|&name| name.into()).collect())
}

#[test]
fn by_path_names_are_udevs() {
    let machine = Machine::new();
    let ata = "ata3/host2@scsi/target2:0:0@scsi/2:0:0:0@scsi";
    machine.disk(&format!("{ROOT}/0000:00:1f.2@pci/{ata}"), "sda", GIB, &[]);
    let port = machine.device(&format!("{ROOT}/0000:00:1f.2/ata3"));
    machine.write(&port, &[("ata_port/ata3/port_no", "3")]);

    machine.disk(&format!("{ROOT}/0000:00:04.0@pci/virtio1@virtio"), "vda", GIB, &[]);

    let nvme = format!("{ROOT}/0000:00:01.0@pci/0000:01:00.0@pci/nvme/nvme0@nvme");
    machine.disk(&nvme, "nvme0n1", GIB, &[("nsid", "1")]);

    // Two hosts on one adapter: the second one is 1 within it.
    let scsi = format!("{ROOT}/0000:00:05.0@pci/virtio2@virtio");
    machine.device(&format!("{scsi}/host4@scsi"));
    machine.disk(&format!("{scsi}/host5@scsi/target5:0:7@scsi/5:0:7:1@scsi"), "sdb", GIB, &[]);

    let sas = format!("{ROOT}/0000:00:06.0@pci/host6@scsi/port-6:0");
    machine.disk(&format!("{sas}/end_device-6:0/target6:0:0@scsi/6:0:0:0@scsi"), "sdc", GIB, &[]);
    let port = machine.device(&sas);
    machine.write(&port, &[("sas_port/port-6:0/num_phys", "1")]);
    machine.write(&port, &[("end_device-6:0/sas_device/end_device-6:0/phy_identifier", "4")]);

    let behind = format!("{sas}/expander-6:0/port-6:0:2");
    machine.disk(&format!("{behind}/end_device-6:0:2/target6:0:1@scsi/6:0:1:0@scsi"), "sdd", GIB, &[]);
    let expander = machine.device(&format!("{sas}/expander-6:0"));
    machine.write(&expander, &[("sas_device/expander-6:0/sas_address", "0x500056b3")]);
    machine.write(&expander, &[("port-6:0:2/sas_port/port-6:0:2/num_phys", "1")]);
    let end = "port-6:0:2/end_device-6:0:2/sas_device/end_device-6:0:2/phy_identifier";
    machine.write(&expander, &[(end, "9")]);

    let fc = format!("{ROOT}/0000:00:07.0@pci/host7@scsi/rport-7:0-1");
    machine.disk(&format!("{fc}/target7:0:0@scsi/7:0:0:300@scsi"), "sde", GIB, &[]);
    let port = machine.device(&fc);
    machine.write(&port, &[("fc_remote_ports/rport-7:0-1/port_name", "0x50060e80")]);

    let usb = format!("{ROOT}/0000:00:14.0@pci/usb1@usb/1-3@usb/1-3:1.0@usb");
    machine.disk(&format!("{usb}/host8@scsi/target8:0:0@scsi/8:0:0:0@scsi"), "sdf", GIB, &[]);

    let iscsi = "platform/host9@scsi/session1/target9:0:0@scsi/9:0:0:0@scsi";
    machine.disk(iscsi, "sdg", GIB, &[]);

    assert_eq!(
        machine.names(),
        [
            named("pci-0000:00:1f.2-ata-3.0", &["/dev/sda", "pci-0000:00:1f.2-ata-3.0", "pci-0000:00:1f.2-ata-3"]),
            named("pci-0000:00:05.0-scsi-1:0:7:1", &["/dev/sdb", "pci-0000:00:05.0-scsi-1:0:7:1"]),
            named("pci-0000:00:06.0-sas-phy4-lun-0", &["/dev/sdc", "pci-0000:00:06.0-sas-phy4-lun-0"]),
            named(
                "pci-0000:00:06.0-sas-exp0x500056b3-phy9-lun-0",
                &["/dev/sdd", "pci-0000:00:06.0-sas-exp0x500056b3-phy9-lun-0"]
            ),
            named(
                "pci-0000:00:07.0-fc-0x50060e80-lun-0x012c000000000000",
                &["/dev/sde", "pci-0000:00:07.0-fc-0x50060e80-lun-0x012c000000000000"]
            ),
            named(
                "pci-0000:00:14.0-usb-0:3:1.0-scsi-0:0:0:0",
                &["/dev/sdf", "pci-0000:00:14.0-usb-0:3:1.0-scsi-0:0:0:0"]
            ),
            named("/dev/sdg", &["/dev/sdg"]),
            named("pci-0000:00:04.0", &["/dev/vda", "pci-0000:00:04.0", "virtio-pci-0000:00:04.0"]),
            named("pci-0000:01:00.0-nvme-1", &["/dev/nvme0n1", "pci-0000:01:00.0-nvme-1"]),
        ]
    );
}

#[test]
fn only_disks_are_disks() {
    let machine = Machine::new();
    let on = |slot: u32| format!("{ROOT}/0000:00:{slot:02x}.0@pci/virtio{slot}@virtio");
    machine.disk(&on(1), "vda", 8 * GIB, &[]);
    machine.disk(&on(2), "sr0", GIB, &[]);
    machine.disk(&on(3), "sda", 0, &[]);
    machine.disk(&on(4), "sdb", 512 << 20, &[("ro", "1")]);
    machine.disk(&on(5), "sdc", 8 * GIB, &[("ro", "1")]);
    machine.disk(&on(6), "nvme0c0n1", GIB, &[("hidden", "1")]);
    machine.disk(&on(7), "mmcblk0boot0", GIB, &[]);
    machine.disk(&on(8), "sdaa", GIB, &[]);
    machine.disk("virtual/block", "loop0", GIB, &[]);
    machine.disk("virtual/bdi", "drbd0", GIB, &[]);
    machine.disk("virtual/nvme-subsystem/nvme-subsys0", "nvme0n1", GIB, &[]);
    fs::write(machine.0.path().join("sys/block/notes"), "x").unwrap();
    let found: Vec<String> =
        disks(machine.0.path()).into_iter().map(|mut disk| disk.alternate_names.remove(0)).collect();
    assert_eq!(found, ["/dev/sdc", "/dev/vda", "/dev/sdaa", "/dev/nvme0n1"]);
    assert!(disks(Path::new("/nonexistent")).is_empty());
}

#[test]
fn the_inventory_of_a_disk_is_complete() {
    let machine = Machine::new();
    let way = format!("{ROOT}/0000:00:05.0@pci/host0@scsi/target0:0:1@scsi/0:0:1:0@scsi");
    let device = machine.disk(&way, "sda", 480 * GIB, &[("queue/rotational", "1")]);
    machine.write(&device, &[("vendor", "SEAGATE "), ("model", "ST600MM0009     ")]);
    machine.write(&device, &[("wwid", "naa.600508B1001C4D2C85B3B7A5C1234567")]);
    fs::write(device.join("vpd_pg80"), [&[0, 0x80, 0, 8][..], b"  W0M0ABC"].concat()).unwrap();
    let disk = disks(machine.0.path()).remove(0);
    let expected = serde_json::json!({
        "name": "/dev/disk/by-path/pci-0000:00:05.0-scsi-0:0:1:0",
        "alternateNames": ["/dev/sda", "/dev/disk/by-path/pci-0000:00:05.0-scsi-0:0:1:0"],
        "rotational": true, "type": "HDD", "sizeBytes": 515_396_075_520_i64,
        "vendor": "SEAGATE", "model": "ST600MM0009", "serialNumber": "W0M0AB",
        "wwn": "0x600508b1001c4d2c", "wwnVendorExtension": "0x85b3b7a5c1234567",
        "wwnWithExtension": "0x600508b1001c4d2c85b3b7a5c1234567", "hctl": "0:0:1:0",
    });
    assert_eq!(serde_json::to_value(&disk).unwrap(), expected);
}

#[test]
fn nvme_and_ata_drives_tell_their_own_names() {
    let machine = Machine::new();
    let nvme = format!("{ROOT}/0000:01:00.0@pci/nvme/nvme0@nvme");
    let device = machine.disk(&nvme, "nvme0n1", GIB, &[("nsid", "1"), ("wwid", "eui.0025385b71b00001")]);
    machine.write(&device, &[("model", "SAMSUNG MZQL2960"), ("serial", "S64FNE0R")]);
    let ata = format!("{ROOT}/0000:00:1f.2@pci/ata1/host0@scsi/target0:0:0@scsi/0:0:0:0@scsi");
    let device = machine.disk(&ata, "sda", GIB, &[]);
    machine.write(&device, &[("vendor", "ATA     "), ("model", "Micron_5300_MTFD")]);
    let mut page = vec![0; 572];
    page[1] = 0x89;
    let mut put = |word: usize, text: &str| {
        for (index, byte) in text.bytes().enumerate() {
            page[60 + 2 * word + (index ^ 1)] = byte;
        }
    };
    put(10, "20312B7F4D3A        ");
    put(27, "Micron_5300_MTFDDAK960TDS               ");
    for (word, value) in [(87, 0x4100_u16), (108, 0x500a), (109, 0x0751), (110, 0x2b7f), (111, 0x4d3a)] {
        page[60 + 2 * word..][..2].copy_from_slice(&value.to_le_bytes());
    }
    fs::write(device.join("vpd_pg89"), &page).unwrap();
    let found = disks(machine.0.path());
    let (ata, nvme) = (&found[0], &found[1]);
    assert_eq!((ata.model.as_str(), ata.serial_number.as_str()), ("Micron_5300_MTFDDAK960TDS", "20312B7F4D3A"));
    assert_eq!((ata.wwn.as_str(), ata.vendor.as_str()), ("0x500a07512b7f4d3a", "ATA"));
    assert_eq!((ata.type_.as_str(), ata.hctl.as_str()), ("SSD", "0:0:0:0"));
    assert_eq!((nvme.type_.as_str(), nvme.wwn.as_str()), ("NVME", "eui.0025385b71b00001"));
    assert_eq!((nvme.model.as_str(), nvme.serial_number.as_str()), ("SAMSUNG MZQL2960", "S64FNE0R"));
    assert_eq!((nvme.hctl.as_str(), nvme.vendor.as_str()), ("", ""));
    for length in 0..page.len() {
        let mut identity = DiskIdentity::default();
        identity.take_ata(&page[..length]);
        assert_eq!(identity, DiskIdentity::default(), "{length}");
    }
}

#[test]
fn odd_pages_and_ids_are_harmless() {
    assert_eq!(unit_serial(&[]), "");
    assert_eq!(unit_serial(&[0, 0x80, 0xff, 0xff, b'a', 1, 0xff]), "a\u{fffd}");
    assert_eq!(unit_serial(&[0, 0x83, 0, 1, b'a']), "");
    for wwid in ["", "naa.", "naa.xyz", "naa.é0", "t10.ATA     QEMU"] {
        let mut identity = DiskIdentity::default();
        identity.take_wwid(wwid);
        assert_eq!(identity, DiskIdentity::default(), "{wwid}");
    }
    let mut identity = DiskIdentity::default();
    identity.take_wwid("naa.5000c500a0b1c2d3");
    assert_eq!((identity.wwn.as_str(), identity.extension.as_str()), ("0x5000c500a0b1c2d3", ""));
}

#[test]
fn a_stick_is_removable_and_a_hot_plug_bay_is_not() {
    let machine = Machine::new();
    let usb = format!("{ROOT}/0000:00:14.0@pci/usb1@usb/1-3@usb/1-3:1.0@usb");
    let sata = format!("{ROOT}/0000:00:1f.2@pci/ata1");
    for (way, name, removable) in [
        (format!("{usb}/host6/target6:0:0/6:0:0:0@scsi"), "sda", "1"),
        (format!("{usb}/host6/target6:0:0/6:0:0:1@scsi"), "sdb", "0"),
        (format!("{sata}/host0/target0:0:0/0:0:0:0@scsi"), "sdc", "1"),
        (format!("{ROOT}/0000:01:00.0@pci/cciss0/c0d0"), "cciss!c0d0", "0"),
    ] {
        machine.disk(&way, name, 16 * GIB, &[("removable", removable)]);
    }
    let root = machine.0.path();
    let found: Vec<_> = disks(root).iter().map(|disk| (device_path(disk), is_removable(root, disk))).collect();
    let expected = [("/dev/sda", true), ("/dev/sdb", false), ("/dev/sdc", false), ("/dev/cciss!c0d0", false)];
    assert_eq!(found, expected.map(|(name, removable)| (name.into(), removable)));
    let nowhere = Storage { name: "/dev/disk/by-path/x".into(), ..Storage::default() };
    assert!(!is_removable(root, &nowhere));
}

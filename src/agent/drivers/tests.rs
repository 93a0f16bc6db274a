//! Tests of driver loading: modules by alias, cold plug, kernel events.

use super::*;
use std::fs;

const ALIAS: &str = "# Aliases extracted from modules themselves.\n\
    alias pci:v00008086d00001521sv*sd*bc*sc*i* igb\n\
    alias pci:v*d*sv*sd*bc01sc08i02* nvme\n\
    alias pci:v00001AF4d*sv*sd*bc*sc*i* virtio-pci\n\
    alias virtio:d00000001v* virtio_net\n\
    alias virtio:d0000000[28]v* virtio_blk\n\
    alias broken\n\
    alias fs-ext4 ext4\n";
const DEP: &str = "nvme: nvme-core t10-pi\nnvme-core:\nt10_pi: crc_t10dif\nvirtio_net: net_failover failover\n\
                   net_failover: failover\na: b\nb: a\nnonsense\n";

#[test]
fn devices_find_their_modules_and_what_these_need() {
    let catalogue = ModuleCatalogue::parse(ALIAS, DEP);
    assert_eq!(catalogue.modules("pci:v00008086d00001521sv0sd0bc02sc00i00"), ["igb"]);
    assert_eq!(catalogue.modules("pci:v00001AF4d00001041sv0sd0bc01sc08i02"), ["nvme", "virtio_pci"]);
    assert_eq!(catalogue.modules("virtio:d00000008v00001AF4"), ["virtio_blk"]);
    assert!(catalogue.modules("usb:v1").is_empty() && catalogue.modules("no colon").is_empty());
    assert_eq!(catalogue.with_needs("nvme"), ["crc_t10dif", "t10_pi", "nvme_core", "nvme"]);
    assert_eq!(catalogue.with_needs("virtio_net"), ["failover", "net_failover", "virtio_net"]);
    assert_eq!(catalogue.with_needs("a"), ["b", "a"]);
    assert_eq!(catalogue.with_needs("unknown"), ["unknown"]);
}

#[test]
fn coldplug_goes_on_until_nothing_new_appears() {
    let root = tempfile::tempdir().unwrap();
    let modules = root.path().join("lib/modules");
    fs::create_dir_all(&modules).unwrap();
    for module in ["virtio_pci", "virtio_net", "failover", "net_failover", "igb"] {
        fs::write(modules.join(format!("{module}.ko")), "").unwrap();
    }
    let device = root.path().join("sys/devices/pci0000:00/0000:00:03.0");
    fs::create_dir_all(&device).unwrap();
    fs::write(device.join("modalias"), "pci:v00001AF4d00001041sv0sd0bc02sc00i00\n").unwrap();
    fs::create_dir_all(root.path().join("sys/devices/empty")).unwrap();
    fs::write(root.path().join("sys/devices/empty/modalias"), "\n").unwrap();
    let mut loaded = Vec::new();
    let mut insert = |path: &Path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        // The bus driver brings the device on the bus to light.
        if name == "virtio_pci" {
            fs::create_dir_all(device.join("virtio0")).unwrap();
            fs::write(device.join("virtio0/modalias"), "virtio:d00000001v00001AF4\n").unwrap();
        }
        loaded.push(name.clone());
        if name == "failover" { Err(io::Error::other("broken")) } else { Ok(()) }
    };
    let activity = Activity::new();
    let mut loader = Loader {
        folder: modules,
        catalogue: ModuleCatalogue::parse(ALIAS, DEP),
        tried: HashSet::new(),
        activity: activity.clone(),
        insert: &mut insert,
    };
    loader.coldplug(root.path());
    assert!(!loader.serve("virtio:d00000001v00001AF4"), "each module is tried once");
    assert!(!loader.serve("virtio:d00000002v00001AF4"), "modules that are not in the ramdisk are left out");
    assert_eq!(loaded, ["virtio_pci", "failover", "net_failover", "virtio_net"]);
    assert_eq!(activity.0.lock().unwrap().loaded, 3);
}

#[test]
fn network_devices_come_first() {
    let root = tempfile::tempdir().unwrap();
    for (name, modalias) in [("a", "pci:v1d1sv0sd0bc01sc08i02"), ("b", "pci:v1d2sv0sd0bc02sc00i00"), ("c", "acpi:X:")] {
        let device = root.path().join("sys/devices").join(name);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("modalias"), modalias).unwrap();
    }
    let found = modaliases(root.path());
    assert_eq!(found, ["pci:v1d2sv0sd0bc02sc00i00", "acpi:X:", "pci:v1d1sv0sd0bc01sc08i02"]);
}

#[test]
fn kernel_events_are_read() {
    let event = b"add@/devices/pci0000:00\0ACTION=add\0SUBSYSTEM=pci\0MODALIAS=pci:v1\0SEQNUM=9\0";
    assert_eq!(Uevent::parse(event), Some(Uevent { action: "add", modalias: Some("pci:v1") }));
    assert_eq!(Uevent::parse(b"remove@/x\0"), Some(Uevent { action: "remove", modalias: None }));
    for bad in [&b""[..], b"libudev\0", b"\xff@\0"] {
        assert_eq!(Uevent::parse(bad), None);
    }
    for length in 0..event.len() {
        let _either = Uevent::parse(&event[..length]);
    }
}

#[tokio::test]
async fn waiting_for_devices_has_an_end() {
    let activity = Activity::new();
    let short = Duration::from_millis(60);
    assert!(!activity.settled(Duration::ZERO, short).await, "not coldplugged yet");
    activity.update(|state| state.coldplugged = true);
    assert!(activity.settled(Duration::from_millis(10), Duration::from_secs(10)).await);
    activity.update(|state| state.loading = Some(("megaraid_sas".into(), Instant::now())));
    assert!(!activity.settled(Duration::ZERO, short).await, "still loading");
}

//! UEFI boot entries in a folder.

use super::super::bootentry::{LoadOption, set_boot_entry};
use super::*;

const GUID: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

fn esp() -> LoadOption {
    LoadOption {
        description: "Slipway: disk".into(),
        active: true,
        partition: 1,
        first: 2048,
        length: 8192,
        guid: *b"0123456789abcdef",
        loader: r"\EFI\BOOT\BOOTX64.EFI".into(),
    }
}

#[test]
fn load_options_are_as_the_specification_has_them() {
    let bytes = esp().encode();
    assert_eq!(bytes[..6], [1, 0, 0, 0, 42 + 48 + 4, 0]);
    assert_eq!(bytes[6..10], [b'S', 0, b'l', 0]);
    let path = &bytes[6 + 28..];
    assert_eq!(path[..8], [4, 1, 42, 0, 1, 0, 0, 0]);
    assert_eq!(path[8..24], [0, 8, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0]);
    assert_eq!(path[40..48], [2, 2, 4, 4, 48, 0, b'\\', 0]);
    assert_eq!(path[path.len() - 6..], [0, 0, 0x7f, 0xff, 4, 0]);
    assert_eq!(LoadOption::decode(&bytes), Some(esp()));
    for length in 0..bytes.len() {
        let _ = LoadOption::decode(&bytes[..length]);
    }
    // What OVMF writes for its own network boot is another kind.
    assert_eq!(LoadOption::decode(&[1, 0, 0, 0, 4, 0, b'x', 0, 0, 0, 2, 1, 12, 0]), None);
}

#[test]
fn the_entry_comes_first_once_and_the_others_stay() {
    let disk = TestDisk::file(32);
    run("sgdisk", &["-Z", "-n", "1:8192:0", "-n", "15:2048:+2M", "-t", "15:ef00", text(&disk.path)]);
    let folder = tempfile::tempdir().expect("folder");
    let vars = folder.path().join("efivars");
    assert_eq!(set_boot_entry(&folder.path().join("no/efivars"), &disk.path).expect("BIOS"), None);
    let error = set_boot_entry(&vars, &disk.path).expect_err("not mounted").to_string();
    assert!(error.contains("is efivarfs mounted?"), "{error}");
    fs::create_dir(&vars).expect("folder");
    let at = |name: &str| vars.join(format!("{name}-{GUID}"));
    let put = |name: &str, data: &[u8]| fs::write(at(name), [&[7, 0, 0, 0], data].concat()).expect("written");
    let net = [&[1, 0, 0, 0, 4, 0][..], &[b'n', 0, 0, 0], &[0x7f, 0xff, 4, 0]].concat();
    let old = LoadOption { description: "Slipway: sdx".into(), guid: [9; 16], ..esp() };
    let slip = LoadOption { description: "Slipways are fun".into(), ..esp() };
    put("Boot0000", &net);
    put("Boot0001", &slip.encode());
    put("Boot0003", &old.encode());
    put("Boot00AB", &old.encode());
    put("BootOrder", &[0, 0, 0xab, 0, 3, 0, 1, 0]);
    put("BootCurrent", &[0, 0]);
    let locked = nix::unistd::geteuid().is_root()
        && Command::new("chattr").arg("+i").args([at("Boot0003"), at("BootOrder")]).status().is_ok_and(|s| s.success());

    assert_eq!(set_boot_entry(&vars, &disk.path).expect("set").as_deref(), Some("Boot0003"));
    let read = |name: &str| fs::read(at(name)).expect("variable");
    assert_eq!(read("BootOrder"), [7, 0, 0, 0, 3, 0, 0, 0, 1, 0], "locked: {locked}");
    assert!(!at("Boot00AB").exists());
    assert_eq!(read("Boot0000")[4..], net);
    let set = LoadOption::decode(&read("Boot0003")[4..]).expect("option");
    assert_eq!((set.partition, set.first, set.length, set.active), (15, 2048, 4096, true));
    assert_eq!(set.description, "Slipway: disk");
    let shown = run("sgdisk", &["-i", "15", text(&disk.path)]);
    let guid = uuid::Uuid::from_bytes_le(set.guid).to_string().to_uppercase();
    assert!(shown.contains(&guid), "{guid}: {shown}");

    // Again: nothing is written.
    let written = |name: &str| fs::metadata(at(name)).and_then(|m| m.modified()).expect("time");
    let before = (written("Boot0003"), written("BootOrder"));
    assert_eq!(set_boot_entry(&vars, &disk.path).expect("set").as_deref(), Some("Boot0003"));
    assert_eq!((written("Boot0003"), written("BootOrder")), before);

    // No entry of ours yet, no order at all.
    for name in ["Boot0003", "BootOrder"] {
        fs::remove_file(at(name)).expect("removed");
    }
    assert_eq!(set_boot_entry(&vars, &disk.path).expect("set").as_deref(), Some("Boot0002"));
    assert_eq!(read("BootOrder"), [7, 0, 0, 0, 2, 0]);

    run("sgdisk", &["-d", "15", text(&disk.path)]);
    let error = set_boot_entry(&vars, &disk.path).expect_err("no ESP").to_string();
    assert!(error.contains("no EFI system partition"), "{error}");
}

//! Root device hints: which disk is the root disk.

use crate::api::metal3::{RootDeviceHints, Storage};

const GIB: i64 = 1 << 30;
/// Without hints, smaller disks are not meant for an operating system (as in Ironic).
const SMALLEST: i64 = 4 * GIB;

/// No disk is the root disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRootDisk {
    /// The machine shows none at all.
    #[error("the machine has no disk: check its controllers, and that the ramdisk has their drivers")]
    NoDisks,
    /// Each disk with what excludes it.
    #[error("no disk matches the root device hints: {}", .0.join("; "))]
    NoMatch(Vec<String>),
    /// Each disk with its size, and whether it is removable.
    #[error("no fixed disk is larger than 4 GiB, and there are no root device hints: {}", .0.join("; "))]
    NoneFit(Vec<String>),
}

/// The root disk: the first that fits every hint; without hints the smallest over 4 GiB that is not `removable`: a stick
/// that somebody forgot, or what a BMC shows as one, is no disk of the server.
///
/// Model and vendor match a part, everything else the whole; case does not count.
pub fn choose<'a>(
    disks: &'a [Storage],
    hints: Option<&RootDeviceHints>,
    removable: impl Fn(&Storage) -> bool,
) -> Result<&'a Storage, NoRootDisk> {
    if disks.is_empty() {
        return Err(NoRootDisk::NoDisks);
    }
    let given = hints.map(given).filter(|hints| *hints != RootDeviceHints::default());
    let Some(hints) = &given else {
        let fit = disks.iter().filter(|disk| disk.size_bytes > SMALLEST && !removable(disk));
        return fit.min_by_key(|disk| disk.size_bytes).ok_or_else(|| {
            let what = |disk: &Storage| if removable(disk) { ", removable" } else { "" };
            let each = disks.iter().map(|disk| format!("{}: {}{}", shown(disk), gib(disk.size_bytes), what(disk)));
            NoRootDisk::NoneFit(each.collect())
        });
    };
    let mut reasons = Vec::new();
    for disk in disks {
        let wrong = mismatches(disk, hints);
        if wrong.is_empty() {
            return Ok(disk);
        }
        reasons.push(format!("{}: {}", shown(disk), wrong.join(", ")));
    }
    Err(NoRootDisk::NoMatch(reasons))
}

/// An empty text is no hint, as in Metal3: taken for one it would fit the disks that say nothing of themselves.
fn given(hints: &RootDeviceHints) -> RootDeviceHints {
    let text = |hint: &Option<String>| hint.clone().filter(|text| !text.trim().is_empty());
    RootDeviceHints {
        device_name: text(&hints.device_name),
        hctl: text(&hints.hctl),
        model: text(&hints.model),
        vendor: text(&hints.vendor),
        serial_number: text(&hints.serial_number),
        wwn: text(&hints.wwn),
        wwn_with_extension: text(&hints.wwn_with_extension),
        wwn_vendor_extension: text(&hints.wwn_vendor_extension),
        min_size_gigabytes: hints.min_size_gigabytes,
        rotational: hints.rotational,
    }
}

/// What keeps a disk from fitting the hints.
fn mismatches(disk: &Storage, hints: &RootDeviceHints) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(name) = &hints.device_name
        && !disk.alternate_names.iter().chain([&disk.name]).any(|n| n.eq_ignore_ascii_case(name))
    {
        wrong.push(format!("not {name}"));
    }
    for (what, hint, value) in [
        ("hctl", &hints.hctl, &disk.hctl),
        ("serial number", &hints.serial_number, &disk.serial_number),
        ("wwn", &hints.wwn, &disk.wwn),
        ("wwn with extension", &hints.wwn_with_extension, &disk.wwn_with_extension),
        ("wwn vendor extension", &hints.wwn_vendor_extension, &disk.wwn_vendor_extension),
    ] {
        if let Some(hint) = hint
            && hint.trim().to_lowercase() != value.trim().to_lowercase()
        {
            wrong.push(format!("{what} {value:?} is not {hint:?}"));
        }
    }
    for (what, hint, value) in [("model", &hints.model, &disk.model), ("vendor", &hints.vendor, &disk.vendor)] {
        if let Some(hint) = hint
            && !value.to_lowercase().contains(&hint.trim().to_lowercase())
        {
            wrong.push(format!("{what} {value:?} does not contain {hint:?}"));
        }
    }
    if let Some(size) = hints.min_size_gigabytes
        && disk.size_bytes / GIB < size
    {
        wrong.push(format!("size {} < {size} GiB", gib(disk.size_bytes)));
    }
    if let Some(rotational) = hints.rotational
        && rotational != disk.rotational
    {
        wrong.push(if rotational { "not rotational" } else { "rotational" }.into());
    }
    wrong
}

/// The kernel's name, which is what people know a disk by.
fn shown(disk: &Storage) -> String {
    super::device_path(disk).display().to_string()
}

fn gib(bytes: i64) -> String {
    let tenths = bytes.saturating_mul(10) / GIB;
    if tenths % 10 == 0 { format!("{} GiB", tenths / 10) } else { format!("{}.{} GiB", tenths / 10, tenths % 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks() -> Vec<Storage> {
        let disk = |name: &str, gib: i64, model: &str, serial: &str, rotational| Storage {
            name: format!("/dev/disk/by-path/pci-{name}"),
            alternate_names: vec![format!("/dev/{name}"), format!("/dev/disk/by-path/pci-{name}")],
            size_bytes: gib * GIB,
            model: model.into(),
            vendor: "ACME".into(),
            serial_number: serial.into(),
            wwn: format!("0x5000{serial}"),
            hctl: format!("0:0:{gib}:0"),
            rotational,
            ..Storage::default()
        };
        vec![
            disk("sda", 4, "SATA DOM", "A1", false),
            disk("sdb", 2000, "Barracuda ST2000", "B2", true),
            disk("sdc", 480, "Micron 5300", "C3", false),
            disk("nvme0n1", 480, "Samsung PM9A3", "D4", false),
        ]
    }

    fn fixed(_: &Storage) -> bool {
        false
    }

    #[test]
    fn hints_choose_by_all_of_them() {
        type Set = fn(&mut RootDeviceHints);
        let cases: [(Set, Option<&str>); 16] = [
            (|_| (), Some("/dev/sdc")),
            (|h| h.device_name = Some("/dev/sdb".into()), Some("/dev/sdb")),
            (|h| h.device_name = Some("/dev/disk/by-path/pci-nvme0n1".into()), Some("/dev/nvme0n1")),
            (|h| h.device_name = Some("/dev/sd".into()), None),
            (|h| h.model = Some("samsung".into()), Some("/dev/nvme0n1")),
            (|h| h.vendor = Some("cm".into()), Some("/dev/sda")),
            (|h| h.serial_number = Some("c3".into()), Some("/dev/sdc")),
            (|h| h.serial_number = Some("c".into()), None),
            (|h| h.wwn = Some("0x5000B2".into()), Some("/dev/sdb")),
            (|h| h.hctl = Some("0:0:480:0".into()), Some("/dev/sdc")),
            (|h| h.rotational = Some(true), Some("/dev/sdb")),
            (|h| h.rotational = Some(false), Some("/dev/sda")),
            (|h| h.min_size_gigabytes = Some(481), Some("/dev/sdb")),
            (|h| h.min_size_gigabytes = Some(480), Some("/dev/sdb")),
            (|h| (h.min_size_gigabytes, h.rotational) = (Some(5), Some(false)), Some("/dev/sdc")),
            (|h| h.wwn_vendor_extension = Some("x".into()), None),
        ];
        let disks = disks();
        for (number, (set, expected)) in cases.iter().enumerate() {
            let mut hints = RootDeviceHints::default();
            set(&mut hints);
            for removable in [false, true] {
                let found = choose(&disks, Some(&hints), |_| removable && hints != RootDeviceHints::default());
                assert_eq!(found.ok().map(shown).as_deref(), *expected, "case {number}: {hints:?}");
            }
        }
        assert_eq!(choose(&disks, None, fixed).map(shown), Ok("/dev/sdc".into()));
    }

    #[test]
    fn an_empty_hint_is_none() {
        let mut disks = disks();
        // A virtual disk that says nothing of itself, before all others.
        let silent = Storage { size_bytes: 8 * GIB, alternate_names: vec!["/dev/sd0".into()], ..Storage::default() };
        disks.insert(0, silent);
        type Set = fn(&mut RootDeviceHints) -> &mut Option<String>;
        let texts: [Set; 8] = [
            |h| &mut h.device_name,
            |h| &mut h.hctl,
            |h| &mut h.model,
            |h| &mut h.vendor,
            |h| &mut h.serial_number,
            |h| &mut h.wwn,
            |h| &mut h.wwn_with_extension,
            |h| &mut h.wwn_vendor_extension,
        ];
        for (number, text) in texts.iter().enumerate() {
            for empty in ["", " "] {
                let mut hints = RootDeviceHints { rotational: Some(true), ..RootDeviceHints::default() };
                *text(&mut hints) = Some(empty.into());
                assert_eq!(choose(&disks, Some(&hints), fixed).map(shown), Ok("/dev/sdb".into()), "{number}");
                hints.rotational = None;
                let chosen = choose(&disks, Some(&hints), |disk| disk.model.is_empty()).map(shown);
                assert_eq!(chosen, Ok("/dev/sdc".into()), "{number}");
            }
        }
    }

    #[test]
    fn without_hints_no_removable_disk_is_the_root_disk() {
        let mut disks = disks();
        // An 8 GB stick, and one of 16 GB: both smaller than every disk of the server.
        for (name, bytes) in [("sdd", 8_000_000_000), ("sde", 16_000_000_000)] {
            let names = vec![format!("/dev/{name}")];
            disks.push(Storage { size_bytes: bytes, alternate_names: names, ..disks[0].clone() });
        }
        let stick = |disk: &Storage| ["/dev/sdd", "/dev/sde"].contains(&shown(disk).as_str());
        assert_eq!(choose(&disks, None, stick).map(shown), Ok("/dev/sdc".into()));
        let hints = RootDeviceHints { device_name: Some("/dev/sde".into()), ..RootDeviceHints::default() };
        assert_eq!(choose(&disks, Some(&hints), stick).map(shown), Ok("/dev/sde".into()), "who names it wants it");
        let error = choose(&disks[4..], None, stick).expect_err("sticks alone").to_string();
        assert!(error.ends_with("hints: /dev/sdd: 7.4 GiB, removable; /dev/sde: 14.9 GiB, removable"), "{error}");
    }

    #[test]
    fn the_error_says_what_excluded_each_disk() {
        let hints =
            RootDeviceHints { min_size_gigabytes: Some(3000), rotational: Some(false), ..RootDeviceHints::default() };
        let error = choose(&disks()[..2], Some(&hints), fixed).expect_err("none").to_string();
        assert_eq!(
            error,
            "no disk matches the root device hints: /dev/sda: size 4 GiB < 3000 GiB; \
             /dev/sdb: size 2000 GiB < 3000 GiB, rotational"
        );
        let error = choose(&disks()[..1], None, fixed).expect_err("small").to_string();
        assert!(error.ends_with("no root device hints: /dev/sda: 4 GiB"), "{error}");
        assert_eq!(choose(&[], None, fixed), Err(NoRootDisk::NoDisks));
    }
}

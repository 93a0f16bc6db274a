//! Metadata erase.

use super::super::erase::{candidates, erase_all, erase_disk};
use super::*;

#[test]
fn nothing_is_recognised_on_an_erased_disk() {
    for disk in TestDisk::both(96) {
        let path = text(&disk.path);
        run("sgdisk", &["-Z", "-n", "1:2048:+32M", "-n", "2:0:+8M", "-n", "3:0:+16M", path]);
        let mkfs = |offset: usize, blocks: &str| {
            let options = format!("offset={}", offset * MIB);
            run("mkfs.ext4", &["-q", "-F", "-E", &options, path, blocks]);
        };
        mkfs(1, "32768k");
        mkfs(41, "16384k");
        // LVM's label in the second partition, an md 1.0 superblock at the end of the disk, a ZFS-like label there.
        let mut content = disk.content();
        content[33 * MIB + 512..][..8].copy_from_slice(b"LABELONE");
        let end = content.len() - 8192;
        content[end..end + 4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
        let keep = content[20 * MIB..21 * MIB].to_vec();
        fs::write(&disk.path, content).expect("written");
        erase_disk(&disk.path).expect("erased");
        let found = Command::new("wipefs").arg("-n").arg(path).output().expect("wipefs");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
        let content = disk.content();
        for (from, to) in [(0, 4), (32, 34), (40, 42), (56, 57), (92, 96)] {
            assert!(content[from * MIB..to * MIB].iter().all(|b| *b == 0), "MiB {from} to {to}");
        }
        assert!(content[20 * MIB..21 * MIB] == keep, "only metadata is erased");
        erase_disk(&disk.path).expect("erased again");
    }
}

#[test]
fn logical_partitions_and_backup_tables_are_found() {
    let folder = tempfile::tempdir().expect("folder");
    let script = folder.path().join("script");
    fs::write(&script, "label: dos\n2048,8192\n16384,,E\n18432,8192\n30720,8192\n").expect("written");
    let disk = TestDisk::file(32);
    let input = fs::File::open(&script).expect("open");
    assert!(Command::new("sfdisk").arg("-q").arg(&disk.path).stdin(input).status().expect("sfdisk").success());
    erase_disk(&disk.path).expect("erased");
    let content = disk.content();
    assert!(content[30720 * 512..][..MIB].iter().all(|b| *b == 0), "the second logical partition");
    // A disk whose primary GPT is gone.
    let disk = TestDisk::file(64);
    run("sgdisk", &["-Z", "-n", "1:49152:+8M", text(&disk.path)]);
    let mut content = disk.content();
    content[..34 * 512].fill(0);
    fs::write(&disk.path, content).expect("written");
    erase_disk(&disk.path).expect("erased");
    assert!(disk.content()[24 * MIB..25 * MIB].iter().all(|b| *b == 0));
}

#[test]
fn disks_are_chosen_and_errors_name_them() {
    let folder = tempfile::tempdir().expect("folder");
    for (name, size, ro, removable, hidden) in [
        ("sda", 1 << 30, 0, 0, 0),
        ("nvme0n1", 1 << 30, 0, 0, 0),
        ("nvme0c0n1", 1 << 30, 0, 0, 1),
        ("cciss!c0d0", 1 << 30, 0, 0, 0),
        ("sdb", 1 << 30, 1, 0, 0),
        ("sdc", 1 << 20, 0, 1, 0),
        ("sdd", 1 << 30, 0, 1, 0),
        ("sde", 0, 0, 1, 0),
        ("sr0", 1 << 30, 0, 1, 0),
        ("loop0", 1 << 30, 0, 0, 0),
        ("zram0", 1 << 30, 0, 0, 0),
        ("dm-0", 1 << 30, 0, 0, 0),
        ("md127", 1 << 30, 0, 0, 0),
        ("mmcblk0", 1 << 30, 0, 0, 0),
        ("mmcblk0boot0", 8192, 0, 0, 0),
    ] {
        let at = folder.path().join(name);
        fs::create_dir(&at).expect("folder");
        for (file, value) in [("size", size), ("ro", ro), ("removable", removable), ("hidden", hidden)] {
            fs::write(at.join(file), format!("{value}\n")).expect("written");
        }
    }
    let found = candidates(folder.path()).expect("listed");
    let found: Vec<_> = found.iter().map(|path| text(path)).collect();
    assert_eq!(found, ["/dev/cciss/c0d0", "/dev/mmcblk0", "/dev/nvme0n1", "/dev/sda", "/dev/sdd"]);

    let good = TestDisk::file(16);
    let disks = ["/dev/not-there".into(), good.path.clone(), folder.path().to_owned()];
    let mut seen = 0;
    let mut count = |_: &Path| {
        seen += 1;
        true
    };
    let error = erase_all(&disks, &mut count).expect_err("two fail").to_string();
    assert!(error.starts_with("not erased: /dev/not-there: open: No such file"), "{error}");
    assert!(error.contains(text(folder.path())), "{error}");
    assert_eq!(seen, 3);
    assert!(good.content()[..4 * MIB].iter().all(|b| *b == 0), "the others are erased all the same");
    let only = std::slice::from_ref(&good.path);
    assert_eq!(erase_all(only, |_| true).expect("erased"), text(&good.path));
    let error = erase_all(only, |_| false).expect_err("cancelled").to_string();
    assert!(error.contains("cancelled before it was erased"), "{error}");
}

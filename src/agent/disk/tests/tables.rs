//! Partition tables after an image was written, checked by the usual tools.

use super::super::config::write_config_drive;
use super::super::device::BlockDevice;
use super::super::gpt::{Gpt, TYPE_ESP};
use super::super::write::write_image;
use super::*;

/// A GPT image: BIOS boot partition 14, ESP 15, root 1, as Debian's cloud images have.
fn gpt_image(folder: &Path) -> Vec<u8> {
    let path = folder.join("image");
    fs::write(&path, vec![0; 24 * MIB]).expect("written");
    run(
        "sgdisk",
        &[
            "-n",
            "14:2048:+1M",
            "-t",
            "14:ef02",
            "-n",
            "15:4096:+4M",
            "-t",
            "15:ef00",
            "-n",
            "1:12288:0",
            "-t",
            "1:8300",
            "-c",
            "1:root",
            text(&path),
        ],
    );
    fs::read(path).expect("read")
}

fn iso(seed: u8) -> Vec<u8> {
    let drive = crate::image::configdrive::ConfigDrive {
        meta_data: serde_json::json!({ "uuid": seed }),
        user_data: Some(junk(5000, seed)),
        network_data: None,
    };
    crate::image::configdrive::build(&drive).expect("ISO")
}

async fn install(content: &[u8], disk: &TestDisk) {
    let (source, manifest) = image(content);
    write_image(shared(source).1, &manifest, &disk.path, |_| {}).await.expect("written");
}

fn label(disk: &TestDisk, offset: u64) -> String {
    run("blkid", &["-p", "-o", "export", "-O", &offset.to_string(), text(&disk.path)])
}

#[tokio::test]
async fn the_backup_gpt_moves_to_the_end_and_the_config_drive_follows_the_others() {
    let folder = tempfile::tempdir().expect("folder");
    let content = gpt_image(folder.path());
    for disk in TestDisk::both(64) {
        install(&content, &disk).await;
        let check = |disk: &TestDisk| {
            let report = run("sgdisk", &["-v", text(&disk.path)]);
            assert!(report.contains("No problems found"), "{report}");
            run("sfdisk", &["--verify", text(&disk.path)]);
        };
        check(&disk);
        let before =
            Gpt::read(&BlockDevice::open(&disk.path).expect("open")).expect("read").expect("table").partitions();
        assert_eq!(before.iter().map(|p| p.number).collect::<Vec<_>>(), [1, 14, 15]);
        assert_eq!(before[2].kind, TYPE_ESP);
        assert_eq!((before[0].name.as_str(), before[0].first), ("root", 12288));
        let old_backup = &disk.content()[24 * MIB - 33 * 512..24 * MIB];
        assert!(old_backup.iter().all(|b| *b == 0), "the image's backup table is gone");

        let first = write_config_drive(&disk.path, &iso(1)).expect("config drive");
        check(&disk);
        assert_eq!((first.number, first.length, first.offset), (16, MIB as u64, 62 * MIB as u64));
        assert!(label(&disk, first.offset).contains("LABEL=config-2"));
        let second = write_config_drive(&disk.path, &iso(2)).expect("replaced");
        assert_eq!(second, first);
        check(&disk);
        let content = disk.content();
        assert!(content[first.offset as usize..].starts_with(&iso(2)));
        let after =
            Gpt::read(&BlockDevice::open(&disk.path).expect("open")).expect("read").expect("table").partitions();
        assert_eq!(after[..3], before[..]);
        assert_eq!((after.len(), after[3].name.as_str()), (4, "config-2"));
        // The root partition can grow up to the config drive, as growpart does it.
        let (start, end) = (12288, first.offset / 512 - 1);
        run("sgdisk", &["-d", "1", "-n", &format!("1:{start}:{end}"), text(&disk.path)]);
        check(&disk);
    }
}

#[tokio::test]
async fn a_dos_table_gets_a_primary_partition_once() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("image");
    fs::write(&path, vec![0; 8 * MIB]).expect("written");
    let script = folder.path().join("script");
    let make = |text_: &str| {
        fs::write(&script, text_).expect("written");
        let input = fs::File::open(&script).expect("open");
        let status = Command::new("sfdisk").arg("-q").arg(&path).stdin(input).status().expect("sfdisk");
        assert!(status.success());
        fs::read(&path).expect("read")
    };
    let content = make("label: dos\nstart=2048,size=4096,type=83,bootable\nstart=8192,size=2048,type=82\n");
    for disk in TestDisk::both(32) {
        install(&content, &disk).await;
        let placed = write_config_drive(&disk.path, &iso(1)).expect("config drive");
        assert_eq!((placed.number, placed.offset), (3, 31 * MIB as u64));
        assert_eq!(write_config_drive(&disk.path, &iso(2)).expect("replaced"), placed);
        let dump = run("sfdisk", &["-d", text(&disk.path)]);
        assert_eq!(dump.matches("start=").count(), 3, "{dump}");
        assert!(dump.contains("bootable"), "{dump}");
        run("sfdisk", &["--verify", text(&disk.path)]);
        assert!(label(&disk, placed.offset).contains("LABEL=config-2"));
        assert!(disk.content()[placed.offset as usize..].starts_with(&iso(2)));
    }
    let full = make("label: dos\n2048,2048\n4096,2048\n6144,2048\n8192,2048\n");
    let disk = TestDisk::file(16);
    install(&full, &disk).await;
    let error = write_config_drive(&disk.path, &iso(1)).expect_err("full").to_string();
    assert!(error.contains("all four primary partitions"), "{error}");
}

#[tokio::test]
async fn a_config_drive_without_a_place_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("folder");
    let disk = TestDisk::file(24);
    install(&gpt_image(folder.path()), &disk).await;
    let before = disk.content();
    let error = write_config_drive(&disk.path, &iso(1)).expect_err("full").to_string();
    assert!(error.contains("no room for the config drive: it needs 1 MiB"), "{error}");
    assert!(error.starts_with(text(&disk.path)), "{error}");
    assert!(disk.content() == before, "nothing was changed");
    let plain = TestDisk::file(16);
    install(&junk(2 * MIB, 4), &plain).await;
    let error = write_config_drive(&plain.path, &iso(1)).expect_err("no table").to_string();
    assert!(error.contains("no partition table"), "{error}");
    assert!(write_config_drive(&plain.path, &[]).is_err());
    assert!(write_config_drive(&plain.path, &vec![0; 65 * MIB]).is_err());
}

#[tokio::test]
async fn an_image_for_other_sectors_or_with_a_damaged_table_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let good = gpt_image(folder.path());
    if let Some(disk) = TestDisk::looped(64, 4096) {
        let (source, manifest) = image(&good);
        let error =
            write_image(shared(source).1, &manifest, &disk.path, |_| {}).await.expect_err("sectors").to_string();
        assert!(error.contains("made for sectors of 512 bytes, the disk has sectors of 4096"), "{error}");
        run("sgdisk", &["-Z", "-n", "1:0:+8M", text(&disk.path)]);
        let placed = write_config_drive(&disk.path, &iso(1)).expect("config drive");
        assert!(run("sgdisk", &["-v", text(&disk.path)]).contains("No problems found"));
        assert!(label(&disk, placed.offset).contains("LABEL=config-2"));
    }
    for (at, value) in [(512 + 20, 1), (512 + 80, 255), (1024 + 40, 9), (512 + 12, 200)] {
        let mut bad = good.clone();
        bad[at] = value;
        let disk = TestDisk::file(64);
        let (source, manifest) = image(&bad);
        let error =
            write_image(shared(source).1, &manifest, &disk.path, |_| {}).await.expect_err("damaged").to_string();
        assert!(error.contains("the GPT is damaged"), "{error}");
    }
    // Headers with right checksums and hostile numbers.
    let disk = TestDisk::file(64);
    for seed in 0..200_u8 {
        let mut bad = good.clone();
        let numbers = junk(16, seed);
        bad[512 + 24 + usize::from(numbers[0]) % 64] = numbers[1];
        bad[512 + 24 + usize::from(numbers[2]) % 64] = numbers[3];
        bad[512 + 16..512 + 20].fill(0);
        let mut crc = flate2::Crc::new();
        crc.update(&bad[512..604]);
        let sum = crc.sum().to_le_bytes();
        bad[512 + 16..512 + 20].copy_from_slice(&sum);
        fs::write(&disk.path, bad).expect("written");
        let device = BlockDevice::open(&disk.path).expect("open");
        if let Ok(Some(mut table)) = Gpt::read(&device) {
            let _ = table.partitions();
            let _ = table.write(&device);
        }
    }
}

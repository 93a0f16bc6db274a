//! Metadata erase: partition tables and the signatures of file systems, volume managers and RAID.
//!
//! Zeroed are the first and last 4 MiB of each disk, the first and last MiB of each of its partitions, and the
//! mirrors of btrfs' superblock. That covers GPT (both), LVM, md (0.9 and 1.0 at the end, 1.1 and 1.2 at the
//! start), ZFS labels (512 KiB at both ends), vendor RAID metadata at the end, and every file system that blkid
//! knows. The tables go last: when an erase is interrupted, the next one still finds the partitions. Everything
//! is read back from the device.

use std::fs;
use std::path::{Path, PathBuf};

use super::DiskError;
use super::device::{BlockDevice, Buffer};
use super::gpt::Gpt;
use super::mbr::Mbr;

/// Zeroed at both ends of a disk.
const DISK_ENDS: u64 = 4 << 20;
/// Zeroed at both ends of a partition.
const PARTITION_ENDS: u64 = 1 << 20;
/// Where btrfs keeps copies of its superblock, from the start of disk or partition.
const BTRFS_MIRRORS: [u64; 2] = [64 << 20, 256 << 30];
const BTRFS_SUPERBLOCK: u64 = 4096;
/// Removable devices up to this size are virtual media or an administrator's stick, not disks of the server.
const REMOVABLE: u64 = 8 << 30;
/// Devices that are no disks of their own.
const NO_DISK: [&str; 9] = ["loop", "ram", "zram", "sr", "fd", "md", "dm-", "nbd", "mtd"];

/// Disks below `/sys/block` (a parameter, for tests), as `/dev/<name>`, sorted. Read-only, hidden, empty and
/// small removable devices are left out, and what is not a disk.
pub fn candidates(sys_block: &Path) -> Result<Vec<PathBuf>, DiskError> {
    let entries = fs::read_dir(sys_block).map_err(|e| DiskError::io(sys_block, "list the disks", e))?;
    let mut disks = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = |file: &str| {
            fs::read_to_string(entry.path().join(file))
                .ok()
                .and_then(|text| text.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        // The size is in units of 512 bytes, whatever the sectors are.
        let size = number("size").saturating_mul(512);
        let other = NO_DISK.iter().any(|prefix| name.starts_with(prefix))
            || (name.starts_with("mmcblk") && (name.contains("boot") || name.contains("rpmb")));
        let small = number("removable") == 1 && size <= REMOVABLE;
        if !other && !small && size > 0 && number("ro") == 0 && number("hidden") == 0 {
            // The kernel writes `!` where a device's name has a `/`.
            disks.push(Path::new("/dev").join(name.replace('!', "/")));
        }
    }
    disks.sort();
    Ok(disks)
}

/// Erases the metadata of every disk, also after one has failed; gives their names. Blocks.
///
/// `goes_on` gets each disk before it is erased, and says whether it may be.
pub fn erase_all(disks: &[PathBuf], mut goes_on: impl FnMut(&Path) -> bool) -> Result<String, DiskError> {
    let (mut erased, mut failed) = (Vec::new(), Vec::new());
    for disk in disks {
        if !goes_on(disk) {
            failed.push(format!("{}: cancelled before it was erased", disk.display()));
            continue;
        }
        match erase_disk(disk) {
            Ok(()) => erased.push(disk.display().to_string()),
            Err(error) => failed.push(error.to_string()),
        }
    }
    if failed.is_empty() { Ok(erased.join(", ")) } else { Err(DiskError::Erase(failed)) }
}

/// Erases the metadata of one disk and reads it back.
pub fn erase_disk(path: &Path) -> Result<(), DiskError> {
    let disk = BlockDevice::open(path)?;
    let inner = inside(&disk);
    let outer = around(0, disk.size(), DISK_ENDS);
    for ranges in [&inner, &outer] {
        for (offset, length) in ranges {
            disk.zero(*offset, *length)?;
        }
        disk.sync()?;
    }
    for (offset, length) in inner.iter().chain(&outer) {
        verify(&disk, *offset, *length)?;
    }
    disk.reread_partitions();
    Ok(())
}

/// What is zeroed of a disk or partition, whole sectors of 4 KiB where it has them.
fn around(start: u64, end: u64, ends: u64) -> Vec<(u64, u64)> {
    let length = end.saturating_sub(start);
    let mut ranges = vec![(start, length.min(ends))];
    if length > ends {
        let tail = (end - ends.min(length)) / 4096 * 4096;
        let tail = tail.max(start);
        ranges.push((tail, end - tail));
    }
    for mirror in BTRFS_MIRRORS {
        if mirror + BTRFS_SUPERBLOCK <= length {
            ranges.push((start + mirror, BTRFS_SUPERBLOCK));
        }
    }
    ranges.retain(|(_, length)| *length > 0);
    ranges
}

/// The ranges of the partitions. Damaged tables have none: this is best effort, the ends of the disk are not.
fn inside(disk: &BlockDevice) -> Vec<(u64, u64)> {
    let sector = disk.sector();
    let backup = (disk.size() / sector).saturating_sub(1);
    let mut spans = Vec::new();
    let tables = [Gpt::read(disk).ok().flatten(), Gpt::read_at(disk, backup).ok()];
    for partition in tables.iter().flatten().flat_map(Gpt::partitions) {
        spans.push((partition.first, partition.last.saturating_add(1)));
    }
    if let Ok(Some(mbr)) = Mbr::read(disk) {
        spans.extend(mbr.partitions().iter().map(|p| (p.first, p.first + p.length)));
        spans.extend(mbr.starts(disk).iter().map(|first| (*first, first + PARTITION_ENDS / sector)));
    }
    spans.sort_unstable();
    spans.dedup();
    let bytes = |sectors: u64| sectors.saturating_mul(sector).min(disk.size());
    spans.into_iter().flat_map(|(first, end)| around(bytes(first), bytes(end), PARTITION_ENDS)).collect()
}

fn verify(disk: &BlockDevice, offset: u64, length: u64) -> Result<(), DiskError> {
    let mut buffer = Buffer::new(1 << 20);
    let mut at = offset;
    while at < offset + length {
        let count = (offset + length - at).min(buffer.len() as u64) as usize;
        disk.read_bulk(at, count, &mut buffer)?;
        if buffer[..count].iter().any(|byte| *byte != 0) {
            return Err(DiskError::table(
                disk.path(),
                format!("byte {at} and what follows does not read as zeros after the erase"),
            ));
        }
        at += count as u64;
    }
    Ok(())
}

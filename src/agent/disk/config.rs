//! The partition with the config drive: the last one of the root disk.
//!
//! An earlier config drive is replaced. The partition ends where partitions may end, so that what grows the root
//! file system at the first boot (growpart) takes the room up to it.

use std::path::Path;

use super::DiskError;
use super::device::{BlockDevice, Buffer};
use super::gpt::{Gpt, TYPE_LINUX};
use super::mbr::Mbr;

/// Largest config drive, in bytes.
pub const MAX_SIZE: u64 = 64 << 20;
/// Name of the partition in a GPT; the file system's label is the same.
pub const NAME: &str = "config-2";

/// Partitions begin and end at multiples of this.
const ALIGN: u64 = 1 << 20;
const LINUX: u8 = 0x83;

/// Where the config drive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigPartition {
    /// Number of the partition.
    pub number: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Puts a file system image into a partition at the end of the disk and reads it back.
///
/// Blocks; call it where that is allowed. Fails when the disk has no partition table, no room behind its last
/// partition, or (DOS partition table) no free primary partition.
pub fn write_config_drive(path: &Path, iso: &[u8]) -> Result<ConfigPartition, DiskError> {
    let disk = BlockDevice::open(path)?;
    let length = (iso.len() as u64).next_multiple_of(ALIGN);
    if iso.is_empty() || length > MAX_SIZE {
        let reason = format!("a config drive of {} bytes; 1 byte to {} MiB fit", iso.len(), MAX_SIZE >> 20);
        return Err(DiskError::table(path, reason));
    }
    let placed = if let Some(table) = Gpt::read(&disk)? {
        in_gpt(&disk, table, iso, length)?
    } else if let Some(table) = Mbr::read(&disk)? {
        in_mbr(&disk, table, iso, length)?
    } else {
        return Err(DiskError::table(
            path,
            "the image has no partition table, so there is no place for the config drive: use an image of a whole disk",
        ));
    };
    disk.reread_partitions();
    Ok(placed)
}

/// The place at the end for a partition: first sector.
fn place(disk: &BlockDevice, end: u64, length: u64, taken: u64) -> Result<u64, DiskError> {
    let sector = disk.sector();
    let start = (end * sector).checked_sub(length).map_or(0, |start| start / ALIGN * ALIGN);
    if start < (taken * sector).max(ALIGN) {
        return Err(DiskError::table(
            disk.path(),
            format!(
                "no room for the config drive: it needs {} MiB behind the last partition, which ends at byte {} of {}",
                length >> 20,
                taken * sector,
                disk.size()
            ),
        ));
    }
    Ok(start / sector)
}

fn in_gpt(disk: &BlockDevice, mut table: Gpt, iso: &[u8], length: u64) -> Result<ConfigPartition, DiskError> {
    table.remove(NAME);
    // Writing the table moves its end to the disk's, so the room is known afterwards.
    table.write(disk)?;
    let taken = table.partitions().iter().map(|p| p.last + 1).max().unwrap_or(0);
    let first = place(disk, table.last_usable() + 1, length, taken)?;
    let last = first + length / disk.sector() - 1;
    fill(disk, first * disk.sector(), iso, length)?;
    let guid = uuid::Uuid::new_v4().to_bytes_le();
    let number = table
        .add(TYPE_LINUX, guid, first, last, NAME)
        .ok_or_else(|| DiskError::table(disk.path(), "the GPT has no free entry for the config drive"))?;
    table.write(disk)?;
    Ok(ConfigPartition { number, offset: first * disk.sector(), length })
}

fn in_mbr(disk: &BlockDevice, mut table: Mbr, iso: &[u8], length: u64) -> Result<ConfigPartition, DiskError> {
    for old in table.partitions() {
        if old.kind == LINUX && is_config_drive(disk, old.first)? {
            table.remove(old.number);
        }
    }
    let taken = table.partitions().iter().map(|p| p.first + p.length).max().unwrap_or(0);
    let end = (disk.size() / disk.sector()).min(u64::from(u32::MAX));
    let first = place(disk, end, length, taken)?;
    fill(disk, first * disk.sector(), iso, length)?;
    let number = table.add(LINUX, first, length / disk.sector()).ok_or_else(|| {
        DiskError::table(
            disk.path(),
            "the image uses all four primary partitions, so there is no place for the config drive: use a GPT image",
        )
    })?;
    table.write(disk)?;
    Ok(ConfigPartition { number, offset: first * disk.sector(), length })
}

/// Whether an ISO 9660 file system with our label begins here.
fn is_config_drive(disk: &BlockDevice, first: u64) -> Result<bool, DiskError> {
    let mut descriptor = [0; 72];
    let at = first.saturating_mul(disk.sector()).saturating_add(16 * 2048);
    if at.saturating_add(72) > disk.size() {
        return Ok(false);
    }
    disk.read(at, &mut descriptor)?;
    let label = String::from_utf8_lossy(&descriptor[40..72]).trim_end().to_ascii_lowercase();
    Ok(&descriptor[1..6] == b"CD001" && label == NAME)
}

/// Writes the file system and reads it back from the disk.
fn fill(disk: &BlockDevice, offset: u64, iso: &[u8], length: u64) -> Result<(), DiskError> {
    let mut data = Buffer::new(length as usize);
    data[..iso.len()].copy_from_slice(iso);
    disk.write_bulk(offset, data.len(), &data)?;
    disk.sync()?;
    let mut back = Buffer::new(ALIGN as usize);
    for (number, part) in data.chunks(back.len()).enumerate() {
        disk.read_bulk(offset + number as u64 * ALIGN, part.len(), &mut back)?;
        if back[..part.len()] != *part {
            return Err(DiskError::table(disk.path(), "the config drive reads back differently: the disk is faulty"));
        }
    }
    Ok(())
}

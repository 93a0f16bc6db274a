//! DOS partition tables: four primary partitions, and the chain of logical ones for reading.

use super::DiskError;
use super::device::BlockDevice;

const TABLE: usize = 446;
const ENTRY: usize = 16;
/// Most logical partitions that are followed.
const MAX_LOGICAL: usize = 128;
/// Types of extended partitions.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// Type of a GPT's protective partition.
const PROTECTIVE: u8 = 0xee;

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MbrPartition {
    /// 1 to 4.
    pub number: u32,
    /// Type.
    pub kind: u8,
    /// First sector.
    pub first: u64,
    /// Sectors.
    pub length: u64,
}

/// The first sector of a disk with a partition table.
#[derive(Clone, Debug, PartialEq)]
pub struct Mbr(Vec<u8>);

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 4].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Mbr {
    /// The table of a disk; `None` when there is none: no signature, nothing in it, nonsense in it (the boot
    /// sector of a file system), or a GPT's protective one.
    pub fn read(disk: &BlockDevice) -> Result<Option<Self>, DiskError> {
        let mut bytes = vec![0; 512];
        if disk.size() < 512 {
            return Ok(None);
        }
        disk.read(0, &mut bytes)?;
        let sectors = disk.size() / disk.sector();
        let table = Self(bytes);
        let sane =
            |entry: &[u8]| entry[0] & 0x7f == 0 && (entry[4] == 0 || (word(entry, 8) > 0 && word(entry, 8) < sectors));
        let partitions = table.partitions();
        let good = table.0[510..] == [0x55, 0xaa]
            && table.0[TABLE..510].chunks_exact(ENTRY).all(sane)
            && !partitions.is_empty()
            && partitions.iter().all(|p| p.kind != PROTECTIVE);
        Ok(good.then_some(table))
    }

    /// Primary partitions, by number.
    pub fn partitions(&self) -> Vec<MbrPartition> {
        let entries = self.0[TABLE..510].chunks_exact(ENTRY).zip(1..);
        let used = entries.filter(|(entry, _)| entry[4] != 0 && word(entry, 12) > 0);
        used.map(|(e, number)| MbrPartition { number, kind: e[4], first: word(e, 8), length: word(e, 12) }).collect()
    }

    /// First sectors of all partitions, logical ones too. Errors end the search.
    pub fn starts(&self, disk: &BlockDevice) -> Vec<u64> {
        let mut starts: Vec<u64> = self.partitions().iter().map(|p| p.first).collect();
        for extended in self.partitions().into_iter().filter(|p| EXTENDED.contains(&p.kind)) {
            let mut at = extended.first;
            for _ in 0..MAX_LOGICAL {
                let mut bytes = vec![0; 512];
                let place = at.checked_mul(disk.sector()).filter(|place| place + 512 <= disk.size());
                if place.is_none_or(|place| disk.read(place, &mut bytes).is_err()) || bytes[510..] != [0x55, 0xaa] {
                    break;
                }
                starts.push(at);
                starts.push(at + word(&bytes, TABLE + 8));
                let next = word(&bytes, TABLE + ENTRY + 8);
                if next == 0 || bytes[TABLE + ENTRY + 4] == 0 {
                    break;
                }
                at = extended.first + next;
            }
        }
        starts
    }

    /// Removes a partition.
    pub fn remove(&mut self, number: u32) {
        if let Some(entry) = self.0[TABLE..510].chunks_exact_mut(ENTRY).nth(number as usize - 1) {
            entry.fill(0);
        }
    }

    /// Adds a primary partition; its number, or `None` when four are there or it lies beyond 2^32 sectors.
    pub fn add(&mut self, kind: u8, first: u64, length: u64) -> Option<u32> {
        let (first, length) = (u32::try_from(first).ok()?, u32::try_from(length).ok()?);
        let mut entries = self.0[TABLE..510].chunks_exact_mut(ENTRY).zip(1..);
        let (entry, number) = entries.find(|(entry, _)| entry[4] == 0)?;
        // Beyond what cylinders, heads and sectors can say; everything reads the numbers behind them.
        entry[..8].copy_from_slice(&[0, 0xfe, 0xff, 0xff, kind, 0xfe, 0xff, 0xff]);
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&length.to_le_bytes());
        Some(number)
    }

    /// Writes the table.
    pub fn write(&self, disk: &BlockDevice) -> Result<(), DiskError> {
        disk.write(0, &self.0)?;
        disk.sync()
    }
}

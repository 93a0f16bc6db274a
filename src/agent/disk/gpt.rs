//! GUID partition tables (UEFI specification 2.10, section 5.3): read, changed, written twice.

use super::DiskError;
use super::device::BlockDevice;

/// Partition type of a Linux file system, 0FC63DAF-8483-4772-8E79-3D69D8477DE4, as on disk.
pub const TYPE_LINUX: [u8; 16] =
    [0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4];
/// Partition type of an EFI system partition, C12A7328-F81F-11D2-BA4B-00A0C93EC93B, as on disk.
pub const TYPE_ESP: [u8; 16] =
    [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b];

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of the header that are defined.
const HEADER: usize = 92;
/// Largest array of entries, in bytes; the usual one has 16 KiB.
const MAX_ENTRIES: u64 = 1 << 20;
const NAME: std::ops::Range<usize> = 56..128;

/// A partition table in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt {
    header: Vec<u8>,
    entries: Vec<u8>,
    /// Where the other header says it is; when it is not at the end of the disk, it has to be moved.
    alternate: u64,
    /// Whether the primary header was the one read.
    primary: bool,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GptPartition {
    /// From 1.
    pub number: u32,
    /// Type, as on disk.
    pub kind: [u8; 16],
    /// Unique GUID, as on disk.
    pub guid: [u8; 16],
    /// First sector.
    pub first: u64,
    /// Last sector.
    pub last: u64,
    /// Name.
    pub name: String,
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

impl Gpt {
    /// The table of a disk; `None` when it has none.
    ///
    /// Only the primary is read, as firmware does first; a damaged one is an error, and so is one for sectors of
    /// another size.
    pub fn read(disk: &BlockDevice) -> Result<Option<Self>, DiskError> {
        let sector = disk.sector();
        if disk.size() < 4 * 4096 {
            return Ok(None);
        }
        let mut magic = [0; 8];
        disk.read(sector, &mut magic)?;
        if magic != *SIGNATURE {
            let other = if sector == 512 { 4096 } else { 512 };
            disk.read(other, &mut magic)?;
            if magic == *SIGNATURE {
                return Err(DiskError::table(
                    disk.path(),
                    format!("the image is made for sectors of {other} bytes, the disk has sectors of {sector}"),
                ));
            }
            return Ok(None);
        }
        Self::read_at(disk, 1).map(Some)
    }

    /// The table whose header is in this sector.
    pub fn read_at(disk: &BlockDevice, at: u64) -> Result<Self, DiskError> {
        let sector = disk.sector();
        let fail = |reason: &str| Err(DiskError::table(disk.path(), format!("the GPT is damaged: {reason}")));
        let mut header = vec![0; sector as usize];
        disk.read(at * sector, &mut header)?;
        let length = word(&header, 12) as usize;
        if !header.starts_with(SIGNATURE) || !(HEADER..=header.len()).contains(&length) {
            return fail("there is no header");
        }
        let mut zeroed = header[..length].to_vec();
        zeroed[16..20].fill(0);
        if crc(&zeroed) != word(&header, 16) {
            return fail("the header's checksum is wrong");
        }
        let (count, size) = (u64::from(word(&header, 80)), u64::from(word(&header, 84)));
        let place = long(&header, 72);
        let bytes = count * size;
        let sectors = disk.size() / sector;
        if size < 128 || !size.is_multiple_of(8) || bytes == 0 || bytes > MAX_ENTRIES || long(&header, 24) != at {
            return fail("the header makes no sense");
        }
        if place >= sectors || bytes.div_ceil(sector) > sectors - place {
            return fail("the entries lie beyond the end of the disk");
        }
        let mut entries = vec![0; bytes as usize];
        disk.read(place * sector, &mut entries)?;
        if crc(&entries) != word(&header, 88) {
            return fail("the checksum of the entries is wrong");
        }
        header.truncate(length);
        let alternate = long(&header, 32);
        Ok(Self { header, entries, alternate, primary: at == 1 })
    }

    fn entry_size(&self) -> usize {
        word(&self.header, 84) as usize
    }

    /// Last sector that partitions may use.
    pub fn last_usable(&self) -> u64 {
        long(&self.header, 48)
    }

    /// Partitions, by number.
    pub fn partitions(&self) -> Vec<GptPartition> {
        let used = self.entries.chunks_exact(self.entry_size()).zip(1..).filter(|(entry, _)| entry[..16] != [0; 16]);
        used.map(|(entry, number)| {
            let guid = |at: usize| {
                let mut value = [0; 16];
                value.copy_from_slice(&entry[at..at + 16]);
                value
            };
            let units = entry[NAME].as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit));
            let name = char::decode_utf16(units.take_while(|unit| *unit != 0)).map(|c| c.unwrap_or('\u{fffd}'));
            GptPartition {
                number,
                kind: guid(0),
                guid: guid(16),
                first: long(entry, 32),
                last: long(entry, 40),
                name: name.collect(),
            }
        })
        .collect()
    }

    /// Removes partitions by name; whether there were any.
    pub fn remove(&mut self, name: &str) -> bool {
        let gone: Vec<_> = self.partitions().into_iter().filter(|p| p.name == name).map(|p| p.number).collect();
        let size = self.entry_size();
        for number in &gone {
            let at = (*number as usize - 1) * size;
            self.entries[at..at + size].fill(0);
        }
        !gone.is_empty()
    }

    /// Adds a partition behind the others' numbers, or in the first free place; its number.
    pub fn add(&mut self, kind: [u8; 16], guid: [u8; 16], first: u64, last: u64, name: &str) -> Option<u32> {
        let used: Vec<u32> = self.partitions().iter().map(|p| p.number).collect();
        let size = self.entry_size();
        let count = (self.entries.len() / size) as u32;
        let behind = used.iter().max().map_or(1, |last| last + 1);
        let number = if behind <= count { behind } else { (1..=count).find(|n| !used.contains(n))? };
        let entry = &mut self.entries[(number as usize - 1) * size..][..size];
        entry[..16].copy_from_slice(&kind);
        entry[16..32].copy_from_slice(&guid);
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        for (unit, place) in name.encode_utf16().take(35).zip(entry[NAME].as_chunks_mut().0) {
            *place = unit.to_le_bytes();
        }
        Some(number)
    }

    /// Writes the table: the backup at the end of the disk first, then the primary, then the protective MBR.
    /// A backup that was elsewhere is removed.
    pub fn write(&mut self, disk: &BlockDevice) -> Result<(), DiskError> {
        let sector = disk.sector();
        let end = disk.size() / sector - 1;
        let array = (self.entries.len() as u64).div_ceil(sector);
        let usable = end.saturating_sub(array + 1);
        let partitions = self.partitions();
        if let Some(out) = partitions.iter().find(|p| p.last > usable || p.first > p.last || p.first < 2) {
            return Err(DiskError::table(
                disk.path(),
                format!("partition {} (sectors {} to {}) does not fit the disk", out.number, out.first, out.last),
            ));
        }
        self.header[48..56].copy_from_slice(&usable.to_le_bytes());
        let entries_crc = crc(&self.entries);
        self.header[88..92].copy_from_slice(&entries_crc.to_le_bytes());
        let place = if self.primary { long(&self.header, 72) } else { 2 };
        let table = |at: u64, other: u64, entries: u64| {
            let mut header = self.header.clone();
            header[24..32].copy_from_slice(&at.to_le_bytes());
            header[32..40].copy_from_slice(&other.to_le_bytes());
            header[72..80].copy_from_slice(&entries.to_le_bytes());
            header[16..20].fill(0);
            let sum = crc(&header);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            header.resize(sector as usize, 0);
            header
        };
        disk.write((end - array) * sector, &self.entries)?;
        disk.write(end * sector, &table(end, 1, end - array))?;
        disk.sync()?;
        disk.write(place * sector, &self.entries)?;
        disk.write(sector, &table(1, end, place))?;
        self.protect(disk, end)?;
        disk.sync()?;
        let old = std::mem::replace(&mut self.alternate, end);
        // Behind the old last partition and before the new table, so nothing else is there.
        if old > array && old < end - array && partitions.iter().all(|p| p.last < old - array || p.first > old) {
            disk.zero((old - array) * sector, (array + 1) * sector)?;
        }
        Ok(())
    }

    /// Makes the protective MBR's partition span the disk. Hybrid tables keep their other partitions.
    fn protect(&self, disk: &BlockDevice, end: u64) -> Result<(), DiskError> {
        let mut mbr = [0; 512];
        disk.read(0, &mut mbr)?;
        let length = u32::try_from(end).unwrap_or(u32::MAX);
        for entry in mbr[446..510].chunks_exact_mut(16) {
            if entry[4] == 0xee && word(entry, 8) == 1 && (entry[12..16] != length.to_le_bytes()) {
                entry[12..16].copy_from_slice(&length.to_le_bytes());
            }
        }
        disk.write(0, &mbr)
    }
}

/// Moves the backup table of an image to the end of the disk it was written to. Whether there was a table.
pub fn fit_to_disk(disk: &BlockDevice) -> Result<bool, DiskError> {
    let Some(mut table) = Gpt::read(disk)? else { return Ok(false) };
    table.write(disk)?;
    Ok(true)
}

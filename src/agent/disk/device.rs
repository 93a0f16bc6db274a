//! One block device. Everything works on a plain file as well, which is how it is tested.
//!
//! Bulk data goes past the page cache (`O_DIRECT`), so that a node with little memory does not stall on dirty
//! pages; where that is not possible, data is synchronised every [`SYNC_EVERY`] bytes. Small things (partition
//! tables) go through the page cache.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};

use super::DiskError;

/// Alignment that every device takes for `O_DIRECT`.
pub const ALIGN: usize = 4096;
/// Bytes written through the page cache between two synchronisations.
pub const SYNC_EVERY: u64 = 16 << 20;
/// Bytes zeroed or discarded in one call, so that none takes for ever.
const CALL: u64 = 64 << 20;
/// How long discarding may take; it only helps the disk.
const DISCARD_TIME: Duration = Duration::from_secs(20);
/// Tries to make the kernel read a partition table, and the pause between them.
const REREAD: (u32, Duration) = (20, Duration::from_millis(250));

mod ioctl {
    nix::ioctl_read_bad!(size64, 0x8008_1272, u64);
    nix::ioctl_read_bad!(sector_size, 0x1268, nix::libc::c_int);
    nix::ioctl_write_ptr_bad!(discard, 0x1277, [u64; 2]);
    nix::ioctl_write_ptr_bad!(zero_out, 0x127f, [u64; 2]);
    nix::ioctl_none_bad!(reread, 0x125f);
}

/// Memory that `O_DIRECT` takes.
pub struct Buffer {
    store: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Zeros, `length` bytes.
    pub fn new(length: usize) -> Self {
        let store = vec![0; length + ALIGN];
        let start = store.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { store, start, length }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.store[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.store[self.start..self.start + self.length]
    }
}

/// An open disk.
pub struct BlockDevice {
    path: PathBuf,
    file: File,
    direct: Option<File>,
    size: u64,
    sector: u64,
    block: bool,
    /// Whether the device writes zeros by itself.
    zeroes: bool,
    unsynced: AtomicU64,
}

impl BlockDevice {
    /// Opens a disk for reading and writing.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        let fail = |what: &str, e: io::Error| DiskError::io(path, what, e);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| fail("open", e))?;
        let meta = file.metadata().map_err(|e| fail("look at", e))?;
        let block = meta.file_type().is_block_device();
        if !block && !meta.is_file() {
            return Err(fail("open", io::Error::new(io::ErrorKind::InvalidInput, "it is not a block device")));
        }
        let direct = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_DIRECT).open(path).ok();
        let (mut size, mut sector, mut zeroes) = (meta.len(), 512, true);
        if block {
            let mut bytes = 0;
            let mut logical = 0;
            // SAFETY: both calls write one integer of the type that the kernel defines for them.
            unsafe { ioctl::size64(file.as_raw_fd(), &raw mut bytes) }.map_err(|e| fail("read the size", e.into()))?;
            // SAFETY: as above.
            unsafe { ioctl::sector_size(file.as_raw_fd(), &raw mut logical) }
                .map_err(|e| fail("read the sector size", e.into()))?;
            size = bytes;
            sector =
                u64::try_from(logical).ok().filter(|s| s.is_power_of_two() && (512..=4096).contains(s)).ok_or_else(
                    || fail("use", io::Error::new(io::ErrorKind::InvalidData, format!("sectors of {logical} bytes"))),
                )?;
            zeroes = queue(meta.rdev(), "write_zeroes_max_bytes") > 0;
        }
        Ok(Self { path: path.into(), file, direct, size, sector, block, zeroes, unsynced: AtomicU64::new(0) })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of a logical sector: 512 to 4096.
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Whether writing zeros costs no transfer.
    pub fn zeroes_are_cheap(&self) -> bool {
        self.zeroes
    }

    fn fail(&self, what: &str, offset: u64, error: impl Into<io::Error>) -> DiskError {
        DiskError::io(&self.path, format!("{what} at byte {offset}"), error)
    }

    /// Reads through the page cache.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), DiskError> {
        self.file.read_exact_at(data, offset).map_err(|e| self.fail("read", offset, e))
    }

    /// Writes through the page cache.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.file.write_all_at(data, offset).map_err(|e| self.fail("write", offset, e))
    }

    fn fits_direct(&self, offset: u64, length: usize) -> Option<&File> {
        let unit = self.sector.max(if self.block { 512 } else { ALIGN as u64 });
        self.direct.as_ref().filter(|_| offset.is_multiple_of(unit) && (length as u64).is_multiple_of(unit))
    }

    /// Reads bulk data from the device itself, into the start of an aligned buffer.
    pub fn read_bulk(&self, offset: u64, length: usize, data: &mut Buffer) -> Result<(), DiskError> {
        let data = data.get_mut(..length).unwrap_or_default();
        let file = self.fits_direct(offset, length).unwrap_or(&self.file);
        file.read_exact_at(data, offset).map_err(|e| self.fail("read", offset, e))
    }

    /// Writes bulk data, the start of an aligned buffer.
    pub fn write_bulk(&self, offset: u64, length: usize, data: &Buffer) -> Result<(), DiskError> {
        let data = data.get(..length).unwrap_or_default();
        if let Some(file) = self.fits_direct(offset, length) {
            return file.write_all_at(data, offset).map_err(|e| self.fail("write", offset, e));
        }
        self.write(offset, data)?;
        if self.unsynced.fetch_add(length as u64, Ordering::Relaxed) + length as u64 >= SYNC_EVERY {
            self.unsynced.store(0, Ordering::Relaxed);
            self.file.sync_data().map_err(|e| self.fail("synchronise", offset, e))?;
        }
        Ok(())
    }

    /// Makes bytes read as zeros, whole sectors.
    pub fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        let end = (offset + length).min(self.size);
        let mut at = offset;
        while at < end {
            let count = (end - at).min(CALL);
            if !self.zero_call(at, count) {
                self.zero_write(at, count)?;
            }
            at += count;
        }
        Ok(())
    }

    fn zero_call(&self, offset: u64, length: u64) -> bool {
        if self.block {
            let aligned = offset.is_multiple_of(self.sector) && length.is_multiple_of(self.sector);
            // SAFETY: the kernel reads two u64, offset and length.
            return aligned && unsafe { ioctl::zero_out(self.file.as_raw_fd(), &[offset, length]) }.is_ok();
        }
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&self.file, punch, offset as i64, length as i64).is_ok()
    }

    fn zero_write(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        let zeros = Buffer::new(1 << 20);
        let mut at = offset;
        while at < offset + length {
            let count = (offset + length - at).min(zeros.len() as u64);
            self.write_bulk(at, count as usize, &zeros)?;
            at += count;
        }
        Ok(())
    }

    /// Tells the disk that it need not keep bytes; what they read as afterwards is not known. Gives up quietly
    /// where it is not possible or takes long.
    pub fn discard(&self, offset: u64, length: u64) {
        let started = Instant::now();
        let (mut at, end) = (offset.next_multiple_of(CALL), (offset + length).min(self.size));
        while at + CALL <= end && started.elapsed() < DISCARD_TIME {
            let done = if self.block {
                // SAFETY: the kernel reads two u64, offset and length.
                unsafe { ioctl::discard(self.file.as_raw_fd(), &[at, CALL]) }.is_ok()
            } else {
                self.zero_call(at, CALL)
            };
            if !done {
                return;
            }
            at += CALL;
        }
    }

    /// Returns when everything written is on the disk.
    pub fn sync(&self) -> Result<(), DiskError> {
        self.file.sync_all().map_err(|e| DiskError::io(&self.path, "synchronise", e))
    }

    /// Makes the kernel read the partition table again. Something may hold a partition for a moment, so it is
    /// tried for some seconds; what is on the disk is right in any case, so a failure is only logged.
    pub fn reread_partitions(&self) {
        if !self.block {
            return;
        }
        for _ in 0..REREAD.0 {
            // SAFETY: the call takes no argument.
            match unsafe { ioctl::reread(self.file.as_raw_fd()) } {
                Ok(_) => return,
                // A device that has no partitions, such as a loop device without them.
                Err(nix::Error::EINVAL) => return,
                Err(_) => std::thread::sleep(REREAD.1),
            }
        }
        tracing::warn!(disk = %self.path.display(), "the kernel did not read the new partition table: a partition is in use");
    }
}

/// A number from a device's queue settings; 0 when there is none.
fn queue(device: u64, name: &str) -> u64 {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/queue/{name}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

//! Room for the audit log on its disk.
//!
//! A change needs its line, so a log that can write nothing shuts the API, also to who would make room. So while the disk has
//! little room, one caller adds hardly anything to `audit.log`, what goes beyond is a small ring, and some blocks behind the end of
//! `audit.log` are its own (fallocate(2) with `FALLOC_FL_KEEP_SIZE`), whoever fills the disk.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FallocateFlags, fallocate};

use crate::disk_space::DiskSpace;

/// With less than this free, in bytes, the disk has little room: 96 MiB, an eighth of a small one. The image library leaves
/// 128 MiB.
const LITTLE: u64 = 96 << 20;

/// What `audit.log` has for itself, in bytes: 4 MiB, some thousand lines; a sixteenth of a small disk at most.
const RESERVE: u64 = 4 << 20;

/// Most that lines beyond their callers' shares take while there is little room, in bytes.
pub(super) const RING: u64 = 1 << 20;

/// Watches over the disk of the log. Clones share what they know.
#[derive(Clone, Debug)]
pub(super) struct AuditRoom {
    folder: Arc<File>,
    is_little: Arc<AtomicBool>,
}

impl AuditRoom {
    /// Of the disk of a folder.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let room = Self { folder: Arc::new(File::open(folder)?), is_little: Arc::default() };
        room.look();
        Ok(room)
    }

    /// Looks how much is free. Says whether that is little.
    pub fn look(&self) -> bool {
        let was = self.is_little();
        let Some((free, all)) = self.ask() else { return was };
        let is = is_little(free, all);
        if is != was {
            self.is_little.store(is, Ordering::Relaxed);
            match is {
                true => tracing::warn!(
                    free_bytes = free,
                    "the disk of the audit log has little room: less of what one caller does goes to audit.log, and audit-busy.log is short"
                ),
                false => tracing::info!(free_bytes = free, "the disk of the audit log has room again"),
            }
        }
        is
    }

    /// Whether there was little room when it was last looked.
    pub fn is_little(&self) -> bool {
        self.is_little.load(Ordering::Relaxed)
    }

    /// Free bytes, and those of the whole disk.
    fn ask(&self) -> Option<(u64, u64)> {
        let found = DiskSpace::under(&self.folder)
            .inspect_err(|error| tracing::warn!(%error, "cannot read how much room the disk of the audit log has"))
            .ok()?;
        Some((found.free, found.size))
    }

    /// Takes blocks behind the end of a file of that size, of which some are its own up to `held`. Says up to where they are.
    pub fn reserve(&self, file: &File, size: u64, held: u64) -> u64 {
        let Some((_, all)) = self.ask() else { return held };
        let reserve = RESERVE.min(all / 16);
        if self.is_little() || held >= size + reserve / 2 {
            return held;
        }
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, signed(size), signed(reserve)) {
            Ok(()) => size + reserve,
            // There are file systems that cannot.
            Err(error) => {
                tracing::debug!(%error, "cannot reserve room for the audit log");
                u64::MAX
            }
        }
    }
}

fn is_little(free: u64, all: u64) -> bool {
    free < LITTLE.min(all / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_by_the_size_of_the_disk() {
        const MIB: u64 = 1 << 20;
        for (free, all, expected) in [
            (96 * MIB, 10_000 * MIB, false),
            (96 * MIB - 1, 10_000 * MIB, true),
            (20 * MIB, 160 * MIB, false),
            (20 * MIB - 1, 160 * MIB, true),
        ] {
            assert_eq!(is_little(free, all), expected, "{free} of {all}");
        }
    }

    #[test]
    fn what_is_reserved_takes_room_and_no_size() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let room = AuditRoom::new(folder.path()).unwrap();
        let file = File::create(folder.path().join("log")).unwrap();
        let held = room.reserve(&file, 0, 0);
        if held == u64::MAX || room.is_little() {
            return crate::needs::kernel_lacks("the disk has little room, or its file system reserves none");
        }
        let found = file.metadata().unwrap();
        assert!(held > 0 && found.len() == 0 && found.blocks() * 512 >= held, "{held} {found:?}");
        assert_eq!(room.reserve(&file, held / 4, held), held, "there is enough");
        assert!(room.reserve(&file, held, held) > held);
    }
}

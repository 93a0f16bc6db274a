//! Free disk space: when little is left, only what gives room back is still written.
//!
//! A full disk must not be the end: the store has to be opened, and what is no longer needed deleted, and both take room.
//! So two files, the ballast, keep some. One is removed when little is left, the other only when the store is opened and
//! next to nothing is left, or it cannot be opened: whoever else writes to the disk may have taken what the first one gave.
//! Of what the other gave, what the next start needs is kept again at once, for it may come before there is room. Both are
//! made again when there is plenty. And some room is the journal's own, which nobody else can take (`journal.rs`).
//!
//! A file system can also have no inodes left while it has bytes: then no file can be made, and the store makes some when it is
//! opened. So empty files keep inodes for that, as the ballast keeps bytes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};

use crate::disk_space::DiskSpace;

/// Largest size of the ballast, in bytes: 16 MiB, half of it in each file. Of a small disk a quarter.
const BALLAST: u64 = 16 << 20;

/// With less than this free, in bytes, nothing may grow: 8 MiB, some groups of the largest size. Of a small disk an eighth.
/// With less than half of it, nothing but what gives room back is written: also what does not grow is written beside what
/// was there.
const LOW: u64 = 8 << 20;

/// Room that the journal has for itself, in bytes: 4 MiB. Of a small disk a sixteenth.
const RESERVE: u64 = 4 << 20;

/// What a start needs beside that, in bytes: sled writes down where its pages are, some twenty bytes for each.
const START: u64 = 2 << 20;

/// The least of it that is worth keeping, in bytes.
const START_LEAST: u64 = 64 << 10;

/// How often the file system is asked.
const LOOK: Duration = Duration::from_millis(100);

/// Names of the files, in the folder of the database: given back while it runs, and when it is opened.
const NAMES: [&str; 2] = ["ballast", "ballast-start"];

/// With fewer inodes free, the disk counts as full: each part of the store that is written anew is a file.
const INODES_LOW: u64 = 16;

/// With so many free, there are plenty again.
const INODES_PLENTY: u64 = 4 * INODES_LOW;

/// Inodes that are kept for a start: it makes a handful of files, and the other rooms of the appliance some.
const INODES_KEPT: u64 = 32;

/// Folder of the empty files that keep them, in the folder of the database.
const KEEPERS: &str = "ballast-inodes";

/// What is to be done with the ballast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BallastStep {
    Stay,
    /// Little is left: give the ballast back.
    Release,
    /// There is room again: make the ballast.
    Take,
}

/// What counts as little, by the size of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpaceThresholds {
    disk: u64,
    low: u64,
    ballast: u64,
    reserve: u64,
}

impl SpaceThresholds {
    fn of(disk: u64) -> Self {
        Self { disk, low: LOW.min(disk / 8), ballast: BALLAST.min(disk / 4), reserve: RESERVE.min(disk / 16) }
    }

    /// With this free, there is plenty: the released ballast alone is not.
    fn plenty(self) -> u64 {
        self.low + self.ballast + self.low
    }

    /// Whether the disk is low, and what to do, by what is free and whether it was low.
    fn judge(self, free: u64, was_low: bool) -> (bool, BallastStep) {
        match was_low {
            false if free < self.low => (true, BallastStep::Release),
            true if free >= self.plenty() => (false, BallastStep::Take),
            _ => (was_low, BallastStep::Stay),
        }
    }
}

/// Watches over the room.
pub(super) struct StoreSpace {
    path: PathBuf,
    /// The folder, open: asking takes no new descriptor, of which there may be none.
    folder: File,
    bounds: SpaceThresholds,
    low: bool,
    free: u64,
    /// Inodes that are free; the largest number where the file system makes them as it needs them.
    inodes: u64,
    looked: Option<Instant>,
}

impl StoreSpace {
    /// Looks at the file system of a folder. Gives the ballast back when little is left, and makes it otherwise.
    pub fn new(path: &Path) -> io::Result<Self> {
        let folder = File::open(path)?;
        let mut space = Self {
            path: path.to_owned(),
            folder,
            bounds: SpaceThresholds::of(u64::MAX),
            low: false,
            free: u64::MAX,
            inodes: u64::MAX,
            looked: None,
        };
        space.look();
        if space.is_tight() {
            space.give_all();
        } else if !space.low {
            space.take();
        }
        Ok(space)
    }

    /// Gives back all that is kept: without it, the store cannot be opened. Says whether there was any need to.
    pub fn give_all(&mut self) -> bool {
        if self.low {
            self.release(NAMES[1]);
            self.release_inodes();
            self.ask();
        }
        self.low
    }

    /// Keeps what the next start needs, when everything was given for this one and the disk is still low.
    pub fn keep_for_next_start(&mut self) {
        let path = self.path.join(NAMES[1]);
        self.ask();
        if !self.low {
            return;
        }
        // The other half is for what else a start makes.
        self.keep_inodes(self.inodes / 2);
        if path.exists() {
            return;
        }
        let mut size = START.min(self.bounds.ballast / 8);
        while size >= START_LEAST {
            match make(&path, size) {
                Ok(()) => return self.ask(),
                Err(_) => self.release(NAMES[1]),
            }
            size /= 2;
        }
        tracing::warn!(
            "cannot reserve room for the next start: make room on the disk before the appliance is restarted"
        );
    }

    /// What the journal should have for itself, in bytes.
    pub fn reserve(&self) -> u64 {
        self.bounds.reserve
    }

    /// So many bytes; of a small disk an eighth.
    pub fn spare(&self, bytes: u64) -> u64 {
        bytes.min(self.bounds.disk / 8)
    }

    /// Whether nothing may grow.
    pub fn is_low(&self) -> bool {
        self.low
    }

    /// Whether nothing may be written but what gives room back.
    pub fn is_tight(&self) -> bool {
        !self.has_room(0)
    }

    /// Whether so many bytes can be taken of the disk.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.free >= self.bounds.low / 2 + bytes
    }

    /// What was free when it was last looked, in bytes.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Asks the file system, unless it was asked a moment ago.
    pub fn look(&mut self) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            self.ask();
        }
    }

    /// Asks the file system: after something was written.
    pub fn ask(&mut self) {
        self.looked = Some(Instant::now());
        match DiskSpace::under(&self.folder) {
            Ok(found) => {
                self.inodes = if found.inodes == 0 { u64::MAX } else { found.free_inodes };
                self.free = found.free;
                if lacks_inodes(self.inodes, self.low) {
                    self.free = 0;
                }
                self.bounds = SpaceThresholds::of(found.size);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read how much room the disk of the database has");
                return;
            }
        }
        let (low, step) = self.bounds.judge(self.free, self.low);
        self.low = low;
        match step {
            BallastStep::Stay => {}
            BallastStep::Release => {
                match lacks_inodes(self.inodes, false) {
                    true => tracing::error!(
                        free_inodes = self.inodes,
                        "the file system of the database has no inodes left: nothing can be made or grow until files are deleted (image list shows images), and {INODES_PLENTY} inodes are free"
                    ),
                    false => tracing::error!(
                        free_bytes = self.free,
                        "the disk of the database is full: nothing can be made or grow until something is deleted, or {} MiB are free",
                        self.bounds.plenty() >> 20
                    ),
                }
                self.release(NAMES[0]);
            }
            BallastStep::Take => {
                tracing::info!(free_bytes = self.free, "the disk of the database has room again");
                self.take();
            }
        }
    }

    /// Removes a file of the ballast.
    fn release(&self, name: &str) {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, file = name, "cannot release the reserve of a full disk");
            }
            _ => {}
        }
    }

    /// Gives back the inodes that are kept.
    fn release_inodes(&self) {
        for number in 0..INODES_KEPT {
            self.release(&keeper(number));
        }
    }

    /// Keeps so many inodes, no more than are to be kept.
    fn keep_inodes(&self, count: u64) {
        if self.inodes == u64::MAX {
            return;
        }
        let kept = fs::DirBuilder::new().recursive(true).mode(0o700).create(self.path.join(KEEPERS));
        let kept = kept.and_then(|()| {
            (0..count.min(INODES_KEPT)).map(|number| self.path.join(keeper(number))).try_for_each(|path| {
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map(drop)
            })
        });
        if let Err(error) = kept {
            tracing::warn!(%error, "cannot reserve inodes for the next start");
        }
    }

    /// Makes the ballast, where there is plenty. Without it the store works as well, until the disk is full.
    fn take(&self) {
        if self.inodes >= INODES_PLENTY && !self.path.join(keeper(INODES_KEPT - 1)).exists() {
            self.keep_inodes(INODES_KEPT);
        }
        let size = self.bounds.ballast / 2;
        let lacks = |name: &&str| fs::metadata(self.path.join(name)).map_or(0, |found| found.len()) < size;
        for name in NAMES.into_iter().filter(lacks) {
            if self.free < self.bounds.plenty() {
                return;
            }
            if let Err(error) = make(&self.path.join(name), size) {
                tracing::warn!(%error, file = name, "cannot make the reserve for a full disk");
                self.release(name);
            }
        }
    }
}

/// Whether the file system counts as full for want of inodes.
fn lacks_inodes(free: u64, was_low: bool) -> bool {
    free < if was_low { INODES_PLENTY } else { INODES_LOW }
}

/// Name of an empty file that keeps an inode.
fn keeper(number: u64) -> String {
    format!("{KEEPERS}/{number}")
}

/// What a group of so many bytes may take of the disk, in bytes, beside two segments: sled writes some of its pages more than
/// once. Measured were 2.7 times for 5 MB, 3.2 for 1 MB.
pub(super) fn taken_by(bytes: usize) -> u64 {
    3 * bytes as u64
}

/// Makes a file of the ballast of that size, in bytes.
fn make(path: &Path, size: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let size = i64::try_from(size).map_err(io::Error::other)?;
    fallocate(&file, FallocateFlags::empty(), 0, size).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_the_disk_is_low() {
        const MIB: u64 = 1 << 20;
        for (free, was_low, expected) in [
            (100 * MIB, false, (false, BallastStep::Stay)),
            (8 * MIB, false, (false, BallastStep::Stay)),
            (8 * MIB - 1, false, (true, BallastStep::Release)),
            (0, false, (true, BallastStep::Release)),
            (0, true, (true, BallastStep::Stay)),
            // What the released ballast gave.
            (24 * MIB, true, (true, BallastStep::Stay)),
            (32 * MIB - 1, true, (true, BallastStep::Stay)),
            (32 * MIB, true, (false, BallastStep::Take)),
        ] {
            assert_eq!(SpaceThresholds::of(1 << 40).judge(free, was_low), expected, "{free} {was_low}");
        }
        assert_eq!(
            SpaceThresholds::of(8 * MIB),
            SpaceThresholds { disk: 8 * MIB, low: MIB, ballast: 2 * MIB, reserve: MIB / 2 }
        );
    }

    #[test]
    fn the_ballast_takes_room_and_is_made_once() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let space = StoreSpace::new(folder.path()).unwrap();
        assert!(!space.is_low() && space.free() > 0);
        for name in NAMES {
            let file = fs::metadata(folder.path().join(name)).unwrap();
            assert!(file.blocks() * 512 >= file.len() && file.len() == BALLAST / 2);
            space.release(name);
            assert!(!folder.path().join(name).exists());
            space.release(name);
        }
    }
}

//! The files of the database: the lock, opening sled over them, and making durable what sled leaves to the kernel.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sled::Db;

use super::repair;

/// Memory for sled's pages, in bytes; its default is 1 GiB. Reads are served from the index, so only writes need pages.
const CACHE: u64 = 4 << 20;

/// How long opening waits for a lock. A store that was closed a moment ago may hold it still.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How often it looks meanwhile.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Our own lock, taken before anything is touched; sled's comes too late, after files were repaired.
pub(super) fn lock(path: &Path) -> Result<File, String> {
    let name = path.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&name)
        .map_err(|error| format!("cannot make {}: {error}", name.display()))?;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => return Err(in_use(path)),
            Err(TryLockError::Error(error)) => return Err(format!("cannot lock {}: {error}", name.display())),
        }
    }
}

fn in_use(path: &Path) -> String {
    format!("another slipway runs on {}; stop it first, or give this one another data_dir", path.display())
}

/// Opens sled; once more without snapshots when it finds them damaged.
pub(super) fn open_sled(path: &Path) -> Result<Db, String> {
    let first = match try_open(path) {
        Err(Refusal::Corrupt(first)) => first,
        Err(Refusal::Other(reason)) => return Err(reason),
        Ok(db) => return Ok(db),
    };
    let moved = repair::set_snapshots_aside(path)
        .map_err(|error| format!("the database is damaged ({first}) and its snapshots cannot be moved: {error}"))?;
    tracing::error!(
        path = %path.display(), error = first, snapshots = moved,
        "the database is damaged; trying again without its snapshots, from its log alone"
    );
    match try_open(path) {
        Ok(db) => {
            tracing::error!(path = %path.display(), "the database opened without its snapshots; check the disk");
            Ok(db)
        }
        Err(Refusal::Corrupt(reason) | Refusal::Other(reason)) => {
            Err(format!("the database is damaged: {reason}; restore a backup"))
        }
    }
}

enum Refusal {
    Corrupt(String),
    Other(String),
}

fn try_open(path: &Path) -> Result<Db, Refusal> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        let config = sled::Config::new().path(path).cache_capacity(CACHE).flush_every_ms(None);
        // sled asserts what it believes of its files, so damage can also be a panic.
        match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(error @ sled::Error::Corruption { .. })) => return Err(Refusal::Corrupt(error.to_string())),
            // We hold our lock, so this is a thread of a store that was just closed, or a foreign program.
            Ok(Err(sled::Error::Io(error))) if error.to_string().contains("could not acquire lock") => {
                if Instant::now() >= deadline {
                    return Err(Refusal::Other(in_use(path)));
                }
                thread::sleep(LOCK_POLL);
            }
            Ok(Err(error)) => return Err(Refusal::Other(error.to_string())),
            Err(_) => return Err(Refusal::Corrupt("sled gave up reading it".to_owned())),
        }
    }
}

/// Makes the names of the database's files durable.
pub(super) fn sync_folders(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// Syncs the files of large pages, which sled leaves to the kernel.
pub(super) struct Blobs {
    folder: PathBuf,
    /// Files are named by their place in the log, which only grows. Those up to here are synced.
    synced: Option<i64>,
    /// When the folder had last changed when it was last looked through.
    seen: Option<SystemTime>,
}

/// File systems stamp files with a clock that may stand still for that long.
const COARSE_CLOCK: Duration = Duration::from_millis(100);

impl Blobs {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, synced: None, seen: None }
    }

    /// Makes all of them durable that were written since the last call.
    pub fn sync(&mut self) -> io::Result<()> {
        let changed = fs::metadata(&self.folder)?.modified()?;
        if self.seen == Some(changed) {
            return Ok(());
        }
        let now = SystemTime::now();
        let mut last = self.synced;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Some(place) = entry.file_name().to_str().and_then(|name| name.parse::<i64>().ok()) else { continue };
            if self.synced.is_none_or(|synced| place > synced) {
                match File::open(entry.path()) {
                    Ok(file) => file.sync_all()?,
                    // sled deletes those that are no longer needed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
                last = last.max(Some(place));
            }
        }
        if last != self.synced {
            File::open(&self.folder)?.sync_all()?;
            self.synced = last;
        }
        // A change in the same tick of the clock would not be noticed: look again unless the stamp is old.
        let settled = now.duration_since(changed).is_ok_and(|age| age > COARSE_CLOCK);
        self.seen = settled.then_some(changed);
        Ok(())
    }
}

//! The files of the database: the lock, opening sled over them, and making durable what sled leaves to the kernel.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sled::Db;

use super::repair;

/// Memory for sled's pages, in bytes; its default is 1 GiB. Only the end of the journal is touched again.
const CACHE: u64 = 1 << 20;

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

/// Why a database cannot be opened.
#[derive(Debug)]
pub(super) enum OpenRefusal {
    /// What is in its files is not what was written there.
    Damaged(String),
    /// Anything else: no room, no right, somebody else has it.
    Other(String),
}

impl From<String> for OpenRefusal {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl From<&str> for OpenRefusal {
    fn from(reason: &str) -> Self {
        Self::Damaged(reason.to_owned())
    }
}

impl OpenRefusal {
    /// Of an error of the file system.
    pub fn io(what: &str, error: &io::Error) -> Self {
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "; make room on the disk, some 16 MiB, and start again"
            }
            _ => "",
        };
        Self::Other(format!("cannot {what}: {error}{advice}"))
    }

    /// What the operator is told.
    pub fn said(self) -> String {
        match self {
            Self::Damaged(reason) => format!("the database is damaged: {reason}; restore a backup"),
            Self::Other(reason) => reason,
        }
    }
}

/// Opens sled; once more with nothing but its log when it finds damage.
pub(super) fn open_sled(path: &Path) -> Result<Db, OpenRefusal> {
    let first = match try_open(path) {
        Err(OpenRefusal::Damaged(first)) => first,
        other => return other,
    };
    let moved = repair::set_aside(path)
        .map_err(|error| format!("the database is damaged ({first}) and its snapshots cannot be moved: {error}"))?;
    tracing::error!(
        path = %path.display(), error = first, files = moved,
        "the database is damaged; trying again without its snapshots and settings, from its log alone"
    );
    let db = try_open(path)?;
    tracing::error!(path = %path.display(), "the database opened from its log alone; check the disk");
    Ok(db)
}

fn try_open(path: &Path) -> Result<Db, OpenRefusal> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        let config = sled::Config::new().path(path).cache_capacity(CACHE).flush_every_ms(None);
        // sled asserts what it believes of its files, so damage can also be a panic.
        match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => return Ok(db),
            // Unsupported are settings that we never write: they are damaged.
            Ok(Err(error @ (sled::Error::Corruption { .. } | sled::Error::Unsupported(_)))) => {
                return Err(OpenRefusal::Damaged(error.to_string()));
            }
            // We hold our lock, so this is a thread of a store that was just closed, or a foreign program.
            Ok(Err(sled::Error::Io(error))) if error.to_string().contains("could not acquire lock") => {
                if Instant::now() >= deadline {
                    return Err(OpenRefusal::Other(in_use(path)));
                }
                thread::sleep(LOCK_POLL);
            }
            Ok(Err(sled::Error::Io(error))) => return Err(OpenRefusal::io("open it", &error)),
            Ok(Err(error)) => return Err(OpenRefusal::Other(error.to_string())),
            Err(_) => return Err(OpenRefusal::Damaged("sled gave up reading it".to_owned())),
        }
    }
}

/// Makes durable what sled's data file in this folder has, if there is one.
pub(super) fn sync_data(path: &Path) -> io::Result<()> {
    match File::open(path.join("db")) {
        Ok(data) => data.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a folder for its owner alone, and those above it that are not there. Their names are on disk when this returns:
/// otherwise a power cut could take a whole folder with all that was synced in it.
///
/// # Errors
///
/// Those of the file system.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    let unnamed = unnamed(path);
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    unnamed.into_iter().try_for_each(|folder| File::open(folder)?.sync_all())
}

/// The folders that get a new name when this one is made: from the lowest to that which is there already.
fn unnamed(path: &Path) -> Vec<&Path> {
    let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let parents = missing.filter_map(Path::parent);
    parents.map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent }).collect()
}

/// Makes the names of the database's files durable.
pub(super) fn sync_folders(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_folder_that_gets_a_new_name_is_known() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        assert_eq!(unnamed(path), Vec::<&Path>::new());
        assert_eq!(unnamed(&path.join("a")), [path]);
        let deep = path.join("a/b/db");
        assert_eq!(unnamed(&deep), [path.join("a/b").as_path(), &path.join("a"), path]);
        make_private_folder(&deep).unwrap();
        assert_eq!(unnamed(&deep), Vec::<&Path>::new());
        for made in [&path.join("a"), &path.join("a/b"), &deep] {
            assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        make_private_folder(&deep).unwrap();
        assert_eq!(unnamed(Path::new("nowhere-to-be-found/db")), [Path::new("nowhere-to-be-found"), Path::new(".")]);
    }
}

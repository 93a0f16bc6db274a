//! The folder that is filled: that nothing is in it before, and a mark as long as it is not complete.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, lchown};
use std::path::Path;

use anyhow::{Context, bail};
use nix::fcntl::OFlag;

use super::{CONFIG_FILE, MARK};

/// The file that says that a restore is under way, locked for as long as it is.
pub(super) struct RestoreMark(File);

impl RestoreMark {
    /// Takes possession of an empty folder, or of one that another restore left.
    pub(super) fn begin(folder: &Path) -> anyhow::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(MARK);
        let left = path.symlink_metadata().is_ok();
        if !left {
            refuse_used(folder)?;
        }
        let what = || path.display().to_string();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = options.open(&path).with_context(what)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("another restore into {} is under way", folder.display()),
            Err(TryLockError::Error(error)) => return Err(error).with_context(what),
        }
        if left {
            clear(folder).with_context(|| format!("cannot clear what a restore left in {}", folder.display()))?;
        }
        file.sync_all().and_then(|()| sync(folder)).with_context(what)?;
        Ok(Self(file))
    }

    pub(super) fn end(self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(MARK);
        // Everything else is on disk before the mark goes.
        let done = sync(folder).and_then(|()| fs::remove_file(&path)).and_then(|()| sync(folder));
        drop(self.0);
        done.with_context(|| path.display().to_string())
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Refuses a folder in which an appliance is or was.
fn refuse_used(folder: &Path) -> anyhow::Result<()> {
    for part in ["db", "pki", CONFIG_FILE] {
        // Its owner may be another user, whose files these would be.
        let path = folder.join(part);
        if path.is_symlink() {
            bail!("{} is a symlink: a restore writes files of its own; remove it", path.display());
        }
    }
    for part in ["db", "pki"] {
        let path = folder.join(part);
        let used = match fs::read_dir(&path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        if used {
            bail!(
                "{path} is not empty: there is an appliance in {folder} already, and a restore replaces none. \
                 Stop it and move it away (mv {folder} {folder}.old), or name another folder with --data-dir",
                path = path.display(),
                folder = folder.display()
            );
        }
    }
    Ok(())
}

/// Removes what a restore wrote. Boot files, images and logs are none of it.
pub(super) fn clear(folder: &Path) -> io::Result<()> {
    let gone = |done: io::Result<()>| match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    gone(fs::remove_dir_all(folder.join("db")))?;
    gone(fs::remove_dir_all(folder.join("pki")))?;
    gone(fs::remove_file(folder.join(CONFIG_FILE)))
}

pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Follows no symlink.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// When root restores into a folder of the user who will serve it, what was written is that user's.
///
/// # Errors
///
/// When an owner cannot be set.
pub fn give_to_owner(folder: &Path) -> io::Result<()> {
    let about = fs::metadata(folder)?;
    if !nix::unistd::geteuid().is_root() || about.uid() == 0 {
        return Ok(());
    }
    for part in ["db", "pki", CONFIG_FILE] {
        let path = folder.join(part);
        if path.symlink_metadata().is_ok() {
            give(&path, about.uid(), about.gid())?;
        }
    }
    Ok(())
}

fn give(path: &Path, user: u32, group: u32) -> io::Result<()> {
    let about = path.symlink_metadata()?;
    if about.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), user, group)?;
        }
    }
    lchown(path, Some(user), Some(group))?;
    Ok(())
}

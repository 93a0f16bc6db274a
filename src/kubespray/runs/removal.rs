//! Removes folders in which a run could write, however deep or closed they are, and whatever is changed in them meanwhile.
//!
//! All is done by descriptors, and no link is followed: who swaps a folder for a link has that link removed. Folders in folders are moved up
//! before they are emptied, so neither names nor stacks nor descriptors become many.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat};
use rustix::io::Errno;

/// How often it is tried anew when somebody else removes or makes something there at the same time.
const TRIES: usize = 8;

/// Removes a folder with all that is in it, if it is there. Two may do so at once.
///
/// # Errors
///
/// When something of it cannot be removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match once(path) {
            Err(_) if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {
                return Ok(());
            }
            Err(error) if tries < TRIES && is_raced(&error) => tries += 1,
            done => return done,
        }
    }
}

fn is_raced(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty)
}

fn once(path: &Path) -> io::Result<()> {
    match open(CWD, path) {
        Err(Errno::NOTDIR | Errno::LOOP) => return fs::remove_file(path),
        top => empty(&top?)?,
    }
    fs::remove_dir(path)
}

/// A folder, for its owner, whatever its mode was.
fn open(above: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let found =
        openat(above, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    fs::set_permissions(format!("/proc/self/fd/{}", found.as_raw_fd()), Permissions::from_mode(0o700)).ok();
    openat(&found, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn names(folder: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let all = Dir::read_from(folder)?.map(|entry| Ok(entry?.file_name().to_owned()));
    let all: Result<Vec<CString>, Errno> = all.collect();
    Ok(all?.into_iter().filter(|name| name.as_c_str() != c"." && name.as_c_str() != c"..").collect())
}

/// Removes what is no folder; whether it was one.
fn is_folder(folder: &OwnedFd, name: &CString) -> Result<bool, Errno> {
    match unlinkat(folder, name.as_c_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::ISDIR) => Ok(true),
        Err(error) => Err(error),
    }
}

fn empty(top: &OwnedFd) -> Result<(), Errno> {
    let mut moved = 0_u64;
    loop {
        let left = names(top)?;
        if left.is_empty() {
            return Ok(());
        }
        for name in left {
            if !is_folder(top, &name)? {
                continue;
            }
            let folder = open(top, name.as_c_str())?;
            for inner in names(&folder)? {
                if is_folder(&folder, &inner)? {
                    // A folder that its owner may not write is not moved.
                    drop(open(&folder, inner.as_c_str())?);
                    loop {
                        moved += 1;
                        match renameat_with(&folder, inner.as_c_str(), top, format!(".{moved}"), RenameFlags::NOREPLACE)
                        {
                            Err(Errno::EXIST) => {}
                            done => break done?,
                        }
                    }
                }
            }
            unlinkat(top, name.as_c_str(), AtFlags::REMOVEDIR)?;
        }
    }
}

//! Files of the node, written whole, and never through a link that somebody else made.
//!
//! A path is walked folder by folder. A link on it is followed only in a folder that nobody but its owner, who is root, writes in;
//! so nobody who may write into `/tmp` has root write elsewhere. What is written stands beside its place first, on disk, and is then
//! renamed: a reader, and whoever comes after a crash, finds the old file or the new one.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::hex::hex;

/// Most links on one path, as the kernel has it (path_resolution(7)).
const LINKS: usize = 40;
/// How a folder is opened on the way.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whose a file is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeFileOwner {
    pub uid: u32,
    pub gid: u32,
}

/// A file that is being written beside its place. Dropped before it is placed, it is removed.
pub(super) struct ReplacingFile {
    folder: OwnedFd,
    name: OsString,
    part: OsString,
    /// What is written to.
    pub file: File,
    is_placed: bool,
}

impl ReplacingFile {
    /// Begins a file at an absolute path, with these permissions. Missing folders are made.
    pub fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        let (folder, name) = parent(path, true)?;
        Self::begin_in(folder, &name, mode)
    }

    /// Begins a file in a folder that is open.
    pub fn begin_in(folder: OwnedFd, name: &OsStr, mode: u32) -> io::Result<Self> {
        // The name of a file may be as long as a name can be.
        let digest: String = hex(&Sha256::digest(name.as_encoded_bytes())[..8]);
        let part = OsString::from(format!(".slipway-{digest}.part"));
        // One that a crash left.
        match rustix::fs::unlinkat(&folder, &part, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, &part, flags, Mode::from_raw_mode(0o600))?;
        // Whatever the umask is.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777))?;
        Ok(Self { folder, name: name.to_owned(), part, file: file.into(), is_placed: false })
    }

    /// Whose it is to be.
    pub fn own(&self, owner: NodeFileOwner) -> io::Result<()> {
        let (uid, gid) = (rustix::process::Uid::from_raw(owner.uid), rustix::process::Gid::from_raw(owner.gid));
        Ok(rustix::fs::fchown(&self.file, Some(uid), Some(gid))?)
    }

    /// Puts it into its place. It is on disk with its name when this returns.
    pub fn place(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        rustix::fs::renameat(&self.folder, &self.part, &self.folder, &self.name)?;
        self.is_placed = true;
        Ok(rustix::fs::fsync(&self.folder)?)
    }
}

impl Drop for ReplacingFile {
    fn drop(&mut self) {
        if !self.is_placed {
            // A part that stays is removed by the next try.
            rustix::fs::unlinkat(&self.folder, &self.part, AtFlags::empty()).ok();
        }
    }
}

/// Writes a whole file.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut new = ReplacingFile::begin(path, mode)?;
    new.file.write_all(content)?;
    new.place()
}

/// Opens a regular file that is no link, by a path without links of others.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let (folder, name) = parent(path, false)?;
    open_in(&folder, &name)
}

/// Opens a regular file of an open folder; no link.
pub(super) fn open_in(folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file: File = rustix::fs::openat(folder, name, flags, Mode::empty())?.into();
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"))
}

/// The folder of a path, open, and the last name of it.
fn parent(path: &Path, make: bool) -> io::Result<(OwnedFd, OsString)> {
    let fault = |what| io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {}", path.display()));
    if !path.is_absolute() {
        return Err(fault("a path must be absolute"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(fault("a path has no \"..\""));
    }
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(fault("it names no file")) };
    Ok((walk(above, make)?, name.to_owned()))
}

/// Opens a folder by its absolute path. With `make`, folders that are missing are made.
pub(super) fn walk(path: &Path, make: bool) -> io::Result<OwnedFd> {
    let root = || rustix::fs::open("/", FOLDER, Mode::empty());
    let mut folder = root()?;
    let mut left: VecDeque<OsString> = names(path);
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        match rustix::fs::openat(&folder, &name, FOLDER, Mode::empty()) {
            Ok(next) => folder = next,
            Err(rustix::io::Errno::NOENT) if make => {
                match rustix::fs::mkdirat(&folder, &name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                rustix::fs::fsync(&folder)?;
                folder = rustix::fs::openat(&folder, &name, FOLDER, Mode::empty())?;
            }
            // A link, or no folder.
            Err(error @ (rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR)) => {
                let about = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(about.st_mode) != FileType::Symlink {
                    return Err(error.into());
                }
                links += 1;
                if links > LINKS {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                may_follow(&folder, about.st_uid, &name)?;
                let target = rustix::fs::readlinkat(&folder, &name, Vec::new())?.into_bytes();
                let target = OsString::from_vec(target);
                if Path::new(&target).is_absolute() {
                    folder = root()?;
                }
                names(Path::new(&target)).into_iter().rev().for_each(|name| left.push_front(name));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(folder)
}

fn names(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    parts.collect()
}

/// A link is followed that root made, or whoever this is, where nobody else could have made it.
fn may_follow(folder: &OwnedFd, owner: u32, name: &OsStr) -> io::Result<()> {
    let about = rustix::fs::fstat(folder)?;
    let me = rustix::process::geteuid().as_raw();
    let mine = |uid: u32| uid == 0 || uid == me;
    if mine(about.st_uid) && mine(owner) && about.st_mode & 0o022 == 0 {
        return Ok(());
    }
    let what = format!("{} is a link in a folder that others write in: it is not followed", name.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_whole_and_no_link_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let path = top.join("a/b/file");
        replace(&path, b"one", 0o640).unwrap();
        replace(&path, b"two", 0o644).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(top.join("a/b")).unwrap().count(), 1, "no parts");
        // The place itself is a link: the link is replaced, what it names stays.
        let victim = top.join("victim");
        std::fs::write(&victim, "mine").unwrap();
        symlink(&victim, top.join("link")).unwrap();
        replace(&top.join("link"), b"new", 0o600).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
        assert!(std::fs::symlink_metadata(top.join("link")).unwrap().is_file());
        // A part that somebody put there in between is a link: it goes.
        let part = ReplacingFile::begin(&top.join("x"), 0o600).unwrap().part.clone();
        symlink(&victim, top.join(&part)).unwrap();
        replace(&top.join("x"), b"new", 0o600).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
    }

    #[test]
    fn a_link_on_the_way_is_followed_only_where_nobody_else_could_make_it() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real")).unwrap();
        let shared = top.join("shared");
        std::fs::create_dir(&shared).unwrap();
        symlink(top.join("real"), top.join("ours")).unwrap();
        symlink("../real", shared.join("theirs")).unwrap();
        replace(&top.join("ours/file"), b"1", 0o600).unwrap();
        replace(&shared.join("theirs/file2"), b"1", 0o600).unwrap();
        assert!(top.join("real/file").exists() && top.join("real/file2").exists());
        for mode in [0o1777, 0o777, 0o775] {
            std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = replace(&shared.join("theirs/file3"), b"1", 0o600).unwrap_err();
            assert!(error.to_string().contains("not followed"), "{error}");
            assert!(!top.join("real/file3").exists());
        }
        symlink(shared.join("loop"), top.join("loop2")).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink(top.join("loop2"), shared.join("loop")).unwrap();
        assert!(replace(&top.join("loop2/file"), b"1", 0o600).is_err());
        for bad in ["relative", "/a/../b", "/"] {
            assert!(replace(Path::new(bad), b"1", 0o600).is_err(), "{bad}");
        }
    }
}

//! How much room a file system has (statvfs(3)).

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sys::statvfs::{Statvfs, fstatvfs, statvfs};

/// The room of a file system at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that this process may still write: what is reserved for root is not among them.
    pub free: u64,
    /// Bytes of the whole file system.
    pub size: u64,
    /// Files that it can have; 0 where it makes inodes as they are needed, and never lacks them.
    pub inodes: u64,
    /// Files that can still be made; means nothing where `inodes` is 0.
    pub free_inodes: u64,
}

impl DiskSpace {
    /// That of the file system on which a file or folder is.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell, as where nothing is at the path.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::read(&statvfs(path)?))
    }

    /// That of the file system on which an open file or folder is, even if another one is mounted at its path by now.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell.
    pub fn under(file: &File) -> io::Result<Self> {
        Ok(Self::read(&fstatvfs(file)?))
    }

    fn read(found: &Statvfs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
        Self {
            free: bytes(found.blocks_available()),
            size: bytes(found.blocks()),
            inodes: found.files(),
            free_inodes: found.files_available(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_what_is_open_there_are_on_one_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let (path, open) = (DiskSpace::at(folder.path()).unwrap(), File::open(folder.path()).unwrap());
        let open = DiskSpace::under(&open).unwrap();
        assert_eq!((path.size, path.inodes), (open.size, open.inodes));
        assert!(path.size > 0 && path.free <= path.size, "{path:?}");
        DiskSpace::at(&folder.path().join("none")).unwrap_err();
    }
}

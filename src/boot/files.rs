//! Boot files: the names that TFTP and HTTP serve, where they are, and TFTP files kept in memory.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;

/// Largest file that TFTP serves, in bytes. iPXE programs are about 1 MB.
const MAX_TFTP_FILE: u64 = 64 << 20;

/// Kernel of the ramdisk.
pub const KERNEL: &str = "vmlinuz";
/// Initial ramdisk.
pub const INITRD: &str = "initrd";
/// Kernel, initrd and boot loaders as one medium ([`super::iso`]); served by its own endpoint, machine by machine.
pub const ISO: &str = "slipway.iso";
/// What the ramdisk was made from; the last file that a build writes.
pub const MANIFEST: &str = "ramdisk.json";
/// iPXE for BIOS, on the firmware's own network driver.
pub const IPXE_BIOS: &str = "undionly.kpxe";
/// iPXE for UEFI, on the firmware's own network driver.
pub const IPXE_UEFI: &str = "snponly.efi";
/// iPXE for UEFI with drivers of its own; what HTTP boot loads.
pub const IPXE_UEFI_DRIVERS: &str = "ipxe.efi";

/// Media type of what is no text.
pub(super) const BINARY: &str = "application/octet-stream";
const EFI: &str = "application/efi";

/// Which folder has the boot files: `own` when a ramdisk was built there, else the one that a package installed, where it did.
///
/// To be asked once, at the start: while a ramdisk is built anew its folder has none, and kernel and initrd of two builds do
/// not go together.
pub fn boot_folder<'a>(own: &'a Path, packaged: &'a Path) -> &'a Path {
    let is_built = |folder: &Path| folder.join(MANIFEST).is_file();
    if !is_built(own) && is_built(packaged) { packaged } else { own }
}

/// Every file that boot HTTP serves, with its media type.
pub const HTTP_FILES: [(&str, &str); 5] =
    [(KERNEL, BINARY), (INITRD, BINARY), (IPXE_BIOS, BINARY), (IPXE_UEFI, EFI), (IPXE_UEFI_DRIVERS, EFI)];

/// Every file that TFTP serves: the programs that fetch the rest over HTTP.
pub const TFTP_FILES: [&str; 3] = [IPXE_BIOS, IPXE_UEFI, IPXE_UEFI_DRIVERS];

/// A name that is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It would be a path, or has control characters.
    #[error("a path, not a file name")]
    Path,
    /// It is not in the list.
    #[error("no such boot file")]
    Unknown,
}

/// A listed file cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be opened or read.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a folder, or something else without a length.
    #[error("{0}: not a regular file")]
    NotAFile(PathBuf),
    /// It is larger than TFTP is good for.
    #[error("{0}: larger than 64 MiB")]
    TooLarge(PathBuf),
}

/// The folder of boot files. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BootFiles {
    folder: Arc<Path>,
    // std's lock: held for a map operation or one stat, never across an await.
    shared: Arc<Mutex<HashMap<&'static str, SharedFile>>>,
}

/// A file that a transfer holds. Nothing is kept when none does.
#[derive(Debug)]
struct SharedFile {
    version: FileVersion,
    data: Weak<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

struct FileBytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BootFiles {
    /// The files in this folder. It need not exist yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.into(), shared: Arc::default() }
    }

    /// Where a listed file is.
    pub fn path(&self, name: &'static str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether kernel and initrd are there and whole: the manifest is written last and removed first.
    pub fn has_ramdisk(&self) -> bool {
        [MANIFEST, KERNEL, INITRD].into_iter().all(|name| self.path(name).is_file())
    }

    /// The whole of a listed file. Callers at the same time share it. Blocks on the disk.
    pub fn load(&self, name: &'static str) -> Result<Bytes, FileError> {
        let path = self.path(name);
        let fail = |source| FileError::Io { path: path.clone(), source };
        let mut file = std::fs::File::open(&path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if !meta.is_file() {
            return Err(FileError::NotAFile(path));
        }
        if meta.len() > MAX_TFTP_FILE {
            return Err(FileError::TooLarge(path));
        }
        let version =
            FileVersion { inode: meta.ino(), length: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) };
        if let Some(data) = self.held(name, &version) {
            return Ok(Bytes::from_owner(FileBytes(data)));
        }
        let mut data = Vec::with_capacity(meta.len() as usize);
        io::Read::read_to_end(&mut io::Read::take(&mut file, MAX_TFTP_FILE), &mut data).map_err(fail)?;
        let data = Arc::new(data);
        let entry = SharedFile { version, data: Arc::downgrade(&data) };
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(name, entry);
        Ok(Bytes::from_owner(FileBytes(data)))
    }

    fn held(&self, name: &str, version: &FileVersion) -> Option<Arc<Vec<u8>>> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.get(name).filter(|held| held.version == *version)?.data.upgrade()
    }
}

/// The entry of `list` with this name, as it came from the wire. The list is all there is: the name never becomes a path.
pub fn lookup(list: &[&'static str], name: &[u8]) -> Result<&'static str, NameError> {
    if let Some(found) = list.iter().find(|known| known.as_bytes() == name) {
        return Ok(found);
    }
    let path = name.iter().any(|byte| matches!(byte, b'/' | b'\\') || byte.is_ascii_control())
        || name.windows(2).any(|pair| pair == b"..");
    Err(if path { NameError::Path } else { NameError::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramdisk_of_ones_own_goes_before_the_one_of_the_package() {
        let (own, packaged) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let chosen = || boot_folder(own.path(), packaged.path()).to_owned();
        assert_eq!(chosen(), own.path(), "where `slipway ramdisk build` will write");
        std::fs::write(packaged.path().join(MANIFEST), "{}").unwrap();
        assert_eq!(chosen(), packaged.path());
        std::fs::write(own.path().join(MANIFEST), "{}").unwrap();
        assert_eq!(chosen(), own.path());
    }

    #[test]
    fn only_listed_names_are_found() {
        assert_eq!(lookup(&TFTP_FILES, b"snponly.efi"), Ok(IPXE_UEFI));
        for path in [
            &b"../../etc/passwd"[..],
            b"/etc/passwd",
            b"/snponly.efi",
            b"..\\boot.ini",
            b"snponly.efi\0",
            b"..",
            b"a\n",
        ] {
            assert_eq!(lookup(&TFTP_FILES, path), Err(NameError::Path), "{}", path.escape_ascii());
        }
        for unknown in [&b"vmlinuz"[..], b"ramdisk.json", b"", b"SNPONLY.EFI", b"\xff\xfe"] {
            assert_eq!(lookup(&TFTP_FILES, unknown), Err(NameError::Unknown), "{}", unknown.escape_ascii());
        }
    }

    #[test]
    fn a_file_is_shared_while_held_and_read_again_when_replaced() {
        let folder = tempfile::tempdir().expect("folder");
        let files = BootFiles::new(folder.path());
        assert!(matches!(files.load(IPXE_UEFI), Err(FileError::Io { .. })));
        std::fs::write(files.path(IPXE_UEFI), b"one").expect("written");
        let one = files.load(IPXE_UEFI).expect("loaded");
        assert_eq!(files.load(IPXE_UEFI).expect("loaded").as_ptr(), one.as_ptr());
        std::fs::write(folder.path().join("new"), b"two!").expect("written");
        std::fs::rename(folder.path().join("new"), files.path(IPXE_UEFI)).expect("renamed");
        assert_eq!(files.load(IPXE_UEFI).expect("loaded"), "two!");
        assert_eq!(one, "one");
        std::fs::create_dir(files.path(IPXE_BIOS)).expect("made");
        assert!(matches!(files.load(IPXE_BIOS), Err(FileError::NotAFile(_))));
        std::fs::File::create(files.path(IPXE_UEFI_DRIVERS)).and_then(|f| f.set_len(MAX_TFTP_FILE + 1)).expect("made");
        assert!(matches!(files.load(IPXE_UEFI_DRIVERS), Err(FileError::TooLarge(_))));
    }
}

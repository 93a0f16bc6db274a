//! kexec: starts the installed system from the ramdisk, without another start of the firmware.
//!
//! The boot loader's configuration on the root disk says which kernel, initial ramdisks and command line; the kernel
//! loads them with `kexec_file_load(2)`, which also works under Secure Boot for signed kernels. Systems whose kernel
//! cannot be found so (LVM, btrfs, unified kernel images) are started through the firmware instead.

pub mod bootconfig;

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use bootconfig::{BootEntry, Variables};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Modules of the file systems that systems boot from.
pub const FILE_SYSTEMS: [&str; 5] = ["ext4", "xfs", "vfat", "nls_cp437", "nls_ascii"];
/// How each is mounted without writing to it, not even its journal.
const MOUNTS: [(&str, Option<&str>); 3] = [("ext4", Some("noload")), ("xfs", Some("norecovery")), ("vfat", None)];
const MOUNT_POINT: &str = "/run/installed";
/// Largest configuration file and initial ramdisk, in bytes.
const MAX_CONFIG: u64 = 1 << 20;
const MAX_INITRD: u64 = 512 << 20;
/// Most entries of the Boot Loader Specification looked at.
const MAX_ENTRIES: usize = 64;
/// Longest command line of Linux on x86, in bytes (`COMMAND_LINE_SIZE`).
const MAX_OPTIONS: usize = 2048;

/// Why a system cannot be started this way.
#[derive(Debug, thiserror::Error)]
pub enum KexecError {
    /// No partition has a boot loader's configuration whose kernel is there.
    #[error("no kernel was found on {disk}: {tried}")]
    NoKernel {
        /// The disk.
        disk: PathBuf,
        /// Each partition with what was found there.
        tried: String,
    },
    /// The kernel does not take it.
    #[error("the kernel refuses {kernel}: {source}")]
    Refused {
        /// Path on the installed system.
        kernel: String,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be used.
    #[error("{what}: {source}")]
    File {
        /// Which, and what was done.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// Loads the kernel of the system that is installed on a disk; the next [`nix::sys::reboot::RebootMode::RB_KEXEC`] starts it. Says
/// which kernel it is. The disk is not written to.
pub fn load(sys_block: &Path, disk: &Path) -> Result<String, KexecError> {
    let mut tried = Vec::new();
    for partition in partitions(sys_block, disk) {
        let name = partition.display();
        let mounted = match Mounted::new(&partition) {
            Ok(mounted) => mounted,
            Err(error) => {
                tried.push(format!("{name}: {error}"));
                continue;
            }
        };
        let root = Path::new(MOUNT_POINT);
        let Some(entry) = installed(root) else {
            tried.push(format!("{name}: no boot loader configuration"));
            continue;
        };
        let loaded = match open_in(root, &entry.kernel) {
            Ok(kernel) => load_entry(root, &entry, &kernel),
            Err(error) => {
                tried.push(format!("{name}: {}: {error}", entry.kernel));
                continue;
            }
        };
        drop(mounted);
        return loaded.map(|()| format!("{} of {name}", entry.kernel));
    }
    if tried.is_empty() {
        tried.push("it has no partitions".to_owned());
    }
    Err(KexecError::NoKernel { disk: disk.to_owned(), tried: tried.join("; ") })
}

/// The partitions of a disk as the kernel knows them, by their number.
fn partitions(sys_block: &Path, disk: &Path) -> Vec<PathBuf> {
    let Some(name) = disk.file_name() else { return Vec::new() };
    let entries = std::fs::read_dir(sys_block.join(name)).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let number = std::fs::read_to_string(entry.path().join("partition")).ok()?;
            Some((number.trim().parse().ok()?, disk.with_file_name(entry.file_name())))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, device)| device).collect()
}

/// A file system of the disk, mounted for reading until this is dropped.
struct Mounted;

impl Mounted {
    fn new(partition: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(MOUNT_POINT)?;
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        for (kind, options) in MOUNTS {
            match mount(Some(partition), MOUNT_POINT, Some(kind), flags, options) {
                Ok(()) => return Ok(Self),
                // Another file system, or one that the ramdisk has no module for.
                Err(Errno::EINVAL | Errno::ENODEV | Errno::EUCLEAN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("no file system that could be read"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = umount2(MOUNT_POINT, MntFlags::MNT_DETACH) {
            tracing::warn!(path = MOUNT_POINT, %error, "cannot unmount a file system");
        }
    }
}

/// What a file system's boot loader configuration boots.
fn installed(root: &Path) -> Option<BootEntry> {
    for folder in ["boot/grub", "boot/grub2", "grub", "grub2"] {
        let mut variables =
            text_of(root, &format!("{folder}/grubenv")).map(|text| bootconfig::environment(&text)).unwrap_or_default();
        let Some(text) = text_of(root, &format!("{folder}/grub.cfg")) else { continue };
        if let Some(entry) = bootconfig::grub(&text, &mut variables).or_else(|| specified(root, &variables)) {
            return Some(entry);
        }
    }
    specified(root, &Variables::new())
}

/// The same by the Boot Loader Specification.
fn specified(root: &Path, variables: &Variables) -> Option<BootEntry> {
    ["loader/entries", "boot/loader/entries"].into_iter().find_map(|folder| {
        let names = std::fs::read_dir(root.join(folder)).ok()?.flatten().take(MAX_ENTRIES);
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let files: Vec<(String, String)> = names
            .filter(|name| name.ends_with(".conf"))
            .filter_map(|name| text_of(root, &format!("{folder}/{name}")).map(|text| (name, text)))
            .collect();
        bootconfig::entries(&files, variables)
    })
}

fn text_of(root: &Path, path: &str) -> Option<String> {
    let mut text = Vec::new();
    open_in(root, path).ok()?.take(MAX_CONFIG).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Opens a file of the installed system; its links, absolute ones too, stay inside it.
fn open_in(root: &Path, path: &str) -> io::Result<File> {
    let folder = File::open(root)?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = File::from(openat2(&folder, path, how)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
}

fn load_entry(root: &Path, entry: &BootEntry, kernel: &File) -> Result<(), KexecError> {
    let failed = |what: String| move |source: io::Error| KexecError::File { what, source };
    let too_long = || io::Error::other(format!("it has {} bytes, at most {MAX_OPTIONS} fit", entry.options.len()));
    if entry.options.len() >= MAX_OPTIONS {
        return Err(failed("the kernel's command line".into())(too_long()));
    }
    let options = CString::new(entry.options.as_str())
        .map_err(|error| failed("the kernel's command line".into())(error.into()))?;
    let initrd = match entry.initrds.as_slice() {
        [] => None,
        [one] => Some(open_in(root, one).map_err(failed(one.clone()))?),
        several => Some(joined(root, several)?),
    };
    kexec_file_load(kernel, initrd.as_ref(), &options)
        .map_err(|source| KexecError::Refused { kernel: entry.kernel.clone(), source })
}

/// Several initial ramdisks as one: the kernel takes them one after another.
fn joined(root: &Path, paths: &[String]) -> Result<File, KexecError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source: io::Error| KexecError::File { what, source }
    };
    let memory = memfd_create(c"initrd", MFdFlags::MFD_CLOEXEC).map_err(|error| failed("memory")(error.into()))?;
    let mut memory = File::from(memory);
    let mut room = MAX_INITRD;
    for path in paths {
        let file = open_in(root, path).map_err(failed(path))?;
        let copied = io::copy(&mut file.take(room), &mut memory).map_err(failed(path))?;
        room -= copied;
        if room == 0 {
            return Err(failed(path)(io::Error::other("the initial ramdisks are too large")));
        }
        // Each archive begins at a multiple of four bytes.
        let padding = (4 - copied % 4) % 4;
        io::copy(&mut io::repeat(0).take(padding), &mut memory).map_err(failed(path))?;
    }
    Ok(memory)
}

/// `kexec_file_load(2)`.
fn kexec_file_load(kernel: &File, initrd: Option<&File>, options: &CString) -> io::Result<()> {
    const KEXEC_FILE_NO_INITRAMFS: libc::c_ulong = 0x4;
    let options = options.as_bytes_with_nul();
    let (initrd, flags) = initrd.map_or((-1, KEXEC_FILE_NO_INITRAMFS), |file| (file.as_raw_fd(), 0));
    // SAFETY: both files are open for as long as the call, and the command line ends with a NUL byte and is as long as
    // it is said to be; the kernel only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd,
            options.len() as libc::c_ulong,
            options.as_ptr(),
            flags,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }
        folder
    }

    #[test]
    fn the_configuration_is_found_wherever_distributions_put_it() {
        let grub = "menuentry x { linux /k a\n initrd /i }";
        let entry = "linux /k\ninitrd /i\noptions $kernelopts\n";
        for files in [
            vec![("boot/grub/grub.cfg", grub)],
            vec![("grub2/grub.cfg", grub)],
            vec![
                ("loader/entries/x-1.conf", "linux /k\ninitrd /i\noptions a\n"),
                ("loader/entries/readme", "linux /no\n"),
            ],
            // Fedora: the menu comes from the entries, their options from the environment.
            vec![
                ("grub2/grub.cfg", "blscfg\n"),
                ("grub2/grubenv", "kernelopts=a\n"),
                ("loader/entries/x-1.conf", entry),
            ],
            vec![("boot/grub2/grub.cfg", "set kernelopts=\"a\"\nblscfg\n"), ("boot/loader/entries/x-1.conf", entry)],
        ] {
            let found = installed(tree(&files).path()).expect("an entry");
            assert_eq!((found.kernel.as_str(), found.options.as_str()), ("/k", "a"), "{files:?}");
            assert_eq!(found.initrds, ["/i"]);
        }
        assert_eq!(installed(tree(&[("boot/other", "")]).path()), None);
    }

    #[test]
    fn links_do_not_lead_out_of_the_installed_system() {
        let system = tree(&[("boot/vmlinuz-1", "kernel")]);
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, system.path().join(name)).expect("a link");
        };
        link("boot/vmlinuz-1", "vmlinuz");
        link("/boot/vmlinuz-1", "absolute");
        link("/etc/hostname", "outside");
        link("../../../../etc/hostname", "upwards");
        let read = |path: &str| text_of(system.path(), path);
        assert_eq!(read("/vmlinuz").as_deref(), Some("kernel"));
        assert_eq!(read("/absolute").as_deref(), Some("kernel"));
        assert_eq!(read("/outside"), None);
        assert_eq!(read("/upwards"), None);
        assert_eq!(read("/boot"), None, "a folder is no kernel");
    }

    #[test]
    fn several_initial_ramdisks_become_one() {
        let system = tree(&[("a", "12345"), ("b", "678")]);
        let mut joined = joined(system.path(), &["/a".into(), "/b".into()]).expect("joined");
        let mut text = Vec::new();
        io::Seek::rewind(&mut joined).expect("rewound");
        joined.read_to_end(&mut text).expect("read");
        assert_eq!(text, b"12345\x00\x00\x00678\x00");
    }

    #[test]
    fn the_partitions_of_a_disk_come_by_their_number() {
        let sys = tree(&[
            ("sda/sda10/partition", "10\n"),
            ("sda/sda2/partition", "2\n"),
            ("sda/queue/rotational", "1\n"),
            ("nvme0n1/nvme0n1p1/partition", "1\n"),
        ]);
        let of = |disk: &str| partitions(sys.path(), Path::new(disk));
        assert_eq!(of("/dev/sda"), [PathBuf::from("/dev/sda2"), "/dev/sda10".into()]);
        assert_eq!(of("/dev/nvme0n1"), [PathBuf::from("/dev/nvme0n1p1")]);
        assert_eq!(of("/dev/sdz"), Vec::<PathBuf>::new());
    }
}

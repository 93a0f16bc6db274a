//! UEFI boot entries through efivarfs.
//!
//! One entry, "Slipway", starts the fallback loader of the root disk's EFI system partition. It is put first in
//! `BootOrder`; the others stay, in their order. A network boot stays possible: the BMC's one-time override comes
//! before `BootOrder`. What is there already is not written again, because firmware's memory wears out.
//!
//! Formats: UEFI specification 2.10, sections 3.1.3 (load options), 10.3.5.1 and 10.3.5.4 (device paths); Linux
//! `Documentation/filesystems/efivarfs.rst` (four bytes of attributes before the data, immutable files).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::DiskError;
use super::device::BlockDevice;
use super::gpt::{Gpt, GptPartition, TYPE_ESP};

/// Where firmware's variables are.
pub const EFIVARS: &str = "/sys/firmware/efi/efivars";
/// Our entries' description begins with this.
pub const DESCRIPTION: &str = "Slipway";
/// The loader that removable media have, which every installation has as well.
pub const LOADER: &str =
    if cfg!(target_arch = "aarch64") { r"\EFI\BOOT\BOOTAA64.EFI" } else { r"\EFI\BOOT\BOOTX64.EFI" };

const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Non-volatile, for boot services, for the running system.
const ATTRIBUTES: u32 = 7;
const ACTIVE: u32 = 1;
/// Largest variable that is read, in bytes.
const MAX_VARIABLE: u64 = 64 << 10;
const IMMUTABLE: nix::libc::c_long = 0x10;

mod ioctl {
    nix::ioctl_read!(get_flags, b'f', 1, nix::libc::c_long);
    nix::ioctl_write_ptr!(set_flags, b'f', 2, nix::libc::c_long);
}

/// A load option that starts a file of a GPT partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOption {
    /// Shown in the firmware's menu.
    pub description: String,
    /// Whether the firmware may use it.
    pub active: bool,
    /// Number of the partition.
    pub partition: u32,
    /// First sector of the partition.
    pub first: u64,
    /// Sectors of the partition.
    pub length: u64,
    /// Unique GUID of the partition, as on disk.
    pub guid: [u8; 16],
    /// File, with backslashes.
    pub loader: String,
}

fn utf16(text: &str) -> impl Iterator<Item = u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes)
}

impl LoadOption {
    /// The variable's data.
    pub fn encode(&self) -> Vec<u8> {
        let mut path = vec![4, 1, 42, 0];
        path.extend(self.partition.to_le_bytes());
        path.extend(self.first.to_le_bytes());
        path.extend(self.length.to_le_bytes());
        path.extend(self.guid);
        // Partition table: GPT; signature: GUID.
        path.extend([2, 2]);
        let file: Vec<u8> = utf16(&self.loader).collect();
        path.extend([4, 4]);
        path.extend((file.len() as u16 + 4).to_le_bytes());
        path.extend(file);
        path.extend([0x7f, 0xff, 4, 0]);
        let mut out = (if self.active { ACTIVE } else { 0 }).to_le_bytes().to_vec();
        out.extend((path.len() as u16).to_le_bytes());
        out.extend(utf16(&self.description));
        out.extend(path);
        out
    }

    /// Reads a variable's data; `None` for any other kind of load option.
    pub fn decode(data: &[u8]) -> Option<Self> {
        let active = u32::from_le_bytes(*data.first_chunk()?) & ACTIVE != 0;
        let (description, rest) = text(data.get(6..)?)?;
        let node = rest.get(..42).filter(|node| node[..4] == [4, 1, 42, 0] && node[40..] == [2, 2])?;
        let file = rest.get(42..).filter(|file| file.starts_with(&[4, 4]))?;
        let (loader, _) = text(file.get(4..)?)?;
        Some(Self {
            description,
            active,
            partition: u32::from_le_bytes(*node.get(4..)?.first_chunk()?),
            first: u64::from_le_bytes(*node.get(8..)?.first_chunk()?),
            length: u64::from_le_bytes(*node.get(16..)?.first_chunk()?),
            guid: *node.get(24..)?.first_chunk()?,
            loader,
        })
    }
}

/// The description of a load option of any kind.
fn description(data: &[u8]) -> Option<String> {
    text(data.get(6..)?).map(|(text, _)| text)
}

/// UTF-16 up to its zero, and what follows.
fn text(data: &[u8]) -> Option<(String, &[u8])> {
    let units = data.as_chunks().0;
    let end = units.iter().position(|unit| *unit == [0, 0])?;
    let units = units[..end].iter().map(|unit| u16::from_le_bytes(*unit));
    let text = char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).collect();
    Some((text, &data[end * 2 + 2..]))
}

/// Makes the firmware boot a disk; the entry's name, or `None` where there is nothing to do: the machine was not
/// started by UEFI firmware. Blocks.
///
/// `efivars` is [`EFIVARS`]. Fails when it is not mounted, the disk has no EFI system partition, or the firmware
/// refuses.
pub fn set_boot_entry(efivars: &Path, disk: &Path) -> Result<Option<String>, DiskError> {
    if efivars.parent().is_none_or(|efi| !efi.exists()) {
        return Ok(None);
    }
    let device = BlockDevice::open(disk)?;
    let partitions = Gpt::read(&device)?.map(|table| table.partitions()).unwrap_or_default();
    let esp = partitions.into_iter().find(|p| p.kind == TYPE_ESP).ok_or_else(|| {
        DiskError::table(disk, "the machine boots by UEFI, but the image has no EFI system partition: use a UEFI image")
    })?;
    let entry = option(disk, &esp);
    EfiVariables { folder: efivars.into() }.set(&entry).map(Some)
}

fn option(disk: &Path, esp: &GptPartition) -> LoadOption {
    let name = disk.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    LoadOption {
        description: format!("{DESCRIPTION}: {name}"),
        active: true,
        partition: esp.number,
        first: esp.first,
        length: esp.last - esp.first + 1,
        guid: esp.guid,
        loader: LOADER.into(),
    }
}

struct EfiVariables {
    folder: PathBuf,
}

impl EfiVariables {
    fn set(&self, entry: &LoadOption) -> Result<String, DiskError> {
        let mut others = Vec::new();
        let mut ours = Vec::new();
        for number in self.entries()? {
            let data = self.read(&name(number))?.unwrap_or_default();
            let is_ours = description(&data).is_some_and(|text| {
                text == DESCRIPTION || text.strip_prefix(DESCRIPTION).is_some_and(|rest| rest.starts_with(": "))
            });
            if is_ours { ours.push(number) } else { others.push(number) }
        }
        let free = (0..=u16::MAX).find(|number| !others.contains(number));
        let number = ours.first().copied().or(free).unwrap_or(0);
        self.write(&name(number), &entry.encode())?;
        let old = self.read("BootOrder")?.unwrap_or_default();
        let old = old.as_chunks().0.iter().map(|number| u16::from_le_bytes(*number));
        let mut order = vec![number];
        for number in old {
            if !ours.contains(&number) && !order.contains(&number) {
                order.push(number);
            }
        }
        let order: Vec<u8> = order.into_iter().flat_map(u16::to_le_bytes).collect();
        self.write("BootOrder", &order)?;
        // Entries of earlier disks go last, when nothing names them any more.
        for old in ours.into_iter().filter(|old| *old != number) {
            self.remove(&name(old))?;
        }
        Ok(name(number))
    }

    fn path(&self, variable: &str) -> PathBuf {
        self.folder.join(format!("{variable}-{GLOBAL}"))
    }

    /// Numbers of the load options, sorted.
    fn entries(&self) -> Result<Vec<u16>, DiskError> {
        let fail = |e| DiskError::io(&self.folder, "list the firmware's variables (is efivarfs mounted?)", e);
        let mut found = Vec::new();
        for file in fs::read_dir(&self.folder).map_err(fail)? {
            let file = file.map_err(fail)?.file_name().to_string_lossy().into_owned();
            let number = file.strip_prefix("Boot").and_then(|rest| rest.strip_suffix(GLOBAL)?.strip_suffix('-'));
            found.extend(number.filter(|n| n.len() == 4).and_then(|n| u16::from_str_radix(n, 16).ok()));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// A variable's data without its attributes; `None` when there is no such variable.
    fn read(&self, variable: &str) -> Result<Option<Vec<u8>>, DiskError> {
        let path = self.path(variable);
        let fail = |e| DiskError::io(&path, "read", e);
        match fs::metadata(&path) {
            Ok(meta) if meta.len() > MAX_VARIABLE => Err(fail(io::ErrorKind::FileTooLarge.into())),
            Ok(_) => fs::read(&path).map(|data| Some(data.get(4..).unwrap_or_default().to_vec())).map_err(fail),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fail(error)),
        }
    }

    /// Writes a variable unless it is so already, and reads it back.
    fn write(&self, variable: &str, data: &[u8]) -> Result<(), DiskError> {
        if self.read(variable)?.as_deref() == Some(data) {
            return Ok(());
        }
        let path = self.path(variable);
        let fail = |e| DiskError::io(&path, "write", e);
        self.unlock(&path).map_err(fail)?;
        // One write call, which the firmware takes whole.
        let whole = [&ATTRIBUTES.to_le_bytes()[..], data].concat();
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(fail)?;
        file.write_all(&whole).map_err(fail)?;
        // efivarfs makes the file as long as the variable; any other file system has to be told.
        if file.metadata().map_err(fail)?.len() > whole.len() as u64 {
            file.set_len(whole.len() as u64).map_err(fail)?;
        }
        drop(file);
        if self.read(variable)?.as_deref() == Some(data) {
            return Ok(());
        }
        Err(fail(io::Error::new(io::ErrorKind::InvalidData, "the firmware did not keep it")))
    }

    fn remove(&self, variable: &str) -> Result<(), DiskError> {
        let path = self.path(variable);
        self.unlock(&path).and_then(|()| fs::remove_file(&path)).map_err(|e| DiskError::io(&path, "remove", e))
    }

    /// Clears the flag by which the kernel protects variables from a stray `rm`.
    fn unlock(&self, path: &Path) -> io::Result<()> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut flags = 0;
        // SAFETY: the kernel writes one integer.
        if unsafe { ioctl::get_flags(file.as_raw_fd(), &raw mut flags) }.is_err() || flags & IMMUTABLE == 0 {
            // A file system without flags has nothing to clear.
            return Ok(());
        }
        let flags = flags & !IMMUTABLE;
        // SAFETY: the kernel reads one integer.
        unsafe { ioctl::set_flags(file.as_raw_fd(), &raw const flags) }?;
        Ok(())
    }
}

fn name(number: u16) -> String {
    format!("Boot{number:04X}")
}

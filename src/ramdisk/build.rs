//! Builds the ramdisk: kernel, initrd and manifest from a kernel package and this binary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::boot::{INITRD, IPXE_BIOS, IPXE_UEFI, IPXE_UEFI_DRIVERS, ISO, IsoLayout, KERNEL, MANIFEST};

use super::elf::needs_interpreter;
use super::out::OutputFolder;
use super::package::{PackageError, decompress, each_file};
use super::select::{
    KernelModule, MissingModule, ModuleSelection, aliases_file, dependencies_file, module_name, select,
};
use crate::boot::cpio::{CpioArchive, EntryType};

/// The best level of zstd that needs no more memory to unpack than the window.
pub const BEST_LEVEL: u8 = 19;
/// Window of zstd, as a power of two: 16 MiB. Larger ones gain under one percent and cost the node as much memory
/// while it unpacks.
const ZSTD_WINDOW: u32 = 24;
const XZ_LEVEL: u32 = 6;

/// What a ramdisk is made from.
#[derive(Clone, Debug)]
pub struct RamdiskOptions {
    /// A Debian `linux-image-VERSION-amd64` package, or the folder it was unpacked to.
    pub kernel_package: PathBuf,
    /// Where kernel, initrd and manifest go; made if need be.
    pub out: PathBuf,
    /// What becomes `/init`; `/proc/self/exe` by convention. Must be linked statically.
    pub executable: PathBuf,
    /// Where network boot programs are, `/usr/lib/ipxe` by convention; those found are copied.
    pub ipxe_dir: Option<PathBuf>,
    /// Where Debian's GRUB for CDs is (`gcdx64.efi`), from grub-efi-amd64-bin; without it no ISO is made.
    pub grub: Option<PathBuf>,
    /// Where Debian's `isolinux.bin` and `ldlinux.c32` are; without them the ISO is for UEFI alone.
    pub isolinux: Option<super::iso::IsolinuxFiles>,
    /// Where firmware is, `/lib/firmware` by convention; what the modules ask for and is found goes in.
    pub firmware_dir: Option<PathBuf>,
    /// Level of zstd, from 1 (soon done) to [`BEST_LEVEL`] (smallest). It says nothing of the formats that older kernels read.
    pub level: u8,
}

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildProgress {
    /// What is being done.
    pub phase: BuildPhase,
    /// How much is done: modules when reading, bytes otherwise.
    pub done: u64,
    /// How much there is to do, when it is known.
    pub total: Option<u64>,
}

/// What a build is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildPhase {
    /// Reading what the package's modules need.
    Reading,
    /// Taking out those that go in.
    Extracting,
    /// Packing the initrd.
    Compressing,
}

/// A ramdisk that was built; `ramdisk.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RamdiskSummary {
    /// Version of Slipway that built it.
    pub slipway_version: String,
    /// Version of the kernel, as `uname -r` says it.
    pub kernel_version: String,
    /// `zstd`, `xz` or `gzip`.
    pub compression: String,
    /// Bytes of the initrd when unpacked: what it takes of the node's memory.
    pub unpacked_size: u64,
    /// Names of the modules.
    pub modules: Vec<String>,
    /// Where the ISO's parts are; none when none was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iso: Option<IsoLayout>,
    /// Firmware files that went in.
    pub firmware: Vec<String>,
    /// The files in the folder, by name.
    pub files: BTreeMap<String, SummaryFile>,
}

/// A file that a build wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SummaryFile {
    /// In bytes.
    pub size: u64,
    /// Hex.
    pub sha256: String,
}

impl RamdiskSummary {
    /// Bytes of kernel and initrd: what a machine loads.
    pub fn download_size(&self) -> u64 {
        [KERNEL, INITRD].iter().filter_map(|name| self.files.get(*name)).map(|file| file.size).sum()
    }
}

/// A ramdisk cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum RamdiskError {
    /// The kernel package cannot be read.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// It has no kernel, or several.
    #[error("{path}: {found} kernels (boot/vmlinuz-*); a linux-image package has one")]
    Kernels {
        /// The package.
        path: PathBuf,
        /// How many.
        found: usize,
    },
    /// Its kernel is none for x86 PCs.
    #[error("{0}: the kernel is no x86 bzImage")]
    NotABzImage(PathBuf),
    /// It has none of the modules.
    #[error("{path}: no modules in lib/modules/{version}")]
    NoModules {
        /// The package.
        path: PathBuf,
        /// Version of its kernel.
        version: String,
    },
    /// It is not whole.
    #[error(transparent)]
    Missing(#[from] MissingModule),
    /// A module file is damaged.
    #[error("{0}: not a kernel module")]
    Module(String),
    /// The executable would need files that the ramdisk does not have.
    #[error(
        "{0} is linked dynamically and cannot run in a ramdisk: build it with RUSTFLAGS=\"-C target-feature=+crt-static\" and --target"
    )]
    Dynamic(PathBuf),
    /// The executable is none.
    #[error("{0}: not an x86-64 program")]
    Executable(PathBuf),
    /// The ISO cannot be made.
    #[error("{ISO}: {0}")]
    Iso(String),
    /// Reading or writing failed.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Zstd,
    Xz,
    Gzip,
}

impl Compression {
    /// The best that the kernel unpacks, by its configuration. zstd packs a little less than xz and unpacks ten
    /// times faster, which a machine's boot feels.
    fn of(config: &str) -> Self {
        let has = |key: &str| config.lines().any(|line| line.strip_prefix(key) == Some("=y"));
        if config.is_empty() || has("CONFIG_RD_ZSTD") {
            Self::Zstd
        } else if has("CONFIG_RD_XZ") {
            Self::Xz
        } else {
            Self::Gzip
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Xz => "xz",
            Self::Gzip => "gzip",
        }
    }
}

/// A ramdisk that is built, and not written.
#[derive(Debug)]
pub struct Built {
    files: Vec<(&'static str, Vec<u8>)>,
    summary: RamdiskSummary,
}

/// Builds a ramdisk in memory.
///
/// # Errors
///
/// When something of it cannot be read, or does not belong together.
pub fn build(options: &RamdiskOptions, progress: &mut dyn FnMut(BuildProgress)) -> Result<Built, RamdiskError> {
    let executable = read_executable(&options.executable)?;
    let kernel = read_kernel(&options.kernel_package, progress)?;
    let modules = &kernel.modules;
    let selection = select(modules, &kernel.builtin)?;
    let contents = extract(&options.kernel_package, &selection, modules, progress)?;
    let firmware = match &options.firmware_dir {
        Some(folder) => read_firmware(folder, &selection, modules)?,
        None => BTreeMap::new(),
    };
    let entries = entries(&executable, &selection, modules, &contents, &firmware);

    let compression = Compression::of(&kernel.config);
    let unpacked_size = entries.iter().map(|entry| entry.data.len() as u64).sum();
    let mut initrd = Vec::new();
    pack(entries.as_slice(), (compression, options.level), unpacked_size, &mut initrd, progress)
        .map_err(|source| RamdiskError::Io { path: options.out.join(INITRD), source })?;
    let medium = super::iso::build(options, &kernel.image, &initrd)?;
    let mut iso = None;
    let mut files = Vec::new();
    if let Some((image, layout)) = medium {
        files.push((ISO, image));
        iso = Some(layout);
    }
    files.extend([(INITRD, initrd), (KERNEL, kernel.image)]);
    if let Some(folder) = &options.ipxe_dir {
        for name in [IPXE_BIOS, IPXE_UEFI, IPXE_UEFI_DRIVERS] {
            let path = folder.join(name);
            match fs::read(&path) {
                Ok(data) => files.push((name, data)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(RamdiskError::Io { path, source }),
            }
        }
    }
    let summary = RamdiskSummary {
        slipway_version: env!("CARGO_PKG_VERSION").into(),
        kernel_version: kernel.version,
        compression: compression.name().into(),
        unpacked_size,
        modules: selection.into_keys().collect(),
        iso,
        firmware: firmware.into_keys().collect(),
        files: BTreeMap::new(),
    };
    Ok(Built { files, summary })
}

impl Built {
    /// Writes it into a folder, which is made if need be. Each file appears whole or not at all, the manifest last; while the
    /// files are being replaced there is no manifest.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(self, folder: &Path) -> Result<RamdiskSummary, RamdiskError> {
        let Self { files, mut summary } = self;
        make_folder(folder)?;
        let out = OutputFolder(folder);
        let prepare = |(name, data): (&'static str, Vec<u8>)| out.prepare(name, |file| file.write_all(&data));
        let files = files.into_iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        out.remove(MANIFEST)?;
        if summary.iso.is_none() {
            // One of a former build would be another ramdisk.
            out.remove(ISO)?;
        }
        for file in files {
            let (name, facts) = out.commit(file)?;
            summary.files.insert(name.into(), facts);
        }
        let text = serde_json::to_vec_pretty(&summary)
            .map_err(|error| RamdiskError::Io { path: folder.join(MANIFEST), source: error.into() })?;
        let manifest = out.prepare(MANIFEST, |file| file.write_all(&text))?;
        out.commit(manifest)?;
        Ok(summary)
    }
}

fn read_executable(path: &Path) -> Result<Vec<u8>, RamdiskError> {
    let data = fs::read(path).map_err(|source| RamdiskError::Io { path: path.into(), source })?;
    match needs_interpreter(&data) {
        Ok(false) => Ok(data),
        Ok(true) => Err(RamdiskError::Dynamic(fs::canonicalize(path).unwrap_or_else(|_| path.into()))),
        Err(_) => Err(RamdiskError::Executable(path.into())),
    }
}

struct Kernel {
    version: String,
    image: Vec<u8>,
    config: String,
    builtin: BTreeSet<String>,
    modules: BTreeMap<String, KernelModule>,
}

/// What belongs to one kernel version in a package.
#[derive(Default)]
struct KernelVersion {
    image: Option<Vec<u8>>,
    config: String,
    builtin: BTreeSet<String>,
    modules: BTreeMap<String, KernelModule>,
}

fn read_kernel(package: &Path, progress: &mut dyn FnMut(BuildProgress)) -> Result<Kernel, RamdiskError> {
    let mut versions: BTreeMap<String, KernelVersion> = BTreeMap::new();
    let mut read = 0;
    each_file::<RamdiskError>(package, &mut |path| PackageFile::of(path).is_some(), &mut |path, data| {
        let Some((part, version)) = PackageFile::of(path) else { return Ok(()) };
        let version = versions.entry(version.to_owned()).or_default();
        match part {
            PackageFile::Image => version.image = Some(data),
            PackageFile::Config => version.config = String::from_utf8_lossy(&data).into_owned(),
            PackageFile::Builtin => version.builtin = String::from_utf8_lossy(&data).lines().map(module_name).collect(),
            PackageFile::Module => {
                let module = KernelModule::read(path, &data).map_err(|_| RamdiskError::Module(path.into()))?;
                version.modules.insert(module_name(path), module);
                read += 1;
                progress(BuildProgress { phase: BuildPhase::Reading, done: read, total: None });
            }
        }
        Ok(())
    })?;
    let mut kernels: Vec<_> =
        versions.into_iter().filter_map(|(name, mut of)| of.image.take().map(|image| (name, image, of))).collect();
    let found = kernels.len();
    let (Some((version, image, of)), 1) = (kernels.pop(), found) else {
        return Err(RamdiskError::Kernels { path: package.into(), found });
    };
    // Documentation/arch/x86/boot.rst: boot flag and header magic.
    if image.get(0x1fe..0x200) != Some(&[0x55, 0xaa]) || image.get(0x202..0x206) != Some(b"HdrS") {
        return Err(RamdiskError::NotABzImage(package.into()));
    }
    if of.modules.is_empty() {
        return Err(RamdiskError::NoModules { path: package.into(), version });
    }
    Ok(Kernel { version, image, config: of.config, builtin: of.builtin, modules: of.modules })
}

/// A file of a kernel package that matters.
enum PackageFile {
    Image,
    Config,
    Builtin,
    Module,
}

impl PackageFile {
    /// Which part a path inside the package is, and of which version.
    fn of(path: &str) -> Option<(Self, &str)> {
        if let Some(name) = path.strip_prefix("boot/") {
            let image = name.strip_prefix("vmlinuz-").map(|version| (Self::Image, version));
            return image.or_else(|| name.strip_prefix("config-").map(|version| (Self::Config, version)));
        }
        let (version, below) = module_path(path)?;
        match below {
            "modules.builtin" => Some((Self::Builtin, version)),
            _ if below.ends_with(".ko") => Some((Self::Module, version)),
            _ => None,
        }
    }
}

/// Version and the path below it of a file in `lib/modules` or `usr/lib/modules`.
fn module_path(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("usr/").unwrap_or(path).strip_prefix("lib/modules/")?.split_once('/')
}

fn extract(
    package: &Path,
    selection: &ModuleSelection,
    modules: &BTreeMap<String, KernelModule>,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<BTreeMap<String, Vec<u8>>, RamdiskError> {
    let paths: BTreeSet<&str> =
        selection.keys().filter_map(|name| modules.get(name)).map(|module| module.path.as_str()).collect();
    let mut contents = BTreeMap::new();
    each_file::<RamdiskError>(package, &mut |path| paths.contains(path), &mut |path, data| {
        contents.insert(module_name(path), data);
        let done = contents.len() as u64;
        progress(BuildProgress { phase: BuildPhase::Extracting, done, total: Some(paths.len() as u64) });
        Ok(())
    })?;
    Ok(contents)
}

fn read_firmware(
    folder: &Path,
    selection: &ModuleSelection,
    modules: &BTreeMap<String, KernelModule>,
) -> Result<BTreeMap<String, Vec<u8>>, RamdiskError> {
    let wanted: BTreeSet<&str> = selection
        .keys()
        .filter_map(|name| modules.get(name))
        .flat_map(|module| module.firmware.iter().map(String::as_str))
        // The name comes from the package; it must stay in the folder.
        .filter(|name| !name.starts_with('/') && name.split('/').all(|part| !matches!(part, "" | "." | "..")))
        .collect();
    let mut found = BTreeMap::new();
    for name in wanted {
        for suffix in ["", "xz", "zst"] {
            let path = if suffix.is_empty() { folder.join(name) } else { folder.join(format!("{name}.{suffix}")) };
            let fail = |source| RamdiskError::Io { path: path.clone(), source };
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(fail(error)),
            };
            let Some(mut reader) = decompress(file, suffix).map_err(fail)? else { continue };
            let mut data = Vec::new();
            reader.read_to_end(&mut data).map_err(fail)?;
            found.insert(name.to_owned(), data);
            break;
        }
    }
    Ok(found)
}

struct RamdiskEntry<'a> {
    path: String,
    kind: EntryType,
    data: std::borrow::Cow<'a, [u8]>,
}

fn entries<'a>(
    executable: &'a [u8],
    selection: &ModuleSelection,
    modules: &BTreeMap<String, KernelModule>,
    contents: &'a BTreeMap<String, Vec<u8>>,
    firmware: &'a BTreeMap<String, Vec<u8>>,
) -> Vec<RamdiskEntry<'a>> {
    let mut entries: BTreeMap<String, (EntryType, std::borrow::Cow<'a, [u8]>)> = BTreeMap::new();
    let mut add = |path: String, kind, data: std::borrow::Cow<'a, [u8]>| {
        for (at, _) in path.match_indices('/') {
            entries.entry(path[..at].to_owned()).or_insert((EntryType::Folder, [].as_slice().into()));
        }
        entries.insert(path, (kind, data));
    };
    for folder in ["dev", "proc", "sys", "run", "tmp"] {
        add(folder.into(), EntryType::Folder, [].as_slice().into());
    }
    // The kernel opens the console for /init before anything can be mounted.
    add("dev/console".into(), EntryType::Device { major: 5, minor: 1 }, [].as_slice().into());
    add("dev/null".into(), EntryType::Device { major: 1, minor: 3 }, [].as_slice().into());
    add("init".into(), EntryType::File(0o755), executable.into());
    add("lib/modules/modules.dep".into(), EntryType::File(0o644), dependencies_file(selection).into_bytes().into());
    add(
        "lib/modules/modules.alias".into(),
        EntryType::File(0o644),
        aliases_file(selection, modules).into_bytes().into(),
    );
    for (name, data) in contents {
        add(format!("lib/modules/{name}.ko"), EntryType::File(0o644), data.as_slice().into());
    }
    for (name, data) in firmware {
        add(format!("lib/firmware/{name}"), EntryType::File(0o644), data.as_slice().into());
    }
    // Sorted by path: a folder comes before what is in it.
    entries.into_iter().map(|(path, (kind, data))| RamdiskEntry { path, kind, data }).collect()
}

fn pack(
    entries: &[RamdiskEntry<'_>],
    (compression, level): (Compression, u8),
    total: u64,
    file: &mut dyn Write,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<()> {
    match compression {
        Compression::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(file, level.into())?;
            encoder.window_log(ZSTD_WINDOW)?;
            encoder.include_checksum(true)?;
            archive(entries, total, encoder, progress)?.finish()?;
        }
        Compression::Xz => {
            // The kernel's reader knows no other check than CRC32 (Documentation/staging/xz.rst).
            let stream = liblzma::stream::Stream::new_easy_encoder(XZ_LEVEL, liblzma::stream::Check::Crc32)?;
            let encoder = liblzma::write::XzEncoder::new_stream(file, stream);
            archive(entries, total, encoder, progress)?.finish()?;
        }
        Compression::Gzip => {
            let encoder = flate2::write::GzEncoder::new(file, flate2::Compression::best());
            archive(entries, total, encoder, progress)?.finish()?;
        }
    }
    Ok(())
}

fn archive<W: Write>(
    entries: &[RamdiskEntry<'_>],
    total: u64,
    writer: W,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<W> {
    let mut archive = CpioArchive::new(writer);
    let mut done = 0;
    for entry in entries {
        archive.add(&entry.path, entry.kind, &entry.data)?;
        done += entry.data.len() as u64;
        progress(BuildProgress { phase: BuildPhase::Compressing, done, total: Some(total) });
    }
    archive.finish()
}

fn make_folder(path: &Path) -> Result<(), RamdiskError> {
    fs::create_dir_all(path).map_err(|source| RamdiskError::Io { path: path.into(), source })
}

#[cfg(test)]
mod tests;

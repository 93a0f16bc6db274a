//! The ISO for virtual media and HTTP boot: kernel, initrd and boot loaders on one medium that needs no network.
//!
//! UEFI starts GRUB from a small FAT file system (El Torito), BIOS starts isolinux; both then read kernel and initrd
//! from the ISO's own file system. Nothing of one machine is in it: see [`crate::boot::iso`].

use std::fs;
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};

use crate::boot::IsoLayout;
use crate::boot::iso::{
    ARCHIVE_LENGTH, CONFIG_LENGTH, ISO_ARCHIVE, ISO_INITRD, ISO_KERNEL, IsoBootParameters, Region, archive,
    grub_config, isolinux_config, padded,
};
use crate::image::iso9660::{Boots, Extent, build_bootable};

use super::build::{RamdiskError, RamdiskOptions};

const LABEL: &str = "SLIPWAY";
/// Where GRUB's CD build looks for its configuration, and by which file it knows its own medium.
const GRUB_CONFIG: &str = "boot/grub/grub.cfg";
const GRUB_MARK: &str = ".disk/info";
const ISOLINUX_CONFIG: &str = "isolinux/isolinux.cfg";
const EFI_IMAGE: &str = "boot/efi.img";
/// Room in the FAT file system beside the loader, for its tables: in bytes.
const FAT_ROOM: usize = 512 << 10;

/// Files of Debian's isolinux and syslinux-common.
#[derive(Clone, Debug)]
pub struct IsolinuxFiles {
    /// `isolinux.bin`.
    pub loader: PathBuf,
    /// `ldlinux.c32`.
    pub core: PathBuf,
}

/// Builds the ISO; none without GRUB.
pub(super) fn build(
    options: &RamdiskOptions,
    kernel: &[u8],
    initrd: &[u8],
) -> Result<Option<(Vec<u8>, IsoLayout)>, RamdiskError> {
    let Some(grub) = options.grub.as_deref().map(read).transpose()?.flatten() else { return Ok(None) };
    let isolinux = match &options.isolinux {
        Some(files) => read(&files.loader)?.zip(read(&files.core)?),
        None => None,
    };
    assemble(&grub, isolinux, kernel, initrd).map(Some)
}

/// A file, if it is there.
fn read(path: &Path) -> Result<Option<Vec<u8>>, RamdiskError> {
    match fs::read(path) {
        Ok(data) => Ok(Some(data)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RamdiskError::Io { path: path.into(), source }),
    }
}

/// The medium with this loader.
pub(crate) fn assemble(
    grub: &[u8],
    isolinux: Option<(Vec<u8>, Vec<u8>)>,
    kernel: &[u8],
    initrd: &[u8],
) -> Result<(Vec<u8>, IsoLayout), RamdiskError> {
    let fail = |error: &dyn std::fmt::Display| RamdiskError::Iso(error.to_string());
    let config = |text: String| padded("boot loader configuration", &text, CONFIG_LENGTH as u64);
    let empty = archive(&IsoBootParameters::default(), ARCHIVE_LENGTH as u64).map_err(|error| fail(&error))?;
    let mut files = vec![
        (EFI_IMAGE.to_owned(), efi_image(grub).map_err(|error| fail(&error))?),
        (GRUB_CONFIG.to_owned(), config(grub_config("")).map_err(|error| fail(&error))?),
        (ISO_ARCHIVE.to_owned(), empty),
        (GRUB_MARK.to_owned(), b"Slipway\n".to_vec()),
        (ISO_KERNEL.to_owned(), kernel.to_vec()),
        (ISO_INITRD.to_owned(), initrd.to_vec()),
    ];
    let bios = isolinux.map(|(loader, core)| -> Result<usize, RamdiskError> {
        let at = files.len();
        files.push(("isolinux/isolinux.bin".to_owned(), loader));
        files.push((ISOLINUX_CONFIG.to_owned(), config(isolinux_config("")).map_err(|error| fail(&error))?));
        files.push(("isolinux/ldlinux.c32".to_owned(), core));
        Ok(at)
    });
    let bios = bios.transpose()?;
    let (image, places) = build_bootable(LABEL, &files, Boots { efi: 0, bios }).map_err(|error| fail(&error))?;
    let region =
        |at: usize| places.get(at).map(|Extent { offset, length }| Region { offset: *offset, length: *length });
    let (Some(grub), Some(host)) = (region(1), region(2)) else { return Err(fail(&"a file has no place")) };
    let isolinux = bios.and_then(|at| region(at + 1));
    let layout = IsoLayout { size: image.len() as u64, grub, isolinux, host };
    Ok((image, layout))
}

/// A FAT file system with the loader where UEFI firmware looks for it. The same loader gives the same bytes.
fn efi_image(loader: &[u8]) -> io::Result<Vec<u8>> {
    let size = (loader.len() + FAT_ROOM).next_multiple_of(64 << 10);
    let mut disk = Cursor::new(vec![0; size]);
    fatfs::format_volume(&mut disk, fatfs::FormatVolumeOptions::new().volume_label(*b"SLIPWAY    "))?;
    {
        let file_system = fatfs::FileSystem::new(&mut disk, fatfs::FsOptions::new())?;
        let folder = file_system.root_dir().create_dir("EFI")?.create_dir("BOOT")?;
        folder.create_file("BOOTX64.EFI")?.write_all(loader)?;
    }
    Ok(disk.into_inner())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::boot::iso::apply;

    fn sample() -> (Vec<u8>, IsoLayout) {
        let isolinux = Some((vec![7; 40_000], vec![8; 3000]));
        assemble(&vec![9; 1_500_000], isolinux, &vec![1; 70_000], &vec![2; 3_000_000]).expect("built")
    }

    #[test]
    fn the_regions_are_the_files_and_the_same_input_gives_the_same_bytes() {
        let (image, layout) = sample();
        assert_eq!(layout.size, image.len() as u64);
        assert_eq!((&image, &layout), (&sample().0, &sample().1));
        let text = |region: Region| {
            String::from_utf8_lossy(&image[region.offset as usize..(region.offset + region.length) as usize])
                .into_owned()
        };
        assert!(text(layout.grub).starts_with("set timeout=0\n"));
        assert!(text(layout.isolinux.expect("isolinux")).starts_with("DEFAULT slipway\n"));
        assert!(text(layout.host).starts_with("070701"));
        let (_, without) = assemble(&[9; 100], None, &[1], &[2]).expect("built");
        assert_eq!(without.isolinux, None);
    }

    #[test]
    fn other_tools_find_both_boot_loaders_and_what_was_put_in() {
        let (mut image, layout) = sample();
        let orders = IsoBootParameters { args: "slipway.token=t".into(), network: None };
        let patches = layout.patches("console=ttyS0", &orders).expect("patches");
        apply(&patches, 0, &mut image);
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("boot.iso");
        fs::write(&path, &image).expect("written");
        let run = |arguments: &[&str]| {
            let done = Command::new("xorriso").args(["-osirrox", "on", "-indev"]).arg(&path).args(arguments).output();
            let done = done.expect("xorriso");
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
        };
        let report = run(&["-report_el_torito", "plain"]);
        for part in ["BIOS", "UEFI", "/boot/efi.img", "/isolinux/isolinux.bin", "boot-info-table"] {
            assert!(report.contains(part), "{part}: {report}");
        }
        let to = folder.path().join("out");
        let log = run(&["-extract", "/", to.to_str().expect("path")]);
        let read = |name: &str| fs::read(to.join(name)).unwrap_or_else(|error| panic!("{name}: {error}\n{log}"));
        assert!(read(ISO_KERNEL) == vec![1; 70_000] && read(ISO_INITRD) == vec![2; 3_000_000]);
        assert!(String::from_utf8_lossy(&read(GRUB_CONFIG)).contains("linux /slipway/vmlinuz console=ttyS0\n"));
        let listed = Command::new("cpio").arg("-t").arg("-F").arg(to.join(ISO_ARCHIVE)).output().expect("cpio");
        assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "slipway.args");
        // mtools reads the FAT file system.
        let listed =
            Command::new("mdir").args(["-b", "-i"]).arg(to.join(EFI_IMAGE)).arg("::EFI/BOOT").output().expect("mdir");
        assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "::/EFI/BOOT/BOOTX64.EFI");
    }
}

//! `slipway ramdisk`: builds kernel, initrd and boot ISO.

use std::path::PathBuf;

use super::local;
use super::progress::ProgressLine;
use crate::ramdisk;

#[derive(clap::Subcommand)]
pub(super) enum RamdiskCommand {
    /// Build kernel, initrd and network boot programs from a Debian kernel package and this executable
    ///
    /// This executable becomes the ramdisk's /init, so it must be linked statically. Existing files are replaced only after
    /// everything is built.
    #[command(after_help = "\
Example:
  slipway ramdisk build --kernel-package linux-image-6.1.0-*-amd64.deb")]
    Build {
        /// Debian kernel package (linux-image-*.deb), or the folder it was unpacked to
        #[arg(long, value_name = "FILE|DIR")]
        kernel_package: PathBuf,
        /// Folder with undionly.kpxe, snponly.efi and ipxe.efi, as in Debian's package ipxe
        #[arg(long, value_name = "DIR", default_value = "/usr/lib/ipxe")]
        ipxe_dir: PathBuf,
        /// GRUB for CDs (Debian's package grub-efi-amd64-bin); with it a boot ISO for virtual media is built too
        #[arg(long, value_name = "FILE", default_value = "/usr/lib/grub/x86_64-efi/monolithic/gcdx64.efi")]
        grub: PathBuf,
        /// isolinux.bin (Debian's package isolinux); with it and ldlinux.c32 the ISO boots under BIOS too
        #[arg(long, value_name = "FILE", default_value = "/usr/lib/ISOLINUX/isolinux.bin")]
        isolinux: PathBuf,
        /// ldlinux.c32 (Debian's package syslinux-common)
        #[arg(long, value_name = "FILE", default_value = "/usr/lib/syslinux/modules/bios/ldlinux.c32")]
        ldlinux: PathBuf,
        /// Folder with firmware for network and storage adapters; files that the modules need are included
        #[arg(long, value_name = "DIR", default_value = "/lib/firmware")]
        firmware_dir: PathBuf,
        /// How small the ramdisk is packed: from 1, done in seconds, to 19, a quarter smaller after minutes
        #[arg(long, value_name = "1-19", default_value_t = ramdisk::BEST_LEVEL,
              value_parser = clap::value_parser!(u8).range(1..=i64::from(ramdisk::BEST_LEVEL)))]
        level: u8,
        /// Folder to write the files to
        #[arg(long, value_name = "DIR", default_value = "/var/lib/slipway/boot")]
        out: PathBuf,
    },
}

pub(super) fn run(command: RamdiskCommand) -> anyhow::Result<()> {
    let RamdiskCommand::Build { kernel_package, ipxe_dir, grub, isolinux, ldlinux, firmware_dir, level, out } = command;
    let options = ramdisk::RamdiskOptions {
        kernel_package,
        out,
        executable: "/proc/self/exe".into(),
        ipxe_dir: Some(ipxe_dir),
        grub: Some(grub),
        isolinux: Some(ramdisk::IsolinuxFiles { loader: isolinux, core: ldlinux }),
        firmware_dir: Some(firmware_dir),
        level,
    };
    let mut progress = ProgressLine::new();
    let built = ramdisk::build(&options, &mut |step| {
        let percent = step.total.filter(|total| *total > 0).map(|total| step.done * 100 / total);
        progress.show(
            match step.phase {
                ramdisk::BuildPhase::Reading => "reading the kernel package",
                ramdisk::BuildPhase::Extracting => "taking out drivers",
                ramdisk::BuildPhase::Compressing => "packing the ramdisk",
            },
            percent,
        );
    });
    progress.end();
    let owner = local::owner_on_the_way(&options.out)?;
    let built = local::as_user(owner, || built?.write(&options.out))??;
    for (name, file) in &built.files {
        println!("{:>12} bytes  {}", file.size, options.out.join(name).display());
    }
    if built.iso.is_none() {
        println!(
            "no ISO for virtual media: install grub-efi-amd64-bin (and isolinux, syslinux-common for BIOS) and build again"
        );
    }
    println!(
        "Linux {} and {} modules: {:.1} MB to download, {:.1} MB unpacked",
        built.kernel_version,
        built.modules.len(),
        built.download_size() as f64 / 1e6,
        built.unpacked_size as f64 / 1e6
    );
    Ok(())
}

use std::path::PathBuf;

use super::progress::Progress;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Build kernel, initrd and network boot programs from a Debian kernel package and this executable
    ///
    /// The ramdisk's /init is the executable itself, which must be static. Nothing is replaced before everything is built.
    Build {
        /// A linux-image-*.deb, or the folder it was unpacked to
        #[arg(long, value_name = "FILE|DIR")]
        kernel_package: PathBuf,
        /// Where Debian's ipxe package has undionly.kpxe, snponly.efi and ipxe.efi
        #[arg(long, value_name = "DIR", default_value = "/usr/lib/ipxe")]
        ipxe_dir: PathBuf,
        /// Folder that receives the files
        #[arg(long, value_name = "DIR", default_value = "/var/lib/slipway/boot")]
        out: PathBuf,
    },
}

pub(super) fn run(command: Command) -> anyhow::Result<()> {
    let Command::Build { kernel_package, ipxe_dir, out } = command;
    let _ = (kernel_package, ipxe_dir, out, Progress::new());
    Ok(())
}

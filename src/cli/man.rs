//! `slipway man`: the manual pages, of the same text as `--help`.

use std::path::PathBuf;

use anyhow::Context;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway man --out /usr/local/share/man/man1
  slipway man --out /tmp/man && man /tmp/man/slipway-get.1")]
pub(super) struct ManArgs {
    /// Folder for the pages, made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn run(options: &ManArgs, command: clap::Command) -> anyhow::Result<()> {
    let folder = options.out.display();
    std::fs::create_dir_all(&options.out).with_context(|| format!("cannot make {folder}"))?;
    // Pages are for commands; what help is, everybody knows.
    clap_mangen::generate_to(command.disable_help_subcommand(true), &options.out)
        .with_context(|| format!("cannot write to {folder}"))
}

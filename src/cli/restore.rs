//! `slipway restore`: makes a new appliance of a backup, or checks that it could.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::common::ConfigFile;
use super::failure::usage;
use super::progress::ProgressLine;
use super::secret;
use crate::backup::restore::{self, BusyHosts, RestoreReport};
use crate::backup::seal::{self, Needed, Unlock, UnsealError};
use crate::log::escaped;
use crate::modules::kinds;

#[derive(clap::Args)]
#[command(after_help = "\
Check a backup, without writing anything:
  slipway restore --check --key-file backup.key FILE
Restore on a new box, as root, before the appliance is first started:
  slipway restore --key-file backup.key FILE
  systemctl start slipway
  slipway get hosts -A
  slipway host resume --all")]
pub(super) struct RestoreArgs {
    /// Backup file; - is standard input
    file: PathBuf,
    /// File with the secret key that decrypts the backup, as made by --new-key or age-keygen
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// File with the passphrase of the backup on its first line [default: ask for it]
    #[arg(long, value_name = "FILE", conflicts_with = "key_file")]
    passphrase_file: Option<PathBuf>,
    /// Only check the backup: read all of it, write nothing
    #[arg(long)]
    check: bool,
    /// Do not pause the hosts; safe only when nothing happened to any machine since the backup was made
    #[arg(long, conflicts_with = "check")]
    as_is: bool,
    /// Data folder to create [default: data_dir of the configuration]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
}

pub(super) fn run(options: &RestoreArgs) -> anyhow::Result<()> {
    let what = options.file.display();
    let file: Box<dyn Read> = if options.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(&options.file).with_context(|| what.to_string())?)
    };
    let folder = if options.check { None } else { Some(folder(options)?) };
    let plain = seal::open(file, |needed| unlock(options, needed)).map_err(|error| match error {
        UnsealError::Asked(error) => error,
        error => anyhow::Error::new(error).context(what.to_string()),
    })?;
    let mut progress = ProgressLine::new();
    let doing = if options.check { "checking" } else { "restoring" };
    let show = |lines: u64, all: u64| super::backup::show(&mut progress, doing, lines, all);
    let done = match &folder {
        None => restore::check(plain, show),
        Some(folder) => restore::restore(plain, &kinds(), folder, !options.as_is, show),
    };
    progress.end();
    let report = done.with_context(|| what.to_string())?;
    tell(&report, folder.as_deref());
    Ok(())
}

fn folder(options: &RestoreArgs) -> anyhow::Result<PathBuf> {
    if let Some(folder) = &options.data_dir {
        return Ok(std::path::absolute(folder)?);
    }
    let config = options
        .config
        .load()
        .context("no data folder is given: use --data-dir, or --config with a configuration file")?;
    Ok(config.data_dir.0)
}

fn unlock(options: &RestoreArgs, needed: Needed) -> anyhow::Result<Unlock> {
    if let Some(file) = &options.passphrase_file {
        return Ok(Unlock::Passphrase(seal::passphrase_of(file)?));
    }
    if let Some(file) = &options.key_file {
        return Ok(Unlock::Keys(seal::identities_of(file)?));
    }
    match needed {
        Needed::Key => Err(usage("the backup is encrypted for a key: give --key-file FILE")),
        Needed::Passphrase => {
            secret::ask("Passphrase of the backup", "give --passphrase-file FILE").map(Unlock::Passphrase)
        }
    }
}

fn tell(report: &RestoreReport, folder: Option<&Path>) {
    let RestoreReport { header, resources, paused, under_way, config } = report;
    let objects = format!("{} objects, {} leases and other entries", header.objects, header.entries);
    match folder {
        None => println!("the backup is whole: {objects}, at revision {} of {:.0}", header.revision, header.time),
        Some(folder) => println!("restored into {}: {objects}, as of {:.0}", folder.display(), header.time),
    }
    println!("made by slipway {}, of the appliance with the CA {}", escaped(&header.made_by), escaped(&header.ca));
    if folder.is_none() {
        for (resource, count) in resources {
            println!("{count:>8}  {}", escaped(resource.trim_start_matches('/')));
        }
    }
    if let Some(config) = config {
        println!("its configuration, to compare with yours, is {}", config.display());
    }
    let BusyHosts { names, more } = under_way;
    if !names.is_empty() {
        println!("with {} host(s) something was being done, or was to be done next:", names.len() as u64 + more);
        names.iter().for_each(|host| println!("  {}", escaped(host)));
        if *more > 0 {
            println!("  and {more} more");
        }
    }
    if *paused > 0 {
        println!(
            "{paused} host(s) are paused: nothing is done with their machines. Start the appliance, compare the hosts with \
             their machines, then `slipway host resume`"
        );
    }
}

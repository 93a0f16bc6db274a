//! `slipway check-config`: what `serve` would refuse, without a start.

use super::common::ConfigFile;
use super::local;
use crate::appliance::checks::{self, Place};
use crate::config::{Config, ConfigError};
use crate::pki::users;

/// Checks a configuration file
///
/// On the appliance's box it also looks at what the file names: interfaces and their addresses, the kubeconfig, certificates and
/// profiles. Run by root it does so as the user of the service, who must be able to read them. Exit code 1 when there is a fault.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway check-config
  slipway check-config --offline --config slipway.toml     of another box")]
pub(super) struct Options {
    #[command(flatten)]
    config: ConfigFile,
    /// Skip what can be checked on the appliance's own box only: interfaces and files
    #[arg(long)]
    offline: bool,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let path = &options.config.config;
    let config = Config::load_unchecked(path)?;
    let place = if options.offline { Place::Elsewhere } else { Place::Box };
    // Root can read everything; whether the service can is the question.
    let service = users::service_of(&config.data_dir.0).filter(|_| place == Place::Box);
    let look = || local::block_on(async { Ok(checks::faults(&config, place).await) });
    let faults = local::as_user(service, look)??;
    if !faults.is_empty() {
        let faults = faults.into_iter().map(|fault| fault.text).collect();
        return Err(ConfigError::Faults { path: path.clone(), faults }.into());
    }
    let seen = if options.offline { ", interfaces and files not looked at" } else { "" };
    println!("{}: no fault, {} network(s){seen}", path.display(), config.networks.len());
    Ok(())
}

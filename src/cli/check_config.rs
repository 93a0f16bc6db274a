//! `slipway check-config`: what `serve` would refuse, without a start.

use std::path::Path;

use super::common::ConfigFile;
use super::failure::CommandFailure;
use super::local;
use crate::appliance::checks::{self, CheckedWhere};
use crate::cli::form::ProgramForm;
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
pub(super) struct CheckConfigArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// Skip what can be checked on the appliance's own box only: interfaces and files
    #[arg(long)]
    offline: bool,
    /// Print the faults as JSON
    #[arg(long, short, value_enum, value_name = "FORM")]
    output: Option<ProgramForm>,
}

pub(super) fn run(options: &CheckConfigArgs) -> anyhow::Result<()> {
    let path = &options.config.config;
    let config = match Config::load_unchecked(path) {
        Err(error) if options.output.is_some() => return json(path, &[error.to_string()]),
        config => config?,
    };
    let place = if options.offline { CheckedWhere::Elsewhere } else { CheckedWhere::Box };
    // Root can read everything; whether the service can is the question.
    let service = users::service_of(&config.data_dir.0).filter(|_| place == CheckedWhere::Box);
    let look = || local::block_on(async { Ok(checks::faults(&config, place).await) });
    let faults = local::as_user(service, look)??;
    if options.output.is_some() {
        let faults: Vec<String> = faults.into_iter().map(|fault| fault.text).collect();
        return json(path, &faults);
    }
    if !faults.is_empty() {
        let faults = faults.into_iter().map(|fault| fault.text).collect();
        return Err(ConfigError::Faults { path: path.clone(), faults }.into());
    }
    let seen = if options.offline { ", interfaces and files not looked at" } else { "" };
    println!("{}: no fault, {} network(s){seen}", path.display(), config.networks.len());
    Ok(())
}

/// The faults for programs; a failure when there is one.
fn json(path: &Path, faults: &[String]) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "file": path, "faults": faults }))?);
    if faults.is_empty() { Ok(()) } else { Err(CommandFailure::Reported.into()) }
}

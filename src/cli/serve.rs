//! `slipway serve`: sets up the log and runs the appliance.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use super::common::ConfigFile;
use crate::appliance;
use crate::config::Config;
use crate::log::{self, Ration};

pub(super) fn run(options: &ConfigFile) -> anyhow::Result<()> {
    let config = options.load()?;
    let ration = log_to_stderr(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(Box::pin(appliance::run(config, ration)));
    // A thread that a disk or a lock still holds is not waited for.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

fn log_to_stderr(config: &Config) -> anyhow::Result<Ration> {
    let level = std::env::var("SLIPWAY_LOG").unwrap_or_else(|_| config.log.level.clone());
    let filter = EnvFilter::try_new(&level).map_err(|error| anyhow::anyhow!("log.level {level:?}: {error}"))?;
    let ration = Ration::default();
    let colours = std::io::stderr().is_terminal();
    log::subscriber(filter, config.log.format, colours, std::io::stderr, ration.clone()).init();
    Ok(ration)
}

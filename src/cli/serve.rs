use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::ConfigFile;
use crate::appliance;
use crate::config::{Config, LogFormat};

pub(super) fn run(options: &ConfigFile) -> anyhow::Result<()> {
    let config = options.load()?;
    log_to_stderr(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(Box::pin(appliance::run(config)));
    // A thread that a disk or a lock still holds is not waited for.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

fn log_to_stderr(config: &Config) -> anyhow::Result<()> {
    let level = std::env::var("SLIPWAY_LOG").unwrap_or_else(|_| config.log.level.clone());
    let filter = EnvFilter::try_new(&level).map_err(|error| anyhow::anyhow!("log.level {level:?}: {error}"))?;
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match config.log.format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json()).init(),
    }
    Ok(())
}

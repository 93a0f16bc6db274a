//! `slipway serve`: sets up the log and runs the appliance.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::util::SubscriberInitExt;

use super::common::ConfigFile;
use crate::appliance::{self, LogControl, checks};
use crate::config::{Config, LogFormat};
use crate::log::{self, JournalSocket, LogWriter, Ration, SystemdJournal};

pub(super) fn run(options: &ConfigFile) -> anyhow::Result<()> {
    appliance::install_tls_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (config, faults) = runtime.block_on(checks::load(&options.config))?;
    // To the end: what is said last is written, too.
    let (control, _log) = set_up_log(&config)?;
    faults.iter().for_each(|fault| tracing::error!("{}", fault.text));
    let outcome = runtime.block_on(Box::pin(appliance::run(config, control)));
    // A thread that a disk or a lock still holds is not waited for.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

fn set_up_log(config: &Config) -> anyhow::Result<(LogControl, LogWriter)> {
    let environment = std::env::var("SLIPWAY_LOG").ok();
    let level = environment.as_ref().unwrap_or(&config.log.level);
    let key = if environment.is_some() { "SLIPWAY_LOG in the environment" } else { "log.level" };
    let filter = log::filter(level).map_err(|error| anyhow::anyhow!("{key}: {error}"))?;
    let (filter, level) = log::adjustable(filter);
    let ration = Ration::default();
    let format = config.log.format;
    let writer = match journal(format)? {
        Some(journal) => {
            let (entries, writer) = log::in_background(journal, &ration);
            log::to_journal(filter, SystemdJournal::new(entries), ration.clone()).init();
            writer
        }
        None => {
            let colours = std::io::stderr().is_terminal();
            let (lines, writer) = log::in_background(std::io::stderr(), &ration);
            log::subscriber(filter, format, colours, lines, ration.clone()).init();
            writer
        }
    };
    Ok((LogControl { ration, level: environment.is_none().then_some(level) }, writer))
}

/// The journal, when lines go there.
fn journal(format: LogFormat) -> anyhow::Result<Option<JournalSocket>> {
    match format {
        LogFormat::Auto if log::has_stderr(std::env::var("JOURNAL_STREAM").ok().as_deref()) => {
            Ok(JournalSocket::open().ok())
        }
        LogFormat::Journal => {
            JournalSocket::open().map(Some).context("log.format is journal, and there is no journal here")
        }
        LogFormat::Auto | LogFormat::Text | LogFormat::Json => Ok(None),
    }
}

//! Options and helpers that several commands have in common.

use std::io::Write;
use std::path::PathBuf;

use crate::config::{Config, ConfigError, DEFAULT_PATH};

/// Which configuration.
#[derive(clap::Args, Clone)]
pub(super) struct ConfigFile {
    /// Configuration file
    #[arg(long, short, value_name = "FILE", env = "SLIPWAY_CONFIG", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
}

impl ConfigFile {
    pub fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.config)
    }
}

/// Prints a long text; whoever reads it may have had enough.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}

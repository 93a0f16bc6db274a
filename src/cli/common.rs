//! Options and helpers that several commands have in common.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

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

/// All of a file, or of standard input where it is called `-`, that has at most `most` bytes.
pub(super) fn read_input(file: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let (from, name): (Box<dyn Read>, _) = if file.as_os_str() == "-" {
        (Box::new(std::io::stdin()), "standard input".to_owned())
    } else {
        (Box::new(File::open(file).with_context(|| file.display().to_string())?), file.display().to_string())
    };
    let mut content = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut content).with_context(|| name.clone())?;
    match content.len() {
        0 => bail!("{name}: is empty"),
        length if length as u64 > most => bail!("{name}: has more than {most} bytes"),
        _ => Ok(content),
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

//! `slipway debug`: says what a machine would boot, and what DHCP did for it.

use std::time::Duration;

use anyhow::{Context, bail};

use super::common::ConfigFile;
use super::failure::plain;
use super::local;
use crate::api::MacAddress;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Explain what the machine with this MAC address would boot now
    Boot(Options),
    /// Explain what DHCP would answer it now, and show what happened to its last messages
    Dhcp(Options),
}

#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    config: ConfigFile,
    /// MAC address, as 52:54:00:12:34:56
    mac: MacAddress,
}

pub(super) fn run(command: Command) -> anyhow::Result<()> {
    let (path, Options { config, mac }) = match command {
        Command::Boot(options) => ("/boot/explain", options),
        Command::Dhcp(options) => ("/boot/explain/dhcp", options),
    };
    let config = config.load()?;
    let mut address = config.boot.listen;
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    local::block_on(async {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
        let url = format!("http://{address}{path}?mac={}", mac.hyphenated());
        let answer = client.get(&url).send().await.with_context(|| format!("is slipway running on {address}?"))?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            bail!("{}", text.trim());
        }
        print!("{}", plain(&text));
        Ok(())
    })
}

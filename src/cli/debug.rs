//! `slipway debug`: says what a machine would boot, and what DHCP did for it.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::common::ConfigFile;
use super::failure::plain;
use super::local;
use crate::api::MacAddress;

#[derive(clap::Subcommand)]
pub(super) enum DebugCommand {
    /// Explain what the machine with this MAC address would boot now
    ///
    /// Asks the appliance on this box, as every `slipway debug` does; it works on the appliance only.
    #[command(after_help = "Example:\n  slipway debug boot 52:54:00:12:34:56")]
    Boot(DebugArgs),
    /// Explain what DHCP would answer the machine with this MAC address now, and show what happened to its last messages
    ///
    /// Asks the appliance on this box, as every `slipway debug` does; it works on the appliance only.
    #[command(after_help = "Example:\n  slipway debug dhcp 52:54:00:12:34:56")]
    Dhcp(DebugArgs),
}

#[derive(clap::Args)]
pub(super) struct DebugArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// MAC address, as 52:54:00:12:34:56
    mac: MacAddress,
    /// Output format; json has a list of the lines
    #[arg(long, short, value_enum, default_value = "text")]
    output: DebugOutput,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DebugOutput {
    Text,
    Json,
}

pub(super) fn run(command: DebugCommand) -> anyhow::Result<()> {
    let (path, DebugArgs { config, mac, output }) = match command {
        DebugCommand::Boot(options) => ("/boot/explain", options),
        DebugCommand::Dhcp(options) => ("/boot/explain/dhcp", options),
    };
    if !config.config.exists() {
        bail!(
            "this asks the appliance on its own box, and there is no {0} here: run it on the appliance, or name its \
             configuration with --config.\nFrom another desk, `slipway describe host NAME` says what a machine waits for and what \
             was refused, and `slipway get dhcpleases` which address it has",
            config.config.display()
        );
    }
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
        match output {
            DebugOutput::Text => print!("{}", plain(&text)),
            DebugOutput::Json => println!("{}", serde_json::to_string_pretty(&explained(mac, &text))?),
        }
        Ok(())
    })
}

/// An explanation for programs. Lines that belong to the one above are indented there, and are a list of it here.
fn explained(mac: MacAddress, text: &str) -> Value {
    let mut sections: Vec<Value> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let detail = line.trim_start().trim_start_matches("- ");
        match sections.last_mut() {
            Some(section) if line.starts_with(' ') => {
                if let Some(details) = section["details"].as_array_mut() {
                    details.push(detail.into());
                }
            }
            _ => sections.push(json!({ "line": line.trim_end_matches(':'), "details": [] })),
        }
    }
    json!({ "mac": mac.to_string(), "explanation": sections })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_is_a_list_of_lines_with_their_details() {
        let text =
            "02:00:00:00:00:01 belongs to BareMetalHost a/b\nnetwork n (10.0.0.0/24 on eth0):\n  - it has no lease\n";
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let wanted = json!({ "mac": "02:00:00:00:00:01", "explanation": [
            { "line": "02:00:00:00:00:01 belongs to BareMetalHost a/b", "details": [] },
            { "line": "network n (10.0.0.0/24 on eth0)", "details": ["it has no lease"] },
        ]});
        assert_eq!(explained(mac, text), wanted);
    }
}

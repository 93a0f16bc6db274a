//! `slipway version`.

use super::listing::Output;

#[derive(clap::Args)]
pub(super) struct Options {
    /// Output format
    #[arg(long, short, value_enum, default_value = "table")]
    output: Output,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    options.output.print(&serde_json::json!({ "version": version }), || println!("slipway {version}"))
}

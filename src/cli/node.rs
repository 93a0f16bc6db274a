//! `slipway node`: the agent of an installed node.

use std::path::PathBuf;
use std::process::ExitCode;

use tracing_subscriber::util::SubscriberInitExt;

use super::failure::{complain, with_causes};
use crate::config::LogFormat;
use crate::log::{self, Ration};
use crate::node::{self, AWAY, NodeConfig, NodeError, NodeRun};

#[derive(clap::Args)]
pub(super) struct NodeArgs {
    /// The agent's configuration
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/slipway/node.json")]
    config: PathBuf,
    /// Work off what there is, each step once, and end
    #[arg(long, conflicts_with = "check")]
    once: bool,
    /// Only see whether it can work: configuration, token, appliance
    #[arg(long)]
    check: bool,
    /// Report once, and end: a new program, before it takes the old one's place
    #[arg(long, hide = true, conflicts_with_all = ["check", "once"])]
    trial: bool,
    #[command(subcommand)]
    command: Option<NodeCommand>,
}

#[derive(clap::Subcommand)]
enum NodeCommand {
    /// Print what the agent did and what it waits for; asks this node's disk only
    Status,
}

pub(super) fn run(options: &NodeArgs) -> ExitCode {
    match &options.command {
        Some(NodeCommand::Status) => status(options),
        None => serve(options),
    }
}

fn status(options: &NodeArgs) -> ExitCode {
    let config = match NodeConfig::load(&options.config) {
        Ok(config) => config,
        Err(error) => {
            complain(with_causes(&error.into()));
            return ExitCode::from(2);
        }
    };
    let text = node::overview(&config).map_err(anyhow::Error::from);
    let text = text.and_then(|text| super::common::print_text(&text));
    match text {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &NodeArgs) -> ExitCode {
    let level = std::env::var("SLIPWAY_LOG").unwrap_or_else(|_| "info".into());
    match log::filter(&level) {
        Ok(filter) => log::subscriber(filter, LogFormat::Text, false, std::io::stderr, Ration::default()).init(),
        Err(error) => {
            complain(format!("SLIPWAY_LOG in the environment: {error}"));
            return ExitCode::from(2);
        }
    }
    let how = match options {
        NodeArgs { once: true, .. } => NodeRun::Once,
        NodeArgs { check: true, .. } => NodeRun::Check,
        NodeArgs { trial: true, .. } => NodeRun::Trial,
        _ => NodeRun::Serve,
    };
    match node::run(&options.config, how) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            match error {
                NodeError::Config(_) => ExitCode::from(2),
                NodeError::Away(_) => ExitCode::from(AWAY),
                NodeError::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

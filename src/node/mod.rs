//! `slipway node`: the agent on an installed node.
//!
//! It works off the steps of its LCMMachine and says what became of them, keeps SSH keys, reboots when it is asked to, and replaces
//! itself. It goes on while the appliance is away, and after a crash where it was: `docs/node-agent.md` says what users see,
//! `docs/design/release.md` what appliance and agent owe each other.
//!
//! | file | what it is |
//! |---|---|
//! | `agent` | the work: follow, step, tell |
//! | `plan`, `report` | decisions: which step is next, what is told |
//! | `journal`, `files` | what is on the disk, and how it gets there |
//! | `runner`, `processes`, `output` | what does a step |
//! | `client`, `tls`, `clock`, `token` | the appliance |
//! | `host`, `keys`, `upgrade` | the node: what it is, who may enter, which agent it runs |
//! | `contact`, `overview` | for whoever asks on the node |

mod agent;
mod client;
mod clock;
mod code;
mod config;
mod contact;
mod effect;
mod files;
mod host;
mod journal;
mod keys;
mod output;
mod overview;
mod plan;
mod processes;
mod report;
mod runner;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod upgrade;

pub use config::{AgentPauses, NodeConfig, NodeConfigError};
pub use effect::NodeEffect;
pub use overview::overview;
pub use upgrade::AWAY;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use agent::{Agent, AgentEnd};
use client::{CallError, Client};
use clock::Clock;

/// What the agent is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRun {
    /// To work until it is stopped.
    Serve,
    /// To work off what there is, and to end.
    Once,
    /// To see whether it can work: configuration, token, appliance.
    Check,
    /// To report once, before it takes the place of another one.
    Trial,
}

/// Why the agent ended that was not to, or did not do what it was started for.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] NodeConfigError),
    /// The appliance is away: another try may help.
    #[error("{0}")]
    Away(String),
    /// Something else.
    #[error("{0}")]
    Failed(String),
}

/// Runs the agent of a node with the configuration in this file. Returns when it is done, or was stopped; where another program took
/// its place, this process is that one from then on.
///
/// # Errors
/// When it cannot run, or did not do what it was started for.
pub fn run(config_file: &Path, how: NodeRun) -> Result<(), NodeError> {
    let config = NodeConfig::load(config_file)?;
    let failed = |error: &dyn std::fmt::Display| NodeError::Failed(error.to_string());
    // One thread: it waits most of the time, and each thread takes memory.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(|error| failed(&error))?;
    let program = config.program.clone().map_or_else(std::env::current_exe, Ok).map_err(|error| failed(&error))?;
    let end = runtime.block_on(async {
        match how {
            NodeRun::Serve => serve(config, config_file).await,
            NodeRun::Once => once(config, config_file).await,
            NodeRun::Check => check(&config).await.map(|()| AgentEnd::Stopped),
            NodeRun::Trial => trial(&config).await.map(|()| AgentEnd::Stopped),
        }
    })?;
    drop(runtime);
    match end {
        AgentEnd::Stopped => Ok(()),
        AgentEnd::Replaced => {
            tracing::info!(program = %program.display(), "another program goes on");
            let error = std::process::Command::new(&program).args(std::env::args_os().skip(1)).exec();
            Err(NodeError::Failed(format!("{}: {error}", program.display())))
        }
    }
}

async fn serve(config: NodeConfig, config_file: &Path) -> Result<AgentEnd, NodeError> {
    let stop = CancellationToken::new();
    let failed = |error: std::io::Error| NodeError::Failed(error.to_string());
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let agent = Agent::start(config, config_file, true, |_| {}).await.map_err(NodeError::Failed)?;
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
        // What runs ends in good order.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        end = agent.run(&stop) => Ok(end),
        () = told => Ok(AgentEnd::Stopped),
    }
}

async fn once(config: NodeConfig, config_file: &Path) -> Result<AgentEnd, NodeError> {
    let agent = Agent::start(config, config_file, true, |_| {}).await.map_err(NodeError::Failed)?;
    agent.once().await.map(|()| AgentEnd::Stopped).map_err(NodeError::Failed)
}

async fn check(config: &NodeConfig) -> Result<(), NodeError> {
    let client = Client::new(config, Arc::default()).map_err(NodeError::Failed)?;
    match client.get().await {
        Ok(_) => Ok(()),
        Err(error @ CallError::Unreachable(_)) => Err(NodeError::Away(error.to_string())),
        Err(error) => Err(NodeError::Failed(error.to_string())),
    }
}

async fn trial(config: &NodeConfig) -> Result<(), NodeError> {
    let clock = Arc::new(Clock::default());
    let client = Client::new(config, clock.clone()).map_err(NodeError::Failed)?;
    Agent::trial(&client, &clock, &config.pauses).await.map_err(NodeError::Away)
}

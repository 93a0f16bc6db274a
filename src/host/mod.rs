//! A machine's life: the pure state machine, its reconciler, the agents' sessions and the admission rules.

pub(crate) mod access;
pub mod admission;
mod agent_body;
mod agent_metrics;
pub mod askers;
mod boot_effect;
mod caller;
mod conditions;
mod context;
mod crowd;
pub mod dataimage;
pub mod directory;
pub mod discovery;
mod effects;
mod effort;
mod fenced;
mod hardware_data;
mod hearing;
mod life;
pub mod log_upkeep;
pub mod log_view;
mod logins;
pub mod logs;
mod looks;
pub mod machine;
pub mod media;
mod meter;
pub mod metrics;
mod patience;
mod payload;
mod places;
mod progress;
mod queue;
mod rationed;
mod readings;
pub mod reconciler;
mod registration;
mod resets;
pub mod sessions;
pub mod stuck;
pub mod unsupported;
mod view;
pub mod watches;

pub use life::{Machines, module};

/// Who tells the events of hosts.
const COMPONENT: &str = "slipway-host";

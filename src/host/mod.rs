//! A machine's life: the pure state machine, its reconciler, the agents' sessions and the admission rules.

pub mod admission;
pub mod agent_api;
mod bmc_access;
pub mod directory;
pub mod discovery;
mod life;
pub mod lifecycle;
pub mod logs;
pub mod media;
pub mod reconcile;
mod refused;
mod scheduling;
pub mod status;

pub use life::{Machines, module};

/// Who tells the events of hosts.
const COMPONENT: &str = "slipway-host";

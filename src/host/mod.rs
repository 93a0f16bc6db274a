//! A machine's life, room by room.
//!
//! As in the map of the house (`src/lib.rs`) a room imports rooms of its own floor or below, and never in circles; the tests in
//! `walls` read this table too.
//!
//! | floor | room | what it is |
//! |---|---|---|
//! | front | [`life`] | what machines bring into the house: kinds, rights, rules, metrics, controllers |
//! | work | [`reconcile`] | makes hosts as they are to be: reconciler, effects, boots, credentials, registrations |
//! |  | [`agent_api`] | the calls of agents: sessions, steps, progress, results |
//! | knowledge | [`logs`] | what nodes logged, bounded, and who reads it |
//! |  | [`directory`] | what is known of all hosts: who has what, what they boot, who wants which image |
//! |  | [`discovery`] | unknown machines that report themselves |
//! |  | [`media`] | what BMCs are told to boot from, and DataImages |
//! |  | [`scheduling`] | which hosts go first where not all can |
//! |  | [`status`] | what is told of hosts: conditions, progress, HardwareData, stalls, metrics |
//! | rules | [`lifecycle`] | the state machine, pure: what is stored and observed in, a status and one effect out |
//! |  | [`admission`] | what a BareMetalHost must be before it is stored, and what is not supported |
//! |  | [`bmc_access`] | how BMCs are reached: fence, limits of logins, what they said last |
//! |  | [`refused`] | why an agent's call was refused |

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

pub use life::{HostLife, MachineSettings, module};

/// Who tells the events of hosts.
const COMPONENT: &str = "slipway-host";

/// How the log names a host.
fn label(host: &impl kube::ResourceExt) -> String {
    crate::log::named(&host.namespace().unwrap_or_default(), &host.name_any()).to_string()
}

//! A machine's life: the pure state machine, its reconciler, the agents' sessions and the admission rules.

mod access;
pub mod admission;
mod boot_effect;
mod conditions;
mod crowd;
pub mod dataimage;
pub mod discovery;
mod effects;
mod effort;
mod events;
mod fenced;
mod hardware_data;
pub mod log_upkeep;
pub mod log_view;
pub mod logs;
pub mod machine;
mod meter;
pub mod metrics;
mod payload;
mod places;
mod progress;
mod readings;
pub mod reconciler;
pub mod sessions;
pub mod stuck;
mod view;
pub mod watches;

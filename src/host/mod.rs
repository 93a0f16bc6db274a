//! A machine's life: the pure state machine, its reconciler, the agents' sessions and the admission rules.

mod access;
pub mod admission;
mod boot_effect;
mod conditions;
mod crowd;
pub mod dataimage;
pub mod discovery;
mod effects;
mod events;
mod fenced;
mod hardware_data;
pub mod machine;
pub mod metrics;
mod payload;
mod places;
mod readings;
pub mod reconciler;
pub mod sessions;
mod view;
pub mod watches;

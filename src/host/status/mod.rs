//! What is told of hosts: conditions, progress, hardware, events of those that make none, metrics.

pub(in crate::host) mod agent_metrics;
pub mod boot_refusals;
pub(in crate::host) mod conditions;
mod cpu_time;
pub(in crate::host) mod hardware_data;
pub mod metrics;
pub(in crate::host) mod progress;
pub mod stall;

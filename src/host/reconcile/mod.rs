//! What makes hosts as they are to be: the reconciler asks the lifecycle what comes next, and does it.

pub(in crate::host) mod boot_effect;
pub(in crate::host) mod context;
pub mod credentials;
mod deadlines;
pub(in crate::host) mod effects;
pub mod reconciler;
mod recording;
mod registration;
pub(in crate::host) mod resets;
mod up_since;

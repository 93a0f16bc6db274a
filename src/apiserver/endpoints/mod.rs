//! Paths beside those of objects: [`health`], [`metrics`], and the [`backup`].

pub(super) mod backup;
pub mod health;
pub mod metrics;

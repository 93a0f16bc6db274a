//! Shares: what requests take of the appliance, so that no caller takes it all.
//!
//! [`caller_shares`] divides any quantity among callers. By it [`inflight`] bounds how many requests there are at once,
//! [`scan_scheduler`] gives turns at the processors to long looks, and [`response_memory`] bounds what slow readers hold.
//! [`blocking`] is work of any caller that keeps its thread.

pub(super) mod blocking;
pub(super) mod caller_shares;
pub(super) mod inflight;
pub(super) mod response_memory;
pub(super) mod scan_scheduler;

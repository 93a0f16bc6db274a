//! How BMCs of hosts are reached: an appliance that does not lead changes nothing, logins that are refused are few, and what a
//! BMC said last is known for a while.

pub(in crate::host) mod fenced;
pub(in crate::host) mod login_limited;
pub(in crate::host) mod login_limits;
pub(in crate::host) mod status_cache;

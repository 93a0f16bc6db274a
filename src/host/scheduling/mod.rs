//! Which hosts go first where not all can: being busy, and being looked at.

mod fair_queue;
pub(in crate::host) mod provisioning_slots;
pub(in crate::host) mod reconcile_slots;

//! Requests that read: [`read`] one object or, by [`list`], many; [`watch`] what becomes of them. [`guarded`] ends an answer that goes
//! on for long with the rights of who asked.

pub(super) mod guarded;
pub(super) mod list;
pub(super) mod read;
pub(super) mod watch;

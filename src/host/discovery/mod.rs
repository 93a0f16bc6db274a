//! Discovery: unknown machines that report themselves.
//!
//! On a network with `discovery = true` a machine that no host has boots the ramdisk with a visitor's token. Its
//! session can report the inventory and do nothing else: no image, no step on a disk, nothing of any host. What it
//! reports becomes a BareMetalHost that waits to be accepted ([`enroll`]), named and labelled by [`rules`]; then the
//! machine powers off, and boots its own disk until its host is accepted. A machine that turns out to be a host
//! already makes no second one.

mod bmc;
mod enroll;
mod journal;
pub mod rules;
mod standing;
#[cfg(test)]
mod tests;
mod visit;

pub(in crate::host) use standing::{counts, waits, was_let_in};
pub use visit::{DiscoveryError, DiscoveryService};

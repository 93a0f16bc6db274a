//! TFTP, read only: network boot programs for firmware that knows nothing better.
//!
//! RFC 1350 (rev 2), options of RFC 2347, `blksize` (2348), `tsize` and `timeout` (2349), `windowsize` (7440).
//!
//! [`transfer`] is one transfer and [`admission`] the table of transfers, both without socket or clock; [`TftpServer`]
//! gives them packets and time. What is served is the fixed list of [`crate::boot::TFTP_FILES`]: a name is looked
//! up in that list and never becomes a path.
//!
//! Why not the async-tftp crate: it answers from the address that the routing table prefers, not from the one it
//! was asked at, and UEFI firmware then gives up (PXE-E18); it ignores a client's ERROR and keeps sending; in
//! lockstep it moves half of what dnsmasq does. `tests/it/tftp_async_tftp.rs` keeps the demonstration.

pub mod admission;
mod metrics;
pub mod packet;
mod server;
pub mod transfer;
mod transfer_socket;

pub use metrics::TftpMetrics;
pub use server::{TftpBindError, TftpServer};

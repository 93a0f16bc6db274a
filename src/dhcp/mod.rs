//! DHCP for IPv4 (RFC 2131): addresses and boot information for the machines on the configured networks.
//!
//! A message goes through pure parts (`packet`, `respond`, `table`) and comes out as an answer, lease writes and a
//! line for the log; sockets, store and clock are in `line`, `socket` and `leases`. No lease is acknowledged
//! before it is on disk. What a machine is told to boot is [`crate::boot::decide`]'s answer.
//!
//! The appliance loads [`Leases`], binds a [`Server`] and runs it until shutdown.

mod client;
mod clock;
mod doubt;
mod explain;
mod frame;
mod interface;
mod leases;
mod life;
mod line;
mod log;
mod metrics;
mod netboot;
mod network;
mod outcome;
mod pace;
mod packet;
mod proxy;
mod publish;
mod quiet;
mod record;
mod relays;
mod reply;
mod respond;
mod seen;
mod server;
mod shares;
mod socket;
mod table;

#[cfg(test)]
mod packet_tests;
#[cfg(test)]
mod respond_tests;
#[cfg(test)]
mod table_tests;

pub use interface::{Interface, interface_address, interfaces};
pub use leases::{Leases, LoadError, holder, rank};
pub use life::{Serving, module};
pub use publish::Views;
pub use server::{BindError, ServeError, Server};

/// Where boot files are to be had on this appliance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootSite {
    /// TCP port of boot HTTP.
    pub http_port: u16,
    /// UDP port of TFTP. Firmware knows no other than 69.
    pub tftp_port: u16,
    /// UDP port of this server. Machines know no other than 67.
    pub dhcp_port: u16,
}

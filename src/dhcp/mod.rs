//! DHCP for IPv4 (RFC 2131): addresses and boot information for the machines on the configured networks.
//!
//! A message goes through pure parts (`packet`, `respond`, `table`) and comes out as an answer, lease writes and a
//! line for the log; sockets, store and clock are in `worker`, `socket` and `leases`. No lease is acknowledged
//! before it is on disk. What a machine is told to boot is [`crate::boot::decide`]'s answer.
//!
//! The appliance loads [`Leases`], binds a [`DhcpServer`] and runs it until shutdown.

mod addresses;
mod arp;
mod assigned;
mod batching;
mod bind;
mod client;
mod clock;
mod conflict;
mod counts;
mod explain;
mod frame;
mod handler;
mod interface;
mod leases;
mod life;
mod log;
mod log_rate_limit;
mod metrics;
mod mirror;
mod netboot;
mod network;
mod network_leases;
mod network_set;
mod networks;
mod other_servers;
mod outcome;
mod packet;
mod probes;
mod proxy;
mod publish;
mod recent_messages;
mod record;
mod relays;
mod reply;
mod reservations;
mod reserved;
mod respond;
mod server;
mod server_probe;
mod shares;
mod socket;
mod table;
mod worker;
mod write_batch;

pub use bind::{DhcpBindError, unserved};
pub use interface::{ServedInterface, interface_address, interfaces};
pub use leases::{Leases, LoadError, check_entry, lease_owner, rank};
pub use life::{DhcpService, module};
pub use networks::{NetworkDirectory, Site};
pub use publish::LeaseViews;
pub use reservations::Reservations;
pub use server::{DhcpServeError, DhcpServer};
pub use server_probe::find_servers;

/// Where boot files are to be had on this appliance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePorts {
    /// TCP port of boot HTTP.
    pub http_port: u16,
    /// UDP port of TFTP. Firmware knows no other than 69.
    pub tftp_port: u16,
    /// UDP port of this server. Machines know no other than 67.
    pub dhcp_port: u16,
}

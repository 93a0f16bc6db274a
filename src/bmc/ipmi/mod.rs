//! IPMI 2.0 over LAN (RMCP+), of our own.
//!
//! [`packet`], [`suite`], [`rakp`], [`session`] and [`commands`] are the protocol: bytes in, bytes and verdicts out, no
//! socket and no clock. [`client`] puts them on a UDP socket, [`controller`] makes a [`Bmc`](super::Bmc) of it.
//! Section and table numbers are those of the IPMI specification 2.0, revision 1.1.

pub mod client;
pub mod commands;
pub mod controller;
mod exchange;
pub mod packet;
pub mod rakp;
pub mod session;
pub mod suite;

pub use controller::IpmiBmc;

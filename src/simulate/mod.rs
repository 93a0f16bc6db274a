//! A simulated rack against a real appliance: BMCs that answer, machines that boot and agents that work, without one
//! machine. Operators rehearse their configuration with it, and the benchmarks measure with it.
//!
//! | file | what it is |
//! |---|---|
//! | [`plan`] | what is asked for: how many machines, delays, faults |
//! | [`rng`] | chance, the same for the same seed |
//! | [`appliance_process`] | an appliance of its own, as a process with a temporary folder |
//! | [`bmcs`] | a BMC for each machine, on an address or a port of its own |
//! | [`disk`] | a machine's disk, and what was done to it |
//! | [`rack`] | the machines of a run |
//! | [`relay`] | DHCP as it comes through a relay |
//! | [`lossy_link`] | HTTP over a network that loses packets |
//! | [`netboot`] | what firmware and iPXE do: addresses, the boot program, the script, its files |
//! | [`tftp`] | the boot program by TFTP |
//! | [`virtual_cd`] | a virtual CD, read by HTTP |
//! | [`node`] | what the ramdisk does: the agent's own session with steps that only take time |
//! | [`machine`] | one machine's life: power, boots, agent |
//! | [`objects`] | the BareMetalHosts and Secrets that it makes and removes |
//! | [`follow`] | how far the hosts are |
//! | [`report`] | what happened, in words and as JSON |
//!
//! Everything that the appliance sees is the real protocol: DHCP datagrams with a relay's address, HTTP, TLS pinned to
//! its CA with [`crate::agent::client`], IPMI and Redfish of [`crate::bmc::sim`], the API as any client has it.

pub mod appliance_process;
mod bmcs;
pub mod counts;
pub mod disk;
mod follow;
mod lossy_link;
mod machine;
mod netboot;
mod node;
pub mod objects;
pub mod plan;
pub mod rack;
mod relay;
pub mod report;
mod rng;
mod run;
mod tftp;
mod virtual_cd;

pub use run::{RunningSimulation, run};

//! A simulated BMC: IPMI 2.0 with cipher suites 3 and 17, and Redfish, over a simulated machine.
//!
//! For tests, and for trying things out without hardware. It binds nothing by itself: the caller gives it a socket or a
//! listener and ends it through a token. Faults can be set while it runs ([`SimulatedMachine::inject`]).

pub mod chance;
pub mod ipmi;
pub mod machine;
pub mod redfish;
mod redfish_views;

pub use chance::Chance;
pub use ipmi::IpmiSim;
pub use machine::{Account, FaultScope, SimulatedFault, SimulatedMachine, SimulatedProfile};
pub use redfish::{MediaFault, MediaStyle, RedfishOptions, RedfishSim};

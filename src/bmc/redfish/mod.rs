//! Redfish (DMTF DSP0266): as thin a client as power and boot device need.

pub mod client;
pub mod controller;
pub mod message;
pub mod model;
pub mod tls;

pub use client::Client;
pub use controller::RedfishBmc;

//! Redfish (DMTF DSP0266): as thin a client as power, boot device, virtual media and an inventory need.

mod body;
pub mod client;
pub mod controller;
mod drives;
mod inventory;
mod media;
pub mod message;
pub mod model;
mod probe;
mod tls;

pub use client::{Client, Place};
pub use controller::RedfishBmc;
pub(super) use tls::Configs;

//! Redfish (DMTF DSP0266): as thin a client as power, boot device, virtual media and an inventory need.

mod body;
pub mod client;
pub mod controller;
mod inventory;
pub mod message;
pub mod model;
mod probe;
mod tls;
mod virtual_media;
mod virtual_media_model;

pub use client::{RedfishClient, ServiceEndpoint};
pub use controller::RedfishBmc;
pub(super) use tls::Configs;

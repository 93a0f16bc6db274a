//! The resource kinds as plain types, a file per group. No behaviour lives here.
//!
//! A new kind is one type in its group's file and one line in [`kinds`].

pub mod metal3;
pub mod slipway;

mod mac;

pub use mac::{MacAddress, MacAddressError};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// How the objects of a kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// On disk; clients may write them.
    Durable,
    /// On disk; clients may read and delete them, only Slipway's own rooms write them.
    Internal,
    /// In memory, published by the room that owns the truth; read-only for clients.
    View,
    /// Not at all: what a client creates is answered and forgotten.
    Review,
}

/// A kind that Slipway defines beside the core kinds.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Names, schema, printer columns and subresources.
    pub crd: CustomResourceDefinition,
    /// How its objects are kept.
    pub keep: Keep,
}

/// Every kind that is not a Kubernetes core kind.
pub fn kinds() -> Vec<Kind> {
    let kind = |crd, keep| Kind { crd, keep };
    vec![
        kind(metal3::BareMetalHost::crd(), Keep::Durable),
        kind(metal3::HardwareData::crd(), Keep::Durable),
        kind(slipway::Image::crd(), Keep::Durable),
        kind(slipway::BootIntent::crd(), Keep::Internal),
        kind(slipway::DHCPLease::crd(), Keep::View),
    ]
}

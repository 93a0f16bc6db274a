//! The resource kinds as plain types, a file per group. No behaviour lives here.
//!
//! A new kind is one type in its group's file and one line in the table of [`kinds`]. A kind with two versions is a type in each of
//! its group's two, and the change of shape between them.

pub mod cluster;
pub mod infrastructure;
pub mod metal3;
pub mod slipway;

pub(crate) mod bounded;
pub(crate) mod definitions;
mod mac;
mod shape;

pub use mac::{MacAddress, MacAddressError};
pub use shape::Shape;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use cluster::convert as core;
use definitions::Definitions;
use infrastructure::convert as metal;

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
    /// The version that is served beside the stored one.
    pub older: Option<Older>,
    /// What is filled in that a schema's defaults cannot say. Asked in every version.
    pub complete: Option<Complete>,
}

/// A version of a kind that is served and not stored.
#[derive(Clone, Copy, Debug)]
pub struct Older {
    /// Its name.
    pub version: &'static str,
    /// Stored version to this one.
    pub down: Shape,
    /// This version to the stored one.
    pub up: Shape,
}

/// Fills in what a client left out.
pub type Complete = fn(&mut Value);

impl Kind {
    /// A kind whose versions, when it has several, differ in name only.
    pub fn new(crd: CustomResourceDefinition, keep: Keep) -> Self {
        Self { crd, keep, older: None, complete: None }
    }
}

/// Every kind that is not a Kubernetes core kind.
pub fn kinds() -> Vec<Kind> {
    table(&mut definitions::Written::read())
}

/// The table of kinds, with definitions from where they are to be had.
fn table(definitions: &mut impl Definitions) -> Vec<Kind> {
    macro_rules! one {
        ($kind:ty, $keep:expr) => {
            Kind::new(definitions.one::<$kind>(), $keep)
        };
    }
    // Stored as v1beta2 and served as v1beta1 too.
    macro_rules! both {
        ($group:ident :: $kind:ident, $down:expr, $up:expr) => {
            Kind {
                older: Some(Older { version: "v1beta1", down: $down, up: $up }),
                ..Kind::new(definitions.both::<$group::v1beta2::$kind, $group::v1beta1::$kind>(), Keep::Durable)
            }
        };
    }
    vec![
        one!(metal3::BareMetalHost, Keep::Durable),
        one!(metal3::HardwareData, Keep::Durable),
        one!(metal3::DataImage, Keep::Durable),
        both!(cluster::Cluster, core::cluster_down, core::cluster_up),
        Kind {
            complete: Some(core::complete_machine),
            ..both!(cluster::Machine, core::machine_down, core::machine_up)
        },
        both!(infrastructure::Metal3Cluster, metal::cluster_down, metal::cluster_up),
        both!(infrastructure::Metal3ClusterTemplate, metal::cluster_template_down, metal::cluster_template_up),
        both!(infrastructure::Metal3Machine, metal::machine_down, metal::machine_up),
        both!(infrastructure::Metal3MachineTemplate, metal::machine_template_down, metal::machine_template_up),
        one!(slipway::Image, Keep::Durable),
        one!(slipway::BootIntent, Keep::Internal),
        one!(slipway::DHCPLease, Keep::View),
    ]
}

/// The kinds that Slipway's own controllers act on. A Kubernetes API server that keeps the objects must have these; those
/// of Cluster API are its own there, and must not be replaced.
pub fn acted_on() -> Vec<Kind> {
    kinds().into_iter().filter(|kind| kind.older.is_none()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Object(map) => map.values().any(has_null),
            Value::Array(list) => list.iter().any(has_null),
            _ => false,
        }
    }

    #[test]
    fn definitions_have_no_nulls_that_a_real_api_server_refuses() {
        for kind in kinds() {
            let name = kind.crd.metadata.name.clone().unwrap();
            assert!(!has_null(&serde_json::to_value(&kind.crd.spec).unwrap()), "{name}");
        }
    }
}

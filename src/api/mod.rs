//! The resource kinds as plain types, a file per group. No behaviour lives here.
//!
//! A new kind is one type in its group's file and one line in [`kinds`]. A kind with two versions is a type in each of
//! its group's two, and the change of shape between them.

pub mod cluster;
pub mod infrastructure;
pub mod metal3;
pub mod slipway;

mod mac;
mod shape;

pub use mac::{MacAddress, MacAddressError};
pub use shape::Shape;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::Value;

use cluster::convert as core;
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

    /// A kind that is stored as v1beta2 and served as v1beta1 too.
    fn in_both(new: CustomResourceDefinition, old: CustomResourceDefinition, down: Shape, up: Shape) -> Self {
        let mut crd = new;
        crd.spec.versions.extend(old.spec.versions.into_iter().map(|mut version| {
            version.storage = false;
            version
        }));
        // How Cluster API's tools find which version keeps which of its contracts.
        let labels =
            ["v1beta1", "v1beta2"].map(|version| (format!("{}/{version}", cluster::GROUP), version.to_owned()));
        crd.metadata.labels.get_or_insert_default().extend(labels);
        Self { older: Some(Older { version: "v1beta1", down, up }), ..Self::new(crd, Keep::Durable) }
    }
}

/// Every kind that is not a Kubernetes core kind.
pub fn kinds() -> Vec<Kind> {
    macro_rules! both {
        ($group:ident :: $kind:ident, $down:expr, $up:expr) => {
            Kind::in_both($group::v1beta2::$kind::crd(), $group::v1beta1::$kind::crd(), $down, $up)
        };
    }
    let mut kinds = vec![
        Kind::new(metal3::BareMetalHost::crd(), Keep::Durable),
        Kind::new(metal3::HardwareData::crd(), Keep::Durable),
        Kind::new(metal3::DataImage::crd(), Keep::Durable),
        both!(cluster::Cluster, core::cluster_down, core::cluster_up),
        Kind {
            complete: Some(core::complete_machine),
            ..both!(cluster::Machine, core::machine_down, core::machine_up)
        },
        both!(infrastructure::Metal3Cluster, metal::cluster_down, metal::cluster_up),
        both!(infrastructure::Metal3ClusterTemplate, metal::cluster_template_down, metal::cluster_template_up),
        both!(infrastructure::Metal3Machine, metal::machine_down, metal::machine_up),
        both!(infrastructure::Metal3MachineTemplate, metal::machine_template_down, metal::machine_template_up),
        Kind::new(slipway::Image::crd(), Keep::Durable),
        Kind::new(slipway::BootIntent::crd(), Keep::Internal),
        Kind::new(slipway::DHCPLease::crd(), Keep::View),
    ];
    for kind in &mut kinds {
        let schemas = kind.crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
        schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()).for_each(publish);
    }
    kinds
}

/// The kinds that Slipway's own controllers act on. A Kubernetes API server that keeps the objects must have these; those
/// of Cluster API are its own there, and must not be replaced.
pub fn acted_on() -> Vec<Kind> {
    kinds().into_iter().filter(|kind| kind.older.is_none()).collect()
}

/// The generated schemas call every optional field nullable, and have nulls in their defaults. The published ones do
/// not: a null there means that the field is not given.
fn publish(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(default) = &mut schema.default {
        drop_nulls(&mut default.0);
    }
    if let Some(choices) = &mut schema.enum_ {
        choices.retain(|choice| !choice.0.is_null());
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        publish(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        publish(values);
    }
    schema.properties.iter_mut().flatten().for_each(|(_, property)| publish(property));
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, member| !member.is_null());
        map.values_mut().for_each(drop_nulls);
    }
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

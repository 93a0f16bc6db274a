//! The resource kinds as plain types, a file per group. No behaviour lives here.
//!
//! A new kind is one type in its group's file and one line in [`kinds`].

pub mod metal3;
pub mod slipway;

mod mac;

pub use mac::{MacAddress, MacAddressError};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::Value;

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
    let kind = |mut crd: CustomResourceDefinition, keep| {
        let versions = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
        versions.filter_map(|schema| schema.open_api_v3_schema.as_mut()).for_each(publish);
        Kind { crd, keep }
    };
    vec![
        kind(metal3::BareMetalHost::crd(), Keep::Durable),
        kind(metal3::HardwareData::crd(), Keep::Durable),
        kind(slipway::Image::crd(), Keep::Durable),
        kind(slipway::BootIntent::crd(), Keep::Internal),
        kind(slipway::DHCPLease::crd(), Keep::View),
    ]
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

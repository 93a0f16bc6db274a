//! OpenAPI schemas of the core kinds.
//!
//! The schemas of the core kinds, as `core_schemas.json` has them, each by its name in OpenAPI documents. The test below
//! generates them from the types of `k8s-openapi`, and writes the file anew. Why not at each start: see
//! [`crate::api::definitions`].

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::api::definitions::unpack;

/// Name of the schema of `metadata` in OpenAPI documents.
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
/// Where OpenAPI v3 documents keep schemas.
pub(in crate::apiserver) const SCHEMAS: &str = "#/components/schemas/";
/// End of the name under which `JSONSchemaProps` refers to itself.
pub(in crate::apiserver) const SCHEMA_OF_SCHEMAS: &str = ".JSONSchemaProps";
/// Schemas by name, which refer to each other.
pub(in crate::apiserver) type SchemaDocuments = BTreeMap<String, Value>;

/// Reads the file.
pub(in crate::apiserver) fn documents() -> SchemaDocuments {
    unpack(include_bytes!(concat!(env!("OUT_DIR"), "/core_schemas.json.zz")))
}

/// Schema of `metadata`, written out.
pub(in crate::apiserver) static METADATA: LazyLock<Value> =
    LazyLock::new(|| whole(&documents(), OBJECT_META).unwrap_or_default());

/// One schema with all that it refers to written out, to validate by. Only `JSONSchemaProps`, which refers to itself,
/// stays a reference within others.
pub(in crate::apiserver) fn whole(documents: &SchemaDocuments, name: &str) -> Option<Value> {
    documents.get(name).map(|schema| written_out(documents, schema))
}

fn written_out(documents: &SchemaDocuments, schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let Some((name, rest)) = referred(map) else {
                return map.iter().map(|(key, value)| (key.clone(), written_out(documents, value))).collect();
            };
            if name.ends_with(SCHEMA_OF_SCHEMAS) {
                return serde_json::json!({ "$ref": SCHEMA_OF_SCHEMAS });
            }
            let mut schema = whole(documents, name).unwrap_or_default();
            if let Value::Object(schema) = &mut schema {
                schema.extend(rest.map(|(key, value)| (key.clone(), value.clone())));
            }
            schema
        }
        Value::Array(list) => list.iter().map(|value| written_out(documents, value)).collect(),
        _ => schema.clone(),
    }
}

/// The schema that another one is but for its own description and default: a reference, alone or within `allOf`.
fn referred(map: &Map<String, Value>) -> Option<(&str, impl Iterator<Item = (&String, &Value)>)> {
    let reference = map.get("$ref").or_else(|| match map.get("allOf")?.as_array()?.as_slice() {
        [one] => one.get("$ref"),
        _ => None,
    });
    let name = reference?.as_str()?.strip_prefix(SCHEMAS)?;
    Some((name, map.iter().filter(|(key, _)| !matches!(key.as_str(), "$ref" | "allOf"))))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
    use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview};
    use k8s_openapi::api::authorization::v1::{
        LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
    };
    use k8s_openapi::api::autoscaling::v1::Scale;
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Secret, Service, ServiceAccount};
    use k8s_openapi::api::events::v1::Event as NewEvent;
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, Patch, Status};
    use schemars::generate::SchemaSettings;
    use schemars::{JsonSchema, SchemaGenerator};
    use serde_json::json;

    use super::*;
    use crate::api::definitions::held_against;

    /// `$ref` beside other keys has no meaning in OpenAPI 3.0; Kubernetes wraps it in `allOf`.
    fn reference_as_upstream(schema: &mut Value) {
        match schema {
            Value::Object(map) => {
                // A property may have that name.
                if map.len() > 1
                    && map.get("$ref").is_some_and(Value::is_string)
                    && let Some(reference) = map.remove("$ref")
                {
                    map.insert("allOf".into(), json!([{ "$ref": reference }]));
                }
                map.values_mut().for_each(reference_as_upstream);
            }
            Value::Array(entries) => entries.iter_mut().for_each(reference_as_upstream),
            _ => {}
        }
    }

    struct Generated {
        documented: SchemaGenerator,
        inlined: SchemaGenerator,
        /// Of the types that do not refer to themselves: what the library writes out.
        whole: SchemaDocuments,
    }

    impl Generated {
        fn add<T: JsonSchema>(&mut self) {
            self.add_recursive::<T>();
            self.whole.insert(T::schema_name().into_owned(), self.inlined.subschema_for::<T>().to_value());
        }

        fn add_recursive<T: JsonSchema>(&mut self) {
            self.documented.subschema_for::<T>();
        }
    }

    #[test]
    fn the_written_schemas_are_those_of_the_types() {
        let generator = |inline| {
            let settings = SchemaSettings::openapi3().with(|settings| {
                settings.inline_subschemas = inline;
                settings.meta_schema = None;
            });
            settings.into_generator()
        };
        let mut all =
            Generated { documented: generator(false), inlined: generator(true), whole: SchemaDocuments::new() };
        macro_rules! add {
            ($($kind:ty),*) => {
                $(all.add::<$kind>();)*
            };
        }
        add!(Namespace, Secret, ConfigMap, Event, NewEvent, Lease, Service, ServiceAccount);
        add!(ClusterRole, ClusterRoleBinding, Role, RoleBinding);
        add!(MutatingWebhookConfiguration, ValidatingWebhookConfiguration);
        add!(SelfSubjectReview, TokenRequest, TokenReview, LocalSubjectAccessReview, SelfSubjectAccessReview);
        add!(SelfSubjectRulesReview, SubjectAccessReview);
        add!(ListMeta, DeleteOptions, Status, Scale);
        all.add_recursive::<Patch>();
        all.add_recursive::<CustomResourceDefinition>();

        let mut generated: SchemaDocuments = all.documented.take_definitions(true).into_iter().collect();
        generated.values_mut().for_each(reference_as_upstream);
        for (name, schema) in &mut generated {
            // Of values of any type the library says that they are objects.
            if name.ends_with(".apiextensions.v1.JSON")
                && let Some(schema) = schema.as_object_mut()
            {
                schema.remove("type");
            }
        }
        held_against("src/apiserver/kinds/core_schemas.json", &generated);
        let written = documents();
        assert!(written == generated, "the build packed another file");
        for (name, expected) in &all.whole {
            assert!(whole(&written, name).as_ref() == Some(expected), "{name} written out");
        }
    }

    #[test]
    fn what_refers_to_itself_is_not_written_out() {
        let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
        let definition = whole(&documents(), name).unwrap();
        let path = "/properties/spec/properties/versions/items/properties/schema/properties/openAPIV3Schema";
        assert_eq!(definition.pointer(path), Some(&json!({ "$ref": SCHEMA_OF_SCHEMAS })));
    }

    #[test]
    fn a_property_may_be_named_as_a_reference() {
        let schemas = documents();
        let properties =
            &schemas["io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"]["properties"];
        assert_eq!((&properties["$ref"]["type"], &properties["allOf"]["type"]), (&json!("string"), &json!("array")));
    }
}

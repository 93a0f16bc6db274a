//! The definitions of the kinds, as `definitions.json` has them: the binary brings what was generated from the types,
//! not what generates it, which would be a twentieth of its code and a part of every start. A test holds the file
//! against the types and writes it anew (`SLIPWAY_WRITE_SCHEMAS=1 cargo test --lib the_written`).

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::ZlibDecoder;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::de::DeserializeOwned;

/// Where the definition of a type is to be had.
pub(super) trait Definitions {
    /// Of a kind with one version.
    fn one<T: CustomResourceExt>(&mut self) -> CustomResourceDefinition;

    /// Of a kind that is stored as `New` and served as `Old` too.
    fn both<New: CustomResourceExt, Old: CustomResourceExt>(&mut self) -> CustomResourceDefinition;
}

/// What the file has, by name (`baremetalhosts.metal3.io`).
pub(super) struct Written(BTreeMap<String, CustomResourceDefinition>);

impl Written {
    /// Reads the file.
    pub(super) fn read() -> Self {
        Self(unpack(include_bytes!(concat!(env!("OUT_DIR"), "/definitions.json.zz"))))
    }
}

impl Definitions for Written {
    fn one<T: CustomResourceExt>(&mut self) -> CustomResourceDefinition {
        // The test below would have missed it.
        self.0.remove(T::crd_name()).unwrap_or_default()
    }

    fn both<New: CustomResourceExt, Old: CustomResourceExt>(&mut self) -> CustomResourceDefinition {
        self.one::<New>()
    }
}

/// Reads one of the files that `build.rs` packs into the binary.
///
/// # Panics
///
/// When it is not what the tests saw.
pub(crate) fn unpack<T: DeserializeOwned>(packed: &[u8]) -> T {
    let mut text = Vec::new();
    let read = ZlibDecoder::new(packed).read_to_end(&mut text).map_err(serde_json::Error::io);
    match read.and_then(|_| serde_json::from_slice(&text)) {
        Ok(schemas) => schemas,
        Err(error) => panic!("the schemas in this binary cannot be read: {error}"),
    }
}

/// Holds a file against what it was generated from, or writes it.
#[cfg(test)]
pub(crate) fn held_against<T: serde::Serialize>(file: &str, generated: &T) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = serde_json::to_string_pretty(generated).unwrap() + "\n";
    if std::env::var_os("SLIPWAY_WRITE_SCHEMAS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == text,
        "{file} is not what its types say: SLIPWAY_WRITE_SCHEMAS=1 cargo test --lib the_written"
    );
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    };
    use serde_json::Value;

    use super::*;
    use crate::api::{cluster, table};

    /// What the types say.
    struct Generated;

    impl Definitions for Generated {
        fn one<T: CustomResourceExt>(&mut self) -> CustomResourceDefinition {
            let mut definition = T::crd();
            let schemas = definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
            schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()).for_each(publish);
            definition
        }

        fn both<New: CustomResourceExt, Old: CustomResourceExt>(&mut self) -> CustomResourceDefinition {
            let mut definition = self.one::<New>();
            definition.spec.versions.extend(self.one::<Old>().spec.versions.into_iter().map(|mut version| {
                version.storage = false;
                version
            }));
            // How Cluster API's tools find which version keeps which of its contracts.
            let labels =
                ["v1beta1", "v1beta2"].map(|version| (format!("{}/{version}", cluster::GROUP), version.to_owned()));
            definition.metadata.labels.get_or_insert_default().extend(labels);
            definition
        }
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

    #[test]
    fn the_written_definitions_are_those_of_the_types() {
        let generated: BTreeMap<String, CustomResourceDefinition> =
            table(&mut Generated).into_iter().map(|kind| (kind.crd.metadata.name.clone().unwrap(), kind.crd)).collect();
        held_against("src/api/definitions.json", &generated);
        let written: Vec<_> = table(&mut Written::read()).into_iter().map(|kind| kind.crd).collect();
        let generated: Vec<_> = table(&mut Generated).into_iter().map(|kind| kind.crd).collect();
        assert!(written == generated, "the build packed another file");
    }
}

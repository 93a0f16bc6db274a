//! Resources made of a CustomResourceDefinition: those of this program, and those that users define.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion, CustomResourceSubresourceScale,
};
use kube::core::Version;
use serde_json::{Map, Value, json};

use super::core_schemas::{self, OBJECT_META, SCHEMAS};
use super::resource::{Conversion, PackedJson, ScalePaths, ServedResource};
use crate::api::Kind;
use crate::apiserver::answers::columns::{CellSource, PrinterColumn};
use crate::apiserver::schema::Schema;
use crate::apiserver::writing::apply::markers;
use crate::jsonpath::{JsonPathError, Path};

/// The table cannot be made: a kind is defined wrongly.
#[derive(Debug, thiserror::Error)]
#[error("kind {kind}: {reason}")]
pub struct RegistryError {
    pub(in crate::apiserver) kind: String,
    pub(in crate::apiserver) reason: String,
}

/// The resources of a kind of this program, one for each served version: its controllers can read what these take.
pub(in crate::apiserver) fn own_resources(kind: &Kind) -> Result<Vec<ServedResource>, RegistryError> {
    let mut made = resources(kind)?;
    for resource in &mut made {
        resource.schema = std::mem::take(&mut resource.schema).with_readable_dates();
    }
    Ok(made)
}

/// The resources of a kind, one for each served version.
pub(in crate::apiserver) fn resources(kind: &Kind) -> Result<Vec<ServedResource>, RegistryError> {
    let CustomResourceDefinition { spec, .. } = &kind.crd;
    let fail = |reason: String| RegistryError { kind: spec.names.kind.clone(), reason };
    let mut made = Vec::new();
    for version in spec.versions.iter().filter(|version| version.served) {
        let schema = version
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref())
            .ok_or_else(|| fail("has no schema".into()))?;
        let mut openapi = serde_json::to_value(schema).map_err(|error| fail(error.to_string()))?;
        let properties = openapi
            .as_object_mut()
            .map(|root| root.entry("properties").or_insert_with(|| Value::Object(Map::new())))
            .and_then(Value::as_object_mut)
            .ok_or_else(|| fail("its schema is no object".into()))?;
        properties.insert("apiVersion".into(), json!({"type": "string", "description": API_VERSION}));
        properties.insert("kind".into(), json!({"type": "string", "description": KIND}));
        let own_meta = properties.insert("metadata".into(), core_schemas::METADATA.clone());
        restrict_names(properties, own_meta.as_ref());
        markers::mark(&spec.names.kind, false, &mut openapi);
        let compiled = Schema::compile(&openapi).map_err(|error| fail(error.to_string()))?;
        openapi["properties"]["metadata"] = json!({
            "description": METADATA,
            "allOf": [{"$ref": format!("{SCHEMAS}{OBJECT_META}")}],
        });
        let names = &spec.names;
        made.push(ServedResource {
            group: spec.group.clone(),
            version: version.name.clone(),
            kind: names.kind.clone(),
            list_kind: names.list_kind.clone().unwrap_or_else(|| format!("{}List", names.kind)),
            plural: names.plural.clone(),
            singular: names.singular.clone().unwrap_or_else(|| names.kind.to_lowercase()),
            short_names: names.short_names.clone().unwrap_or_default(),
            categories: names.categories.clone().unwrap_or_default(),
            namespaced: spec.scope == "Namespaced",
            policy: kind.policy,
            status: version.subresources.as_ref().is_some_and(|sub| sub.status.is_some()),
            scale: version.subresources.as_ref().and_then(|sub| sub.scale.as_ref()).map(scale),
            selectable: version.selectable_fields.iter().flatten().map(|field| field.json_path.clone()).collect(),
            custom: None,
            stores: version.storage,
            core: false,
            schema: compiled,
            openapi: PackedJson::new(&openapi),
            columns: columns(version.additional_printer_columns.as_deref().unwrap_or_default())
                .map_err(|error| fail(error.to_string()))?,
            storage: format!("{}/{}", spec.group, names.plural).into(),
            conversion: kind
                .also_served
                .iter()
                .find(|also| also.version == version.name)
                .copied()
                .map(Conversion::Kept),
            prepare: None,
            complete: kind.complete,
            sealing: kind.sealing,
            deprecation: (version.deprecated == Some(true)).then(|| deprecation(spec, version)),
        });
    }
    Ok(made)
}

/// What clients of a deprecated version are warned of: which one to use instead, unless the definition says it.
fn deprecation(spec: &CustomResourceDefinitionSpec, version: &CustomResourceDefinitionVersion) -> String {
    if let Some(warning) = &version.deprecation_warning {
        return warning.clone();
    }
    let (group, kind) = (&spec.group, &spec.names.kind);
    let rank = |version: &CustomResourceDefinitionVersion| Version::parse(&version.name).priority();
    let better = spec.versions.iter().filter(|other| other.served && other.deprecated != Some(true));
    let better = better.filter(|other| rank(other) > rank(version)).max_by_key(|other| rank(other));
    let instead = better.map_or_else(String::new, |better| format!("; use {group}/{} {kind}", better.name));
    format!("{group}/{} {kind} is deprecated{instead}", version.name)
}

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object.";
const KIND: &str = "Kind is a string value representing the REST resource this object represents.";
const METADATA: &str = "Standard object's metadata.";

/// A schema may restrict the names of objects (`properties.metadata.properties.name`), and nothing else of metadata.
fn restrict_names(properties: &mut Map<String, Value>, own_meta: Option<&Value>) {
    for field in ["name", "generateName"] {
        if let Some(Value::Object(rules)) = own_meta.and_then(|meta| meta["properties"].get(field))
            && let Some(Value::Object(target)) =
                properties.get_mut("metadata").and_then(|meta| meta.pointer_mut(&format!("/properties/{field}")))
        {
            target.extend(rules.clone());
        }
    }
}

/// Columns that a version of a kind has; those of published definitions have a dozen.
pub(in crate::apiserver) const COLUMNS_MAX: usize = 64;

fn columns(defined: &[CustomResourceColumnDefinition]) -> Result<Vec<PrinterColumn>, JsonPathError> {
    let mut columns = vec![PrinterColumn::name()];
    for column in defined.iter().take(COLUMNS_MAX) {
        let path = match Path::parse_plain(&column.json_path) {
            Ok(path) => path,
            // What was taken by an older version is left out, rather than its kind.
            Err(_) if Path::parse(&column.json_path).is_ok() => continue,
            Err(error) => return Err(error),
        };
        columns.push(PrinterColumn {
            name: column.name.clone(),
            kind: column.type_.clone(),
            format: column.format.clone().unwrap_or_default(),
            description: column.description.clone().unwrap_or_default(),
            priority: column.priority.unwrap_or(0),
            source: CellSource::Path(path),
        });
    }
    if defined.is_empty() {
        columns.push(PrinterColumn::age());
    }
    Ok(columns)
}

/// Where the scale subresource finds its numbers. Paths were checked when the definition was written.
fn scale(scale: &CustomResourceSubresourceScale) -> ScalePaths {
    let fields = |path: &str| path.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    ScalePaths {
        spec_replicas: fields(&scale.spec_replicas_path),
        status_replicas: fields(&scale.status_replicas_path),
        selector: scale.label_selector_path.as_deref().filter(|path| !path.is_empty()).map(fields),
    }
}

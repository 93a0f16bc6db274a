//! OpenAPI documents: what kubectl needs for `explain`, for validation and for building patches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

use super::groups::Groups;
use crate::api::StoragePolicy;
use crate::apiserver::answers::status::{ApiError, json_response};
use crate::apiserver::kinds::core_schemas::SCHEMAS;
use crate::apiserver::kinds::registry::ResourceRegistry;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::requests::request::accepted;
use crate::apiserver::shares::blocking;

mod gnostic;
mod paths;
mod send;
mod v2;

pub(in crate::apiserver) use send::OpenApiDocument;

use paths::paths;

const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// Media type of OpenAPI v2 as protobuf, the only form in which kubectl asks for v2.
const PROTOBUF_V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The same as clients write it; it is no valid media type, so that it must not be sent back.
const PROTOBUF_V2_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Every document of one registry, each made when it is first asked for. While one is made, one schema at a time is
/// unpacked, and of what was made only the text is kept.
#[derive(Debug)]
pub(in crate::apiserver) struct OpenApiDocuments {
    registry: Arc<ResourceRegistry>,
    index: OnceLock<OpenApiDocument>,
    by_path: BTreeMap<String, Slot>,
    v2_json: OnceLock<OpenApiDocument>,
    v2_protobuf: OnceLock<OpenApiDocument>,
    /// What `/apis` answers.
    pub(in crate::apiserver) groups: Groups,
}

/// A document and what it is made from.
#[derive(Debug, Default)]
struct Slot {
    resources: Vec<Arc<ServedResource>>,
    document: Arc<OnceLock<OpenApiDocument>>,
}

impl OpenApiDocuments {
    /// What did not change since the previous registry is taken over.
    pub(in crate::apiserver) fn new(registry: &Arc<ResourceRegistry>, previous: Option<&Self>) -> Self {
        let mut by_path: BTreeMap<String, Slot> = BTreeMap::new();
        for resource in registry.all() {
            let path = if resource.group.is_empty() { "api" } else { "apis" };
            let slot = by_path.entry(format!("{path}/{}", resource.api_version())).or_default();
            slot.resources.push(Arc::clone(resource));
        }
        for (path, slot) in &mut by_path {
            let same = |before: &&Slot| {
                before.resources.len() == slot.resources.len()
                    && before.resources.iter().zip(&slot.resources).all(|(one, other)| Arc::ptr_eq(one, other))
            };
            if let Some(before) = previous.and_then(|previous| previous.by_path.get(path)).filter(same) {
                slot.document = Arc::clone(&before.document);
            }
        }
        Self {
            registry: Arc::clone(registry),
            index: OnceLock::new(),
            by_path,
            v2_json: OnceLock::new(),
            v2_protobuf: OnceLock::new(),
            groups: Groups::default(),
        }
    }

    fn document<'s>(&self, slot: &'s Slot) -> &'s OpenApiDocument {
        let make = || slot.document.get_or_init(|| OpenApiDocument::new(document(&self.registry, &slot.resources)));
        slot.document.get().unwrap_or_else(|| blocking::in_place_if(true, make))
    }

    /// All that the v3 documents say as one of v2, made bit by bit.
    fn v2_of<D: v2::SwaggerDocument>(&self) -> OpenApiDocument {
        blocking::in_place_if(true, || {
            let mut made = D::default();
            let mut wanted = BTreeSet::new();
            let all = || self.by_path.values().flat_map(|slot| &slot.resources);
            for (path, item) in all().flat_map(|resource| paths(resource)) {
                references(&item, &mut wanted);
                made.path(&path, &v2::path_item(&item));
            }
            each_schema(&self.registry, all(), wanted, |name, schema| made.definition(name, &v2::schema(schema)));
            OpenApiDocument::new(made.finish())
        })
    }

    /// Whether `/openapi/v3` was made, and one of its documents.
    pub(in crate::apiserver) fn has_index(&self) -> bool {
        self.index.get().is_some()
    }

    pub(in crate::apiserver) fn has(&self, path: &str) -> bool {
        self.by_path.get(path).is_none_or(|slot| slot.document.get().is_some())
    }

    /// Whether `/openapi/v2` was made in both forms.
    pub(in crate::apiserver) fn has_v2(&self) -> bool {
        self.v2_json.get().is_some() && self.v2_protobuf.get().is_some()
    }

    /// `/openapi/v3`
    pub(in crate::apiserver) fn index(&self, headers: &HeaderMap) -> Response {
        let index = self.index.get_or_init(|| {
            let mut index = Map::new();
            for (path, slot) in &self.by_path {
                let hash = &self.document(slot).hash;
                let url = format!("/openapi/v3/{path}?hash={hash}");
                index.insert(path.clone(), json!({ "serverRelativeURL": url }));
            }
            OpenApiDocument::new(json!({ "paths": index }).to_string())
        });
        index.send(headers, "application/json")
    }

    /// `/openapi/v3/…`. With the document's hash in the query the answer may be kept for ever; with an old one the
    /// client is sent to the new one.
    pub(in crate::apiserver) fn of(
        &self,
        path: &str,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Response, ApiError> {
        let slot = self.by_path.get(path).ok_or_else(ApiError::no_such_path)?;
        let document = self.document(slot);
        let hash = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("hash=")));
        if hash.is_some_and(|hash| !hash.is_empty() && hash != document.hash) {
            let mut response = json_response(StatusCode::MOVED_PERMANENTLY, axum::body::Body::empty());
            let to = format!("/openapi/v3/{path}?hash={}", document.hash);
            if let Ok(to) = HeaderValue::from_str(&to) {
                response.headers_mut().insert(header::LOCATION, to);
            }
            return Ok(response);
        }
        let mut response = document.send(headers, "application/json");
        if hash.is_some_and(|hash| !hash.is_empty()) {
            let forever = HeaderValue::from_static("public, immutable, max-age=31536000");
            response.headers_mut().insert(header::CACHE_CONTROL, forever);
        }
        Ok(response)
    }

    /// `/openapi/v2`: one document of all that the v3 documents say, as JSON or protobuf.
    pub(in crate::apiserver) fn v2(&self, headers: &HeaderMap) -> Result<Response, ApiError> {
        for one in accepted(headers) {
            if one.media == PROTOBUF_V2 || one.media == PROTOBUF_V2_ASKED {
                let document = self.v2_protobuf.get_or_init(|| self.v2_of::<gnostic::Protobuf>());
                return Ok(document.send(headers, PROTOBUF_V2));
            }
            if one.takes_json() {
                let document = self.v2_json.get_or_init(|| self.v2_of::<v2::JsonDocument>());
                return Ok(document.send(headers, "application/json"));
            }
        }
        Err(ApiError::not_acceptable())
    }
}

/// The text of the document of one group and version.
fn document(registry: &ResourceRegistry, resources: &[Arc<ServedResource>]) -> Vec<u8> {
    let info = json!({"title": "Slipway", "version": env!("CARGO_PKG_VERSION")});
    let mut wanted = BTreeSet::new();
    let mut text = JsonMembers::of(format!("{{\"openapi\":\"3.0.0\",\"info\":{info},\"paths\":{{"));
    for (path, item) in resources.iter().flat_map(|resource| paths(resource)) {
        references(&item, &mut wanted);
        text.put(&path, &item);
    }
    let mut text = JsonMembers::of(text.end("},\"components\":{\"schemas\":{"));
    each_schema(registry, resources, wanted, |name, schema| text.put(name, schema));
    text.end("}}}").into()
}

/// The members of a JSON object as they are written. Names that were written before are left out.
#[derive(Debug, Default)]
struct JsonMembers {
    text: String,
    names: BTreeSet<String>,
}

impl JsonMembers {
    /// Members behind this text.
    fn of(text: String) -> Self {
        Self { text, names: BTreeSet::new() }
    }

    fn put(&mut self, name: &str, value: &Value) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        let comma = if self.names.len() > 1 { "," } else { "" };
        // Writing to memory does not fail.
        write!(self.text, "{comma}{}:{value}", Value::from(name)).ok();
    }

    fn end(mut self, text: &str) -> String {
        self.text.push_str(text);
        self.text
    }
}

/// Hands out the schemas of resources, those of their lists, and the shared ones that these or the paths refer to.
fn each_schema<'r>(
    registry: &ResourceRegistry,
    resources: impl IntoIterator<Item = &'r Arc<ServedResource>>,
    mut wanted: BTreeSet<String>,
    mut put: impl FnMut(&str, &Value),
) {
    let mut there = BTreeSet::new();
    for resource in resources {
        for (name, schema) in schemas(resource) {
            references(&schema, &mut wanted);
            put(&name, &schema);
            there.insert(name);
        }
    }
    while let Some(name) = wanted.pop_first() {
        if !there.contains(&name)
            && let Some(schema) = registry.shared_schemas.get(&name)
        {
            let schema = schema.value();
            references(&schema, &mut wanted);
            put(&name, &schema);
            there.insert(name);
        }
    }
}

fn kind_of(resource: &ServedResource) -> Value {
    json!({"group": resource.group, "kind": resource.kind, "version": resource.version})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{SCHEMAS}{name}")})
}

/// The schema of a resource and that of its lists, where it has any.
fn schemas(resource: &ServedResource) -> Vec<(String, Value)> {
    let name = resource.schema_name();
    let mut schema = resource.openapi.value();
    schema["x-kubernetes-group-version-kind"] = json!([kind_of(resource)]);
    if resource.policy == StoragePolicy::Review {
        return vec![(name, schema)];
    }
    let list = json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [reference(&format!("{META}.ListMeta"))]},
            "items": {"type": "array", "items": {"allOf": [reference(&name)]}},
        },
        "x-kubernetes-group-version-kind":
            [{"group": resource.group, "kind": resource.list_kind, "version": resource.version}],
    });
    vec![(format!("{name}List"), list), (name, schema)]
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix(SCHEMAS)) {
                found.insert(name.to_owned());
            }
            map.values().for_each(|child| references(child, found));
        }
        Value::Array(entries) => entries.iter().for_each(|child| references(child, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document_of(registry: &ResourceRegistry, group: &str, version: &str) -> Value {
        let resources: Vec<_> = registry.of_version(group, version).cloned().collect();
        serde_json::from_slice(&document(registry, &resources)).unwrap()
    }

    #[test]
    fn documents_are_whole_and_say_what_kubectl_looks_for() {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        for (group, version) in
            [("", "v1"), ("events.k8s.io", "v1"), ("metal3.io", "v1alpha1"), ("slipway.dev", "v1alpha1")]
        {
            let document = document_of(&registry, group, version);
            let mut wanted = BTreeSet::new();
            references(&document, &mut wanted);
            for name in wanted {
                assert!(document["components"]["schemas"].get(&name).is_some(), "{group}: {name} is missing");
            }
        }
        let document = document_of(&registry, "metal3.io", "v1alpha1");
        let host = &document["components"]["schemas"]["io.metal3.v1alpha1.BareMetalHost"];
        assert_eq!(host["x-kubernetes-group-version-kind"][0]["kind"], "BareMetalHost");
        assert_eq!(host["properties"]["spec"]["properties"]["online"]["type"], "boolean");
        let patch =
            &document["paths"]["/apis/metal3.io/v1alpha1/namespaces/{namespace}/baremetalhosts/{name}"]["patch"];
        let parameters = patch["parameters"].as_array().unwrap();
        assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation"));
        assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    }

    /// The rules of OpenAPI 3.0 for a schema, where a property may be called as a keyword is.
    fn check_schema(schema: &Value, path: &str) {
        let map = schema.as_object().unwrap_or_else(|| panic!("{path} is no schema: {schema}"));
        for (keyword, value) in map {
            let at = format!("{path}/{keyword}");
            match keyword.as_str() {
                "properties" => {
                    let properties = value.as_object().unwrap_or_else(|| panic!("{at} is no object"));
                    properties.iter().for_each(|(name, one)| check_schema(one, &format!("{at}/{name}")));
                }
                "items" | "not" => check_schema(value, &at),
                "additionalProperties" if value.is_boolean() => {}
                "additionalProperties" => check_schema(value, &at),
                "allOf" | "anyOf" | "oneOf" => {
                    value
                        .as_array()
                        .unwrap_or_else(|| panic!("{at} is no list"))
                        .iter()
                        .for_each(|one| check_schema(one, &at));
                }
                "$ref" | "type" | "description" | "format" | "title" | "pattern" => {
                    assert!(value.is_string(), "{at}: {value}")
                }
                "required" | "enum" => assert!(value.is_array(), "{at}: {value}"),
                "nullable" | "uniqueItems" | "exclusiveMinimum" | "exclusiveMaximum" => {
                    assert!(value.is_boolean(), "{at}")
                }
                "default" | "minimum" | "maximum" | "multipleOf" | "minLength" | "maxLength" | "minItems"
                | "maxItems" | "minProperties" | "maxProperties" => {}
                other => assert!(other.starts_with("x-kubernetes-"), "{at} is no keyword"),
            }
        }
    }

    #[test]
    fn every_schema_is_one_by_the_rules_of_openapi() {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        for (group, versions) in registry.groups().into_iter().chain([("", vec!["v1"])]) {
            for version in versions {
                let document = document_of(&registry, group, version);
                for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
                    check_schema(schema, name);
                }
            }
        }
        let document = document_of(&registry, "apiextensions.k8s.io", "v1");
        let schemas = &document["components"]["schemas"];
        let package = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";
        let properties = &schemas[format!("{package}.JSONSchemaProps")]["properties"];
        assert_eq!((&properties["$ref"]["type"], &properties["allOf"]["type"]), (&json!("string"), &json!("array")));
        assert_eq!(schemas[format!("{package}.JSON")].get("type"), None, "a default may be of any type");
    }

    #[test]
    fn hashed_documents_may_be_kept() {
        let documents =
            OpenApiDocuments::new(&Arc::new(crate::apiserver::kinds::built_in::registry(&[]).unwrap()), None);
        let none = HeaderMap::new();
        documents.of("api/v1", None, &none).unwrap();
        let hash = &documents.by_path["api/v1"].document.get().unwrap().hash;
        let kept = documents.of("api/v1", Some(&format!("hash={hash}")), &none).unwrap();
        assert!(kept.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
        let fresh = documents.of("api/v1", None, &none).unwrap();
        assert!(!fresh.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
        let stale = documents.of("api/v1", Some("hash=0"), &none).unwrap();
        assert_eq!(stale.status(), 301);
        assert_eq!(documents.of("apis/none/v1", None, &none).unwrap_err().code, 404);
    }
}

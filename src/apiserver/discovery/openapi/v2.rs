//! OpenAPI v2 (Swagger), made from the v3 documents, for clients that are older than v3: kubectl before 1.27, and
//! `kubectl explain --output plaintext-openapiv2` of any age. What v2 cannot say is left out, as upstream does, so that
//! a client that checks by it never refuses what the server takes. Pure.

use serde_json::{Map, Value, json};

use super::JsonMembers;
use crate::apiserver::kinds::core_schemas::SCHEMAS;

/// `swagger`
pub(super) const SWAGGER: &str = "2.0";
/// `info.title`
pub(super) const TITLE: &str = "Slipway";
/// `info.version`
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Keywords that v2 knows and that keep their meaning.
const KEPT: [&str; 19] = [
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "title",
    "type",
    "uniqueItems",
];
const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// A document that is made bit by bit. First come all paths, then all definitions; of a name the first counts.
pub(super) trait SwaggerDocument: Default {
    /// Adds a path.
    fn path(&mut self, path: &str, item: &Value);
    /// Adds a definition.
    fn definition(&mut self, name: &str, schema: &Value);
    /// What is sent.
    fn finish(self) -> Vec<u8>;
}

/// The document as JSON.
#[derive(Default)]
pub(super) struct JsonDocument {
    paths: JsonMembers,
    definitions: JsonMembers,
}

impl SwaggerDocument for JsonDocument {
    fn path(&mut self, path: &str, item: &Value) {
        self.paths.put(path, item);
    }

    fn definition(&mut self, name: &str, schema: &Value) {
        self.definitions.put(name, schema);
    }

    fn finish(self) -> Vec<u8> {
        let info = json!({"title": TITLE, "version": VERSION});
        let mut text = format!("{{\"swagger\":\"{SWAGGER}\",\"info\":{info},\"paths\":{{");
        text.push_str(&self.paths.end("},\"definitions\":{"));
        text.push_str(&self.definitions.end("}}"));
        text.into()
    }
}

fn reference(source: &Value) -> Option<Value> {
    let direct = source.get("$ref").or_else(|| match source["allOf"].as_array().map(Vec::as_slice) {
        Some([only]) => only.get("$ref"),
        _ => None,
    });
    let name = direct?.as_str()?.strip_prefix(SCHEMAS)?;
    let mut to = json!({ "$ref": format!("#/definitions/{name}") });
    if let Some(text) = source.get("description") {
        to["description"] = text.clone();
    }
    Some(to)
}

/// A schema of v3 as one of v2.
pub(super) fn schema(source: &Value) -> Value {
    if let Some(reference) = reference(source) {
        return reference;
    }
    let Some(map) = source.as_object() else { return json!({}) };
    let flag = |name: &str| map.get(name) == Some(&Value::Bool(true));
    let mut to = Map::new();
    for (name, value) in map.iter().filter(|(name, _)| name.starts_with("x-kubernetes-")) {
        if name != "x-kubernetes-validations" {
            to.insert(name.clone(), value.clone());
        }
    }
    // A client that checks would refuse a null, a number beside a text, or a field that it does not know.
    let open = flag("nullable")
        || flag("x-kubernetes-int-or-string")
        || flag("x-kubernetes-preserve-unknown-fields")
        || map.get("format").is_some_and(|format| format == "int-or-string");
    if open {
        if let Some(text) = map.get("description") {
            to.insert("description".into(), text.clone());
        }
        return Value::Object(to);
    }
    for name in KEPT {
        if let Some(value) = map.get(name) {
            to.insert(name.into(), value.clone());
        }
    }
    if let Some(Value::Object(properties)) = map.get("properties") {
        let properties: Map<String, Value> = properties.iter().map(|(name, one)| (name.clone(), schema(one))).collect();
        to.insert("properties".into(), properties.into());
    }
    if let Some(items) = map.get("items") {
        to.insert("items".into(), schema(items));
    }
    match map.get("additionalProperties") {
        Some(values @ Value::Object(_)) => {
            to.insert("additionalProperties".into(), schema(values));
        }
        Some(Value::Bool(true)) => {
            to.insert("additionalProperties".into(), json!({}));
        }
        _ => {}
    }
    Value::Object(to)
}

/// A path of v3 as one of v2.
pub(super) fn path_item(source: &Value) -> Value {
    let mut to = Map::new();
    for method in METHODS {
        if let Some(source) = source.get(method) {
            to.insert(method.into(), operation(source));
        }
    }
    let shared: Vec<Value> = source["parameters"].as_array().into_iter().flatten().map(parameter).collect();
    if !shared.is_empty() {
        to.insert("parameters".into(), shared.into());
    }
    Value::Object(to)
}

fn operation(source: &Value) -> Value {
    let mut parameters: Vec<Value> = source["parameters"].as_array().into_iter().flatten().map(parameter).collect();
    let mut consumes = vec!["*/*".to_owned()];
    if let Some(body) = source.get("requestBody") {
        let content = body["content"].as_object();
        consumes = content.map(|content| content.keys().cloned().collect()).unwrap_or_default();
        let given = content.and_then(|content| content.values().next()).map(|one| schema(&one["schema"]));
        parameters
            .insert(0, json!({"name": "body", "in": "body", "required": body["required"] == true, "schema": given}));
    }
    let mut responses = Map::new();
    for (code, answer) in source["responses"].as_object().into_iter().flatten() {
        let shown = schema(&answer["content"]["application/json"]["schema"]);
        responses.insert(code.clone(), json!({"description": answer["description"], "schema": shown}));
    }
    json!({
        "description": source["description"],
        "operationId": source["operationId"],
        "consumes": consumes,
        "produces": ["application/json"],
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": source["x-kubernetes-action"],
        "x-kubernetes-group-version-kind": source["x-kubernetes-group-version-kind"],
    })
}

fn parameter(source: &Value) -> Value {
    let mut to = json!({
        "name": source["name"], "in": source["in"], "type": source["schema"]["type"], "uniqueItems": true,
    });
    if source["required"] == true {
        to["required"] = true.into();
    }
    if let Some(text) = source["description"].as_str().filter(|text| !text.is_empty()) {
        to["description"] = text.into();
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_v2_cannot_say_is_left_out() {
        for (from, to) in [
            (
                json!({"allOf": [{"$ref": "#/components/schemas/a.B"}], "description": "d"}),
                json!({"$ref": "#/definitions/a.B", "description": "d"}),
            ),
            (json!({"type": "string", "nullable": true, "description": "d"}), json!({"description": "d"})),
            (
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}]}),
                json!({"x-kubernetes-int-or-string": true}),
            ),
            (
                json!({"type": "object", "required": ["a"], "default": {}, "oneOf": [{}],
                    "properties": {"a": {"type": "array", "items": {"type": "string", "not": {}}}}}),
                json!({"type": "object", "required": ["a"],
                    "properties": {"a": {"type": "array", "items": {"type": "string"}}}}),
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
            ),
        ] {
            assert_eq!(schema(&from), to, "{from}");
        }
    }
}

//! Structural schemas (KEP-20190425): what a definition's schema must be, so that values can be pruned and defaulted. Pure.

use serde_json::{Map, Value};

use super::super::answers::status::{FieldError, FieldFault, shorten};
use super::super::schema::{Schema, SearchScope};

/// Nodes of one schema.
const NODES_MAX: usize = 20_000;
/// Faults told at once.
const ERRORS_MAX: usize = 32;
/// Keywords of JSON schema that are not served.
const UNSUPPORTED: [&str; 6] = ["$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties"];
/// Keywords that say what there is rather than what it must be: not to be used inside `allOf` and its like.
const STRUCTURE: [&str; 9] = [
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
];
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Checks a version's schema.
pub(super) fn check(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut found = Vec::new();
    // A default is checked with each default around it: all of that together is bounded.
    let _looking = SearchScope::begin();
    let mut walk = StructuralWalk { nodes: 0, errors: &mut found };
    walk.node(schema, path, SchemaPosition::Root);
    if walk.nodes > NODES_MAX {
        let detail = format!("must have at most {NODES_MAX} nodes");
        walk.errors.push(FieldError::new(FieldFault::TooMany, path, detail));
    }
    if found.is_empty() {
        match Schema::compile(schema) {
            Ok(compiled) => found.extend(compiled.rule_faults().into_iter().map(|fault| {
                let position =
                    format!("{path}{}.x-kubernetes-validations[{}].{}", fault.path, fault.index, fault.field);
                FieldError::invalid(position, &fault.text.into(), fault.reason)
            })),
            Err(error) => found.push(FieldError::new(FieldFault::Invalid, path, error.to_string())),
        }
    }
    found.truncate(ERRORS_MAX);
    errors.append(&mut found);
}

/// Letters of a name in a path, which is made for each of very many nodes.
const NAME_SHOWN: usize = 256;

fn property_at(path: &str, name: &str) -> String {
    format!("{path}.properties[{}]", shorten(name, NAME_SHOWN))
}

/// Where a node stands.
#[derive(Clone, Copy, PartialEq)]
enum SchemaPosition {
    Root,
    /// `metadata` of the root or of an embedded resource.
    Metadata,
    Property,
    Items,
    Values,
}

struct StructuralWalk<'e> {
    nodes: usize,
    errors: &'e mut Vec<FieldError>,
}

impl StructuralWalk<'_> {
    fn full(&mut self) -> bool {
        self.nodes += 1;
        self.nodes > NODES_MAX || self.errors.len() >= ERRORS_MAX
    }

    fn forbid(&mut self, path: String, detail: &str) {
        self.errors.push(FieldError::forbidden(path, detail));
    }

    fn node(&mut self, schema: &Value, path: &str, position: SchemaPosition) {
        if self.full() {
            return;
        }
        let Some(map) = schema.as_object() else {
            return self.forbid(path.to_owned(), "must be a schema object");
        };
        let flag = |field: &str| map.get(field) == Some(&Value::Bool(true));
        self.keywords(map, path);
        let int_or_string = flag("x-kubernetes-int-or-string");
        let preserve = flag("x-kubernetes-preserve-unknown-fields");
        let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "" if int_or_string || preserve => {}
            "" => {
                let detail = match position {
                    SchemaPosition::Root => "must not be empty at the root",
                    SchemaPosition::Items => "must not be empty for specified array items",
                    SchemaPosition::Values | SchemaPosition::Property | SchemaPosition::Metadata => {
                        "must not be empty for specified object fields"
                    }
                };
                self.errors.push(FieldError::required(format!("{path}.type"), detail));
            }
            _ if int_or_string => {
                self.forbid(format!("{path}.type"), "must be empty if x-kubernetes-int-or-string is true");
            }
            other if !TYPES.contains(&other) => {
                let names: Vec<String> = TYPES.iter().map(|name| format!("{name:?}")).collect();
                let detail = format!("supported values: {}", names.join(", "));
                let path = format!("{path}.type");
                self.errors.push(FieldError::with_value(FieldFault::NotSupported, path, &other.into(), detail));
            }
            "object" => {}
            other => {
                let mut must = |detail: &str| {
                    self.errors.push(FieldError::invalid(format!("{path}.type"), &other.into(), detail));
                };
                if position == SchemaPosition::Root {
                    must("must be object at the root");
                } else if position == SchemaPosition::Metadata {
                    must("must be object");
                } else if flag("x-kubernetes-embedded-resource") {
                    must("must be object if x-kubernetes-embedded-resource is true");
                }
            }
        }
        if flag("x-kubernetes-embedded-resource") && !preserve && map.get("properties").is_none_or(is_empty) {
            self.errors.push(FieldError::required(
                format!("{path}.properties"),
                "must not be empty if x-kubernetes-embedded-resource is true without \
                 x-kubernetes-preserve-unknown-fields",
            ));
        }
        self.list(map, path, kind);
        self.children(map, path, position);
        for field in ["allOf", "anyOf", "oneOf"] {
            for (index, part) in map.get(field).and_then(Value::as_array).into_iter().flatten().enumerate() {
                self.junctor(part, &format!("{path}.{field}[{index}]"), int_or_string);
            }
        }
        if let Some(not) = map.get("not") {
            self.junctor(not, &format!("{path}.not"), int_or_string);
        }
        self.default(map, path, position);
    }

    /// Keywords that are wrong wherever they stand.
    fn keywords(&mut self, map: &Map<String, Value>, path: &str) {
        for field in UNSUPPORTED.iter().filter(|field| map.contains_key(**field)) {
            self.forbid(format!("{path}.{field}"), &format!("{field} is not supported"));
        }
        if map.get("uniqueItems") == Some(&Value::Bool(true)) {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.forbid(format!("{path}.uniqueItems"), detail);
        }
        if let Some(found @ Value::Bool(false)) = map.get("x-kubernetes-preserve-unknown-fields") {
            let path = format!("{path}.x-kubernetes-preserve-unknown-fields");
            self.errors.push(FieldError::invalid(path, found, "must be true or undefined"));
        }
        if let Some(pattern) = map.get("pattern").and_then(Value::as_str)
            && let Err(reason) = Schema::check_pattern(pattern)
        {
            let detail = format!("must be a valid regular expression, but isn't: {reason}");
            self.errors.push(FieldError::invalid(format!("{path}.pattern"), &pattern.into(), detail));
        }
    }

    fn list(&mut self, map: &Map<String, Value>, path: &str, kind: &str) {
        let items = map.get("items");
        if kind == "array" && items.is_none() {
            self.errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
        }
        if items.is_some_and(Value::is_array) {
            self.forbid(format!("{path}.items"), "items must be a schema object and not an array");
        }
        let Some(list_type) = map.get("x-kubernetes-list-type").and_then(Value::as_str) else {
            if map.contains_key("x-kubernetes-list-map-keys") {
                let path = format!("{path}.x-kubernetes-list-type");
                let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
                self.errors.push(FieldError::required(path, detail));
            }
            return;
        };
        if kind != "array" {
            let detail = "must be array if x-kubernetes-list-type is specified";
            self.errors.push(FieldError::invalid(format!("{path}.type"), &kind.into(), detail));
            return;
        }
        let keys: Vec<&str> = map
            .get("x-kubernetes-list-map-keys")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        match list_type {
            "atomic" | "set" => {}
            "map" => self.map_keys(items.unwrap_or(&Value::Null), &keys, path),
            other => {
                let path = format!("{path}.x-kubernetes-list-type");
                let detail = "supported values: \"atomic\", \"map\", \"set\"";
                self.errors.push(FieldError::with_value(FieldFault::NotSupported, path, &other.into(), detail));
            }
        }
    }

    fn map_keys(&mut self, items: &Value, keys: &[&str], path: &str) {
        if keys.is_empty() {
            let path = format!("{path}.x-kubernetes-list-map-keys");
            let detail = "must not be empty if x-kubernetes-list-type is map";
            self.errors.push(FieldError::required(path, detail));
        }
        if items["type"] != "object" {
            let detail = "must be object if parent array's x-kubernetes-list-type is map";
            self.errors.push(FieldError::invalid(format!("{path}.items.type"), &items["type"], detail));
            return;
        }
        for (index, key) in keys.iter().enumerate() {
            let Some(property) = items["properties"].get(*key) else {
                let path = format!("{path}.x-kubernetes-list-map-keys[{index}]");
                let detail = "entries must all be names of item properties";
                self.errors.push(FieldError::invalid(path, &(*key).into(), detail));
                continue;
            };
            let path = format!("{path}.items.properties[{key}]");
            if matches!(property["type"].as_str(), Some("array" | "object")) {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.errors.push(FieldError::invalid(format!("{path}.type"), &property["type"], detail));
            }
            let required = items["required"].as_array().is_some_and(|list| list.iter().any(|one| one == key));
            if !required && property.get("default").is_none() {
                let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
                              required property";
                self.errors.push(FieldError::required(format!("{path}.default"), detail));
            }
        }
    }

    fn children(&mut self, map: &Map<String, Value>, path: &str, position: SchemaPosition) {
        let properties = map.get("properties").and_then(Value::as_object);
        match map.get("additionalProperties") {
            None => {}
            Some(Value::Bool(false)) => {
                let path = format!("{path}.additionalProperties");
                self.forbid(path, "additionalProperties cannot be set to false");
            }
            Some(values) => {
                if properties.is_some_and(|properties| !properties.is_empty()) {
                    self.forbid(path.to_owned(), "additionalProperties and properties are mutual exclusive");
                }
                if position == SchemaPosition::Root {
                    let path = format!("{path}.additionalProperties");
                    self.forbid(path, "must not be used at the root");
                } else if values.is_object() {
                    self.node(values, &format!("{path}.additionalProperties"), SchemaPosition::Values);
                }
            }
        }
        let embedded =
            position == SchemaPosition::Root || map.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true));
        for (name, property) in properties.into_iter().flatten() {
            let path = property_at(path, name);
            if embedded && name == "metadata" {
                self.metadata(property, &path);
                self.node(property, &path, SchemaPosition::Metadata);
            } else {
                self.node(property, &path, SchemaPosition::Property);
            }
        }
        if let Some(items) = map.get("items").filter(|items| items.is_object()) {
            self.node(items, &format!("{path}.items"), SchemaPosition::Items);
        }
    }

    fn metadata(&mut self, schema: &Value, path: &str) {
        let more = schema["properties"]
            .as_object()
            .is_some_and(|properties| properties.keys().any(|name| name != "name" && name != "generateName"));
        let other = schema.as_object().is_some_and(|map| {
            map.keys().any(|key| !matches!(key.as_str(), "type" | "properties" | "description" | "title"))
        });
        if more || other {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly \
                          specified";
            self.forbid(path.to_owned(), detail);
        }
    }

    /// A part of a logical expression says what values must be, and nothing about what there is.
    fn junctor(&mut self, schema: &Value, path: &str, int_or_string: bool) {
        if self.full() {
            return;
        }
        let Some(map) = schema.as_object() else { return };
        self.keywords(map, path);
        for field in STRUCTURE.iter().filter(|field| map.contains_key(**field)) {
            // `anyOf: [{type: integer}, {type: string}]` is how int-or-string is written.
            if *field == "type" && int_or_string {
                continue;
            }
            self.forbid(format!("{path}.{field}"), "must be empty to be structural");
        }
        for (name, property) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            self.junctor(property, &property_at(path, name), false);
        }
        if let Some(items) = map.get("items") {
            self.junctor(items, &format!("{path}.items"), false);
        }
        for field in ["allOf", "anyOf", "oneOf"] {
            for (index, part) in map.get(field).and_then(Value::as_array).into_iter().flatten().enumerate() {
                self.junctor(part, &format!("{path}.{field}[{index}]"), int_or_string);
            }
        }
        if let Some(not) = map.get("not") {
            self.junctor(not, &format!("{path}.not"), int_or_string);
        }
    }

    /// A default must be a value of its own schema.
    fn default(&mut self, map: &Map<String, Value>, path: &str, position: SchemaPosition) {
        let Some(default) = map.get("default") else { return };
        let path = format!("{path}.default");
        if matches!(position, SchemaPosition::Root | SchemaPosition::Metadata) {
            return self.forbid(path, "must not be set");
        }
        let Ok(schema) = Schema::compile(&Value::Object(map.clone())) else { return };
        let mut pruned = default.clone();
        if !schema.prune(&mut pruned).is_empty() {
            self.errors.push(FieldError::new(FieldFault::Invalid, path, "must not have unknown fields"));
            return;
        }
        if !schema.apply_defaults(&mut pruned) {
            let detail = "is too large once it is completed with the defaults within it";
            self.errors.push(FieldError::new(FieldFault::TooLong, path, detail));
            return;
        }
        for error in schema.validate(&pruned) {
            let inner = if error.path.is_empty() { path.clone() } else { format!("{path}.{}", error.path) };
            self.errors.push(FieldError { fault: error.fault, path: inner, message: error.message });
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_none_or(Map::is_empty)
}

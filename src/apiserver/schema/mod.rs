//! Structural schemas (apiextensions/v1): pruning, defaulting and validating values. Pure.
//!
//! A schema is compiled once from its OpenAPI v3 JSON; what a value violates comes back as field errors with
//! Kubernetes' paths and words.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::Value;

use super::answers::status::shorten;
use super::kinds::core_schemas::{self, SCHEMA_OF_SCHEMAS};

/// Faults and unknown fields reported for one object.
const ERRORS_MAX: usize = 64;

/// Bytes of a compiled pattern from which on it counts as long to be looked for in any text.
const LONG_PATTERN: usize = 32 << 10;

pub(super) mod cel;
pub(super) mod defaults;
mod field_path;
mod format;
mod interner;
mod pattern;
pub(super) mod precompile;
mod topology;
mod validate;

pub(super) use field_path::FieldPath;
use format::SchemaFormat;
use pattern::Pattern;
pub(super) use pattern::SearchScope;
pub(super) use topology::{Atom, ListTopology, Map, MergeType, Relation, Scalar};

/// JSON type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchemaType {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// What a list's items are to each other (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq)]
enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// A compiled schema.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    kind: Option<SchemaType>,
    nullable: bool,
    int_or_string: bool,
    preserve_unknown: bool,
    // Not in the map itself: its nodes have room for eleven.
    properties: BTreeMap<String, Arc<Schema>>,
    /// Those of the properties that have a default.
    defaulted: Vec<String>,
    additional: Option<Box<Schema>>,
    any_additional: bool,
    items: Option<Box<Schema>>,
    required: Vec<String>,
    choices: Vec<Value>,
    pattern: Option<Arc<Pattern>>,
    format: Option<SchemaFormat>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    exclusive_minimum: bool,
    exclusive_maximum: bool,
    multiple_of: Option<f64>,
    length: (Option<u64>, Option<u64>),
    item_count: (Option<u64>, Option<u64>),
    property_count: (Option<u64>, Option<u64>),
    list: ListType,
    /// How patches merge the list where that says no more than `x-kubernetes-patch-strategy`.
    merge: ListType,
    atomic_map: bool,
    default: Option<Value>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Box<Schema>>,
    /// Whether values are objects of their own, with `apiVersion`, `kind` and `metadata`.
    embedded: bool,
    /// Rules in CEL of this very node.
    rules: Vec<Arc<cel::ValidationRule>>,
    /// Whether this node or one below has rules.
    any_rules: bool,
    /// Whether this node or one below has a pattern that takes long to be looked for.
    long_patterns: bool,
    /// Whether this is a schema within a schema (`JSONSchemaProps`), which is too recursive to be written out.
    is_schema: bool,
}

const JSON_SCHEMA_PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// `JSONSchemaProps`, whose parts refer to the whole.
static SCHEMAS: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = core_schemas::whole(&core_schemas::documents(), JSON_SCHEMA_PROPS).unwrap_or_default();
    // Where the generated schema says "object" and any value is meant, and where a schema or something else may be.
    let anything = serde_json::json!({"x-kubernetes-preserve-unknown-fields": true});
    let nested = serde_json::json!({ "$ref": SCHEMA_OF_SCHEMAS });
    let properties = &mut schema["properties"];
    properties["default"] = anything.clone();
    properties["example"] = anything.clone();
    properties["enum"]["items"] = anything.clone();
    properties["dependencies"]["additionalProperties"] = anything;
    for field in ["items", "additionalItems", "additionalProperties", "not"] {
        properties[field] = nested.clone();
    }
    for field in ["properties", "patternProperties", "definitions"] {
        properties[field]["additionalProperties"] = nested.clone();
    }
    for field in ["allOf", "anyOf", "oneOf"] {
        properties[field]["items"] = nested.clone();
    }
    Schema::compile(&schema).unwrap_or_default()
});

/// A schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("schema at {path:?}: {reason}")]
pub struct SchemaError {
    path: String,
    reason: String,
}

impl Schema {
    /// Whether a pattern can be used; why not.
    pub fn check_pattern(pattern: &str) -> Result<(), String> {
        Self::pattern_weight(pattern).map(|_| ())
    }

    /// About what a pattern takes of the memory once it is compiled, in bytes; why it cannot be.
    pub fn pattern_weight(pattern: &str) -> Result<usize, String> {
        Pattern::compile(pattern).map(|pattern| pattern.weight()).map_err(|error| error.to_string())
    }

    /// Compiles a structural schema.
    pub fn compile(source: &Value) -> Result<Self, SchemaError> {
        Self::compile_at(source, "", 0)
    }

    fn compile_at(source: &Value, path: &str, depth: usize) -> Result<Self, SchemaError> {
        let fail = |reason: String| SchemaError { path: path.to_owned(), reason };
        if depth > 64 {
            return Err(fail("nested too deeply".into()));
        }
        let Some(source) = source.as_object() else {
            return match source {
                Value::Bool(true) => Ok(Self { preserve_unknown: true, ..Self::default() }),
                _ => Err(fail("not an object".into())),
            };
        };
        if let Some(name) = source.get("$ref").and_then(Value::as_str) {
            let is_schema = name.ends_with(SCHEMA_OF_SCHEMAS);
            return Ok(Self { is_schema, preserve_unknown: !is_schema, ..Self::default() });
        }
        let flag = |key: &str| source.get(key).and_then(Value::as_bool).unwrap_or(false);
        let number = |key: &str| source.get(key).and_then(Value::as_f64);
        let count = |key: &str| source.get(key).and_then(Value::as_u64);
        let mut schema = Self {
            nullable: flag("nullable"),
            int_or_string: flag("x-kubernetes-int-or-string") || source.get("format") == Some(&"int-or-string".into()),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            minimum: number("minimum"),
            maximum: number("maximum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: number("multipleOf").filter(|step| *step > 0.0),
            length: (count("minLength"), count("maxLength")),
            item_count: (count("minItems"), count("maxItems")),
            property_count: (count("minProperties"), count("maxProperties")),
            default: source.get("default").cloned(),
            ..Self::default()
        };
        schema.kind = match source.get("type").and_then(Value::as_str) {
            None => None,
            Some("object") => Some(SchemaType::Object),
            Some("array") => Some(SchemaType::Array),
            Some("string") => Some(SchemaType::String),
            Some("integer") => Some(SchemaType::Integer),
            Some("number") => Some(SchemaType::Number),
            Some("boolean") => Some(SchemaType::Boolean),
            Some(other) => return Err(fail(format!("unknown type {other:?}"))),
        };
        schema.format = source.get("format").and_then(Value::as_str).and_then(SchemaFormat::named);
        if let Some(Value::Array(names)) = source.get("required") {
            schema.required = names.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        if let Some(Value::Array(choices)) = source.get("enum") {
            schema.choices = choices.clone();
        }
        if let Some(pattern) = source.get("pattern").and_then(Value::as_str) {
            schema.pattern = Some(Pattern::compile(pattern).map_err(|error| fail(format!("pattern: {error}")))?);
        }
        if let Some(Value::Object(properties)) = source.get("properties") {
            for (name, property) in properties {
                let compiled = match depth {
                    0 if name == "metadata" => Self::compile_metadata(property)?,
                    _ => Arc::new(Self::compile_at(property, &join(path, name), depth + 1)?),
                };
                if compiled.default.is_some() {
                    schema.defaulted.push(name.clone());
                }
                schema.properties.insert(name.clone(), compiled);
            }
        }
        match source.get("additionalProperties") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => schema.any_additional = true,
            Some(other) => schema.additional = Some(Box::new(Self::compile_at(other, &join(path, "*"), depth + 1)?)),
        }
        if let Some(items) = source.get("items") {
            schema.items = Some(Box::new(Self::compile_at(items, &format!("{path}[*]"), depth + 1)?));
        }
        schema.list = match source.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => ListType::Set,
            Some("map") => {
                let keys = source.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
                ListType::Map(keys)
            }
            _ => ListType::Atomic,
        };
        schema.merge = Self::read_merge(source);
        schema.atomic_map = source.get("x-kubernetes-map-type").is_some_and(|kind| kind == "atomic");
        let list = |key: &str| -> Result<Vec<Self>, SchemaError> {
            let entries = source.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            entries.iter().map(|entry| Self::compile_at(entry, path, depth + 1)).collect()
        };
        schema.all_of = list("allOf")?;
        schema.any_of = list("anyOf")?;
        schema.one_of = list("oneOf")?;
        if let Some(not) = source.get("not") {
            schema.not = Some(Box::new(Self::compile_at(not, path, depth + 1)?));
        }
        if flag("x-kubernetes-embedded-resource") {
            schema.embed()?;
        }
        if let Some(Value::Array(rules)) = source.get("x-kubernetes-validations") {
            schema.rules = cel::compile(rules)
                .map_err(|(index, reason)| fail(format!("x-kubernetes-validations[{index}]: {reason}")))?;
        }
        let logical = schema.all_of.iter().chain(&schema.any_of).chain(&schema.one_of);
        schema.long_patterns = schema.pattern.as_ref().is_some_and(|pattern| pattern.weight() >= LONG_PATTERN)
            || schema.children().chain(logical).chain(schema.not.as_deref()).any(|schema| schema.long_patterns);
        schema.any_rules = !schema.rules.is_empty() || schema.children().any(|schema| schema.any_rules);
        Ok(schema)
    }

    /// Takes of dates only those that this program's controllers can read: with any other they would not see the object. That of
    /// `metadata`, which is read by the server itself, stays as it is.
    #[must_use]
    pub fn with_readable_dates(mut self) -> Self {
        for (name, property) in &mut self.properties {
            if name != "metadata" {
                Arc::make_mut(property).narrow_dates();
            }
        }
        self
    }

    fn narrow_dates(&mut self) {
        if self.format == Some(SchemaFormat::DateTime) {
            self.format = Some(SchemaFormat::Instant);
        }
        let properties = self.properties.values_mut().map(Arc::make_mut);
        let inner = self.items.iter_mut().chain(&mut self.additional).chain(&mut self.not).map(|schema| &mut **schema);
        let logical = self.all_of.iter_mut().chain(&mut self.any_of).chain(&mut self.one_of);
        properties.chain(inner).chain(logical).for_each(Self::narrow_dates);
    }

    /// The schema of `metadata`, which almost all kinds have the same, and which is large: the last one serves again.
    fn compile_metadata(source: &Value) -> Result<Arc<Self>, SchemaError> {
        static LAST: Mutex<Option<(Value, Arc<Schema>)>> = Mutex::new(None);
        let last = || LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, compiled)) = last().as_ref().filter(|(of, _)| of == source) {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(Self::compile_at(source, "metadata", 1)?);
        *last() = Some((source.clone(), Arc::clone(&compiled)));
        Ok(compiled)
    }

    /// Schemas of members with a name, of other members, and of items.
    fn children(&self) -> impl Iterator<Item = &Self> {
        let inner = self.items.iter().chain(&self.additional).map(|schema| &**schema);
        self.properties.values().map(|schema| &**schema).chain(inner)
    }

    /// The schema of a member.
    fn member(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).map(|schema| &**schema).or(self.additional.as_deref())
    }

    /// Makes this the schema of an object within an object.
    fn embed(&mut self) -> Result<(), SchemaError> {
        self.embedded = true;
        for field in ["apiVersion", "kind"] {
            let text = || Arc::new(Self { kind: Some(SchemaType::String), ..Self::default() });
            self.properties.entry(field.into()).or_insert_with(text);
            if !self.required.iter().any(|name| name == field) {
                self.required.push(field.into());
            }
        }
        let meta = Self::compile_metadata(&core_schemas::METADATA)?;
        self.properties.insert("metadata".into(), meta);
        Ok(())
    }

    /// Whether there are rules to be asked, or patterns to be looked for, which may take their time.
    pub fn takes_long(&self) -> bool {
        self.any_rules || self.long_patterns
    }

    /// Whether [`Self::apply_defaults`] may do anything.
    pub fn has_defaults(&self) -> bool {
        self.children().any(|schema| schema.default.is_some() || schema.has_defaults())
    }

    /// Removes fields that the schema does not know and returns their paths.
    pub fn prune(&self, value: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        self.prune_at(value, FieldPath::Top, &mut unknown);
        unknown.sort();
        unknown
    }

    fn prune_at(&self, value: &mut Value, path: FieldPath<'_>, unknown: &mut Vec<String>) {
        if self.is_schema {
            return SCHEMAS.prune_at(value, path, unknown);
        }
        match value {
            Value::Object(map) => {
                let keep_all = self.preserve_unknown || self.any_additional || self.int_or_string;
                let is_object = self.kind == Some(SchemaType::Object) || !self.properties.is_empty();
                if !keep_all && self.additional.is_none() && is_object {
                    map.retain(|name, _| {
                        let known = self.properties.contains_key(name);
                        if !known && unknown.len() < ERRORS_MAX {
                            unknown.push(FieldPath::Field(&path, &shorten(name, 64)).text());
                        }
                        known
                    });
                }
                for (name, child) in map.iter_mut() {
                    if let Some(schema) = self.member(name) {
                        schema.prune_at(child, FieldPath::Field(&path, name), unknown);
                    }
                }
            }
            Value::Array(entries) => {
                if let Some(schema) = &self.items {
                    for (index, child) in entries.iter_mut().enumerate() {
                        schema.prune_at(child, FieldPath::Entry(&path, index), unknown);
                    }
                }
            }
            _ => {}
        }
    }

    /// Drops nulls of fields that are not nullable: a client that sends one means that there is no value.
    pub fn drop_nulls(&self, value: &mut Value) {
        if self.is_schema {
            return SCHEMAS.drop_nulls(value);
        }
        match value {
            Value::Object(map) => {
                map.retain(|name, child| {
                    let schema = self.member(name);
                    !child.is_null() || schema.is_none_or(|schema| schema.nullable)
                });
                // A map of texts has the empty text where null is written.
                let texts =
                    self.additional.as_ref().is_some_and(|additional| additional.kind == Some(SchemaType::String));
                for (_, child) in map.iter_mut().filter(|(_, child)| texts && child.is_null()) {
                    *child = Value::String(String::new());
                }
                for (name, child) in map.iter_mut() {
                    if let Some(schema) = self.member(name) {
                        schema.drop_nulls(child);
                    }
                }
            }
            Value::Array(entries) => {
                if let Some(schema) = &self.items {
                    entries.iter_mut().for_each(|child| schema.drop_nulls(child));
                }
            }
            _ => {}
        }
    }
}

/// Bytes of a path that is told. Names and nesting make one of hundreds of kilobytes, which would be copied for each of
/// a hundred thousand values.
const PATH_MAX: usize = 2048;

/// `path.name`
fn join(path: &str, name: &str) -> String {
    match path {
        "" => shorten(name, PATH_MAX),
        path if path.len() > PATH_MAX => path.to_owned(),
        path => format!("{path}.{}", shorten(name, PATH_MAX)),
    }
}

/// `path[index]`
fn entry_at(path: &str, index: usize) -> String {
    if path.len() > PATH_MAX { path.to_owned() } else { format!("{path}[{index}]") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    pub(super) fn sample() -> Schema {
        Schema::compile(&json!({
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["online"],
                    "properties": {
                        "online": {"type": "boolean"},
                        "mode": {"type": "string", "enum": ["UEFI", "legacy"], "default": "UEFI"},
                        "mac": {"type": "string", "pattern": "^[0-9a-f:]+$", "maxLength": 17},
                        "size": {"type": "integer", "minimum": 0.0, "maximum": 10.0, "format": "int32"},
                        "port": {"x-kubernetes-int-or-string": true},
                        "maybe": {"type": "string", "nullable": true},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "names": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                        "byKey": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                                  "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
                        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                        "when": {"type": "string", "format": "date-time"},
                        "one": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object",
                                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
                    }
                }
            }
        }))
        .unwrap()
    }

    #[test]
    fn unknown_fields_go_and_are_named() {
        let mut value = json!({"spec": {"online": true, "onlin": 1, "free": {"x": {"y": 1}}, "labels": {"any": "x"},
            "byKey": [{"k": "a", "z": 1}]}, "extra": 1});
        assert_eq!(sample().prune(&mut value), ["extra", "spec.byKey[0].z", "spec.onlin"]);
        assert_eq!(
            value,
            json!({"spec": {"online": true, "free": {"x": {"y": 1}}, "labels": {"any": "x"}, "byKey": [{"k": "a"}]}})
        );
    }
}

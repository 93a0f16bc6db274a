//! Structural schemas (apiextensions/v1): pruning, defaulting and validating values. Pure.
//!
//! A schema is compiled once from its OpenAPI v3 JSON; what a value violates comes back as field errors with
//! Kubernetes' paths and words.

use std::collections::{BTreeMap, HashSet};

use regex::Regex;
use serde_json::{Map, Value};

use super::status::{FieldError, FieldFault, shorten};

/// Faults reported for one object; validation stops there.
const ERRORS_MAX: usize = 64;

/// JSON type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
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

/// Formats that are checked; others are hints for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Byte,
    DateTime,
    Int32,
    Int64,
    Uuid,
    Ipv4,
    Ipv6,
    Cidr,
}

/// A compiled schema.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    kind: Option<Type>,
    nullable: bool,
    int_or_string: bool,
    preserve_unknown: bool,
    properties: BTreeMap<String, Schema>,
    additional: Option<Box<Schema>>,
    any_additional: bool,
    items: Option<Box<Schema>>,
    required: Vec<String>,
    choices: Vec<Value>,
    pattern: Option<Regex>,
    format: Option<Format>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    exclusive_minimum: bool,
    exclusive_maximum: bool,
    multiple_of: Option<f64>,
    length: (Option<u64>, Option<u64>),
    item_count: (Option<u64>, Option<u64>),
    property_count: (Option<u64>, Option<u64>),
    list: ListType,
    default: Option<Value>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Box<Schema>>,
}

/// A schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("schema at {path:?}: {reason}")]
pub struct SchemaError {
    path: String,
    reason: String,
}

impl Schema {
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
            Some("object") => Some(Type::Object),
            Some("array") => Some(Type::Array),
            Some("string") => Some(Type::String),
            Some("integer") => Some(Type::Integer),
            Some("number") => Some(Type::Number),
            Some("boolean") => Some(Type::Boolean),
            Some(other) => return Err(fail(format!("unknown type {other:?}"))),
        };
        schema.format = match source.get("format").and_then(Value::as_str) {
            Some("byte") => Some(Format::Byte),
            Some("date-time") => Some(Format::DateTime),
            Some("int32") => Some(Format::Int32),
            Some("int64") => Some(Format::Int64),
            Some("uuid") => Some(Format::Uuid),
            Some("ipv4") => Some(Format::Ipv4),
            Some("ipv6") => Some(Format::Ipv6),
            Some("cidr") => Some(Format::Cidr),
            _ => None,
        };
        if let Some(Value::Array(names)) = source.get("required") {
            schema.required = names.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        if let Some(Value::Array(choices)) = source.get("enum") {
            schema.choices = choices.clone();
        }
        if let Some(pattern) = source.get("pattern").and_then(Value::as_str) {
            schema.pattern = Some(Regex::new(pattern).map_err(|error| fail(format!("pattern: {error}")))?);
        }
        if let Some(Value::Object(properties)) = source.get("properties") {
            for (name, property) in properties {
                let compiled = Self::compile_at(property, &join(path, name), depth + 1)?;
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
        Ok(schema)
    }

    /// Removes fields that the schema does not know and returns their paths.
    pub fn prune(&self, value: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        self.prune_at(value, "", &mut unknown);
        unknown
    }

    fn prune_at(&self, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                let keep_all = self.preserve_unknown || self.any_additional || self.int_or_string;
                if !keep_all && self.additional.is_none() && (self.kind == Some(Type::Object) || self.kind.is_none()) {
                    map.retain(|name, _| {
                        let known = self.properties.contains_key(name);
                        if !known && unknown.len() < ERRORS_MAX {
                            unknown.push(join(path, &shorten(name, 64)));
                        }
                        known
                    });
                }
                for (name, child) in map.iter_mut() {
                    if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                        schema.prune_at(child, &join(path, name), unknown);
                    }
                }
            }
            Value::Array(entries) => {
                if let Some(schema) = &self.items {
                    for (index, child) in entries.iter_mut().enumerate() {
                        schema.prune_at(child, &format!("{path}[{index}]"), unknown);
                    }
                }
            }
            _ => {}
        }
    }

    /// Puts defaults where a field is missing, or null without being nullable.
    pub fn apply_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, schema) in &self.properties {
                    let missing = match map.get(name) {
                        None => true,
                        Some(Value::Null) => !schema.nullable,
                        Some(_) => false,
                    };
                    if missing && let Some(default) = &schema.default {
                        map.insert(name.clone(), default.clone());
                    }
                    if let Some(child) = map.get_mut(name) {
                        schema.apply_defaults(child);
                    }
                }
                if let Some(schema) = &self.additional {
                    for (name, child) in map.iter_mut() {
                        if !self.properties.contains_key(name) {
                            schema.apply_defaults(child);
                        }
                    }
                }
            }
            Value::Array(entries) => {
                if let Some(schema) = &self.items {
                    entries.iter_mut().for_each(|child| schema.apply_defaults(child));
                }
            }
            _ => {}
        }
    }

    /// Drops nulls of fields that are not nullable, as the typed decoders of core kinds do.
    pub fn drop_nulls(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|name, child| {
                    !child.is_null() || self.properties.get(name).is_none_or(|schema| schema.nullable)
                });
                for (name, child) in map.iter_mut() {
                    if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
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

    /// What the value violates; empty when it is valid.
    pub fn validate(&self, value: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.validate_at(value, "", &mut errors);
        errors
    }

    fn validate_at(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        if errors.len() >= ERRORS_MAX || (value.is_null() && self.nullable) {
            return;
        }
        let mut fault = |fault, detail: String| errors.push(FieldError::with_value(fault, path, value, detail));
        if !self.has_type(value) {
            let wanted = self.type_name();
            fault(FieldFault::Type, format!("{} in body must be of type {wanted}: {:?}", shown(path), type_of(value)));
            return;
        }
        if !self.choices.is_empty() && !self.choices.contains(value) {
            let choices: Vec<String> = self.choices.iter().map(Value::to_string).collect();
            fault(FieldFault::NotSupported, format!("supported values: {}", choices.join(", ")));
        }
        match value {
            Value::String(text) => self.check_string(text, path, &mut fault),
            Value::Number(number) => self.check_number(number, path, &mut fault),
            Value::Array(entries) => {
                out_of(self.item_count, entries.len(), "items", path, &mut fault);
                self.check_entries(entries, path, errors);
            }
            Value::Object(map) => {
                out_of(self.property_count, map.len(), "properties", path, &mut fault);
                self.check_fields(map, path, errors);
            }
            Value::Null | Value::Bool(_) => {}
        }
        self.check_combined(value, path, errors);
    }

    fn check_combined(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let holds = |schema: &Self| {
            let mut faults = Vec::new();
            schema.validate_at(value, path, &mut faults);
            faults.is_empty()
        };
        for schema in &self.all_of {
            schema.validate_at(value, path, errors);
        }
        let mut fault = |detail: String| errors.push(FieldError::with_value(FieldFault::Invalid, path, value, detail));
        if !self.any_of.is_empty() && !self.any_of.iter().any(holds) {
            fault(format!("{} in body must validate at least one schema (anyOf)", shown(path)));
        }
        if !self.one_of.is_empty() && self.one_of.iter().filter(|schema| holds(schema)).count() != 1 {
            fault(format!("{} in body must validate one and only one schema (oneOf)", shown(path)));
        }
        if self.not.as_deref().is_some_and(holds) {
            fault(format!("{} in body must not validate the schema (not)", shown(path)));
        }
    }

    fn has_type(&self, value: &Value) -> bool {
        if self.int_or_string {
            return value.is_string() || is_integer(value);
        }
        match self.kind {
            None => true,
            Some(Type::Object) => value.is_object(),
            Some(Type::Array) => value.is_array(),
            Some(Type::String) => value.is_string(),
            Some(Type::Integer) => is_integer(value),
            Some(Type::Number) => value.is_number(),
            Some(Type::Boolean) => value.is_boolean(),
        }
    }

    fn type_name(&self) -> &'static str {
        match self.kind {
            _ if self.int_or_string => "integer,string",
            None => "any",
            Some(Type::Object) => "object",
            Some(Type::Array) => "array",
            Some(Type::String) => "string",
            Some(Type::Integer) => "integer",
            Some(Type::Number) => "number",
            Some(Type::Boolean) => "boolean",
        }
    }

    fn check_string(&self, text: &str, path: &str, fault: &mut impl FnMut(FieldFault, String)) {
        let characters = text.chars().count() as u64;
        if let (Some(least), _) = self.length
            && characters < least
        {
            fault(FieldFault::Invalid, format!("{} in body should be at least {least} chars long", shown(path)));
        }
        if let (_, Some(most)) = self.length
            && characters > most
        {
            fault(FieldFault::TooLong, format!("may not be more than {most} bytes"));
        }
        if let Some(pattern) = &self.pattern
            && !pattern.is_match(text)
        {
            fault(FieldFault::Invalid, format!("{} in body should match '{pattern}'", shown(path)));
        }
        let (name, good) = match self.format {
            Some(Format::Byte) => ("byte", is_base64(text)),
            Some(Format::DateTime) => ("date-time", text.parse::<jiff::Timestamp>().is_ok()),
            Some(Format::Uuid) => ("uuid", uuid::Uuid::try_parse(text).is_ok()),
            Some(Format::Ipv4) => ("ipv4", text.parse::<std::net::Ipv4Addr>().is_ok()),
            Some(Format::Ipv6) => ("ipv6", text.parse::<std::net::Ipv6Addr>().is_ok()),
            Some(Format::Cidr) => ("cidr", text.contains('/') && text.parse::<ipnetwork::IpNetwork>().is_ok()),
            Some(Format::Int32 | Format::Int64) | None => return,
        };
        if !good {
            fault(FieldFault::Invalid, format!("{} in body must be of type {name}", shown(path)));
        }
    }

    fn check_number(&self, number: &serde_json::Number, path: &str, fault: &mut impl FnMut(FieldFault, String)) {
        let value = number.as_f64().unwrap_or(f64::NAN);
        let in_width = match self.format {
            Some(Format::Int32) => number.as_i64().is_none_or(|value| i32::try_from(value).is_ok()),
            Some(Format::Int64) => !number.is_u64() || number.as_i64().is_some(),
            _ => true,
        };
        if !in_width {
            let width = if self.format == Some(Format::Int32) { "int32" } else { "int64" };
            fault(FieldFault::Invalid, format!("{} in body must be of type {width}", shown(path)));
        }
        if let Some(least) = self.minimum
            && (value < least || (self.exclusive_minimum && value == least))
        {
            let words = if self.exclusive_minimum { "greater than" } else { "greater than or equal to" };
            fault(FieldFault::Invalid, format!("{} in body should be {words} {least}", shown(path)));
        }
        if let Some(most) = self.maximum
            && (value > most || (self.exclusive_maximum && value == most))
        {
            let words = if self.exclusive_maximum { "less than" } else { "less than or equal to" };
            fault(FieldFault::Invalid, format!("{} in body should be {words} {most}", shown(path)));
        }
        if let Some(step) = self.multiple_of
            && (value / step).fract().abs() > 1e-9
        {
            fault(FieldFault::Invalid, format!("{} in body should be a multiple of {step}", shown(path)));
        }
    }

    fn check_entries(&self, entries: &[Value], path: &str, errors: &mut Vec<FieldError>) {
        if let Some(schema) = &self.items {
            for (index, entry) in entries.iter().enumerate() {
                schema.validate_at(entry, &format!("{path}[{index}]"), errors);
                if errors.len() >= ERRORS_MAX {
                    return;
                }
            }
        }
        let mut seen = HashSet::new();
        for (index, entry) in entries.iter().enumerate() {
            let identity = match &self.list {
                ListType::Atomic => return,
                ListType::Set => entry.to_string(),
                ListType::Map(keys) => {
                    let parts: Vec<&Value> = keys.iter().map(|key| entry.get(key).unwrap_or(&Value::Null)).collect();
                    Value::from(parts.into_iter().cloned().collect::<Vec<_>>()).to_string()
                }
            };
            if !seen.insert(identity) {
                errors.push(FieldError::with_value(FieldFault::Duplicate, format!("{path}[{index}]"), entry, ""));
            }
        }
    }

    fn check_fields(&self, map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
        for name in &self.required {
            if !map.contains_key(name) {
                errors.push(FieldError::required(join(path, name), ""));
            }
        }
        for (name, child) in map {
            if errors.len() >= ERRORS_MAX {
                return;
            }
            if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                schema.validate_at(child, &join(path, name), errors);
            }
        }
    }
}

fn out_of(
    (least, most): (Option<u64>, Option<u64>),
    count: usize,
    what: &str,
    path: &str,
    fault: &mut impl FnMut(FieldFault, String),
) {
    let count = count as u64;
    if let Some(least) = least.filter(|least| count < *least) {
        fault(FieldFault::Invalid, format!("{} in body should have at least {least} {what}", shown(path)));
    }
    if let Some(most) = most.filter(|most| count > *most) {
        fault(FieldFault::TooMany, format!("{count}: must have at most {most} {what}"));
    }
}

fn is_integer(value: &Value) -> bool {
    // Go's JSON writes 3.0 for a whole float; Kubernetes takes that as an integer.
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

fn is_base64(text: &str) -> bool {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "object" } else { path }
}

/// `path.name`, or `path[name]` when the name is no plain identifier, as Kubernetes writes map keys.
pub(super) fn join(path: &str, name: &str) -> String {
    if name.contains(['.', '/']) {
        format!("{path}[{name}]")
    } else if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Schema {
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
    fn each_violation_is_named_with_its_path() {
        let cases: &[(Value, &[(&str, FieldFault)])] = &[
            (json!({"spec": {"online": true}}), &[]),
            (json!({}), &[("spec", FieldFault::Required)]),
            (json!({"spec": {}}), &[("spec.online", FieldFault::Required)]),
            (json!({"spec": {"online": "yes"}}), &[("spec.online", FieldFault::Type)]),
            (json!({"spec": {"online": null}}), &[("spec.online", FieldFault::Type)]),
            (json!({"spec": {"online": true, "maybe": null}}), &[]),
            (json!({"spec": {"online": true, "mode": "BIOS"}}), &[("spec.mode", FieldFault::NotSupported)]),
            (json!({"spec": {"online": true, "mac": "zz"}}), &[("spec.mac", FieldFault::Invalid)]),
            (json!({"spec": {"online": true, "mac": "00:00:00:00:00:00:00"}}), &[("spec.mac", FieldFault::TooLong)]),
            (json!({"spec": {"online": true, "size": -1}}), &[("spec.size", FieldFault::Invalid)]),
            (json!({"spec": {"online": true, "size": 1.5}}), &[("spec.size", FieldFault::Type)]),
            (json!({"spec": {"online": true, "size": 3.0}}), &[]),
            (
                json!({"spec": {"online": true, "size": 99_999_999_999_i64}}),
                &[("spec.size", FieldFault::Invalid), ("spec.size", FieldFault::Invalid)],
            ),
            (json!({"spec": {"online": true, "port": "http"}}), &[]),
            (json!({"spec": {"online": true, "port": true}}), &[("spec.port", FieldFault::Type)]),
            (json!({"spec": {"online": true, "names": ["a", "a"]}}), &[("spec.names[1]", FieldFault::Duplicate)]),
            (
                json!({"spec": {"online": true, "byKey": [{"k": "a"}, {"k": "a"}]}}),
                &[("spec.byKey[1]", FieldFault::Duplicate)],
            ),
            (json!({"spec": {"online": true, "labels": {"a.b/c": 1}}}), &[("spec.labels[a.b/c]", FieldFault::Type)]),
            (json!({"spec": {"online": true, "when": "tomorrow"}}), &[("spec.when", FieldFault::Invalid)]),
            (json!({"spec": {"online": true, "one": {"a": 1, "b": 2}}}), &[("spec.one", FieldFault::Invalid)]),
            (json!({"spec": {"online": true, "one": {"a": 1}}}), &[]),
            (json!([]), &[("", FieldFault::Type)]),
        ];
        for (value, wanted) in cases {
            let found = sample().validate(value);
            let found: Vec<(&str, FieldFault)> = found.iter().map(|e| (e.path.as_str(), e.fault)).collect();
            assert_eq!(&found, wanted, "{value}");
        }
    }

    #[test]
    fn unknown_fields_go_and_are_named() {
        let mut value = json!({"spec": {"online": true, "onlin": 1, "free": {"x": {"y": 1}}, "labels": {"any": "x"},
            "byKey": [{"k": "a", "z": 1}]}, "extra": 1});
        assert_eq!(sample().prune(&mut value), ["extra", "spec.onlin", "spec.byKey[0].z"]);
        assert_eq!(
            value,
            json!({"spec": {"online": true, "free": {"x": {"y": 1}}, "labels": {"any": "x"}, "byKey": [{"k": "a"}]}})
        );
    }

    #[test]
    fn defaults_fill_what_is_missing_or_null() {
        for given in [json!({"spec": {"online": true}}), json!({"spec": {"online": true, "mode": null}})] {
            let mut value = given.clone();
            sample().apply_defaults(&mut value);
            assert_eq!(value["spec"]["mode"], "UEFI", "{given}");
        }
        let mut chosen = json!({"spec": {"mode": "legacy"}});
        sample().apply_defaults(&mut chosen);
        assert_eq!(chosen["spec"]["mode"], "legacy");
    }
}

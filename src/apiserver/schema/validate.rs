//! What a value violates, in Kubernetes' words.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::status::{FieldError, FieldFault};
use super::{ERRORS_MAX, Format, ListType, SCHEMAS, Schema, Type, join};

impl Schema {
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
        // Some fields hold either a schema or a boolean.
        if self.is_schema && !value.is_boolean() {
            return SCHEMAS.validate_at(value, path, errors);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::schema::tests::sample;
    use serde_json::json;

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
}

//! Validation of values against a schema, in Kubernetes' words.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::super::answers::status::{FieldError, FieldFault, shorten};
use super::pattern::SearchScope;
use super::{ERRORS_MAX, ListType, SCHEMAS, Schema, SchemaType, entry_at, join};

/// Values that a fault names as those that could be.
const CHOICES_TOLD: usize = 256;

/// How Kubernetes writes a path that is none.
pub(super) const NO_PATH: &str = "<nil>";

impl Schema {
    /// What the value violates; empty when it is valid.
    pub fn validate(&self, value: &Value) -> Vec<FieldError> {
        self.validate_change(value, None)
    }

    /// What a changed value violates. Parts that were as bad before are let pass, so that a stricter schema does not
    /// lock objects that are there (KEP-4008).
    pub fn validate_change(&self, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let looking = SearchScope::begin();
        self.validate_at(value, old, "", &mut errors);
        errors.truncate(ERRORS_MAX);
        if let Some(path) = looking.stopped() {
            let detail = "the patterns of the schema would take too long to be looked for in so much text: make it \
                          shorter, or the patterns simpler";
            errors.push(FieldError::new(FieldFault::Unchecked, place(&path), detail));
        }
        if let Some(path) = looking.lost() {
            let detail = "checking so large a value by this schema would take too long";
            errors.push(FieldError::new(FieldFault::Unchecked, place(&path), detail));
        }
        errors
    }

    pub(super) fn validate_at(&self, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
        if errors.len() >= ERRORS_MAX || (value.is_null() && self.nullable) || old == Some(value) {
            return;
        }
        // What a schema says again and again, in alternatives and lists of names, is looked at for each value.
        if !SearchScope::visit(1 + self.choices.len() / 8 + self.required.len() / 8, path) {
            return;
        }
        // Some fields hold either a schema or a boolean.
        if self.is_schema && !value.is_boolean() {
            return SCHEMAS.validate_at(value, old, path, errors);
        }
        if !self.has_type(value) {
            let (wanted, found) = (self.type_name(), type_of(value));
            let detail = format!("{} in body must be of type {wanted}: {found:?}", shown(path));
            errors.push(FieldError::with_value(FieldFault::Type, place(path), &found.into(), detail));
            return;
        }
        let mut fault = |fault, detail: String| errors.push(FieldError::with_value(fault, place(path), value, detail));
        if !self.choices.is_empty() && !self.choices.contains(value) {
            let told = self.choices.iter().take(CHOICES_TOLD);
            let choices: Vec<String> = told.map(|choice| shorten(&choice.to_string(), 128)).collect();
            fault(FieldFault::NotSupported, format!("supported values: {}", choices.join(", ")));
        }
        match value {
            Value::String(text) => self.check_string(text, path, &mut fault),
            Value::Number(number) => self.check_number(number, path, &mut fault),
            Value::Array(entries) => {
                out_of(self.item_count, entries.len(), "items", path, errors);
                self.check_entries(entries, old, path, errors);
            }
            Value::Object(map) => {
                out_of(self.property_count, map.len(), "properties", path, errors);
                self.check_fields(map, old, path, errors);
            }
            Value::Null | Value::Bool(_) => {}
        }
        self.check_combined(value, path, errors);
    }

    fn check_combined(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let faults = |schema: &Self| {
            let mut faults = Vec::new();
            schema.validate_at(value, None, path, &mut faults);
            faults
        };
        // The alternative that is nearest tells what is missing.
        let tried = |schemas: &[Self]| -> (usize, Vec<FieldError>) {
            let all: Vec<Vec<FieldError>> = schemas.iter().map(faults).collect();
            let valid = all.iter().filter(|faults| faults.is_empty()).count();
            (valid, all.into_iter().min_by_key(Vec::len).unwrap_or_default())
        };
        let violated = |rule: String| {
            let detail = format!("{:?} {rule}", shown(path));
            FieldError::with_value(FieldFault::Invalid, NO_PATH, &"".into(), detail)
        };
        if !self.any_of.is_empty() {
            let (valid, nearest) = tried(&self.any_of);
            if valid == 0 {
                errors.push(violated("must validate at least one schema (anyOf)".into()));
                errors.extend(nearest);
            }
        }
        if !self.one_of.is_empty() {
            let (valid, nearest) = tried(&self.one_of);
            let rule = "must validate one and only one schema (oneOf). Found";
            if valid == 0 {
                errors.push(violated(format!("{rule} none valid")));
                errors.extend(nearest);
            } else if valid > 1 {
                errors.push(violated(format!("{rule} {valid} valid alternatives")));
            }
        }
        let before = errors.len();
        for schema in &self.all_of {
            schema.validate_at(value, None, path, errors);
        }
        if errors.len() > before {
            errors.push(violated("must validate all the schemas (allOf)".into()));
        }
        if self.not.as_deref().is_some_and(|schema| faults(schema).is_empty()) {
            errors.push(violated("must not validate the schema (not)".into()));
        }
    }

    fn has_type(&self, value: &Value) -> bool {
        if self.int_or_string {
            return value.is_string() || is_integer(value);
        }
        match self.kind {
            None => true,
            Some(SchemaType::Object) => value.is_object(),
            Some(SchemaType::Array) => value.is_array(),
            Some(SchemaType::String) => value.is_string(),
            Some(SchemaType::Integer) => is_integer(value),
            Some(SchemaType::Number) => value.is_number(),
            Some(SchemaType::Boolean) => value.is_boolean(),
        }
    }

    fn type_name(&self) -> &'static str {
        match self.kind {
            _ if self.int_or_string => "integer,string",
            None => "any",
            Some(SchemaType::Object) => "object",
            Some(SchemaType::Array) => "array",
            Some(SchemaType::String) => "string",
            Some(SchemaType::Integer) => "integer",
            Some(SchemaType::Number) => "number",
            Some(SchemaType::Boolean) => "boolean",
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
            && !pattern.holds(text, path)
        {
            fault(FieldFault::Invalid, format!("{} in body should match '{pattern}'", shown(path)));
        }
        if let Some(format) = self.format
            && !format.holds(text)
        {
            let name = format.name();
            fault(FieldFault::Type, format!("{} in body must be of type {name}: {text:?}", shown(path)));
        }
    }

    fn check_number(&self, number: &serde_json::Number, path: &str, fault: &mut impl FnMut(FieldFault, String)) {
        let value = number.as_f64().unwrap_or(f64::NAN);
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

    fn check_entries(&self, entries: &[Value], old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
        if let Some(schema) = &self.items {
            let former = self.former(old);
            for (index, entry) in entries.iter().enumerate() {
                schema.validate_at(entry, former.of(entry), &entry_at(path, index), errors);
                if errors.len() >= ERRORS_MAX {
                    return;
                }
            }
        }
        let mut seen = HashSet::new();
        for (index, entry) in entries.iter().enumerate() {
            let (identity, told) = match &self.list {
                ListType::Atomic => return,
                ListType::Set => (entry.to_string(), entry.to_string()),
                ListType::Map(keys) => {
                    let own: Map<String, Value> =
                        keys.iter().filter_map(|key| Some((key.clone(), entry.get(key)?.clone()))).collect();
                    let own = Value::Object(own).to_string();
                    (own.clone(), own)
                }
            };
            if !seen.insert(identity) {
                if errors.len() >= ERRORS_MAX {
                    return;
                }
                let path = entry_at(path, index);
                errors.push(FieldError::new(FieldFault::Duplicate, path, shorten(&told, 128)));
            }
        }
    }

    /// The former selves of a list's entries, when entries have keys.
    pub(super) fn former<'o>(&'o self, old: Option<&'o Value>) -> FormerEntries<'o> {
        let mut former = FormerEntries { keys: &[], by_key: HashMap::new() };
        if let (ListType::Map(keys), Some(entries)) = (&self.list, old.and_then(Value::as_array)) {
            former.keys = keys;
            for entry in entries {
                former.by_key.entry(identity(keys, entry)).or_insert(entry);
            }
        }
        former
    }

    fn check_fields(&self, map: &Map<String, Value>, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
        for name in &self.required {
            if errors.len() >= ERRORS_MAX {
                return;
            }
            if !map.contains_key(name) {
                errors.push(FieldError::required(join(path, name), ""));
            }
        }
        for (name, child) in map {
            if errors.len() >= ERRORS_MAX {
                return;
            }
            if let Some(schema) = self.member(name) {
                schema.validate_at(child, old.and_then(|old| old.get(name)), &join(path, name), errors);
            }
        }
    }
}

/// The entries that a list had before, by their keys.
pub(super) struct FormerEntries<'o> {
    keys: &'o [String],
    by_key: HashMap<String, &'o Value>,
}

impl<'o> FormerEntries<'o> {
    /// What an entry was before.
    pub(super) fn of(&self, entry: &Value) -> Option<&'o Value> {
        if self.by_key.is_empty() { None } else { self.by_key.get(&identity(self.keys, entry)).copied() }
    }
}

/// What the keys of an entry are, as a text.
fn identity(keys: &[String], entry: &Value) -> String {
    let own = keys.iter().map(|key| entry.get(key).map(Value::to_string).unwrap_or_default());
    own.collect::<Vec<_>>().join(",")
}

fn out_of(
    (least, most): (Option<u64>, Option<u64>),
    count: usize,
    what: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let count = count as u64;
    if let Some(least) = least.filter(|least| count < *least) {
        let detail = format!("{} in body should have at least {least} {what}", shown(path));
        errors.push(FieldError::with_value(FieldFault::Invalid, place(path), &count.into(), detail));
    }
    if let Some(most) = most.filter(|most| count > *most) {
        let detail = format!("{count}: must have at most {most} items");
        errors.push(FieldError::new(FieldFault::TooMany, place(path), detail));
    }
}

pub(super) fn is_integer(value: &Value) -> bool {
    // Go's JSON writes 3.0 for a whole float; Kubernetes takes that as an integer.
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

pub(super) fn type_of(value: &Value) -> &'static str {
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

fn place(path: &str) -> &str {
    if path.is_empty() { NO_PATH } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::schema::tests::sample;
    use serde_json::json;

    fn compiled(source: Value) -> Schema {
        Schema::compile(&source).unwrap()
    }

    #[test]
    fn entries_find_their_former_selves_however_many_there_are() {
        let schema = compiled(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "integer"}, "v": {"type": "string", "maxLength": 1}}}}),
        );
        let entries = |v: &str| (0..30_000).map(|k| json!({"k": k, "v": v})).collect::<Value>();
        let (old, mut new) = (entries("too long"), entries("too long"));
        new.as_array_mut().unwrap().reverse();
        // What was as bad before is let pass, wherever it stands now.
        assert!(schema.validate_change(&new, Some(&old)).is_empty());
        new[0]["v"] = "longer still".into();
        let faults = schema.validate_change(&new, Some(&old));
        assert!(faults.len() == 1 && faults[0].path == "[0].v", "{faults:?}");
        // A key that is missing is not the same as one that is there.
        let twin = compiled(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
            "items": {"type": "object", "properties": {"v": {"type": "string", "maxLength": 1}}}}),
        );
        let (old, new) = (json!([{"a": "x", "v": "long"}]), json!([{"b": "x", "v": "long"}]));
        assert_eq!(twin.validate_change(&new, Some(&old)).len(), 1);
    }

    #[test]
    fn what_takes_too_long_to_be_checked_is_refused_and_not_let_pass() {
        let choices: Vec<Value> = (0..20_000).map(|one| one.into()).collect();
        let many = compiled(json!({"type": "array", "items": {"type": "integer", "enum": choices}}));
        let alternatives: Vec<Value> = (0..500).map(|one| json!({"maximum": one, "minimum": one})).collect();
        let any = compiled(json!({"type": "array", "items": {"type": "integer", "anyOf": alternatives}}));
        let list: Value = vec![499; 90_000].into();
        for schema in [many, any] {
            assert!(schema.validate(&json!([1, 2, 499])).is_empty());
            let faults = schema.validate(&list);
            assert!(faults.len() == 1 && faults[0].fault == FieldFault::Unchecked, "{faults:.300?}");
        }
        let plain =
            compiled(json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}}));
        assert!(plain.validate(&vec![json!({"a": 1}); 50_000].into()).is_empty());
    }

    #[test]
    fn a_path_of_any_length_is_told_in_short() {
        let mut schema = json!({"type": "array", "items": {"type": "integer", "maximum": 5}});
        let mut value = json!(vec![9; 90_000]);
        let name = "n".repeat(4000);
        for _ in 0..50 {
            schema = json!({"type": "object", "additionalProperties": schema});
            value = json!({ &*name: value });
        }
        let faults = compiled(schema.clone()).validate(&value);
        assert!(faults.len() == ERRORS_MAX && faults.iter().all(|fault| fault.path.len() < 8192));
        assert!(compiled(schema).prune(&mut value).is_empty());
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
            (json!({"spec": {"online": true, "size": 99_999_999_999_i64}}), &[("spec.size", FieldFault::Invalid)]),
            (json!({"spec": {"online": true, "port": "http"}}), &[]),
            (json!({"spec": {"online": true, "port": true}}), &[("spec.port", FieldFault::Type)]),
            (json!({"spec": {"online": true, "names": ["a", "a"]}}), &[("spec.names[1]", FieldFault::Duplicate)]),
            (
                json!({"spec": {"online": true, "byKey": [{"k": "a"}, {"k": "a"}]}}),
                &[("spec.byKey[1]", FieldFault::Duplicate)],
            ),
            (json!({"spec": {"online": true, "labels": {"a.b/c": 1}}}), &[("spec.labels.a.b/c", FieldFault::Type)]),
            (json!({"spec": {"online": true, "when": "tomorrow"}}), &[("spec.when", FieldFault::Type)]),
            (json!({"spec": {"online": true, "one": {"a": 1, "b": 2}}}), &[(NO_PATH, FieldFault::Invalid)]),
            (json!({"spec": {"online": true, "one": {"a": 1}}}), &[]),
            (json!([]), &[(NO_PATH, FieldFault::Type)]),
        ];
        for (value, wanted) in cases {
            let found = sample().validate(value);
            let found: Vec<(&str, FieldFault)> = found.iter().map(|e| (e.path.as_str(), e.fault)).collect();
            assert_eq!(&found, wanted, "{value}");
        }
    }
}

//! Defaults: what is missing, or null without being nullable, is put in, as far as there is room. Pure.
//!
//! A schema may change after its objects were written, and a default within the items of a list counts as often as there
//! are items: what an object becomes is not bounded by what it was, nor by the schema.

use serde_json::Value;

use super::Schema;

/// Bytes of names and texts that defaults may add to one value: as many as an object may have.
pub(in crate::apiserver) const BYTES_MAX: usize = crate::store::OBJECT_LIMIT;
/// Values that defaults may add to one value.
pub(in crate::apiserver) const VALUES_MAX: usize = 100_000;

/// What defaults may still add.
struct DefaultsRoom {
    bytes: usize,
    values: usize,
    full: bool,
}

impl DefaultsRoom {
    /// Whether there is room for a value under a name. Once there was none, there is none for anything.
    fn take(&mut self, name: &str, value: &Value) -> bool {
        self.full = self.full || !(self.take_text(name) && self.take_value(value));
        !self.full
    }

    fn take_text(&mut self, text: &str) -> bool {
        let left = self.bytes.checked_sub(text.len());
        self.bytes = left.unwrap_or(0);
        left.is_some()
    }

    fn take_value(&mut self, value: &Value) -> bool {
        let Some(left) = self.values.checked_sub(1) else { return false };
        self.values = left;
        match value {
            Value::String(text) => self.take_text(text),
            Value::Array(entries) => entries.iter().all(|entry| self.take_value(entry)),
            Value::Object(map) => map.iter().all(|(name, child)| self.take_text(name) && self.take_value(child)),
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
        }
    }
}

impl Schema {
    /// Puts defaults where a field is missing, or null without being nullable; whether there was room for all of them
    /// ([`BYTES_MAX`], [`VALUES_MAX`]). The rest is left out.
    pub fn apply_defaults(&self, value: &mut Value) -> bool {
        let mut room = DefaultsRoom { bytes: BYTES_MAX, values: VALUES_MAX, full: false };
        self.complete(value, &mut room);
        !room.full
    }

    fn complete(&self, value: &mut Value, room: &mut DefaultsRoom) {
        if room.full {
            return;
        }
        match value {
            Value::Object(map) => {
                // A schema may have many more properties than the object has members, and the object be one of many.
                for name in &self.defaulted {
                    let Some(schema) = self.properties.get(name) else { continue };
                    let missing = match map.get(name) {
                        None => true,
                        Some(Value::Null) => !schema.nullable,
                        Some(_) => false,
                    };
                    if missing && let Some(default) = &schema.default {
                        if !room.take(name, default) {
                            return;
                        }
                        map.insert(name.clone(), default.clone());
                    }
                }
                for (name, child) in map.iter_mut() {
                    if let Some(schema) = self.member(name) {
                        schema.complete(child, room);
                    }
                }
            }
            Value::Array(entries) => {
                if let Some(schema) = &self.items {
                    entries.iter_mut().for_each(|child| schema.complete(child, room));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::sample;
    use super::*;

    #[test]
    fn defaults_fill_what_is_missing_or_null() {
        for given in [json!({"spec": {"online": true}}), json!({"spec": {"online": true, "mode": null}})] {
            let mut value = given.clone();
            assert!(sample().apply_defaults(&mut value));
            assert_eq!(value["spec"]["mode"], "UEFI", "{given}");
        }
        let mut chosen = json!({"spec": {"mode": "legacy"}});
        sample().apply_defaults(&mut chosen);
        assert_eq!(chosen["spec"]["mode"], "legacy");
    }

    /// Values in a value, itself among them, and bytes of its names and texts.
    fn size(value: &Value) -> (usize, usize) {
        let add = |(values, bytes): (usize, usize), more: (usize, usize)| (values + more.0, bytes + more.1);
        match value {
            Value::String(text) => (1, text.len()),
            Value::Array(entries) => entries.iter().map(size).fold((1, 0), add),
            Value::Object(map) => map.iter().map(|(name, child)| add(size(child), (0, name.len()))).fold((1, 0), add),
            _ => (1, 0),
        }
    }

    #[test]
    fn defaults_make_no_value_huge() {
        let list = |item: Value| json!({"type": "array", "items": {"type": "object", "properties": {"a": item}}});
        let text = |length: usize| json!({"type": "string", "default": "x".repeat(length)});
        let filled = json!({"type": "array", "items": {"type": "integer"}, "default": vec![0; 1000]});
        let map =
            json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"a": text(10_000)}}});
        // Each default brings another one.
        let nested =
            (0..20).fold(text(1), |inner, _| json!({"type": "object", "default": {}, "properties": {"a": inner}}));
        for (schema, given, whole) in [
            (list(text(10_000)), json!(vec![json!({}); 3000]), false),
            (list(text(10_000)), json!(vec![json!({}); 100]), true),
            (list(text(1)), json!(vec![json!({}); 150_000]), false),
            (list(text(1)), json!(vec![json!({"a": null}); 150_000]), false),
            (list(filled), json!(vec![json!({}); 3000]), false),
            (list(list(nested.clone())), json!([{"a": vec![json!({}); 10_000]}]), false),
            (nested, json!({}), true),
            (map, (0..3000).map(|one| (one.to_string(), json!({}))).collect(), false),
        ] {
            let schema = json!({"type": "object", "properties": {"l": schema}});
            let mut value = json!({ "l": given });
            let before = size(&value);
            assert_eq!(Schema::compile(&schema).unwrap().apply_defaults(&mut value), whole, "{schema}");
            let after = size(&value);
            let added = (after.0 - before.0, after.1 - before.1);
            assert!(added.1 > 0 && added.0 <= VALUES_MAX && added.1 <= BYTES_MAX, "{added:?}");
        }
    }
}

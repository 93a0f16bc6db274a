//! How large an object may be that controllers read: by the objects and lists in it, for each of them takes some hundred bytes once
//! it is parsed, however short its text is.

use std::sync::Arc;

use serde_json::Value;

use crate::apiserver::{AdmissionOperation, AdmissionRequest, AdmissionRules, FieldError};
use crate::json_marks::marks;

/// Objects and lists in what a client says of an object; hundreds are many.
const CONTAINERS_MAX: usize = 2048;
/// Values in it, of which a status of a pool or template has some for each machine.
const VALUES_MAX: usize = 32_768;
/// The same of a text that is read, with who wrote what.
const READ_MAX: usize = 16_384;
/// And its values.
const READ_VALUES_MAX: usize = 98_304;

/// The rule.
pub fn rule() -> AdmissionRules {
    Arc::new(admit)
}

fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let reason = || format!("has more than {CONTAINERS_MAX} objects and lists, or {VALUES_MAX} values in it");
    match overgrown(request.object, request.old) {
        Some(field) => Err(vec![FieldError::forbidden(field, reason())]),
        None => Ok(()),
    }
}

/// The part of an object that has too much in it. What is too large already may get smaller.
fn overgrown(object: &Value, old: Option<&Value>) -> Option<&'static str> {
    ["spec", "status"].into_iter().find(|field| {
        let (mut now, mut before) = (JsonSize::default(), JsonSize::default());
        now.add(&object[*field]);
        if let Some(old) = old {
            before.add(&old[*field]);
        }
        now.containers > CONTAINERS_MAX.max(before.containers) || now.values > VALUES_MAX.max(before.values)
    })
}

#[derive(Default)]
struct JsonSize {
    containers: usize,
    values: usize,
}

impl JsonSize {
    fn add(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::Object(map) => {
                self.containers += 1;
                map.values().for_each(|value| self.add(value));
            }
            Value::Array(list) => {
                self.containers += 1;
                list.iter().for_each(|value| self.add(value));
            }
            _ => {}
        }
    }
}

/// Whether the text of an object has more in it than is read: an API server of somebody else's has other rules.
pub fn is_too_large(json: &str) -> bool {
    let (mut count, mut values) = (0, 0);
    for mark in marks(json.as_bytes()) {
        count += usize::from(matches!(mark, b'{' | b'['));
        values += usize::from(mark == b',');
    }
    count > READ_MAX || values > READ_VALUES_MAX
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_too_large_is_not_stored_and_not_read() {
        let of = |field: &str, count: usize| json!({"metadata": {"name": "x"}, field: {"a": vec![json!({}); count]}});
        let (small, large, larger) = (of("spec", 10), of("spec", CONTAINERS_MAX), of("spec", CONTAINERS_MAX + 1));
        for (old, new, wanted) in [
            (None, &small, None),
            (None, &large, Some("spec")),
            (None, &of("spec", CONTAINERS_MAX - 2), None),
            (None, &of("status", CONTAINERS_MAX), Some("status")),
            (Some(&small), &large, Some("spec")),
            (Some(&large), &large, None),
            (Some(&large), &small, None),
            (Some(&large), &larger, Some("spec")),
            (None, &json!({"spec": {"a": vec![0; VALUES_MAX]}}), Some("spec")),
            (None, &json!({"spec": {"a": vec![0; VALUES_MAX - 2]}}), None),
        ] {
            assert_eq!(overgrown(new, old), wanted);
        }
        for (text, wanted) in [
            (format!("[{}]", vec!["{}"; READ_MAX].join(",")), true),
            (format!("[{}]", vec!["{}"; READ_MAX - 1].join(",")), false),
            (format!("[{}]", vec!["0"; READ_VALUES_MAX + 2].join(",")), true),
            (format!("[\"\\\"{}\"]", "{".repeat(READ_MAX)), false),
        ] {
            assert_eq!(is_too_large(&text), wanted);
        }
    }
}

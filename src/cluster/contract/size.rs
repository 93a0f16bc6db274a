//! How large an object may be that controllers read: by the objects and lists in it, for each of them takes some hundred bytes once
//! it is parsed, however short its text is.

use std::sync::Arc;

use serde_json::Value;

use crate::apiserver::{Admission, AdmissionRequest, FieldError, Operation};

/// Objects and lists in what a client says of an object; hundreds are many.
const CONTAINERS_MAX: usize = 2048;
/// The same of a text that is read, with who wrote what.
const READ_MAX: usize = 16_384;

/// Rules for objects of these kinds.
pub fn rules(kinds: &[&'static str]) -> Vec<(&'static str, Admission)> {
    kinds.iter().map(|kind| (*kind, Arc::new(admit) as Admission)).collect()
}

fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.operation == Operation::Delete {
        return Ok(());
    }
    let why = || format!("has more than {CONTAINERS_MAX} objects and lists in it");
    match overgrown(request.object, request.old) {
        Some(field) => Err(vec![FieldError::forbidden(field, why())]),
        None => Ok(()),
    }
}

/// The part of an object that has too much in it. What is too large already may get smaller.
fn overgrown(object: &Value, old: Option<&Value>) -> Option<&'static str> {
    let before = |field: &str| old.map_or(0, |old| containers(&old[field]));
    ["spec", "status"].into_iter().find(|field| containers(&object[*field]) > CONTAINERS_MAX.max(before(field)))
}

fn containers(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(containers).sum::<usize>(),
        Value::Array(list) => 1 + list.iter().map(containers).sum::<usize>(),
        _ => 0,
    }
}

/// Whether the text of an object has more in it than is read: an API server of somebody else's has other rules.
pub fn is_too_large(json: &str) -> bool {
    let (mut count, mut in_string, mut is_escaped) = (0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => count += 1,
            _ => {}
        }
    }
    count > READ_MAX
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
        ] {
            assert_eq!(overgrown(new, old), wanted);
        }
        for (text, wanted) in [
            (format!("[{}]", vec!["{}"; READ_MAX].join(",")), true),
            (format!("[{}]", vec!["{}"; READ_MAX - 1].join(",")), false),
            (format!("[\"\\\"{}\"]", "{".repeat(READ_MAX)), false),
        ] {
            assert_eq!(is_too_large(&text), wanted);
        }
    }
}

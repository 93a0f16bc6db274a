//! Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and Kubernetes' strategic merge patch. Pure.

use http::StatusCode;
use json_patch::PatchOperation;
use serde_json::{Map, Value};

use super::body::{DEPTH_MAX, parse_json, parse_yaml, too_deep};
use super::registry::Resource;
use super::status::ApiError;

/// Operations in one JSON patch.
const OPERATIONS_MAX: usize = 10_000;
/// Operations that move or copy: each may double the object.
const COPIES_MAX: usize = 100;
/// Values in a patched object.
const VALUES_MAX: usize = 200_000;

/// A patch as the client sent it.
#[derive(Debug)]
pub(super) enum Patch {
    /// `application/merge-patch+json`
    Merge(Value),
    /// `application/json-patch+json`
    Json(Vec<PatchOperation>),
    /// `application/strategic-merge-patch+json`
    Strategic(Value),
}

/// Content types that are patches of this resource.
fn accepted(resource: &Resource) -> &'static str {
    if resource.core {
        "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json"
    } else {
        "application/json-patch+json, application/merge-patch+json"
    }
}

impl Patch {
    /// Reads a patch by its content type.
    pub(super) fn parse(resource: &Resource, content_type: &str, body: &[u8]) -> Result<Self, ApiError> {
        let object = |value: Value| {
            if value.is_object() { Ok(value) } else { Err(ApiError::bad_request("a patch of this type is an object")) }
        };
        match content_type {
            "application/merge-patch+json" => Ok(Self::Merge(object(parse_json(body)?.value)?)),
            "application/strategic-merge-patch+json" if resource.core => {
                Ok(Self::Strategic(object(parse_json(body)?.value)?))
            }
            "application/json-patch+json" => {
                let operations: Vec<PatchOperation> = serde_json::from_slice(body)
                    .map_err(|error| ApiError::bad_request(format!("the patch cannot be read: {error}")))?;
                if operations.len() > OPERATIONS_MAX {
                    return Err(ApiError::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "RequestEntityTooLarge",
                        format!("a JSON patch may have {OPERATIONS_MAX} operations, this has {}", operations.len()),
                    ));
                }
                Ok(Self::Json(operations))
            }
            "application/apply-patch+yaml" => {
                parse_yaml(body)?;
                Err(ApiError::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "UnsupportedMediaType",
                    format!(
                        "server-side apply is not served here: use kubectl apply without --server-side, or one of {}",
                        accepted(resource)
                    ),
                ))
            }
            _ => Err(ApiError::unsupported_media(accepted(resource))),
        }
    }

    /// Applies the patch.
    pub(super) fn apply(&self, object: &mut Value) -> Result<(), ApiError> {
        match self {
            Self::Merge(patch) => json_patch::merge(object, patch),
            Self::Strategic(patch) => strategic(object, patch, "")?,
            Self::Json(operations) => apply_operations(object, operations)?,
        }
        if too_deep(object) {
            return Err(ApiError::bad_request("the patched object is nested too deeply"));
        }
        Ok(())
    }
}

fn apply_operations(object: &mut Value, operations: &[PatchOperation]) -> Result<(), ApiError> {
    let mut copies = 0;
    for (index, operation) in operations.iter().enumerate() {
        // Without a bound on each step a short patch could build an object that no stack can free.
        if operation.path().tokens().count() > DEPTH_MAX {
            return Err(ApiError::bad_request(format!("operation {index}: the path is too long")));
        }
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && test.path.resolve(&*object).is_err()
        {
            // Kubernetes takes a field that is not there for null; clients guard the first finalizer so.
            continue;
        }
        json_patch::patch_unsafe(object, std::slice::from_ref(operation)).map_err(|error| {
            ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                format!(
                    "the server rejected our request due to an error in our request: operation {index} at {}: {}",
                    operation.path(),
                    error.kind
                ),
            )
        })?;
        if matches!(operation, PatchOperation::Move(_) | PatchOperation::Copy(_)) {
            copies += 1;
            if copies > COPIES_MAX || too_deep(object) || count(object, VALUES_MAX) >= VALUES_MAX {
                return Err(ApiError::bad_request(format!("operation {index}: the patch grows the object too much")));
            }
        }
    }
    Ok(())
}

/// Values in a tree, up to a limit.
fn count(value: &Value, limit: usize) -> usize {
    let mut total = 1;
    let children: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(entries) => Box::new(entries.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => return 1,
    };
    for child in children {
        if total >= limit {
            break;
        }
        total += count(child, limit - total);
    }
    total
}

/// How lists of the core kinds are merged (`x-kubernetes-patch-strategy`); other lists are replaced.
enum ListMerge {
    Replace,
    /// Objects with this key are one.
    Key(&'static str),
    /// A set of plain values.
    Set,
}

fn list_merge(path: &str) -> ListMerge {
    match path {
        "metadata.ownerReferences" => ListMerge::Key("uid"),
        "metadata.finalizers" => ListMerge::Set,
        "status.conditions" => ListMerge::Key("type"),
        _ => ListMerge::Replace,
    }
}

fn wrong(path: &str, reason: &str) -> ApiError {
    ApiError::bad_request(format!("strategic merge patch: {path}: {reason}"))
}

/// Merges with the directives `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/…` and `$setElementOrder/…`.
fn strategic(object: &mut Value, patch: &Value, path: &str) -> Result<(), ApiError> {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return Ok(());
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let plain = patch.iter().filter(|(key, _)| *key != "$patch");
            *object = Value::Object(plain.map(|(key, value)| (key.clone(), value.clone())).collect());
            return Ok(());
        }
        Some("delete") => {
            *object = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(_) => return Err(wrong(path, "unknown $patch directive")),
    }
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(map) = object.as_object_mut() else { return Ok(()) };
    if let Some(retain) = patch.get("$retainKeys") {
        let keys = retain.as_array().ok_or_else(|| wrong(path, "$retainKeys is a list"))?;
        map.retain(|key, _| keys.iter().any(|kept| kept == key));
    }
    for (key, change) in patch {
        if let Some(name) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = change.as_array().ok_or_else(|| wrong(path, "$deleteFromPrimitiveList is a list"))?;
            if let Some(Value::Array(entries)) = map.get_mut(name) {
                entries.retain(|entry| !gone.contains(entry));
            }
        }
    }
    for (key, change) in patch {
        if key.starts_with('$') {
            continue;
        }
        let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match change {
            Value::Null => {
                map.remove(key);
            }
            Value::Object(directives) if directives.get("$patch").is_some_and(|directive| directive == "delete") => {
                map.remove(key);
            }
            Value::Object(_) => strategic(map.entry(key.clone()).or_insert(Value::Null), change, &at)?,
            Value::Array(changes) => merge_list(map.entry(key.clone()).or_insert(Value::Null), changes, &at)?,
            plain => {
                map.insert(key.clone(), plain.clone());
            }
        }
    }
    Ok(())
}

fn merge_list(list: &mut Value, changes: &[Value], path: &str) -> Result<(), ApiError> {
    let Value::Array(entries) = list else {
        *list = Value::Array(changes.iter().filter(|change| change.get("$patch").is_none()).cloned().collect());
        return Ok(());
    };
    match list_merge(path) {
        ListMerge::Replace => *entries = changes.to_vec(),
        ListMerge::Set => {
            for change in changes {
                if !entries.contains(change) {
                    entries.push(change.clone());
                }
            }
        }
        ListMerge::Key(name) => {
            if changes.iter().any(|change| change.get("$patch").is_some_and(|directive| directive == "replace")) {
                *entries = changes.iter().filter(|change| change.get("$patch").is_none()).cloned().collect();
                return Ok(());
            }
            for change in changes {
                let key = change.get(name).ok_or_else(|| wrong(path, "an entry lacks its merge key"))?;
                let found = entries.iter().position(|entry| entry.get(name) == Some(key));
                let delete = change.get("$patch").is_some_and(|directive| directive == "delete");
                match found {
                    Some(at) if delete => {
                        entries.remove(at);
                    }
                    Some(at) => strategic(&mut entries[at], change, path)?,
                    None if delete => {}
                    None => entries.push(change.clone()),
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::registry::Registry;
    use serde_json::json;

    fn patched(kind: &str, object: Value, patch: &Value) -> Result<Value, ApiError> {
        let registry = Registry::new(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let patch = Patch::parse(secrets, &format!("application/{kind}+json"), patch.to_string().as_bytes())?;
        let mut object = object;
        patch.apply(&mut object)?;
        Ok(object)
    }

    #[test]
    fn each_kind_of_patch_does_what_its_standard_says() {
        let object = json!({"metadata": {"finalizers": ["a"], "ownerReferences": [{"uid": "1", "name": "x"}]},
            "data": {"a": "1", "b": "2"}, "list": [1]});
        for (kind, patch, pointer, wanted) in [
            ("merge-patch", json!({"data": {"a": null, "c": "3"}}), "/data", json!({"b": "2", "c": "3"})),
            ("merge-patch", json!({"metadata": {"finalizers": ["b"]}}), "/metadata/finalizers", json!(["b"])),
            (
                "json-patch",
                json!([{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"},
                    {"op": "copy", "from": "/data/b", "path": "/data/c"}]),
                "/data",
                json!({"b": "2", "c": "2"}),
            ),
            (
                "json-patch",
                json!([{"op": "test", "path": "/metadata/labels", "value": null},
                    {"op": "add", "path": "/metadata/labels", "value": {}}]),
                "/metadata/labels",
                json!({}),
            ),
            ("strategic-merge-patch", json!({"data": {"a": null}}), "/data", json!({"b": "2"})),
            ("strategic-merge-patch", json!({"data": {"$patch": "replace", "z": "0"}}), "/data", json!({"z": "0"})),
            ("strategic-merge-patch", json!({"data": {"$retainKeys": ["b"]}}), "/data", json!({"b": "2"})),
            ("strategic-merge-patch", json!({"list": [2]}), "/list", json!([2])),
            (
                "strategic-merge-patch",
                json!({"metadata": {"finalizers": ["b"], "$setElementOrder/finalizers": ["a", "b"]}}),
                "/metadata/finalizers",
                json!(["a", "b"]),
            ),
            (
                "strategic-merge-patch",
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
                "/metadata/finalizers",
                json!([]),
            ),
            (
                "strategic-merge-patch",
                json!({"metadata": {"ownerReferences": [{"uid": "1", "name": "y"}, {"uid": "2"}]}}),
                "/metadata/ownerReferences",
                json!([{"uid": "1", "name": "y"}, {"uid": "2"}]),
            ),
            (
                "strategic-merge-patch",
                json!({"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}}),
                "/metadata/ownerReferences",
                json!([]),
            ),
        ] {
            let result = patched(kind, object.clone(), &patch).unwrap();
            assert_eq!(result.pointer(pointer), Some(&wanted), "{kind} {patch}");
        }
    }

    #[test]
    fn wrong_and_hostile_patches_are_refused() {
        let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!({ "a": inner }));
        let doubling: Vec<Value> =
            (0..60).map(|n| json!({"op": "copy", "from": "", "path": format!("/k{n}")})).collect();
        let digging: Vec<Value> =
            (1..90).map(|n| json!({"op": "add", "path": "/a".repeat(n), "value": nested(90)})).collect();
        for (kind, patch, code) in [
            ("merge-patch", json!([1]), 400),
            ("json-patch", json!({"op": "add"}), 400),
            ("json-patch", json!([{"op": "nonsense", "path": "/a"}]), 400),
            ("json-patch", json!([{"op": "test", "path": "/a", "value": 2}]), 422),
            ("json-patch", json!([{"op": "test", "path": "/a", "value": null}]), 422),
            ("json-patch", json!([{"op": "remove", "path": "/none"}]), 422),
            ("json-patch", json!([{"op": "move", "from": "/a", "path": "/a/b"}]), 422),
            ("json-patch", json!([{"op": "add", "path": "/a".repeat(200), "value": 1}]), 400),
            ("json-patch", json!(doubling), 400),
            ("json-patch", json!(digging), 400),
            ("strategic-merge-patch", json!({"metadata": {"ownerReferences": [{"name": "x"}]}}), 400),
            ("strategic-merge-patch", json!({"a": {"$patch": "explode"}}), 400),
            ("cbor-patch", json!({}), 415),
        ] {
            let object = json!({"a": {"a": 1}, "metadata": {"ownerReferences": [{"uid": "1"}]}});
            let error = patched(kind, object, &patch).unwrap_err();
            assert_eq!(error.code, code, "{kind} {error}");
        }
    }

    #[test]
    fn server_side_apply_is_refused_with_advice() {
        let registry = Registry::new(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let error = Patch::parse(secrets, "application/apply-patch+yaml", b"a: 1").unwrap_err();
        assert_eq!(error.code, 415);
        assert!(error.message.contains("server-side apply"), "{error}");
    }
}

//! Patches: JSON merge patch (RFC 7386) and JSON patch (RFC 6902); [`strategic`](super::strategic) has the third kind.
//! Pure.

use http::StatusCode;
use json_patch::PatchOperation;
use serde_json::Value;

use super::apply::go;
use super::strategic;
use super::write_strategy::RejectionStyle;
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::requests::body::{DEPTH_MAX, Parsed, check_count, too_deep};
use crate::apiserver::schema::MergeType;

/// Operations in one JSON patch.
const OPERATIONS_MAX: usize = 10_000;
/// Bytes of JSON that the copies of one JSON patch may add up to.
const COPIED_MAX: usize = 3 * 1024 * 1024;
/// Entries of lists that the operations of one JSON patch may push aside in all.
const SHIFTED_MAX: usize = 10_000_000;
/// Bytes of JSON that the moves of one JSON patch may add up to: each is looked at.
const MOVED_MAX: usize = 32 * 1024 * 1024;

/// A patch as the client sent it.
#[derive(Debug)]
pub(in crate::apiserver) struct RequestPatch {
    kind: PatchType,
    duplicates: Vec<String>,
}

#[derive(Debug)]
enum PatchType {
    /// `application/merge-patch+json`
    Merge(Value),
    /// `application/json-patch+json`
    Json(Vec<PatchOperation>),
    /// `application/strategic-merge-patch+json`
    Strategic(Value),
}

/// Content types that are patches of this resource.
fn accepted(resource: &ServedResource) -> &'static str {
    if resource.core {
        "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
         application/apply-patch+yaml"
    } else {
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    }
}

impl RequestPatch {
    /// Reads a patch by its content type.
    pub(in crate::apiserver) fn parse(
        resource: &ServedResource,
        content_type: &str,
        body: &[u8],
    ) -> Result<Self, ApiError> {
        let object = |make: fn(Value) -> PatchType| {
            let parsed = read(body)?;
            if !parsed.value.is_object() {
                return Err(wrong_type(&parsed.value, "map[string]interface {}"));
            }
            Ok(Self { kind: make(parsed.value), duplicates: parsed.duplicates })
        };
        match content_type {
            "application/merge-patch+json" => object(PatchType::Merge),
            "application/strategic-merge-patch+json" if resource.core => object(PatchType::Strategic),
            "application/json-patch+json" => {
                let parsed = read(body)?.value;
                let Value::Array(operations) = &parsed else {
                    return Err(wrong_type(&parsed, "[]handlers.jsonPatchOp"));
                };
                if operations.len() > OPERATIONS_MAX {
                    return Err(ApiError::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "RequestEntityTooLarge",
                        format!(
                            "Request entity too large: The allowed maximum operations in a JSON patch is \
                             {OPERATIONS_MAX}, got {}",
                            operations.len()
                        ),
                    ));
                }
                if let Some(odd) = operations.iter().find(|operation| !operation.is_object()) {
                    return Err(wrong_type(odd, "handlers.jsonPatchOp"));
                }
                let operations = serde_json::from_value(parsed).map_err(|error| rejected(&error.to_string()))?;
                Ok(Self { kind: PatchType::Json(operations), duplicates: Vec::new() })
            }
            _ => Err(ApiError::unsupported_media(accepted(resource))),
        }
    }

    /// Whether it is a list of no operations.
    pub(in crate::apiserver) fn is_empty(&self) -> bool {
        matches!(&self.kind, PatchType::Json(operations) if operations.is_empty())
    }

    /// Fields that the patch has twice.
    pub(in crate::apiserver) fn duplicates(&self) -> &[String] {
        &self.duplicates
    }

    /// How a client is told that the outcome has fields that are not known.
    pub(super) fn rejection_style(&self) -> RejectionStyle {
        match &self.kind {
            PatchType::Strategic(patch) => RejectionStyle::Patch(go::plain(patch)),
            PatchType::Merge(_) | PatchType::Json(_) => RejectionStyle::Outcome,
        }
    }

    /// Applies the patch.
    pub(in crate::apiserver) fn apply(&self, resource: &ServedResource, object: &mut Value) -> Result<(), ApiError> {
        match &self.kind {
            PatchType::Merge(patch) => json_patch::merge(object, patch),
            PatchType::Strategic(patch) => strategic::merge(object, patch, MergeType::root(&resource.schema))?,
            PatchType::Json(operations) => apply_operations(object, operations)?,
        }
        if too_deep(object) {
            return Err(ApiError::bad_request("the patched object is nested too deeply"));
        }
        Ok(())
    }
}

/// Reads a patch's JSON.
fn read(body: &[u8]) -> Result<Parsed, ApiError> {
    check_count(body)?;
    serde_json::from_slice(body).map_err(|error| {
        let reason = if error.is_eof() { "unexpected end of JSON input".into() } else { error.to_string() };
        ApiError::bad_request(format!("error decoding patch: {reason}"))
    })
}

fn wrong_type(value: &Value, wanted: &str) -> ApiError {
    let found = match value {
        Value::Array(_) => "array",
        Value::Bool(_) => "bool",
        Value::Null => "null",
        Value::Number(_) => "number",
        Value::Object(_) => "object",
        Value::String(_) => "string",
    };
    ApiError::bad_request(format!(
        "error decoding patch: json: cannot unmarshal {found} into Go value of type {wanted}"
    ))
}

/// 422 as upstream words it; the cause says which operation it was.
fn failed(index: usize, operation: &PatchOperation, reason: &str) -> ApiError {
    let place = shorten(operation.path().as_str(), 256);
    rejected(&format!("operation {index} at {place}: {reason}"))
}

fn rejected(cause: &str) -> ApiError {
    let mut error = ApiError::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        "the server rejected our request due to an error in our request",
    );
    // kubectl prints field and message of a cause in place of the message above.
    error.details = serde_json::json!({"causes": [{"reason": "FieldValueInvalid", "field": "patch", "message": shorten(cause, 512)}]});
    error
}

fn apply_operations(object: &mut Value, operations: &[PatchOperation]) -> Result<(), ApiError> {
    let (mut copied, mut moved, mut shifted) = (0, 0, 0);
    for (index, operation) in operations.iter().enumerate() {
        let fail = |reason: &str| failed(index, operation, reason);
        // Without a bound on each step a short patch could build an object that no stack can free.
        let depth = operation.path().tokens().count();
        if depth > DEPTH_MAX {
            return Err(fail("the path is too long"));
        }
        shifted += behind(object, operation);
        if shifted > SHIFTED_MAX {
            return Err(fail("the patch pushes too many entries of lists aside"));
        }
        match operation {
            PatchOperation::Test(test) if test.value.is_null() && test.path.resolve(&*object).is_err() => {
                // Kubernetes takes a field that is not there for null; clients guard the first finalizer so.
                continue;
            }
            PatchOperation::Copy(copy) => {
                let (size, levels) = copy.from.resolve(&*object).map_or((0, 0), |value| extent(value, DEPTH_MAX));
                copied += size;
                if copied > COPIED_MAX || depth + levels > DEPTH_MAX {
                    return Err(fail("the copies grow the object too much"));
                }
            }
            PatchOperation::Move(step) => {
                let (size, levels) = step.from.resolve(&*object).map_or((0, 0), |value| extent(value, DEPTH_MAX));
                moved += size;
                if moved > MOVED_MAX || depth + levels > DEPTH_MAX {
                    return Err(fail("the patch moves too much"));
                }
            }
            PatchOperation::Add(add) if depth + extent(&add.value, DEPTH_MAX).1 > DEPTH_MAX => {
                return Err(fail("the value is nested too deeply"));
            }
            PatchOperation::Replace(replace) if depth + extent(&replace.value, DEPTH_MAX).1 > DEPTH_MAX => {
                return Err(fail("the value is nested too deeply"));
            }
            _ => {}
        }
        json_patch::patch_unsafe(object, std::slice::from_ref(operation))
            .map_err(|error| fail(&error.kind.to_string()))?;
    }
    Ok(())
}

/// Entries of lists that an operation may push aside: those of the lists that it puts something into or takes from.
fn behind(object: &Value, operation: &PatchOperation) -> usize {
    let entries = |path: &json_patch::jsonptr::Pointer| {
        let list = path.parent().and_then(|parent| parent.resolve(object).ok()).and_then(Value::as_array);
        list.map_or(0, Vec::len)
    };
    match operation {
        PatchOperation::Add(add) => entries(&add.path),
        PatchOperation::Remove(remove) => entries(&remove.path),
        PatchOperation::Move(step) => entries(&step.from) + entries(&step.path),
        PatchOperation::Copy(copy) => entries(&copy.path),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

/// About how many bytes of JSON a value has, and how many levels; it is not followed deeper than `levels`.
fn extent(value: &Value, levels: usize) -> (usize, usize) {
    let Some(left) = levels.checked_sub(1) else { return (1, 1) };
    let below = |sum: (usize, usize), (size, depth): (usize, usize)| (sum.0 + size, sum.1.max(depth + 1));
    match value {
        Value::Array(entries) => entries.iter().map(|entry| extent(entry, left)).fold((2, 1), below),
        Value::Object(map) => map
            .iter()
            .map(|(key, child)| {
                let (size, depth) = extent(child, left);
                (size + key.len() + 3, depth)
            })
            .fold((2, 1), below),
        Value::String(text) => (text.len() + 3, 0),
        _ => (8, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(kind: &str, object: Value, patch: &Value) -> Result<Value, ApiError> {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let patch = RequestPatch::parse(secrets, &format!("application/{kind}+json"), patch.to_string().as_bytes())?;
        let mut object = object;
        patch.apply(secrets, &mut object)?;
        Ok(object)
    }

    #[test]
    fn each_kind_of_patch_does_what_its_standard_says() {
        let object = json!({"metadata": {"finalizers": ["a"]}, "data": {"a": "1", "b": "2"}});
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
            ("json-patch", json!([{"op": "nonsense", "path": "/a"}]), 422),
            ("json-patch", json!([1]), 400),
            ("json-patch", json!([{"op": "test", "path": "/a", "value": 2}]), 422),
            ("json-patch", json!([{"op": "test", "path": "/a", "value": null}]), 422),
            ("json-patch", json!([{"op": "remove", "path": "/none"}]), 422),
            ("json-patch", json!([{"op": "move", "from": "/a", "path": "/a/b"}]), 422),
            ("json-patch", json!([{"op": "add", "path": "/a".repeat(200), "value": 1}]), 422),
            ("json-patch", json!(doubling), 422),
            ("json-patch", json!(digging), 422),
            ("cbor-patch", json!({}), 415),
        ] {
            let object = json!({"a": {"a": 1}, "metadata": {"ownerReferences": [{"uid": "1"}]}});
            let error = patched(kind, object, &patch).unwrap_err();
            assert_eq!(error.code, code, "{kind} {error}");
        }
    }

    #[test]
    fn pushing_long_lists_aside_again_and_again_is_refused() {
        let step = json!({"op": "add", "path": "/x/0", "value": 0});
        let mut steps = vec![json!({"op": "add", "path": "/x", "value": vec![0; 90_000]})];
        steps.extend(std::iter::repeat_n(step, 50));
        assert!(patched("json-patch", json!({}), &Value::Array(steps.clone())).is_ok());
        steps.extend(steps.clone().into_iter().skip(1).cycle().take(100));
        assert_eq!(patched("json-patch", json!({}), &Value::Array(steps)).unwrap_err().code, 422);
    }
}

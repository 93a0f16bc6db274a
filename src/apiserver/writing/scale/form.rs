//! The form of a `Scale`: what of an object it shows, and what of it an object takes. Pure.

use serde_json::{Map, Value, json};

use crate::apiserver::answers::status::{ApiError, FieldError};
use crate::apiserver::kinds::resource::{ScalePaths, ServedResource};

fn at<'v>(object: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(object, |value, field| value.get(field)).filter(|value| !value.is_null())
}

/// The `Scale` of an object.
pub(in crate::apiserver) fn view(scale: &ScalePaths, object: &Value) -> Result<Value, ApiError> {
    let metadata = &object["metadata"];
    let mut own = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = metadata.get(field) {
            own.insert(field.into(), value.clone());
        }
    }
    let wished = at(object, &scale.spec_replicas).ok_or_else(|| {
        let path = scale.spec_replicas.join(".");
        ApiError::internal(format!("the spec replicas field \".{path}\" cannot be empty"))
    })?;
    let mut status = json!({"replicas": at(object, &scale.status_replicas).and_then(Value::as_i64).unwrap_or(0)});
    if let Some(selector) = scale.selector.as_deref().and_then(|path| at(object, path)).and_then(Value::as_str) {
        status["selector"] = selector.into();
    }
    Ok(json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": own,
        "spec": {"replicas": wished},
        "status": status,
    }))
}

/// The object with the number that a `Scale` wishes.
pub(in crate::apiserver) fn merge(
    resource: &ServedResource,
    scale: &ScalePaths,
    old: &Value,
    wished: &Value,
) -> Result<Value, ApiError> {
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    let given = &wished["spec"]["replicas"];
    let invalid = |detail: &str| {
        let errors = [FieldError::invalid("spec.replicas", given, detail)];
        let mut error = ApiError::invalid(resource, name, &errors);
        error.message = format!("Scale.autoscaling \"{name}\" is invalid: spec.replicas: {}", errors[0].message);
        error
    };
    // Go reads a missing number as none.
    let replicas = if given.is_null() { Some(0) } else { given.as_i64() };
    let replicas = replicas.ok_or_else(|| ApiError::bad_request("spec.replicas must be a whole number"))?;
    if replicas < 0 {
        return Err(invalid("should be a non-negative integer"));
    }
    if replicas > i64::from(i32::MAX) {
        return Err(invalid("must be an int32"));
    }
    let mut new = old.clone();
    let mut place = &mut new;
    for field in &scale.spec_replicas {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[field.as_str()];
    }
    *place = replicas.into();
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        if let Some(value) = wished["metadata"][field].as_str().filter(|text| !text.is_empty()) {
            new["metadata"][field] = value.into();
        }
    }
    Ok(new)
}

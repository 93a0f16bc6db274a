//! What a request must say of the object that it writes: its type and name, and of which revision and UID it is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::apiserver::answers::status::{ApiError, FieldError};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::requests::options::WriteRequest;
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::webhooks;
use crate::store::Object;

/// The body must be an object of the kind that the path names. Core kinds may leave it out.
pub(in crate::apiserver) fn check_type(resource: &ServedResource, value: &mut Value) -> Result<(), ApiError> {
    let Some(map) = value.as_object_mut() else {
        return Err(ApiError::bad_request("the object provided is unrecognized: not an object"));
    };
    for (field, wanted) in [("apiVersion", resource.api_version()), ("kind", resource.kind.clone())] {
        match map.get(field).and_then(Value::as_str) {
            None | Some("") if resource.core => {
                map.insert(field.into(), wanted.into());
            }
            Some(found) if found == wanted => {}
            found => {
                let found = crate::apiserver::answers::status::shorten(found.unwrap_or_default(), 64);
                return Err(ApiError::bad_request(format!(
                    "{field} in the data ({found}) does not match the expected {field} ({wanted})"
                )));
            }
        }
    }
    Ok(())
}

/// The revision that an object names.
pub(super) fn revision_of(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"].as_str().filter(|version| !version.is_empty() && *version != "0")
}

/// The revision that the client expects; whether it named one.
pub(super) fn check_revision(
    context: &RequestContext<'_>,
    meta: &ObjectMeta,
    current: &Object,
    write: WriteRequest,
) -> Result<bool, ApiError> {
    let resource = context.resource;
    let given = meta.resource_version.as_deref().filter(|version| !version.is_empty() && *version != "0");
    let must_name = !resource.core
        || resource.group == webhooks::kinds::GROUP
        || ["Lease", "ServiceAccount", "CustomResourceDefinition"].contains(&resource.kind.as_str());
    match given {
        Some(given) if given == current.revision.to_string() => Ok(write == WriteRequest::Update),
        Some(_) => Err(ApiError::stale(resource, &current.name)),
        None if write != WriteRequest::Update || !must_name => Ok(false),
        None => {
            let message = "Invalid value: 0: must be specified for an update";
            let path = "metadata.resourceVersion";
            let fault =
                FieldError { fault: crate::apiserver::FieldFault::Invalid, path: path.into(), message: message.into() };
            let mut error = ApiError::invalid(resource, &current.name, &[fault]);
            // Upstream names the resource here, not the kind.
            error.message = format!("{} \"{}\" is invalid: {path}: {message}", resource.qualified(), current.name);
            error.details["kind"] = resource.plural.clone().into();
            Err(error)
        }
    }
}

pub(super) fn check_uid(
    resource: &ServedResource,
    new: &ObjectMeta,
    old: &ObjectMeta,
    write: WriteRequest,
) -> Result<(), ApiError> {
    match (&new.uid, &old.uid) {
        (Some(new_uid), Some(old_uid)) if !new_uid.is_empty() && new_uid != old_uid => {
            let name = old.name.as_deref().unwrap_or_default();
            let shown = crate::apiserver::answers::status::shorten(new_uid, 64);
            Err(if write == WriteRequest::Update {
                let place = old.namespace.as_ref().map_or_else(String::new, |namespace| format!("{namespace}/"));
                let detail = format!(
                    "StorageError: invalid object, Code: 4, Key: /registry/{}/{place}{name}, ResourceVersion: 0, \
                     AdditionalErrorMsg: Precondition failed: UID in precondition: {shown}, UID in object meta: {old_uid}",
                    resource.storage.trim_start_matches('/')
                );
                ApiError::conflict(resource, name, detail)
            } else {
                let fault = FieldError::invalid("metadata.uid", &shown.into(), "field is immutable");
                ApiError::invalid(resource, name, &[fault])
            })
        }
        _ => Ok(()),
    }
}

/// A kind that was defined at run time may have gone, or be about to, since the request came.
pub(super) fn check_kind(context: &RequestContext<'_>) -> Result<(), ApiError> {
    let resource = context.resource;
    if resource.custom.is_none() {
        return Ok(());
    }
    let registry = context.api.registry();
    let now = registry.find(&resource.group, &resource.version, &resource.plural).ok_or_else(ApiError::no_such_path)?;
    if now.custom.as_ref().is_some_and(|custom| custom.ending) {
        return Err(ApiError::method_not_allowed("create not allowed while custom resource definition is terminating"));
    }
    Ok(())
}

pub(super) fn check_namespace(context: &RequestContext<'_>, namespace: &str, name: &str) -> Result<(), ApiError> {
    let missing = || {
        let message = format!("namespaces \"{namespace}\" not found");
        let mut error = ApiError::new(http::StatusCode::NOT_FOUND, "NotFound", message);
        error.details = serde_json::json!({"name": namespace, "kind": "namespaces"});
        error
    };
    let found = context.api.store().get("/namespaces", "", namespace).ok_or_else(missing)?;
    if found.is_ending() {
        let mut error = ApiError::forbidden(
            context.resource,
            name,
            format!("unable to create new content in namespace {namespace} because it is being terminated"),
        );
        // Controllers look for this cause, to give up quietly.
        error.details["causes"] = serde_json::json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        return Err(error);
    }
    Ok(())
}

//! Objects in the version that a client wants, where a webhook converts them. For all other kinds nothing is done here: their
//! objects change their shape when they are written out ([`ServedResource::served`]).

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value};

use super::super::answers::status::{ApiError, shorten};
use super::super::kinds::resource::{Conversion, ServedResource};
use super::super::objects::meta;
use super::super::requests::body;
use super::super::server::ApiServer;
use super::super::shares::inflight;
use super::super::writing::apply::go::type_name;
use super::conversion::{Converter, NotConverted};
use crate::store::Object;

/// The webhook of a kind, and the version that its objects are stored in.
fn converter(resource: &ServedResource) -> Option<(&Arc<Converter>, &str)> {
    match &resource.conversion {
        Some(Conversion::Webhook { converter, stored }) => Some((converter, stored)),
        _ => None,
    }
}

fn refused(reason: NotConverted) -> ApiError {
    match reason {
        NotConverted::TooMany => inflight::too_many(),
        NotConverted::TooMuch => ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            "a webhook would have to convert too much at once: ask for a list in parts (limit), and watch from the revision \
             of that list",
        ),
        // As upstream, which has no reason for it.
        NotConverted::Failed(reason) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", reason),
    }
}

/// Drops what the schema of a kind does not know, of what a webhook made.
pub(super) fn prune(resource: &ServedResource, object: &mut Value) {
    // The schema does not say what managers own.
    let managers =
        object.get_mut("metadata").and_then(Value::as_object_mut).and_then(|meta| meta.remove("managedFields"));
    resource.schema.prune(object);
    if let Some((managers, meta)) = managers.zip(object.get_mut("metadata").and_then(Value::as_object_mut)) {
        meta.insert("managedFields".into(), managers);
    }
}

/// Labels and annotations are judged as those that a client sends.
pub(super) fn check_texts(field: &str, map: &Map<String, Value>) -> Result<(), String> {
    let texts: Option<Vec<(&str, &str)>> =
        map.iter().map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect();
    let Some(texts) = texts else {
        let odd = map.iter().find(|(_, value)| !value.is_string()).map(|(key, value)| (key, type_name(value)));
        let (key, found) = odd.map_or_else(Default::default, |(key, found)| (shorten(key, 253), found));
        return Err(format!("metadata.{field}[{key}] must be a string, but is {found} in converted object"));
    };
    let mut errors = Vec::new();
    match field {
        "labels" => meta::validate_labels(texts.into_iter(), "metadata.labels", &mut errors),
        // Upstream's own name for it.
        _ => meta::validate_annotations(texts.into_iter(), "metadata.annotation", &mut errors),
    }
    let told: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
    match told.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// Objects of the store as this version has them.
pub(in crate::apiserver) async fn served(
    api: &ApiServer,
    resource: &ServedResource,
    objects: Vec<Arc<Object>>,
) -> Result<Vec<Arc<Object>>, ApiError> {
    let Some((converter, _)) = converter(resource) else { return Ok(objects) };
    let settings = api.inner.webhooks.settings();
    let pruned = |value: &mut Value| prune(resource, value);
    converter.objects(&settings, objects, &resource.api_version(), pruned, check_texts).await.map_err(refused)
}

/// One object of the store as this version has it.
pub(in crate::apiserver) async fn served_one(
    api: &ApiServer,
    resource: &ServedResource,
    object: Arc<Object>,
) -> Result<Arc<Object>, ApiError> {
    if converter(resource).is_none() {
        return Ok(object);
    }
    let before = Arc::clone(&object);
    Ok(served(api, resource, vec![object]).await?.pop().unwrap_or(before))
}

/// What a watch shows, which many watches show at the same time.
pub(in crate::apiserver) async fn watched(
    api: &ApiServer,
    resource: &ServedResource,
    object: Arc<Object>,
) -> Result<Arc<Object>, ApiError> {
    let Some((converter, _)) = converter(resource) else { return Ok(object) };
    let _first = converter.watches.lock().await;
    served_one(api, resource, object).await
}

/// Whether a webhook converts objects of a kind.
pub(in crate::apiserver) fn converts(resource: &ServedResource) -> bool {
    converter(resource).is_some()
}

/// An object that is to be written, in the version that it is stored in.
pub(in crate::apiserver) async fn stored(
    api: &ApiServer,
    resource: &ServedResource,
    value: Value,
) -> Result<Value, ApiError> {
    let Some((converter, stored)) = converter(resource) else { return Ok(value) };
    let settings = api.inner.webhooks.settings();
    let registry = api.registry();
    let storing = registry.stored().find(|other| other.storage == resource.storage);
    let pruned = |value: &mut Value| {
        if let Some(storing) = storing {
            prune(storing, value);
        }
    };
    let converted = converter.values(&settings, vec![value], stored, pruned, check_texts).await.map_err(refused)?;
    let value = converted.into_iter().next().unwrap_or_default();
    if body::too_deep(&value) {
        return Err(refused(NotConverted::Failed("the converted object is nested too deeply".into())));
    }
    body::check_values(&value)?;
    Ok(value)
}

/// Of an object of one version, the same in another.
pub(in crate::apiserver) async fn between(
    api: &ApiServer,
    from: &ServedResource,
    to: &ServedResource,
    value: &Value,
) -> Result<Value, ApiError> {
    let Some((converter, _)) = converter(to) else {
        return Ok(to.served(from.to_stored(value.clone())));
    };
    let settings = api.inner.webhooks.settings();
    let pruned = |value: &mut Value| prune(to, value);
    let converted = converter
        .values(&settings, vec![value.clone()], &to.api_version(), pruned, check_texts)
        .await
        .map_err(refused)?;
    Ok(to.served(converted.into_iter().next().unwrap_or_default()))
}

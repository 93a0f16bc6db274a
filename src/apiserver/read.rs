//! Get, and how objects are sent.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde_json::json;

use super::Call;
use super::items::{self, Compressible, Items, ListHead};
use super::request::{Form, parse_revision};
use super::status::ApiError;
use super::table::{Rows, definitions};
use super::text::{Text, yaml_list};
use super::write::Written;
use crate::store::{Object, Store};

/// How long a read of a revision that is still to come waits for it, as upstream's.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// The object of the path.
pub(super) async fn get(call: &Call<'_>) -> Result<Response, ApiError> {
    let name = call.name()?;
    let namespace = call.target.namespace.as_deref().unwrap_or_default();
    if let Some(wanted) = parse_revision(&call.params.resource_version)? {
        reach(call.api.store(), wanted).await?;
    }
    let object = call
        .api
        .store()
        .get(&call.resource.storage, namespace, name)
        .ok_or_else(|| ApiError::not_found(call.resource, name))?;
    Ok(send(call, StatusCode::OK, &object))
}

/// Waits until the store has reached a revision, for a bounded time.
pub(super) async fn reach(store: &Store, wanted: u64) -> Result<(), ApiError> {
    if store.revision() >= wanted || tokio::time::timeout(REVISION_WAIT, store.reached(wanted)).await.is_ok() {
        return Ok(());
    }
    let message = format!("Timeout: Too large resource version: {wanted}, current: {}", store.revision());
    let mut error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
    error.details = json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    });
    Err(error)
}

/// Sends one object in the form that was negotiated.
pub(super) fn send(call: &Call<'_>, code: StatusCode, object: &Arc<Object>) -> Response {
    let mut body = Vec::new();
    if call.form == Form::Table {
        let include = call.params.include.unwrap_or_default();
        let rows = Rows::new(call.resource, include, Timestamp::now());
        body.extend_from_slice(&items::table_head(
            &definitions(&call.resource.columns),
            &ListHead::at(object.revision),
        ));
        rows.put(&mut body, call.resource, object);
        body.extend_from_slice(items::TAIL);
    } else if call.form == Form::Json && call.resource.conversion.is_none() && call.text.is_plain() {
        let mut response = call.text.response(code, object.json());
        response.extensions_mut().insert(Compressible);
        return response;
    } else {
        items::put_object(&mut body, call.resource, call.form, object);
    }
    let mut response = call.text.response(code, call.text.render(body));
    response.extensions_mut().insert(Compressible);
    response
}

/// Sends a written object with its warnings.
pub(super) fn send_written(call: &Call<'_>, written: &Written) -> Response {
    let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    let response = send(call, code, &written.object);
    written.warnings.iter().fold(response, |response, warning| with_warning(response, warning))
}

/// The answer with one more warning for the person at the client.
pub(super) fn with_warning(mut response: Response, warning: &str) -> Response {
    // RFC 9110 quoted-string; the texts quote field names, so backslashes are needed.
    let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        response.headers_mut().append(header::WARNING, value);
    }
    response
}

/// Sends a list in the form that was negotiated.
pub(super) fn send_list(call: &Call<'_>, objects: Vec<Arc<Object>>, head: &ListHead) -> Response {
    let resource = call.resource;
    let form = call.form;
    let first = match form {
        Form::Table => items::table_head(&definitions(&resource.columns), head),
        Form::Partial => items::list_head("PartialObjectMetadataList", "meta.k8s.io/v1", head),
        Form::Json => items::list_head(&resource.list_kind, &resource.api_version(), head),
    };
    if call.text == Text::Yaml {
        let values = || objects.iter().map(|object| items::item(resource, object));
        let body = yaml_list(&resource.list_kind, &resource.api_version(), &head.json(), values);
        return call.text.response(StatusCode::OK, body);
    }
    let include = call.params.include.unwrap_or_default();
    let items = Items::new(Arc::clone(resource), form, include, first, objects);
    let mut response = if call.text.is_plain() {
        call.text.response(StatusCode::OK, axum::body::Body::new(items))
    } else {
        call.text.response(StatusCode::OK, call.text.render(items.whole()))
    };
    response.extensions_mut().insert(Compressible);
    response
}

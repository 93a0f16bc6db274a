//! Get and list: how objects are read and sent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::list::WantedRevision;
use crate::apiserver::answers::columns::definitions;
use crate::apiserver::answers::encoding::ContentEncoding;
use crate::apiserver::answers::list_body::{self, Compressible, EncodedItems, ListBody, ListHead};
use crate::apiserver::answers::pretty_body::PrettyBody;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::listener::exchange_memory::InMemory;
use crate::apiserver::requests::request::Include;
use crate::apiserver::requests::request::{Params, Representation, parse_revision};
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::shares::blocking;
use crate::apiserver::shares::response_memory::{self, ConnectionHandle, FullBody, ResponseReservation};
use crate::apiserver::webhooks::converting;
use crate::apiserver::writing::write::WriteOutcome;
use crate::store::{Object, Store};

/// How long a read of a revision that is still to come waits for it, as upstream's.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// The object of the path.
pub(in crate::apiserver) async fn get(context: &RequestContext<'_>) -> Result<Response, ApiError> {
    let name = context.name()?;
    let namespace = context.target.namespace.as_deref().unwrap_or_default();
    if let Some(wanted) = parse_revision(&context.params.resource_version)? {
        reach(context.api.store(), wanted).await?;
    }
    let object = context
        .api
        .store()
        .get(&context.resource.storage, namespace, name)
        .ok_or_else(|| context.api.missing(context.resource, namespace, name))?;
    let object = converting::served_one(context.api, context.resource, object).await?;
    Ok(send(context, StatusCode::OK, &object))
}

/// The revision that a read waits for when it is still to come.
pub(in crate::apiserver) fn awaited(verb: &str, params: &Params) -> Option<u64> {
    match verb {
        "get" => parse_revision(&params.resource_version).ok()?,
        "list" => match WantedRevision::of(params).ok()? {
            WantedRevision::Newest(revision) | WantedRevision::Exactly(revision) => Some(revision),
            WantedRevision::Rest(..) => None,
        },
        _ => None,
    }
}

/// Waits until the store has reached a revision, for a bounded time.
pub(in crate::apiserver) async fn reach(store: &Store, wanted: u64) -> Result<(), ApiError> {
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

/// What counts the answer to a request, which shows objects with so many bytes of text. The appliance's own rooms are not
/// counted: they take what they ask for, and its work depends on them.
pub(in crate::apiserver) fn hold(context: &RequestContext<'_>, text: usize) -> Option<ResponseReservation> {
    if context.identity.is_in_process() {
        return None;
    }
    let namespace = context.target.namespace.as_deref().unwrap_or_default();
    let what = format!("{} {namespace}", context.resource.qualified());
    Some(ResponseReservation::new(
        &context.api.inner.response_memory,
        &context.identity.user,
        what.trim_end(),
        context.headers,
        text,
    ))
}

/// Sends one object in the form that was negotiated.
pub(in crate::apiserver) fn send(context: &RequestContext<'_>, code: StatusCode, object: &Arc<Object>) -> Response {
    let (resource, form) = (context.resource, context.representation);
    if form == Representation::Table {
        let head = list_body::table_head(&definitions(&resource.columns), &ListHead::at(object.revision));
        return send_parts(context, code, vec![Arc::clone(object)], head);
    }
    // To bring it into another version takes its time, which is taken while it is sent.
    if context.encoding == ContentEncoding::Json
        && resource.conversion.is_some()
        && object.json_len() >= blocking::LONG_FROM
    {
        let parts = EncodedItems::alone(Arc::clone(resource), form, Arc::clone(object));
        let (hold, weight) = (hold(context, parts.text()), parts.weight());
        let connection = hold.as_ref().map(ResponseReservation::connection);
        return weighing(weight, respond(context, code, ListBody::new(parts, Vec::new()).body(hold), connection));
    }
    let is_short = |length: usize| length <= response_memory::COUNTED_FROM && context.encoding == ContentEncoding::Json;
    let hold = if is_short(object.json_len()) { None } else { hold(context, object.json_len()) };
    let connection = hold.as_ref().map(ResponseReservation::connection);
    let whole = |text: Bytes, hold| {
        if is_short(text.len()) { text.into() } else { response_memory::body(FullBody(text), hold) }
    };
    let body = match context.encoding {
        ContentEncoding::Json if form == Representation::Json && resource.conversion.is_none() => {
            whole(object.json(), hold)
        }
        ContentEncoding::Json => {
            let mut body = Vec::new();
            list_body::put_object(&mut body, resource, form, object);
            whole(body.into(), hold)
        }
        text => {
            let parts = EncodedItems::alone(Arc::clone(resource), form, Arc::clone(object));
            let lines = if text == ContentEncoding::Yaml {
                PrettyBody::yaml(parts)
            } else {
                PrettyBody::indented(parts, Vec::new(), b"")
            };
            lines.body(hold)
        }
    };
    respond(context, code, body, connection)
}

/// Sends a body that may be compressed; `connection`: the one that its reservation belongs to.
fn respond(
    context: &RequestContext<'_>,
    code: StatusCode,
    body: Body,
    connection: Option<ConnectionHandle>,
) -> Response {
    let mut response = context.encoding.response(code, body);
    if connection.as_ref().is_none_or(ConnectionHandle::may_compress) {
        response.extensions_mut().insert(Compressible);
    }
    if let Some(connection) = connection {
        response.extensions_mut().insert(connection);
    }
    response
}

/// Sends a written object with its warnings.
pub(in crate::apiserver) async fn send_written(
    context: &RequestContext<'_>,
    written: WriteOutcome,
) -> Result<Response, ApiError> {
    let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    let object = converting::served_one(context.api, context.resource, written.object).await?;
    Ok(written.remarks.put_on(send(context, code, &object)))
}
/// Sends a list in the form that was negotiated.
pub(in crate::apiserver) fn send_list(
    context: &RequestContext<'_>,
    objects: Vec<Arc<Object>>,
    head: &ListHead,
) -> Response {
    let resource = context.resource;
    let first = match context.representation {
        Representation::Table => list_body::table_head(&definitions(&resource.columns), head),
        Representation::Partial => list_body::list_head("PartialObjectMetadataList", "meta.k8s.io/v1", head),
        Representation::Json if context.encoding == ContentEncoding::Yaml => {
            let parts = EncodedItems::new(Arc::clone(resource), Representation::Json, Include::None, objects);
            let (hold, weight) = (hold(context, parts.text()), parts.weight());
            let connection = hold.as_ref().map(ResponseReservation::connection);
            let lines = PrettyBody::yaml_list(parts, &resource.list_kind, &resource.api_version(), head);
            return weighing(weight, respond(context, StatusCode::OK, lines.body(hold), connection));
        }
        Representation::Json => list_body::list_head(&resource.list_kind, &resource.api_version(), head),
    };
    send_parts(context, StatusCode::OK, objects, first)
}

/// Sends what a list or a table begins with and its objects, as JSON.
fn send_parts(context: &RequestContext<'_>, code: StatusCode, objects: Vec<Arc<Object>>, head: Vec<u8>) -> Response {
    let include = context.params.include.unwrap_or_default();
    let parts = EncodedItems::new(Arc::clone(context.resource), context.representation, include, objects);
    let (hold, weight) = (hold(context, parts.text()), parts.weight());
    let connection = hold.as_ref().map(ResponseReservation::connection);
    let body = match context.encoding {
        ContentEncoding::Json => ListBody::new(parts, head).body(hold),
        _ => PrettyBody::indented(parts, head, list_body::TAIL).body(hold),
    };
    weighing(weight, respond(context, code, body, connection))
}

/// An answer that is written while it is sent.
fn weighing(bytes: usize, mut response: Response) -> Response {
    response.extensions_mut().insert(InMemory(bytes));
    response
}

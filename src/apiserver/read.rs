//! Get and list: how objects are read and sent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::aside;
use super::call::Call;
use super::columns::definitions;
use super::held::{self, Hold, Line, Whole};
use super::items::{self, Compressible, Items, ListHead, Parts};
use super::lines::Lines;
use super::list::Wanted;
use super::request::Include;
use super::request::{Form, Params, parse_revision};
use super::status::ApiError;
use super::text::Text;
use super::weight::InMemory;
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
        .ok_or_else(|| call.api.missing(call.resource, namespace, name))?;
    Ok(send(call, StatusCode::OK, &object))
}

/// The revision that a read waits for when it is still to come.
pub(super) fn awaited(verb: &str, params: &Params) -> Option<u64> {
    match verb {
        "get" => parse_revision(&params.resource_version).ok()?,
        "list" => match Wanted::of(params).ok()? {
            Wanted::Newest(revision) | Wanted::Exactly(revision) => Some(revision),
            Wanted::Rest(..) => None,
        },
        _ => None,
    }
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

/// What counts the answer to a call, which shows objects with so many bytes of text. The appliance's own rooms are not
/// counted: they take what they ask for, and its work depends on them.
pub(super) fn hold(call: &Call<'_>, text: usize) -> Option<Hold> {
    if call.identity.is_in_process() {
        return None;
    }
    let namespace = call.target.namespace.as_deref().unwrap_or_default();
    let what = format!("{} {namespace}", call.resource.qualified());
    Some(Hold::new(&call.api.inner.answers, &call.identity.user, what.trim_end(), call.headers, text))
}

/// Sends one object in the form that was negotiated.
pub(super) fn send(call: &Call<'_>, code: StatusCode, object: &Arc<Object>) -> Response {
    let (resource, form) = (call.resource, call.form);
    if form == Form::Table {
        let head = items::table_head(&definitions(&resource.columns), &ListHead::at(object.revision));
        return send_parts(call, code, vec![Arc::clone(object)], head);
    }
    // To bring it into another version takes its time, which is taken while it is sent.
    if call.text == Text::Json && resource.conversion.is_some() && object.json_len() >= aside::LONG_FROM {
        let parts = Parts::alone(Arc::clone(resource), form, Arc::clone(object));
        let (hold, weight) = (hold(call, parts.text()), parts.weight());
        let line = hold.as_ref().map(Hold::line);
        return weighing(weight, respond(call, code, Items::new(parts, Vec::new()).body(hold), line));
    }
    let is_short = |length: usize| length <= held::COUNTED_FROM && call.text == Text::Json;
    let hold = if is_short(object.json_len()) { None } else { hold(call, object.json_len()) };
    let line = hold.as_ref().map(Hold::line);
    let whole = |text: Bytes, hold| if is_short(text.len()) { text.into() } else { held::body(Whole(text), hold) };
    let body = match call.text {
        Text::Json if form == Form::Json && resource.conversion.is_none() => whole(object.json(), hold),
        Text::Json => {
            let mut body = Vec::new();
            items::put_object(&mut body, resource, form, object);
            whole(body.into(), hold)
        }
        text => {
            let parts = Parts::alone(Arc::clone(resource), form, Arc::clone(object));
            let lines = if text == Text::Yaml { Lines::yaml(parts) } else { Lines::indented(parts, Vec::new(), b"") };
            lines.body(hold)
        }
    };
    respond(call, code, body, line)
}

/// Sends a body that may be compressed; `line`: that of its place among the answers.
fn respond(call: &Call<'_>, code: StatusCode, body: Body, line: Option<Line>) -> Response {
    let mut response = call.text.response(code, body);
    response.extensions_mut().insert(Compressible);
    if let Some(line) = line {
        response.extensions_mut().insert(line);
    }
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
    let first = match call.form {
        Form::Table => items::table_head(&definitions(&resource.columns), head),
        Form::Partial => items::list_head("PartialObjectMetadataList", "meta.k8s.io/v1", head),
        Form::Json if call.text == Text::Yaml => {
            let parts = Parts::new(Arc::clone(resource), Form::Json, Include::None, objects);
            let (hold, weight) = (hold(call, parts.text()), parts.weight());
            let line = hold.as_ref().map(Hold::line);
            let lines = Lines::yaml_list(parts, &resource.list_kind, &resource.api_version(), head);
            return weighing(weight, respond(call, StatusCode::OK, lines.body(hold), line));
        }
        Form::Json => items::list_head(&resource.list_kind, &resource.api_version(), head),
    };
    send_parts(call, StatusCode::OK, objects, first)
}

/// Sends what a list or a table begins with and its objects, as JSON.
fn send_parts(call: &Call<'_>, code: StatusCode, objects: Vec<Arc<Object>>, head: Vec<u8>) -> Response {
    let include = call.params.include.unwrap_or_default();
    let parts = Parts::new(Arc::clone(call.resource), call.form, include, objects);
    let (hold, weight) = (hold(call, parts.text()), parts.weight());
    let line = hold.as_ref().map(Hold::line);
    let body = match call.text {
        Text::Json => Items::new(parts, head).body(hold),
        _ => Lines::indented(parts, head, items::TAIL).body(hold),
    };
    weighing(weight, respond(call, code, body, line))
}

/// An answer that is written while it is sent.
fn weighing(bytes: usize, mut response: Response) -> Response {
    response.extensions_mut().insert(InMemory(bytes));
    response
}

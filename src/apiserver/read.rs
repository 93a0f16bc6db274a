//! Get and list, and how objects are sent.

use std::sync::Arc;

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Call;
use super::request::{Form, parse_revision};
use super::selectors::Selector;
use super::status::{ApiError, json_response};
use super::table::{self, definitions};
use super::write::{Written, served};
use crate::store::Object;

/// The object of the path.
pub(super) fn get(call: &Call<'_>) -> Result<Response, ApiError> {
    let name = call.name()?;
    let namespace = call.target.namespace.as_deref().unwrap_or_default();
    let object = call
        .api
        .store()
        .get(&call.resource.storage, namespace, name)
        .ok_or_else(|| ApiError::not_found(call.resource, name))?;
    Ok(send(call, StatusCode::OK, &object))
}

/// The objects that are selected, all of them: `limit` is a wish that a server may pass over (API concepts,
/// "Retrieving large results sets in chunks"), and one answer at one revision is the consistent one.
pub(super) fn list(call: &Call<'_>) -> Result<Response, ApiError> {
    if !call.params.continue_token.is_empty() {
        return Err(ApiError::bad_request("continue key is not valid: this server lists in one piece"));
    }
    let selector = Selector::parse(call.resource, &call.params.labels, &call.params.fields)?;
    let listing = call.api.store().list(&call.resource.storage, call.target.namespace.as_deref());
    check_list_revision(call, listing.revision)?;
    let objects: Vec<Arc<Object>> = if selector.is_everything() {
        listing.objects
    } else {
        listing.objects.into_iter().filter(|object| selector.matches(&object.value)).collect()
    };
    Ok(send_list(call, &objects, listing.revision))
}

/// `resourceVersion` of a list is the least, or with `resourceVersionMatch=Exact` the very revision, that is wanted.
fn check_list_revision(call: &Call<'_>, current: u64) -> Result<(), ApiError> {
    let wanted = parse_revision(&call.params.resource_version)?;
    match (wanted, call.params.resource_version_match.as_str()) {
        (Some(wanted), "Exact") if wanted < current => {
            Err(ApiError::expired(format!("The provided resource version is too old: {wanted}")))
        }
        (_, "" | "NotOlderThan" | "Exact") => match wanted {
            Some(wanted) if wanted > current => {
                let message = format!("Too large resource version: {wanted}, current: {current}");
                let mut error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
                error.details = json!({
                    "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                    "retryAfterSeconds": 1,
                });
                Err(error)
            }
            _ => Ok(()),
        },
        _ => Err(ApiError::bad_request("resourceVersionMatch must be Exact or NotOlderThan")),
    }
}

/// Sends one object in the form that was negotiated.
pub(super) fn send(call: &Call<'_>, code: StatusCode, object: &Arc<Object>) -> Response {
    match call.form {
        Form::Json if call.resource.conversion.is_none() => json_response(code, object.json.clone()),
        Form::Json => json_response(code, served(call.resource, &object.value).to_string()),
        Form::Partial => json_response(code, table::partial(&object.value).to_string()),
        Form::Table => {
            let row = row(call, &object.value);
            let headings = definitions(&call.resource.columns);
            json_response(code, table::table(&headings, vec![row], &object.revision.to_string()).to_string())
        }
    }
}

/// One row of a table.
pub(super) fn row(call: &Call<'_>, stored: &Value) -> Value {
    let include = call.params.include.unwrap_or_default();
    let now = Timestamp::now();
    let resource = call.resource;
    if resource.conversion.is_some() {
        table::row(&resource.columns, &served(resource, stored), include, now)
    } else {
        table::row(&resource.columns, stored, include, now)
    }
}

/// Sends a written object with its warnings.
pub(super) fn send_written(call: &Call<'_>, written: &Written) -> Response {
    let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = send(call, code, &written.object);
    for warning in &written.warnings {
        // RFC 9110 quoted-string; the texts quote field names, so backslashes are needed.
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// Sends a list. The stored texts are joined, not written anew: that is what makes long lists cheap.
pub(super) fn send_list(call: &Call<'_>, objects: &[Arc<Object>], revision: u64) -> Response {
    let resource = call.resource;
    if call.form == Form::Table {
        let rows = objects.iter().map(|object| row(call, &object.value)).collect();
        let headings = definitions(&resource.columns);
        return json_response(StatusCode::OK, table::table(&headings, rows, &revision.to_string()).to_string());
    }
    let (kind, api_version) = match call.form {
        Form::Partial => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        _ => (resource.list_kind.clone(), resource.api_version()),
    };
    let plain = call.form == Form::Json && resource.conversion.is_none();
    let size: usize = if plain { objects.iter().map(|object| object.json.len() + 1).sum() } else { 0 };
    let mut body = Vec::with_capacity(size + 256);
    let head = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{{\"resourceVersion\":\"{revision}\"}},\"items\":[",
        Value::from(kind),
        Value::from(api_version)
    );
    body.extend_from_slice(head.as_bytes());
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        match call.form {
            _ if plain => body.extend_from_slice(&object.json),
            Form::Partial => body.extend_from_slice(table::partial(&object.value).to_string().as_bytes()),
            _ => body.extend_from_slice(served(resource, &object.value).to_string().as_bytes()),
        }
    }
    body.extend_from_slice(b"]}");
    json_response(StatusCode::OK, body)
}

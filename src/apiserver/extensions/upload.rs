//! Uploads: content that is sent to an object, larger than any object.
//!
//! `POST …/NAME/UPLOAD` sends a piece, which the room takes as it comes, and `GET` asks what has come. Both are judged by roles as
//! any subresource is, each request for itself. None of it is in memory as a whole, so it takes none of what bodies may take; what
//! a caller may have of uploads is the room's affair.

use axum::body::Body;
use axum::response::Response;
use http::request::Parts;

use super::admission::{Upload, UploadRequest};
use crate::apiserver::auth::UserIdentity;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::listener::exchange_memory;
use crate::apiserver::requests::request::{Params, RequestTarget};
use crate::apiserver::requests::request_context::NOT_ALLOWED;
use crate::apiserver::shares::caller_shares;
use crate::apiserver::{ApiError, ApiServer};

/// Answers a request whose caller may make it.
pub(in crate::apiserver) async fn serve(
    api: &ApiServer,
    resource: &ServedResource,
    target: &RequestTarget,
    (identity, parts, params): (&UserIdentity, &Parts, &Params),
    (verb, body): (&str, Body),
    upload: Upload,
) -> Result<Response, ApiError> {
    exchange_memory::hands_on(&parts.extensions);
    let piece = match verb {
        "get" => None,
        "create" => Some(body),
        _ => return Err(ApiError::method_not_allowed(NOT_ALLOWED)),
    };
    if verb == "create" && !params.dry_run.is_empty() {
        return Err(ApiError::bad_request("dryRun: there is no dry run of what is sent: nothing was taken"));
    }
    let (namespace, name) = (target.namespace.as_deref().unwrap_or_default(), target.name.clone().unwrap_or_default());
    let object = api.store().get(&resource.storage, namespace, &name);
    let object = object.ok_or_else(|| ApiError::not_found(resource, &name))?;
    let object = serde_json::from_slice(&object.json()).map_err(|error| ApiError::internal(error.to_string()))?;
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let caller = caller_shares::caller(&identity.user).to_owned();
    upload(UploadRequest { object, query, piece, caller }).await
}

//! One request about a resource, as its handler gets it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::request::{Params, Representation, RequestTarget};
use crate::apiserver::answers::encoding::ContentEncoding;
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::auth::UserIdentity;
use crate::apiserver::crd;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::server::ApiServer;
use crate::apiserver::shares::{blocking, scan_scheduler};

/// The message of a 405.
pub(in crate::apiserver) const NOT_ALLOWED: &str = "the server does not allow this method on the requested resource";

/// A request that is no watch is answered within this time, as upstream's `--request-timeout`.
pub(in crate::apiserver) const REQUEST_MAX: Duration = Duration::from_secs(60);

/// One request about a resource.
pub(in crate::apiserver) struct RequestContext<'c> {
    pub api: &'c ApiServer,
    pub resource: &'c Arc<ServedResource>,
    pub target: &'c RequestTarget,
    pub params: &'c Params,
    pub identity: &'c UserIdentity,
    pub headers: &'c HeaderMap,
    pub representation: Representation,
    pub encoding: ContentEncoding,
}

impl<'c> RequestContext<'c> {
    pub fn name(&self) -> Result<&str, ApiError> {
        self.target.name.as_deref().ok_or_else(|| ApiError::method_not_allowed(NOT_ALLOWED))
    }

    /// Whether a write may take long on an object of this size: what is large, what has rules or long patterns of users, and
    /// what defines kinds.
    pub fn is_long(&self, live: usize) -> bool {
        if self.identity.is_in_process() {
            return false;
        }
        let length =
            self.headers.get(http::header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        // A client that does not say how much it sends may send much.
        let given: usize = length.unwrap_or(usize::MAX);
        given.max(live) >= blocking::LONG_FROM || self.resource.schema.takes_long() || crd::is_definition(self.resource)
    }

    /// Name and namespace of the body must be those of the path; where the body is silent, the path speaks.
    pub fn own_place(&self, mut meta: ObjectMeta) -> Result<ObjectMeta, ApiError> {
        let given = meta.namespace.take().filter(|namespace| !namespace.is_empty());
        let wanted = self.target.namespace.as_ref().filter(|_| self.resource.namespaced);
        if let (Some(given), Some(wanted)) = (&given, wanted)
            && given != wanted
        {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        meta.namespace = wanted.cloned();
        meta.name = meta.name.filter(|name| !name.is_empty());
        if let Some(name) = &self.target.name {
            match &meta.name {
                Some(given) if given != name => {
                    return Err(ApiError::bad_request(format!(
                        "the name of the object ({}) does not match the name on the URL ({name})",
                        shorten(given, 253)
                    )));
                }
                _ => meta.name = Some(name.clone()),
            }
        }
        Ok(meta)
    }

    /// Waits for a turn of the caller when what is to be done now is long. What is done then is to await nothing.
    pub async fn turn(&self, long: bool) -> Option<scan_scheduler::ExclusiveTurn<'c>> {
        if long { Some(self.api.inner.long.whole(self.identity).await) } else { None }
    }

    /// Clients may not write what only Slipway's own rooms write.
    pub fn require_writable(&self) -> Result<(), ApiError> {
        if !self.resource.policy.is_writable() && !self.identity.is_in_process() {
            return Err(self.read_only());
        }
        Ok(())
    }

    pub fn read_only(&self) -> ApiError {
        ApiError::method_not_allowed(format!("{} are written by Slipway itself", self.resource.qualified()))
            .about(self.resource, self.target.name.as_deref().unwrap_or_default())
    }
}

/// Ends what takes longer than this.
pub(in crate::apiserver) async fn within<T>(
    most: Duration,
    serving: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    tokio::time::timeout(most, serving).await.unwrap_or_else(|_| {
        let message = "request did not complete within requested timeout - context deadline exceeded";
        Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message))
    })
}

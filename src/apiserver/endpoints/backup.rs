//! The backup endpoint.
//!
//! `/slipway/v1/backup`: everything, keys included. Whoever has read it can make himself any user for as long as the CA
//! lives, so no role gives it: it is for members of `system:masters`, each in its own name. Every attempt has its line in
//! the audit log.

use axum::response::Response;
use http::{Method, StatusCode, request};

use crate::apiserver::auth::UserIdentity;
use crate::apiserver::{ApiError, ApiServer, audit};

/// Answers a request.
pub(in crate::apiserver) async fn serve(
    api: &ApiServer,
    identity: Option<&UserIdentity>,
    parts: &request::Parts,
) -> Result<Response, ApiError> {
    let identity = identity.ok_or_else(ApiError::unauthorized)?;
    let pending = match api.inner.audit.get() {
        Some(audit) => Some(audit::PendingAudit::begin_beside(audit, identity, parts).await?),
        None => None,
    };
    let answer = answer(api, identity, &parts.method).await;
    if let Some(pending) = pending {
        pending.end(&answer);
    }
    answer
}

async fn answer(api: &ApiServer, identity: &UserIdentity, method: &Method) -> Result<Response, ApiError> {
    if !identity.is_superuser() || identity.impersonator.is_some() {
        let message = format!(
            "a backup holds every key of the appliance: only its administrator (group {}), in no other's name, may have one",
            crate::apiserver::auth::ADMIN_GROUP
        );
        return Err(ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message));
    }
    if *method != Method::GET {
        return Err(ApiError::method_not_allowed("only GET is served here"));
    }
    let page = api.inner.backup.get().ok_or_else(ApiError::no_such_path)?;
    tracing::info!(user = identity.user, "somebody takes a backup by the API");
    page().await
}

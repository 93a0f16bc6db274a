//! Why an agent's call was refused.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tracing::warn;

use crate::protocol::Refusal;

/// Why a call was refused: status, and words for the node's console.
#[derive(Debug)]
pub(super) struct Refused(pub StatusCode, pub String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Refusal { reason: self.1 })).into_response()
    }
}

impl From<kube::Error> for Refused {
    fn from(error: kube::Error) -> Self {
        warn!(%error, "cannot answer an agent: the API failed");
        match error {
            kube::Error::Api(status) if matches!(status.code, 400 | 403 | 413 | 422) => {
                Self(StatusCode::UNPROCESSABLE_ENTITY, format!("the appliance cannot store this: {}", status.message))
            }
            _ => Self(StatusCode::SERVICE_UNAVAILABLE, "the appliance cannot answer now; try again".into()),
        }
    }
}

//! Why an agent's call was refused.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tracing::warn;

use crate::protocol::CallRefusal;
use crate::runtime::Conflict;

/// Why a call was refused: status, and words for the node's console.
#[derive(Debug)]
pub(super) struct AgentRefused(pub StatusCode, pub String);

impl AgentRefused {
    /// Others wrote what was to be written, whenever it was tried.
    pub fn crowded() -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, "too many writers at once; try again".into())
    }
}

/// Why a try to write what an agent brings about came to nothing.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// What the API says.
    Api(kube::Error),
    /// It is not to be written.
    Refused(AgentRefused),
}

impl Conflict for Unwritten {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Refused(_) => false,
        }
    }
}

impl From<kube::Error> for Unwritten {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

impl From<AgentRefused> for Unwritten {
    fn from(refused: AgentRefused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Unwritten> for AgentRefused {
    fn from(error: Unwritten) -> Self {
        match error {
            Unwritten::Api(error) => error.into(),
            Unwritten::Refused(refused) => refused,
        }
    }
}

impl IntoResponse for AgentRefused {
    fn into_response(self) -> Response {
        (self.0, Json(CallRefusal { reason: self.1 })).into_response()
    }
}

impl From<kube::Error> for AgentRefused {
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

//! What webhooks say beside yes and no.

use axum::response::Response;

use super::super::audit::OfWebhooks;
use super::super::status::with_warning;

/// Warnings of all webhooks that one answer carries.
const WARNINGS_MAX: usize = 64;
/// Annotations of all webhooks that one line of the audit log has.
const ANNOTATIONS_MAX: usize = 64;

/// What webhooks said of one request.
#[derive(Clone, Debug, Default)]
pub(in crate::apiserver) struct Remarks {
    /// For the client.
    pub warnings: Vec<String>,
    /// For the audit log.
    pub annotations: Vec<(String, String)>,
}

impl Remarks {
    /// More of the same request.
    pub fn add(&mut self, said: Self) {
        self.warnings.extend(said.warnings);
        self.warnings.truncate(WARNINGS_MAX);
        self.annotations.extend(said.annotations);
        self.annotations.truncate(ANNOTATIONS_MAX);
    }

    /// Sends them with an answer.
    pub fn put_on(&self, response: Response) -> Response {
        let mut response = self.warnings.iter().fold(response, |response, warning| with_warning(response, warning));
        if !self.annotations.is_empty() {
            response.extensions_mut().insert(OfWebhooks(self.annotations.clone()));
        }
        response
    }
}

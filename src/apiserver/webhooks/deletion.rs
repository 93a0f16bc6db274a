//! Webhooks in the way of a deletion.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::super::answers::status::ApiError;
use super::super::extensions::admission::AdmissionOperation;
use super::super::requests::request_context::RequestContext;
use super::admit::ConfiguredRequest;
use super::converting;
use super::remarks::Remarks;
use crate::store::Object;

/// An object that is to go.
pub(in crate::apiserver) struct WebhookDeletion<'d> {
    subject: ConfiguredRequest<'d>,
    /// What was said when they were asked last.
    // std's lock: held to exchange it.
    remarks: Mutex<Remarks>,
}

impl<'d> WebhookDeletion<'d> {
    /// Of this name, with these `DeleteOptions`.
    pub fn of(context: &'d RequestContext<'_>, namespace: &'d str, name: &str, dry_run: bool, options: Value) -> Self {
        let subject = ConfiguredRequest {
            api: context.api,
            resource: context.resource,
            operation: AdmissionOperation::Delete,
            namespace,
            name: name.to_owned(),
            subresource: "",
            identity: context.identity,
            dry_run,
            options,
        };
        Self { subject, remarks: Mutex::default() }
    }

    /// Asks whether the object may go as it is now.
    pub async fn ask(&self, object: Arc<Object>) -> Result<(), ApiError> {
        let Some(round) = self.subject.round() else { return Ok(()) };
        let ConfiguredRequest { api, resource, .. } = self.subject;
        let old = resource.served(converting::served_one(api, resource, object).await?.value());
        let mut remarks = Remarks::default();
        let mut judged = round.mutate(None, Some(&old), &mut remarks).await.map(drop);
        if judged.is_ok() {
            judged = round.validate(None, Some(&old), &mut remarks).await;
        }
        let warnings = remarks.warnings.clone().into();
        *self.remarks.lock().unwrap_or_else(PoisonError::into_inner) = remarks;
        judged.map_err(|error| ApiError { warnings, ..error })
    }

    /// What was said.
    pub fn remarks(&self) -> Remarks {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

//! Options of writing requests (`CreateOptions`, `UpdateOptions`, `PatchOptions`), checked as upstream checks them.

use super::request::FieldValidation;
use super::request_context::RequestContext;
use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault, shorten};
use crate::apiserver::writing::apply::manager::check_name;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum WriteRequest {
    /// POST
    Create,
    /// PUT
    Update,
    /// PATCH
    Patch,
    /// PATCH with a configuration to apply
    Apply,
}

/// Checks the options of a request; whether it is a dry run.
pub(in crate::apiserver) fn check(context: &RequestContext<'_>, write: WriteRequest) -> Result<bool, ApiError> {
    let params = context.params;
    let mut errors = Vec::new();
    if write == WriteRequest::Apply && params.field_manager.is_empty() {
        errors.push(FieldError::required("fieldManager", "is required for apply patch"));
    }
    if write == WriteRequest::Patch && params.force.is_some() {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    if let Err(message) = check_name(&params.field_manager) {
        let fault = if message.starts_with("Too long") { FieldFault::TooLong } else { FieldFault::Invalid };
        errors.push(FieldError { fault, path: "fieldManager".into(), message });
    }
    let dry_run = dry_run(&params.dry_run, &mut errors);
    if let FieldValidation::Unknown(text) = &params.field_validation {
        let message = format!(
            "Unsupported value: {:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
            shorten(text, 64)
        );
        errors.push(FieldError { fault: FieldFault::NotSupported, path: "fieldValidation".into(), message });
    }
    if errors.is_empty() {
        return Ok(dry_run);
    }
    let kind = match write {
        WriteRequest::Create => "CreateOptions",
        WriteRequest::Update => "UpdateOptions",
        WriteRequest::Patch | WriteRequest::Apply => "PatchOptions",
    };
    Err(ApiError::invalid_options(kind, &errors))
}

/// Reads `dryRun`: nothing, or `All`.
pub(in crate::apiserver) fn dry_run(values: &[String], errors: &mut Vec<FieldError>) -> bool {
    if values.iter().any(|value| value != "All") {
        let shown: Vec<String> = values.iter().take(8).map(|value| format!("{:?}", shorten(value, 32))).collect();
        let message = format!("Unsupported value: [{}]: supported values: \"All\"", shown.join(","));
        errors.push(FieldError { fault: FieldFault::NotSupported, path: "dryRun".into(), message });
    }
    !values.is_empty()
}

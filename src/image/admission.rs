//! What an Image must be before it is stored: a source that the appliance would read.

use serde_json::{Value, json};

use super::Sources;
use crate::api::slipway::{Image, ImageSpec};
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
use crate::outbound::masked;

/// The rules as the API server asks for them. Who deletes or reports a status is not judged.
///
/// # Errors
///
/// Every rule that the change breaks and the stored Image did not.
pub fn admit(sources: &Sources, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let spec = |object: &Value| serde_json::from_value::<Image>(object.clone()).ok().map(|image| image.spec);
    // What is no Image is left to the schema.
    let Some(new) = spec(request.object) else { return Ok(()) };
    let known = request.old.and_then(spec).map(|old| faults(sources, &old)).unwrap_or_default();
    let errors: Vec<_> = faults(sources, &new).into_iter().filter(|error| !known.contains(error)).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn faults(sources: &Sources, spec: &ImageSpec) -> Vec<FieldError> {
    let value = |field| match field {
        "url" => json!(masked(&spec.url)),
        "checksum" => json!(masked(spec.checksum.as_deref().unwrap_or_default())),
        "publish" => json!(spec.publish),
        _ => json!(spec.format),
    };
    let faults = sources.faults(spec).into_iter();
    faults
        .map(|fault| FieldError::invalid(format!("spec.{}", fault.field), &value(fault.field), fault.detail))
        .collect()
}

//! Annotations that change what is done with a host (docs/design/host.md, "Annotations"), and what they hold.
//!
//! `paused` and `detached` may hold anything.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::inspection_disabled;
use crate::api::metal3::{
    ANNOTATION_HARDWARE_DETAILS, ANNOTATION_INSPECT, ANNOTATION_REBOOT, ANNOTATION_STATUS, BareMetalHost,
    BareMetalHostStatus, HardwareDetails, InspectionMode,
};
use crate::apiserver::{FieldError, FieldFault};

/// What [`ANNOTATION_INSPECT`] holds when there is to be no inspection.
pub(super) const INSPECT_DISABLED: &str = "disabled";

/// What a reboot annotation asks for. Further keys are let pass, as Metal3 does.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RebootAnnotation {
    mode: Option<String>,
    #[serde(rename = "force")]
    _force: Option<bool>,
}

pub(super) fn inspect(host: &BareMetalHost) -> Option<&str> {
    let annotations = host.metadata.annotations.as_ref()?;
    annotations.get(ANNOTATION_INSPECT).map(String::as_str)
}

pub(super) fn check(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    for (key, text) in host.metadata.annotations.iter().flatten() {
        let path = format!("metadata.annotations[{key}]");
        let holder = key.strip_prefix(ANNOTATION_REBOOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let result = match key.as_str() {
            ANNOTATION_STATUS if !text.is_empty() => status(text).map(drop),
            ANNOTATION_HARDWARE_DETAILS if !text.is_empty() => {
                if !inspection_disabled(host) {
                    let detail =
                        "hardware can be given only with inspection disabled: set spec.inspectionMode to disabled";
                    errors.push(FieldError::forbidden(path, detail));
                    continue;
                }
                hardware_details(text).map(drop)
            }
            ANNOTATION_INSPECT => {
                inspection(host, path, text, errors);
                continue;
            }
            _ if holder && !text.is_empty() => {
                reboot(path, text, errors);
                continue;
            }
            _ => continue,
        };
        if let Err(detail) = result {
            errors.push(FieldError::new(FieldFault::Invalid, path, detail));
        }
    }
}

fn inspection(host: &BareMetalHost, path: String, text: &str, errors: &mut Vec<FieldError>) {
    if !matches!(text, "" | INSPECT_DISABLED) {
        let detail = "supported values: \"\", \"disabled\"";
        errors.push(FieldError::with_value(FieldFault::NotSupported, path, &json!(text), detail));
        return;
    }
    let mode = host.spec.inspection_mode;
    if text == INSPECT_DISABLED && mode.is_some_and(|mode| mode != InspectionMode::Disabled) {
        errors.push(FieldError::forbidden(path, "contradicts spec.inspectionMode: remove the annotation"));
    }
}

fn reboot(path: String, text: &str, errors: &mut Vec<FieldError>) {
    let reboot: RebootAnnotation = match serde_json::from_str::<Option<RebootAnnotation>>(text) {
        Ok(reboot) => reboot.unwrap_or_default(),
        Err(error) => {
            let detail = format!("must be empty, or JSON like {{\"mode\":\"hard\"}}: {error}");
            errors.push(FieldError::invalid(path, &json!(text), detail));
            return;
        }
    };
    let mode = reboot.mode.unwrap_or_default();
    if !matches!(mode.as_str(), "" | "hard" | "soft") {
        let detail = "supported values of mode: \"\", \"hard\", \"soft\"";
        errors.push(FieldError::with_value(FieldFault::NotSupported, path, &json!(mode), detail));
    }
}

/// The status that [`ANNOTATION_STATUS`] holds.
///
/// # Errors
///
/// In words, when it is no JSON or has fields that a status has not.
pub fn status(text: &str) -> Result<BareMetalHostStatus, String> {
    strict(text, |status| {
        // Upstream's own printer leaves an empty one out; people do not.
        if status["errorType"] == "" {
            status.as_object_mut().map(|fields| fields.remove("errorType"));
        }
    })
}

/// The hardware that [`ANNOTATION_HARDWARE_DETAILS`] holds.
///
/// # Errors
///
/// In words, when it is no JSON or has fields that hardware has not.
pub fn hardware_details(text: &str) -> Result<HardwareDetails, String> {
    strict(text, |_| ())
}

fn strict<T: Serialize + DeserializeOwned>(text: &str, mend: impl FnOnce(&mut Value)) -> Result<T, String> {
    let mut value: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    if !value.is_object() {
        // A list would be taken for the fields in their order.
        return Err("must be a JSON object".into());
    }
    drop_nulls(&mut value);
    mend(&mut value);
    let mut unknown = Vec::new();
    let read = serde_ignored::deserialize(value, |path| unknown.push(path.to_string()));
    let read: T = read.map_err(|error| format!("cannot be read: {error}"))?;
    // A time before the year 0 can be read, and what is then written of it cannot.
    let written = serde_json::to_value(&read).and_then(serde_json::from_value::<T>);
    written.map_err(|error| format!("has a value that an object cannot hold: {error}"))?;
    match unknown.first() {
        None => Ok(read),
        Some(field) => Err(format!("has an unknown field {field:?}")),
    }
}

/// A null means that nothing is given.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

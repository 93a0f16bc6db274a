//! What objects must be before they are stored, beyond what their schemas say: the rules of Metal3's webhooks.
//!
//! What a stored object breaks already does not stop another change of it. Pure.

use serde_json::Value;

use crate::api::infrastructure::remediation::{LEAST_TIMEOUT_SECONDS, REBOOT, timeout_seconds};
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};

/// Rules for a change of a Metal3Machine.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn machine(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |machine| {
        let namespace = &machine["metadata"]["namespace"];
        let mut errors = image(&machine["spec"], "spec");
        for field in ["userData", "metaData", "networkData"] {
            let other = &machine["spec"][field]["namespace"];
            if other.as_str().is_some_and(|other| !other.is_empty()) && other != namespace {
                let path = format!("spec.{field}.namespace");
                errors.push(FieldError::forbidden(path, "cross-namespace secret references are not allowed"));
            }
        }
        errors
    })
}

/// Rules for a change of a Metal3MachineTemplate.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn machine_template(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |template| image(&template["spec"]["template"]["spec"], "spec.template.spec"))
}

/// Rules for a change of a Metal3ClusterTemplate. That a Metal3Cluster has an endpoint is in its schema.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn cluster_template(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |template| {
        let endpoint = &template["spec"]["template"]["spec"]["controlPlaneEndpoint"];
        let path = "spec.template.spec.controlPlaneEndpoint";
        let mut errors = Vec::new();
        if endpoint["host"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(format!("{path}.host"), ""));
        }
        if endpoint["port"].as_i64().unwrap_or_default() == 0 {
            errors.push(FieldError::required(format!("{path}.port"), ""));
        }
        errors
    })
}

/// Rules for a change of a Metal3Remediation.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn remediation(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |remediation| strategy(&remediation["spec"]["strategy"], "spec.strategy"))
}

/// Rules for a change of a Metal3RemediationTemplate.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn remediation_template(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    judge(request, |template| {
        strategy(&template["spec"]["template"]["spec"]["strategy"], "spec.template.spec.strategy")
    })
}

/// Every fault of the new object that the old one did not have. Who deletes or reports a status is not judged.
fn judge(request: &AdmissionRequest<'_>, faults: fn(&Value) -> Vec<FieldError>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let mut errors = faults(request.object);
    if !errors.is_empty()
        && let Some(old) = request.old
    {
        let known = faults(old);
        errors.retain(|error| !known.contains(error));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// That there is a checksum where one is needed is in the schema.
fn image(spec: &Value, path: &str) -> Vec<FieldError> {
    let image = &spec["image"];
    let text = |field: &str| image[field].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if !spec["customDeploy"]["method"].as_str().unwrap_or_default().is_empty() || text("url").is_empty() {
        return errors;
    }
    if !is_url(text("url")) {
        errors.push(FieldError::invalid(format!("{path}.image.url"), &image["url"], "not a valid URL"));
    }
    if text("url").to_lowercase().starts_with("oci://") {
        for field in ["checksum", "checksumType"] {
            if !text(field).is_empty() {
                errors.push(FieldError::forbidden(format!("{path}.image.{field}"), "must be empty for OCI images"));
            }
        }
    } else if ["http://", "https://"].iter().any(|scheme| text("checksum").starts_with(scheme))
        && !is_url(text("checksum"))
    {
        errors.push(FieldError::invalid(format!("{path}.image.checksum"), &image["checksum"], "not a valid URL"));
    }
    errors
}

/// Whether somebody may fetch it: the scheme is not judged here.
fn is_url(text: &str) -> bool {
    url(text) || text.starts_with('/')
}

fn url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.authority().is_some())
}

/// The schema of v1beta2 says the same; the one of v1beta1 lets anything through.
fn strategy(strategy: &Value, path: &str) -> Vec<FieldError> {
    if !strategy.is_object() {
        return Vec::new();
    }
    let mut errors = Vec::new();
    let number = |field: &str| strategy.get(field).map(|value| value.as_i64().unwrap_or_default());
    if let Some((field, seconds)) = timeout_seconds(strategy)
        && seconds < i64::from(LEAST_TIMEOUT_SECONDS)
    {
        let detail = format!("min duration is {LEAST_TIMEOUT_SECONDS} seconds");
        errors.push(FieldError::invalid(format!("{path}.{field}"), &strategy[field], detail));
    }
    if strategy["type"] != REBOOT {
        let detail = "only supported remediation strategy is Reboot";
        errors.push(FieldError::invalid(format!("{path}.type"), &strategy["type"], detail));
    }
    if number("retryLimit").is_some_and(|limit| limit < 1) {
        let detail = "minimum retry limit is 1";
        errors.push(FieldError::invalid(format!("{path}.retryLimit"), &strategy["retryLimit"], detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(errors: &[FieldError]) -> Vec<&str> {
        errors.iter().map(|error| error.path.as_str()).collect()
    }

    #[test]
    fn an_image_is_judged_as_the_webhooks_do() {
        let rows: &[(Value, &[&str])] = &[
            (json!({}), &[]),
            (json!({"image": {"url": "http://x/y", "checksum": "aa"}}), &[]),
            (json!({"image": {"url": "http://x/y", "checksum": "https://x/y.sha"}}), &[]),
            (json!({"image": {"url": "no url"}}), &["s.image.url"]),
            (json!({"image": {"url": "http://x/y", "checksum": "http://"}}), &["s.image.checksum"]),
            (json!({"image": {"url": "oci://x/y"}}), &[]),
            (
                json!({"image": {"url": "OCI://x/y", "checksum": "a", "checksumType": "md5"}}),
                &["s.image.checksum", "s.image.checksumType"],
            ),
            (json!({"image": {"url": "no url"}, "customDeploy": {"method": "x"}}), &[]),
        ];
        for (spec, wrong) in rows {
            assert_eq!(paths(&image(spec, "s")), *wrong, "{spec}");
        }
    }

    #[test]
    fn a_strategy_is_judged_as_the_webhooks_do() {
        let rows: &[(Value, &[&str])] = &[
            (Value::Null, &[]),
            (json!({"type": "Reboot", "retryLimit": 1, "timeoutSeconds": 100}), &[]),
            (json!({"type": "Reboot"}), &[]),
            (json!({"type": "Reprovision"}), &["s.type"]),
            (json!({"retryLimit": 0, "timeoutSeconds": 99}), &["s.timeoutSeconds", "s.type", "s.retryLimit"]),
            (json!({"type": "Reboot", "timeout": "1h0m0s"}), &[]),
            (json!({"type": "Reboot", "timeout": "99s"}), &["s.timeout"]),
            (json!({"type": "Reboot", "timeout": "soon"}), &["s.timeout"]),
        ];
        for (given, wrong) in rows {
            assert_eq!(paths(&strategy(given, "s")), *wrong, "{given}");
        }
    }
}

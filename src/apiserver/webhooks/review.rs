//! `admission.k8s.io/v1` AdmissionReview: the question, and the answer as upstream checks it. Pure.

use std::collections::BTreeMap;

use base64::{DecodeError, Engine};
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::answers::status::{ApiError, shorten};
use super::remarks;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Letters of what is wrong with an answer, of a message, and of an annotation.
const FAULT_MAX: usize = 256;
const MESSAGE_MAX: usize = 4096;
const ANNOTATION_MAX: usize = 256;
/// Letters of a reason, which is a word.
const REASON_MAX: usize = 256;
const ANNOTATIONS_MAX: usize = 16;
/// Bytes of the details of a refusal.
const DETAILS_MAX: usize = 16 << 10;

/// The question.
pub(super) fn question(uid: &str, mut request: Map<String, Value>) -> Value {
    request.insert("uid".into(), uid.into());
    json!({"kind": KIND, "apiVersion": API_VERSION, "request": request})
}

/// What a webhook answered.
#[derive(Debug)]
pub(super) struct WebhookVerdict {
    /// Why not, when it refuses.
    pub denied: Option<ApiError>,
    /// A JSON patch.
    pub patch: Option<Vec<u8>>,
    /// For the client.
    pub warnings: Vec<String>,
    /// For the audit log.
    pub annotations: Vec<(String, String)>,
}

/// As upstream, what is null is left out.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, expecting = "an AdmissionReview object")]
struct AdmissionReview {
    api_version: Option<String>,
    kind: Option<String>,
    response: Option<AdmissionResponse>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, expecting = "a response object")]
struct AdmissionResponse {
    uid: Option<String>,
    allowed: Option<bool>,
    status: Option<ReviewStatus>,
    patch: Option<String>,
    patch_type: Option<String>,
    warnings: Option<Vec<String>>,
    audit_annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a Status object")]
struct ReviewStatus {
    code: Option<i64>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<Box<RawValue>>,
}

/// Reads an answer, and holds it against the question.
///
/// # Errors
///
/// Why it is none, in upstream's words.
pub(super) fn verdict(name: &str, uid: &str, text: &[u8], mutating: bool) -> Result<WebhookVerdict, String> {
    // Upstream's client reads it, so that this is a failure of the call.
    let failed = |reason: &str| format!("failed to call webhook: {}", shorten(reason, FAULT_MAX));
    let review: Option<AdmissionReview> = serde_json::from_slice(text)
        .map_err(|error| failed(&format!("the answer is no AdmissionReview in JSON: {error}")))?;
    let mut review = review.unwrap_or_default();
    let patch = review.response.as_mut().and_then(|response| response.patch.take()).unwrap_or_default();
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).map_err(|error| match error {
        DecodeError::InvalidByte(at, _) => failed(&format!("illegal base64 data at input byte {at}")),
        other => failed(&format!("the patch is no base64: {other}")),
    })?;
    judged(name, uid, review, patch, mutating).map_err(|reason| format!("received invalid webhook response: {reason}"))
}

fn judged(
    name: &str,
    uid: &str,
    review: AdmissionReview,
    patch: Vec<u8>,
    mutating: bool,
) -> Result<WebhookVerdict, String> {
    let response = review.response.ok_or("webhook response was absent")?;
    let given = response.uid.unwrap_or_default();
    if given != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", shorten(&given, 64)));
    }
    let (version, kind) = (review.api_version.unwrap_or_default(), review.kind.unwrap_or_default());
    if version != API_VERSION || kind != KIND {
        let (version, kind) = (shorten(&version, 64), shorten(&kind, 64));
        let slash = if version.contains('/') { "" } else { "/" };
        return Err(format!(
            "expected webhook response of {API_VERSION}, Kind={KIND}, got {slash}{version}, Kind={kind}"
        ));
    }
    let patch = Some(patch).filter(|patch| !patch.is_empty());
    let kind = response.patch_type;
    if !mutating {
        if patch.is_some() {
            return Err("validating webhook may not return response.patch".into());
        }
        if kind.is_some() {
            return Err("validating webhook may not return response.patchType".into());
        }
    }
    let patch = match (patch, kind.as_deref()) {
        (None, None) => None,
        (Some(_), None) => return Err("webhook returned response.patch but not response.patchType".into()),
        (None, Some(_)) => return Err("webhook returned response.patchType but not response.patch".into()),
        (Some(patch), Some("JSONPatch")) => Some(patch),
        (Some(_), Some(other)) => {
            return Err(format!("webhook returned invalid response.patchType of {:?}", shorten(other, 64)));
        }
    };
    let annotations = response.audit_annotations.unwrap_or_default();
    Ok(WebhookVerdict {
        denied: (!response.allowed.unwrap_or_default()).then(|| denial(name, response.status.unwrap_or_default())),
        patch,
        warnings: remarks::told(response.warnings.unwrap_or_default()),
        annotations: annotations
            .into_iter()
            .take(ANNOTATIONS_MAX)
            .map(|(key, value)| (shorten(&format!("{name}/{key}"), ANNOTATION_MAX), shorten(&value, ANNOTATION_MAX)))
            .collect(),
    })
}

/// A refusal, in upstream's words.
fn denial(name: &str, status: ReviewStatus) -> ApiError {
    let by = format!("admission webhook {name:?} denied the request");
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (message, reason) = (given(status.message), given(status.reason));
    let message = match (message, &reason) {
        (Some(message), _) => format!("{by}: {}", shorten(&message, MESSAGE_MAX)),
        (None, Some(reason)) => format!("{by}: {}", shorten(reason, REASON_MAX)),
        (None, None) => format!("{by} without explanation"),
    };
    // As upstream: what is no refusal becomes one.
    let code = status.code.and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
    let code = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::BAD_REQUEST);
    let mut error = ApiError::new(code, shorten(&reason.unwrap_or_default(), REASON_MAX), message);
    let details = status.details.filter(|details| details.get().len() <= DETAILS_MAX);
    error.details = details
        .and_then(|details| serde_json::from_str(details.get()).ok())
        .filter(Value::is_object)
        .unwrap_or_default();
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(response: Value, mutating: bool) -> Result<WebhookVerdict, String> {
        let review = json!({"apiVersion": API_VERSION, "kind": KIND, "response": response});
        verdict("a.b.c", "1", review.to_string().as_bytes(), mutating)
    }

    #[test]
    fn an_answer_is_held_against_its_question() {
        for (response, mutating, wanted) in [
            (json!(null), true, "webhook response was absent"),
            (json!({"allowed": true}), true, "expected response.uid=\"1\", got \"\""),
            (json!({"uid": "2", "allowed": true}), true, "expected response.uid=\"1\", got \"2\""),
            (json!({"uid": "1", "patch": "W10="}), true, "response.patch but not response.patchType"),
            (json!({"uid": "1", "patchType": "JSONPatch"}), true, "response.patchType but not response.patch"),
            (json!({"uid": "1", "patchType": "X", "patch": "W10="}), true, "invalid response.patchType of \"X\""),
            (
                json!({"uid": "1", "patchType": "JSONPatch", "patch": "?"}),
                true,
                "failed to call webhook: illegal base64 data at input byte 0",
            ),
            (json!({"uid": null}), true, "received invalid webhook response: expected response.uid=\"1\", got \"\""),
            (json!({"uid": "1", "patchType": "JSONPatch", "patch": "W10="}), false, "may not return response.patch"),
            (json!({"uid": 1}), true, "the answer is no AdmissionReview in JSON"),
        ] {
            let fault = judged(response.clone(), mutating).unwrap_err();
            assert!(fault.contains(wanted), "{response}: {fault}");
        }
        let other = json!({"apiVersion": "v1", "kind": "Status", "response": {"uid": "1"}}).to_string();
        for (answer, wanted) in [
            (&*other, "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /v1, Kind=Status"),
            ("{}", "webhook response was absent"),
            ("null", "webhook response was absent"),
        ] {
            let fault = verdict("a.b.c", "1", answer.as_bytes(), true).unwrap_err();
            assert_eq!(fault, format!("received invalid webhook response: {wanted}"));
        }
        let good = json!({"uid": "1", "allowed": true, "patchType": "JSONPatch", "patch": "W10=",
            "warnings": ["a\nb", "", "c", "c"], "auditAnnotations": {"k": "v"}});
        let good = judged(good, true).unwrap();
        assert!(good.denied.is_none());
        assert_eq!(good.patch.as_deref(), Some(&b"[]"[..]));
        assert_eq!((good.warnings, good.annotations), (vec!["c".into()], vec![("a.b.c/k".into(), "v".into())]));
    }

    #[test]
    fn a_refusal_is_told_in_upstreams_words() {
        for (status, code, reason, message) in [
            (json!(null), 400, "", "denied the request without explanation"),
            (json!({"code": 403, "message": "no"}), 403, "", "denied the request: no"),
            (json!({"code": 200, "reason": "Forbidden"}), 400, "Forbidden", "denied the request: Forbidden"),
            (json!({"code": 418, "reason": "Odd", "message": "m"}), 418, "Odd", "denied the request: m"),
            (json!({"code": 700, "message": "m"}), 700, "", "denied the request: m"),
            (json!({"code": 99999, "message": "m"}), 400, "", "denied the request: m"),
        ] {
            let denied =
                judged(json!({"uid": "1", "allowed": false, "status": status}), false).unwrap().denied.unwrap();
            assert_eq!((denied.code.as_u16(), &*denied.reason), (code, reason), "{status}");
            assert_eq!(denied.message, format!("admission webhook \"a.b.c\" {message}"), "{status}");
        }
    }
}

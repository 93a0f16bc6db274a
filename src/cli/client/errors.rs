//! Error messages of failed requests, for the person who made them.

use kube::core::Status;

use super::connect::ClientSession;
use super::types::ServedType;
use super::unknown_fields::{self, About};

/// Managers of this program's own, beside that of `apply`, and what they did.
const VERBS: [(&str, &str); 4] = [
    (super::request::HOST_MANAGER, "`slipway host …` set these fields"),
    (super::request::CLUSTER_MANAGER, "`slipway cluster …` set these fields"),
    ("slipway-edit", "`slipway edit` set these fields"),
    ("slipway-patch", "`slipway patch` set these fields"),
];

/// An answer that is not a success, or no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiRequestError {
    /// The server refused.
    #[error("{}", refusal(.0))]
    Refused(Box<Status>),
    /// There was no answer.
    #[error("{0}")]
    Unreachable(String),
    /// The answer makes no sense.
    #[error("the server's answer cannot be read: {0}")]
    Nonsense(String),
}

impl ApiRequestError {
    /// Whether the object is not there.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 404)
    }

    /// Whether something else is there already, or has changed meanwhile.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 409)
    }

    /// Whether the server does not take content of this type.
    pub(super) fn is_unsupported_media(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 415)
    }

    /// Whether the server would take it written differently: it found a fault in what it was sent.
    pub(super) fn is_of_content(&self) -> bool {
        matches!(self, Self::Refused(status) if matches!(status.code, 400 | 409 | 413 | 422))
    }

    /// Whether another manager has a field that is to be applied.
    pub(super) fn is_of_field_managers(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
        causes.iter().any(|cause| cause.reason == "FieldManagerConflict")
    }

    /// Whether the caller may not do it.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 403)
    }

    /// The same of a patch for this object: what the object is tells which field may have been meant.
    pub(super) fn of_patch(self, of: &ServedType, name: &str) -> anyhow::Error {
        let version = of.api_version();
        let about = About { version: &version, kind: &of.kind, name };
        let explained = match &self {
            Self::Refused(status) => unknown_fields::of_patch(status.message.trim(), Some(about)),
            _ => None,
        };
        explained.map_or_else(|| self.into(), anyhow::Error::msg)
    }

    /// Whether a revision is too old to go on from.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 410)
    }
}

/// In words: what kubectl says, with what to do about it.
pub(in crate::cli) fn refusal(status: &Status) -> String {
    let message = status.message.trim();
    if let Some(text) = unknown_fields::explained(message).or_else(|| unknown_fields::of_patch(message, None)) {
        return text;
    }
    let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
    match (status.code, status.reason.as_str()) {
        (401, _) if message.contains("certificate") => {
            format!("the server does not accept these credentials (401 Unauthorized): {message}")
        }
        (401, _) => "the server does not accept these credentials (401 Unauthorized): the certificate or token is \
                     unknown, expired or revoked. `slipway kubeconfig` on the appliance prints good ones"
            .into(),
        (403, _) => format!("forbidden: {message}"),
        (422, "Invalid") if causes.len() > 1 => {
            let head = message.split(" is invalid").next().unwrap_or_default();
            let lines: Vec<String> =
                causes.iter().map(|cause| format!("\n* {}: {}", cause.field, cause.message)).collect();
            format!("{head} is invalid:{}", lines.concat())
        }
        (422, "Invalid") => message.to_owned(),
        (409, "Conflict") if causes.iter().any(|cause| cause.reason == "FieldManagerConflict") => {
            let verbs = VERBS.iter().find(|(manager, _)| message.contains(&format!("\"{manager}\"")));
            let who = verbs.map_or("Somebody else manages these fields", |(_, who)| who);
            format!(
                "{message}\n{who}. Leave them out of what you apply, and they stay as they are; --force-conflicts takes them over"
            )
        }
        (code, "") => format!("error from server ({code}): {message}"),
        (_, reason) => format!("error from server ({reason}): {message}"),
    }
}

/// Why there was no answer, and what helps.
pub(super) fn unreachable(session: &ClientSession, error: &(dyn std::error::Error + 'static)) -> String {
    let mut reasons: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        reasons.push(error.to_string());
        next = error.source();
    }
    advice(&session.endpoint, &session.source, &reasons)
}

fn advice(endpoint: &str, source: &str, reasons: &[String]) -> String {
    let all = reasons.join(": ");
    let has = |word: &str| all.to_lowercase().contains(word);
    let last = reasons.last().map_or("no reason given", String::as_str);
    let from = format!("{endpoint} (from {source})");
    // Every appliance calls its CA the same: a wrong one is told by the signature.
    if has("unknownissuer") || has("badsignature") {
        return format!(
            "the certificate of {from} is not signed by the CA of the credentials: another server, or a new CA. \
             `slipway kubeconfig` on the appliance prints fresh ones"
        );
    }
    if has("notvalidforname") || has("not valid for name") {
        return format!(
            "the certificate of {from} is not made for this name: add it to api.names in slipway.toml. {last}"
        );
    }
    if has("certificate") || has("tls") || has("invalidcontenttype") {
        return format!("no TLS with {from}: {last}");
    }
    let reason = if has("connection refused") {
        "nothing listens there: is `slipway serve` running?".to_owned()
    } else if has("dns") || has("failed to lookup") {
        format!("the name cannot be resolved: {last}")
    } else {
        last.to_owned()
    };
    format!("cannot reach the server {from}: {reason}\nAnother server: --kubeconfig FILE, or $KUBECONFIG")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn refusals_say_what_to_do() {
        let status = |value: Value| refusal(&serde_json::from_value(value).unwrap());
        for (value, wanted) in [
            (json!({"code": 401, "reason": "Unauthorized", "message": "Unauthorized"}), "slipway kubeconfig"),
            (json!({"code": 401, "message": "the client certificate ended at x"}), "certificate ended at x"),
            (
                json!({"code": 403, "reason": "Forbidden", "message": "User \"x\" cannot list"}),
                "forbidden: User \"x\" cannot list",
            ),
            (json!({"code": 500, "reason": "InternalError", "message": "no"}), "error from server (InternalError): no"),
            (json!({"code": 503, "message": "no"}), "error from server (503): no"),
            (
                json!({"code": 422, "reason": "Invalid", "message": "B \"x\" is invalid: a: no", "details": {"causes": [{"field": "a", "message": "no"}]}}),
                "B \"x\" is invalid: a: no",
            ),
            (
                json!({"code": 422, "reason": "Invalid", "message": "B \"x\" is invalid: [a: no, b: bad]",
                    "details": {"causes": [{"field": "a", "message": "no"}, {"field": "b", "message": "bad"}]}}),
                "B \"x\" is invalid:\n* a: no\n* b: bad",
            ),
            (
                json!({"code": 409, "reason": "Conflict", "message": "Apply failed with 1 conflict",
                    "details": {"causes": [{"reason": "FieldManagerConflict"}]}}),
                "--force-conflicts",
            ),
            (
                json!({"code": 409, "reason": "Conflict", "message": "Apply failed with 1 conflict: conflict with \"slipway-host\": .spec.online",
                    "details": {"causes": [{"reason": "FieldManagerConflict"}]}}),
                "`slipway host …` set these fields. Leave them out of what you apply, and they stay as they are; --force-conflicts",
            ),
            (
                json!({"code": 422, "reason": "Invalid",
                    "message": "\"\" is invalid: patch: Invalid value: \"{…}\": strict decoding error: unknown field \"spec.x\""}),
                "spec.x: there is no such field",
            ),
        ] {
            let text = status(value.clone());
            assert!(text.contains(wanted), "{value}: {text}");
        }
    }

    #[test]
    fn without_an_answer_there_is_advice() {
        for (reason, wanted) in [
            ("tcp connect error: Connection refused (os error 111)", "is `slipway serve` running?"),
            ("invalid peer certificate: UnknownIssuer", "not signed by the CA"),
            ("invalid peer certificate: BadSignature", "not signed by the CA"),
            ("invalid peer certificate: NotValidForName", "api.names"),
            ("invalid peer certificate: Expired", "no TLS with"),
            ("dns error: failed to lookup address information", "cannot be resolved"),
            ("deadline has elapsed", "deadline has elapsed"),
        ] {
            let text = advice("https://a:1", "kubeconfig f", &["client error".into(), reason.into()]);
            assert!(text.contains(wanted) && text.contains("https://a:1 (from kubeconfig f)"), "{reason}: {text}");
        }
    }
}

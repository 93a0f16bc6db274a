//! A line of the audit log: an `audit.k8s.io/v1` Event, of level `Metadata`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::response::Response;
use http::{Method, header};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::apiserver::answers::status::shorten;
use crate::apiserver::requests::request::RequestTarget;

/// Characters kept of what a client may make long, of the path and query of a request, and of a name in it.
pub(super) const TEXT_MAX: usize = 256;
pub(super) const URI_MAX: usize = 512;
const NAME_MAX: usize = 253;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditObjectRef {
    pub resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

#[derive(Serialize)]
pub(super) struct EmptyMetadata {}

#[derive(Serialize)]
pub(super) struct AuditStatus<'e> {
    pub metadata: EmptyMetadata,
    pub status: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub message: &'e str,
    pub code: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'e str,
}

#[derive(Serialize)]
pub(super) struct AuditAnnotations<'e> {
    #[serde(rename = "slipway.dev/dry-run", skip_serializing_if = "str::is_empty")]
    pub dry_run: &'e str,
    #[serde(rename = "slipway.dev/field-manager", skip_serializing_if = "str::is_empty")]
    pub field_manager: &'e str,
    #[serde(rename = "slipway.dev/left-out", skip_serializing_if = "str::is_empty")]
    pub left_out: &'e str,
    #[serde(rename = "slipway.dev/outcome", skip_serializing_if = "str::is_empty")]
    pub outcome: &'e str,
    #[serde(rename = "slipway.dev/proof", skip_serializing_if = "str::is_empty")]
    pub proof: &'e str,
    /// `auditAnnotations` of webhooks, each with the webhook's name before its key.
    #[serde(flatten)]
    pub of_webhooks: BTreeMap<&'e str, &'e str>,
}

/// What webhooks want to be in the line, on its way with the answer.
#[derive(Clone, Debug)]
pub(in crate::apiserver) struct OfWebhooks(pub Vec<(String, String)>);

impl OfWebhooks {
    pub fn of(answer: &Response) -> BTreeMap<&str, &str> {
        let said = answer.extensions().get::<Self>().into_iter().flat_map(|said| &said.0);
        said.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditEvent<'e> {
    pub kind: &'e str,
    pub api_version: &'e str,
    pub level: &'e str,
    #[serde(rename = "auditID")]
    pub audit_id: uuid::Uuid,
    pub stage: &'e str,
    #[serde(rename = "requestURI")]
    pub request_uri: &'e str,
    pub verb: &'e str,
    pub user: &'e Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<&'e Value>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Option::is_none")]
    pub source_ips: Option<[IpAddr; 1]>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub user_agent: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<AuditObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<AuditStatus<'e>>,
    pub request_received_timestamp: String,
    pub stage_timestamp: String,
    pub annotations: AuditAnnotations<'e>,
}

impl AuditObjectRef {
    /// What the path names, be it there or not, so each part may be as long as a path.
    pub fn of(target: &RequestTarget) -> Self {
        let short = |text: &str| shorten(text, NAME_MAX);
        let text = |text: &Option<String>| short(text.as_deref().unwrap_or_default());
        Self {
            resource: short(&target.plural),
            namespace: text(&target.namespace),
            name: text(&target.name),
            api_group: short(&target.group),
            api_version: short(&target.version),
            subresource: text(&target.subresource),
        }
    }
}

/// What a method does to a resource; `watches` when the query asks for a watch.
pub(super) fn verb(method: &Method, target: &RequestTarget, watches: bool) -> Option<&'static str> {
    let named = target.name.is_some();
    match *method {
        Method::POST => Some("create"),
        Method::PUT => Some("update"),
        Method::PATCH => Some("patch"),
        Method::DELETE if named => Some("delete"),
        Method::DELETE => Some("deletecollection"),
        Method::GET if target.watch || (watches && !named) => Some("watch"),
        Method::GET if named => Some("get"),
        Method::GET => Some("list"),
        _ => None,
    }
}

/// Whether a request has a line: every change that is more than a question, and every reading of Secrets but the
/// appliance's own, which does so all the time.
pub(super) fn has_line(verb: &str, target: &RequestTarget, is_review: bool, in_process: bool) -> bool {
    match verb {
        "get" | "list" | "watch" => target.group.is_empty() && target.plural == "secrets" && !in_process,
        _ => !is_review,
    }
}

/// Whether a request that was answered so has changed nothing and shown nothing. A deletion of many may have stopped half-way.
pub(super) fn is_refusal(verb: &str, code: u16) -> bool {
    match verb {
        "deletecollection" => matches!(code, 400 | 401 | 403 | 404 | 405 | 406 | 415),
        _ => (400..500).contains(&code),
    }
}

pub(super) fn user_agent(headers: &http::HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    shorten(agent, TEXT_MAX)
}

/// A caller as UserInfo; nobody for many.
pub(super) fn caller_info(caller: Option<&str>) -> Value {
    caller.map_or_else(|| json!({}), |caller| json!({ "username": caller }))
}

pub(super) fn line(event: &AuditEvent<'_>) -> Option<Vec<u8>> {
    match serde_json::to_string(event) {
        Ok(line) => {
            let mut line = crate::log::escaped(&line).into_bytes();
            line.push(b'\n');
            Some(line)
        }
        Err(error) => {
            tracing::error!(%error, "cannot make a line of the audit log");
            None
        }
    }
}

/// Values of a query parameter, with commas between them.
pub(super) fn parameter(uri: &http::Uri, name: &str) -> String {
    let pairs =
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map(|pairs| pairs.0).unwrap_or_default();
    let values: Vec<String> = pairs.into_iter().filter(|(key, _)| key == name).map(|(_, value)| value).collect();
    shorten(&values.join(","), TEXT_MAX)
}

/// As Kubernetes' MicroTime.
pub(super) fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

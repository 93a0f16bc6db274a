//! Lines of failed logins and refused requests: queued where there is a place, else counted.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::event::{AuditAnnotations, AuditEvent, AuditObjectRef, AuditStatus, EmptyMetadata, line, micros};
use super::queue::{AuditLine, AuditMessage};
use crate::apiserver::requests::request::RequestTarget;

/// A failed login, or a number of them, or of refused requests.
pub(super) struct RefusedAttempts<'a> {
    pub(super) peer: Option<IpAddr>,
    pub(super) verb: &'static str,
    pub(super) uri: String,
    pub(super) agent: String,
    pub(super) target: Option<&'a RequestTarget>,
    pub(super) user: &'a Value,
    pub(super) proof: String,
    pub(super) message: &'a str,
    /// So many have no line of their own; 0 for one that has.
    pub(super) left_out: u64,
    pub(super) code: u16,
    pub(super) reason: &'static str,
}

/// Nobody, as UserInfo.
static NOBODY: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| json!({}));

impl Default for RefusedAttempts<'_> {
    fn default() -> Self {
        Self {
            peer: None,
            verb: "connect",
            uri: String::new(),
            agent: String::new(),
            target: None,
            user: &NOBODY,
            proof: String::new(),
            message: "",
            left_out: 0,
            code: 401,
            reason: "Unauthorized",
        }
    }
}

impl<'a> RefusedAttempts<'a> {
    /// Requests of a caller that were refused.
    pub(super) fn refused(user: &'a Value, left_out: u64) -> Self {
        let message = "further refused requests, which have no line of their own";
        Self { user, left_out, message, verb: "many", code: 403, reason: "Forbidden", ..Self::default() }
    }

    pub(super) fn left_out(peer: Option<IpAddr>, left_out: u64) -> Self {
        Self { peer, left_out, message: "further failed logins, which have no line of their own", ..Self::default() }
    }
}

/// Queues the line of an attempt, if there is a place.
pub(super) fn put(queue: &mpsc::Sender<AuditMessage>, attempt: &RefusedAttempts<'_>) -> bool {
    let now = Timestamp::now();
    let left_out = if attempt.left_out > 0 { attempt.left_out.to_string() } else { String::new() };
    let event = AuditEvent {
        kind: "Event",
        api_version: "audit.k8s.io/v1",
        level: "Metadata",
        audit_id: uuid::Uuid::new_v4(),
        stage: "ResponseComplete",
        request_uri: &attempt.uri,
        verb: attempt.verb,
        user: attempt.user,
        impersonated_user: None,
        source_ips: attempt.peer.map(|peer| [peer]),
        user_agent: &attempt.agent,
        object_ref: attempt.target.map(AuditObjectRef::of),
        response_status: Some(AuditStatus {
            metadata: EmptyMetadata {},
            status: "Failure",
            message: attempt.message,
            code: attempt.code,
            reason: attempt.reason,
        }),
        request_received_timestamp: micros(now),
        stage_timestamp: micros(now),
        annotations: AuditAnnotations {
            dry_run: "",
            field_manager: "",
            left_out: &left_out,
            outcome: "",
            proof: &attempt.proof,
            of_webhooks: BTreeMap::new(),
        },
    };
    line(&event).is_some_and(|line| queue.try_send(AuditMessage::Line(AuditLine::of_nobody(line))).is_ok())
}

//! A change under way, whose line is written when it ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use http::request;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::event::{
    AuditAnnotations, AuditEvent, AuditObjectRef, AuditStatus, EmptyMetadata, TEXT_MAX, URI_MAX, has_line, is_refusal,
    line, micros, parameter, user_agent, verb,
};
use super::queue::QueuePlace;
use super::room::AuditRoom;
use super::volume::LineOwner;
use super::{Audit, CallerLimits, CreatedName, OfWebhooks, lock};
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::auth::UserIdentity;
use crate::apiserver::kinds::registry::ResourceRegistry;
use crate::apiserver::listener::tls::Peer;
use crate::apiserver::requests::request::{self as asked, RequestTarget};
use crate::apiserver::shares::caller_shares;

/// A change under way, whose line is written when it ends, however it ends.
pub(in crate::apiserver) struct PendingAudit {
    place: Option<QueuePlace>,
    pub(super) limits: Arc<Mutex<CallerLimits>>,
    pub(super) room: Option<AuditRoom>,
    /// As whom it counts; nobody: Slipway itself, whose refused requests all have their line.
    pub(super) caller: Option<String>,
    received: Timestamp,
    pub(super) verb: &'static str,
    pub(super) uri: String,
    pub(super) agent: String,
    pub(super) peer: Option<IpAddr>,
    pub(super) target: RequestTarget,
    pub(super) user: Value,
    impersonated: Option<Value>,
    pub(super) proof: String,
    pub(super) dry_run: String,
    pub(super) field_manager: String,
}

impl PendingAudit {
    /// Begins the line of a change, or of a reading of Secrets. `None` for what has no line.
    ///
    /// # Errors
    ///
    /// 503 when there is no place for the line.
    pub(in crate::apiserver) async fn begin(
        audit: &Audit,
        identity: &UserIdentity,
        parts: &request::Parts,
        target: &RequestTarget,
        registry: &ResourceRegistry,
    ) -> Result<Option<Self>, ApiError> {
        let watches = parts.uri.query().is_some_and(asked::asks_to_watch);
        let Some(verb) = verb(&parts.method, target, watches) else { return Ok(None) };
        // A kind that somebody defined in a group of reviews is no review.
        let is_review = || {
            let resource = registry.find(&target.group, &target.version, &target.plural);
            resource.is_some_and(|resource| resource.policy == crate::api::StoragePolicy::Review)
        };
        if !has_line(verb, target, is_review(), identity.is_in_process()) {
            return Ok(None);
        }
        Self::new(audit, identity, parts, verb, target).await.map(Some)
    }

    /// Begins the line of a read that has one: of something beside the API that is more than any object.
    ///
    /// # Errors
    ///
    /// As [`PendingAudit::begin`].
    pub(in crate::apiserver) async fn begin_beside(
        audit: &Audit,
        identity: &UserIdentity,
        parts: &request::Parts,
    ) -> Result<Self, ApiError> {
        Self::new(audit, identity, parts, "get", &RequestTarget::default()).await
    }

    pub(super) async fn new(
        audit: &Audit,
        identity: &UserIdentity,
        parts: &request::Parts,
        verb: &'static str,
        target: &RequestTarget,
    ) -> Result<Self, ApiError> {
        let received = Timestamp::now();
        let by = identity.impersonator.as_deref().unwrap_or(identity);
        let caller = (!by.is_in_process()).then(|| shorten(caller_shares::caller(&by.user), TEXT_MAX));
        let place = audit.queue.reserve(caller.as_deref()).await?;
        let has_query = parts.uri.query().is_some();
        let of_query = |name| if has_query { parameter(&parts.uri, name) } else { String::new() };
        Ok(Self {
            place: Some(place),
            limits: Arc::clone(&audit.limits),
            room: audit.room.clone(),
            caller,
            received,
            verb,
            uri: shorten(parts.uri.path_and_query().map_or("", |path| path.as_str()), URI_MAX),
            agent: user_agent(&parts.headers),
            peer: parts.extensions.get::<Peer>().map(|peer| peer.0.ip()),
            target: target.clone(),
            user: by.user_info(),
            impersonated: identity.impersonator.is_some().then(|| identity.user_info()),
            proof: by.proof.to_string(),
            dry_run: of_query("dryRun"),
            field_manager: of_query("fieldManager"),
        })
    }

    /// Ends it with the answer.
    pub(in crate::apiserver) fn end(mut self, answer: &Result<axum::response::Response, ApiError>) {
        let (code, reason) = match answer {
            Ok(response) => (response.status().as_u16(), ""),
            Err(error) => (error.code.as_u16(), &*error.reason),
        };
        if let Some(caller) = self.caller.as_ref().filter(|_| is_refusal(self.verb, code))
            && !lock(&self.limits).refusals.take(Instant::now(), Some(caller.clone()))
        {
            // It is counted, and its place given back.
            self.place = None;
            return;
        }
        let made = answer.as_ref().ok().and_then(|response| response.extensions().get::<CreatedName>());
        if let Some(CreatedName(name)) = made.filter(|_| self.target.name.is_none()) {
            self.target.name = Some(name.clone());
        }
        let status = if code < 400 { "Success" } else { "Failure" };
        // A watch has only begun.
        let stage = if self.verb == "watch" && code < 400 { "ResponseStarted" } else { "ResponseComplete" };
        let said = answer.as_ref().map(OfWebhooks::of).unwrap_or_default();
        self.write(
            stage,
            Some(AuditStatus { metadata: EmptyMetadata {}, status, message: "", code, reason }),
            "",
            said,
        );
    }

    pub(super) fn write(
        &mut self,
        stage: &str,
        status: Option<AuditStatus<'_>>,
        outcome: &str,
        of_webhooks: BTreeMap<&str, &str>,
    ) {
        let Some(place) = self.place.take() else { return };
        let event = AuditEvent {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: uuid::Uuid::new_v4(),
            stage,
            request_uri: &self.uri,
            verb: self.verb,
            user: &self.user,
            impersonated_user: self.impersonated.as_ref(),
            source_ips: self.peer.map(|peer| [peer]),
            user_agent: &self.agent,
            object_ref: (!self.target.plural.is_empty()).then(|| AuditObjectRef::of(&self.target)),
            response_status: status,
            request_received_timestamp: micros(self.received),
            stage_timestamp: micros(Timestamp::now()),
            annotations: AuditAnnotations {
                dry_run: &self.dry_run,
                field_manager: &self.field_manager,
                left_out: "",
                outcome,
                proof: &self.proof,
                of_webhooks,
            },
        };
        if let Some(line) = line(&event) {
            let little_room = self.room.as_ref().is_some_and(AuditRoom::is_little);
            let (now, whose) = (Instant::now(), self.whose());
            let is_beyond = lock(&self.limits).volumes.is_beyond(now, whose, line.len(), little_room);
            place.put(line, is_beyond);
        }
    }

    fn whose(&self) -> LineOwner {
        let Some(caller) = &self.caller else {
            let AuditObjectRef { resource, namespace, name, .. } = AuditObjectRef::of(&self.target);
            return LineOwner::Object(resource, namespace, name);
        };
        LineOwner::Caller(caller.clone())
    }
}

impl Drop for PendingAudit {
    fn drop(&mut self) {
        let outcome = "unknown: the client went away or the server failed before the answer";
        self.write("Panic", None, outcome, BTreeMap::new());
    }
}

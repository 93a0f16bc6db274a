//! The calls of agents: each is read within its limits, belongs to a session, and is answered.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn, map_request};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::progress_rate::{EventWorth, ProgressDue};
use super::request_limits::Origin;
use super::session::{self, SessionCaller};
use super::steps::StepState;
use super::{Sessions, agent_identity};
use crate::api::slipway::BootIntent;
use crate::apiserver::tls::{Peer, PeerConnection};
use crate::boot::{BootTokenClaims, download_scheduler};
use crate::host::discovery::DiscoveryService;
use crate::host::refused::AgentRefused;
use crate::host::status::agent_metrics::kind;
use crate::image::serve;
use crate::log::{escaped_lines, named};
use crate::protocol::{AgentSession, MAX_CALL, MAX_LOG, MAX_RESULT, OpenSession, StepEvent, StepOutcome};
use crate::ration::Rank;

/// Largest report of an unknown machine, in bytes: many of them are kept.
const MAX_REPORT: usize = MAX_RESULT / 4;
/// Address of who has none.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Everything under `/agent/v1`. Expects the peer's address as [`Peer`].
pub(super) fn router(sessions: Sessions) -> Router {
    let (known, metrics) = (sessions.clone(), sessions.metrics().clone());
    let counted = move |path: MatchedPath, request: Request, next: Next| {
        let metrics = metrics.clone();
        async move { metrics.agents().answers.count(kind(path.as_str()), next.run(request).await) }
    };
    Router::new()
        .route("/agent/v1/session", post(open))
        .route("/agent/v1/step", get(next_step))
        .route("/agent/v1/event", post(event))
        .route("/agent/v1/result", post(result))
        .route("/agent/v1/log", post(log))
        .route("/agent/v1/manifest/{digest}", get(manifest))
        .route("/agent/v1/chunk/{sha256}", get(chunk))
        .with_state(sessions)
        .route_layer(from_fn(counted))
        .layer(map_request(move |request: Request| std::future::ready(known.vouched(request))))
}

/// The caller, by the headers alone: no byte of a body is read before it is known.
enum CallerHeaders {
    /// An unknown machine that reports itself, from this address.
    Visitor(DiscoveryService, BootTokenClaims, IpAddr),
    /// A host's agent.
    Host(SessionCaller),
}

impl CallerHeaders {
    fn origin(&self) -> Origin {
        match self {
            Self::Visitor(_, _, peer) => Origin::Visitor(*peer),
            Self::Host(SessionCaller { namespace, name, .. }) => {
                Origin::Host { namespace: namespace.clone(), name: name.clone() }
            }
        }
    }
}

impl FromRequestParts<Sessions> for CallerHeaders {
    type Rejection = AgentRefused;

    async fn from_request_parts(parts: &mut Parts, sessions: &Sessions) -> Result<Self, AgentRefused> {
        if let Some((discovery, visit)) = sessions.visitor(&parts.headers) {
            discovery.still_there(&visit)?;
            let peer = parts.extensions.get::<Peer>().map_or(NOBODY, |Peer(address)| address.ip());
            return Ok(Self::Visitor(discovery.clone(), visit, peer));
        }
        Ok(Self::Host(SessionCaller::from_request_parts(parts, sessions).await?))
    }
}

impl FromRequestParts<Sessions> for SessionCaller {
    type Rejection = AgentRefused;

    async fn from_request_parts(parts: &mut Parts, sessions: &Sessions) -> Result<Self, AgentRefused> {
        let peer = parts.extensions.get::<Peer>().map_or(NOBODY, |Peer(address)| address.ip());
        sessions.authenticate(&parts.headers, peer).await
    }
}

impl Sessions {
    /// The visit that the bearer token stands for, when it is a visitor's.
    fn visitor(&self, headers: &HeaderMap) -> Option<(&DiscoveryService, BootTokenClaims)> {
        let discovery = self.0.discovery.get()?;
        Some((discovery, self.0.tokens.verify_visit_session(bearer(headers)?).ok()?))
    }

    /// The connection of a host's agent is no stranger's.
    fn vouched(&self, request: Request) -> Request {
        let claims = bearer(request.headers()).and_then(|token| self.0.tokens.verify_session(token).ok());
        if let (Some(claims), Some(connection)) = (claims, request.extensions().get::<PeerConnection>()) {
            connection.vouch(&format!("agent:{}", claims.uid));
        }
        request
    }

    /// The session that the bearer token stands for, if it is still the current one.
    async fn authenticate(&self, headers: &HeaderMap, peer: IpAddr) -> Result<SessionCaller, AgentRefused> {
        let refuse = |reason: &str| AgentRefused(StatusCode::UNAUTHORIZED, reason.to_owned());
        let token = bearer(headers).ok_or_else(|| refuse("no session"))?;
        let claims = self.0.tokens.verify_session(token).map_err(|error| refuse(&error.to_string()))?;
        let host = self.0.index.by_uid(&claims.uid).ok_or_else(|| refuse("the host is gone"))?;
        let remembered = self.0.intents.follow(&host.namespace, &host.name).borrow().clone();
        let known = |intent: &BootIntent| Some((session::cards_of(intent, &claims)?, session::images_of(intent)));
        let (cards, images) = match remembered.and_then(|intent| known(&intent)) {
            Some(known) => known,
            None => {
                // The memory may be a moment behind a session that was just opened: the API has the last word.
                let stored = self.api(&host.namespace).get_opt(&host.name).await?;
                stored
                    .and_then(|intent| known(&intent))
                    .ok_or_else(|| refuse("this session has ended: the host was given another boot intent"))?
            }
        };
        self.still_here(&claims, &host, &cards, peer).await?;
        self.metrics().agents().called(&host.uid, Instant::now());
        let (namespace, name, uid) = (host.namespace.clone(), host.name.clone(), host.uid.clone());
        Ok(SessionCaller { namespace, name, uid, generation: claims.generation, images })
    }

    /// Whether the caller is to be given this: whether it is of an image that the boot's steps name.
    async fn may_read(&self, caller: &SessionCaller, part: ImagePart<'_>) -> Result<bool, AgentRefused> {
        for image in &caller.images {
            if self.is_of(image, part).await? {
                return Ok(true);
            }
        }
        // What is remembered may be a moment behind the step that the agent has: the API has the last word.
        let stored = self.api(&caller.namespace).get_opt(&caller.name).await?;
        let stored = stored.filter(|intent| intent.spec.generation == caller.generation);
        for image in stored.as_ref().map(session::images_of).unwrap_or_default() {
            if !caller.images.contains(&image) && self.is_of(&image, part).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn is_of(&self, image: &str, part: ImagePart<'_>) -> Result<bool, AgentRefused> {
        match part {
            ImagePart::Manifest(digest) => Ok(image == digest),
            ImagePart::Chunk(sha256) => self.has_chunk(image, sha256).await,
        }
    }

    /// A place among those who read images: a host has a few of them.
    async fn place(&self, caller: &SessionCaller) -> Result<download_scheduler::DownloadPermit, AgentRefused> {
        let host = format!("{}/{}", caller.namespace, caller.name);
        let place = self.0.downloads.acquire(download_scheduler::DownloadClient::Host(host), Rank::Known).await;
        place.map_err(|error| AgentRefused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
    }

    /// Whether an image has a chunk.
    async fn has_chunk(&self, digest: &str, sha256: &str) -> Result<bool, AgentRefused> {
        let library = &self.0.library;
        if let Some(known) = library.is_known_to_have(digest, sha256) {
            return Ok(known);
        }
        let (library, image, name) = (library.clone(), digest.to_owned(), sha256.to_owned());
        let looked = tokio::task::spawn_blocking(move || library.has_chunk(&image, &name)).await;
        looked.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
            warn!(digest, %error, "cannot tell which chunks an image has");
            AgentRefused(StatusCode::SERVICE_UNAVAILABLE, "the image cannot be read at the moment".into())
        })
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

async fn open(
    State(sessions): State<Sessions>,
    peer: Option<Extension<Peer>>,
    body: Body,
) -> Result<Json<AgentSession>, AgentRefused> {
    let peer = peer.map_or(NOBODY, |Extension(Peer(address))| address.ip());
    let taken = sessions.0.limits.json::<OpenSession>(&Origin::Opening(peer), body, MAX_CALL).await?;
    let call = &taken.value;
    match sessions.open(peer, call).await {
        Ok(session) => Ok(Json(session)),
        Err(refused) => {
            let macs = agent_identity::shown(&agent_identity::addresses(call));
            warn!(%peer, macs, reason = %refused.1, "agent refused: it gets no session");
            Err(refused)
        }
    }
}

#[derive(Deserialize)]
struct AfterQuery {
    #[serde(default)]
    after: String,
}

async fn next_step(
    State(sessions): State<Sessions>,
    who: CallerHeaders,
    Query(AfterQuery { after }): Query<AfterQuery>,
) -> Result<Response, AgentRefused> {
    let step = match who {
        CallerHeaders::Visitor(discovery, visit, _) => discovery.next_step(&visit).await?,
        CallerHeaders::Host(caller) => sessions.next_step(&caller, &after).await?,
    };
    Ok(step.map_or_else(|| StatusCode::NO_CONTENT.into_response(), |step| Json(step).into_response()))
}

async fn event(State(sessions): State<Sessions>, who: CallerHeaders, body: Body) -> Result<StatusCode, AgentRefused> {
    let event = sessions.0.limits.json::<StepEvent>(&who.origin(), body, MAX_CALL).await?.value;
    // A visitor's progress is of no interest.
    let CallerHeaders::Host(caller) = who else { return Ok(StatusCode::NO_CONTENT) };
    if sessions.still_wanted(&caller, &event.step).await? == StepState::Ended {
        return Ok(StatusCode::NO_CONTENT);
    }
    let key = (caller.namespace.clone(), caller.name.clone());
    let EventWorth { rate, due } = sessions.0.meter.see(key.clone(), &event, Instant::now());
    match due {
        ProgressDue::No => {}
        ProgressDue::Now => sessions.record_progress(&caller, &event, rate).await?,
        // One at a time for each host.
        ProgressDue::In(pause) => drop(tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let Some((event, rate)) = sessions.0.meter.take(&key, Instant::now()) else { return };
            if let Err(AgentRefused(_, reason)) = sessions.record_progress(&caller, &event, rate).await {
                debug!(host = %named(&key.0, &key.1), reason, "cannot store the progress of a step");
            }
        })),
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn result(State(sessions): State<Sessions>, who: CallerHeaders, body: Body) -> Result<StatusCode, AgentRefused> {
    let (limits, origin) = (&sessions.0.limits, who.origin());
    let reported = &sessions.metrics().agents().report_bytes;
    match who {
        CallerHeaders::Visitor(discovery, visit, _) => {
            let outcome = limits.json::<StepOutcome>(&origin, body, MAX_REPORT).await?;
            reported.inc_by(outcome.size as u64);
            discovery.result(&visit, &outcome.value).await?;
        }
        CallerHeaders::Host(caller) => {
            let outcome = limits.json::<StepOutcome>(&origin, body, MAX_RESULT).await?;
            reported.inc_by(outcome.size as u64);
            // One that is told again is stored already.
            if sessions.still_wanted(&caller, &outcome.value.step).await? == StepState::Planned {
                sessions.end_step(&caller, &outcome.value).await?;
            }
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn log(State(sessions): State<Sessions>, who: CallerHeaders, body: Body) -> Result<StatusCode, AgentRefused> {
    let body = sessions.0.limits.bytes(&who.origin(), body, MAX_LOG).await?;
    // A visitor's is not kept: it would be anybody's way to fill the disk.
    let CallerHeaders::Host(caller) = who else { return Ok(StatusCode::NO_CONTENT) };
    let size = body.size as u64;
    let (logs, key) = (sessions.0.logs.clone(), (caller.namespace.clone(), caller.name.clone()));
    let append = move || logs.append(&key.0, &key.1, caller.generation, &escaped_lines(&body.value));
    match tokio::task::spawn_blocking(append).await {
        Ok(Ok(())) => {
            sessions.metrics().agents().log_bytes.inc_by(size);
            Ok(StatusCode::NO_CONTENT)
        }
        Ok(Err(error)) => {
            warn!(host = %named(&caller.namespace, &caller.name), %error, "cannot store the agent's log");
            Err(AgentRefused(StatusCode::INSUFFICIENT_STORAGE, "the log cannot be kept".into()))
        }
        Err(error) => Err(AgentRefused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

async fn manifest(
    State(sessions): State<Sessions>,
    caller: SessionCaller,
    headers: HeaderMap,
    Path(digest): Path<String>,
) -> Result<Response, AgentRefused> {
    if !sessions.may_read(&caller, ImagePart::Manifest(&digest)).await? {
        return Err(not_given());
    }
    let place = sessions.place(&caller).await?;
    let answer = serve::serve_manifest(&sessions.0.library, &digest, &headers).await;
    Ok(answer.map(|body| place.hold(body, CancellationToken::new())))
}

async fn chunk(
    State(sessions): State<Sessions>,
    caller: SessionCaller,
    headers: HeaderMap,
    Path(sha256): Path<String>,
) -> Result<Response, AgentRefused> {
    if !sessions.may_read(&caller, ImagePart::Chunk(&sha256)).await? {
        return Err(not_given());
    }
    let place = sessions.place(&caller).await?;
    let answer = serve::serve_chunk(&sessions.0.library, &sha256, &headers).await;
    Ok(answer.map(|body| place.hold(body, CancellationToken::new())))
}

/// What an agent reads of an image, by its name.
#[derive(Clone, Copy)]
enum ImagePart<'a> {
    Manifest(&'a str),
    Chunk(&'a str),
}

/// The answer is the same whether there is such an image or not.
fn not_given() -> AgentRefused {
    AgentRefused(StatusCode::NOT_FOUND, "no step of this boot names an image that has this".into())
}

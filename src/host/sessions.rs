//! The appliance's side of the agent protocol: sessions, steps, progress, results ([`crate::protocol`]).
//!
//! A session lives as long as the boot intent's generation that its token was made for. The session's record
//! is in the intent's status, so that a restart of the appliance costs an agent nothing but a repeated call.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::map_request;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::agent_body::{Intake, Whose};
use super::caller;
use super::discovery::Discovery;
use super::logs::Logs;
use super::meter::{Due, Meter, Seen};
use super::metrics::Metrics;
use super::payload;
use super::watches::Intents;
use crate::api::MacAddress;
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost};
use crate::api::slipway::{
    BootIntent, BootIntentStatus, BootTarget, IntentStep, SessionStatus, StepProgress, StepResult,
};
use crate::apiserver::tls::{Peer, Standing};
use crate::boot::neighbour::{Neighbours, another_card};
use crate::boot::{BootHost, Claims, HostIndex, Lanes, Tokens, lanes};
use crate::image::{Library, serve};
use crate::log::{escaped_lines, named};
use crate::protocol::{
    Event, MAX_CALL, MAX_LOG, MAX_RESULT, OpenSession, Refusal, STEP_WAIT_SECONDS, Session, StepOutcome,
};
use crate::ration::Rank;

/// How often `lastSeen` is written while an agent only waits.
const SEEN_EVERY: Duration = Duration::from_secs(10);
/// Lines of a node's log kept in the intent when a step fails.
const LOG_LINES: usize = 200;
/// Characters of an agent's word in a line of the log.
const LOGGED: usize = 500;
/// Results kept in an intent.
const RESULTS: usize = 32;
/// Largest report of an unknown machine, in bytes: many of them are kept.
const MAX_REPORT: usize = MAX_RESULT / 4;
/// Address of who has none.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// Tries of a write that collides with another.
const WRITE_TRIES: usize = 8;

/// What the sessions work with. Cheap to clone.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    client: Client,
    index: HostIndex,
    intents: Intents,
    tokens: Arc<Tokens>,
    library: Library,
    logs: Logs,
    meter: Meter,
    discovery: OnceLock<Discovery>,
    lanes: Lanes,
    intake: Intake,
    metrics: OnceLock<Metrics>,
    neighbours: OnceLock<Neighbours>,
    drives: payload::Drives,
}

/// Why a call was refused: status, and words for the node's console.
#[derive(Debug)]
pub(super) struct Refused(pub StatusCode, pub String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Refusal { reason: self.1 })).into_response()
    }
}

impl From<kube::Error> for Refused {
    fn from(error: kube::Error) -> Self {
        warn!(%error, "cannot answer an agent: the API failed");
        match error {
            kube::Error::Api(status) if matches!(status.code, 400 | 403 | 413 | 422) => {
                Self(StatusCode::UNPROCESSABLE_ENTITY, format!("the appliance cannot store this: {}", status.message))
            }
            _ => Self(StatusCode::SERVICE_UNAVAILABLE, "the appliance cannot answer now; try again".into()),
        }
    }
}

/// The caller, by the headers alone: no byte of a body is read before it is known.
enum Who {
    /// An unknown machine that reports itself, from this address.
    Visitor(Discovery, Claims, IpAddr),
    /// A host's agent.
    Host(Caller),
}

impl Who {
    fn whose(&self) -> Whose {
        match self {
            Self::Visitor(_, _, peer) => Whose::Visitor(*peer),
            Self::Host(Caller { namespace, name, .. }) => {
                Whose::Host { namespace: namespace.clone(), name: name.clone() }
            }
        }
    }
}

impl FromRequestParts<Sessions> for Who {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, sessions: &Sessions) -> Result<Self, Refused> {
        if let Some((discovery, visit)) = sessions.visitor(&parts.headers) {
            discovery.still_there(&visit)?;
            let peer = parts.extensions.get::<Peer>().map_or(NOBODY, |Peer(address)| address.ip());
            return Ok(Self::Visitor(discovery.clone(), visit, peer));
        }
        Ok(Self::Host(sessions.authenticate(&parts.headers).await?))
    }
}

/// The session that a call belongs to.
struct Caller {
    namespace: String,
    name: String,
    generation: i64,
}

impl Sessions {
    /// `logs` is where nodes' logs are kept; chunks of images take their turn in `lanes`.
    pub fn new(
        client: Client,
        index: HostIndex,
        intents: Intents,
        tokens: Arc<Tokens>,
        library: Library,
        logs: Logs,
        lanes: Lanes,
    ) -> Self {
        let (meter, discovery, metrics) = (Meter::default(), OnceLock::new(), OnceLock::new());
        let (intake, neighbours) = (Intake::default(), OnceLock::new());
        Self(Arc::new(Inner {
            client,
            index,
            intents,
            tokens,
            library,
            logs,
            meter,
            discovery,
            lanes,
            intake,
            metrics,
            neighbours,
            drives: payload::Drives::default(),
        }))
    }

    /// Counts what goes wrong in these.
    #[must_use]
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        self.0.metrics.set(metrics).ok();
        self
    }

    /// Looks which network card answers where a boot's token was given to.
    #[must_use]
    pub fn with_neighbours(self, neighbours: Neighbours) -> Self {
        self.0.neighbours.set(neighbours).ok();
        self
    }

    /// Also takes the reports of machines that no host has.
    #[must_use]
    pub fn with_discovery(self, discovery: Discovery) -> Self {
        self.0.discovery.set(discovery).ok();
        self
    }

    /// The visit that the bearer token stands for, when it is a visitor's.
    fn visitor(&self, headers: &HeaderMap) -> Option<(&Discovery, Claims)> {
        let discovery = self.0.discovery.get()?;
        Some((discovery, self.0.tokens.verify_visit_session(bearer(headers)?).ok()?))
    }

    /// Everything under `/agent/v1`. Expects the peer's address as [`Peer`].
    pub fn router(self) -> Router {
        let known = self.clone();
        Router::new()
            .route("/agent/v1/session", post(open))
            .route("/agent/v1/step", get(next_step))
            .route("/agent/v1/event", post(event))
            .route("/agent/v1/result", post(result))
            .route("/agent/v1/log", post(log))
            .route("/agent/v1/manifest/{digest}", get(manifest))
            .route("/agent/v1/chunk/{sha256}", get(chunk))
            .with_state(self)
            .layer(map_request(move |request: Request| std::future::ready(known.vouched(request))))
    }

    /// The connection of a host's agent is no stranger's.
    fn vouched(&self, request: Request) -> Request {
        let session = bearer(request.headers()).is_some_and(|token| self.0.tokens.verify_session(token).is_ok());
        if let (true, Some(standing)) = (session, request.extensions().get::<Standing>()) {
            standing.vouch();
        }
        request
    }

    fn api(&self, namespace: &str) -> Api<BootIntent> {
        Api::namespaced(self.0.client.clone(), namespace)
    }

    /// The session that the bearer token stands for, if it is still the current one.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        let refuse = |reason: &str| Refused(StatusCode::UNAUTHORIZED, reason.to_owned());
        let token = bearer(headers).ok_or_else(|| refuse("no session"))?;
        let claims = self.0.tokens.verify_session(token).map_err(|error| refuse(&error.to_string()))?;
        let host = self.0.index.by_uid(&claims.uid).ok_or_else(|| refuse("the host is gone"))?;
        let remembered = self.0.intents.follow(&host.namespace, &host.name).borrow().clone();
        if !remembered.is_some_and(|intent| is_current(&intent, &claims)) {
            // The memory may be a moment behind a session that was just opened: the API has the last word.
            let stored = self.api(&host.namespace).get_opt(&host.name).await?;
            if !stored.is_some_and(|intent| is_current(&intent, &claims)) {
                return Err(refuse("this session has ended: the host was given another boot intent"));
            }
        }
        let (namespace, name) = (host.namespace.clone(), host.name.clone());
        Ok(Caller { namespace, name, generation: claims.generation })
    }

    /// Changes the session's record; durable when it returns. Refuses when the generation has moved on.
    async fn record(
        &self,
        caller: &Caller,
        change: impl Fn(&mut BootIntentStatus, &BootIntent),
    ) -> Result<(), Refused> {
        let api = self.api(&caller.namespace);
        for _ in 0..WRITE_TRIES {
            let intent = api.get(&caller.name).await?;
            if intent.spec.generation != caller.generation {
                return Err(Refused(StatusCode::GONE, "this session has ended".into()));
            }
            let mut status = intent.status.clone().unwrap_or_default();
            if let Some(session) = &mut status.session {
                session.last_seen = Some(Time(Timestamp::now()));
                session.used = true;
            }
            change(&mut status, &intent);
            let changed = BootIntent { status: Some(status), ..intent };
            match api.replace_status(&caller.name, &PostParams::default(), &changed).await {
                Err(kube::Error::Api(error)) if error.is_conflict() => {}
                written => return Ok(written.map(|_| ())?),
            }
        }
        Err(Refused(StatusCode::SERVICE_UNAVAILABLE, "too many writers at once; try again".into()))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// Why a token that was given to one address is of no use at another. `card` is the network card that answers at the other,
/// `own` are the machine's. Where nobody here gave the first address, the machine may have another by now: its card shows
/// so, and where no card can be seen it has to wait.
pub(super) fn bound_elsewhere(
    claims: &Claims,
    peer: IpAddr,
    card: Option<MacAddress>,
    own: &[MacAddress],
    now: i64,
) -> Result<(), Refused> {
    let Some(address) = claims.address.filter(|address| peer.to_canonical() != IpAddr::V4(*address)) else {
        return Ok(());
    };
    let reason = format!("this boot's token was given to {address}, and this call comes from {peer}");
    match (claims.first, card) {
        (true, Some(card)) if own.contains(&card) => Ok(()),
        (true, None) => match claims.others_wait(now) {
            None => Ok(()),
            // The agent asks again for as long as its token is good.
            Some(left) => {
                let reason = format!("{reason}: it can be used there in {} s", left.as_secs() + 1);
                Err(Refused(StatusCode::SERVICE_UNAVAILABLE, reason))
            }
        },
        _ => Err(Refused(StatusCode::FORBIDDEN, reason)),
    }
}

fn is_current(intent: &BootIntent, claims: &Claims) -> bool {
    let session = intent.status.as_ref().and_then(|status| status.session.as_ref());
    intent.spec.generation == claims.generation
        && intent.spec.target == BootTarget::Ramdisk
        && session.is_some_and(|s| s.generation == claims.generation && s.token_nonce == claims.nonce_hex())
}

async fn open(
    State(sessions): State<Sessions>,
    peer: Option<Extension<Peer>>,
    body: Body,
) -> Result<Json<Session>, Refused> {
    let peer = peer.map_or(NOBODY, |Extension(Peer(address))| address.ip());
    let taken = sessions.0.intake.json::<OpenSession>(&Whose::Opening(peer), body, MAX_CALL).await?;
    let call = &taken.value;
    match sessions.open(peer, call).await {
        Ok(session) => Ok(Json(session)),
        Err(refused) => {
            let macs = caller::shown(&caller::addresses(call));
            warn!(%peer, macs, reason = %refused.1, "agent refused: it gets no session");
            Err(refused)
        }
    }
}

impl Sessions {
    async fn open(&self, peer: IpAddr, call: &OpenSession) -> Result<Session, Refused> {
        let refuse = |reason: String| Refused(StatusCode::FORBIDDEN, reason);
        if let (Some(discovery), Ok(claims)) = (self.0.discovery.get(), self.0.tokens.verify_visit(&call.token)) {
            let own: Vec<MacAddress> = claims.uid.parse().into_iter().collect();
            self.here(&claims, peer, &own).await?;
            let host = discovery.open(&claims, peer, call).await?;
            let session = self.0.tokens.visit_session(&claims);
            return Ok(Session { session, host, generation: 0, now: Timestamp::now().as_second() });
        }
        let claims = self.0.tokens.verify(&call.token).map_err(|error| refuse(error.to_string()))?;
        let host = self.0.index.by_uid(&claims.uid);
        self.here(&claims, peer, host.as_deref().map_or(&[], |host| &host.macs)).await?;
        let answers = self.neighbour(claims.address.filter(|_| !claims.first)).await;
        let host = host.ok_or_else(|| refuse("the host that this token was made for is gone".into()))?;
        if host.standing.paused {
            // It may be for a moment only: the agent asks again for as long as its token is good.
            let reason = format!("the host is paused by its annotation {ANNOTATION_PAUSED}");
            return Err(Refused(StatusCode::SERVICE_UNAVAILABLE, reason));
        }
        let api = self.api(&host.namespace);
        for _ in 0..WRITE_TRIES {
            let intent = api.get_opt(&host.name).await?.ok_or_else(|| refuse("the host has no boot intent".into()))?;
            if !intent.is_of(&host.uid) {
                return Err(refuse("the boot intent is that of a former host of this name".into()));
            }
            may_open(&intent, &claims, peer).map_err(&refuse)?;
            if let Some(address) = claims.address.filter(|_| !claims.first) {
                let own = caller::cards(&host, &intent, call);
                another_card(address, answers, &own).map_or(Ok(()), |reason| Err(refuse(reason)))?;
            }
            if let Some(reason) = self.another_machine(&host, &intent, call).await? {
                match self.end_boot(&api, &intent, &reason).await {
                    Err(kube::Error::Api(error)) if error.is_conflict() => continue,
                    ended => ended?,
                }
                return Err(refuse(reason));
            }
            let now = Time(Timestamp::now());
            let session = SessionStatus {
                generation: claims.generation,
                token_nonce: claims.nonce_hex(),
                address: peer.to_string(),
                opened: Some(now.clone()),
                last_seen: Some(now),
                used: false,
            };
            // Results and log of an earlier boot end here.
            let status = BootIntentStatus { session: Some(session), ..BootIntentStatus::default() };
            let changed = BootIntent { status: Some(status), ..intent };
            match api.replace_status(&host.name, &PostParams::default(), &changed).await {
                Err(kube::Error::Api(error)) if error.is_conflict() => continue,
                written => drop(written?),
            }
            let name = format!("{}/{}", host.namespace, host.name);
            let (logs, begun) = (self.0.logs.clone(), host.clone());
            let begin = move || logs.begin(&begun.namespace, &begun.name, claims.generation);
            if let Ok(Err(error)) = tokio::task::spawn_blocking(begin).await {
                warn!(host = %name, %error, "cannot remove the log of an earlier boot of this number");
            }
            info!(host = %name, %peer, generation = claims.generation, "agent's session opened");
            return Ok(Session {
                session: self.0.tokens.session(&claims),
                host: name,
                generation: claims.generation,
                now: Timestamp::now().as_second(),
            });
        }
        Err(Refused(StatusCode::SERVICE_UNAVAILABLE, "too many writers at once; try again".into()))
    }
}

impl Sessions {
    /// The network card that answers at an address.
    async fn neighbour(&self, address: Option<Ipv4Addr>) -> Option<MacAddress> {
        self.0.neighbours.get()?(address?).await
    }

    /// Whether a token may be used from here; the machine has these network cards.
    async fn here(&self, claims: &Claims, peer: IpAddr, own: &[MacAddress]) -> Result<(), Refused> {
        let card = match peer.to_canonical() {
            IpAddr::V4(peer) if claims.first => self.neighbour(Some(peer)).await,
            _ => None,
        };
        bound_elsewhere(claims, peer, card, own, Timestamp::now().as_second())
    }

    /// Why the machine that calls is not the host's.
    async fn another_machine(
        &self,
        host: &BootHost,
        intent: &BootIntent,
        call: &OpenSession,
    ) -> Result<Option<String>, Refused> {
        let hosts = Api::<BareMetalHost>::namespaced(self.0.client.clone(), &host.namespace);
        let stored = hosts.get_opt(&host.name).await?.filter(|stored| stored.uid().as_ref() == Some(&host.uid));
        let stored = stored.ok_or_else(|| Refused(StatusCode::FORBIDDEN, "the host is gone".into()))?;
        let own = caller::addresses(call);
        let contested = |(mac, rival): (MacAddress, Arc<BootHost>)| caller::contested(mac, &rival, &host.namespace);
        let rival = || self.0.index.rival(&host.uid, &own).map(contested);
        Ok(caller::another(&stored, intent, &own).or_else(rival))
    }

    /// Ends a boot before its session: the operator must see why, and not after the deadline only. What a session has
    /// begun it goes on with.
    async fn end_boot(&self, api: &Api<BootIntent>, intent: &BootIntent, reason: &str) -> Result<(), kube::Error> {
        let session = intent.status.as_ref().and_then(|status| status.session.as_ref());
        let Some(step) = next_of(intent, "") else { return Ok(()) };
        if session.is_some_and(|session| session.generation == intent.spec.generation) {
            return Ok(());
        }
        let (id, finished) = (step.id.clone(), Some(Time(Timestamp::now())));
        let result = StepResult { id, succeeded: false, message: reason.to_owned(), finished };
        let status = BootIntentStatus { results: vec![result], ..BootIntentStatus::default() };
        let changed = BootIntent { status: Some(status), ..intent.clone() };
        api.replace_status(&intent.name_any(), &PostParams::default(), &changed).await.map(drop)
    }
}

/// Whether this token may open the session. Once only; but the same machine may repeat a call whose answer got lost,
/// as long as it has done nothing else.
fn may_open(intent: &BootIntent, claims: &Claims, peer: IpAddr) -> Result<(), String> {
    if intent.spec.generation != claims.generation || intent.spec.target != BootTarget::Ramdisk {
        return Err(format!(
            "this boot token is for boot {}, and the host is at boot {}: the token has ended",
            claims.generation, intent.spec.generation
        ));
    }
    let session = intent.status.as_ref().and_then(|status| status.session.as_ref());
    let Some(session) = session.filter(|session| session.generation == claims.generation) else { return Ok(()) };
    let repeated = session.token_nonce == claims.nonce_hex() && session.address == peer.to_string() && !session.used;
    if repeated {
        return Ok(());
    }
    Err(format!(
        "this boot's token was used already, from {}: each boot has one session. Reboot the machine through Slipway to get another",
        session.address
    ))
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: String,
}

async fn next_step(
    State(sessions): State<Sessions>,
    headers: HeaderMap,
    Query(After { after }): Query<After>,
) -> Result<Response, Refused> {
    if let Some((discovery, visit)) = sessions.visitor(&headers) {
        let step = discovery.next_step(&visit).await?;
        return Ok(step.map_or(StatusCode::NO_CONTENT.into_response(), |step| Json(step).into_response()));
    }
    let caller = sessions.authenticate(&headers).await?;
    let mut follow = sessions.0.intents.follow(&caller.namespace, &caller.name);
    let give_up = tokio::time::sleep(Duration::from_secs(STEP_WAIT_SECONDS));
    tokio::pin!(give_up);
    let intent = follow.borrow().clone();
    sessions.touch(&caller, intent.as_deref()).await?;
    loop {
        let intent = follow.borrow_and_update().clone();
        let Some(intent) = intent.filter(|intent| intent.spec.generation == caller.generation) else {
            return Err(Refused(StatusCode::UNAUTHORIZED, "this session has ended".into()));
        };
        let Sessions(inner) = &sessions;
        let host = inner.index.by_name(&caller.namespace, &caller.name);
        // What is under way comes to its end; nothing is begun.
        let paused = host.is_some_and(|host| host.standing.paused);
        if let Some(step) = next_of(&intent, &after).filter(|_| !paused) {
            let metrics = inner.metrics.get_or_init(Metrics::default);
            let (namespace, name) = (&caller.namespace, &caller.name);
            let drives = &inner.drives;
            match payload::render(&inner.client, metrics, drives, namespace, name, caller.generation, step).await {
                Ok(step) => return Ok(Json(step).into_response()),
                Err(payload::PayloadError::Api(error)) => return Err(error.into()),
                // The operator must see why, so the step ends here, before the agent had it.
                Err(error) => {
                    let failed =
                        StepOutcome { step: step.id.clone(), message: error.to_string(), ..StepOutcome::default() };
                    sessions.end_step(&caller, &failed).await?;
                }
            }
        }
        tokio::select! {
            changed = follow.changed() => if changed.is_err() {
                return Ok(StatusCode::NO_CONTENT.into_response());
            },
            () = &mut give_up => return Ok(StatusCode::NO_CONTENT.into_response()),
        }
    }
}

impl Sessions {
    /// Notes that the agent is there, not more often than needed.
    async fn touch(&self, caller: &Caller, intent: Option<&BootIntent>) -> Result<(), Refused> {
        let session = intent.and_then(|intent| intent.status.as_ref()?.session.as_ref());
        let seen = session.and_then(|s| s.last_seen.as_ref()).map_or(Timestamp::UNIX_EPOCH, |seen| seen.0);
        let used = session.is_some_and(|session| session.used);
        // Also when the clock was set back.
        if used && Timestamp::now().duration_since(seen).unsigned_abs() < SEEN_EVERY {
            return Ok(());
        }
        self.record(caller, |_, _| {}).await
    }
}

fn has_ended(status: &BootIntentStatus, step: &str) -> bool {
    status.results.iter().any(|result| result.id == step)
}

/// The first step without a result, unless one of its operation failed before. `after` guards against an answer
/// made from a record older than the agent's own last step; one that is not planned any more needs no result.
fn next_of<'a>(intent: &'a BootIntent, after: &str) -> Option<&'a IntentStep> {
    let results = intent.status.as_ref().map_or(&[][..], |status| &status.results);
    let pending = intent.spec.steps.iter().any(|step| step.id == after);
    if pending && !results.iter().any(|result| result.id == after) {
        return None;
    }
    let ended = |step: &IntentStep| results.iter().find(|result| result.id == step.id);
    let step = intent.spec.steps.iter().find(|step| ended(step).is_none())?;
    let broken = intent
        .spec
        .steps
        .iter()
        .any(|other| other.operation == step.operation && ended(other).is_some_and(|result| !result.succeeded));
    (!broken).then_some(step)
}

async fn event(State(sessions): State<Sessions>, who: Who, body: Body) -> Result<StatusCode, Refused> {
    let event = sessions.0.intake.json::<Event>(&who.whose(), body, MAX_CALL).await?.value;
    // A visitor's progress is of no interest.
    let Who::Host(caller) = who else { return Ok(StatusCode::NO_CONTENT) };
    if sessions.still_wanted(&caller, &event.step).await? == Step::Ended {
        return Ok(StatusCode::NO_CONTENT);
    }
    let key = (caller.namespace.clone(), caller.name.clone());
    let Seen { rate, due } = sessions.0.meter.see(key.clone(), &event, Instant::now());
    match due {
        Due::No => {}
        Due::Now => sessions.record_progress(&caller, &event, rate).await?,
        // One at a time for each host.
        Due::In(pause) => drop(tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let Some((event, rate)) = sessions.0.meter.take(&key, Instant::now()) else { return };
            if let Err(Refused(_, reason)) = sessions.record_progress(&caller, &event, rate).await {
                debug!(host = %named(&key.0, &key.1), reason, "cannot store the progress of a step");
            }
        })),
    }
    Ok(StatusCode::NO_CONTENT)
}

fn progress(event: &Event, before: Option<&StepProgress>, rate: Option<i64>, now: &Time) -> StepProgress {
    let number = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
    let (done, total) = (number(event.bytes_done), number(event.bytes_total));
    let percent = match (done, total) {
        (Some(done), Some(total)) if total > 0 => Some((done.saturating_mul(100) / total).clamp(0, 100)),
        _ => None,
    };
    let same = before.filter(|before| before.step == event.step && before.phase == event.phase);
    StepProgress {
        step: event.step.chars().take(64).collect(),
        phase: event.phase.chars().take(64).collect(),
        percent,
        bytes_done: done,
        bytes_total: total,
        bytes_per_second: rate,
        message: event.message.as_ref().map(|message| message.chars().take(500).collect()),
        since: same.and_then(|same| same.since.clone()).or_else(|| Some(now.clone())),
    }
}

async fn result(State(sessions): State<Sessions>, who: Who, body: Body) -> Result<StatusCode, Refused> {
    let (intake, whose) = (&sessions.0.intake, who.whose());
    match who {
        Who::Visitor(discovery, visit, _) => {
            let outcome = intake.json::<StepOutcome>(&whose, body, MAX_REPORT).await?;
            discovery.result(&visit, &outcome.value).await?;
        }
        Who::Host(caller) => {
            let outcome = intake.json::<StepOutcome>(&whose, body, MAX_RESULT).await?;
            // One that is told again is stored already.
            if sessions.still_wanted(&caller, &outcome.value.step).await? == Step::Planned {
                sessions.end_step(&caller, &outcome.value).await?;
            }
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// What a step is to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// None in particular.
    Unnamed,
    Planned,
    /// Its result is stored.
    Ended,
}

impl Sessions {
    /// Refuses what is said of a step that the host does not want any more, so that the agent stops it.
    async fn still_wanted(&self, caller: &Caller, step: &str) -> Result<Step, Refused> {
        let intent = self.api(&caller.namespace).get(&caller.name).await?;
        if intent.status.as_ref().is_some_and(|status| has_ended(status, step)) {
            return Ok(Step::Ended);
        }
        if step.is_empty() {
            return Ok(Step::Unnamed);
        }
        let planned = intent.spec.steps.iter().any(|planned| planned.id == step);
        planned
            .then_some(Step::Planned)
            .ok_or_else(|| Refused(StatusCode::GONE, "this step is not wanted any more".into()))
    }

    /// Stores how far a step is, unless it has ended meanwhile.
    async fn record_progress(&self, caller: &Caller, event: &Event, rate: Option<i64>) -> Result<(), Refused> {
        let now = Time(Timestamp::now());
        self.record(caller, |status, _| {
            if !has_ended(status, &event.step) {
                status.progress = Some(progress(event, status.progress.as_ref(), rate, &now));
            }
        })
        .await
    }

    /// Stores how a step ended; durable when it returns. A second result of the same step changes nothing.
    async fn end_step(&self, caller: &Caller, outcome: &StepOutcome) -> Result<(), Refused> {
        let host = format!("{}/{}", caller.namespace, caller.name);
        let message: String = outcome.message.chars().take(LOGGED).collect();
        let step: String = outcome.step.chars().take(LOGGED).collect();
        info!(%host, step, succeeded = outcome.succeeded, outcome = message, "the agent ended a step");
        let finished = Time(Timestamp::now());
        let known = |intent: &BootIntent, id: &str| intent.spec.steps.iter().any(|step| step.id == id);
        self.0.meter.end(&(caller.namespace.clone(), caller.name.clone()));
        self.record(caller, |status, intent| {
            if !known(intent, &outcome.step) || has_ended(status, &outcome.step) {
                return;
            }
            // The agent names its last step when it asks for the next, so the newest results must stay.
            let surplus = (status.results.len() + 1).saturating_sub(RESULTS);
            status.results.drain(..surplus);
            status.results.push(StepResult {
                id: outcome.step.clone(),
                succeeded: outcome.succeeded,
                message: outcome.message.chars().take(2000).collect(),
                finished: Some(finished.clone()),
            });
            status.progress = None;
            if let Some(inventory) = &outcome.inventory {
                status.inventory = Some(inventory.clone());
            }
            if !outcome.succeeded {
                let skip = outcome.log.len().saturating_sub(LOG_LINES);
                status.log = outcome.log.iter().skip(skip).map(|line| line.chars().take(500).collect()).collect();
            }
        })
        .await
    }
}

async fn log(State(sessions): State<Sessions>, who: Who, body: Body) -> Result<StatusCode, Refused> {
    let body = sessions.0.intake.bytes(&who.whose(), body, MAX_LOG).await?;
    // A visitor's is not kept: it would be anybody's way to fill the disk.
    let Who::Host(caller) = who else { return Ok(StatusCode::NO_CONTENT) };
    let (logs, whose) = (sessions.0.logs.clone(), (caller.namespace.clone(), caller.name.clone()));
    let append = move || logs.append(&whose.0, &whose.1, caller.generation, &escaped_lines(&body.value));
    match tokio::task::spawn_blocking(append).await {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(error)) => {
            warn!(host = %named(&caller.namespace, &caller.name), %error, "cannot store the agent's log");
            Err(Refused(StatusCode::INSUFFICIENT_STORAGE, "the log cannot be kept".into()))
        }
        Err(error) => Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

async fn manifest(
    State(sessions): State<Sessions>,
    headers: HeaderMap,
    Path(digest): Path<String>,
) -> Result<Response, Refused> {
    sessions.authenticate(&headers).await?;
    Ok(serve::serve_manifest(&sessions.0.library, &digest, &headers).await)
}

async fn chunk(
    State(sessions): State<Sessions>,
    headers: HeaderMap,
    Path(sha256): Path<String>,
) -> Result<Response, Refused> {
    let caller = sessions.authenticate(&headers).await?;
    let host = format!("{}/{}", caller.namespace, caller.name);
    let place = sessions.0.lanes.enter(lanes::Client::Host(host), Rank::Known).await;
    let place = place.map_err(|error| Refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let answer = serve::serve_chunk(&sessions.0.library, &sha256, &headers).await;
    Ok(answer.map(|body| place.hold(body, CancellationToken::new())))
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;

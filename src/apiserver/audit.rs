//! The audit log: one line for every change that was asked for, by whomever, and for every reading of Secrets by others than
//! Slipway itself, with who, what, when, from where, and how it ended; and failed logins. Lines are `audit.k8s.io/v1` Events of level `Metadata`: never a body, never a credential.
//!
//! *Nothing without its line.* A place in the queue is taken before a change or such a reading is begun; without one within
//! some seconds (the disk refuses, and the queue is full) it is refused. So what was done has a line, and the line is
//! queued before the answer leaves. When a client goes away in between, the line says that the outcome is unknown.
//!
//! *Durability.* Lines are handed to the kernel as they come: a crash of the process loses at most what was queued. The
//! file is synced every second in which something was written, before it is set aside, and at the end: a power cut loses
//! at most the last second of lines.
//!
//! *Failed logins* change nothing and cost nothing, so whoever reaches the port could fill the disk with them. They are
//! rationed (`ration`): some lines a minute, and a count of what was left out. *Refused requests* of others than Slipway
//! itself are, too, by caller: whoever has a token, and no role, can be refused a thousand times in a second.
//!
//! *Much of one caller.* What was done always has its line, and nothing keeps a caller from doing much. So a caller has a
//! share of the log (`volume`), and further lines are written into files beside it, where they roll away only each other.
//!
//! *A disk with little room* gets hardly any more of one caller (`room`).
//!
//! *A slow disk.* Lines wait in a queue (`queue`), of which one caller has a part only, so who makes many wait waits alone.
//!
//! Backups, which hold every key, are in it. Not in it: other reads, reviews, callers who show nothing, and what is written beside the API: DHCP leases.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, header, request};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::auth::{FailedLogin, Identity, Proof};
use super::caller_shares;
use super::registry::Registry;
use super::request::{self as asked, Route, Target};
use super::status::{ApiError, shorten};
use super::tls::{Peer, Refused};

mod attempt_limit;
mod file;
mod queue;
mod room;
mod volume;

use attempt_limit::{AttemptLimit, OF_LOGINS, OF_REFUSALS, origin};
use file::Log;
use queue::{Line, Message, PLACES, Place, Queue};
use room::Room;
use volume::{LineOwner, Volumes};

/// How long a change waits for its place, and the end for the last line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Characters kept of what a client may make long, of the path and query of a request, and of a name in it.
const TEXT_MAX: usize = 256;
const URI_MAX: usize = 512;
const NAME_MAX: usize = 253;

/// Where the log is and how much of it is kept.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The file that is written; older ones are beside it, with `.1` (the newest) and up behind the name. What one caller
    /// writes beyond a share goes into files with `-busy` in their names, which are half as many.
    pub path: PathBuf,
    /// Bytes after which a file is set aside.
    pub max_bytes: u64,
    /// Files that are kept beside the one that is written.
    pub max_files: usize,
}

impl AuditOptions {
    /// Of the files for what is beyond a caller's share.
    fn busy(&self) -> Self {
        let mut name = self.path.file_stem().unwrap_or_default().to_owned();
        name.push("-busy");
        let mut path = self.path.with_file_name(name);
        if let Some(extension) = self.path.extension() {
            path.set_extension(extension);
        }
        Self { path, max_files: self.max_files.div_ceil(2), ..*self }
    }

    /// Bytes of all files together.
    fn bytes(&self) -> u64 {
        self.max_bytes.saturating_mul(self.max_files as u64 + 1)
    }
}

/// The log's door. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Audit {
    queue: Queue,
    room: Option<Room>,
    // std's lock: held to count only.
    limits: Arc<Mutex<CallerLimits>>,
}

/// How much each caller has written.
#[derive(Debug)]
struct CallerLimits {
    /// Failed logins, by address.
    logins: AttemptLimit<IpAddr>,
    /// Refused requests, by caller.
    refusals: AttemptLimit<String>,
    /// All other lines.
    volumes: Volumes,
}

impl CallerLimits {
    /// Those of a log of so many bytes.
    fn of(log: u64) -> Self {
        let (logins, refusals) = (AttemptLimit::new(OF_LOGINS), AttemptLimit::new(OF_REFUSALS));
        Self { logins, refusals, volumes: Volumes::of(log) }
    }
}

impl Audit {
    /// Opens the log and starts its writer. To be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn start(options: AuditOptions) -> io::Result<Self> {
        let (bytes, busy) = (options.bytes(), Log::open(options.busy())?);
        let room = Room::new(options.path.parent().unwrap_or(&options.path))?;
        let log = Log::open(options)?;
        let (queue, lines) = mpsc::channel(PLACES);
        tokio::spawn(file::write(log, busy, room.clone(), lines));
        let audit = Self { room: Some(room), ..Self::on(queue, PATIENCE, bytes) };
        tokio::spawn(tell_what_was_left_out(audit.queue.messages.downgrade(), Arc::clone(&audit.limits)));
        Ok(audit)
    }

    fn on(queue: mpsc::Sender<Message>, patience: Duration, bytes: u64) -> Self {
        Self { queue: Queue::new(queue, patience), room: None, limits: Arc::new(Mutex::new(CallerLimits::of(bytes))) }
    }

    /// Tells of a request that came with a proof which proved nothing, as far as the ration goes.
    pub(super) fn login_failed(&self, request: &axum::extract::Request, route: &Route, login: &FailedLogin) {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
        if !self.may_tell(peer) {
            return;
        }
        let target = match route {
            Route::Resource(target) => Some(target),
            _ => None,
        };
        let watches = request.uri().query().is_some_and(asked::asks_to_watch);
        self.tell(&Attempt {
            peer,
            verb: target.and_then(|target| verb(request.method(), target, watches)).unwrap_or("get"),
            uri: shorten(request.uri().path_and_query().map_or("", |path| path.as_str()), URI_MAX),
            agent: user_agent(request.headers()),
            target,
            user: &login.user,
            proof: login.proof.to_string(),
            why: &login.why,
            ..Attempt::default()
        });
    }

    /// Tells of client certificates that the handshake refuses, as far as the ration goes.
    pub fn refused_certificates(&self) -> Refused {
        let audit = self.clone();
        Arc::new(move |peer, why| {
            let peer = Some(peer.ip());
            if audit.may_tell(peer) {
                let why = shorten(&format!("the client certificate was refused: {why}"), TEXT_MAX);
                audit.tell(&Attempt { peer, proof: Proof::Certificate.to_string(), why: &why, ..Attempt::default() });
            }
        })
    }

    fn may_tell(&self, peer: Option<IpAddr>) -> bool {
        lock(&self.limits).logins.take(Instant::now(), peer.map(origin))
    }

    /// A stranger's line waits for nothing and nobody waits for it: without a place it is counted as left out.
    fn tell(&self, attempt: &Attempt<'_>) {
        if !put(&self.queue.messages, attempt) {
            lock(&self.limits).logins.leave_out(attempt.peer.map(origin), attempt.left_out.max(1));
        }
    }

    /// Writes what is queued and ends the writer; changes are refused after that. Returns when it is on disk, or after
    /// some seconds when the disk refuses.
    pub async fn close(&self) {
        let (logins, refusals) = {
            let mut limits = lock(&self.limits);
            (limits.logins.finish(), limits.refusals.finish())
        };
        for (peer, count) in logins {
            put(&self.queue.messages, &Attempt::left_out(peer, count));
        }
        for (caller, count) in refusals {
            put(&self.queue.messages, &Attempt::refused(&caller_info(caller.as_deref()), count));
        }
        let (reply, done) = oneshot::channel();
        let close = async {
            // A queue that is closed has nothing left to write.
            if self.queue.messages.send(Message::Close(reply)).await.is_ok() {
                done.await.ok();
            }
        };
        if timeout(self.queue.patience, close).await.is_err() {
            tracing::error!("cannot write the last lines of the audit log in time");
        }
    }
}

/// Name of an object, put into the extensions of the answer to the request that made it.
#[derive(Clone, Debug)]
pub(super) struct Made(pub String);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct Status<'e> {
    metadata: Empty,
    status: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'e str,
    code: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'e str,
}

#[derive(Serialize)]
struct Annotations<'e> {
    #[serde(rename = "slipway.dev/dry-run", skip_serializing_if = "str::is_empty")]
    dry_run: &'e str,
    #[serde(rename = "slipway.dev/field-manager", skip_serializing_if = "str::is_empty")]
    field_manager: &'e str,
    #[serde(rename = "slipway.dev/left-out", skip_serializing_if = "str::is_empty")]
    left_out: &'e str,
    #[serde(rename = "slipway.dev/outcome", skip_serializing_if = "str::is_empty")]
    outcome: &'e str,
    #[serde(rename = "slipway.dev/proof", skip_serializing_if = "str::is_empty")]
    proof: &'e str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'e> {
    kind: &'e str,
    api_version: &'e str,
    level: &'e str,
    #[serde(rename = "auditID")]
    audit_id: uuid::Uuid,
    stage: &'e str,
    #[serde(rename = "requestURI")]
    request_uri: &'e str,
    verb: &'e str,
    user: &'e Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<&'e Value>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Option::is_none")]
    source_ips: Option<[IpAddr; 1]>,
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Status<'e>>,
    request_received_timestamp: String,
    stage_timestamp: String,
    annotations: Annotations<'e>,
}

/// A change under way, whose line is written when it ends, however it ends.
pub(super) struct Pending {
    place: Option<Place>,
    limits: Arc<Mutex<CallerLimits>>,
    room: Option<Room>,
    /// As whom it counts; nobody: Slipway itself, whose refused requests all have their line.
    caller: Option<String>,
    received: Timestamp,
    verb: &'static str,
    uri: String,
    agent: String,
    peer: Option<IpAddr>,
    target: Target,
    user: Value,
    impersonated: Option<Value>,
    proof: String,
    dry_run: String,
    field_manager: String,
}

impl ObjectRef {
    /// What the path names, be it there or not, so each part may be as long as a path.
    fn of(target: &Target) -> Self {
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
fn verb(method: &Method, target: &Target, watches: bool) -> Option<&'static str> {
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
fn has_line(verb: &str, target: &Target, is_review: bool, in_process: bool) -> bool {
    match verb {
        "get" | "list" | "watch" => target.group.is_empty() && target.plural == "secrets" && !in_process,
        _ => !is_review,
    }
}

/// Whether a request that was answered so has changed nothing and shown nothing. A deletion of many may have stopped half-way.
fn is_refusal(verb: &str, code: u16) -> bool {
    match verb {
        "deletecollection" => matches!(code, 400 | 401 | 403 | 404 | 405 | 406 | 415),
        _ => (400..500).contains(&code),
    }
}

fn user_agent(headers: &http::HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    shorten(agent, TEXT_MAX)
}

/// A failed login, or a number of them, or of refused requests.
struct Attempt<'a> {
    peer: Option<IpAddr>,
    verb: &'static str,
    uri: String,
    agent: String,
    target: Option<&'a Target>,
    user: &'a Value,
    proof: String,
    why: &'a str,
    /// So many have no line of their own; 0 for one that has.
    left_out: u64,
    code: u16,
    reason: &'static str,
}

/// Nobody, as UserInfo.
static NOBODY: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| json!({}));

impl Default for Attempt<'_> {
    fn default() -> Self {
        Self {
            peer: None,
            verb: "connect",
            uri: String::new(),
            agent: String::new(),
            target: None,
            user: &NOBODY,
            proof: String::new(),
            why: "",
            left_out: 0,
            code: 401,
            reason: "Unauthorized",
        }
    }
}

/// A caller as UserInfo; nobody for many.
fn caller_info(caller: Option<&str>) -> Value {
    caller.map_or_else(|| json!({}), |caller| json!({ "username": caller }))
}

fn lock(limits: &Mutex<CallerLimits>) -> MutexGuard<'_, CallerLimits> {
    limits.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Attempt<'a> {
    /// Requests of a caller that were refused.
    fn refused(user: &'a Value, left_out: u64) -> Self {
        let why = "further refused requests, which have no line of their own";
        Self { user, left_out, why, verb: "many", code: 403, reason: "Forbidden", ..Self::default() }
    }

    fn left_out(peer: Option<IpAddr>, left_out: u64) -> Self {
        Self { peer, left_out, why: "further failed logins, which have no line of their own", ..Self::default() }
    }
}

/// Queues the line of an attempt, if there is a place.
fn put(queue: &mpsc::Sender<Message>, attempt: &Attempt<'_>) -> bool {
    let now = Timestamp::now();
    let left_out = if attempt.left_out > 0 { attempt.left_out.to_string() } else { String::new() };
    let event = Event {
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
        object_ref: attempt.target.map(ObjectRef::of),
        response_status: Some(Status {
            metadata: Empty {},
            status: "Failure",
            message: attempt.why,
            code: attempt.code,
            reason: attempt.reason,
        }),
        request_received_timestamp: micros(now),
        stage_timestamp: micros(now),
        annotations: Annotations {
            dry_run: "",
            field_manager: "",
            left_out: &left_out,
            outcome: "",
            proof: &attempt.proof,
        },
    };
    line(&event).is_some_and(|line| queue.try_send(Message::Line(Line::of_nobody(line))).is_ok())
}

fn line(event: &Event<'_>) -> Option<Vec<u8>> {
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

/// Says once a minute how many failed logins and refused requests had no line.
async fn tell_what_was_left_out(queue: mpsc::WeakSender<Message>, limits: Arc<Mutex<CallerLimits>>) {
    loop {
        tokio::time::sleep(attempt_limit::STRETCH).await;
        let Some(queue) = queue.upgrade().filter(|queue| !queue.is_closed()) else { return };
        let (logins, refusals) = {
            let (mut limits, now) = (lock(&limits), Instant::now());
            (limits.logins.over(now), limits.refusals.over(now))
        };
        for (peer, count) in logins {
            if !put(&queue, &Attempt::left_out(peer, count)) {
                lock(&limits).logins.leave_out(peer, count);
            }
        }
        for (caller, count) in refusals {
            if !put(&queue, &Attempt::refused(&caller_info(caller.as_deref()), count)) {
                lock(&limits).refusals.leave_out(caller, count);
            }
        }
    }
}

/// Values of a query parameter, with commas between them.
fn parameter(uri: &http::Uri, name: &str) -> String {
    let pairs =
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map(|pairs| pairs.0).unwrap_or_default();
    let values: Vec<String> = pairs.into_iter().filter(|(key, _)| key == name).map(|(_, value)| value).collect();
    shorten(&values.join(","), TEXT_MAX)
}

impl Pending {
    /// Begins the line of a change, or of a reading of Secrets. `None` for what has no line.
    ///
    /// # Errors
    ///
    /// 503 when there is no place for the line.
    pub(super) async fn begin(
        audit: &Audit,
        identity: &Identity,
        parts: &request::Parts,
        target: &Target,
        registry: &Registry,
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
    /// As [`Pending::begin`].
    pub(super) async fn begin_beside(
        audit: &Audit,
        identity: &Identity,
        parts: &request::Parts,
    ) -> Result<Self, ApiError> {
        Self::new(audit, identity, parts, "get", &Target::default()).await
    }

    async fn new(
        audit: &Audit,
        identity: &Identity,
        parts: &request::Parts,
        verb: &'static str,
        target: &Target,
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
    pub(super) fn end(mut self, answer: &Result<axum::response::Response, ApiError>) {
        let (code, reason) = match answer {
            Ok(response) => (response.status().as_u16(), ""),
            Err(error) => (error.code.as_u16(), error.reason),
        };
        if let Some(caller) = self.caller.as_ref().filter(|_| is_refusal(self.verb, code))
            && !lock(&self.limits).refusals.take(Instant::now(), Some(caller.clone()))
        {
            // It is counted, and its place given back.
            self.place = None;
            return;
        }
        let made = answer.as_ref().ok().and_then(|response| response.extensions().get::<Made>());
        if let Some(Made(name)) = made.filter(|_| self.target.name.is_none()) {
            self.target.name = Some(name.clone());
        }
        let status = if code < 400 { "Success" } else { "Failure" };
        // A watch has only begun.
        let stage = if self.verb == "watch" && code < 400 { "ResponseStarted" } else { "ResponseComplete" };
        self.write(stage, Some(Status { metadata: Empty {}, status, message: "", code, reason }), "");
    }

    fn write(&mut self, stage: &str, status: Option<Status<'_>>, outcome: &str) {
        let Some(place) = self.place.take() else { return };
        let event = Event {
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
            object_ref: (!self.target.plural.is_empty()).then(|| ObjectRef::of(&self.target)),
            response_status: status,
            request_received_timestamp: micros(self.received),
            stage_timestamp: micros(Timestamp::now()),
            annotations: Annotations {
                dry_run: &self.dry_run,
                field_manager: &self.field_manager,
                left_out: "",
                outcome,
                proof: &self.proof,
            },
        };
        if let Some(line) = line(&event) {
            let little_room = self.room.as_ref().is_some_and(Room::is_little);
            let (now, whose) = (Instant::now(), self.whose());
            let is_beyond = lock(&self.limits).volumes.is_beyond(now, whose, line.len(), little_room);
            place.put(line, is_beyond);
        }
    }

    fn whose(&self) -> LineOwner {
        let Some(caller) = &self.caller else {
            let ObjectRef { resource, namespace, name, .. } = ObjectRef::of(&self.target);
            return LineOwner::Object(resource, namespace, name);
        };
        LineOwner::Caller(caller.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.write("Panic", None, "unknown: the client went away or the server failed before the answer");
    }
}

/// As Kubernetes' MicroTime.
fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn options(folder: &Path, max_bytes: u64) -> AuditOptions {
        AuditOptions { path: folder.join("logs/audit.log"), max_bytes, max_files: 2 }
    }

    #[tokio::test]
    async fn what_is_queued_is_written_before_the_end_and_nothing_after() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::start(options(folder.path(), 1 << 20)).unwrap();
        for number in 0..1000 {
            let place = audit.queue.reserve(None).await.unwrap_or_else(|error| panic!("{error:?}"));
            place.put(format!("{number}\n").into_bytes(), false);
        }
        audit.close().await;
        let text = fs::read_to_string(folder.path().join("logs/audit.log")).unwrap();
        assert!(text.lines().map(|line| line.parse::<u32>().unwrap()).eq(0..1000));
        assert_eq!(audit.queue.reserve(None).await.err().map(|error| error.code.as_u16()), Some(503));
        audit.close().await;
    }

    #[tokio::test]
    async fn without_a_place_for_its_line_no_change_is_begun() {
        let (queue, _lines) = mpsc::channel(1);
        let audit = Audit::on(queue, Duration::from_millis(1), 1 << 20);
        let place = audit.queue.reserve(None).await.expect("a place");
        assert_eq!(audit.queue.reserve(Some("a")).await.err().map(|error| error.code.as_u16()), Some(503));
        drop(place);
        assert!(audit.queue.reserve(Some("a")).await.is_ok());
    }

    #[test]
    fn what_has_a_line() {
        let target =
            |group: &str, plural: &str| Target { group: group.into(), plural: plural.into(), ..Target::default() };
        for (verb, target, is_review, in_process, wanted) in [
            ("get", target("", "secrets"), false, false, true),
            ("list", target("", "secrets"), false, false, true),
            ("watch", target("", "secrets"), false, false, true),
            // The appliance reads BMCs' passwords all the time.
            ("get", target("", "secrets"), false, true, false),
            ("get", target("", "configmaps"), false, false, false),
            ("get", target("example.org", "secrets"), false, false, false),
            ("create", target("", "configmaps"), false, true, true),
            ("deletecollection", target("", "secrets"), false, false, true),
            ("create", target("authentication.k8s.io", "tokenreviews"), true, false, false),
            ("create", target("authentication.k8s.io", "widgets"), false, false, true),
        ] {
            assert_eq!(has_line(verb, &target, is_review, in_process), wanted, "{verb} {target:?}");
        }
    }

    #[test]
    fn what_changed_something_is_no_refusal() {
        for (verb, code, wanted) in [
            ("delete", 200, false),
            ("create", 201, false),
            ("delete", 403, true),
            ("get", 404, true),
            ("update", 409, true),
            ("patch", 422, true),
            ("create", 500, false),
            ("create", 504, false),
            ("deletecollection", 403, true),
            ("deletecollection", 409, false),
            ("deletecollection", 422, false),
        ] {
            assert_eq!(is_refusal(verb, code), wanted, "{verb} {code}");
        }
    }

    /// Whatever somebody names himself, a line shows in the order in which it is written.
    #[tokio::test]
    async fn a_line_has_no_character_that_turns_the_next_ones() {
        let (queue, mut lines) = mpsc::channel(1);
        let why = "expired\u{202e}\u{2028}ü";
        put(&queue, &Attempt { why, ..Attempt::default() });
        let Some(Message::Line(Line { text: line, .. })) = lines.recv().await else { panic!("a line") };
        let text = std::str::from_utf8(&line).unwrap().strip_suffix('\n').unwrap();
        assert!(text.chars().all(crate::log::is_safe) && text.contains("expired\\u202e\\u2028ü"), "{text}");
        let message = serde_json::from_str::<Value>(text).unwrap()["responseStatus"]["message"].take();
        assert!(message.as_str().unwrap().contains(why));
    }

    #[tokio::test]
    async fn a_failed_login_waits_for_nothing_and_is_counted_without_a_line() {
        let (queue, mut lines) = mpsc::channel(1);
        let audit = Audit::on(queue, Duration::from_millis(1), 1 << 20);
        let refused = audit.refused_certificates();
        for _ in 0..3 {
            refused(([192, 0, 2, 1], 5).into(), "expired");
        }
        let Some(Message::Line(Line { text: line, .. })) = lines.recv().await else { panic!("a line") };
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&line["sourceIPs"][0], &line["responseStatus"]["code"]), (&json!("192.0.2.1"), &json!(401)));
        assert!(line["responseStatus"]["message"].as_str().unwrap().contains("expired"), "{line}");
        let left = lock(&audit.limits).logins.finish();
        assert_eq!(left, [(Some([192, 0, 2, 1].into()), 2)]);
    }
}

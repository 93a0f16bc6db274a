//! The audit log: one line for every change that was asked for, by whomever, and for every reading of Secrets by others than
//! Slipway itself, with who, what, when, from where, and how it ended; and failed logins. Lines are `audit.k8s.io/v1` Events of level `Metadata`: never a body, never a credential.
//!
//! *Nothing without its line.* A place in the queue is taken before a change or such a reading is begun; without one within
//! some seconds (the disk refuses, and the queue is full) it is refused. So what was done has a line, and the line is
//! queued before the answer leaves. When a client goes away in between, the line says that the outcome is unknown.
//!
//! *Durability.* Lines are handed to the kernel within some milliseconds: a crash of the process loses at most what was queued. The
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

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::request;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::answers::status::{ApiError, shorten};
use super::auth::{FailedLogin, Identity, Proof};
use super::kinds::registry::Registry;
use super::listener::tls::{Peer, Refused};
use super::requests::request::{self as asked, Route, Target};
use super::shares::caller_shares;

mod attempt_limit;
mod event;
mod file;
mod queue;
mod room;
mod volume;

use attempt_limit::{AttemptLimit, OF_LOGINS, OF_REFUSALS, origin};
pub(super) use event::OfWebhooks;
use event::{
    Annotations, Empty, Event, ObjectRef, Status, TEXT_MAX, URI_MAX, caller_info, has_line, is_refusal, line, micros,
    parameter, user_agent, verb,
};
use file::Log;
use queue::{Line, Message, PLACES, Place, Queue};
use room::Room;
use volume::{LineOwner, Volumes};

/// How long a change waits for its place, and the end for the last line.
const PATIENCE: Duration = Duration::from_secs(5);

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
            of_webhooks: BTreeMap::new(),
        },
    };
    line(&event).is_some_and(|line| queue.try_send(Message::Line(Line::of_nobody(line))).is_ok())
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
            Err(error) => (error.code.as_u16(), &*error.reason),
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
        let said = answer.as_ref().map(OfWebhooks::of).unwrap_or_default();
        self.write(stage, Some(Status { metadata: Empty {}, status, message: "", code, reason }), "", said);
    }

    fn write(&mut self, stage: &str, status: Option<Status<'_>>, outcome: &str, of_webhooks: BTreeMap<&str, &str>) {
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
                of_webhooks,
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
        let outcome = "unknown: the client went away or the server failed before the answer";
        self.write("Panic", None, outcome, BTreeMap::new());
    }
}

#[cfg(test)]
mod tests;

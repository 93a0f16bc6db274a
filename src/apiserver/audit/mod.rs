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

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::answers::status::shorten;
use super::auth::{FailedLogin, Proof};
use super::listener::tls::{Peer, TellTlsRefusal};
use super::requests::request::{self as asked, RequestRoute};

mod attempt;
mod attempt_limit;
mod event;
mod file;
mod pending;
mod queue;
mod room;
mod volume;

pub(super) use event::OfWebhooks;
pub(super) use pending::PendingAudit;

use attempt::{RefusedAttempts, put};
use attempt_limit::{AttemptLimit, OF_LOGINS, OF_REFUSALS, origin};
use event::{TEXT_MAX, URI_MAX, caller_info, user_agent, verb};
use file::AuditFile;
use queue::{AuditMessage, AuditQueue, PLACES};
use room::AuditRoom;
use volume::Volumes;

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
    queue: AuditQueue,
    room: Option<AuditRoom>,
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
        let (bytes, busy) = (options.bytes(), AuditFile::open(options.busy())?);
        let room = AuditRoom::new(options.path.parent().unwrap_or(&options.path))?;
        let log = AuditFile::open(options)?;
        let (queue, lines) = mpsc::channel(PLACES);
        tokio::spawn(file::write(log, busy, room.clone(), lines));
        let audit = Self { room: Some(room), ..Self::on(queue, PATIENCE, bytes) };
        tokio::spawn(tell_what_was_left_out(audit.queue.messages.downgrade(), Arc::clone(&audit.limits)));
        Ok(audit)
    }

    fn on(queue: mpsc::Sender<AuditMessage>, patience: Duration, bytes: u64) -> Self {
        Self {
            queue: AuditQueue::new(queue, patience),
            room: None,
            limits: Arc::new(Mutex::new(CallerLimits::of(bytes))),
        }
    }

    /// Tells of a request that came with a proof which proved nothing, as far as the ration goes.
    pub(super) fn login_failed(&self, request: &axum::extract::Request, route: &RequestRoute, login: &FailedLogin) {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
        if !self.may_tell(peer) {
            return;
        }
        let target = match route {
            RequestRoute::Resource(target) => Some(target),
            _ => None,
        };
        let watches = request.uri().query().is_some_and(asked::asks_to_watch);
        self.tell(&RefusedAttempts {
            peer,
            verb: target.and_then(|target| verb(request.method(), target, watches)).unwrap_or("get"),
            uri: shorten(request.uri().path_and_query().map_or("", |path| path.as_str()), URI_MAX),
            agent: user_agent(request.headers()),
            target,
            user: &login.user,
            proof: login.proof.to_string(),
            message: &login.reason,
            ..RefusedAttempts::default()
        });
    }

    /// Tells of client certificates that the handshake refuses, as far as the ration goes.
    pub fn refused_certificates(&self) -> TellTlsRefusal {
        let audit = self.clone();
        Arc::new(move |peer, reason| {
            let peer = Some(peer.ip());
            if audit.may_tell(peer) {
                let reason = shorten(&format!("the client certificate was refused: {reason}"), TEXT_MAX);
                audit.tell(&RefusedAttempts {
                    peer,
                    proof: Proof::Certificate.to_string(),
                    message: &reason,
                    ..RefusedAttempts::default()
                });
            }
        })
    }

    fn may_tell(&self, peer: Option<IpAddr>) -> bool {
        lock(&self.limits).logins.take(Instant::now(), peer.map(origin))
    }

    /// A stranger's line waits for nothing and nobody waits for it: without a place it is counted as left out.
    fn tell(&self, attempt: &RefusedAttempts<'_>) {
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
            put(&self.queue.messages, &RefusedAttempts::left_out(peer, count));
        }
        for (caller, count) in refusals {
            put(&self.queue.messages, &RefusedAttempts::refused(&caller_info(caller.as_deref()), count));
        }
        let (reply, done) = oneshot::channel();
        let close = async {
            // A queue that is closed has nothing left to write.
            if self.queue.messages.send(AuditMessage::Close(reply)).await.is_ok() {
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
pub(super) struct CreatedName(pub String);

fn lock(limits: &Mutex<CallerLimits>) -> MutexGuard<'_, CallerLimits> {
    limits.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says once a minute how many failed logins and refused requests had no line.
async fn tell_what_was_left_out(queue: mpsc::WeakSender<AuditMessage>, limits: Arc<Mutex<CallerLimits>>) {
    loop {
        tokio::time::sleep(attempt_limit::STRETCH).await;
        let Some(queue) = queue.upgrade().filter(|queue| !queue.is_closed()) else { return };
        let (logins, refusals) = {
            let (mut limits, now) = (lock(&limits), Instant::now());
            (limits.logins.over(now), limits.refusals.over(now))
        };
        for (peer, count) in logins {
            if !put(&queue, &RefusedAttempts::left_out(peer, count)) {
                lock(&limits).logins.leave_out(peer, count);
            }
        }
        for (caller, count) in refusals {
            if !put(&queue, &RefusedAttempts::refused(&caller_info(caller.as_deref()), count)) {
                lock(&limits).refusals.leave_out(caller, count);
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! The audit log: one line for every change that was asked for, by whomever, with who, what, when, from where, and how
//! it ended. Lines are `audit.k8s.io/v1` Events of level `Metadata`: never a body, never a credential.
//!
//! *Nothing without its line.* A place in the queue is taken before a change is begun; without one within some seconds
//! (the disk refuses, and the queue is full) the change is refused. So what was done has a line, and the line is
//! queued before the answer leaves. When a client goes away in between, the line says that the outcome is unknown.
//!
//! *Durability.* Lines are handed to the kernel as they come: a crash of the process loses at most what was queued. The
//! file is synced every second in which something was written, before it is set aside, and at the end: a power cut loses
//! at most the last second of lines.
//!
//! Of what is read only backups are in it, which hold every key. Not in it: other reads, reviews, callers that could not be
//! authenticated (they change nothing, and could be many), and what is written beside the API: DHCP leases.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, header, request};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::auth::Identity;
use super::request::Target;
use super::status::{ApiError, shorten};
use super::tls::Peer;

/// Lines that may wait.
const QUEUE: usize = 4096;
/// Lines written at once.
const BATCH: usize = 512;
/// How long a change waits for its place, and the end for the last line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two syncs.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Time to the next try after the disk refused.
const RETRY: Duration = Duration::from_secs(1);
/// Characters kept of what a client may make long.
const TEXT_MAX: usize = 1024;

/// Where the log is and how much of it is kept.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The file that is written; older ones are beside it, with `.1` (the newest) and up behind the name.
    pub path: PathBuf,
    /// Bytes after which a file is set aside.
    pub max_bytes: u64,
    /// Files that are kept beside the one that is written.
    pub max_files: usize,
}

enum Message {
    Line(Vec<u8>),
    Close(oneshot::Sender<()>),
}

/// The log's door. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Audit {
    queue: mpsc::Sender<Message>,
    /// How long a change waits for a place in the queue.
    patience: Duration,
}

impl Audit {
    /// Opens the log and starts its writer. To be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn start(options: AuditOptions) -> io::Result<Self> {
        let log = Log::open(options)?;
        let (queue, lines) = mpsc::channel(QUEUE);
        tokio::spawn(write(log, lines));
        Ok(Self { queue, patience: PATIENCE })
    }

    /// Writes what is queued and ends the writer; changes are refused after that. Returns when it is on disk, or after
    /// some seconds when the disk refuses.
    pub async fn close(&self) {
        let (reply, done) = oneshot::channel();
        let close = async {
            // A queue that is closed has nothing left to write.
            if self.queue.send(Message::Close(reply)).await.is_ok() {
                done.await.ok();
            }
        };
        if timeout(self.patience, close).await.is_err() {
            tracing::error!("the audit log could not be written to its end");
        }
    }

    /// Takes the place of a line.
    async fn reserve(&self) -> Result<mpsc::OwnedPermit<Message>, ApiError> {
        match timeout(self.patience, self.queue.clone().reserve_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(ApiError::unavailable("the audit log is closed")),
            Err(_) => Err(ApiError::unavailable("the audit log cannot be written, so nothing may be changed")),
        }
    }
}

/// Name of an object, put into the extensions of the answer to the request that made it.
#[derive(Clone, Debug)]
pub(super) struct Made(pub String);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef<'e> {
    resource: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: &'e str,
    api_version: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'e str,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct Status<'e> {
    metadata: Empty,
    status: &'e str,
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
    #[serde(rename = "slipway.dev/outcome", skip_serializing_if = "str::is_empty")]
    outcome: &'e str,
    #[serde(rename = "slipway.dev/proof")]
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
    object_ref: Option<ObjectRef<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Status<'e>>,
    request_received_timestamp: String,
    stage_timestamp: String,
    annotations: Annotations<'e>,
}

/// A change under way, whose line is written when it ends, however it ends.
pub(super) struct Pending {
    place: Option<mpsc::OwnedPermit<Message>>,
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

/// What a method does to a resource, when it changes something.
fn verb(method: &Method, named: bool) -> Option<&'static str> {
    match *method {
        Method::POST => Some("create"),
        Method::PUT => Some("update"),
        Method::PATCH => Some("patch"),
        Method::DELETE if named => Some("delete"),
        Method::DELETE => Some("deletecollection"),
        _ => None,
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
    /// Begins the line of a change. `None` when nothing is asked to be changed.
    ///
    /// # Errors
    ///
    /// 503 when there is no place for the line.
    pub(super) async fn begin(
        audit: &Audit,
        identity: &Identity,
        parts: &request::Parts,
        target: &Target,
    ) -> Result<Option<Self>, ApiError> {
        let Some(verb) = verb(&parts.method, target.name.is_some()) else { return Ok(None) };
        if super::auth::kinds::keep(&target.group) == crate::api::Keep::Review {
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
        Self::new(audit, identity, parts, verb(&parts.method, true).unwrap_or("get"), &Target::default()).await
    }

    async fn new(
        audit: &Audit,
        identity: &Identity,
        parts: &request::Parts,
        verb: &'static str,
        target: &Target,
    ) -> Result<Self, ApiError> {
        let received = Timestamp::now();
        let place = audit.reserve().await?;
        let agent = parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let by = identity.impersonator.as_deref().unwrap_or(identity);
        let has_query = parts.uri.query().is_some();
        let of_query = |name| if has_query { parameter(&parts.uri, name) } else { String::new() };
        Ok(Self {
            place: Some(place),
            received,
            verb,
            uri: shorten(parts.uri.path_and_query().map_or("", |path| path.as_str()), TEXT_MAX),
            agent: shorten(agent, TEXT_MAX),
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
        let made = answer.as_ref().ok().and_then(|response| response.extensions().get::<Made>());
        if let Some(Made(name)) = made.filter(|_| self.target.name.is_none()) {
            self.target.name = Some(name.clone());
        }
        let status = if code < 400 { "Success" } else { "Failure" };
        self.write("ResponseComplete", Some(Status { metadata: Empty {}, status, code, reason }), "");
    }

    fn write(&mut self, stage: &str, status: Option<Status<'_>>, outcome: &str) {
        let Some(place) = self.place.take() else { return };
        let target = &self.target;
        let text = |text: &'_ Option<String>| text.as_deref().unwrap_or_default().to_owned();
        let (namespace, name, subresource) = (text(&target.namespace), text(&target.name), text(&target.subresource));
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
            object_ref: (!target.plural.is_empty()).then(|| ObjectRef {
                resource: &target.plural,
                namespace: &namespace,
                name: &name,
                api_group: &target.group,
                api_version: &target.version,
                subresource: &subresource,
            }),
            response_status: status,
            request_received_timestamp: micros(self.received),
            stage_timestamp: micros(Timestamp::now()),
            annotations: Annotations {
                dry_run: &self.dry_run,
                field_manager: &self.field_manager,
                outcome,
                proof: &self.proof,
            },
        };
        match serde_json::to_vec(&event) {
            Ok(mut line) => {
                line.push(b'\n');
                place.send(Message::Line(line));
            }
            Err(error) => tracing::error!(%error, "a line of the audit log could not be made"),
        }
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

/// The writer: takes lines until it is told to end. It gives up no line while it lives.
async fn write(mut log: Log, mut lines: mpsc::Receiver<Message>) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut sync_at: Option<Instant> = None;
    loop {
        let due = sync_at.unwrap_or_else(|| Instant::now() + SYNC_EVERY);
        tokio::select! {
            count = lines.recv_many(&mut batch, BATCH) => if count == 0 {
                // Every door is gone.
                blocking(log, Log::sync).await;
                return;
            },
            () = tokio::time::sleep_until(due), if sync_at.is_some() => {
                log = blocking(log, Log::sync).await;
                sync_at = None;
                continue;
            }
        }
        let mut text = Vec::new();
        let mut closing = Vec::new();
        for message in batch.drain(..) {
            match message {
                Message::Line(line) => text.extend_from_slice(&line),
                Message::Close(reply) => closing.push(reply),
            }
        }
        if !closing.is_empty() {
            // Places that were taken before are still served.
            lines.close();
            while let Ok(message) = lines.try_recv() {
                if let Message::Line(line) = message {
                    text.extend_from_slice(&line);
                }
            }
        }
        log = blocking(log, move |log| log.write(&text)).await;
        sync_at.get_or_insert_with(|| Instant::now() + SYNC_EVERY);
        if !closing.is_empty() {
            log = blocking(log, Log::sync).await;
            for reply in closing {
                reply.send(()).ok();
            }
            sync_at = None;
        }
    }
}

/// Does something to the log where it may block, again and again until the disk lets it.
async fn blocking(mut log: Log, work: impl Fn(&mut Log) -> io::Result<()> + Send + 'static) -> Log {
    let mut work = work;
    loop {
        let done = tokio::task::spawn_blocking(move || {
            let result = work(&mut log);
            (log, work, result)
        });
        match done.await {
            Ok((back, again, result)) => {
                (log, work) = (back, again);
                match result {
                    Ok(()) => return log,
                    Err(error) => {
                        tracing::error!(%error, file = %log.options.path.display(), "the audit log cannot be written")
                    }
                }
            }
            // Only a runtime that is being torn down or a panic gets here; nothing can be written any more.
            Err(_) => return std::future::pending().await,
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The file.
struct Log {
    options: AuditOptions,
    file: File,
    size: u64,
}

impl Log {
    fn open(options: AuditOptions) -> io::Result<Self> {
        if let Some(folder) = options.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let (file, size) = open(&options.path)?;
        Ok(Self { options, file, size })
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + text.len() as u64 > self.options.max_bytes {
            self.set_aside()?;
        }
        match self.file.write_all(text) {
            Ok(()) => {
                self.size += text.len() as u64;
                Ok(())
            }
            Err(error) => {
                // What was written in part is taken back, so that the next try writes it whole.
                self.file.set_len(self.size)?;
                Err(error)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// `audit.log` becomes `audit.log.1`, and so on; the oldest goes.
    fn set_aside(&mut self) -> io::Result<()> {
        self.sync()?;
        let path = &self.options.path;
        let at = |number: usize| match number {
            0 => path.clone(),
            number => {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{number}"));
                PathBuf::from(name)
            }
        };
        for number in (0..self.options.max_files).rev() {
            match fs::rename(at(number), at(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.options.max_files == 0 {
            fs::remove_file(path)?;
        }
        (self.file, self.size) = open(path)?;
        Ok(())
    }
}

/// Opens a file to write at its end. A line that a crash cut short is ended.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let mut size = file.seek(SeekFrom::End(0))?;
    if size > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            size += 1;
        }
    }
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok((file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &Path, max_bytes: u64) -> AuditOptions {
        AuditOptions { path: folder.join("logs/audit.log"), max_bytes, max_files: 2 }
    }

    #[test]
    fn files_are_set_aside_by_size_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(options(folder.path(), 10)).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "five six\n", "seven\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(folder.path().join("logs").join(name)).ok();
        assert_eq!(read("audit.log").as_deref(), Some("seven\n"));
        assert_eq!(read("audit.log.1").as_deref(), Some("five six\n"));
        assert_eq!(read("audit.log.2").as_deref(), Some("four\n"));
        assert_eq!(read("audit.log.3"), None);
    }

    #[test]
    fn a_line_cut_short_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        fs::write(&path, "whole\ncut").unwrap();
        let mut log = Log::open(AuditOptions { path: path.clone(), max_bytes: 100, max_files: 1 }).unwrap();
        log.write(b"next\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\ncut\nnext\n");
        assert_eq!(log.size, 15);
    }

    #[tokio::test]
    async fn what_is_queued_is_written_before_the_end_and_nothing_after() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::start(options(folder.path(), 1 << 20)).unwrap();
        for number in 0..1000 {
            audit.reserve().await.unwrap().send(Message::Line(format!("{number}\n").into_bytes()));
        }
        audit.close().await;
        let text = fs::read_to_string(folder.path().join("logs/audit.log")).unwrap();
        assert!(text.lines().map(|line| line.parse::<u32>().unwrap()).eq(0..1000));
        assert_eq!(audit.reserve().await.unwrap_err().code, 503);
        audit.close().await;
    }

    #[tokio::test]
    async fn without_a_place_for_its_line_no_change_is_begun() {
        let (queue, _lines) = mpsc::channel(1);
        let audit = Audit { queue, patience: Duration::from_millis(1) };
        let place = audit.reserve().await.unwrap();
        assert_eq!(audit.reserve().await.unwrap_err().code, 503);
        drop(place);
        audit.reserve().await.unwrap();
    }
}

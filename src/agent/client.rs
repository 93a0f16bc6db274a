//! The appliance as the agent sees it: one HTTPS client, its calls, and the retrying of calls.
//!
//! The appliance may be restarted, and cables may be pulled, at any time: a call that got no answer is made again
//! after a growing pause, over the next interface that has an address. Every answer has a size limit and a deadline.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::tls;
use crate::hex::hex;
use crate::protocol::{
    AgentSession, AgentStep, CHUNK_SIZE, CallRefusal, ImageManifest, MAX_CALL, OpenSession, STEP_WAIT_SECONDS,
    StepEvent, StepOutcome,
};

/// Largest manifest in bytes: about 250 GB of image that holds data.
const MAX_MANIFEST: usize = 32 << 20;
/// Largest answer with a step in bytes: a config drive and its base64.
const MAX_STEP: usize = 16 << 20;
/// Largest chunk as stored in bytes; zstd adds little to what it cannot compress.
const MAX_CHUNK: usize = CHUNK_SIZE as usize + (64 << 10);
/// How often an outage is told.
const TELL: Duration = Duration::from_secs(10);
/// Longest reason shown, in characters.
const MAX_REASON: usize = 500;

/// Pauses and deadlines.
#[derive(Clone, Debug)]
pub struct ClientTiming {
    /// Pause before the first retry; it doubles up to [`ClientTiming::retry_most`].
    pub retry_least: Duration,
    /// Longest pause between retries.
    pub retry_most: Duration,
    /// How long an appliance that does not answer is waited for.
    pub unreachable: Duration,
    /// How long a server with the wrong certificate is asked again.
    pub untrusted: Duration,
    /// Deadline of a call, beyond the time that the appliance may hold it.
    pub call: Duration,
    /// Least time between two events of a step.
    pub event_gap: Duration,
    /// Most time between two events of a step; the answer to one tells that the session is still the current one.
    pub heartbeat: Duration,
    /// How long a cancelled step may take to end.
    pub cancel: Duration,
    /// How long a step may go on without any progress.
    pub stalled: Duration,
}

impl Default for ClientTiming {
    fn default() -> Self {
        Self {
            retry_least: Duration::from_millis(500),
            retry_most: Duration::from_secs(8),
            unreachable: Duration::from_secs(1800),
            untrusted: Duration::from_secs(60),
            call: Duration::from_secs(30),
            event_gap: Duration::from_secs(1),
            heartbeat: Duration::from_secs(5),
            cancel: Duration::from_secs(10),
            stalled: Duration::from_secs(1800),
        }
    }
}

/// Why a call did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum AgentCallError {
    /// No answer, or one that says to come back later. Worth another try.
    #[error("{0}")]
    Unreachable(String),
    /// The server's certificate was not issued by the pinned CA.
    #[error("{0}")]
    Untrusted(String),
    /// 401: the session is not the current one any more.
    #[error("the session was ended: {0}")]
    Revoked(String),
    /// 410: the step is not wanted any more.
    #[error("the step is not wanted any more: {0}")]
    Gone(String),
    /// The appliance understood and said no, or its answer cannot be understood. Another try will not help.
    #[error("{reason} (HTTP {status})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What the appliance says.
        reason: String,
    },
}

impl AgentCallError {
    fn worth_retrying(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Untrusted(_))
    }
}

/// Calls to the appliance. Cheap to clone; clones share connections and the session.
#[derive(Clone)]
pub struct ApplianceClient {
    shared: Arc<SharedClient>,
}

/// Where calls leave this machine.
#[derive(Clone, Debug)]
pub enum Egress {
    /// By one of these interfaces, the first being the best; the routing table decides while the list is empty.
    Interfaces(watch::Receiver<Vec<String>>),
    /// From this address of the machine.
    Address(IpAddr),
    /// Through an HTTP proxy, by CONNECT.
    Proxy(SocketAddr),
}

struct SharedClient {
    egress: Egress,
    server: Url,
    tls: rustls::ClientConfig,
    timing: ClientTiming,
    route: Mutex<EgressInterface>,
    bearer: Mutex<Option<SecretString>>,
    outage: Mutex<Option<Outage>>,
    revoked: CancellationToken,
}

/// The appliance does not answer: since when, and when that was told last. One for all calls.
struct Outage {
    since: Instant,
    told: Instant,
}

/// The interface that calls go out by; `None` leaves it to the routing table.
struct EgressInterface {
    interface: Option<String>,
    http: reqwest::Client,
}

impl ApplianceClient {
    /// A client for the appliance at `server` whose CA certificate has the SHA-256 `ca`. Calls go out by one of
    /// `interfaces`, the first being the best; the routing table decides while that list is empty.
    ///
    /// # Errors
    /// When the HTTP client cannot be made from these.
    pub fn new(
        server: Url,
        ca: [u8; 32],
        interfaces: watch::Receiver<Vec<String>>,
        timing: ClientTiming,
    ) -> Result<Self, AgentCallError> {
        Self::leaving_by(server, ca, Egress::Interfaces(interfaces), timing)
    }

    /// As [`ApplianceClient::new`], with calls that leave the machine as `egress` says.
    ///
    /// # Errors
    /// When the HTTP client cannot be made from these.
    pub fn leaving_by(server: Url, ca: [u8; 32], egress: Egress, timing: ClientTiming) -> Result<Self, AgentCallError> {
        let tls = tls::client_config(ca).map_err(|error| local(&error))?;
        let interface = egress.interfaces().into_iter().next();
        let http = http_client(&tls, &egress, interface.as_deref())?;
        let route = Mutex::new(EgressInterface { interface, http });
        let revoked = CancellationToken::new();
        let bearer = Mutex::default();
        let outage = Mutex::default();
        Ok(Self { shared: Arc::new(SharedClient { egress, server, tls, timing, route, bearer, outage, revoked }) })
    }

    /// Cancelled when any call was answered with 401.
    pub fn revoked(&self) -> &CancellationToken {
        &self.shared.revoked
    }

    /// Pauses and deadlines.
    pub fn timing(&self) -> &ClientTiming {
        &self.shared.timing
    }

    /// Opens the session and keeps its token for the calls that follow.
    ///
    /// # Errors
    /// [`AgentCallError::Refused`] with the appliance's reason when the token is not good.
    pub async fn open(&self, hello: &OpenSession) -> Result<AgentSession, AgentCallError> {
        let answer = self.send(self.request(Method::POST, "session", &[])?.json(hello)).await?;
        let session: AgentSession = json(answer, MAX_CALL).await?;
        *self.shared.bearer.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.session.clone().into());
        Ok(session)
    }

    /// The step after the one with this id; `None` when there is none yet. The appliance holds the call.
    ///
    /// # Errors
    /// [`AgentCallError`].
    pub async fn next_step(&self, after: &str) -> Result<Option<AgentStep>, AgentCallError> {
        let request = self
            .request(Method::GET, "step", &[("after", after)])?
            .timeout(Duration::from_secs(STEP_WAIT_SECONDS) + self.shared.timing.call);
        let answer = self.send(request).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        json(answer, MAX_STEP).await.map(Some)
    }

    /// Tells how far a step is.
    ///
    /// # Errors
    /// [`AgentCallError`].
    pub async fn event(&self, event: &StepEvent) -> Result<(), AgentCallError> {
        self.send(self.request(Method::POST, "event", &[])?.json(event)).await.map(drop)
    }

    /// Tells how a step ended. The outcome is durable when this returns.
    ///
    /// # Errors
    /// [`AgentCallError`].
    pub async fn result(&self, outcome: &StepOutcome) -> Result<(), AgentCallError> {
        self.send(self.request(Method::POST, "result", &[])?.json(outcome)).await.map(drop)
    }

    /// Sends a piece of log, at most [`crate::protocol::MAX_LOG`] bytes.
    ///
    /// # Errors
    /// [`AgentCallError`].
    pub async fn log(&self, piece: &str) -> Result<(), AgentCallError> {
        let request = self.request(Method::POST, "log", &[])?.header(http::header::CONTENT_TYPE, "text/plain");
        self.send(request.body(piece.to_owned())).await.map(drop)
    }

    /// The manifest of an image, retried as [`ApplianceClient::retry`] does.
    ///
    /// # Errors
    /// [`AgentCallError`].
    pub async fn manifest(&self, digest: &str) -> Result<ImageManifest, AgentCallError> {
        let path = format!("manifest/{}", hex_name(digest)?);
        self.retry("the image's manifest", || async {
            let answer = self.send(self.request(Method::GET, &path, &[])?).await?;
            let status = answer.status().as_u16();
            let bytes = body(answer, MAX_MANIFEST).await?;
            // The digest names the bytes themselves: whatever served them, this is the image that was asked for.
            let found: String = hex(&Sha256::digest(&bytes));
            if !found.eq_ignore_ascii_case(digest) {
                let reason = format!("the manifest has digest {found}, asked for was {digest}");
                return Err(AgentCallError::Refused { status, reason });
            }
            parse(&bytes, status)
        })
        .await
    }

    /// The stored bytes of a chunk, not yet checked, retried as [`ApplianceClient::retry`] does.
    ///
    /// # Errors
    /// [`AgentCallError`].
    pub async fn chunk(&self, sha256: &str) -> Result<Bytes, AgentCallError> {
        let path = format!("chunk/{}", hex_name(sha256)?);
        self.retry("a chunk of the image", || async {
            body(self.send(self.request(Method::GET, &path, &[])?).await?, MAX_CHUNK).await
        })
        .await
    }

    /// Makes a call until it is answered, with growing pauses, at most for [`ClientTiming::unreachable`] (for
    /// [`ClientTiming::untrusted`] when the server's certificate is wrong). `what` is wanted, for the console.
    ///
    /// # Errors
    /// The last error when time is up; at once any that another try would not change, and when the session ends.
    pub async fn retry<T, Called>(&self, what: &str, mut call: impl FnMut() -> Called) -> Result<T, AgentCallError>
    where
        Called: Future<Output = Result<T, AgentCallError>>,
    {
        let timing = &self.shared.timing;
        let started = Instant::now();
        let mut pause = timing.retry_least;
        loop {
            let error = match call().await {
                Ok(value) => {
                    self.answered();
                    return Ok(value);
                }
                Err(error) if !error.worth_retrying() => return Err(error),
                Err(error) => error,
            };
            let limit =
                if matches!(error, AgentCallError::Untrusted(_)) { timing.untrusted } else { timing.unreachable };
            if started.elapsed() + pause > limit {
                return Err(error);
            }
            self.unanswered(what, &error);
            self.change_interface();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shared.revoked.cancelled() => return Err(AgentCallError::Revoked("by another call".into())),
            }
            pause = (pause * 2).min(timing.retry_most);
        }
    }

    /// Tells of an outage when it begins and every ten seconds.
    fn unanswered(&self, what: &str, error: &AgentCallError) {
        let mut outage = self.shared.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let since = match &*outage {
            Some(outage) if now - outage.told < TELL => return,
            Some(outage) => outage.since,
            None => now,
        };
        *outage = Some(Outage { since, told: now });
        let seconds = (now - since).as_secs();
        tracing::warn!(server = %self.shared.server, call = what, seconds, %error, "waiting for the appliance to answer");
    }

    fn answered(&self) {
        if let Some(outage) = self.shared.outage.lock().unwrap_or_else(PoisonError::into_inner).take() {
            tracing::info!(seconds = outage.since.elapsed().as_secs(), "the appliance answers again");
        }
    }

    /// Makes the next call go out by the next interface that has an address.
    fn change_interface(&self) {
        let interfaces = self.shared.egress.interfaces();
        let mut route = self.shared.route.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match interfaces.iter().position(|name| Some(name) == route.interface.as_ref()) {
            Some(index) => interfaces.get((index + 1) % interfaces.len()),
            None => interfaces.first(),
        };
        if next == route.interface.as_ref() {
            return;
        }
        match http_client(&self.shared.tls, &self.shared.egress, next.map(String::as_str)) {
            Ok(http) => *route = EgressInterface { interface: next.cloned(), http },
            Err(error) => tracing::warn!(interface = next, %error, "cannot call the appliance by another interface"),
        }
    }

    fn request(&self, method: Method, path: &str, query: &[(&str, &str)]) -> Result<RequestBuilder, AgentCallError> {
        let mut url = self.shared.server.join(&format!("/agent/v1/{path}")).map_err(|error| local(&error))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let http = self.shared.route.lock().unwrap_or_else(PoisonError::into_inner).http.clone();
        let request = http.request(method, url).timeout(self.shared.timing.call);
        Ok(match &*self.shared.bearer.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(bearer) => request.bearer_auth(bearer.expose_secret()),
            None => request,
        })
    }

    /// Sends a request and sorts its answer: any 2xx is good.
    async fn send(&self, request: RequestBuilder) -> Result<Response, AgentCallError> {
        let answer = request.send().await.map_err(transport)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let text = body(answer, 16 << 10).await.unwrap_or_default();
        let reason = match serde_json::from_slice::<CallRefusal>(&text) {
            Ok(refusal) => refusal.reason,
            Err(_) => String::from_utf8_lossy(&text).into_owned(),
        };
        let reason: String = reason
            .trim()
            .chars()
            .map(|character| if character.is_control() { ' ' } else { character })
            .take(MAX_REASON)
            .collect();
        let reason = if reason.is_empty() { "no reason given".to_owned() } else { reason };
        Err(match status {
            StatusCode::UNAUTHORIZED => {
                self.shared.revoked.cancel();
                AgentCallError::Revoked(reason)
            }
            StatusCode::GONE => AgentCallError::Gone(reason),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => AgentCallError::Unreachable(reason),
            status if status.is_server_error() => {
                AgentCallError::Unreachable(format!("{reason} (HTTP {})", status.as_u16()))
            }
            status => AgentCallError::Refused { status: status.as_u16(), reason },
        })
    }
}

impl Egress {
    fn interfaces(&self) -> Vec<String> {
        match self {
            Self::Interfaces(interfaces) => interfaces.borrow().clone(),
            Self::Address(_) | Self::Proxy(_) => Vec::new(),
        }
    }
}

fn http_client(
    tls: &rustls::ClientConfig,
    egress: &Egress,
    interface: Option<&str>,
) -> Result<reqwest::Client, AgentCallError> {
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .pool_idle_timeout(Duration::from_secs(60))
        .tcp_keepalive(Duration::from_secs(15))
        .tcp_user_timeout(Duration::from_secs(30))
        .user_agent(concat!("slipway-agent/", env!("CARGO_PKG_VERSION")));
    builder = match egress {
        Egress::Interfaces(_) => builder,
        Egress::Address(address) => builder.local_address(*address),
        Egress::Proxy(proxy) => {
            let proxy = reqwest::Proxy::all(format!("http://{proxy}")).map_err(|error| local(&error))?;
            builder.proxy(proxy)
        }
    };
    if let Some(interface) = interface {
        builder = builder.interface(interface);
    }
    builder.build().map_err(|error| local(&error))
}

/// A fault of our own making: no retry helps.
fn local(error: &dyn std::error::Error) -> AgentCallError {
    AgentCallError::Refused { status: 0, reason: chain(error) }
}

fn transport(error: reqwest::Error) -> AgentCallError {
    // The address is told with every wait.
    let error = error.without_url();
    match tls::untrusted(&error) {
        Some(reason) => AgentCallError::Untrusted(reason),
        None => {
            let reason = chain(&error);
            // The TLS library adds an address of its manual.
            let reason = reason.split_once(": https://").map_or(reason.as_str(), |(reason, _)| reason);
            AgentCallError::Unreachable(reason.to_owned())
        }
    }
}

/// An error and its causes, each once.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

async fn body(mut answer: Response, limit: usize) -> Result<Bytes, AgentCallError> {
    let too_large = || AgentCallError::Refused {
        status: 0,
        reason: format!("the appliance's answer is larger than {limit} bytes"),
    };
    let expected = answer.content_length().unwrap_or(0);
    if expected > limit as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(expected as usize);
    while let Some(piece) = answer.chunk().await.map_err(transport)? {
        if bytes.len() + piece.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

async fn json<T: DeserializeOwned>(answer: Response, limit: usize) -> Result<T, AgentCallError> {
    let status = answer.status().as_u16();
    parse(&body(answer, limit).await?, status)
}

fn parse<T: DeserializeOwned>(bytes: &[u8], status: u16) -> Result<T, AgentCallError> {
    serde_json::from_slice(bytes).map_err(|error| AgentCallError::Refused {
        status,
        reason: format!("the appliance's answer cannot be understood: {error}"),
    })
}

/// A SHA-256 in hex, safe in a path.
fn hex_name(name: &str) -> Result<&str, AgentCallError> {
    if name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(name);
    }
    let reason = format!("{:?} is not a SHA-256", name.chars().take(80).collect::<String>());
    Err(AgentCallError::Refused { status: 0, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sha256_names_reach_a_path() {
        assert!(hex_name(&"a0".repeat(32)).is_ok());
        for name in ["", "../../etc/passwd", &"a0".repeat(31), &"g0".repeat(32)] {
            assert!(hex_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Layer(&'static str, #[source] Option<Box<Layer>>);
        let error = Layer("a: b", Some(Box::new(Layer("b", Some(Box::new(Layer("c", None)))))));
        assert_eq!(chain(&error), "a: b: c");
    }
}

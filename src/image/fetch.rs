//! Downloads: the bytes of a source in order, each once, by http, https or from a file on the appliance.
//!
//! Each connection goes where [`Guard`] lets it: redirects are followed here, one by one, with a client that resolves
//! names for the one port that the URL has.
//!
//! A connection that drops or stalls is resumed with `Range` and `If-Range` (RFC 9110, section 14), and only
//! when a strong ETag or Last-Modified shows that the file is still the same one. A server that answers 200
//! instead of 206 but shows the same validator is read again from the start, and what is known is skipped.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_RANGE, LAST_MODIFIED, LOCATION, RANGE};
use http::{HeaderValue, Method, StatusCode};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};

use super::ImportError;
use super::source::{Sources, URL_MAX};
use crate::files;
use crate::outbound::client::{self, ClientSettings, OutboundClient, OutboundResponse};
use crate::outbound::{Guard, refusal};

/// What the appliance calls itself to the servers of images, whichever its version. Boot HTTP gives it nothing that is of
/// a boot.
pub const USER_AGENT_NAME: &str = "slipway-images/";

/// Redirects followed for one request.
const REDIRECTS: usize = 5;
/// Bytes that a server may send before its answer's body, with TLS.
const BEFORE_BODY: usize = 1 << 20;
/// Most bytes of `image.ca_file`: some hundred certificates.
const CA_FILE_MAX: u64 = 1 << 20;
/// Bytes read from a file at once.
const FILE_PIECE: usize = 256 << 10;
/// A connection that brought this much counts as progress, so that the count of failures starts again.
const PROGRESS: u64 = 256 << 10;

/// How long things may take. Fixed outside of tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Until a connection stands.
    pub(super) connect: Duration,
    /// Between two pieces of data, and until the first.
    pub(super) stall: Duration,
    /// Before the first attempt to resume; doubles each time.
    pub(super) pause: Duration,
    /// Attempts to resume without progress.
    pub(super) attempts: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            stall: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            attempts: 5,
        }
    }
}

/// Opens sources. Cheap to clone.
#[derive(Clone)]
pub(super) struct SourceFetcher {
    tls: rustls::ClientConfig,
    sources: Arc<Sources>,
    guard: Guard,
    timing: Timing,
}

/// A source being read.
pub(super) struct OpenSource {
    body: Body,
    shown: String,
    read: u64,
    total: Option<u64>,
}

enum Body {
    File(tokio::fs::File),
    Http(Box<Http>),
}

struct Http {
    fetcher: SourceFetcher,
    url: Url,
    validator: Option<Validator>,
    response: OutboundResponse,
    /// Bytes of this response that were read before.
    skip: u64,
    failures: u32,
    /// Where the last attempt to resume began.
    resumed_at: u64,
}

/// Shows that a file is still the same (RFC 9110, section 8.8).
#[derive(Clone, Debug, PartialEq)]
struct Validator {
    name: HeaderName,
    value: String,
}

impl Validator {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let get = |name: HeaderName| {
            let value = headers.get(&name)?.to_str().ok()?.to_owned();
            Some(Self { name, value })
        };
        // A weak ETag promises the same meaning, not the same bytes.
        get(ETAG).filter(|tag| !tag.value.starts_with("W/")).or_else(|| get(LAST_MODIFIED))
    }

    fn holds(&self, headers: &HeaderMap) -> bool {
        headers.get(&self.name).is_some_and(|value| value.as_bytes() == self.value.as_bytes())
    }
}

/// Whether `image.ca_file` can be used.
///
/// # Errors
///
/// When it cannot be read, or holds no certificate of a CA.
pub fn check_ca_file(path: &Path) -> io::Result<()> {
    add_authorities(&mut rustls::RootCertStore::empty(), path)
}

fn add_authorities(roots: &mut rustls::RootCertStore, path: &Path) -> io::Result<()> {
    use rustls_pki_types::pem::PemObject;
    let fail = |reason: String| {
        io::Error::new(io::ErrorKind::InvalidData, format!("image.ca_file {}: {reason}", path.display()))
    };
    let text = files::read(path, CA_FILE_MAX).map_err(|e| fail(e.to_string()))?;
    let found: Result<Vec<_>, _> = rustls_pki_types::CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|e| fail(e.to_string()))?;
    if found.is_empty() {
        return Err(fail("there is no certificate in it".into()));
    }
    for certificate in found {
        roots.add(certificate).map_err(|e| fail(e.to_string()))?;
    }
    Ok(())
}

impl SourceFetcher {
    pub(super) fn new(sources: Sources) -> io::Result<Self> {
        Self::with_timing(sources, Timing::default())
    }

    pub(super) fn with_timing(sources: Sources, timing: Timing) -> io::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        // Single system certificates that do not parse are left out, as every TLS client does.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = &sources.ca_file {
            add_authorities(&mut roots, path)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // What servers want to be remembered of sessions may be much, and an image is one connection.
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Self { tls, guard: sources.guard(), sources: Arc::new(sources), timing })
    }

    /// Where images may come from.
    pub(super) fn sources(&self) -> Arc<Sources> {
        self.sources.clone()
    }

    fn client(&self, port: u16) -> OutboundClient {
        OutboundClient::new(ClientSettings {
            guard: Some(self.guard.clone()),
            port,
            addresses: Vec::new(),
            tls: self.tls.clone(),
            connect_timeout: self.timing.connect,
            proxies: Some(Matcher::from_env()),
            // An image is one connection.
            keep: Duration::ZERO,
            user_agent: HeaderValue::try_from(format!("{USER_AGENT_NAME}{}", env!("CARGO_PKG_VERSION")))
                .unwrap_or_else(|_| HeaderValue::from_static(USER_AGENT_NAME)),
            most: BEFORE_BODY,
        })
    }

    /// The answer to a request with these fields, behind whatever redirects.
    async fn get(&self, url: &Url, fields: &HeaderMap) -> Result<OutboundResponse, Unanswered> {
        let mut url = url.clone();
        let mut redirects = 0;
        loop {
            let at = if redirects == 0 { String::new() } else { format!("it redirects to {}, ", shown(&url)) };
            let never = |reason: String| Unanswered { reason: format!("{at}{reason}"), retry: false };
            if !matches!(url.scheme(), "http" | "https") {
                return Err(never("which is neither http nor https".into()));
            }
            self.guard.url(&url).map_err(|refused| never(refused.to_string()))?;
            let client = self.client(url.port_or_known_default().unwrap_or_default());
            let request = client.send(Method::GET, &url, fields.clone(), Bytes::new(), None);
            let answer = timeout(self.timing.stall, request).await.map_err(|_| Unanswered {
                reason: format!("{at}no answer within {:?}", self.timing.stall),
                retry: true,
            })?;
            let answer = answer.map_err(|error| Unanswered::of(&at, error))?;
            let Some(next) = redirect(&url, &answer) else { return Ok(answer.of_any_length()) };
            if redirects == REDIRECTS {
                return Err(Unanswered { reason: format!("it redirects more than {REDIRECTS} times"), retry: false });
            }
            url = next.map_err(|reason| Unanswered { reason, retry: false })?;
            redirects += 1;
        }
    }

    /// Asks for a source; its length is known afterwards when the server tells it.
    pub(super) async fn open(&self, url: &Url) -> Result<OpenSource, ImportError> {
        let shown = shown(url);
        match url.scheme() {
            "http" | "https" => {
                let response = self.get(url, &HeaderMap::new()).await.map_err(|unanswered| unanswered.told(&shown))?;
                if response.status() != StatusCode::OK {
                    return Err(refused(&shown, response.status()));
                }
                let total = response.content_length();
                let http = Http {
                    fetcher: self.clone(),
                    url: url.clone(),
                    validator: Validator::of(response.headers()),
                    response,
                    skip: 0,
                    failures: 0,
                    resumed_at: 0,
                };
                Ok(OpenSource { body: Body::Http(Box::new(http)), shown, read: 0, total })
            }
            "file" => {
                let (sources, file, name) = (self.sources.clone(), url.clone(), shown.clone());
                let opened = tokio::task::spawn_blocking(move || sources.open_file(&file, &name)).await;
                let file = opened.map_err(|e| ImportError::passing(format!("{shown}: {e}")))??;
                let file = tokio::fs::File::from_std(file);
                let meta = file.metadata().await.map_err(|e| ImportError::passing(format!("{shown}: {e}")))?;
                Ok(OpenSource { body: Body::File(file), shown, read: 0, total: Some(meta.len()) })
            }
            other => Err(ImportError::lasting(format!("{shown}: scheme {other:?} is not read; use http or https"))),
        }
    }

    /// A source of what was sent to the appliance.
    pub(super) fn of_upload(file: std::fs::File, bytes: u64, url: &Url) -> OpenSource {
        let body = Body::File(tokio::fs::File::from_std(file));
        OpenSource { body, shown: shown(url), read: 0, total: Some(bytes) }
    }

    /// The text at a URL, at most `limit` bytes.
    pub(super) async fn text(&self, url: &Url, limit: usize) -> Result<String, ImportError> {
        let mut source = self.open(url).await?;
        let mut text = Vec::new();
        while let Some(piece) = source.next().await? {
            if text.len() + piece.len() > limit {
                return Err(ImportError::lasting(format!("{} is over {limit} bytes long", source.shown)));
            }
            text.extend_from_slice(&piece);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl OpenSource {
    /// The URL without credentials and query, for messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Bytes read so far.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Bytes in all, when known.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ImportError> {
        let piece = match &mut self.body {
            Body::File(file) => {
                let mut piece = bytes::BytesMut::with_capacity(FILE_PIECE);
                let fail = |e| ImportError::passing(format!("{}: {e}", self.shown));
                file.read_buf(&mut piece).await.map_err(fail)?;
                Some(piece.freeze()).filter(|piece| !piece.is_empty())
            }
            Body::Http(http) => http.next(&self.shown, self.read, self.total).await?,
        };
        self.read += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        match self.total {
            Some(total) if self.read > total || (piece.is_none() && self.read < total) => Err(changed(&self.shown)),
            _ => Ok(piece),
        }
    }
}

impl Http {
    async fn next(&mut self, shown: &str, read: u64, total: Option<u64>) -> Result<Option<Bytes>, ImportError> {
        loop {
            let reason = match timeout(self.fetcher.timing.stall, self.response.chunk()).await {
                Ok(Ok(Some(mut piece))) => {
                    let known = self.skip.min(piece.len() as u64);
                    self.skip -= known;
                    let piece = piece.split_off(known as usize);
                    if piece.is_empty() {
                        continue;
                    }
                    if read + piece.len() as u64 >= self.resumed_at + PROGRESS {
                        self.failures = 0;
                    }
                    return Ok(Some(piece));
                }
                Ok(Ok(None)) if self.skip == 0 && total.is_none_or(|total| read == total) => return Ok(None),
                Ok(Ok(None)) => "the connection ended early".into(),
                Ok(Err(error)) => chain(&error),
                Err(_) => format!("no data for {:?}", self.fetcher.timing.stall),
            };
            self.resume(shown, read, total, reason).await?;
        }
    }

    async fn resume(&mut self, shown: &str, read: u64, total: Option<u64>, reason: String) -> Result<(), ImportError> {
        let Some(validator) = self.validator.clone() else {
            return Err(ImportError::passing(format!(
                "reading {shown} stopped after {read} bytes: {reason}; it cannot be resumed, because the server sends \
                 neither a strong ETag nor Last-Modified"
            )));
        };
        let mut reason = reason;
        let timing = self.fetcher.timing;
        let mut fields = HeaderMap::new();
        for (name, value) in [(RANGE, format!("bytes={read}-")), (IF_RANGE, validator.value.clone())] {
            let value = value.parse().map_err(|_| changed(shown))?;
            fields.insert(name, value);
        }
        loop {
            if self.failures >= timing.attempts {
                return Err(ImportError::passing(format!(
                    "reading {shown} stopped after {read}{} bytes: {reason}; tried {} times to resume",
                    total.map(|total| format!(" of {total}")).unwrap_or_default(),
                    self.failures
                )));
            }
            tracing::info!(url = shown, read, reason = %reason, "an image download broke: resuming it");
            sleep(timing.pause * 2_u32.saturating_pow(self.failures.min(5))).await;
            self.failures += 1;
            self.resumed_at = read;
            let response = match self.fetcher.get(&self.url, &fields).await {
                Ok(response) => response,
                Err(unanswered) if unanswered.retry => {
                    reason = unanswered.reason;
                    continue;
                }
                Err(unanswered) => return Err(unanswered.told(shown)),
            };
            let headers = response.headers();
            self.skip = match response.status() {
                StatusCode::PARTIAL_CONTENT => {
                    // If-Range made the server compare; a header that is there must agree all the same.
                    let same = !headers.contains_key(&validator.name) || validator.holds(headers);
                    if !same || !range_fits(headers, read, total) {
                        return Err(changed(shown));
                    }
                    0
                }
                StatusCode::OK if validator.holds(headers) && response.content_length() == total => read,
                StatusCode::OK | StatusCode::RANGE_NOT_SATISFIABLE => return Err(changed(shown)),
                status if status.is_server_error() => {
                    reason = format!("the server answered {status}");
                    continue;
                }
                status => return Err(refused(shown, status)),
            };
            self.response = response;
            return Ok(());
        }
    }
}

/// Whether `Content-Range: bytes first-last/total` continues at `read`.
fn range_fits(headers: &HeaderMap, read: u64, total: Option<u64>) -> bool {
    let parse = || {
        let range = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
        let (span, length) = range.split_once('/')?;
        let first: u64 = span.split_once('-')?.0.trim().parse().ok()?;
        Some((first, length.trim().parse::<u64>().ok()))
    };
    parse()
        .is_some_and(|(first, length)| first == read && length.zip(total).is_none_or(|(length, total)| length == total))
}

/// A URL for messages: no user, no password, no query (signed URLs carry their secret there).
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Both fail only for URLs that cannot have credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let part = inner.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = inner.source();
    }
    text
}

/// Why there is no answer.
struct Unanswered {
    reason: String,
    retry: bool,
}

impl Unanswered {
    fn of(at: &str, error: client::OutboundError) -> Self {
        if let Some(refused) = refusal(&error) {
            // A name may lead elsewhere tomorrow.
            return Self { reason: format!("{at}{refused}"), retry: true };
        }
        if matches!(error, client::OutboundError::Url) {
            return Self { reason: format!("{at}that is not a URL that can be fetched"), retry: false };
        }
        let reason = chain(&error);
        let hint = match reason.contains("UnknownIssuer") {
            true => "; if your own CA signed it, name its file as image.ca_file",
            false => "",
        };
        Self { reason: format!("{at}{reason}{hint}"), retry: true }
    }

    fn told(self, shown: &str) -> ImportError {
        ImportError { message: format!("{shown} cannot be fetched: {}", self.reason), retry: self.retry, lack: None }
    }
}

/// Where an answer sends its client (RFC 9110 section 15.4); `None` when it is no redirect.
fn redirect(from: &Url, answer: &OutboundResponse) -> Option<Result<Url, String>> {
    if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = answer.headers().get(LOCATION)?;
    if location.len() > URL_MAX {
        return Some(Err(format!("it redirects to a URL of more than {URL_MAX} bytes")));
    }
    let joined = location.to_str().ok().and_then(|location| from.join(location).ok());
    Some(joined.ok_or_else(|| "it redirects to what is no URL".to_owned()).map(|mut to| {
        // The same server may want the same login.
        if to.origin() == from.origin() && to.username().is_empty() && to.password().is_none() {
            // Both fail only for URLs without a host.
            let _ = to.set_username(from.username());
            let _ = to.set_password(from.password());
        }
        to
    }))
}

fn refused(shown: &str, status: StatusCode) -> ImportError {
    let message = match status {
        StatusCode::NOT_FOUND => format!("{shown}: the server answered {status}; check the URL or publish the file"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("{shown}: the server answered {status}; the appliance must be allowed to read it")
        }
        _ => format!("{shown}: the server answered {status}"),
    };
    let retry = status.is_server_error() || matches!(status.as_u16(), 401 | 403 | 404 | 408 | 425 | 429);
    ImportError { message, retry, lack: None }
}

fn changed(shown: &str) -> ImportError {
    ImportError::passing(format!("{shown} changed while it was read"))
}

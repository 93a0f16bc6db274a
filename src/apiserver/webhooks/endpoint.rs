//! Where a webhook is, and how it is asked.
//!
//! Who may write a configuration of webhooks says what the API server connects to, so the operator says what that may be:
//! `api.webhooks.allow` judges the addresses of URLs after their names were resolved, and `api.webhooks.services` says where
//! services are. Redirects are not followed, and an answer is counted where it comes in.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use reqwest::Url;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use super::super::answers::status::shorten;
use crate::config::{WebhookAddress, WebhooksConfig};
use crate::live::Live;
use crate::outbound::client::{ClientSettings, OutboundClient, OutboundError, OutboundResponse};
use crate::outbound::{self, Allowed, Guard};

/// Bytes of an answer, with its head and TLS.
const ANSWER_MAX: usize = 4 << 20;
/// Letters of an answer that an error shows.
const SHOWN_MAX: usize = 256;
/// How long a connection is kept for the next call.
const KEEP: Duration = Duration::from_secs(30);
/// Connections that are kept to one webhook.
const IDLE_MAX: usize = 4;
/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The list of the configuration that names addresses.
const ALLOW: &str = "api.webhooks.allow";

/// Where a webhook is: `clientConfig` of an object.
pub(in crate::apiserver) struct WebhookEndpoint {
    address: ClientAddress,
    authorities: Option<String>,
    tls: OnceLock<Result<rustls::ClientConfig, String>>,
    // std's lock: held to take or to put back.
    idle: Mutex<Vec<Idle>>,
}

enum ClientAddress {
    Url(Url),
    Service {
        namespace: String,
        name: String,
        port: u16,
        path: String,
    },
    /// It was never checked.
    Faulty(String),
}

/// A client and the settings that it was made with.
struct Idle {
    client: OutboundClient,
    settings: Arc<WebhooksConfig>,
}

impl fmt::Debug for WebhookEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl WebhookEndpoint {
    /// Reads a `clientConfig` that was checked when it was written.
    pub fn of(config: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let service = &config["service"];
        let address = if service.is_object() {
            let path = text(&service["path"]);
            let slash = if path.starts_with('/') { "" } else { "/" };
            ClientAddress::Service {
                namespace: text(&service["namespace"]),
                name: text(&service["name"]),
                port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
                path: format!("{slash}{path}"),
            }
        } else {
            match Url::parse(&text(&config["url"])) {
                Ok(url) if url.scheme() == "https" => ClientAddress::Url(url),
                _ => ClientAddress::Faulty("its clientConfig has no https URL and no service".into()),
            }
        };
        let authorities = config["caBundle"].as_str().filter(|bundle| !bundle.is_empty()).map(str::to_owned);
        Self { address, authorities, tls: OnceLock::new(), idle: Mutex::default() }
    }

    /// The URL that is asked, for people.
    fn shown(&self) -> String {
        match &self.address {
            ClientAddress::Url(url) => outbound::masked(url.as_str()),
            ClientAddress::Service { namespace, name, port, path } => {
                format!("https://{name}.{namespace}.svc:{port}{path}")
            }
            ClientAddress::Faulty(_) => String::new(),
        }
    }

    /// Why it can never be called with these settings, as far as that is known without DNS.
    pub fn unreachable(&self, settings: &WebhooksConfig) -> Option<String> {
        match &self.address {
            ClientAddress::Faulty(reason) => Some(reason.clone()),
            ClientAddress::Service { namespace, name, port, .. } => {
                settings.service(namespace, name, *port).is_none().then(|| no_service(namespace, name, *port))
            }
            ClientAddress::Url(_) if settings.allow.is_empty() => {
                Some(format!("{ALLOW} in slipway.toml is empty, so no webhook is called that a URL names"))
            }
            ClientAddress::Url(url) => guard(settings.allow.clone()).url(url).err().map(|refused| refused.to_string()),
        }
    }

    /// Asks, and gives the body of the answer. It is told `timeout`, of which so much is `left`.
    ///
    /// # Errors
    ///
    /// Why there is no answer, in words for the client.
    pub async fn ask(
        &self,
        settings: &Arc<WebhooksConfig>,
        body: Bytes,
        timeout: Duration,
        left: Duration,
    ) -> Result<Bytes, String> {
        let query = format!("timeout={}s", timeout.as_secs());
        let shown = format!("Post \"{}?{query}\"", self.shown());
        let asked = self.exchange(settings, body, &query, left);
        match tokio::time::timeout(left, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(CallFault::Call(reason))) => Err(format!("{shown}: {reason}")),
            Ok(Err(CallFault::Answer(reason))) => Err(reason),
            Err(_) => Err(format!("{shown}: context deadline exceeded")),
        }
    }

    async fn exchange(
        &self,
        settings: &Arc<WebhooksConfig>,
        body: Bytes,
        query: &str,
        within: Duration,
    ) -> Result<Bytes, CallFault> {
        let mut url = self.url()?;
        url.set_query(Some(query));
        let client = match self.kept(settings) {
            Some(client) => client,
            None => self.connect(settings, &url, within).await?,
        };
        // A connection that is kept was judged when it was made; what is allowed may have changed.
        if let ClientAddress::Url(url) = &self.address {
            guard(settings.allow.clone()).url(url).map_err(|refused| CallFault::Call(refused.to_string()))?;
        }
        let mut fields = HeaderMap::new();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        fields.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        if let ClientAddress::Service { namespace, name, port, .. } = &self.address
            && let Ok(host) = HeaderValue::try_from(format!("{name}.{namespace}.svc:{port}"))
        {
            fields.insert(HOST, host);
        }
        let answer =
            client.send(Method::POST, &url, fields, body, Some(within)).await.map_err(|error| call(&url, &error))?;
        let status = answer.status();
        let kind =
            answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        let text = read(&url, answer).await?;
        if !status.is_success() {
            return Err(CallFault::Answer(refusal(status, &kind, &text)));
        }
        self.keep(client, settings);
        if text.is_empty() {
            let (status, kind) = (status.as_u16(), if kind.is_empty() { "application/json" } else { &kind });
            let kind = shorten(kind, SHOWN_MAX);
            let reason = format!("0-length response with status code: {status} and content type: {kind}");
            return Err(CallFault::Answer(reason));
        }
        Ok(text.into())
    }

    fn url(&self) -> Result<Url, CallFault> {
        match &self.address {
            ClientAddress::Url(url) => Ok(url.clone()),
            // The port is the address's: see `connect`.
            ClientAddress::Service { namespace, name, path, .. } => {
                Url::parse(&format!("https://{name}.{namespace}.svc{path}"))
                    .map_err(|error| CallFault::Call(error.to_string()))
            }
            ClientAddress::Faulty(reason) => Err(CallFault::Call(reason.clone())),
        }
    }

    /// A client for the next call.
    async fn connect(
        &self,
        settings: &Arc<WebhooksConfig>,
        url: &Url,
        within: Duration,
    ) -> Result<OutboundClient, CallFault> {
        let tls = self.tls.get_or_init(|| tls(self.authorities.as_deref())).clone().map_err(CallFault::Call)?;
        let (guard, addresses) = match &self.address {
            ClientAddress::Service { namespace, name, port, .. } => {
                let place = settings.service(namespace, name, *port);
                let place = place.ok_or_else(|| CallFault::Call(no_service(namespace, name, *port)))?;
                (None, resolved(place).await?)
            }
            _ => (Some(guard(settings.allow.clone())), Vec::new()),
        };
        Ok(OutboundClient::new(ClientSettings {
            guard,
            port: url.port_or_known_default().unwrap_or(443),
            addresses,
            tls,
            connect_timeout: within.min(CONNECT_MAX),
            proxies: None,
            keep: KEEP,
            user_agent: HeaderValue::from_static(concat!("slipway-webhooks/", env!("CARGO_PKG_VERSION"))),
            most: ANSWER_MAX,
        }))
    }

    fn kept(&self, settings: &Arc<WebhooksConfig>) -> Option<OutboundClient> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|one| Arc::ptr_eq(&one.settings, settings));
        idle.pop().map(|one| one.client)
    }

    fn keep(&self, client: OutboundClient, settings: &Arc<WebhooksConfig>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(Idle { client, settings: Arc::clone(settings) });
        }
    }
}

/// Why a call has no answer that can be used.
enum CallFault {
    /// It came to nothing.
    Call(String),
    /// It was answered with a fault.
    Answer(String),
}

fn guard(allow: Vec<Allowed>) -> Guard {
    Guard::only(ALLOW, Live::from(allow))
}

fn no_service(namespace: &str, name: &str, port: u16) -> String {
    format!(
        "service \"{name}\" not found: there are no services here; add \"{namespace}/{name}\" = \"HOST:PORT\" (or \
         \"{namespace}/{name}:{port}\") to [api.webhooks.services] in slipway.toml"
    )
}

async fn resolved(place: &WebhookAddress) -> Result<Vec<SocketAddr>, CallFault> {
    let WebhookAddress { host, port } = place;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, *port)]);
    }
    let found = outbound::lookup(host, *port).await;
    let found = found.map_err(|error| CallFault::Call(format!("{host} of [api.webhooks.services]: {error}")))?;
    if found.is_empty() {
        Err(CallFault::Call(format!("{host} of [api.webhooks.services] has no address")))
    } else {
        Ok(found)
    }
}

/// Verifies by these authorities in PEM, base64-encoded, or by the system's.
fn tls(authorities: Option<&str>) -> Result<rustls::ClientConfig, String> {
    let roots = match authorities {
        None => system(),
        Some(bundle) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(bundle)? {
                roots.add(certificate).map_err(|error| format!("unable to load root certificates: {error}"))?;
            }
            Arc::new(roots)
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // What a server wants to be remembered of sessions may be much.
    tls.resumption = rustls::client::Resumption::disabled();
    Ok(tls)
}

/// The system's authorities, which all webhooks share that go by them: they are some hundred.
fn system() -> Arc<rustls::RootCertStore> {
    // std's lock: held while they are read, by those who want them.
    static SYSTEM: Mutex<Weak<rustls::RootCertStore>> = Mutex::new(Weak::new());
    let mut shared = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let roots = Arc::new(roots);
        *shared = Arc::downgrade(&roots);
        roots
    })
}

/// What is wrong with a `caBundle`.
pub(in crate::apiserver) fn bundle_fault(bundle: &str) -> Option<String> {
    certificates(bundle).err()
}

/// The certificates of a `caBundle`.
fn certificates(bundle: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let faulty = || "unable to load root certificates: unable to parse bytes as PEM block".to_owned();
    let pem = base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|_| faulty())?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(|_| faulty())?;
    if found.is_empty() { Err(faulty()) } else { Ok(found) }
}

async fn read(url: &Url, mut answer: OutboundResponse) -> Result<Vec<u8>, CallFault> {
    let mut text = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| call(url, &error))? {
        if text.len() + piece.len() > ANSWER_MAX {
            return Err(CallFault::Call(format!("the answer is larger than {} MiB", ANSWER_MAX >> 20)));
        }
        text.extend_from_slice(&piece);
    }
    Ok(text)
}

/// Why a call came to nothing, in the words of Go's clients where they are known.
fn call(url: &Url, error: &OutboundError) -> CallFault {
    if error.is_timeout() {
        return CallFault::Call("context deadline exceeded".into());
    }
    // The outer errors only say that there was one.
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if let Some(refused) = outbound::refusal(error) {
        return CallFault::Call(shorten(&refused.to_string(), 2 * SHOWN_MAX));
    }
    let told = match error.io_kind() {
        Some(io::ErrorKind::ConnectionRefused) => {
            let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(443));
            format!("dial tcp {host}:{port}: connect: connection refused")
        }
        Some(io::ErrorKind::UnexpectedEof) => "EOF".into(),
        _ => innermost.to_string(),
    };
    CallFault::Call(shorten(&told, 2 * SHOWN_MAX))
}

/// A status that is no success, in the words of upstream's client: those of the `Status` in the body, if there is one.
fn refusal(status: StatusCode, kind: &str, body: &[u8]) -> String {
    if status.is_redirection() {
        return format!("the server answered with a redirect ({status}), and redirects are not followed");
    }
    if let Some(message) = status_message(body) {
        return shorten(&message, 4 * SHOWN_MAX);
    }
    let text = if kind.is_empty() || kind.starts_with("text/") {
        shorten(String::from_utf8_lossy(body).trim(), SHOWN_MAX)
    } else {
        "unknown".to_owned()
    };
    match status.as_u16() {
        400 => "the server rejected our request for an unknown reason".into(),
        401 => "the server has asked for the client to provide credentials".into(),
        403 | 415 => text,
        404 => "the server could not find the requested resource".into(),
        405 => "the server does not allow this method on the requested resource".into(),
        406 if text.is_empty() || text == "unknown" => {
            "the server was unable to respond with a content type that the client supports".into()
        }
        406 => text,
        409 => "the server reported a conflict".into(),
        422 => "the server rejected our request due to an error in our request".into(),
        429 => "the server has received too many requests and has asked us to try again later".into(),
        503 => "the server is currently unable to handle the request".into(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .into()
        }
        500.. => format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        other => format!("the server responded with the status code {other} but did not return more information"),
    }
}

/// The message of a `Status` that is a failure.
fn status_message(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct FailureStatus {
        kind: String,
        status: String,
        #[serde(default)]
        message: String,
    }
    let found: FailureStatus = serde_json::from_slice(body).ok()?;
    (found.kind == "Status" && found.status == "Failure").then_some(found.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_as_upstreams_client_tells_it() {
        let status = br#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "of its own"}"#;
        for (code, kind, body, wanted) in [
            (500, "", &b" boom\n"[..], "an error on the server (\"boom\") has prevented the request from succeeding"),
            (500, "", b"", "an error on the server (\"\") has prevented the request from succeeding"),
            (
                502,
                "application/json",
                b"{}",
                "an error on the server (\"unknown\") has prevented the request from succeeding",
            ),
            (500, "application/json", status, "of its own"),
            (403, "application/json", status, "of its own"),
            (403, "text/plain; charset=utf-8", b"no", "no"),
            (404, "", b"page", "the server could not find the requested resource"),
            (418, "", b"tea", "the server responded with the status code 418 but did not return more information"),
            (302, "", status, "the server answered with a redirect (302 Found), and redirects are not followed"),
        ] {
            assert_eq!(refusal(StatusCode::from_u16(code).unwrap(), kind, body), wanted, "{code} {kind}");
        }
    }
}

//! Where a webhook is, and how it is asked.
//!
//! Who may write a configuration of webhooks says what the API server connects to, so the operator says what that may be:
//! `api.webhooks.allow` judges the addresses of URLs after their names were resolved, and `api.webhooks.services` says where
//! services are. Redirects are not followed, and an answer is counted where it comes in.

use std::fmt;
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

use super::super::status::shorten;
use crate::config::{WebhookAddress, WebhooksConfig};
use crate::live::Live;
use crate::outbound::client::{Client, ClientSettings, Error, Response};
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
pub(in crate::apiserver) struct Endpoint {
    address: Address,
    authorities: Option<String>,
    tls: OnceLock<Result<rustls::ClientConfig, String>>,
    // std's lock: held to take or to put back.
    idle: Mutex<Vec<Idle>>,
}

enum Address {
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
    client: Client,
    settings: Arc<WebhooksConfig>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Endpoint {
    /// Reads a `clientConfig` that was checked when it was written.
    pub fn of(config: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let service = &config["service"];
        let address = if service.is_object() {
            let path = text(&service["path"]);
            let slash = if path.starts_with('/') { "" } else { "/" };
            Address::Service {
                namespace: text(&service["namespace"]),
                name: text(&service["name"]),
                port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
                path: format!("{slash}{path}"),
            }
        } else {
            match Url::parse(&text(&config["url"])) {
                Ok(url) if url.scheme() == "https" => Address::Url(url),
                _ => Address::Faulty("its clientConfig has no https URL and no service".into()),
            }
        };
        let authorities = config["caBundle"].as_str().filter(|bundle| !bundle.is_empty()).map(str::to_owned);
        Self { address, authorities, tls: OnceLock::new(), idle: Mutex::default() }
    }

    /// The URL that is asked, for people.
    fn shown(&self) -> String {
        match &self.address {
            Address::Url(url) => outbound::masked(url.as_str()),
            Address::Service { namespace, name, port, path } => format!("https://{name}.{namespace}.svc:{port}{path}"),
            Address::Faulty(_) => String::new(),
        }
    }

    /// Why it can never be called with these settings, as far as that is known without DNS.
    pub fn unreachable(&self, settings: &WebhooksConfig) -> Option<String> {
        match &self.address {
            Address::Faulty(reason) => Some(reason.clone()),
            Address::Service { namespace, name, port, .. } => {
                settings.service(namespace, name, *port).is_none().then(|| no_service(namespace, name, *port))
            }
            Address::Url(_) if settings.allow.is_empty() => {
                Some(format!("{ALLOW} in slipway.toml is empty, so no webhook is called that a URL names"))
            }
            Address::Url(url) => guard(settings.allow.clone()).url(url).err().map(|refused| refused.to_string()),
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
            Ok(Err(Fault::Call(reason))) => Err(format!("{shown}: {reason}")),
            Ok(Err(Fault::Answer(reason))) => Err(reason),
            Err(_) => Err(format!("{shown}: context deadline exceeded")),
        }
    }

    async fn exchange(
        &self,
        settings: &Arc<WebhooksConfig>,
        body: Bytes,
        query: &str,
        within: Duration,
    ) -> Result<Bytes, Fault> {
        let mut url = self.url()?;
        url.set_query(Some(query));
        let client = match self.kept(settings) {
            Some(client) => client,
            None => self.connect(settings, &url, within).await?,
        };
        // A connection that is kept was judged when it was made; what is allowed may have changed.
        if let Address::Url(url) = &self.address {
            guard(settings.allow.clone()).url(url).map_err(|refused| Fault::Call(refused.to_string()))?;
        }
        let mut fields = HeaderMap::new();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        fields.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        if let Address::Service { namespace, name, port, .. } = &self.address
            && let Ok(host) = HeaderValue::try_from(format!("{name}.{namespace}.svc:{port}"))
        {
            fields.insert(HOST, host);
        }
        let answer = client.send(Method::POST, &url, fields, body, Some(within)).await.map_err(call)?;
        let status = answer.status();
        let text = read(answer).await?;
        if status.is_success() {
            self.keep(client, settings);
            return Ok(text.into());
        }
        Err(Fault::Answer(refusal(status, &String::from_utf8_lossy(&text))))
    }

    fn url(&self) -> Result<Url, Fault> {
        match &self.address {
            Address::Url(url) => Ok(url.clone()),
            // The port is the address's: see `connect`.
            Address::Service { namespace, name, path, .. } => {
                Url::parse(&format!("https://{name}.{namespace}.svc{path}"))
                    .map_err(|error| Fault::Call(error.to_string()))
            }
            Address::Faulty(reason) => Err(Fault::Call(reason.clone())),
        }
    }

    /// A client for the next call.
    async fn connect(&self, settings: &Arc<WebhooksConfig>, url: &Url, within: Duration) -> Result<Client, Fault> {
        let tls = self.tls.get_or_init(|| tls(self.authorities.as_deref())).clone().map_err(Fault::Call)?;
        let (guard, addresses) = match &self.address {
            Address::Service { namespace, name, port, .. } => {
                let place = settings.service(namespace, name, *port);
                let place = place.ok_or_else(|| Fault::Call(no_service(namespace, name, *port)))?;
                (None, resolved(place).await?)
            }
            _ => (Some(guard(settings.allow.clone())), Vec::new()),
        };
        Ok(Client::new(ClientSettings {
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

    fn kept(&self, settings: &Arc<WebhooksConfig>) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|one| Arc::ptr_eq(&one.settings, settings));
        idle.pop().map(|one| one.client)
    }

    fn keep(&self, client: Client, settings: &Arc<WebhooksConfig>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(Idle { client, settings: Arc::clone(settings) });
        }
    }
}

/// Why a call has no answer that can be used.
enum Fault {
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

async fn resolved(place: &WebhookAddress) -> Result<Vec<SocketAddr>, Fault> {
    let WebhookAddress { host, port } = place;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, *port)]);
    }
    let found = outbound::lookup(host, *port).await;
    let found = found.map_err(|error| Fault::Call(format!("{host} of [api.webhooks.services]: {error}")))?;
    if found.is_empty() {
        Err(Fault::Call(format!("{host} of [api.webhooks.services] has no address")))
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

/// The certificates of a `caBundle`.
fn certificates(bundle: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let faulty = || "unable to load root certificates: unable to parse bytes as PEM block".to_owned();
    let pem = base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|_| faulty())?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(|_| faulty())?;
    if found.is_empty() { Err(faulty()) } else { Ok(found) }
}

async fn read(mut answer: Response) -> Result<Vec<u8>, Fault> {
    let mut text = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(call)? {
        if text.len() + piece.len() > ANSWER_MAX {
            return Err(Fault::Call(format!("the answer is larger than {} MiB", ANSWER_MAX >> 20)));
        }
        text.extend_from_slice(&piece);
    }
    Ok(text)
}

fn call(error: Error) -> Fault {
    if error.is_timeout() {
        return Fault::Call("context deadline exceeded".into());
    }
    // The outer errors only say that there was one.
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let refused = outbound::refusal(&error).map(ToString::to_string);
    Fault::Call(shorten(&refused.unwrap_or_else(|| innermost.to_string()), 2 * SHOWN_MAX))
}

/// A status that is no success, in upstream's words.
fn refusal(status: StatusCode, body: &str) -> String {
    let body = shorten(body.trim(), SHOWN_MAX);
    match status {
        StatusCode::NOT_FOUND => "the server could not find the requested resource".into(),
        status if status.is_redirection() => {
            format!("the server answered with a redirect ({status}), and redirects are not followed")
        }
        status if status.is_server_error() => {
            let body = if body.is_empty() { "unknown".to_owned() } else { body };
            format!("an error on the server ({body:?}) has prevented the request from succeeding")
        }
        status => {
            format!("the server responded with the status code {} but did not return more information", status.as_u16())
        }
    }
}

//! HTTP to one Redfish service: login, sessions, retries, bounds, and errors that say what to do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ETAG, HeaderMap, HeaderValue, IF_MATCH, LOCATION, RETRY_AFTER};
use http::{Method, StatusCode};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::body::{self, MAX_BODY, Unread};
use super::message::{self, Complaint};
use super::tls;
use crate::bmc::metrics::Protocol;
use crate::bmc::{BmcError, BmcSettings, Credentials};
use crate::outbound;

mod failure;

use failure::{
    ExchangeFailure, RequestCredentials, chain, elsewhere, is_broken, is_passing, local_path, outcome, redirect,
};

/// Longest pause that a `Retry-After` may ask for, and that back-off reaches.
const MAX_PAUSE: Duration = Duration::from_secs(8);
/// Where sessions are when the service root does not say.
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
const TOKEN: &str = "x-auth-token";
/// Bytes that a service may send for one request, with heads and TLS.
const MAX_ANSWER: usize = 4 * MAX_BODY;
/// How long a connection is kept for the next request.
const KEEP: Duration = Duration::from_secs(10);
/// Redirects followed for one request.
const REDIRECTS: usize = 3;
/// Longest token of a session that is kept, in bytes: those of many services are.
const MAX_TOKEN: usize = 4096;

/// An answer.
#[derive(Clone, Debug)]
pub struct RedfishResponse {
    /// Status.
    pub status: StatusCode,
    /// `ETag`, or the `@odata.etag` of the body.
    pub etags: Vec<String>,
    /// What is kept of the body; null when there is none or it is not JSON.
    pub body: Value,
}

impl RedfishResponse {
    /// What the service complains about.
    pub fn complaint(&self) -> Complaint {
        message::complaint(&self.body)
    }

    /// The same without the service's own words. It may repeat what was sent, whole or in pieces, and anybody may read errors.
    pub fn without_words(&self) -> Self {
        Self { body: message::names_only(&self.body), ..self.clone() }
    }

    /// For errors: `HTTP 400 Bad Request: reason`.
    pub fn reason(&self) -> String {
        let text = self.complaint().text;
        let colon = if text.is_empty() { "" } else { ": " };
        format!("HTTP {}{colon}{text}", self.status)
    }
}

enum RedfishLogin {
    /// Not tried yet.
    None,
    /// A session: its token and where it is closed.
    Session { token: SecretString, location: Option<String> },
    /// User and password with each request, after so many logins for a session were refused.
    Basic { refused: u32 },
}

/// A service, and what all connections to it share.
#[derive(Clone)]
pub struct ServiceEndpoint {
    /// `https://host[:port]`.
    pub base: String,
    /// `host:port`.
    pub peer: String,
    /// What the host's name was resolved to, where it was before; empty: it is resolved for each connection.
    pub addresses: Vec<SocketAddr>,
    /// Held for each request.
    pub exchange: Arc<Mutex<()>>,
    /// Whether it ever opened a session: then a refused one is a wrong password, and basic authentication would be one
    /// more wrong login for the account's lock to count.
    pub has_sessions: Arc<AtomicBool>,
}

/// One service, one account.
pub struct RedfishClient {
    http: outbound::client::OutboundClient,
    /// The base, as it is judged.
    url: Url,
    base: String,
    peer: String,
    /// Of the place.
    has_sessions: Arc<AtomicBool>,
    credentials: Credentials,
    login: Mutex<RedfishLogin>,
    /// One request at a time.
    exchange: Arc<Mutex<()>>,
    settings: Arc<BmcSettings>,
}

impl RedfishClient {
    /// For the service at this place.
    pub fn new(
        endpoint: ServiceEndpoint,
        credentials: &Credentials,
        tls: Result<rustls::ClientConfig, rustls::Error>,
        settings: Arc<BmcSettings>,
    ) -> Result<Self, BmcError> {
        let ServiceEndpoint { base, peer, addresses, exchange, has_sessions } = endpoint;
        let unusable = |reason: String| BmcError::Unreachable { peer: peer.clone(), reason };
        let tls = tls.map_err(|e| unusable(format!("TLS: {e}")))?;
        let url = Url::parse(&base).map_err(|e| unusable(e.to_string()))?;
        let http = outbound::client::OutboundClient::new(outbound::client::ClientSettings {
            guard: settings.guard.clone(),
            port: url.port_or_known_default().unwrap_or_default(),
            addresses,
            tls,
            connect_timeout: settings.connect_timeout,
            proxies: None,
            keep: KEEP,
            user_agent: HeaderValue::from_static(concat!("slipway/", env!("CARGO_PKG_VERSION"))),
            most: MAX_ANSWER,
        });
        let credentials = credentials.clone();
        Ok(Self {
            http,
            url,
            base,
            peer,
            credentials,
            login: Mutex::new(RedfishLogin::None),
            has_sessions,
            exchange,
            settings,
        })
    }

    /// `host:port`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Reads a resource; a status other than 2xx is an error.
    pub async fn get(&self, path: &str) -> Result<RedfishResponse, BmcError> {
        let answer = self.request(Method::GET, path, None, None).await?;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(&format!("GET {path}"), &answer)) }
    }

    /// Any request, with login; the answer may be a refusal, but not one of the credentials.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        if_match: Option<&str>,
    ) -> Result<RedfishResponse, BmcError> {
        let mut fresh = false;
        loop {
            let (auth, kind) = self.authorization(&mut fresh).await?;
            let answer = self.send(method.clone(), path, body, if_match, auth).await?;
            match answer.status {
                // A session that expired, or one lost in a restart of the BMC: once more from the start.
                StatusCode::UNAUTHORIZED if kind.is_none() && !fresh => *self.login.lock().await = RedfishLogin::None,
                StatusCode::UNAUTHORIZED => {
                    *self.login.lock().await = RedfishLogin::None;
                    return Err(self.wrong_password(&answer, 1 + kind.unwrap_or_default()));
                }
                StatusCode::FORBIDDEN => {
                    let user = &self.credentials.username;
                    let reason = format!(
                        "user {user:?} may not {method} {path}: give the account the role Operator or Administrator ({})",
                        self.reason(&answer)
                    );
                    return Err(self.credentials(reason, 0));
                }
                _ => return Ok(answer),
            }
        }
    }

    /// The error for a refusal.
    pub fn refused(&self, what: &str, answer: &RedfishResponse) -> BmcError {
        BmcError::Protocol { peer: self.peer.clone(), reason: format!("{} to {what}", self.reason(answer)) }
    }

    /// For errors: why the service refused something. It may repeat what it refused, and anybody may read that.
    pub fn reason(&self, answer: &RedfishResponse) -> String {
        let secrets = [self.credentials.password.expose_secret(), &*self.pair()];
        if secrets.iter().any(|secret| message::repeats(&answer.body, secret)) {
            return format!("HTTP {}: what the BMC says of it repeats the password, and is not shown", answer.status);
        }
        answer.reason()
    }

    fn credentials(&self, reason: String, logins: u32) -> BmcError {
        BmcError::Credentials { peer: self.peer.clone(), reason, logins }
    }

    fn wrong_password(&self, answer: &RedfishResponse, logins: u32) -> BmcError {
        let user = &self.credentials.username;
        self.credentials(format!("wrong user name or password for {user:?} ({})", self.reason(answer)), logins)
    }

    /// Headers that log in. With basic authentication, how many logins were refused before; with a session none, for then
    /// a refusal may be a matter of its age.
    async fn authorization(&self, fresh: &mut bool) -> Result<(HeaderMap, Option<u32>), BmcError> {
        let mut login = self.login.lock().await;
        if let RedfishLogin::None = *login {
            *login = self.log_in().await?;
            *fresh = true;
        }
        let mut headers = HeaderMap::new();
        Ok(match &*login {
            RedfishLogin::Session { token, .. } => {
                if let Ok(mut value) = HeaderValue::from_str(token.expose_secret()) {
                    value.set_sensitive(true);
                    headers.insert(TOKEN, value);
                }
                (headers, None)
            }
            RedfishLogin::Basic { refused } => {
                // They count once.
                let refused = if *fresh { *refused } else { 0 };
                headers.extend(self.basic());
                (headers, Some(refused))
            }
            RedfishLogin::None => {
                headers.extend(self.basic());
                (headers, Some(0))
            }
        })
    }

    fn basic(&self) -> Option<(http::HeaderName, HeaderValue)> {
        let mut value = HeaderValue::from_str(&format!("Basic {}", *self.pair())).ok()?;
        value.set_sensitive(true);
        Some((http::header::AUTHORIZATION, value))
    }

    /// User and password as basic authentication has them (RFC 7617, section 2).
    fn pair(&self) -> Zeroizing<String> {
        use base64::Engine;
        let pair = format!("{}:{}", self.credentials.username, self.credentials.password.expose_secret());
        Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(Zeroizing::new(pair).as_bytes()))
    }

    /// A session if the service has them, else basic authentication.
    async fn log_in(&self) -> Result<RedfishLogin, BmcError> {
        let root = self.send(Method::GET, "/redfish/v1/", None, None, HeaderMap::new()).await?;
        let sessions = super::model::link(&root.body["Links"]["Sessions"]).unwrap_or_else(|| SESSIONS.into());
        let body = json!({
            "UserName": self.credentials.username,
            "Password": self.credentials.password.expose_secret(),
        });
        let (answer, headers) = self.send_full(Method::POST, &sessions, Some(&body), None, HeaderMap::new()).await?;
        let token = headers.get(TOKEN).and_then(|t| t.to_str().ok());
        match (answer.status, token) {
            (status, Some(token)) if status.is_success() && token.len() > MAX_TOKEN => {
                let reason = format!("to the login with a token of more than {MAX_TOKEN} bytes");
                Err(BmcError::Protocol { peer: self.peer.clone(), reason })
            }
            (status, Some(token)) if status.is_success() => {
                let location = headers.get(LOCATION).and_then(|l| l.to_str().ok()).and_then(local_path);
                let location = location.or_else(|| super::model::link(&answer.body));
                tracing::debug!(bmc = %self.peer, "opened a Redfish session");
                self.has_sessions.store(true, Ordering::Relaxed);
                Ok(RedfishLogin::Session { token: token.to_string().into(), location })
            }
            (StatusCode::UNAUTHORIZED, _) if self.has_sessions.load(Ordering::Relaxed) => {
                Err(self.wrong_password(&answer.without_words(), 1))
            }
            // No session service, or one that wants a login to log in: user and password each time.
            (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED, _)
            | (StatusCode::UNAUTHORIZED, _) => {
                tracing::debug!(bmc = %self.peer, status = %answer.status, "the BMC opens no Redfish session: using basic authentication");
                Ok(RedfishLogin::Basic { refused: u32::from(answer.status == StatusCode::UNAUTHORIZED) })
            }
            // Some say 400 to a wrong password.
            (StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST, _) => {
                Err(self.wrong_password(&answer.without_words(), 1))
            }
            (status, _) if status.is_success() => {
                Err(BmcError::Protocol { peer: self.peer.clone(), reason: "to the login without X-Auth-Token".into() })
            }
            _ => Err(self.refused("the login", &answer.without_words())),
        }
    }

    /// Closes the session, if there is one; BMCs have few.
    pub async fn log_out(&self) {
        let login = std::mem::replace(&mut *self.login.lock().await, RedfishLogin::None);
        if let RedfishLogin::Session { token, location: Some(location) } = login {
            let mut headers = HeaderMap::new();
            if let Ok(mut value) = HeaderValue::from_str(token.expose_secret()) {
                value.set_sensitive(true);
                headers.insert(TOKEN, value);
            }
            if let Err(error) = self.once(Method::DELETE, &location, None, None, headers).await {
                tracing::debug!(bmc = %self.peer, error = %self.explain(&error), "cannot close a Redfish session: it is left to expire");
            }
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        if_match: Option<&str>,
        headers: HeaderMap,
    ) -> Result<RedfishResponse, BmcError> {
        Ok(self.send_full(method, path, body, if_match, headers).await?.0)
    }

    /// One request, tried again while the service says "later" or the connection breaks.
    async fn send_full(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        if_match: Option<&str>,
        headers: HeaderMap,
    ) -> Result<(RedfishResponse, HeaderMap), BmcError> {
        let tries = self.settings.http_tries.max(1);
        let mut pause = self.settings.http_backoff.min(MAX_PAUSE);
        for left in (0..tries).rev() {
            let result = self.once(method.clone(), path, body, if_match, headers.clone()).await;
            let wait = match &result {
                Ok((answer, headers)) if left > 0 && is_passing(&method, answer.status) => {
                    tracing::debug!(bmc = %self.peer, %method, path, status = %answer.status, "the BMC asked to try again later");
                    let asked = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
                    asked.map_or(pause, Duration::from_secs).min(MAX_PAUSE)
                }
                Err(ExchangeFailure::Http(error)) if left > 0 && is_broken(error) => {
                    tracing::debug!(bmc = %self.peer, %method, path, error = %chain(error), "the connection to the BMC broke: trying again");
                    pause
                }
                _ => return result.map_err(|e| self.failed(&e)),
            };
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        Err(BmcError::Unreachable { peer: self.peer.clone(), reason: "no try was made".into() })
    }

    async fn once(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        if_match: Option<&str>,
        headers: HeaderMap,
    ) -> Result<(RedfishResponse, HeaderMap), ExchangeFailure> {
        let _one = self.exchange.lock().await;
        let (began, sent) = (Instant::now(), (method.clone(), RequestCredentials::of(&headers)));
        let result = self.ask(method, path, body, if_match, headers).await;
        if let Some(outcome) = outcome(sent, &result) {
            self.settings.metrics.asked(Protocol::Redfish, outcome, began.elapsed());
        }
        result
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        if_match: Option<&str>,
        headers: HeaderMap,
    ) -> Result<(RedfishResponse, HeaderMap), ExchangeFailure> {
        // A literal address never comes by the resolver, and what is this box's own may change.
        self.settings
            .guard
            .as_ref()
            .map_or(Ok(()), |guard| guard.url(&self.url))
            .map_err(ExchangeFailure::Forbidden)?;
        let (mut url, mut method, mut headers) = (self.url.clone(), method, headers);
        // Paths are of the service: what it says, as it says it.
        let asked = format!("{}{path}", self.base).parse();
        if let Ok(asked) = asked {
            url = asked;
        }
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert("OData-Version", HeaderValue::from_static("4.0"));
        let mut sent = Bytes::new();
        if let Some(body) = body {
            headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            sent = body.to_string().into();
        }
        if let Some(etag) = if_match.and_then(|etag| HeaderValue::from_str(etag).ok()) {
            headers.insert(IF_MATCH, etag);
        }
        let began = Instant::now();
        let mut redirects = 0;
        let mut response = loop {
            let within = self.settings.http_timeout.saturating_sub(began.elapsed());
            let asked = self.http.send(method.clone(), &url, headers.clone(), sent.clone(), Some(within));
            let response = asked.await.map_err(ExchangeFailure::Http)?;
            // What is sent holds the password or a session: it goes to the scheme, host and port of the address only.
            let next = redirect(&url, response.status(), response.headers());
            let Some(next) = next.filter(|next| next.origin() == self.url.origin() && redirects < REDIRECTS) else {
                break response;
            };
            if matches!(response.status().as_u16(), 301..=303) && method != Method::GET {
                (method, sent) = (Method::GET, Bytes::new());
                headers.remove(http::header::CONTENT_TYPE);
            }
            (url, redirects) = (next, redirects + 1);
        };
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(ExchangeFailure::Http)? {
            if bytes.len() + chunk.len() > MAX_BODY {
                return Err(ExchangeFailure::Body(Unread::TooLarge));
            }
            bytes.extend_from_slice(&chunk);
        }
        let (status, headers) = (response.status(), response.headers().clone());
        if let Some(origin) = elsewhere(status, &url, &headers) {
            return Err(ExchangeFailure::SentAway(origin));
        }
        let body = match body::parse(&bytes) {
            Ok(body) => body,
            // Refusals may be HTML; what we build on may not.
            Err(_) if bytes.is_empty() || !status.is_success() => Value::Null,
            Err(unread) => return Err(ExchangeFailure::Body(unread)),
        };
        drop(bytes);
        let mut etags: Vec<String> = Vec::new();
        let header = headers.get(ETAG).and_then(|e| e.to_str().ok());
        for tag in header.into_iter().chain(body["@odata.etag"].as_str()) {
            if tag.len() <= 256 && HeaderValue::from_str(tag).is_ok() && !etags.iter().any(|t| t == tag) {
                etags.push(tag.into());
            }
        }
        Ok((RedfishResponse { status, etags, body }, headers))
    }

    fn failed(&self, failure: &ExchangeFailure) -> BmcError {
        if let Some(refused) = failure.refused() {
            return refused.clone().into();
        }
        let (peer, reason) = (self.peer.clone(), self.explain(failure));
        match failure {
            ExchangeFailure::Http(_) | ExchangeFailure::Forbidden(_) => BmcError::Unreachable { peer, reason },
            ExchangeFailure::Body(_) | ExchangeFailure::SentAway(_) => BmcError::Protocol { peer, reason },
        }
    }

    fn explain(&self, failure: &ExchangeFailure) -> String {
        let error = match failure {
            ExchangeFailure::Body(unread) => return unread.to_string(),
            ExchangeFailure::Forbidden(refused) => return refused.to_string(),
            ExchangeFailure::SentAway(origin) => {
                return format!(
                    "that it sends its callers to {origin}, which is not followed, for the password would go there: if that is where its Redfish service is, write it into bmc.address"
                );
            }
            ExchangeFailure::Http(error) => error,
        };
        if let Some(text) = tls::explain(error) {
            return text;
        }
        if error.is_timeout() {
            let limit = if error.is_connect() { self.settings.connect_timeout } else { self.settings.http_timeout };
            return format!("no answer within {limit:?}: check the address and that nothing blocks the port");
        }
        match error.io_kind() {
            Some(std::io::ErrorKind::ConnectionRefused) => {
                "connection refused: nothing listens there; check port and that Redfish is enabled".into()
            }
            Some(std::io::ErrorKind::HostUnreachable | std::io::ErrorKind::NetworkUnreachable) => {
                format!("no route to it: {}", chain(error))
            }
            _ => chain(error),
        }
    }
}

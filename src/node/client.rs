//! The appliance's API, as one node's agent uses it: its LCMMachine, that one's status and deployment data, and its own token.
//!
//! Every answer has a deadline and a bound. Nothing is tried again here: who calls knows how urgent it is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::clock::Clock;
use super::config::NodeConfig;
use super::tls;
use crate::api::lcm::LCMMachineSpec;
use crate::{files, log};

/// Deadline of a call.
const CALL: Duration = Duration::from_secs(30);
/// Deadline of a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a watch lasts, in seconds; then the object is read again.
const WATCH_SECONDS: u64 = 270;
/// Largest object that is read, in bytes: steps have scripts in them.
const MAX_OBJECT: usize = 8 << 20;
/// Largest deployment data in bytes, as a Secret has them.
const MAX_DEPLOYMENT: usize = 2 << 20;
/// Largest other answer in bytes.
const MAX_ANSWER: usize = 64 << 10;
/// Longest reason of a refusal that is told, in characters.
const MAX_REASON: usize = 500;
/// Longest token in bytes.
const MAX_TOKEN: u64 = 16 << 10;

/// Why a call did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// No answer, or one that says to come back later.
    #[error("the appliance does not answer: {0}")]
    Unreachable(String),
    /// It said no.
    #[error("the appliance refuses: {reason} (HTTP {status})")]
    Refused { status: u16, reason: String },
    /// Something on this node.
    #[error("{0}")]
    Local(String),
}

impl CallError {
    /// The HTTP status of a refusal, else 0.
    pub fn status(&self) -> u16 {
        if let Self::Refused { status, .. } = self { *status } else { 0 }
    }
}

/// The LCMMachine, as it was read.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct SeenMachine {
    #[serde(default)]
    pub metadata: SeenMetadata,
    #[serde(default)]
    pub spec: LCMMachineSpec,
    /// As it is: what a newer appliance writes into it is nothing that this agent must understand.
    #[serde(default)]
    pub status: Value,
}

/// What of the metadata counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SeenMetadata {
    pub uid: String,
    pub generation: i64,
    pub resource_version: String,
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum NodeWatchEvent {
    Changed(Box<SeenMachine>),
    Deleted,
    /// Where to go on.
    Bookmark,
    /// It must be read again.
    Ended,
}

/// Values by key, wiped from memory when they are dropped.
pub(super) type DeploymentSecret = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// The API.
pub(super) struct Client {
    http: reqwest::Client,
    tls: rustls::ClientConfig,
    base: Url,
    namespace: String,
    name: String,
    token_file: PathBuf,
    clock: Arc<Clock>,
    peer: Cell<Option<SocketAddr>>,
    /// Why the last call had no answer.
    trouble: RefCell<Option<String>>,
}

impl Client {
    /// The API of a configuration.
    pub fn new(config: &NodeConfig, clock: Arc<Clock>) -> Result<Rc<Self>, String> {
        let tls = tls::appliance(&config.ca_certificate)?;
        let http = builder()
            .tls_backend_preconfigured(tls.clone())
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Rc::new(Self {
            http,
            tls,
            base: Url::parse(&config.server).map_err(|error| error.to_string())?,
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            token_file: config.token_file.clone(),
            clock,
            peer: Cell::new(None),
            trouble: RefCell::new(None),
        }))
    }

    /// The address from which the appliance is reached.
    pub fn source(&self) -> Option<IpAddr> {
        let peer = self.peer.get()?;
        let any: IpAddr = if peer.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
        // Sends nothing: asks the routing table.
        socket.connect(peer).ok()?;
        Some(socket.local_addr().ok()?.ip())
    }

    /// Why the appliance is not heard, if so.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    fn machine(&self, subresource: &str) -> String {
        format!("/apis/lcm.mirantis.com/v1alpha1/namespaces/{}/lcmmachines/{}{subresource}", self.namespace, self.name)
    }

    /// The LCMMachine.
    pub async fn get(&self) -> Result<SeenMachine, CallError> {
        let answer = self.call(Method::GET, &self.machine(""), None, CALL).await?;
        parse(&body(answer, MAX_OBJECT).await?)
    }

    /// Watches it from a version on.
    pub async fn watch(&self, from: &str) -> Result<WatchStream, CallError> {
        let url = format!("/apis/lcm.mirantis.com/v1alpha1/namespaces/{}/lcmmachines", self.namespace);
        let mut url = self.base.join(&url).map_err(|error| CallError::Local(error.to_string()))?;
        url.query_pairs_mut()
            .append_pair("watch", "1")
            .append_pair("fieldSelector", &format!("metadata.name={}", self.name))
            .append_pair("resourceVersion", from)
            .append_pair("allowWatchBookmarks", "true")
            .append_pair("timeoutSeconds", &WATCH_SECONDS.to_string());
        let answer = self.send(Method::GET, url, None, Duration::from_secs(WATCH_SECONDS) + CALL).await?;
        Ok(WatchStream { answer, rest: BytesMut::new() })
    }

    /// Merges into the status, and answers what came of it.
    pub async fn patch_status(&self, patch: &Value) -> Result<SeenMachine, CallError> {
        let sent = Some(("application/merge-patch+json", patch.to_string()));
        let answer = self.call(Method::PATCH, &self.machine("/status"), sent, CALL).await?;
        parse(&body(answer, MAX_OBJECT).await?)
    }

    /// What this machine needs to become a node, now.
    pub async fn deployment(&self) -> Result<DeploymentSecret, CallError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Data {
            /// As a Secret has them.
            Secret {
                data: BTreeMap<String, String>,
            },
            Values(BTreeMap<String, String>),
        }
        let answer = self.call(Method::GET, &self.machine("/deployment"), None, CALL).await?;
        let text = Zeroizing::new(body(answer, MAX_DEPLOYMENT).await?.to_vec());
        let (Data::Secret { data } | Data::Values(data)) = parse(&text)?;
        let decoded = data.into_iter().map(|(key, value)| {
            let value = Zeroizing::new(value);
            let good = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
            // As a Secret's keys are: they become names of files.
            if key.is_empty() || key.len() > 253 || !key.bytes().all(good) || key == "." || key == ".." {
                return Err(CallError::Local("the deployment data has a key that is no name of a file".into()));
            }
            let value = STANDARD.decode(value.as_bytes());
            let value = value.map_err(|_| CallError::Local(format!("{key} of the deployment data is no base64")))?;
            Ok((key, Zeroizing::new(value)))
        });
        decoded.collect()
    }

    /// A new token of the account.
    pub async fn new_token(
        &self,
        namespace: &str,
        account: &str,
        seconds: i64,
    ) -> Result<Zeroizing<String>, CallError> {
        #[derive(Deserialize)]
        struct TokenRequestAnswer {
            status: GivenToken,
        }
        #[derive(Deserialize)]
        struct GivenToken {
            token: String,
        }
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds}});
        let answer = self.call(Method::POST, &path, Some(("application/json", asked.to_string())), CALL).await?;
        let text = Zeroizing::new(body(answer, MAX_ANSWER).await?.to_vec());
        parse::<TokenRequestAnswer>(&text).map(|answer| Zeroizing::new(answer.status.token))
    }

    /// Begins to fetch what a URL names. A path is below the appliance; for its address its own CA counts, for others the node's.
    pub async fn fetch(&self, url: &str) -> Result<Download, CallError> {
        let url = self.base.join(url).map_err(|error| CallError::Local(format!("url: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(CallError::Local("url must be http:// or https://".into()));
        }
        let is_appliance = url.scheme() == "https" && url.host() == self.base.host();
        let elsewhere;
        let http = if is_appliance {
            &self.http
        } else {
            // Not kept: the node's certificates take memory, and are seldom needed.
            let is_plain = url.scheme() == "http";
            let others = || tls::elsewhere(self.clock.clone()).map_err(CallError::Local);
            let tls = if is_plain { self.tls.clone() } else { others()? };
            let made = builder().tls_backend_preconfigured(tls).redirect(reqwest::redirect::Policy::limited(5));
            elsewhere = made.build().map_err(|error| CallError::Local(error.to_string()))?;
            &elsewhere
        };
        let sent = tokio::time::timeout(CALL, http.get(url).send()).await;
        let answer = sent.map_err(|_| CallError::Unreachable("no answer in time".into()))?.map_err(transport)?;
        Ok(Download(sorted(answer).await?))
    }

    /// The token, as it is on the disk now.
    pub fn token(&self) -> Result<Zeroizing<String>, CallError> {
        let text = files::read_text(&self.token_file, MAX_TOKEN)
            .map_err(|error| CallError::Local(format!("{}: {error}", self.token_file.display())))?;
        Ok(Zeroizing::new(Zeroizing::new(text).trim().to_owned()))
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        sent: Option<(&str, String)>,
        deadline: Duration,
    ) -> Result<Response, CallError> {
        let url = self.base.join(path).map_err(|error| CallError::Local(error.to_string()))?;
        self.send(method, url, sent, deadline).await
    }

    async fn send(
        &self,
        method: Method,
        url: Url,
        sent: Option<(&str, String)>,
        deadline: Duration,
    ) -> Result<Response, CallError> {
        let token = self.token()?;
        let mut request = self.http.request(method, url).bearer_auth(token.as_str()).timeout(deadline);
        if let Some((kind, text)) = sent {
            request = request.header(http::header::CONTENT_TYPE, kind).body(text);
        }
        let answered = match tokio::time::timeout(CALL, request.send()).await {
            Ok(Ok(answer)) => {
                self.peer.set(answer.remote_addr());
                if let Some(date) = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()) {
                    self.clock.heard(date);
                }
                sorted(answer).await
            }
            Ok(Err(error)) => Err(transport(error)),
            Err(_) => Err(CallError::Unreachable("no answer in time".into())),
        };
        *self.trouble.borrow_mut() = match &answered {
            Err(error @ CallError::Unreachable(_)) => Some(error.to_string()),
            Err(error) if error.status() == 401 => Some(error.to_string()),
            _ => None,
        };
        answered
    }
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .http1_only()
        .no_proxy()
        .connect_timeout(CONNECT)
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(1)
        .tcp_keepalive(Duration::from_secs(30))
        .tcp_user_timeout(Duration::from_secs(60))
        .user_agent(concat!("slipway-node/", env!("CARGO_PKG_VERSION")))
}

/// Any 2xx is good.
async fn sorted(answer: Response) -> Result<Response, CallError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let text = body(answer, MAX_ANSWER).await.unwrap_or_default();
    let reason = match serde_json::from_slice::<Value>(&text) {
        Ok(told) => told["message"].as_str().unwrap_or_default().to_owned(),
        Err(_) => String::from_utf8_lossy(&text).into_owned(),
    };
    let reason = match log::clean(reason.trim(), MAX_REASON) {
        empty if empty.is_empty() => status.canonical_reason().unwrap_or("no reason given").to_owned(),
        reason => reason,
    };
    Err(match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => CallError::Unreachable(reason),
        status if status.is_server_error() => CallError::Unreachable(format!("{reason} (HTTP {})", status.as_u16())),
        status => CallError::Refused { status: status.as_u16(), reason },
    })
}

fn transport(error: reqwest::Error) -> CallError {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut next = std::error::Error::source(&error);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    CallError::Unreachable(log::clean(&text, MAX_REASON))
}

async fn body(mut answer: Response, most: usize) -> Result<Bytes, CallError> {
    let too_large = || CallError::Local(format!("the appliance's answer is larger than {most} bytes"));
    if answer.content_length().unwrap_or(0) > most as u64 {
        return Err(too_large());
    }
    let mut bytes = BytesMut::new();
    while let Some(piece) = answer.chunk().await.map_err(transport)? {
        if bytes.len() + piece.len() > most {
            return Err(too_large());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

fn parse<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, CallError> {
    serde_json::from_slice(text)
        .map_err(|error| CallError::Local(format!("the appliance's answer cannot be understood: {error}")))
}

/// A watch of one object.
pub(super) struct WatchStream {
    answer: Response,
    rest: BytesMut,
}

impl WatchStream {
    /// What happened next.
    pub async fn next(&mut self) -> Result<NodeWatchEvent, CallError> {
        #[derive(Deserialize)]
        struct Line {
            #[serde(rename = "type")]
            kind: String,
            object: Value,
        }
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let text = self.rest.split_to(end + 1);
                let line: Line = parse(&text)?;
                return Ok(match line.kind.as_str() {
                    "ADDED" | "MODIFIED" => {
                        let seen = serde_json::from_value(line.object).map_err(|error| {
                            CallError::Local(format!("the LCMMachine cannot be understood: {error}"))
                        })?;
                        NodeWatchEvent::Changed(seen)
                    }
                    "DELETED" => NodeWatchEvent::Deleted,
                    "BOOKMARK" => NodeWatchEvent::Bookmark,
                    _ => NodeWatchEvent::Ended,
                });
            }
            let limit = Duration::from_secs(WATCH_SECONDS) + CALL;
            let piece = tokio::time::timeout(limit, self.answer.chunk()).await;
            match piece.map_err(|_| CallError::Unreachable("the watch fell silent".into()))?.map_err(transport)? {
                None => return Ok(NodeWatchEvent::Ended),
                Some(piece) if self.rest.len() + piece.len() <= MAX_OBJECT => self.rest.extend_from_slice(&piece),
                Some(_) => return Err(CallError::Local(format!("an event of the watch is over {MAX_OBJECT} bytes"))),
            }
        }
    }
}

/// What is being fetched.
pub(super) struct Download(Response);

impl Download {
    /// How much it will be, where that is told.
    pub fn length(&self) -> Option<u64> {
        self.0.content_length()
    }

    /// The next piece; none at the end. One that takes a minute does not come any more.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, CallError> {
        let piece = tokio::time::timeout(Duration::from_secs(60), self.0.chunk()).await;
        piece.map_err(|_| CallError::Unreachable("the download fell silent".into()))?.map_err(transport)
    }
}

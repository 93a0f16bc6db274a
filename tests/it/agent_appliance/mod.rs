//! An appliance on loopback that speaks the agent protocol over TLS and writes down what it is told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use slipway::protocol::{AgentSession, AgentStep, CallRefusal, ImageManifest, OpenSession, StepEvent, StepOutcome};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub const TOKEN: &str = "boot-token-of-this-boot";
pub const GENERATION: i64 = 7;
const SESSION: &str = "session-1";

/// What the appliance is to say and what it was told.
#[derive(Default)]
pub struct Book {
    /// Steps not yet finished.
    pub steps: VecDeque<AgentStep>,
    /// Outcomes as they came.
    pub outcomes: Vec<StepOutcome>,
    /// Events as they came.
    pub events: Vec<StepEvent>,
    /// Log as it came.
    pub log: String,
    /// Who opened the session.
    pub hello: Option<OpenSession>,
    /// `after` of each call for a step.
    pub asked_after: Vec<String>,
    /// Calls of any kind.
    pub calls: usize,
    /// Answers to give instead of the right one, first come first served.
    pub faults: VecDeque<StatusCode>,
    /// Answer every call but the first kind with 401.
    pub revoked: bool,
    /// Take outcomes, and answer them with 503 and all that follows with 401: the answer was lost and the host has gone on.
    pub lost: bool,
    /// Answer events with 410.
    pub gone: bool,
    /// The image.
    pub manifest: Option<ImageManifest>,
    /// Stored bytes of every chunk.
    pub chunk: Vec<u8>,
}

#[derive(Clone)]
struct Pki {
    acceptor: TlsAcceptor,
    pin: [u8; 32],
}

fn pki() -> Pki {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).expect("a CA");
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    // Long past: the node has no clock to say so.
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
    let leaf = params.signed_by(&key, &issuer).expect("a certificate");
    let chain: Vec<CertificateDer<'static>> = vec![leaf.der().clone(), ca.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a private key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a server configuration");
    Pki { acceptor: TlsAcceptor::from(Arc::new(config)), pin: Sha256::digest(ca.der().as_ref()).into() }
}

/// The appliance. Stopped when dropped.
pub struct Appliance {
    book: Arc<Mutex<Book>>,
    address: SocketAddr,
    pki: Pki,
    stop: CancellationToken,
}

impl Appliance {
    /// Starts one on a free port.
    pub async fn start(steps: Vec<AgentStep>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let book = Arc::new(Mutex::new(Book { steps: steps.into(), ..Book::default() }));
        let appliance = Self { book, address, pki: pki(), stop: CancellationToken::new() };
        appliance.serve(listener);
        appliance
    }

    /// Drops every connection and stops answering.
    pub fn stop(&mut self) {
        self.stop.cancel();
    }

    /// Answers again, on the same port and with all that it knew.
    pub async fn start_again(&mut self) {
        self.stop = CancellationToken::new();
        let address = self.address;
        let listener = poll("the port to be free", async || TcpListener::bind(address).await.ok()).await;
        self.serve(listener);
    }

    fn serve(&self, listener: TcpListener) {
        let (book, acceptor, stop) = (self.book.clone(), self.pki.acceptor.clone(), self.stop.clone());
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stop.cancelled() => return,
                };
                let Ok((stream, _)) = accepted else { continue };
                let (router, acceptor) = (router(book.clone()), acceptor.clone());
                connections.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let service = TowerToHyperService::new(router);
                        let http = hyper::server::conn::http1::Builder::new();
                        let _closed = http.serve_connection(TokioIo::new(stream), service).await;
                    }
                });
            }
        });
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn pin(&self) -> [u8; 32] {
        self.pki.pin
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("the book")
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Asks until there is an answer, for at most half a minute.
pub async fn poll<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

type Shared = Arc<Mutex<Book>>;

fn router(book: Shared) -> Router {
    Router::new()
        .route("/agent/v1/step", get(step))
        .route("/agent/v1/event", post(event))
        .route("/agent/v1/result", post(result))
        .route("/agent/v1/log", post(log))
        .route("/agent/v1/manifest/{digest}", get(manifest))
        .route("/agent/v1/chunk/{sha256}", get(chunk))
        .layer(from_fn_with_state(book.clone(), bearer))
        .route("/agent/v1/session", post(session))
        .layer(from_fn_with_state(book.clone(), faults))
        .with_state(book)
}

fn refuse(status: StatusCode, reason: &str) -> Response {
    (status, Json(CallRefusal { reason: reason.into() })).into_response()
}

async fn faults(State(book): State<Shared>, request: Request, next: Next) -> Response {
    let fault = {
        let mut book = book.lock().expect("the book");
        book.calls += 1;
        book.faults.pop_front()
    };
    match fault {
        Some(status) => refuse(status, "out of order"),
        None => next.run(request).await,
    }
}

async fn bearer(State(book): State<Shared>, request: Request, next: Next) -> Response {
    let good = request.headers().get("authorization").is_some_and(|value| value == &format!("Bearer {SESSION}"));
    if !good || book.lock().expect("the book").revoked {
        return refuse(StatusCode::UNAUTHORIZED, "another boot has taken over");
    }
    next.run(request).await
}

async fn session(State(book): State<Shared>, Json(hello): Json<OpenSession>) -> Response {
    let mut book = book.lock().expect("the book");
    if hello.token != TOKEN || book.hello.is_some() {
        return refuse(StatusCode::FORBIDDEN, "the boot token was used before");
    }
    book.hello = Some(hello);
    let session =
        AgentSession { session: SESSION.into(), host: "default/node-7".into(), generation: GENERATION, now: 0 };
    Json(session).into_response()
}

#[derive(serde::Deserialize)]
struct After {
    after: String,
}

async fn step(State(book): State<Shared>, Query(After { after }): Query<After>) -> Response {
    book.lock().expect("the book").asked_after.push(after);
    for _ in 0..20 {
        {
            let book = book.lock().expect("the book");
            if book.revoked {
                return refuse(StatusCode::UNAUTHORIZED, "another boot has taken over");
            }
            if let Some(step) = book.steps.front() {
                return Json(step.clone()).into_response();
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn event(State(book): State<Shared>, Json(event): Json<StepEvent>) -> Response {
    let mut book = book.lock().expect("the book");
    book.events.push(event);
    if book.gone {
        // Taken back: the next call for a step gives the one after it.
        book.gone = false;
        book.steps.pop_front();
        return refuse(StatusCode::GONE, "the host is being deleted");
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn result(State(book): State<Shared>, Json(outcome): Json<StepOutcome>) -> Response {
    let mut book = book.lock().expect("the book");
    book.steps.retain(|step| step.id != outcome.step);
    book.outcomes.push(outcome);
    if book.lost {
        book.revoked = true;
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn log(State(book): State<Shared>, text: String) -> Response {
    book.lock().expect("the book").log.push_str(&text);
    StatusCode::NO_CONTENT.into_response()
}

async fn manifest(State(book): State<Shared>, Path(_): Path<String>) -> Response {
    match &book.lock().expect("the book").manifest {
        Some(manifest) => Json(manifest).into_response(),
        None => refuse(StatusCode::NOT_FOUND, "no such image"),
    }
}

async fn chunk(State(book): State<Shared>, Path(_): Path<String>) -> Response {
    book.lock().expect("the book").chunk.clone().into_response()
}

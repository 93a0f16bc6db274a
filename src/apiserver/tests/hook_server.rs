//! A webhook: a server with TLS on loopback that answers as a test says.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What it does with a review.
pub enum Reply {
    /// Answers it: the fields of `response` but for its uid.
    Fields(Value),
    /// Answers something else.
    Other(StatusCode, &'static str),
    /// Sends elsewhere.
    Redirect(String),
    /// Answers without end.
    Endless,
    /// Never answers.
    Silence,
}

type Answers = Arc<dyn Fn(&str, &Value) -> Reply + Send + Sync>;

/// A running webhook.
pub struct HookServer {
    pub port: u16,
    /// Its certificate, as `caBundle`.
    pub bundle: String,
    /// Every review that came, with its path and query.
    pub asked: Arc<Mutex<Vec<(String, Value)>>>,
}

/// Allows what it wants.
pub fn allowed() -> Reply {
    Reply::Fields(json!({"allowed": true}))
}

/// Allows, and changes the object.
pub fn patched(patch: &Value) -> Reply {
    Reply::Fields(json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())}))
}

impl HookServer {
    pub async fn start(answers: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let names = ["127.0.0.1", "localhost", "hooks.system.svc"].map(str::to_owned).to_vec();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answers, noted): (Answers, _) = (Arc::new(answers), Arc::clone(&asked));
        let router =
            Router::new().fallback(move |request: Request<Body>| answer(answers.clone(), noted.clone(), request));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, router) = (acceptor.clone(), router.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await.ok();
                });
            }
        });
        Self { port, bundle: STANDARD.encode(made.cert.pem()), asked }
    }

    /// One that converts: it answers reviews of the other kind.
    pub async fn converting(answers: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        Self::start(move |_, request| Reply::Fields(answers(request))).await
    }

    /// A webhook that is at this server.
    pub fn hook(&self, name: &str, more: Value) -> Value {
        let mut hook = json!({
            "name": name,
            "clientConfig": {"url": format!("https://127.0.0.1:{}/{name}", self.port), "caBundle": self.bundle},
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["secrets"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        });
        hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        hook
    }

    /// Paths that were asked, in order.
    pub fn paths(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|(path, _)| path.split('?').next().unwrap().trim_start_matches('/').to_owned()).collect()
    }

    /// The request of the last review.
    pub fn last(&self) -> Value {
        self.asked.lock().unwrap().last().expect("a review").1["request"].clone()
    }
}

async fn answer(answers: Answers, asked: Arc<Mutex<Vec<(String, Value)>>>, request: Request<Body>) -> Response {
    let path = request.uri().to_string();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    asked.lock().unwrap().push((path.clone(), review.clone()));
    let json = |code: StatusCode, text: String| {
        Response::builder().status(code).header("content-type", "application/json").body(Body::from(text)).unwrap()
    };
    match answers(path.split('?').next().unwrap_or_default().trim_start_matches('/'), &review["request"]) {
        Reply::Fields(mut response) => {
            response["uid"] = review["request"]["uid"].clone();
            let answer = json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response});
            json(StatusCode::OK, answer.to_string())
        }
        Reply::Other(code, text) => json(code, text.to_owned()),
        Reply::Redirect(to) => {
            Response::builder().status(StatusCode::FOUND).header("location", to).body(Body::empty()).unwrap()
        }
        Reply::Endless => {
            let pieces = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 64 << 10])));
            Response::new(Body::from_stream(pieces))
        }
        Reply::Silence => std::future::pending().await,
    }
}

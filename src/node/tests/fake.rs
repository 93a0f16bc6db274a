//! An appliance of a test: the part of its API that an agent sees, over TLS, with a CA of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

/// What it has.
pub(super) struct World {
    pub machine: Value,
    pub deployment: Option<Value>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub patches: Vec<Value>,
    /// Tokens that were given.
    pub tokens: u64,
    /// What time it says it is.
    pub date: Option<String>,
    /// Whether it can be watched.
    pub is_watchable: bool,
}

/// The appliance.
pub(super) struct FakeAppliance {
    pub address: SocketAddr,
    pub ca: String,
    world: Arc<Mutex<World>>,
    changed: Arc<watch::Sender<u64>>,
    tls: Arc<rustls::ServerConfig>,
    server: Option<AbortOnDropHandle<()>>,
    /// Its address, while it does not answer.
    kept: Option<tokio::net::TcpSocket>,
}

struct Tls(TcpListener, TlsAcceptor);

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.0.accept().await else { continue };
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

#[derive(Clone)]
struct Shared {
    world: Arc<Mutex<World>>,
    changed: Arc<watch::Sender<u64>>,
}

impl FakeAppliance {
    /// With an LCMMachine of this spec.
    pub async fn with(spec: Value) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let machine = json!({
            "apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine",
            "metadata": {"name": "n1", "namespace": "rack", "uid": "u1", "generation": 1, "resourceVersion": "1"},
            "spec": spec, "status": {},
        });
        let world = World {
            machine,
            deployment: None,
            files: BTreeMap::new(),
            patches: Vec::new(),
            tokens: 0,
            date: None,
            is_watchable: true,
        };
        let mut made = Self {
            address: ([127, 0, 0, 1], 0).into(),
            ca,
            world: Arc::new(Mutex::new(world)),
            changed: Arc::new(watch::Sender::new(1)),
            tls: Arc::new(tls),
            server: None,
            kept: None,
        };
        made.back().await;
        made
    }

    /// Serves again, at the same address.
    pub async fn back(&mut self) {
        let listener = match self.kept.take() {
            Some(socket) => socket.listen(1024).unwrap(),
            None => TcpListener::bind(self.address).await.unwrap(),
        };
        self.address = listener.local_addr().unwrap();
        let shared = Shared { world: self.world.clone(), changed: self.changed.clone() };
        let app = Router::new().fallback(answer).with_state(shared);
        let tls = Tls(listener, TlsAcceptor::from(self.tls.clone()));
        let server = tokio::spawn(async move { axum::serve(tls, app).await.unwrap() });
        self.server = Some(AbortOnDropHandle::new(server));
    }

    /// Does not answer any more. Nobody else gets its address meanwhile.
    pub async fn stop(&mut self) {
        self.server = None;
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        // Its listener goes with its task, which ends soon.
        while socket.bind(self.address).is_err() {
            tokio::task::yield_now().await;
        }
        self.kept = Some(socket);
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Changes the spec.
    pub fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut world = self.world();
        change(&mut world.machine["spec"]);
        let generation = world.machine["metadata"]["generation"].as_i64().unwrap() + 1;
        world.machine["metadata"]["generation"] = generation.into();
        next(&mut world, &self.changed);
    }

    /// Changes the status, as `lcm` does.
    pub fn write_status(&self, change: impl FnOnce(&mut Value)) {
        let mut world = self.world();
        change(&mut world.machine["status"]);
        next(&mut world, &self.changed);
    }

    pub fn status(&self) -> Value {
        self.world().machine["status"].clone()
    }

    /// The status of a step.
    pub fn step(&self, name: &str) -> Value {
        self.status()["stateItemStatuses"][name].clone()
    }
}

fn next(world: &mut World, changed: &watch::Sender<u64>) {
    let version = *changed.borrow() + 1;
    world.machine["metadata"]["resourceVersion"] = version.to_string().into();
    changed.send_replace(version);
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let date = shared.world.lock().unwrap().date.clone();
    let mut response = handle(shared, request).await;
    if let Some(date) = date {
        response.headers_mut().insert(header::DATE, date.parse().unwrap());
    }
    response
}

async fn handle(shared: Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 4 << 20).await.unwrap();
    let refused = |code: StatusCode, message: &str| (code, axum::Json(json!({"message": message}))).into_response();
    let path = parts.uri.path().to_owned();
    if let Some(name) = path.strip_prefix("/files/") {
        let found = shared.world.lock().unwrap().files.get(name).cloned();
        return found.map_or_else(|| refused(StatusCode::NOT_FOUND, "no file"), IntoResponse::into_response);
    }
    if parts.headers.get(header::AUTHORIZATION).is_none_or(|value| !value.as_bytes().starts_with(b"Bearer e30.")) {
        return refused(StatusCode::UNAUTHORIZED, "Unauthorized");
    }
    let machines = "/apis/lcm.mirantis.com/v1alpha1/namespaces/rack/lcmmachines";
    let query = parts.uri.query().unwrap_or_default();
    match (parts.method, path.strip_prefix(machines)) {
        (Method::GET, Some("")) => {
            if !shared.world.lock().unwrap().is_watchable {
                return refused(StatusCode::FORBIDDEN, "no watch");
            }
            assert!(query.contains("fieldSelector=metadata.name%3Dn1"), "{query}");
            let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap();
            let from: u64 = from.parse().unwrap();
            let mut changed = shared.changed.subscribe();
            // One event, and the end: a watch may end at any time.
            let waited = tokio::time::timeout(Duration::from_secs(5), changed.wait_for(|version| *version > from));
            if waited.await.is_err() {
                return Body::empty().into_response();
            }
            let machine = shared.world.lock().unwrap().machine.clone();
            format!("{}\n", json!({"type": "MODIFIED", "object": machine})).into_response()
        }
        (Method::GET, Some("/n1")) => axum::Json(shared.world.lock().unwrap().machine.clone()).into_response(),
        (Method::GET, Some("/n1/deployment")) => match shared.world.lock().unwrap().deployment.clone() {
            Some(data) => axum::Json(data).into_response(),
            None => refused(StatusCode::NOT_FOUND, "there is no Secret yet"),
        },
        (Method::PATCH, Some("/n1/status")) => {
            let patch: Value = serde_json::from_slice(&body).unwrap();
            let mut world = shared.world.lock().unwrap();
            let version = &world.machine["metadata"]["resourceVersion"];
            if patch["metadata"]["resourceVersion"].as_str().is_some_and(|wanted| *version != wanted) {
                return refused(StatusCode::CONFLICT, "changed");
            }
            let merged = json!({"status": patch["status"]});
            json_patch::merge(&mut world.machine, &merged);
            world.patches.push(patch);
            next(&mut world, &shared.changed);
            axum::Json(world.machine.clone()).into_response()
        }
        (Method::POST, None) if path == "/api/v1/namespaces/rack/serviceaccounts/lcm-n1/token" => {
            let mut world = shared.world.lock().unwrap();
            world.tokens += 1;
            axum::Json(json!({"status": {"token": super::token(world.tokens as i64, i64::MAX / 4)}})).into_response()
        }
        _ => refused(StatusCode::NOT_FOUND, "no such path"),
    }
}

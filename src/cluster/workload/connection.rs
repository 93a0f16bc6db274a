//! One cluster's connections.
//!
//! A few requests are under way at once, each within its time and with a bounded answer ([`super::answer`]). A cluster that does not answer
//! is left alone for a while: what asks for it meanwhile hears at once why, and waits for nothing.

use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use reqwest::Url;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tower::{BoxError, Service};

use super::answer::{ANSWER_MAX, AnswerRoom, FREE, RoomPermit, WorkloadAnswer, check, containers, limit};
use super::kubeconfig::WorkloadTarget;
use super::tunnel::Tunnel;
use crate::outbound::client::{ClientSettings, OutboundClient, OutboundError};
use crate::outbound::{Guard, refusal};

/// Requests to one cluster at once.
const AT_ONCE: usize = 4;
/// How long a request waits for its turn.
const TURN: Duration = Duration::from_secs(20);
/// Until a connection stands.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection is kept for another request.
const KEPT: Duration = Duration::from_secs(60);
/// How long a large answer waits for room.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a request.
const REQUEST_MAX: usize = 2 << 20;

/// How long a cluster is waited for.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For an answer, from the request's turn on.
    pub deadline: Duration,
    /// So long one that did not answer is left alone, and twice as long each time,
    pub first_pause: Duration,
    /// but no longer than this.
    pub left_alone: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
            first_pause: Duration::from_secs(1),
            left_alone: Duration::from_secs(10),
        }
    }
}

/// Sends requests to one cluster. Cheap to clone.
#[derive(Clone)]
pub(super) struct WorkloadConnection(Arc<Inner>);

struct Inner {
    target: WorkloadTarget,
    guard: Guard,
    patience: Patience,
    room: AnswerRoom,
    /// One large answer is read at a time: a cluster is not to have all of its namespace's room.
    large: Semaphore,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<OutboundClient>>,
    silent: Mutex<Option<Silence>>,
}

/// It does not answer.
struct Silence {
    /// When it did not last.
    at: Instant,
    /// What it was.
    reason: String,
    /// How often in a row.
    times: u32,
}

impl WorkloadConnection {
    pub(super) fn new(target: WorkloadTarget, guard: Guard, patience: Patience, room: AnswerRoom) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Self(Arc::new(Inner {
            target,
            guard,
            patience,
            room,
            large: Semaphore::new(1),
            places,
            idle: Mutex::default(),
            silent: Mutex::default(),
        }))
    }

    /// Where it leads.
    pub(super) fn server(&self) -> &Url {
        &self.0.target.server
    }

    /// Opens tunnels to where it leads.
    pub(super) fn tunnel(&self) -> Tunnel {
        Tunnel::new(&self.0.target, self.0.guard.clone())
    }
}

impl Inner {
    fn client(&self) -> OutboundClient {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| {
            OutboundClient::new(ClientSettings {
                guard: Some(self.guard.clone()),
                port: self.target.port,
                addresses: Vec::new(),
                tls: self.target.tls.clone(),
                connect_timeout: CONNECT,
                proxies: None,
                keep: KEPT,
                user_agent: HeaderValue::from_static(concat!("slipway/", env!("CARGO_PKG_VERSION"))),
                most: ANSWER_MAX,
            })
        })
    }

    fn silence(&self) -> Option<String> {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        // An address that moves to another machine is there again within seconds.
        let pause =
            |times: u32| self.patience.left_alone.min(self.patience.first_pause.saturating_mul(1 << times.min(8)));
        silent.as_ref().filter(|one| one.at.elapsed() < pause(one.times)).map(|one| one.reason.clone())
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Response<WorkloadAnswer>, BoxError> {
        if let Some(reason) = self.silence() {
            return Err(reason.into());
        }
        let place = timeout(TURN, self.places.acquire()).await;
        let _place = place.map_err(|_| "too much is asked of it at once")??;
        // It may have fallen silent while others were first.
        if let Some(reason) = self.silence() {
            return Err(reason.into());
        }
        // Literal addresses are nobody else's to judge, and what is this box's own changes.
        self.guard.url(&self.target.server)?;
        let (head, body) = request.into_parts();
        let (most, objects) = (limit(&head.uri), containers(&head.uri));
        let base = self.target.server.as_str().trim_end_matches('/');
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let url = Url::parse(&format!("{base}{path}"))?;
        let body = Limited::new(body, REQUEST_MAX).collect().await?.to_bytes();
        let mut fields = head.headers;
        // The client says these itself, and what is unpacked is not counted.
        for field in [HOST, CONTENT_LENGTH, ACCEPT_ENCODING] {
            fields.remove(field);
        }
        fields.extend(self.target.login.clone().map(|login| (AUTHORIZATION, login)));
        let client = self.client();
        let answered = self.answer(&client, head.method, &url, fields, body).await;
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        match answered {
            Ok((head, answer, taken)) => {
                *silent = None;
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.push(client);
                idle.truncate(AT_ONCE);
                check(&answer, most, objects)?;
                Ok(head.map(|()| WorkloadAnswer::new(answer, taken)))
            }
            Err(WorkloadFault::Crowded) => Err("too much is read of clusters at once".into()),
            Err(WorkloadFault::Client(error)) => {
                let reason = told(&error, self.patience.deadline);
                if error.is_timeout() || error.is_connect() {
                    let times = silent.as_ref().map_or(0, |before| before.times.saturating_add(1));
                    *silent = Some(Silence { at: Instant::now(), reason: reason.clone(), times });
                    // They lead to who does not answer, which need not be who has the address now.
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                Err(reason.into())
            }
        }
    }

    async fn answer(
        &self,
        client: &OutboundClient,
        method: http::Method,
        url: &Url,
        fields: http::HeaderMap,
        body: Bytes,
    ) -> Result<(Response<()>, Bytes, RoomPermit), WorkloadFault> {
        let mut answer = client.send(method, url, fields, body, Some(self.patience.deadline)).await?;
        let (mut whole, mut taken, mut turn) = (BytesMut::new(), RoomPermit::default(), None);
        while let Some(chunk) = answer.chunk().await? {
            if turn.is_none() && whole.len() + chunk.len() > FREE {
                // All at once: who holds some room does not wait for more.
                let room = async {
                    let turn = self.large.acquire().await;
                    self.room.grow(&mut taken, FREE + ANSWER_MAX).await;
                    turn
                };
                turn = Some(timeout(ROOM_WAIT, room).await.map_err(|_| WorkloadFault::Crowded)?);
            }
            whole.extend_from_slice(&chunk);
        }
        let mut head = Response::new(());
        *head.status_mut() = answer.status();
        *head.headers_mut() = answer.headers().clone();
        Ok((head, whole.freeze(), taken))
    }
}

/// Why there is no answer.
enum WorkloadFault {
    /// The cluster's, or the way to it.
    Client(OutboundError),
    /// There was no room for it.
    Crowded,
}

impl From<OutboundError> for WorkloadFault {
    fn from(error: OutboundError) -> Self {
        Self::Client(error)
    }
}

/// The innermost cause says most.
fn told(error: &OutboundError, deadline: Duration) -> String {
    if let Some(refused) = refusal(error) {
        return refused.to_string();
    }
    if error.is_timeout() {
        return format!("it did not answer within {deadline:?}");
    }
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    match error.source() {
        Some(_) => last.to_string(),
        None => error.to_string(),
    }
}

impl Service<Request<Body>> for WorkloadConnection {
    type Response = Response<WorkloadAnswer>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = self.0.clone();
        async move { inner.exchange(request).await }.boxed()
    }
}

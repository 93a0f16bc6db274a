//! The HTTPS listener: handshakes, client certificates, limits, and an orderly end.
//!
//! Everything before the first complete request is bounded: connections, in all, from one address and of newcomers, the
//! time of a handshake, of a request's head, of a connection without requests, and of an answer that nobody takes. So is what
//! all connections hold in memory for their peers, whoever they are.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use http::{Request, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::connection_activity::ConnectionActivity;
pub use super::connection_meters::ConnectionMeters;
use super::connections::{CALLERS_INPUT, ConnectionSlot, ListenerConnections};
use super::exchange_memory::{ExchangeMemory, Holding, MeteredConnection, weighed};
use super::lingering_close::LingeringClose;
use super::plain_http;
use crate::apiserver::auth::UserIdentity;
use crate::apiserver::requests::unread_body;
use crate::apiserver::shares::response_memory::ConnectionHandle;
use crate::ration::{Ranks, all_alike};

/// Connections at once, where there are descriptors for them.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Connections at once from one address, unless [`Limits`] say otherwise.
const PER_ADDRESS: usize = 256;
/// What was sent to a peer and not taken for this long ends its connection: a watch that nobody reads, a cut cable. TCP
/// sees to it, and this server where HTTP/2 holds the peer's answer back.
const STALL: Duration = Duration::from_secs(60);
/// HTTP/2 peers are asked for life this often, and given up after the same time.
const PING: Duration = Duration::from_secs(30);
/// Streams of one HTTP/2 connection.
const STREAMS_MAX: u32 = 250;
/// Bytes of a head of HTTP/2, counted as the peer is told (RFC 9113, section 6.5.2).
const HEAD_MAX: u32 = 16 * 1024;
/// Bytes of bodies that a peer may send ahead of who reads them: on a stream, and on a connection.
const WINDOW: u32 = 256 * 1024;
/// Bytes of an answer that one stream of HTTP/2 holds for its peer, and one connection of HTTP/1, but for the piece that
/// passes the bound. The latter is the bound of a request's head, too.
const HELD_BY_STREAM: usize = 16 * 1024;
const HELD_BY_CONNECTION: usize = CALLERS_INPUT;
/// Bytes that newcomers' connections hold in memory together, of which each rank has its share, and those of all others.
const NEWCOMERS_MEMORY: usize = 64 * 1024 * 1024;
const CALLERS_MEMORY: usize = 384 * 1024 * 1024;
/// Wait after the system could not accept (out of file descriptors).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections get this long to end when the server does.
const DRAIN: Duration = Duration::from_secs(5);

/// What peers may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once, of which half may be those of newcomers: callers who have not shown who they are.
    pub connections: usize,
    /// Connections at once from one address, or from one network of IPv6 (/64); there is no such bound for the machine
    /// itself.
    pub per_address: usize,
    /// Bytes that the connections of newcomers hold in memory together for their peers: what these sent, open requests and
    /// answers that wait. Then the connection that holds most goes.
    pub newcomers_memory: usize,
    /// The same of all others.
    pub callers_memory: usize,
    /// How long they may take.
    pub patience: PeerTimeouts,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS_MAX,
            per_address: PER_ADDRESS,
            newcomers_memory: NEWCOMERS_MEMORY,
            callers_memory: CALLERS_MEMORY,
            patience: PeerTimeouts::default(),
        }
    }
}

/// How long a peer may take.
#[derive(Clone, Copy, Debug)]
pub struct PeerTimeouts {
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For a request's head; on HTTP/1 that includes the wait for it.
    pub head: Duration,
    /// Without requests.
    pub idle: Duration,
    /// The same, for who has not shown who they are.
    pub newcomer: Duration,
    /// Until a peer takes more of an answer that waits for it.
    pub stall: Duration,
}

impl Default for PeerTimeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(90),
            idle: Duration::from_secs(180),
            newcomer: Duration::from_secs(30),
            stall: STALL,
        }
    }
}

/// Called with peer and reason when the handshake refused a client certificate.
pub type TellTlsRefusal = Arc<dyn Fn(SocketAddr, &str) + Send + Sync>;

/// What the listener asks about its callers, and whom it tells of them.
#[derive(Clone)]
pub struct Callers {
    /// What is known of an address: of newcomers, each rank keeps its [share](crate::ration::Shares) of connections.
    pub ranks: Ranks,
    /// Who is told of refused certificates.
    pub refused: TellTlsRefusal,
    /// Where connections are counted.
    pub meters: ConnectionMeters,
}

impl Default for Callers {
    fn default() -> Self {
        Self { ranks: all_alike(), refused: Arc::new(|_, _| {}), meters: ConnectionMeters::default() }
    }
}

/// Address of the peer, put into the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The connection that a request came on, put into its extensions.
#[derive(Clone)]
pub struct PeerConnection(Arc<ConnectionSlot>);

impl PeerConnection {
    /// The caller has shown that it is this user: the connection is no newcomer's any more.
    pub fn vouch(&self, user: &str) {
        self.0.vouch(user);
    }
}

/// Serves a router over TLS until `shutdown` is cancelled, then waits some seconds for what is under way.
///
/// A verified client certificate becomes the [`UserIdentity`] in the request's extensions, the peer's address a [`Peer`], the
/// connection a [`PeerConnection`].
///
/// # Errors
///
/// None while it runs: what fails for one peer is logged with its address.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: CancellationToken,
) -> io::Result<()> {
    serve_with(listener, tls, router, shutdown, Limits::default()).await
}

/// As [`serve`], with other limits.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_with(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: CancellationToken,
    limits: Limits,
) -> io::Result<()> {
    serve_knowing(listener, tls, router, shutdown, limits, Callers::default()).await
}

/// As [`serve_with`], for who knows something of addresses, or is told of client certificates that are refused.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_knowing(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: CancellationToken,
    limits: Limits,
    callers: Callers,
) -> io::Result<()> {
    let local = listener.local_addr()?;
    tracing::info!(address = %local, "the API listens");
    let acceptor = TlsAcceptor::from(tls);
    let slots = Arc::new(Semaphore::new(limits.connections));
    let memory = [limits.newcomers_memory, limits.callers_memory];
    let connections = ListenerConnections::new(limits.connections, limits.per_address, memory);
    callers.meters.of(&connections);
    let tasks = TaskTracker::new();
    loop {
        // A slot before a connection: what is too much waits in the kernel's queue, and a newcomer makes room for it.
        if slots.available_permits() == 0 {
            connections.make_room();
        }
        let slot = tokio::select! {
            () = shutdown.cancelled() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot.map_err(io::Error::other)?,
        };
        let (stream, peer) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the API");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        // Nobody has all the slots. What is too much is closed: to let it wait would hold up the others behind it.
        let Some(connection_slot) = connections.admit(peer.ip(), (callers.ranks)(peer.ip().to_canonical())) else {
            callers.meters.refused();
            tracing::debug!(%peer, "closed a connection to the API: this address has too many");
            continue;
        };
        let (acceptor, router, shutdown) = (acceptor.clone(), router.clone(), shutdown.clone());
        let refused = Arc::clone(&callers.refused);
        tasks.spawn(async move {
            let connection_slot = Arc::new(connection_slot);
            let accepted = AcceptedPeer { peer, connection_slot: Arc::clone(&connection_slot), refused };
            tokio::select! {
                () = connection(stream, accepted, acceptor, router, shutdown, limits.patience) => {}
                () = connection_slot.dropped() => match connection_slot.is_newcomer() {
                    true => tracing::debug!(%peer, "closed the connection of an unknown client: another one gets its place"),
                    false if connection_slot.gave_way() => tracing::debug!(%peer, "closed a connection of the caller who has most: another caller gets its place"),
                    false => tracing::info!(%peer, "closed a connection: all of them hold too much memory, and this one most"),
                },
            }
            connection_slot.closed();
            drop((slot, connection_slot));
        });
    }
    drop(listener);
    tasks.close();
    if timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(connections = tasks.len(), "connections to the API were cut off at shutdown");
    }
    Ok(())
}

/// A new connection: its peer, its slot, and what is called when its certificate is refused.
struct AcceptedPeer {
    peer: SocketAddr,
    connection_slot: Arc<ConnectionSlot>,
    refused: TellTlsRefusal,
}

async fn connection(
    stream: TcpStream,
    accepted: AcceptedPeer,
    acceptor: TlsAcceptor,
    router: Router,
    shutdown: CancellationToken,
    patience: PeerTimeouts,
) {
    let AcceptedPeer { peer, connection_slot, refused } = accepted;
    // Without these the connection works all the same.
    stream.set_nodelay(true).ok();
    let socket = socket2::SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(STALL)).ok();
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(STALL).with_interval(STALL / 6)).ok();
    let deadline = Instant::now() + patience.handshake;
    match timeout_at(deadline, plain_http::is_spoken(&stream)).await {
        Ok(Ok(false)) => {}
        Ok(Ok(true)) => {
            tracing::debug!(%peer, "a request without TLS");
            timeout_at(deadline, plain_http::answer(stream)).await.ok();
            return;
        }
        Ok(Err(_)) | Err(_) => {
            tracing::debug!(%peer, "no TLS handshake began");
            return;
        }
    }
    let stream = MeteredConnection::new(stream, Arc::clone(&connection_slot));
    let stream = match timeout_at(deadline, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            // What is wrong with a client's certificate is a failed login; all else is noise of the network.
            if let Some(rustls::Error::InvalidCertificate(_)) = error.get_ref().and_then(|error| error.downcast_ref()) {
                refused(peer, &error.to_string());
            }
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake took too long");
            return;
        }
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let identity = match certificate.map(|certificate| UserIdentity::from_certificate(certificate)).transpose() {
        Ok(identity) => identity,
        Err(error) => {
            refused(peer, &error.to_string());
            tracing::debug!(%peer, %error, "refused a client certificate");
            return;
        }
    };
    if let Some(identity) = &identity {
        connection_slot.vouch(&identity.user);
    }
    let activity = ConnectionActivity::new();
    let (watched, here) = (Arc::clone(&activity), Arc::clone(&connection_slot));
    let cut = CancellationToken::new();
    let cuts = cut.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (request, weight) = weighed(request);
        let holding = ExchangeMemory::new(&here, weight);
        let mut unread = None;
        let may_be_unread = request.version() == Version::HTTP_2 && !request.body().is_end_stream();
        let mut request = request.map(|body| {
            if may_be_unread {
                let (body, back) = unread_body::lend(body);
                unread = Some(back);
                return Body::new(holding.request(body));
            }
            Body::new(holding.request(body))
        });
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(Holding(Arc::clone(&holding)));
        if let Some(identity) = &identity {
            request.extensions_mut().insert(identity.clone());
        }
        request.extensions_mut().insert(PeerConnection(Arc::clone(&here)));
        // The body keeps the exchange: a watch is no idle connection.
        let (exchange, router, cuts) = (watched.begin(), router.clone(), cuts.clone());
        // What was too much is not kept until the connection ends.
        let request = Some(request).filter(|_| !here.is_dropped());
        if request.is_none() {
            holding.refused();
        }
        async move {
            let response = match request {
                Some(request) => router.oneshot(request).await?,
                None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            };
            if let Some(handle) = response.extensions().get::<ConnectionHandle>() {
                handle.is_cut_by(cuts);
            }
            let is_refusal = response.status().is_client_error() || response.status().is_server_error();
            if let Some(unread) = unread.filter(|_| is_refusal) {
                unread.throw_away().await;
            }
            Ok::<_, std::convert::Infallible>(holding.answer(response).map(|body| exchange.answer(body)))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience.head).max_buf_size(HELD_BY_CONNECTION);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(HELD_BY_STREAM)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let serving = builder.serve_connection(TokioIo::new(LingeringClose::new(stream)), service);
    tokio::pin!(serving);
    let mut ending = false;
    loop {
        let (idle, stall) = match connection_slot.is_newcomer() {
            true => (patience.newcomer, patience.stall.min(patience.newcomer)),
            false => (patience.idle, patience.stall),
        };
        let left = idle.saturating_sub(activity.idle()).min(stall.saturating_sub(activity.stalled()));
        let wait = if ending { DRAIN } else { left.max(Duration::from_millis(100)) };
        tokio::select! {
            done = &mut serving => {
                if let Err(error) = done {
                    tracing::debug!(%peer, error, "a connection to the API broke");
                }
                return;
            }
            () = cut.cancelled() => {
                tracing::debug!(%peer, "closed a connection whose answer was broken off");
                return;
            }
            () = shutdown.cancelled(), if !ending => {
                ending = true;
                serving.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep(wait) => {
                if ending {
                    return;
                }
                let stalled = activity.stalled() >= stall;
                if stalled || activity.idle() >= idle {
                    tracing::debug!(%peer, stalled, "closing a connection that makes no progress");
                    ending = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

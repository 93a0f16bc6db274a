//! The HTTPS listener: handshakes, client certificates, limits, and an orderly end.
//!
//! Everything before the first complete request is bounded: connections, the time of a handshake, of a request's
//! head, and of a connection without requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::auth::Identity;

/// Connections at once.
const CONNECTIONS_MAX: usize = 16_384;
/// What was sent to a peer and not taken for this long ends its connection: a watch that nobody reads, a cut cable.
const STALL: Duration = Duration::from_secs(60);
/// HTTP/2 peers are asked for life this often, and given up after the same time.
const PING: Duration = Duration::from_secs(30);
/// Streams of one HTTP/2 connection.
const STREAMS_MAX: u32 = 250;
/// Wait after the system could not accept (out of file descriptors).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections get this long to end when the server does.
const DRAIN: Duration = Duration::from_secs(5);

/// How long a peer may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For a request's head; on HTTP/1 that includes the wait for it.
    pub head: Duration,
    /// Without requests.
    pub idle: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { handshake: Duration::from_secs(10), head: Duration::from_secs(90), idle: Duration::from_secs(180) }
    }
}

/// Address of the peer, put into the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Serves a router over TLS until `shutdown` is cancelled, then waits some seconds for what is under way.
///
/// A verified client certificate becomes the [`Identity`] in the request's extensions, the peer's address a [`Peer`].
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
    serve_with(listener, tls, router, shutdown, Patience::default()).await
}

/// As [`serve`], with other patience.
pub async fn serve_with(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: CancellationToken,
    patience: Patience,
) -> io::Result<()> {
    let local = listener.local_addr()?;
    tracing::info!(address = %local, "HTTPS is served");
    let acceptor = TlsAcceptor::from(tls);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let tasks = TaskTracker::new();
    loop {
        // A slot before a connection: what is too much waits in the kernel's queue.
        let slot = tokio::select! {
            () = shutdown.cancelled() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot.map_err(io::Error::other)?,
        };
        let (stream, peer) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        let (acceptor, router, shutdown) = (acceptor.clone(), router.clone(), shutdown.clone());
        tasks.spawn(async move {
            connection(stream, peer, acceptor, router, shutdown, patience).await;
            drop(slot);
        });
    }
    drop(listener);
    tasks.close();
    if timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(connections = tasks.len(), "connections are cut off");
    }
    Ok(())
}

/// When a connection last had a request under way.
#[derive(Debug)]
struct Activity {
    started: Instant,
    under_way: AtomicUsize,
    /// Milliseconds after `started`.
    last: AtomicU64,
}

impl Activity {
    fn touch(&self) {
        self.last.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        if self.under_way.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.started.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

/// Counts one request for as long as its answer is being sent.
struct UnderWay(Arc<Activity>);

impl UnderWay {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.touch();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    router: Router,
    shutdown: CancellationToken,
    patience: Patience,
) {
    // Without these the connection works all the same.
    stream.set_nodelay(true).ok();
    let socket = socket2::SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(STALL)).ok();
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(STALL).with_interval(STALL / 6)).ok();
    let stream = match timeout(patience.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake took too long");
            return;
        }
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let identity = match certificate.map(|certificate| Identity::from_certificate(certificate)).transpose() {
        Ok(identity) => identity,
        Err(error) => {
            tracing::warn!(%peer, %error, "client certificate refused");
            return;
        }
    };
    let activity =
        Arc::new(Activity { started: Instant::now(), under_way: AtomicUsize::new(0), last: AtomicU64::new(0) });
    let watched = Arc::clone(&activity);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        if let Some(identity) = &identity {
            request.extensions_mut().insert(identity.clone());
        }
        let under_way = UnderWay::new(&watched);
        let router = router.clone();
        async move {
            let response = router.oneshot(request).await?;
            // The body keeps the count: a watch is no idle connection.
            Ok::<_, std::convert::Infallible>(response.map(|body| {
                use http_body_util::BodyExt;
                Body::new(body.map_frame(move |frame| {
                    let _counted = &under_way;
                    frame
                }))
            }))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience.head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let mut ending = false;
    loop {
        let wait =
            if ending { DRAIN } else { patience.idle.saturating_sub(activity.idle()).max(Duration::from_millis(100)) };
        tokio::select! {
            done = &mut serving => {
                if let Err(error) = done {
                    tracing::debug!(%peer, error, "connection ended");
                }
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
                if activity.idle() >= patience.idle {
                    ending = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

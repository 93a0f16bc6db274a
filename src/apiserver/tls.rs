//! The HTTPS listener: handshakes, client certificates, limits, and an orderly end.
//!
//! Everything before the first complete request is bounded: connections, in all and from one address, the time of a
//! handshake, of a request's head, and of a connection without requests.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
use super::linger::Lingering;

/// Connections at once.
const CONNECTIONS_MAX: usize = 16_384;
/// Connections at once from one address, unless [`Limits`] say otherwise.
const PER_ADDRESS: usize = 256;
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

/// What peers may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once from one address, or from one network of IPv6 (/64); there is no such bound for the machine
    /// itself.
    pub per_address: usize,
    /// How long they may take.
    pub patience: Patience,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_address: PER_ADDRESS, patience: Patience::default() }
    }
}

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

/// Who is told, with the peer and the reason, that the handshake refused a client certificate.
pub type Refused = Arc<dyn Fn(SocketAddr, &str) + Send + Sync>;

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
    serve_telling(listener, tls, router, shutdown, limits, Arc::new(|_, _| {})).await
}

/// As [`serve_with`], telling of client certificates that are refused.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_telling(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: CancellationToken,
    limits: Limits,
    refused: Refused,
) -> io::Result<()> {
    let local = listener.local_addr()?;
    tracing::info!(address = %local, "HTTPS is served");
    let acceptor = TlsAcceptor::from(tls);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let peers = Peers::new(limits.per_address);
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
        // Nobody has all the slots. What is too much is closed: to let it wait would hold up the others behind it.
        let Some(place) = peers.take(peer.ip()) else {
            tracing::debug!(%peer, "too many connections from this address");
            continue;
        };
        let (acceptor, router, shutdown) = (acceptor.clone(), router.clone(), shutdown.clone());
        let refused = Arc::clone(&refused);
        tasks.spawn(async move {
            connection(stream, peer, acceptor, router, shutdown, limits.patience, refused).await;
            drop((slot, place));
        });
    }
    drop(listener);
    tasks.close();
    if timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(connections = tasks.len(), "connections are cut off");
    }
    Ok(())
}

/// Connections by the address they come from.
#[derive(Clone)]
struct Peers {
    most: usize,
    // std's lock: held to count only.
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place among the connections of an address.
struct Place {
    peers: Peers,
    /// `None` where nobody counts.
    address: Option<IpAddr>,
}

impl Peers {
    fn new(most: usize) -> Self {
        Self { most, counts: Arc::default() }
    }

    /// A place for a connection from an address, when it has one left.
    fn take(&self, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        if address.is_loopback() {
            return Some(Place { peers: self.clone(), address: None });
        }
        let address = match address {
            // One machine may have any address of its network.
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            v4 => v4,
        };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place { peers: self.clone(), address: Some(address) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(address) = &self.address else { return };
        let mut counts = self.peers.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(address);
            }
        }
    }
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
    refused: Refused,
) {
    // Without these the connection works all the same.
    stream.set_nodelay(true).ok();
    let socket = socket2::SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(STALL)).ok();
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(STALL).with_interval(STALL / 6)).ok();
    let stream = match timeout(patience.handshake, acceptor.accept(stream)).await {
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
    let identity = match certificate.map(|certificate| Identity::from_certificate(certificate)).transpose() {
        Ok(identity) => identity,
        Err(error) => {
            refused(peer, &error.to_string());
            tracing::debug!(%peer, %error, "client certificate refused");
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
    let serving = builder.serve_connection(TokioIo::new(Lingering::new(stream)), service);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_the_connections() {
        let peers = Peers::new(2);
        let take = |text: &str| peers.take(text.parse().unwrap());
        let first = take("10.0.0.1").unwrap();
        let _second = take("::ffff:10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none());
        let _other = take("10.0.0.2").unwrap();
        drop(first);
        let _third = take("10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none());
        // A network of IPv6 is one machine.
        let _six = [take("2001:db8::1").unwrap(), take("2001:db8::2").unwrap()];
        assert!(take("2001:db8::3").is_none() && take("2001:db8:0:1::1").is_some());
        // The machine itself has as many as there are.
        let many: Vec<Option<Place>> = (0..9).map(|_| take("127.0.0.1")).collect();
        assert!(many.iter().all(Option::is_some) && take("::1").is_some());
        drop((many, _second, _other, _third, _six));
        assert!(peers.counts.lock().unwrap().is_empty());
    }
}

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::http::Ends;

/// Connections at once, where there are descriptors for them.
pub const MAX_CONNECTIONS: usize = 1024;
/// Connections at once from one address. iPXE opens one or two.
pub const MAX_CONNECTIONS_PER_ADDRESS: usize = 64;
/// How long a client may take for a request's head, and how long it may idle between requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(15);
/// How long data may wait for a client that takes none.
const STALL_DEADLINE: Duration = Duration::from_secs(60);
/// How long downloads may go on after shutdown.
const DRAIN: Duration = Duration::from_secs(5);
/// Largest request head, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Ends the connection that a request came on.
#[derive(Clone, Debug)]
pub(super) struct Hangup(pub CancellationToken);

/// Serves HTTP/1.1 until shutdown, with at most so many connections at once, then lets downloads under way end for some
/// seconds.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections_at_once: usize,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(connections_at_once));
    let addresses = Addresses::default();
    let mut connections = JoinSet::new();
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD);
    loop {
        // The permit comes first: what is over the limit waits in the kernel.
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = permits.clone().acquire_owned() => permit.map_err(io::Error::other)?,
        };
        let (stream, peer) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "boot HTTP cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        while let Some(ended) = connections.try_join_next() {
            if let Err(error) = ended {
                warn!(%error, "a boot HTTP connection failed");
            }
        }
        let Some(guest) = addresses.enter(peer.ip()) else {
            warn!(%peer, limit = MAX_CONNECTIONS_PER_ADDRESS, "boot HTTP connection refused: too many from this address");
            continue;
        };
        let local = match prepare(&stream) {
            Ok(local) => local,
            Err(error) => {
                debug!(%peer, %error, "boot HTTP connection gone");
                continue;
            }
        };
        let ends = Ends { local, peer };
        let (router, ended) = (router.clone(), CancellationToken::new());
        let hangup = Hangup(ended.clone());
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ends);
            request.extensions_mut().insert(hangup.clone());
            router.clone().oneshot(request)
        });
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned());
        connections.spawn(async move {
            tokio::select! {
                done = connection => if let Err(error) = done {
                    debug!(%peer, %error, "boot HTTP connection");
                },
                () = ended.cancelled() => debug!(%peer, "boot HTTP connection is ended"),
            }
            drop((guest, permit));
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        debug!("boot HTTP downloads were cut off");
    }
    connections.shutdown().await;
    Ok(())
}

fn prepare(stream: &TcpStream) -> io::Result<std::net::SocketAddr> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(STALL_DEADLINE))?;
    let local = stream.local_addr()?;
    Ok(std::net::SocketAddr::new(local.ip().to_canonical(), local.port()))
}

/// Connections by address.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection that is counted until it is dropped.
struct Guest {
    address: IpAddr,
    addresses: Addresses,
}

impl Addresses {
    fn enter(&self, address: IpAddr) -> Option<Guest> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= MAX_CONNECTIONS_PER_ADDRESS {
            return None;
        }
        *count += 1;
        Some(Guest { address, addresses: self.clone() })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.addresses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_can_be_ended_in_the_middle_of_an_answer() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let endless = |axum::Extension(Hangup(token)): axum::Extension<Hangup>| async move {
            let more = std::iter::repeat_with(|| Ok::<_, io::Error>(bytes::Bytes::from_static(&[b'x'; 1 << 16])));
            // The client reads nothing at first, so this waits in the middle of it.
            tokio::spawn(async move { token.cancel() });
            Body::from_stream(futures::stream::iter(more))
        };
        let router = Router::new().route("/", axum::routing::get(endless));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, router, 8, shutdown.clone()));
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("asks");
        let ends = async { while matches!(stream.read(&mut [0; 1 << 16]).await, Ok(1..)) {} };
        tokio::time::timeout(Duration::from_secs(20), ends).await.expect("it goes on for ever");
        shutdown.cancel();
        served.await.expect("no panic").expect("an orderly end");
    }

    #[test]
    fn connections_are_counted_by_address() {
        let addresses = Addresses::default();
        let one: IpAddr = [10, 0, 0, 1].into();
        let mut guests: Vec<_> =
            (0..MAX_CONNECTIONS_PER_ADDRESS).map(|_| addresses.enter(one).expect("room")).collect();
        assert!(addresses.enter(one).is_none());
        assert!(addresses.enter([10, 0, 0, 2].into()).is_some());
        guests.pop();
        assert!(addresses.enter(one).is_some());
        drop(guests);
        assert!(addresses.0.lock().expect("lock").is_empty());
    }
}

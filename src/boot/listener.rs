//! The boot HTTP listener: connections, their limits and deadlines, and an orderly shutdown.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, error, warn};

use super::connections::{BootConnections, ConnectionPermit, ConnectionRefused, PATIENCE};
use super::http::ConnInfo;
use super::metrics::BootHttpMetrics;
use crate::ration::{Rank, Ranks};

/// Connections at once, where there are descriptors for them, with those of known hosts that wait for a slot. Who is not
/// known has [a share](crate::ration::RankShares) of them.
pub const MAX_CONNECTIONS: usize = 1536;
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
/// seconds. `ranks` say who goes first when there are too many connections.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    ranks: Ranks,
    connections_at_once: usize,
    metrics: BootHttpMetrics,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let admission = BootConnections::with_limit(connections_at_once);
    metrics.of(&admission);
    let mut connections = JoinSet::new();
    // Those that wait for a slot: who is next in the kernel's queue does not wait behind them.
    let mut waiting = JoinSet::new();
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD);
    loop {
        let admitted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(waited) = waiting.join_next() => waited.unwrap_or_else(|error| {
                error!(%error, "a boot HTTP connection panicked");
                None
            }),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => admit(stream, peer, &ranks, &admission, &metrics, &mut waiting),
                Err(error) => {
                    warn!(%error, "cannot accept a boot HTTP connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    None
                }
            },
        };
        while let Some(ended) = connections.try_join_next() {
            if let Err(error) = ended {
                error!(%error, "a boot HTTP connection panicked");
            }
        }
        let Some(AcceptedConnection { stream, conn, rank, ended, permit }) = admitted else { continue };
        let peer = conn.peer;
        let (router, hangup, permit_of) = (router.clone(), Hangup(ended.clone()), permit.clone());
        let metrics = metrics.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (active, count) = (permit_of.begin_request(), metrics.asked(request.uri().path()));
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(conn);
            request.extensions_mut().insert(rank);
            request.extensions_mut().insert(hangup.clone());
            let answer = router.clone().oneshot(request);
            async move { answer.await.map(|answer| active.until_sent(count(answer))) }
        });
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned());
        connections.spawn(async move {
            tokio::select! {
                done = connection => if let Err(error) = done {
                    debug!(%peer, %error, "a boot HTTP connection broke");
                },
                () = ended.cancelled() => debug!(%peer, "closed a boot HTTP connection: another one gets its place"),
            }
            drop(permit);
        });
    }
    waiting.shutdown().await;
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        debug!("boot HTTP downloads were cut off at shutdown");
    }
    connections.shutdown().await;
    Ok(())
}

/// A connection that has its slot.
struct AcceptedConnection {
    stream: TcpStream,
    conn: ConnInfo,
    rank: Rank,
    /// Ends it.
    ended: CancellationToken,
    permit: ConnectionPermit,
}

/// Gives a connection its slot. A known host's waits for one where there is none.
fn admit(
    stream: TcpStream,
    peer: SocketAddr,
    ranks: &Ranks,
    admission: &BootConnections,
    metrics: &BootHttpMetrics,
    waiting: &mut JoinSet<Option<AcceptedConnection>>,
) -> Option<AcceptedConnection> {
    let local = prepare(&stream)
        .inspect_err(|error| debug!(%peer, %error, "a boot HTTP connection was gone when it was accepted"))
        .ok()?;
    let address = peer.ip().to_canonical();
    let rank = if local.ip() == address { Rank::Own } else { ranks(address) };
    let (conn, ended) = (ConnInfo { local, peer }, CancellationToken::new());
    let metrics = metrics.clone();
    let refuse = move |full: ConnectionRefused| {
        warn!(%peer, reason = %full, "refused a boot HTTP connection");
        metrics.refused(full);
    };
    match admission.admit(address, rank, &ended) {
        Ok(permit) => Some(AcceptedConnection { stream, conn, rank, ended, permit }),
        Err(ConnectionRefused::Busy) if rank <= Rank::Known => {
            let admission = admission.clone();
            waiting.spawn(async move {
                let permit = admission.wait(address, rank, &ended, PATIENCE).await.map_err(refuse).ok()?;
                Some(AcceptedConnection { stream, conn, rank, ended, permit })
            });
            None
        }
        Err(full) => {
            refuse(full);
            None
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<SocketAddr> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(STALL_DEADLINE))?;
    let local = stream.local_addr()?;
    Ok(SocketAddr::new(local.ip().to_canonical(), local.port()))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_connection_can_be_ended_in_the_middle_of_an_answer() {
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
        let served = tokio::spawn(serve(
            listener,
            router,
            crate::ration::all_alike(),
            8,
            BootHttpMetrics::default(),
            shutdown.clone(),
        ));
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("asks");
        let ends = async { while matches!(stream.read(&mut [0; 1 << 16]).await, Ok(1..)) {} };
        tokio::time::timeout(Duration::from_secs(20), ends).await.expect("it goes on for ever");
        shutdown.cancel();
        served.await.expect("no panic").expect("an orderly end");
    }

    async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("an address");
        tokio::time::timeout(DEADLINE, socket.connect(to)).await.expect("in time").expect("connects")
    }

    /// What is answered before the deadline.
    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("asks");
        let mut answer = String::new();
        tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("no answer").ok();
        answer
    }

    #[tokio::test]
    async fn a_known_host_is_served_while_strangers_do_their_worst() {
        const KNOWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
        let ranks = |address: IpAddr| if address == KNOWN { Rank::Known } else { Rank::Stranger };
        let router = Router::new().route("/", axum::routing::get(|| async { "the boot script" }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        let metrics = BootHttpMetrics::default();
        let serving = serve(listener, router, Arc::new(ranks), MAX_CONNECTIONS, metrics.clone(), shutdown.clone());
        let served = tokio::spawn(serving);
        // Thirty strangers open as much as one may, and say nothing, or half a head.
        let mut held = Vec::new();
        for stranger in 0..30 {
            for number in 0..super::super::connections::MAX_OF_AN_ADDRESS {
                let mut stream = connect(Ipv4Addr::new(127, 0, 9, stranger), address).await;
                if number % 2 == 0 {
                    stream.write_all(b"GET / HTTP/1.1\r\nHo").await.ok();
                }
                held.push(stream);
            }
        }
        for number in 0..5 {
            let answer = ask(&mut connect(KNOWN, address).await).await;
            assert!(answer.ends_with("the boot script"), "{number}: {answer:?}");
        }
        // An unknown machine that means well gets on, too: who has not asked for longest gives way.
        let answer = ask(&mut connect(Ipv4Addr::new(127, 0, 0, 4), address).await).await;
        assert!(answer.ends_with("the boot script"), "{answer:?}");
        let mut open = 0;
        for stream in &held {
            open += usize::from(
                matches!(stream.try_read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock),
            );
        }
        assert!(open <= crate::ration::RankShares::of_strangers(MAX_CONNECTIONS), "{open} are open");
        // The known host opens one too many.
        let own = (0..=super::super::connections::MAX_OF_AN_ADDRESS).map(|_| connect(KNOWN, address));
        let _own = futures::future::join_all(own).await;
        let refused = async {
            let shown = || crate::metrics::shown(|registry| metrics.register(registry));
            while shown().contains("slipway_boot_refused_connections_total{reason=\"address\"} 0\n") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, refused).await.expect("nothing is counted");
        shutdown.cancel();
        served.await.expect("no panic").expect("an orderly end");
    }

    #[tokio::test]
    async fn addresses_that_are_known_and_keep_all_places_busy_stop_nobody() {
        let began = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = began.clone();
        // `/` waits for ever, as somebody in the queue for the initrd does.
        let hold = move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::pending::<&'static str>()
        };
        let router = Router::new()
            .route("/hold", axum::routing::get(hold))
            .route("/", axum::routing::get(|| async { "the boot script" }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        // Everybody is known: the attacker has taken the addresses of hosts that are off.
        let ranks: Ranks = Arc::new(|_| Rank::Known);
        const CONNECTIONS: usize = 288;
        let served =
            tokio::spawn(serve(listener, router, ranks, CONNECTIONS, BootHttpMetrics::default(), shutdown.clone()));
        let mut held = Vec::new();
        for number in 0..2 * CONNECTIONS {
            let last = u8::try_from(number % 24).expect("small");
            let mut stream = connect(Ipv4Addr::new(127, 0, 9, last), address).await;
            stream.write_all(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").await.ok();
            held.push(stream);
        }
        let busy = async {
            while began.load(std::sync::atomic::Ordering::Relaxed) < CONNECTIONS * 8 / 9 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, busy).await.expect("the slots are taken");
        for last in 1..40 {
            let answer = ask(&mut connect(Ipv4Addr::new(127, 0, 8, last), address).await).await;
            assert!(answer.ends_with("the boot script"), "{last}: {answer:?}");
        }
        shutdown.cancel();
        drop(held);
        served.await.expect("no panic").expect("an orderly end");
    }
}

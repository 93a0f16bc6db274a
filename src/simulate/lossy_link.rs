//! TCP over a network that loses packets, and HTTP over that.
//!
//! A lost segment costs what it costs in life: the time until it is sent again, and now and then the connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use super::counts::RunCounts;
use super::rng::SeededRng;

/// Least time until a segment is sent again, and a connection's first one (RFC 6298).
const AGAIN: Duration = Duration::from_millis(200);
const CONNECT_AGAIN: Duration = Duration::from_secs(1);
/// Of so many lost segments one costs the connection.
const BREAKS: f64 = 0.25;
/// How long an HTTP exchange may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest body that is kept, in bytes.
const MOST: usize = 64 << 10;
/// Largest head of a proxy's request, in bytes.
const HEAD: usize = 4 << 10;
/// Bytes copied at once.
const PIECE: usize = 16 << 10;

/// A machine's side of the network.
#[derive(Clone)]
pub struct LossyLink {
    /// The machine's address, when it is one that connections can come from.
    pub source: Option<Ipv4Addr>,
    /// Part of the packets that are lost.
    pub loss: f64,
    /// Counts what is lost.
    pub counts: Arc<RunCounts>,
}

impl LossyLink {
    /// Whether a datagram gets lost; counts it.
    pub fn loses(&self, rng: &mut SeededRng) -> bool {
        let lost = rng.happens(self.loss);
        if lost {
            self.counts.lose();
        }
        lost
    }

    async fn connect(&self, to: SocketAddr, rng: &mut SeededRng) -> io::Result<LossyStream> {
        if self.loses(rng) {
            tokio::time::sleep(CONNECT_AGAIN).await;
        }
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(source) = self.source.filter(|_| to.is_ipv4()) {
            socket.bind((source, 0).into())?;
        }
        let stream = tokio::time::timeout(PATIENCE, socket.connect(to)).await.map_err(io::Error::other)??;
        stream.set_nodelay(true)?;
        Ok(LossyStream { stream, loss: self.loss, rng: rng.child(), counts: self.counts.clone(), late: None })
    }

    /// One HTTP request to a URL with an IP address, for a part of the body when one is given.
    ///
    /// # Errors
    /// When there was no whole answer, or one that is no success.
    pub async fn fetch(
        &self,
        method: Method,
        url: &Url,
        part: Option<Range<u64>>,
        rng: &mut SeededRng,
    ) -> io::Result<Fetched> {
        let fail = |reason: String| io::Error::new(io::ErrorKind::InvalidData, format!("{url}: {reason}"));
        let host = url.host_str().and_then(|host| host.parse().ok()).ok_or_else(|| fail("no IP address".into()))?;
        let port = url.port_or_known_default().ok_or_else(|| fail("no port".into()))?;
        let exchange = async {
            let stream = self.connect(SocketAddr::new(host, port), rng).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
            let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
            let mut request =
                Request::builder().method(method).uri(path).header(header::HOST, format!("{host}:{port}"));
            if let Some(part) = part {
                request = request.header(header::RANGE, format!("bytes={}-{}", part.start, part.end.saturating_sub(1)));
            }
            let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
            // Takes the sender along: without one the connection ends.
            let answered = async move {
                let answer = sender.send_request(request).await.map_err(io::Error::other)?;
                let status = answer.status();
                if !status.is_success() {
                    return Err(fail(status.to_string()));
                }
                read(answer).await
            };
            let (answered, _) = tokio::join!(answered, connection);
            answered
        };
        tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| fail("no answer in time".into()))?
    }

    /// An HTTP proxy for the agent's client, which then has this network under it: CONNECT and nothing else.
    pub async fn proxy(self, listener: TcpListener, mut rng: SeededRng, token: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = token.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((client, _)) = accepted else { continue };
            let (link, rng) = (self.clone(), rng.child());
            connections.spawn(async move { link.tunnel(client, rng).await });
        }
    }

    async fn tunnel(&self, mut client: TcpStream, mut rng: SeededRng) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= HEAD {
                return Err(io::ErrorKind::InvalidData.into());
            }
            head.push(client.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head);
        let to = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        let Some(to) = to else { return Err(io::ErrorKind::InvalidData.into()) };
        let mut server = self.connect(to, &mut rng).await?;
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, PIECE, PIECE).await?;
        Ok(())
    }
}

/// An answer's body.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Its beginning, at most 64 KiB.
    pub text: Vec<u8>,
    /// Bytes that came.
    pub bytes: usize,
}

async fn read(answer: Response<Incoming>) -> io::Result<Fetched> {
    let mut body = answer.into_body();
    let mut fetched = Fetched { text: Vec::new(), bytes: 0 };
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        fetched.bytes += data.len();
        let room = MOST - fetched.text.len();
        fetched.text.extend_from_slice(&data[..data.len().min(room)]);
    }
    Ok(fetched)
}

/// A connection whose segments may be lost.
pub struct LossyStream {
    stream: TcpStream,
    loss: f64,
    rng: SeededRng,
    counts: Arc<RunCounts>,
    /// What was lost is under way again until then.
    late: Option<Pin<Box<Sleep>>>,
}

impl LossyStream {
    /// Ready when nothing is lost now.
    fn poll_way(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(late) = &mut self.late else { return Poll::Ready(()) };
        ready!(late.as_mut().poll(context));
        self.late = None;
        Poll::Ready(())
    }

    /// A segment passes: it may be lost.
    fn pass(&mut self) -> io::Result<()> {
        if self.loss == 0.0 || !self.rng.happens(self.loss) {
            return Ok(());
        }
        self.counts.lose();
        if self.rng.happens(BREAKS) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.late = Some(Box::pin(tokio::time::sleep(AGAIN)));
        Ok(())
    }
}

impl AsyncRead for LossyStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_way(context));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            // The next one waits: what came in this one is there.
            self.pass()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LossyStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_way(context));
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.pass()?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

//! Tunnels to the pods of a cluster, through its API server.
//!
//! A request that is upgraded becomes a stream, so each has a connection of its own: judged as every other one to the cluster, and
//! given up when it does not stand in time. Who uses a tunnel says how long; how much comes through is bounded here.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Request, Response, Uri};
use http_body_util::Limited;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kube::api::Portforwarder;
use kube::client::Body;
use reqwest::Url;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::{BoxError, Service};

use super::kubeconfig::WorkloadTarget;
use crate::outbound::Guard;

/// Until a connection stands, and its request is answered.
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes of an answer that is no stream.
const ANSWER_MAX: usize = 256 << 10;
/// Bytes that come through one tunnel: some answers of etcd, of 1 MiB each at most, and what they are wrapped in. kube's client
/// takes no bound for its WebSocket, which gathers 64 MiB of a message without end.
const STREAM_MAX: usize = 4 << 20;
/// Bytes that a frame counts beside its own: an empty one is work, too.
const FRAME: usize = 128;

/// Streams to a pod, which end with this: a server that says nothing more keeps none of them.
pub struct Forward(pub Portforwarder);

impl Drop for Forward {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens connections to one cluster. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tunnel(Arc<Inner>);

struct Inner {
    server: Url,
    port: u16,
    tls: TlsConnector,
    login: Option<HeaderValue>,
    guard: Guard,
}

impl Tunnel {
    pub(super) fn new(target: &WorkloadTarget, guard: Guard) -> Self {
        let mut tls = target.tls.clone();
        // What is upgraded is not of HTTP/2.
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tls = TlsConnector::from(Arc::new(tls));
        let (server, login) = (target.server.clone(), target.login.clone());
        Self(Arc::new(Inner { server, port: target.port, tls, login, guard }))
    }
}

impl Inner {
    async fn exchange(&self, request: Request<Body>) -> Result<Response<Limited<Incoming>>, BoxError> {
        let stream = timeout(CONNECT, self.connect()).await.map_err(|_| late("connection"))??;
        let stream = Rationed { stream, left: STREAM_MAX, frames: Frames::default() };
        let (mut send, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the stream.
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a tunnel broke");
            }
        });
        let (mut head, body) = request.into_parts();
        let base = self.server.path().trim_end_matches('/');
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = Uri::try_from(format!("{base}{path}"))?;
        let host = self.server.host_str().unwrap_or_default();
        head.headers.insert(HOST, HeaderValue::try_from(format!("{host}:{}", self.port))?);
        head.headers.extend(self.login.clone().map(|login| (AUTHORIZATION, login)));
        let answered = timeout(CONNECT, send.send_request(Request::from_parts(head, body))).await;
        let response = answered.map_err(|_| late("answer"))??;
        Ok(response.map(|body| Limited::new(body, ANSWER_MAX)))
    }

    /// Literal addresses are nobody else's to judge.
    async fn connect(&self) -> Result<TlsStream<TcpStream>, BoxError> {
        self.guard.url(&self.server)?;
        let host = self.server.host_str().unwrap_or_default();
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let stream = match plain.parse() {
            Ok(ip) => TcpStream::connect(SocketAddr::new(ip, self.port)).await?,
            Err(_) => self.named(plain).await?,
        };
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(plain.to_owned())?;
        Ok(self.tls.connect(name, stream).await?)
    }

    async fn named(&self, name: &str) -> io::Result<TcpStream> {
        let mut reason = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.guard.resolve(name, self.port).await? {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }
}

/// A stream that ends with an error once more was read of it than it may bring.
struct Rationed<S> {
    stream: S,
    /// Bytes that may still come.
    left: usize,
    frames: Frames,
}

/// Where what comes is: in the head of an answer, and of one that is upgraded, in which part of which frame (RFC 6455, section 5.2).
#[derive(Debug)]
enum Frames {
    /// In a head: its first bytes, how many these are, and the length of its line.
    Head { beginning: [u8; 12], came: usize, line: usize },
    /// In the body of an answer that is not upgraded.
    Body,
    /// In the header of a frame: its bytes, and how many these are.
    Header { bytes: [u8; 14], came: usize },
    /// In a frame, which still has so many bytes.
    Payload(u64),
}

impl Default for Frames {
    fn default() -> Self {
        Self::Head { beginning: [0; 12], came: 0, line: 0 }
    }
}

impl Frames {
    const BEGIN: Self = Self::Header { bytes: [0; 14], came: 0 };

    /// Goes on by what has come; the frames whose headers ended in it.
    fn count(&mut self, mut data: &[u8]) -> usize {
        let mut frames = 0;
        while let Some((byte, rest)) = data.split_first() {
            match self {
                Self::Body => break,
                Self::Payload(left) => {
                    let taken = usize::try_from(*left).map_or(data.len(), |left| left.min(data.len()));
                    *left -= taken as u64;
                    data = &data[taken..];
                    if *left == 0 {
                        *self = Self::BEGIN;
                    }
                    continue;
                }
                Self::Header { bytes, came } => {
                    bytes[*came] = *byte;
                    *came += 1;
                    if let Some(length) = payload(&bytes[..*came]) {
                        frames += 1;
                        *self = if length == 0 { Self::BEGIN } else { Self::Payload(length) };
                    }
                }
                Self::Head { beginning, came, line } => match byte {
                    b'\n' if *line == 0 && *came > 0 => {
                        *self = match &beginning[9..] {
                            b"101" => Self::BEGIN,
                            // The answer is still to come.
                            [b'1', ..] => Self::default(),
                            _ => Self::Body,
                        }
                    }
                    b'\n' => *line = 0,
                    b'\r' => {}
                    _ => {
                        if let Some(place) = beginning.get_mut(*came) {
                            *place = *byte;
                            *came += 1;
                        }
                        *line += 1;
                    }
                },
            }
            data = rest;
        }
        frames
    }
}

/// How long the payload is that follows a header; nothing while that is not whole.
fn payload(header: &[u8]) -> Option<u64> {
    let second = *header.get(1)?;
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    if header.len() < 2 + extended + mask {
        return None;
    }
    let long = || header[2..2 + extended].iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    Some(if extended == 0 { u64::from(second & 0x7f) } else { long() })
}

impl<S: AsyncRead + Unpin> AsyncRead for Rationed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let Self { left, frames, .. } = &mut *self;
        let read = buffer.filled().get(before..).unwrap_or_default();
        match left.checked_sub(read.len() + frames.count(read).saturating_mul(FRAME)) {
            Some(rest) => *left = rest,
            None => return Poll::Ready(Err(io::Error::other("more came through a tunnel than is read of one"))),
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rationed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn late(what: &str) -> BoxError {
    format!("no {what} within {} s", CONNECT.as_secs()).into()
}

impl Service<Request<Body>> for Tunnel {
    type Response = Response<Limited<Incoming>>;
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

#[cfg(test)]
mod tests;

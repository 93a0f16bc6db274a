//! An HTTP/1.1 client for untrusted servers.
//!
//! HTTP/1.1 to servers that somebody else named. What they send is counted where it comes in, below TLS: an answer need not
//! have an end, nor a beginning (any number of 1xx may come before it, RFC 9110 section 15.2), and each byte takes time.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use http::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use http::uri::Scheme;
use http::{Method, Request, StatusCode, Uri, response};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::legacy::{self, Client as Pool};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tower::{BoxError, Service};

use super::{Guard, lookup};

/// How a client connects.
pub struct ClientSettings {
    /// What judges the addresses of names; literal ones are judged by whoever asks, see [`Guard::url`].
    pub guard: Option<Guard>,
    /// Port of the URLs that are asked for.
    pub port: u16,
    /// What the host's name was resolved to, where it was before; empty: it is resolved for each connection.
    pub addresses: Vec<SocketAddr>,
    /// Authorities, and what else TLS goes by.
    pub tls: rustls::ClientConfig,
    /// Until a connection stands, with its TLS.
    pub connect_timeout: Duration,
    /// Proxies to go by; `None`: none, whatever the environment says.
    pub proxies: Option<Matcher>,
    /// How long a connection is kept for another request.
    pub keep: Duration,
    /// `User-Agent`.
    pub user_agent: HeaderValue,
    /// Bytes that may come for one request, with heads and TLS.
    pub most: usize,
}

/// A client with one exchange at a time.
pub struct OutboundClient {
    pool: Pool<Connect, Full<Bytes>>,
    user_agent: HeaderValue,
    proxies: Option<Arc<Matcher>>,
    meter: Arc<ExchangeMeter>,
}

/// There is no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// No URL that HTTP can ask for.
    #[error("that is not a URL that can be fetched")]
    Url,
    /// The answer was not there in time.
    #[error("it took too long")]
    Timeout,
    /// No connection, or no answer on it.
    #[error("error sending request")]
    Request(#[source] legacy::Error),
    /// The connection broke in the body.
    #[error("error reading the answer")]
    Body(#[source] hyper::Error),
}

impl OutboundError {
    /// Whether it is only that something took too long.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout) || self.io_kind() == Some(io::ErrorKind::TimedOut)
    }

    /// Whether no connection came to be.
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_connect())
    }

    /// What the operating system, or who counts, says.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        let mut next = self.source();
        while let Some(error) = next {
            if let Some(io) = error.downcast_ref::<io::Error>() {
                return Some(io.kind());
            }
            next = error.source();
        }
        None
    }
}

/// An answer, of which the body is still to come.
pub struct OutboundResponse {
    head: response::Parts,
    body: Incoming,
    deadline: Option<Instant>,
    meter: Arc<ExchangeMeter>,
}

impl OutboundClient {
    /// Connects to nobody yet.
    pub fn new(settings: ClientSettings) -> Self {
        let ClientSettings { guard, port, addresses, tls, connect_timeout, proxies, keep, user_agent, most } = settings;
        let proxies = proxies.map(Arc::new);
        let meter = Arc::new(ExchangeMeter { most, read: AtomicUsize::new(0) });
        let mut tcp = HttpConnector::new_with_resolver(RequestResolver { guard, port, addresses });
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let way = Connector { direct: Counting { tcp, meter: meter.clone() }, proxies: proxies.clone() };
        let https =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(way);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(keep)
            .pool_timer(TokioTimer::new())
            .build(Connect { https, timeout: connect_timeout });
        Self { pool, user_agent, proxies, meter }
    }

    /// Asks, and waits for the head of the answer. The body is to be there `within` the same time, if there is one.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn send(
        &self,
        method: Method,
        url: &Url,
        fields: HeaderMap,
        body: Bytes,
        within: Option<Duration>,
    ) -> Result<OutboundResponse, OutboundError> {
        let (uri, login) = target(url).ok_or(OutboundError::Url)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(USER_AGENT, self.user_agent.clone());
        headers.extend(login.map(|login| (AUTHORIZATION, login)));
        // With TLS it goes to the proxy alone, when the tunnel is asked for.
        let proxy = self.proxies.as_ref().filter(|_| uri.scheme() == Some(&Scheme::HTTP));
        let proxy = proxy.and_then(|proxies| proxies.intercept(&uri));
        headers.extend(proxy.and_then(|proxy| Some((PROXY_AUTHORIZATION, proxy.basic_auth()?.clone()))));
        headers.extend(fields);
        self.meter.read.store(0, Ordering::Relaxed);
        let deadline = within.map(|within| Instant::now() + within);
        let asked = self.pool.request(request).map_err(OutboundError::Request);
        let answer = match deadline {
            Some(deadline) => timeout_at(deadline, asked).await.map_err(|_| OutboundError::Timeout)??,
            None => asked.await?,
        };
        let (head, body) = answer.into_parts();
        Ok(OutboundResponse { head, body, deadline, meter: self.meter.clone() })
    }
}

/// What is asked for, and the login that the URL has.
fn target(url: &Url) -> Option<(Uri, Option<HeaderValue>)> {
    let mut plain = url.clone();
    plain.set_fragment(None);
    let mut login = None;
    if !url.username().is_empty() || url.password().is_some() {
        let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
        let pair = [decoded(url.username()), decoded(url.password().unwrap_or_default())].join(&b':');
        let mut value =
            HeaderValue::try_from(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))).ok()?;
        value.set_sensitive(true);
        login = Some(value);
        plain.set_username("").ok()?;
        plain.set_password(None).ok()?;
    }
    Some((plain.as_str().parse().ok()?, login))
}

impl OutboundResponse {
    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Its fields.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Length of its body in bytes, when that is known.
    pub fn content_length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Its body may be of any length; whoever reads it counts.
    pub fn of_any_length(self) -> Self {
        self.meter.read.store(LIFTED, Ordering::Relaxed);
        self
    }

    /// The next bytes of the body; `None` at its end.
    ///
    /// # Errors
    ///
    /// When the connection breaks, or it took too long.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, OutboundError> {
        loop {
            let next = self.body.frame();
            let next = match self.deadline {
                Some(deadline) => timeout_at(deadline, next).await.map_err(|_| OutboundError::Timeout)?,
                None => next.await,
            };
            match next {
                None => return Ok(None),
                Some(frame) => {
                    // Trailers are nobody's.
                    if let Ok(data) = frame.map_err(OutboundError::Body)?.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

/// What came for the request under way.
struct ExchangeMeter {
    most: usize,
    read: AtomicUsize,
}

/// In place of a count: nothing is counted.
const LIFTED: usize = usize::MAX;

impl ExchangeMeter {
    fn count(&self, bytes: usize) -> io::Result<()> {
        let read = self.read.load(Ordering::Relaxed);
        if read == LIFTED {
            return Ok(());
        }
        let read = read.saturating_add(bytes).min(LIFTED - 1);
        self.read.store(read, Ordering::Relaxed);
        if read <= self.most {
            return Ok(());
        }
        Err(io::Error::other(format!("more than {} KiB came in answer to one request", self.most >> 10)))
    }
}

/// Resolves the name that is asked for.
#[derive(Clone)]
struct RequestResolver {
    guard: Option<Guard>,
    port: u16,
    addresses: Vec<SocketAddr>,
}

impl Service<Name> for RequestResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let Self { guard, port, addresses } = self.clone();
        async move {
            let found = match guard {
                _ if !addresses.is_empty() => addresses,
                Some(guard) => guard.resolve(name.as_str(), port).await?,
                None => lookup(name.as_str(), port).await?,
            };
            Ok(found.into_iter())
        }
        .boxed()
    }
}

/// Connects, and counts what comes.
#[derive(Clone)]
struct Counting {
    tcp: HttpConnector<RequestResolver>,
    meter: Arc<ExchangeMeter>,
}

impl Service<Uri> for Counting {
    type Response = TokioIo<MeteredStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (connected, meter) = (self.tcp.call(to), self.meter.clone());
        async move { Ok(TokioIo::new(MeteredStream { stream: connected.await?.into_inner(), meter, proxied: false })) }
            .boxed()
    }
}

/// Connects, by a proxy where one is to be gone by.
#[derive(Clone)]
struct Connector {
    direct: Counting,
    proxies: Option<Arc<Matcher>>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<MeteredStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.as_ref().and_then(|proxies| proxies.intercept(&to)) else {
            return self.direct.call(to);
        };
        let mut direct = self.direct.clone();
        async move {
            if proxy.uri().scheme() != Some(&Scheme::HTTP) {
                return Err("the proxy is to be named as http://HOST:PORT: no other way to it is supported".into());
            }
            if to.scheme() == Some(&Scheme::HTTPS) {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
                if let Some(login) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(login.clone());
                }
                return Ok(tunnel.call(to).await?);
            }
            let mut connected = direct.call(proxy.uri().clone()).await?;
            connected.inner_mut().proxied = true;
            Ok(connected)
        }
        .boxed()
    }
}

/// A connection within its time.
#[derive(Clone)]
struct Connect {
    https: HttpsConnector<Connector>,
    timeout: Duration,
}

impl Service<Uri> for Connect {
    type Response = <HttpsConnector<Connector> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connected = timeout(self.timeout, self.https.call(to));
        async move { connected.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? }.boxed()
    }
}

struct MeteredStream {
    stream: TcpStream,
    meter: Arc<ExchangeMeter>,
    /// It leads to a proxy, which is asked for whole URLs.
    proxied: bool,
}

impl Connection for MeteredStream {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.proxied)
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match self.meter.count(buffer.filled().len() - before) {
            Ok(()) => read,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;

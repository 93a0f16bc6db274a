//! HTTP/2 over TLS (or plain, for etcd), as little of it as a load needs.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;

/// Where to connect to, and as whom.
pub struct Server {
    address: SocketAddr,
    tls: Option<TlsConnector>,
}

/// One connection. Clones share it.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    base: String,
}

impl Server {
    /// `folder` has ca.pem and admin.pem; `-`: without TLS.
    pub fn new(address: &str, folder: &str) -> Result<Self> {
        let tls = if folder == "-" { None } else { Some(connector(Path::new(folder))?) };
        Ok(Self { address: address.parse()?, tls })
    }

    pub async fn connect(&self) -> Result<Client> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let tls = self.tls.as_ref().ok_or("no certificates were given")?;
        let stream = tls.connect(ServerName::from(self.address.ip()), stream).await?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(Client { sender, base: format!("https://{}", self.address) })
    }

    pub async fn connect_plain(&self) -> Result<Client> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Client { sender, base: format!("http://{}", self.address) })
    }
}

fn connector(folder: &Path) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&fs::read(folder.join("ca.pem"))?)?)?;
    let admin = fs::read(folder.join("admin.pem"))?;
    let certificate = CertificateDer::from_pem_slice(&admin)?;
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], PrivateKeyDer::from_pem_slice(&admin)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Client {
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let mut sender = self.sender.clone();
        sender.ready().await?;
        Ok(sender.send_request(request).await?)
    }

    fn read(&self, path: &str, accept: &str) -> Result<Request<Full<Bytes>>> {
        Ok(Request::get(format!("{}{path}", self.base)).header("accept", accept).body(Full::default())?)
    }

    /// A whole body.
    pub async fn get(&self, path: &str, accept: &str) -> Result<Bytes> {
        let answer = self.send(self.read(path, accept)?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(format!("GET {path}: {status}").into()) }
    }

    /// The length of a body that is read and not kept.
    pub async fn drain(&self, path: &str, accept: &str) -> Result<usize> {
        let mut body = self.send(self.read(path, accept)?).await?.into_body();
        let mut size = 0;
        while let Some(frame) = body.frame().await {
            size += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(size)
    }

    /// The body of a watch.
    pub async fn open(&self, path: &str) -> Result<Incoming> {
        let answer = self.send(self.read(path, "application/json")?).await?;
        let status = answer.status();
        if status.is_success() { Ok(answer.into_body()) } else { Err(format!("GET {path}: {status}").into()) }
    }

    pub async fn expect(&self, method: &str, path: &str, media: &str, body: Bytes, status: u16) -> Result<()> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", media)
            .body(Full::new(body))?;
        let answer = self.send(request).await?;
        let found = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        if found == status {
            return Ok(());
        }
        Err(format!("{method} {path}: {found} {}", String::from_utf8_lossy(&text[..text.len().min(400)])).into())
    }

    /// One unary call; the answer is checked and thrown away.
    pub async fn grpc(&self, path: &str, message: Bytes) -> Result<()> {
        let request = Request::post(format!("{}{path}", self.base))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(message))?;
        let body = self.send(request).await?.into_body().collect().await?;
        let status = body.trailers().and_then(|trailers| trailers.get("grpc-status")).map(|status| status.as_bytes());
        if status == Some(b"0") { Ok(()) } else { Err(format!("{path}: grpc-status {status:?}").into()) }
    }
}

/// Calls back for each line of a body until it ends or nobody listens.
pub async fn lines(mut body: Incoming, mut line: impl FnMut() -> bool) {
    while let Some(Ok(frame)) = body.frame().await {
        let count = frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
        if !(0..count).all(|_| line()) {
            return;
        }
    }
}

/// etcd's `PutRequest` with key (field 1) and value (field 2), framed for gRPC.
pub fn grpc_put(key: &[u8], value: &[u8]) -> Bytes {
    let mut message = BytesMut::new();
    for (tag, bytes) in [(0x0a, key), (0x12, value)] {
        message.put_u8(tag);
        let mut length = bytes.len();
        while length >= 0x80 {
            message.put_u8((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.put_u8(length as u8);
        message.put_slice(bytes);
    }
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put(message);
    framed.freeze()
}

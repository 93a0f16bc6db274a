//! Streams to a pod, through an API server that is played.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::cluster::workload::kubeconfig;
use crate::outbound::Allowed;

const PORT: u16 = 2379;

/// What an API server does with the first request of a connection.
#[derive(Clone)]
enum Played {
    /// It says that there is no such pod.
    Refuses,
    /// It upgrades it, and sends back what comes in.
    Echoes,
    /// It upgrades it, and sends a message that does not end. It counts the bytes that it got rid of.
    Floods(Arc<AtomicUsize>),
    /// It upgrades it, and sends frames with nothing in them. It counts those that it got rid of.
    Chatters(Arc<AtomicUsize>),
}

/// Bytes of the message that does not end: less than what the library gathers.
const FLOOD: usize = 32 << 20;
/// Frames with nothing in them: fewer bytes than may come.
const CHATTER: usize = 1_500_000;

/// An API server. Where it is, and its authority.
async fn server(played: Played) -> (SocketAddr, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let own = KeyPair::generate().unwrap();
    let issuer = Issuer::new(params, key);
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&own, &issuer).unwrap();
    let own = rustls_pki_types::PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let tls = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], own)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(Arc::new(tls.clone()));
            let played = played.clone();
            tokio::spawn(async move {
                // Whoever hangs up ends it.
                if let Ok(stream) = acceptor.accept(stream).await {
                    drop(serve(stream, played).await);
                }
            });
        }
    });
    (address, STANDARD.encode(authority.pem()))
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, played: Played) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("GET /api/v1/namespaces/kube-system/pods/etcd-a/portforward?&ports=2379 "), "{head}");
    assert!(head.contains("authorization: Bearer t"), "{head}");
    if matches!(played, Played::Refuses) {
        let answer = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no such pod","reason":"NotFound","code":404}"#;
        let head = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        return stream.write_all(head.as_bytes()).await;
    }
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
    let key = field("sec-websocket-key").unwrap();
    let accept = STANDARD.encode(Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11")));
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {accept}\r\n\
         sec-websocket-protocol: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    let [low, high] = PORT.to_le_bytes();
    for channel in [0, 1] {
        stream.write_all(&[0x82, 3, channel, low, high]).await?;
    }
    if let Played::Floods(sent) = played {
        let piece = vec![0; 64 << 10];
        // The first piece of a message, then further ones, and never the last.
        let mut kind = 0x02;
        while sent.load(Ordering::Relaxed) < FLOOD {
            stream.write_all(&[kind, 127]).await?;
            stream.write_all(&(piece.len() as u64).to_be_bytes()).await?;
            stream.write_all(&piece).await?;
            sent.fetch_add(piece.len(), Ordering::Relaxed);
            kind = 0;
        }
        return Ok(());
    }
    if let Played::Chatters(sent) = played {
        let frames = [0x82, 0].repeat(1000);
        while sent.load(Ordering::Relaxed) < CHATTER {
            stream.write_all(&frames).await?;
            sent.fetch_add(frames.len() / 2, Ordering::Relaxed);
        }
        return Ok(());
    }
    loop {
        // Short frames, which are masked.
        let (_, length) = (stream.read_u8().await?, usize::from(stream.read_u8().await? & 0x7f));
        let mut mask = [0; 4];
        stream.read_exact(&mut mask).await?;
        let mut data = vec![0; length];
        stream.read_exact(&mut data).await?;
        let data: Vec<u8> = data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        stream.write_all(&[0x82, u8::try_from(data.len()).unwrap()]).await?;
        stream.write_all(&data).await?;
    }
}

fn tunnel(address: SocketAddr, authority: &str, allow: &[&str]) -> Api<Pod> {
    let text = format!(
        "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'https://{address}', certificate-authority-data: {authority}}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\n"
    );
    let allow: Vec<Allowed> = allow.iter().map(|text| text.parse().unwrap()).collect();
    let target = kubeconfig::read(text.as_bytes()).unwrap();
    Api::namespaced(Client::new(Tunnel::new(&target, Guard::new("cluster.allow", allow)), "default"), "kube-system")
}

#[tokio::test]
async fn a_stream_goes_to_a_pod_and_back() {
    let (address, authority) = server(Played::Echoes).await;
    let pods = tunnel(address, &authority, &["127.0.0.1/32"]);
    let mut ports = pods.portforward("etcd-a", &[PORT]).await.unwrap();
    let mut stream = ports.take_stream(PORT).unwrap();
    for text in ["ping", "pong"] {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut back = vec![0; text.len()];
        tokio::time::timeout(Duration::from_secs(120), stream.read_exact(&mut back)).await.unwrap().unwrap();
        assert_eq!(back, text.as_bytes());
    }
}

#[tokio::test]
async fn a_message_that_does_not_end_is_cut_off() {
    let sent = Arc::new(AtomicUsize::new(0));
    let (address, authority) = server(Played::Floods(sent.clone())).await;
    let pods = tunnel(address, &authority, &["127.0.0.1/32"]);
    let mut ports = pods.portforward("etcd-a", &[PORT]).await.unwrap();
    let mut stream = ports.take_stream(PORT).unwrap();
    let mut all = Vec::new();
    // The stream ends, in whatever way.
    drop(tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut all)).await.expect("it ends"));
    assert!(all.is_empty());
    assert!(sent.load(Ordering::Relaxed) < FLOOD, "all of it was read");
}

#[tokio::test]
async fn frames_with_nothing_in_them_are_cut_off() {
    let sent = Arc::new(AtomicUsize::new(0));
    let (address, authority) = server(Played::Chatters(sent.clone())).await;
    let pods = tunnel(address, &authority, &["127.0.0.1/32"]);
    let mut ports = pods.portforward("etcd-a", &[PORT]).await.unwrap();
    let mut stream = ports.take_stream(PORT).unwrap();
    let mut all = Vec::new();
    drop(tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut all)).await.expect("it ends"));
    assert!(all.is_empty());
    assert!(sent.load(Ordering::Relaxed) < CHATTER, "all of them were read");
}

#[test]
fn frames_are_counted_wherever_they_are_cut() {
    let upgraded = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n";
    let long = |length: u16| [&[0x82, 126][..], &length.to_be_bytes(), &vec![0; usize::from(length)]].concat();
    let longer = [&[0x82, 127][..], &70_000u64.to_be_bytes(), &vec![b'\n'; 70_000]].concat();
    let masked = [0x82, 0x81, 1, 2, 3, 4, 5];
    let frames =
        [&[0x82, 0][..], &[0x89, 1, 7], &long(300), &longer, &masked, &[0x82, 0xfe, 0, 0, 1, 2, 3, 4]].concat();
    let whole = [&upgraded[..], &frames].concat();
    for piece in [1, 2, 3, 7, 1000, whole.len()] {
        let mut counted = Frames::default();
        assert_eq!(whole.chunks(piece).map(|piece| counted.count(piece)).sum::<usize>(), 6, "{piece}");
    }
    // Line ends without a carriage return are taken, too; what is no stream has no frames.
    for (head, wanted) in [("\nHTTP/1.1 101 x\na: b\n\n", 1), ("HTTP/1.1 200 OK\r\n\r\n", 0)] {
        assert_eq!(Frames::default().count(&[head.as_bytes(), &[0x82, 0]].concat()), wanted, "{head:?}");
    }
}

#[tokio::test]
async fn what_is_refused_is_told() {
    let (address, authority) = server(Played::Refuses).await;
    let refused = |allow: &'static [&'static str], authority: String| async move {
        let pods = tunnel(address, &authority, allow);
        pods.portforward("etcd-a", &[PORT]).await.err().unwrap().to_string()
    };
    let allowed: &[&str] = &["127.0.0.1/32"];
    let told = refused(allowed, authority.clone()).await;
    assert!(told.contains("no such pod"), "{told}");
    // An address of the appliance's own is judged here as everywhere.
    let judged = refused(&[], authority).await;
    assert!(judged.contains("cluster.allow"), "{judged}");
    let (_, other) = server(Played::Refuses).await;
    let believed = refused(allowed, other).await;
    assert!(believed.contains("certificate"), "{believed}");
}

//! The HTTPS listener with real clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::pki::{self, Pki};

async fn client(endpoint: &str, ca: &str, credential: &pki::Credential) -> kube::Client {
    let config = Kubeconfig::from_yaml(&pki::kubeconfig(endpoint, ca, "user", credential)).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

async fn code(client: &kube::Client, at: &str) -> Result<u16, kube::Error> {
    let request = http::Request::get(at).body(kube::client::Body::empty()).unwrap();
    client.send(request).await.map(|response| response.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_say_who_calls() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let ours = Pki::open(&folder.path().join("a"), &[]).unwrap();
    let theirs = Pki::open(&folder.path().join("b"), &[]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = format!("https://{address}");
    let shutdown = rig.api.shutdown().clone();
    let router =
        rig.api.router().merge(Router::new().route("/agent/v1/hello", axum::routing::get(|| async { "hello" })));
    let serving = tokio::spawn(tls::serve(listener, ours.server_config().unwrap(), router, shutdown.clone()));

    let admin = client(&endpoint, ours.ca_pem(), &ours.authority().administrator(pki::CLIENT_LIFETIME).unwrap()).await;
    let guest =
        client(&endpoint, ours.ca_pem(), &ours.authority().client("eve", "guests", pki::CLIENT_LIFETIME).unwrap())
            .await;
    for (at, admin_code, guest_code) in
        [("/version", 200, 200), (SECRETS, 200, 403), ("/agent/v1/hello", 200, 200), ("/none", 404, 403)]
    {
        assert_eq!(code(&admin, at).await.unwrap(), admin_code, "{at}");
        assert_eq!(code(&guest, at).await.unwrap(), guest_code, "{at}");
    }
    // A certificate of another authority does not get through the handshake, nor does our server to its friends.
    let stranger =
        client(&endpoint, ours.ca_pem(), &theirs.authority().administrator(pki::CLIENT_LIFETIME).unwrap()).await;
    assert!(code(&stranger, "/version").await.is_err());
    let fooled =
        client(&endpoint, theirs.ca_pem(), &ours.authority().administrator(pki::CLIENT_LIFETIME).unwrap()).await;
    assert!(code(&fooled, "/version").await.is_err());

    // HTTP without TLS is told so, as a kube-apiserver does it; other noise is not answered in HTTP, and harms nobody.
    for (request, wanted) in [
        (&b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"[..], Some("Client sent an HTTP request to an HTTPS server.\n")),
        (b"DELETE /api/v1/namespaces/a HTTP/1.0\r\n\r\n", Some("Client sent an HTTP request to an HTTPS server.\n")),
        (b"EHLO example.org\r\n\r\n", None),
    ] {
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(DEADLINE, plain.read_to_end(&mut answer)).await.unwrap().ok();
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(answer.starts_with("HTTP/1.0 400 Bad Request\r\n"), wanted.is_some(), "{answer}");
        assert!(answer.ends_with(wanted.unwrap_or_default()), "{answer}");
    }

    // A watch under way does not hold up the shutdown.
    let request = http::Request::get(format!("{SECRETS}?watch=true")).body(kube::client::Body::empty()).unwrap();
    let watching = admin.send(request).await.unwrap();
    shutdown.cancel();
    tokio::time::timeout(DEADLINE, watching.into_body().collect()).await.unwrap().ok();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap().unwrap();
    assert!(code(&admin, "/version").await.is_err());
}

/// Whether the server has closed a connection: it reads to the end.
async fn closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    // A reset is an end, too.
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_peers_are_dropped_while_others_are_served() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::open(&folder.path().join("a"), &[]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = rig.api.shutdown().clone();
    let short = Duration::from_secs(2);
    let patience = tls::PeerTimeouts { handshake: short, head: short, idle: short, ..tls::PeerTimeouts::default() };
    let limits = tls::Limits { patience, ..tls::Limits::default() };
    let serving = tokio::spawn(tls::serve_with(
        listener,
        pki.server_config().unwrap(),
        rig.api.router(),
        shutdown.clone(),
        limits,
    ));
    let mut slow = Vec::new();
    for start in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(start).await.unwrap();
            slow.push(stream);
        }
    }
    let admin = client(
        &format!("https://{address}"),
        pki.ca_pem(),
        &pki.authority().administrator(pki::CLIENT_LIFETIME).unwrap(),
    )
    .await;
    assert_eq!(code(&admin, SECRETS).await.unwrap(), 200);
    for stream in slow {
        assert!(closed(stream).await);
    }
    // A request's head that comes drop by drop, inside TLS.
    let mut roots = rustls::RootCertStore::empty();
    let ca = rustls_pki_types::pem::PemObject::from_pem_slice(pki.ca_pem().as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let plain = TcpStream::connect(address).await.unwrap();
    let mut tls = connector.connect("localhost".try_into().unwrap(), plain).await.unwrap();
    let dripping = async {
        for byte in b"GET /version HTTP/1.1\r\nX-Slow: ".iter().chain(std::iter::repeat(&b'x')) {
            if tls.write_all(&[*byte]).await.is_err() || tls.flush().await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, dripping).await.expect("the server gives up on it");
    assert_eq!(code(&admin, SECRETS).await.unwrap(), 200);
    shutdown.cancel();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap().unwrap();
}

/// TLS with the appliance and HTTP/2 on it; `credential` says who calls, none: nobody.
async fn h2<B>(
    address: SocketAddr,
    pki: &Pki,
    credential: Option<&pki::Credential>,
    window: u32,
) -> (SendRequest<B>, tokio::task::JoinHandle<hyper::Result<()>>)
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    use rustls_pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(PemObject::from_pem_slice(pki.ca_pem().as_bytes()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
    let mut config = match credential {
        None => builder.with_no_client_auth(),
        Some(credential) => {
            let chain = PemObject::from_pem_slice(credential.certificate.as_bytes()).unwrap();
            let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(credential.key.as_bytes());
            builder.with_client_auth_cert(vec![chain], key.unwrap()).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let plain = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), plain).await.unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

async fn ask(sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> http::Response<Incoming> {
    let request = http::Request::get(format!("https://localhost{path}")).body(Empty::new()).unwrap();
    tokio::time::timeout(DEADLINE, sender.send_request(request)).await.expect("an answer").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_of_an_answer_is_dropped() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::open(&folder.path().join("a"), &[]).unwrap();
    let administrator = pki.authority().administrator(pki::CLIENT_LIFETIME).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = rig.api.shutdown().clone();
    let short = Duration::from_secs(1);
    let patience = tls::PeerTimeouts { idle: short, newcomer: short, stall: short, ..tls::PeerTimeouts::default() };
    let limits = tls::Limits { patience, ..tls::Limits::default() };
    let serving = tokio::spawn(tls::serve_with(
        listener,
        pki.server_config().unwrap(),
        rig.api.router(),
        shutdown.clone(),
        limits,
    ));
    // Somebody who listens: his watch has nothing to say for longer than all of this takes.
    let (mut listens, _open) = h2(address, &pki, Some(&administrator), 65_535).await;
    let mut watch = ask(&mut listens, &format!("{SECRETS}?watch=true&resourceVersion=0")).await;
    // A window of nothing, and one that is too small for the answer; of nobody and of the administrator.
    for credential in [None, Some(&administrator)] {
        for window in [0, 1] {
            for paths in [&["/version"][..], &["/version"; 100][..]] {
                let (mut sender, ended) = h2(address, &pki, credential, window).await;
                let mut answers = Vec::new();
                for path in paths {
                    let request = http::Request::get(format!("https://localhost{path}")).body(Empty::<Bytes>::new());
                    let answer = tokio::time::timeout(DEADLINE, sender.send_request(request.unwrap())).await;
                    match answer.expect("an answer") {
                        Ok(answer) => answers.push(answer),
                        // It may be given up before all are asked for.
                        Err(error) => {
                            assert!(!answers.is_empty(), "{error}");
                            break;
                        }
                    }
                }
                assert!(answers.iter().all(|answer| answer.status() == 200));
                // Kept, and not read: what is dropped would be given up by the client.
                let ended = tokio::time::timeout(DEADLINE, ended).await;
                assert!(ended.is_ok(), "{window}, {}, {}: held for ever", credential.is_some(), paths.len());
            }
        }
    }
    // A deaf watch, beside requests that are answered at once all the time.
    rig.call("POST", SECRETS, &secret("told", &json!({"a": "b"}))).await.expect(201);
    let (mut sender, ended) = h2(address, &pki, Some(&administrator), 0).await;
    let _deaf = ask(&mut sender, &format!("{SECRETS}?watch=true")).await;
    let busy = async { while tokio::time::timeout(DEADLINE, head(&mut sender)).await.is_ok_and(|well| well) {} };
    tokio::time::timeout(DEADLINE, busy).await.expect("the deaf watch ends, whatever goes on beside it");
    tokio::time::timeout(DEADLINE, ended).await.expect("its connection, too").ok();
    // The watch that is read has gone on.
    let told = tokio::time::timeout(DEADLINE, watch.body_mut().frame()).await.expect("told").unwrap().unwrap();
    assert!(String::from_utf8_lossy(told.data_ref().unwrap()).contains("\"told\""));
    shutdown.cancel();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap().unwrap();
}

/// A stream is reset behind an answer that comes before its request is over, and who still sends loses the answer with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_told_once_the_body_is_over() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::open(&folder.path().join("a"), &[]).unwrap();
    let administrator = pki.authority().administrator(pki::CLIENT_LIFETIME).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = rig.api.shutdown().clone();
    let serving = tokio::spawn(tls::serve(listener, pki.server_config().unwrap(), rig.api.router(), shutdown.clone()));
    const PIECES: usize = 4;
    let sent = Arc::new(AtomicUsize::new(0));
    // Pieces that come slowly; after the last one nothing, or for ever nothing.
    let body = |ends: bool| {
        let sent = sent.clone();
        let pieces = futures::stream::unfold(0, move |number| {
            let sent = sent.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                sent.store(number, Ordering::Relaxed);
                match number {
                    PIECES if ends => None,
                    PIECES => std::future::pending().await,
                    _ => {
                        let piece = http_body::Frame::data(Bytes::from_static(b"{}\n"));
                        Some((Ok::<_, std::convert::Infallible>(piece), number + 1))
                    }
                }
            }
        });
        http_body_util::StreamBody::new(Box::pin(pieces))
    };
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    for (credential, path, wanted) in [(Some(&administrator), reviews, 400), (None, SECRETS, 401)] {
        let (mut sender, _open) = h2(address, &pki, credential, 65_535).await;
        let request = || {
            let request = http::Request::post(format!("https://localhost{path}"));
            request.header("impersonate-group", "g").header("content-type", "application/json")
        };
        for round in 0..20 {
            let asked = sender.send_request(request().body(body(true)).unwrap());
            let answer = tokio::time::timeout(DEADLINE, asked).await.expect("an answer").unwrap();
            assert_eq!(sent.load(Ordering::Relaxed), PIECES, "{path}, round {round}: cut off");
            assert_eq!(answer.status(), wanted, "{path}");
            let told = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(serde_json::from_slice::<Value>(&told).unwrap()["kind"], "Status");
        }
        // Who never ends it hears it all the same.
        let asked = sender.send_request(request().body(body(false)).unwrap());
        let answer = tokio::time::timeout(DEADLINE, asked).await.expect("an answer").unwrap();
        assert_eq!(answer.status(), wanted);
    }
    shutdown.cancel();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_broken_off_ends_its_connection_and_no_other() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::open(&folder.path().join("a"), &[]).unwrap();
    let administrator = pki.authority().administrator(pki::CLIENT_LIFETIME).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = rig.api.shutdown().clone();
    let serving = tokio::spawn(tls::serve(listener, pki.server_config().unwrap(), rig.api.router(), shutdown.clone()));
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "a".repeat(900_000)}});
    let maps = "/api/v1/namespaces/rack/configmaps";
    rig.call("POST", maps, &map).await.expect(201);
    let (mut listens, _open) = h2(address, &pki, Some(&administrator), 65_535).await;
    let mut watch = ask(&mut listens, &format!("{SECRETS}?watch=true")).await;
    let bytes = || -> usize {
        let lines =
            |text: String| text.lines().find_map(|line| line.strip_prefix("slipway_answer_bytes ")?.parse().ok());
        let mut registry = prometheus_client::registry::Registry::default();
        rig.api.inner.response_memory.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        lines(text).unwrap()
    };
    for at in [maps.to_owned(), path(maps, "a"), format!("{maps}?watch=true")] {
        let before = bytes();
        let (mut sender, ended) = h2(address, &pki, Some(&administrator), 1).await;
        let mut slow = ask(&mut sender, &at).await;
        assert_eq!(slow.body_mut().frame().await.unwrap().unwrap().into_data().unwrap().len(), 1, "{at}");
        eventually(async || bytes() > before + 800_000).await;
        rig.api.inner.response_memory.end_overdue(tokio::time::Instant::now() + Duration::from_secs(100));
        if at.ends_with("watch=true") {
            // It has sent what there was at first, and is to go on.
            drop((slow, sender));
        }
        tokio::time::timeout(DEADLINE, ended).await.expect("its connection ends").ok();
        eventually(async || bytes() == before).await;
    }
    rig.call("POST", SECRETS, &secret("told", &json!({"a": "b"}))).await.expect(201);
    let told = tokio::time::timeout(DEADLINE, watch.body_mut().frame()).await.expect("told").unwrap().unwrap();
    assert!(String::from_utf8_lossy(told.data_ref().unwrap()).contains("\"told\""));
    shutdown.cancel();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap().unwrap();
}

/// Whether a request without a body in its answer is still answered.
async fn head(sender: &mut SendRequest<Empty<Bytes>>) -> bool {
    let request = http::Request::head("https://localhost/version").body(Empty::new()).unwrap();
    sender.ready().await.is_ok() && sender.send_request(request).await.is_ok()
}

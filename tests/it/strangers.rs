//! Strangers do their worst to the API's port: ten of them, or one from as many addresses as there are connections. Who has
//! shown who they are gets on all the same, and so does a known host's agent, which has nothing to show but its address.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::join_all;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::config::Kubeconfig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::process::machine::{self, Machine};
use crate::process::{self, Appliance, DEADLINE, until};

/// Where the administrator comes from.
const ADMIN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 20);
/// Strangers, and the connections that each of them wants.
const STRANGERS: u8 = 10;
const EACH: usize = 120;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// TLS to the appliance: as the administrator, as nobody.
struct Keys {
    admin: TlsConnector,
    nobody: TlsConnector,
}

impl Keys {
    async fn of(appliance: &Appliance) -> Self {
        let config = Kubeconfig::from_yaml(&appliance.kubeconfig().await).unwrap();
        let decode = |text: &Option<String>| STANDARD.decode(text.as_deref().unwrap()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        for certificate in CertificateDer::pem_slice_iter(&decode(&cluster.certificate_authority_data)) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let user = config.auth_infos[0].auth_info.as_ref().unwrap();
        let chain = decode(&user.client_certificate_data);
        let chain = CertificateDer::pem_slice_iter(&chain).map(Result::unwrap).collect();
        let key = user.client_key_data.as_ref().map(|key| {
            use secrecy::ExposeSecret;
            STANDARD.decode(key.expose_secret()).unwrap()
        });
        let key = PrivateKeyDer::from_pem_slice(&key.unwrap()).unwrap();
        let builder = || rustls::ClientConfig::builder().with_root_certificates(roots.clone());
        let mut admin = builder().with_client_auth_cert(chain, key).unwrap();
        let mut nobody = builder().with_no_client_auth();
        admin.alpn_protocols = vec![b"h2".to_vec()];
        nobody.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { admin: TlsConnector::from(Arc::new(admin)), nobody: TlsConnector::from(Arc::new(nobody)) }
    }
}

async fn tcp(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

async fn tls(from: Ipv4Addr, to: SocketAddr, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    connector.connect(ServerName::try_from("127.0.0.1").unwrap(), tcp(from, to).await?).await
}

/// One connection of a stranger, held for as long as it can be.
async fn clutch(from: Ipv4Addr, to: SocketAddr, nobody: &TlsConnector, way: usize) -> Option<()> {
    match way % 4 {
        // Not a word.
        0 => drop(tcp(from, to).await.ok()?.read(&mut [0; 64]).await),
        // A handshake, and not a word.
        1 => drop(tls(from, to, nobody).await.ok()?.read(&mut [0; 64]).await),
        // A request's head, letter by letter.
        2 => {
            let mut stream = tls(from, to, nobody).await.ok()?;
            stream.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.ok()?;
            while timeout(process::PAUSE, stream.read(&mut [0; 64])).await.is_err() {
                stream.write_all(b"a").await.ok()?;
            }
        }
        // Requests whose answers are not taken.
        _ => {
            let stream = tls(from, to, nobody).await.ok()?;
            let mut builder = http2::Builder::new(TokioExecutor::new());
            let handshake = builder.initial_stream_window_size(0).handshake(TokioIo::new(stream)).await;
            let (mut sender, connection) = handshake.ok()?;
            let asking = async {
                let mut answers = Vec::new();
                for _ in 0..20 {
                    let request = Request::get("https://127.0.0.1/version").body(Full::<Bytes>::default()).unwrap();
                    answers.push(sender.send_request(request).await);
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                _ = connection => {}
                () = asking => {}
            }
        }
    }
    Some(())
}

/// This process is all of the strangers, and has descriptors for their connections.
fn be_all_strangers() {
    slipway::appliance::install_tls_provider();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(16_384), hard).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_administrator_gets_on_while_ten_strangers_do_their_worst() {
    be_all_strangers();
    // With few descriptors there are few connections: the strangers want more than there are.
    let mut appliance = Appliance::limited("ulimit -n 2048").await;
    appliance.client().await;
    let keys = Arc::new(Keys::of(&appliance).await);
    let to = appliance.address;
    let ask = |sender: &http2::SendRequest<Full<Bytes>>, method: Method, path: String, body: String| {
        let mut sender = sender.clone();
        let request = Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
        let request = request.header("content-type", "application/json").body(Full::new(Bytes::from(body))).unwrap();
        async move {
            sender.ready().await.expect("the connection is there");
            sender.send_request(request).await.expect("an answer")
        }
    };
    let connect = || async {
        // The test itself may be too busy for a handshake in time.
        let stream = until("a connection", async || tls(ADMIN, to, &keys.admin).await.ok()).await;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    };
    // A connection from before, with a watch.
    let before = connect().await;
    let mut watch = ask(&before, Method::GET, format!("{MAPS}?watch=true&resourceVersion=0"), String::new()).await;

    let opened = Arc::new(AtomicUsize::new(0));
    let mut strangers = JoinSet::new();
    for number in 0..STRANGERS {
        for way in 0..EACH {
            let (keys, opened) = (keys.clone(), opened.clone());
            strangers.spawn(async move {
                loop {
                    clutch(Ipv4Addr::new(127, 0, 0, 2 + number), to, &keys.nobody, way).await;
                    opened.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            });
        }
    }
    let fds = format!("/proc/{}/fd", appliance.pid());
    let busy = async || (std::fs::read_dir(&fds).map_or(0, Iterator::count) > 150).then_some(());
    until("the strangers have what they get", busy).await;
    for round in 0..10 {
        let path = format!("{MAPS}?limit=1");
        let answers = join_all((0..3).map(|_| async {
            let sender = timeout(DEADLINE, connect()).await.expect("a connection in time");
            let answer = timeout(DEADLINE, ask(&sender, Method::GET, path.clone(), String::new())).await;
            answer.expect("an answer in time").status()
        }));
        assert!(answers.await.iter().all(|status| *status == StatusCode::OK), "round {round}");
    }
    let told = format!("{{\"metadata\":{{\"name\":\"told\"}},\"data\":{{\"a\":\"{}\"}}}}", "b".repeat(100_000));
    let written = timeout(DEADLINE, ask(&before, Method::POST, MAPS.to_owned(), told)).await.expect("in time");
    assert_eq!(written.status(), StatusCode::CREATED);
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("\"told\"") {
        let frame = timeout(DEADLINE, watch.body_mut().frame()).await.expect("in time").expect("it goes on").unwrap();
        text.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    println!("the strangers began {} further connections", opened.load(Ordering::Relaxed));
    assert!(appliance.runs() && !appliance.log().contains("panicked"), "{}", appliance.log());
    assert!(!appliance.log().contains("Too many open files"), "{}", appliance.log());
}

/// Connections that the listener has with 2048 descriptors, and a stranger's connections at once, which are more.
const CONNECTIONS: usize = 768;
const AT_ONCE: usize = 900;

/// Who is not let in gives up.
const WHILE: Duration = Duration::from_secs(10);
/// Long before connections without a request are closed, which is after three minutes.
const LONG_BEFORE: Duration = Duration::from_secs(20);

/// A token is good for many connections, and for all that there are from many addresses.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_one_token_leaves_connections_for_the_others() {
    be_all_strangers();
    let appliance = Appliance::limited("ulimit -n 2048").await;
    let keys = Keys::of(&appliance).await;
    until("the API answers", async || ask(ADMIN, appliance.address, &keys.admin, "").await).await;
    let token = appliance.slipway(&["token", "create", "greedy"]).await;
    assert!(token.status.success(), "{}", String::from_utf8_lossy(&token.stderr));
    let bearer = format!("Authorization: Bearer {}\r\n", String::from_utf8_lossy(&token.stdout).trim());
    // Each asks once, and says no more. There are some 760 places.
    let mut greedy = Vec::new();
    for batch in 0..24 {
        let from = Ipv4Addr::new(127, 0, 0, 30 + batch / 4);
        let all = (0..50).map(|_| timeout(WHILE, hold(from, appliance.address, &keys.nobody, &bearer)));
        let had: Vec<_> = join_all(all).await.into_iter().flatten().flatten().collect();
        let is_full = had.len() < 50;
        greedy.extend(had);
        if is_full && greedy.len() > 700 {
            break;
        }
    }
    assert!(greedy.len() > 700, "{}", greedy.len());
    for turn in 0..20 {
        let answer = ask(ADMIN, appliance.address, &keys.admin, "").await;
        assert!(answer.is_some(), "the administrator was not answered, turn {turn}");
        let answer = ask(ADMIN, appliance.address, &keys.nobody, "").await;
        assert!(answer.is_some(), "a probe was not answered, turn {turn}");
    }
}

/// A connection on which one request was answered, and which stays.
async fn hold(from: Ipv4Addr, to: SocketAddr, connector: &TlsConnector, more: &str) -> Option<TlsStream<TcpStream>> {
    let mut stream = tls(from, to, connector).await.ok()?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: x\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let read = timeout(DEADLINE, stream.read(&mut [0; 64])).await.ok()?.ok()?;
    (read > 0).then_some(stream)
}

/// The same, and away again.
async fn ask(from: Ipv4Addr, to: SocketAddr, connector: &TlsConnector, more: &str) -> Option<()> {
    timeout(LONG_BEFORE, hold(from, to, connector, more)).await.ok()?.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_hosts_agent_opens_its_session_while_strangers_have_an_address_for_each_connection() {
    be_all_strangers();
    let (mut appliance, machine) = Machine::beside("ulimit -n 2048").await;
    let keys = Arc::new(Keys::of(&appliance).await);
    let token = machine.token(&appliance).await;
    let to = appliance.address;
    let begun = Arc::new(AtomicUsize::new(0));
    let mut strangers = JoinSet::new();
    for way in 0..AT_ONCE {
        let (keys, begun) = (keys.clone(), begun.clone());
        strangers.spawn(async move {
            loop {
                let number = begun.fetch_add(1, Ordering::Relaxed);
                // Some are in the machines' own network. Most do not say a word: that is the fastest.
                let [high, low] = u16::try_from(number % 50_000).unwrap().to_be_bytes();
                let from = if number % 64 == 0 { [127, 0, 0, 100 + low / 3] } else { [127, 1, high, low.max(1)] };
                clutch(from.into(), to, &keys.nobody, [0, 0, 0, 0, 0, 1, 2, 3][way % 8]).await;
                tokio::task::yield_now().await;
            }
        });
    }
    let after = async |more: usize| {
        let wanted = begun.load(Ordering::Relaxed) + more;
        let what = format!("{more} further connections of strangers");
        until(&what, async || (begun.load(Ordering::Relaxed) >= wanted).then_some(())).await;
    };
    let call = async |method: Method, path: &str, bearer: &str, body: String| {
        // The machine of this test may be too busy for a handshake in time.
        let connect = async || tls(machine::ADDRESS, to, &keys.nobody).await.ok();
        let stream = until("a connection", connect).await;
        // A slow agent: as many come meanwhile as there are places, each from an address of its own.
        after(CONNECTIONS).await;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
        let request = request.header("content-type", "application/json").header("authorization", bearer);
        let answer = sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap());
        let answer = timeout(DEADLINE, answer).await.expect("an answer in time").expect("the connection is there");
        let status = answer.status();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_default())
    };
    after(2 * AT_ONCE).await;
    let (status, session) = call(Method::POST, "/agent/v1/session", "", Machine::hello(&token)).await;
    assert_eq!(status, StatusCode::OK, "{session}");
    let bearer = format!("Bearer {}", session["session"].as_str().unwrap());
    for round in 0..3 {
        let (status, step) = call(Method::GET, "/agent/v1/step", &bearer, String::new()).await;
        assert_eq!((status, &step["action"]), (StatusCode::OK, &"inspect".into()), "round {round}: {step}");
    }
    println!("the strangers began {} connections", begun.load(Ordering::Relaxed));
    assert!(appliance.runs() && !appliance.log().contains("panicked"), "{}", appliance.log());
}

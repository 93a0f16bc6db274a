//! Connections made by hand that mean harm, or are only clumsy, against the appliance as a process.
//!
//! Whatever comes: it answers others, it does not panic, and its memory is bounded and given back.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::process::{self, Appliance, DEADLINE, PAUSE};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Watches at once: so many connections with so many streams each. More are for other callers.
const CONNECTIONS: usize = 50;
const STREAMS: usize = 150;
/// What they may need all together, in KiB.
const WATCHES_MEMORY: u64 = 200_000;

/// A way to the API, as the administrator or as nobody.
struct Door {
    appliance: Appliance,
    admin: TlsConnector,
    nobody: TlsConnector,
}

impl Door {
    async fn new() -> Self {
        slipway::appliance::install_tls_provider();
        let appliance = Appliance::new().await;
        appliance.client().await;
        let config = Kubeconfig::from_yaml(&appliance.kubeconfig().await).unwrap();
        let decode = |text: &Option<String>| STANDARD.decode(text.as_deref().unwrap()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        for certificate in CertificateDer::pem_slice_iter(&decode(&cluster.certificate_authority_data)) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let roots = Arc::new(roots);
        let user = config.auth_infos[0].auth_info.as_ref().unwrap();
        let chain =
            CertificateDer::pem_slice_iter(&decode(&user.client_certificate_data)).map(Result::unwrap).collect();
        let key = user.client_key_data.as_ref().map(|key| {
            use secrecy::ExposeSecret;
            STANDARD.decode(key.expose_secret()).unwrap()
        });
        let key = PrivateKeyDer::from_pem_slice(&key.unwrap()).unwrap();
        let builder = || rustls::ClientConfig::builder().with_root_certificates(roots.clone());
        let mut admin = builder().with_client_auth_cert(chain, key).unwrap();
        admin.alpn_protocols = vec![b"h2".to_vec()];
        let nobody = builder().with_no_client_auth();
        Self { appliance, admin: TlsConnector::from(Arc::new(admin)), nobody: TlsConnector::from(Arc::new(nobody)) }
    }

    async fn tls(&self, connector: &TlsConnector) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.appliance.address).await.unwrap();
        connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap()
    }

    /// What comes back for these bytes on a connection of HTTP/1, until the server closes it or has answered.
    async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.tls(&self.nobody).await;
        // The server may answer and close before everything is sent.
        stream.write_all(bytes).await.ok();
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(Ok(count @ 1..)) = timeout(DEADLINE, stream.read(&mut buffer)).await {
            answer.extend_from_slice(&buffer[..count]);
            if answer.windows(4).any(|end| end == b"\r\n\r\n") {
                break;
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// An HTTP/2 connection of the administrator.
    async fn h2(&self) -> SendRequest<Full<Bytes>> {
        let stream = self.tls(&self.admin).await;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// It still answers, and nothing in it panicked.
    async fn is_well(&self) {
        let mut sender = self.h2().await;
        let answer = timeout(DEADLINE, send(&mut sender, Method::GET, "/readyz", "")).await.expect("it hangs");
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(!self.appliance.log().contains("panicked"), "{}", self.appliance.log());
    }

    /// Resident memory in KiB.
    fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most that was ever resident, in KiB.
    fn peak(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, key: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.appliance.pid())).unwrap();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Open sockets and files.
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.appliance.pid())).unwrap().count()
    }
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    method: Method,
    path: &str,
    body: &str,
) -> http::Response<Incoming> {
    sender.ready().await.unwrap();
    let request = Request::builder()
        .method(method)
        .uri(format!("https://127.0.0.1{path}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    sender.send_request(request).await.unwrap()
}

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !check() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_and_oversized_requests_get_an_answer_and_harm_nobody() {
    let door = Door::new().await;
    let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let many = "X-Filler: 0123456789012345678901234567890123456789\r\n".repeat(5000);
    for (bytes, status) in [
        ("\0\x01\x02garbage\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), "400"),
        (format!("GET /version HTTP/1.1\r\nHost: x\r\n{many}\r\n"), "431"),
        (format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(100_000)), "431"),
        (format!("{head}Content-Length: nonsense\r\n\r\n"), "400"),
        (format!("{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"), "400"),
        (format!("{head}Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"), "40"),
        // Nobody's body is not even waited for.
        (format!("{head}Content-Length: 1000000000000\r\n\r\n"), "40"),
        ("GET /api/v1/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "40"),
        ("GET /version%00%ff HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "40"),
    ] {
        let answer = door.raw(bytes.as_bytes()).await;
        let name = &bytes[..bytes.len().min(80)];
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")) || answer.starts_with(&format!("HTTP/1.0 {status}")),
            "{name:?}: {answer:?}"
        );
    }
    let before = door.memory();
    let mut sender = door.h2().await;
    for (body, status) in [
        (format!("{{\"metadata\":{{\"name\":\"x\"}},\"data\":{{\"a\":\"{}\"}}}}", "v".repeat(8_000_000)), 413),
        (format!("{{\"metadata\":{{\"name\":\"x\"}},\"x\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000)), 400),
    ] {
        let answer = send(&mut sender, Method::POST, MAPS, &body).await;
        assert_eq!(answer.status().as_u16(), status);
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(text["kind"], "Status", "{text}");
    }
    println!("memory before and after malformed requests: {before} and {} KiB", door.memory());
    door.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_never_finish_do_not_keep_others_out() {
    let door = Door::new().await;
    let (mut silent, mut slow, descriptors) = (Vec::new(), Vec::new(), door.descriptors());
    for _ in 0..300 {
        // Never says a word, and never finishes its handshake.
        silent.push(TcpStream::connect(door.appliance.address).await.unwrap());
    }
    for i in 0..300_usize {
        let mut stream = door.tls(&door.nobody).await;
        let text = "GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: ";
        stream.write_all(&text.as_bytes()[..i % text.len()]).await.unwrap();
        slow.push(stream);
    }
    door.is_well().await;
    // One letter after the other is still no request: the others are served meanwhile.
    for stream in &mut slow {
        stream.write_all(b"a").await.ok();
    }
    door.is_well().await;
    // Whoever never finishes a handshake is shown the door.
    for stream in &mut silent {
        let mut buffer = [0; 64];
        assert!(matches!(
            timeout(DEADLINE, stream.read(&mut buffer)).await.expect("it waits for ever"),
            Ok(0) | Err(_)
        ));
    }
    drop(slow);
    until("descriptors to be given back", || door.descriptors() <= descriptors + 5).await;
    door.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_watches_are_served_and_given_back() {
    let door = Door::new().await;
    let (before, descriptors) = (door.memory(), door.descriptors());
    let mut senders = join_all((0..CONNECTIONS).map(|_| door.h2())).await;
    let path = format!("{MAPS}?watch=true&resourceVersion=0");
    let mut watches = Vec::new();
    for sender in &mut senders {
        let opened = (0..STREAMS).map(|_| {
            let (mut sender, path) = (sender.clone(), path.clone());
            async move { send(&mut sender, Method::GET, &path, "").await }
        });
        watches.extend(join_all(opened).await);
    }
    let refused = watches.iter().filter(|watch| watch.status() != StatusCode::OK).count();
    assert_eq!(refused, 0, "watches that were refused");
    let one_more = send(&mut senders[0], Method::GET, &path, "").await;
    assert_eq!(one_more.status(), StatusCode::TOO_MANY_REQUESTS, "the share of others is kept");
    // Another caller gets theirs meanwhile, and is told as all are.
    let made = door.appliance.slipway(&["token", "create", "other", "--role", "view", "-o", "kubeconfig"]).await;
    let other = Kubeconfig::from_yaml(&String::from_utf8(made.stdout).unwrap()).unwrap();
    let other = kube::Config::from_custom_kubeconfig(other, &KubeConfigOptions::default()).await.unwrap();
    let other: Api<ConfigMap> = Api::default_namespaced(kube::Client::try_from(other).unwrap());
    let mut theirs = other.watch(&WatchParams::default(), "0").await.expect("another caller's watch").boxed();
    let during = door.memory();

    let api: Api<ConfigMap> = Api::default_namespaced(door.appliance.client().await);
    let map = serde_json::from_value(json!({"metadata": {"name": "told"}, "data": {"a": "b"}})).unwrap();
    api.create(&PostParams::default(), &map).await.unwrap();
    let told = join_all(watches.iter_mut().map(|watch| async {
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).contains("\"told\"") {
            match timeout(DEADLINE, watch.body_mut().frame()).await {
                Ok(Some(Ok(frame))) => text.extend_from_slice(&frame.into_data().unwrap_or_default()),
                _ => return false,
            }
        }
        true
    }))
    .await;
    assert_eq!(told.iter().filter(|told| !**told).count(), 0, "watches that were not told");
    let told = async {
        while let Some(event) = theirs.next().await {
            match event.expect("another caller's watch goes on") {
                WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("told") => return,
                WatchEvent::Error(error) => panic!("another caller's watch: {error:?}"),
                _ => {}
            }
        }
        panic!("another caller's watch ended");
    };
    timeout(DEADLINE, told).await.expect("another caller is told in time");
    let after = door.memory();
    println!("{} watches: {before} KiB before, {during} with them, {after} when all were told", watches.len());
    assert!(after < before + WATCHES_MEMORY, "{after} KiB");
    door.is_well().await;

    // Half of them go away without a word, the others with their connection.
    drop((watches, theirs));
    drop(senders);
    drop(other);
    until("descriptors to be given back", || door.descriptors() <= descriptors + 5).await;
    println!("{} KiB when they are gone", door.memory());
    door.is_well().await;
}

/// A stream of which nothing is read from some time on, and whose window of TCP is full then.
struct Deaf<S> {
    stream: S,
    deaf: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Deaf<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.deaf.load(Ordering::Relaxed) { Poll::Pending } else { Pin::new(&mut self.stream).poll_read(cx, buf) }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Deaf<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Watches that nobody reads: so many connections with so many streams each.
const DEAF_CONNECTIONS: usize = 10;
const DEAF_STREAMS: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_never_read_costs_no_memory() {
    let door = Door::new().await;
    let client = door.appliance.client().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let data = "v".repeat(10_000);
    for i in 0..100 {
        let map = json!({"metadata": {"name": format!("map-{i}")}, "data": {"a": data}});
        api.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }
    let before = door.memory();
    let mut asking = JoinSet::new();
    for _ in 0..DEAF_CONNECTIONS {
        let deaf = Arc::new(AtomicBool::new(false));
        let stream = Deaf { stream: door.tls(&door.admin).await, deaf: deaf.clone() };
        // Windows that hold back nothing: what is held back is held by the appliance.
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(16 << 20).initial_connection_window_size(1 << 30);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.ready().await.unwrap();
        deaf.store(true, Ordering::Relaxed);
        for _ in 0..DEAF_STREAMS {
            let mut sender = sender.clone();
            // A megabyte for each, at once.
            let path = format!("{MAPS}?watch=true");
            asking.spawn(async move { drop(send(&mut sender, Method::GET, &path, "").await) });
        }
    }
    let watches = DEAF_CONNECTIONS * DEAF_STREAMS;
    process::until("all watches to begin", async || {
        let request = Request::get("/metrics").body(Vec::new()).unwrap();
        let text = client.request_text(request).await.ok()?;
        let lines = text.lines().filter(|line| line.starts_with("apiserver_longrunning_requests{"));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
        (counts.sum::<usize>() >= watches).then_some(())
    })
    .await;
    // Until it takes no more.
    let (mut most, mut quiet) = (door.memory(), 0);
    until("its memory to settle", || {
        let now = door.memory();
        quiet = if now > most + 1000 { 0 } else { quiet + 1 };
        most = most.max(now);
        quiet > 40
    })
    .await;
    println!("{watches} deaf watches: {before} KiB before, {most} with them");
    assert!(most < before + 80 * watches as u64, "{} KiB each", (most - before) / watches as u64);
    door.is_well().await;
    drop(asking);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_agents_say_costs_nothing_before_they_are_known() {
    let door = Door::new().await;
    let before = door.peak();
    // Four megabytes that become a hundred times as large when they are read.
    let entries = "{},".repeat(1_300_000);
    let body = format!(r#"{{"step":"","succeeded":true,"message":"","inventory":{{"nics":[{entries}{{}}]}}}}"#);
    for path in ["result", "event", "log", "session"] {
        let head = format!("POST /agent/v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n");
        let bytes = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        for answer in join_all((0..4).map(|_| door.raw(bytes.as_bytes()))).await {
            // It may be gone with the connection, on which nobody read the rest.
            let status = if path == "session" { "HTTP/1.1 413" } else { "HTTP/1.1 401" };
            assert!(answer.is_empty() || answer.starts_with(status), "{path}: {answer}");
        }
    }
    let after = door.peak();
    println!("most memory before and after 16 reports of nobody: {before} and {after} KiB");
    assert!(after < before + 60_000, "{after} KiB");
    // A body that is announced and does not come holds its connection for a time, not for ever.
    let mut stream = door.tls(&door.nobody).await;
    let head =
        "POST /agent/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("it waits for ever").ok();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    door.is_well().await;
}

/// What packs well takes next to nothing on disk, and nobody holds it unpacked: a namespace of such objects costs as little
/// memory after a restart as before.
#[tokio::test]
async fn a_namespace_of_long_words_is_kept_packed() {
    const EACH: usize = 80;
    const KINDS: [(&str, &str); 5] = [
        ("metal3.io/v1alpha1", "DataImage"),
        ("metal3.io/v1alpha1", "BareMetalHost"),
        ("metal3.io/v1alpha1", "HardwareData"),
        ("v1", "ConfigMap"),
        ("v1", "Secret"),
    ];
    let mut door = Door::new().await;
    let word = "A".repeat(1_000_000);
    let mut sender = door.h2().await;
    let mut made = 0_u64;
    let empty = door.memory();
    for (version, kind) in KINDS {
        let plural = format!("{}s", kind.to_lowercase()).replace("hardwaredatas", "hardwaredata");
        let group = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
        for number in 0..EACH {
            // In what is the kind's own, and in what every kind has.
            let (word, said) = if number % 2 == 0 { (word.as_str(), "short") } else { ("short", &word[..250_000]) };
            let mut object = json!({
                "apiVersion": version, "kind": kind,
                "metadata": { "name": format!("n{number}"), "annotations": { "test.invalid/word": said } },
            });
            let (field, value) = match kind {
                "DataImage" => ("spec", json!({ "url": format!("http://10.0.0.1/{word}") })),
                "BareMetalHost" => (
                    "spec",
                    json!({ "online": false, "description": word,
                    "image": { "url": format!("http://10.0.0.1/{word}"), "checksum": "0".repeat(64) },
                    "rootDeviceHints": { "model": word } }),
                ),
                "HardwareData" => ("spec", json!({ "hardware": { "hostname": word } })),
                _ => ("data", json!({ "a": STANDARD.encode(word) })),
            };
            object[field] = value;
            let path = format!("{group}/namespaces/default/{plural}");
            let answer = send(&mut sender, Method::POST, &path, &object.to_string()).await;
            made += u64::from(answer.status() == StatusCode::CREATED);
            answer.into_body().collect().await.unwrap();
        }
    }
    assert!(made >= 2 * EACH as u64, "only {made} were taken: the test says nothing");
    drop(sender);
    door.is_well().await;
    let before = door.memory();
    door.appliance.restart(false).await;
    door.appliance.client().await;
    door.is_well().await;
    eprintln!("{empty} KiB empty, {before} KiB with {made} objects, {} KiB after a restart", door.memory());
    // Much less than all of the words; what the start took is given back meanwhile.
    until("the memory of the start is given back", || door.memory() < empty + 60_000).await;
}

/// Objects of a megabyte each.
const LARGE: usize = 48;
/// What readers of their lists may need all together, in KiB: less than two such lists as text.
const READERS_MEMORY: u64 = 90_000;
const HARDWARE: &str = "/apis/metal3.io/v1alpha1/namespaces/default/hardwaredata";

/// A list in a form for people.
async fn list(sender: &SendRequest<Full<Bytes>>, accept: &str, query: &str) -> http::Response<Incoming> {
    let mut sender = sender.clone();
    sender.ready().await.unwrap();
    let request = Request::get(format!("https://127.0.0.1{HARDWARE}?{query}")).header("accept", accept);
    let answer = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK, "{accept} {query}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_for_people_cost_no_more_memory_than_those_for_programs() {
    let door = Door::new().await;
    let mut sender = door.h2().await;
    let hostname = "A".repeat(1_040_000);
    for number in 0..LARGE {
        let object = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "metadata": {"name": format!("large-{number}")},
            "spec": {"hardware": {"hostname": hostname}},
        });
        let answer = send(&mut sender, Method::POST, HARDWARE, &object.to_string()).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let forms =
        [("application/yaml", ""), ("application/json", "pretty=true"), (table, "pretty=true&includeObject=Object")];
    let before = door.peak();
    let mut unread = Vec::new();
    for (accept, query) in forms.into_iter().cycle().take(12) {
        unread.push(list(&door.h2().await, accept, query).await);
    }
    let held = door.peak();
    let mut reading = JoinSet::new();
    for (accept, query) in forms.into_iter().cycle().take(6) {
        let sender = door.h2().await;
        reading.spawn(async move {
            let mut body = list(&sender, accept, query).await.into_body();
            let mut length = 0;
            while let Some(frame) = timeout(DEADLINE, body.frame()).await.expect("it hangs") {
                length += frame.unwrap().into_data().map_or(0, |data| data.len());
            }
            length
        });
    }
    for length in reading.join_all().await {
        assert!(length > LARGE * hostname.len(), "{length} bytes");
    }
    let after = door.peak();
    println!("most memory: {before} KiB before, {held} with 12 unread lists, {after} when 6 more were read");
    assert!(after < before + READERS_MEMORY, "{} KiB more", after - before);
    drop(unread);
    door.is_well().await;
}

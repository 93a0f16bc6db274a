//! What peers make the appliance hold in memory over HTTP/2: heads of requests that never end, what these were read from,
//! and answers that wait for a window. It is bounded for those who show nothing, and for those who show a token.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::config::Kubeconfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use secrecy::ExposeSecret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::process::{Appliance, DEADLINE};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Where people with a token come from, and the strangers: each has so many connections with so many streams.
const PEOPLE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 40);
const STRANGERS: u8 = 8;
const EACH: usize = 40;
const STREAMS: u32 = 250;
/// What all strangers may make it hold, in KiB, with what 320 connections need that say nothing.
const STRANGERS_MEMORY: u64 = 160_000;

/// An appliance, and ways to it.
struct Door {
    appliance: Appliance,
    connector: TlsConnector,
    token: String,
}

impl Door {
    async fn new() -> Self {
        slipway::appliance::install_tls_provider();
        let appliance = Appliance::new().await;
        appliance.client().await;
        let made = appliance.slipway(&["token", "create", "people", "--role", "edit", "-o", "kubeconfig"]).await;
        let config = Kubeconfig::from_yaml(&String::from_utf8(made.stdout).unwrap()).unwrap();
        let token = config.auth_infos[0].auth_info.as_ref().unwrap().token.as_ref().unwrap();
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        let pem = STANDARD.decode(cluster.certificate_authority_data.as_deref().unwrap()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let mut tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Self { token: token.expose_secret().to_owned(), appliance, connector: TlsConnector::from(Arc::new(tls)) }
    }

    async fn tls(&self, from: Ipv4Addr) -> std::io::Result<TlsStream<TcpStream>> {
        tls(from, self.appliance.address, &self.connector).await
    }

    /// A connection of somebody who has a token, with a window for answers.
    async fn h2(&self, from: Ipv4Addr, window: u32) -> SendRequest<Full<Bytes>> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(self.tls(from).await.unwrap())).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    fn request(&self, method: Method, path: &str, body: String) -> Request<Full<Bytes>> {
        let request = Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        request.header("content-type", "application/json").body(Full::new(Bytes::from(body))).unwrap()
    }

    /// Somebody with a token is answered.
    async fn answers(&self) {
        let asking = async {
            let mut sender = self.h2(PEOPLE, 65_535).await;
            sender.ready().await.unwrap();
            let answer = sender.send_request(self.request(Method::GET, MAPS, String::new())).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            answer.into_body().collect().await.expect("the whole answer");
        };
        timeout(DEADLINE, asking).await.expect("an answer in time");
    }

    /// The most that was ever resident, in KiB.
    fn peak(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.appliance.pid())).expect("it runs");
        let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

async fn tls(from: Ipv4Addr, to: SocketAddr, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    connector.connect(ServerName::try_from("127.0.0.1").unwrap(), socket.connect(to).await?).await
}

/// What strangers do to be kept in memory.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Heads with many fields, each of which is one byte on the wire.
    Fields,
    /// Heads with one long field.
    Long,
    /// Short heads, each read in one piece with much else.
    Padded,
    /// The same, whose requests end: what stays is in the table of the connection.
    Table,
    /// Answers, for which there is no window.
    Answers,
    /// A request's head that never ends, on HTTP/2.
    Half,
}

const WAYS: [Way; 6] = [Way::Fields, Way::Long, Way::Padded, Way::Table, Way::Answers, Way::Half];
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A string of HPACK, as it is (RFC 7541, section 5.2).
fn text(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match u8::try_from(text.len()) {
        Ok(short @ 0..127) => out.push(short),
        _ => {
            out.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                out.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            out.push(u8::try_from(rest).unwrap());
        }
    }
    out.extend(text);
    out
}

/// Method (an index of HPACK's static table), scheme, path, authority.
fn head(method: u8, path: &str) -> Vec<u8> {
    [vec![0x80 | method, 0x87, 0x04], text(path.as_bytes()), vec![0x01], text(b"a")].concat()
}

impl Way {
    /// All that is sent, with a ping at the end unless a head is not finished.
    fn bytes(self) -> Vec<u8> {
        let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // Windows of nothing.
        all.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
        let (get, post) = (head(2, "/version"), head(3, "/agent/v1/session"));
        for number in 0..STREAMS {
            let (flags, block) = match self {
                // Index 16 of the static table: accept-encoding.
                Self::Fields => (END_HEADERS, [post.clone(), vec![0x90; 200]].concat()),
                Self::Long => (END_HEADERS, [post.clone(), vec![0], text(b"x"), text(&[b'y'; 12_000])].concat()),
                Self::Padded => (END_HEADERS, [post.clone(), vec![0], text(b"x"), text(b"y")].concat()),
                Self::Table => {
                    let name = format!("x{number}");
                    (END_HEADERS | END_STREAM, [get.clone(), vec![0x40], text(name.as_bytes()), text(b"y")].concat())
                }
                Self::Answers => (END_HEADERS | END_STREAM, get.clone()),
                Self::Half => (0, [post.clone(), vec![0x90; 200]].concat()),
            };
            all.extend(frame(HEADERS, flags, 1 + 2 * number, &block));
            match self {
                Self::Half => return all,
                // Of a kind that nobody knows.
                Self::Padded | Self::Table => all.extend(frame(0xfa, 0, 0, &[0; 14_000])),
                _ => {}
            }
        }
        all.extend(frame(PING, 0, 0, &[0; 8]));
        all
    }
}

/// Sends all of it and says when the server has read it: it answers the ping, or has closed the connection.
async fn clutch(mut stream: TlsStream<TcpStream>, way: Way) -> Option<TlsStream<TcpStream>> {
    stream.write_all(&way.bytes()).await.ok()?;
    stream.flush().await.ok()?;
    if matches!(way, Way::Half) {
        return Some(stream);
    }
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.ok()?;
        if (head[3], head[4]) == (PING, 1) && payload == [0; 8] {
            return Some(stream);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_make_it_hold_no_more_than_their_bound_and_others_are_answered() {
    let door = Door::new().await;
    door.answers().await;
    let before = door.peak();
    let mut clutching = JoinSet::new();
    for number in 0..EACH {
        for host in 0..STRANGERS {
            let way = WAYS[(number + usize::from(host)) % WAYS.len()];
            let (to, connector) = (door.appliance.address, door.connector.clone());
            clutching.spawn(async move {
                let stream = tls(Ipv4Addr::new(127, 0, 0, 2 + host), to, &connector).await.ok()?;
                timeout(DEADLINE, clutch(stream, way)).await.expect("it is read, or closed")
            });
        }
        if number % 8 == 0 {
            door.answers().await;
        }
    }
    let all: Vec<_> = clutching.join_all().await.into_iter().collect();
    door.answers().await;
    let (after, kept) = (door.peak(), all.iter().flatten().count());
    println!("{before} KiB before, {after} KiB at most; {kept} of {} connections were let finish", all.len());
    assert!(after < before + STRANGERS_MEMORY, "{} KiB more", after - before);
    drop(all);
}

/// Objects that somebody with a token asks for and does not take: so many connections with so many of a megabyte each.
const READERS: u8 = 8;
const ANSWERS: usize = 150;
/// What they may make it hold, in KiB.
const READERS_MEMORY: u64 = 650_000;

#[tokio::test(flavor = "multi_thread")]
async fn who_has_a_token_cannot_make_it_hold_answers_without_end() {
    let door = Door::new().await;
    let map = serde_json::json!({"metadata": {"name": "large"}, "data": {"a": "A".repeat(1_000_000)}});
    let mut sender = door.h2(PEOPLE, 65_535).await;
    let made = sender.send_request(door.request(Method::POST, MAPS, map.to_string())).await.unwrap();
    assert_eq!(made.status(), StatusCode::CREATED);
    let before = door.peak();
    let path = format!("{MAPS}/large");
    let (mut held, mut senders, mut answered) = (Vec::new(), Vec::new(), 0);
    for reader in 0..READERS {
        let mut sender = door.h2(Ipv4Addr::new(127, 0, 0, 2 + reader % 4), 0).await;
        for _ in 0..ANSWERS {
            // Its connection may have to go.
            if sender.ready().await.is_err() {
                break;
            }
            let answer = sender.send_request(door.request(Method::GET, &path, String::new()));
            let Ok(answer) = timeout(DEADLINE, answer).await.expect("an answer, or an end") else { break };
            answered += usize::from(answer.status() == StatusCode::OK);
            held.push(answer);
        }
        door.answers().await;
        senders.push(sender);
    }
    let after = door.peak();
    println!("{before} KiB before, {after} KiB at most, with {answered} answers that were not taken");
    assert!(answered > 300, "the test says nothing");
    assert!(after < before + READERS_MEMORY, "{} KiB more", after - before);
    door.answers().await;
}

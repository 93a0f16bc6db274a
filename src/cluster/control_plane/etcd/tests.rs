//! etcd played over TLS and HTTP/2.

use std::convert::Infallible;
use std::sync::Mutex;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::*;
use rpc::frames;

/// What was asked, and the members that are there.
#[derive(Default)]
struct Played {
    calls: Mutex<Vec<String>>,
    members: Mutex<Vec<rpc::MemberMessage>>,
    fails: Mutex<Option<&'static str>>,
}

fn member(id: u64, name: &str) -> rpc::MemberMessage {
    rpc::MemberMessage { id, name: name.into(), is_learner: false }
}

impl Played {
    fn answer(&self, path: &str, body: &Bytes) -> Bytes {
        self.calls.lock().unwrap().push(path.rsplit('/').next().unwrap().to_owned());
        let members = self.members.lock().unwrap().clone();
        match path {
            rpc::MEMBER_LIST => {
                assert!(frames::read::<rpc::MemberListRequest>(body).unwrap().linearizable);
                frames::sent(&rpc::MemberListResponse { members })
            }
            rpc::MEMBER_REMOVE => {
                let id = frames::read::<rpc::MemberRemoveRequest>(body).unwrap().id;
                self.members.lock().unwrap().retain(|member| member.id != id);
                frames::sent(&rpc::MemberRemoveResponse {})
            }
            rpc::MOVE_LEADER => {
                let to = frames::read::<rpc::MoveLeaderRequest>(body).unwrap().target_id;
                self.calls.lock().unwrap().push(format!("to {to}"));
                frames::sent(&rpc::MoveLeaderResponse {})
            }
            rpc::STATUS => frames::sent(&rpc::StatusResponse { leader: 1 }),
            rpc::ALARM => {
                let alarms =
                    vec![rpc::AlarmMember { member_id: 2, alarm: 1 }, rpc::AlarmMember { member_id: 1, alarm: 0 }];
                frames::sent(&rpc::AlarmResponse { alarms })
            }
            other => panic!("{other}"),
        }
    }

    async fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let fails = self.fails.lock().unwrap().take();
        let (answer, mut trailers) =
            (if fails.is_some() { Bytes::new() } else { self.answer(&path, &body) }, HeaderMap::new());
        trailers.insert("grpc-status", HeaderValue::from_static(if fails.is_some() { "9" } else { "0" }));
        trailers.insert("grpc-message", HeaderValue::from_static(fails.unwrap_or_default()));
        Ok(Response::new(Full::new(answer).with_trailers(std::future::ready(Some(Ok(trailers))))))
    }
}

struct Authority {
    key: KeyPair,
    params: CertificateParams,
    pem: String,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { key, params, pem }
}

fn secret(authority: &Authority) -> Secret {
    let data = [("tls.crt", authority.pem.clone()), ("tls.key", authority.key.serialize_pem())];
    let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    Secret { data: Some(data.into()), ..Secret::default() }
}

/// A channel to a played etcd with a certificate of `served`, asked with one of `asking`.
async fn opened(played: &Arc<Played>, served: &Authority, asking: &Authority) -> Result<Channel, String> {
    let own = KeyPair::generate().unwrap();
    let issuer = Issuer::from_params(&served.params, &served.key);
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&own, &issuer).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(served.params.self_signed(&served.key).unwrap().der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.serialize_der())),
        )
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let played = played.clone();
    tokio::spawn(async move {
        let stream = TlsAcceptor::from(Arc::new(tls)).accept(theirs).await.unwrap();
        let service = hyper::service::service_fn(move |request| played.clone().serve(request));
        drop(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await,
        );
    });
    let identity = EtcdIdentity::of_authority(&secret(asking))?;
    connect(ours, &identity, ()).await
}

async fn three() -> (Arc<Played>, Channel) {
    let played = Arc::new(Played::default());
    *played.members.lock().unwrap() = vec![member(1, "a"), member(2, "b"), member(3, "c")];
    let ca = authority();
    let channel = opened(&played, &ca, &ca).await.unwrap();
    (played, channel)
}

#[tokio::test]
async fn etcd_says_who_it_is() {
    let (_, mut channel) = three().await;
    let etcd = look(&mut channel).await.unwrap();
    assert_eq!(etcd.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!((etcd.leader, etcd.alarms), (1, vec![(2, "NOSPACE".to_owned())]));
}

#[tokio::test]
async fn a_member_that_is_listed_and_does_not_answer_is_told() {
    let well = |node: &str| {
        let member = EtcdMember { name: node.into(), ..EtcdMember::default() };
        Ok(EtcdStatus { members: vec![member], ..EtcdStatus::default() })
    };
    let turn = Duration::from_millis(20);
    let nodes = ["a", "b", "c", "d"].map(str::to_owned);
    let asked = look_at(&nodes, turn, |node| async move {
        match node.as_str() {
            "a" => std::future::pending().await,
            "c" => Err("connection refused".into()),
            node => well(node),
        }
    });
    let etcd = within(asked).await.unwrap();
    assert_eq!(etcd.members[0].name, "b");
    let silent: Vec<_> = etcd.silent.iter().map(|(node, reason)| (node.as_str(), reason.as_str())).collect();
    assert_eq!(silent, [("a", "no answer within 0 s"), ("c", "connection refused")]);

    let nodes: Vec<String> = (0..17).map(|number| format!("n{number:02}")).collect();
    let one = |node: String| async move { if node == "n16" { well(&node) } else { std::future::pending().await } };
    assert_eq!(within(look_at(&nodes, turn, one)).await.unwrap().silent.len(), 16);
    let none = within(look_at(&nodes[..2], turn, |_| async { Err("no route".into()) })).await.unwrap_err();
    assert_eq!(none, "n00: no route; n01: no route");
}

#[tokio::test]
async fn members_are_removed_and_the_last_one_stays() {
    let (played, mut channel) = three().await;
    remove(&mut channel, 2).await.unwrap();
    remove(&mut channel, 2).await.unwrap();
    assert_eq!(*played.calls.lock().unwrap(), ["MemberList", "MemberRemove", "MemberList"]);
    remove(&mut channel, 3).await.unwrap();
    let refused = remove(&mut channel, 1).await.unwrap_err();
    assert!(refused.contains("last member"), "{refused}");
    assert_eq!(played.members.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_lead_is_handed_on_by_who_has_it() {
    let (played, mut channel) = three().await;
    hand_over(&mut channel, "b", "c").await.unwrap();
    assert!(!played.calls.lock().unwrap().contains(&"MoveLeader".to_owned()));
    hand_over(&mut channel, "a", "c").await.unwrap();
    assert!(played.calls.lock().unwrap().ends_with(&["MoveLeader".to_owned(), "to 3".to_owned()]));
    assert!(hand_over(&mut channel, "a", "z").await.unwrap_err().contains("no member z"));
}

#[tokio::test]
async fn what_etcd_refuses_is_told_in_its_words() {
    let (played, mut channel) = three().await;
    *played.fails.lock().unwrap() = Some("etcdserver: re-configuration failed%0A");
    let refused = remove(&mut channel, 2).await.unwrap_err();
    assert_eq!(refused, "etcd answers with code 9: etcdserver: re-configuration failed");
}

#[tokio::test]
async fn another_authority_is_not_believed() {
    let played = Arc::new(Played::default());
    let (one, other) = (authority(), authority());
    assert!(opened(&played, &one, &other).await.is_err());
    let bad = Secret { data: Some([("tls.crt".to_owned(), ByteString(b"x".to_vec()))].into()), ..Secret::default() };
    for secret in [Secret::default(), bad] {
        assert!(EtcdIdentity::of_authority(&secret).is_err());
    }
}

#[test]
fn answers_are_bounded() {
    for frame in [&b""[..], b"\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x09", b"\0\0\0\0\x01\xff"] {
        assert!(frames::read::<rpc::StatusResponse>(frame).is_err(), "{frame:?}");
    }
    assert_eq!(frames::read::<rpc::StatusResponse>(b"\0\0\0\0\0").unwrap().leader, 0);
}

//! Clusters that answer, hang and are not there, by the kubeconfigs in their Secrets.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use std::time::Duration;

use super::*;
use crate::apiserver::ApiServer;
use crate::modules::kinds;
use crate::store::{Store, StoreOptions};

/// A server with a certificate of its own authority.
struct Server {
    address: SocketAddr,
    authority: String,
    connections: Arc<AtomicUsize>,
    _stop: tokio_util::sync::DropGuard,
}

impl Server {
    /// Answers each request with this text, or never.
    async fn new(answer: Option<&str>) -> Self {
        let answer = answer.map(Arc::<str>::from);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&own, &issuer).unwrap();
        let own = rustls_pki_types::PrivateKeyDer::try_from(own.serialize_der()).unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], own)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, connections) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let counted = connections.clone();
        let serve = async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut seen = vec![0; 16 << 10];
                    while let Ok(1..) = stream.read(&mut seen).await {
                        let Some(answer) = &answer else { continue };
                        let head = format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                            answer.len()
                        );
                        if stream.write_all(format!("{head}{answer}").as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(serve));
        Self { address, authority: STANDARD.encode(authority.pem()), connections, _stop: stop.drop_guard() }
    }

    fn kubeconfig(&self) -> String {
        format!(
            "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://{}', certificate-authority-data: {}}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n",
            self.address, self.authority
        )
    }
}

struct Site {
    client: Client,
    workloads: Workloads,
    _stop: tokio_util::sync::DropGuard,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn new(allow: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 100 };
        let stop = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), stop.clone()).await.unwrap();
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let workloads = Workloads::new(vec![allow.parse::<Allowed>().unwrap()]);
        Self { client, workloads, _stop: stop.drop_guard(), _folder: folder }
    }

    async fn secret(&self, cluster: &str, kubeconfig: &str) {
        let data = [("value".to_owned(), ByteString(kubeconfig.as_bytes().to_vec()))].into();
        let metadata = ObjectMeta { name: Some(secret_name(cluster)), ..ObjectMeta::default() };
        let secret = Secret { metadata, data: Some(data), ..Secret::default() };
        let api = Api::<Secret>::namespaced(self.client.clone(), "default");
        api.create(&PostParams::default(), &secret).await.unwrap();
    }

    async fn get(&self, cluster: &str) -> Result<Workload, WorkloadError> {
        self.workloads.get(&self.client, "default", cluster).await
    }
}

const NODES: &str = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":[
    {"metadata":{"name":"web-1"},"spec":{"providerID":"metal3://1"},"status":{"images":[{"names":["x"]}]}}]}"#;

#[tokio::test]
async fn nodes_of_a_cluster_are_found_by_its_secret() {
    let (site, server) = (Site::new("127.0.0.1").await, Server::new(Some(NODES)).await);
    assert!(site.get("c").await.err().is_some_and(|error| matches!(error, WorkloadError::NoSecret { .. })));
    site.secret("c", &server.kubeconfig()).await;
    let workload = site.get("c").await.unwrap();
    let nodes = workload.nodes().await.unwrap();
    let node = nodes.provided("metal3://1").unwrap().unwrap();
    assert_eq!(node.name_any(), "web-1");
    assert_eq!(node.status.as_ref().unwrap().images, None);
    // The same Secret, the same connections.
    assert!(Arc::ptr_eq(&site.get("c").await.unwrap().nodes, &workload.nodes));
    // Whoever read the Secret at the same time and was slower gets those of the first one.
    let version = Api::<Secret>::namespaced(site.client.clone(), "default").get(&secret_name("c")).await.unwrap();
    let room = Rooms::new(KEPT_OF_ALL).of("default");
    let slower = Workload::new(site.client.clone(), String::new(), GOOD_FOR, room);
    let kept = site.workloads.keep(("default".into(), "c".into()), version.resource_version(), slower);
    assert!(Arc::ptr_eq(&kept.nodes, &workload.nodes));
    let api = Api::<Secret>::namespaced(site.client.clone(), "default");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    api.patch(&secret_name("c"), &PatchParams::default(), &patch).await.unwrap();
    assert!(!Arc::ptr_eq(&site.get("c").await.unwrap().nodes, &workload.nodes), "it may be another kubeconfig");
}

#[tokio::test]
async fn more_than_was_asked_for_is_not_read() {
    let site = Site::new("127.0.0.1").await;
    let many = |one: &str, count: usize| vec![one; count].join(",");
    let list = format!(r#"{{"metadata":{{}},"items":[{}]}}"#, many("{}", 101));
    let node = format!(r#"{{"metadata":{{"name":"n"}},"status":{{"conditions":[{}]}}}}"#, many("{}", 100_000));
    for (cluster, answer, wanted) in
        [("list", list, "more than the 100 objects that were asked for"), ("node", node, "objects or")]
    {
        let server = Server::new(Some(&answer)).await;
        site.secret(cluster, &server.kubeconfig()).await;
        let workload = site.get(cluster).await.unwrap();
        let listed = workload.nodes().await.map(drop);
        let refused = listed.and(workload.node("n").await.map(drop)).unwrap_err().to_string();
        assert!(refused.contains(wanted), "{cluster}: {refused}");
    }
}

#[tokio::test]
async fn lists_of_nodes_are_kept_no_longer_than_they_are_good() {
    let (site, server) = (Site::new("127.0.0.1").await, Server::new(Some(NODES)).await);
    site.secret("c", &server.kubeconfig()).await;
    let workload = site.get("c").await.unwrap();
    let kept = Arc::downgrade(&workload.nodes().await.unwrap());
    assert!(kept.upgrade().is_some());
    let gone = async {
        while kept.upgrade().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
}

#[tokio::test]
async fn whoever_has_most_clusters_makes_room_for_another() {
    let site = Site::new("127.0.0.1").await;
    for (namespace, name) in [("one", "a"), ("many", "a"), ("many", "b"), ("other", "a")] {
        site.workloads.play(namespace, name, site.client.clone());
    }
    let mut known = site.workloads.known.lock().unwrap();
    make_room(&mut known);
    let mut left: Vec<_> = known.keys().cloned().collect();
    left.sort();
    let left: Vec<(&str, &str)> = left.iter().map(|(namespace, name)| (&**namespace, &**name)).collect();
    assert_eq!(left, [("many", "b"), ("one", "a"), ("other", "a")]);
}

#[tokio::test]
async fn the_appliance_itself_is_no_cluster_unless_it_is_allowed() {
    let (site, server) = (Site::new("192.0.2.1").await, Server::new(Some(NODES)).await);
    site.secret("c", &server.kubeconfig()).await;
    let refused = site.get("c").await.unwrap().nodes().await.unwrap_err().to_string();
    assert!(refused.contains("loopback") && refused.contains("cluster.allow"), "{refused}");
}

#[tokio::test]
async fn a_secret_that_is_no_kubeconfig_is_named() {
    let site = Site::new("127.0.0.1").await;
    site.secret("c", "users: [{name: u, user: {exec: {command: sh}}}]").await;
    let Err(error) = site.get("c").await else { panic!("it was used") };
    assert!(error.to_string().contains("\"c-kubeconfig\""), "{error}");
}

#[test]
fn what_a_peer_says_is_short_and_on_one_line() {
    let long = "é".repeat(TEXT_MAX);
    let (most, longer) = ("a".repeat(TEXT_MAX - 1), format!("{long}é"));
    let rows: [(&str, String); 8] = [
        ("no route", "no route".to_owned()),
        ("  a\n\tb\u{1b}[31mc\u{0}  ", "a b [31mc".to_owned()),
        ("", String::new()),
        ("\n", String::new()),
        (&long, long.clone()),
        (&longer, format!("{long}…")),
        (&format!("{most} b"), format!("{most}…")),
        (&format!("a{}", "\n".repeat(10 * TEXT_MAX)), "a".to_owned()),
    ];
    for (text, wanted) in rows {
        assert_eq!(brief(text), wanted);
    }
    let status = |message: String| kube::core::Status { message, code: 500, ..kube::core::Status::default() };
    let told = said(&kube::Error::Api(Box::new(status("x\n".repeat(5000)))));
    assert!(told.len() < 1000 && !told.contains('\n'), "{told}");
    assert_eq!(said(&kube::Error::Api(Box::new(status(String::new())))), "it answers 500");
}

#[tokio::test]
async fn a_cluster_that_hangs_is_left_alone_and_holds_up_no_other() {
    let (hanging, well) = (Server::new(None).await, Server::new(Some(NODES)).await);
    let guard = Guard::new("cluster.allow", vec!["127.0.0.1".parse::<Allowed>().unwrap()]);
    let workload = |server: &Server, deadline| {
        let target = kubeconfig::read(server.kubeconfig().as_bytes()).unwrap_or_else(|reason| panic!("{reason}"));
        let patience =
            Patience { deadline, first_pause: Duration::from_secs(600), left_alone: Duration::from_secs(600) };
        let connection = WorkloadConnection::new(target, guard.clone(), patience, Rooms::new(UNDER_WAY).of("default"));
        let lists = Rooms::new(KEPT_OF_ALL).of("default");
        Workload::new(Client::new(connection, "default"), String::new(), GOOD_FOR, lists)
    };
    let stuck = workload(&hanging, Duration::from_millis(300));
    let other = workload(&well, Duration::from_secs(60));
    let asked = tokio::spawn({
        let stuck = stuck.clone();
        async move { stuck.nodes().await.map(drop) }
    });
    other.nodes().await.unwrap();
    let error = asked.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("did not answer"), "{error}");
    // The connection may have been given up before the server came to see it.
    let seen = async {
        while hanging.connections.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it was asked once");
    // From now on whoever asks hears it at once, and it is asked for nothing.
    let before = hanging.connections.load(Ordering::Relaxed);
    let again = Api::<ConfigMap>::namespaced(stuck.client().clone(), "default");
    for _ in 0..10 {
        let error = again.get("x").await.unwrap_err();
        assert!(said(&error).contains("did not answer"), "{error}");
    }
    assert_eq!(hanging.connections.load(Ordering::Relaxed), before);
}

//! KubeadmConfigs through the API: clusters and machines are played, and another API is the cluster that is made.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::BootstrapLife;
use super::controller::BootstrapTimes;
use crate::api::bootstrap::v1beta2::KubeadmConfig;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::apiserver::ApiServer;
use crate::cluster::certificates::hashes;
use crate::cluster::workload::Workloads;
use crate::engine::Fence;
use crate::module::{Acting, Life};
use crate::modules::kinds;
use crate::runtime::{Tasks, Watches, conditions};
use crate::store::{Store, StoreOptions};

const NAMESPACE: &str = "default";
const DEADLINE: Duration = Duration::from_secs(240);

struct Site {
    client: Client,
    /// The cluster `c`, once it is made.
    made: Client,
    workloads: Workloads,
    shutdown: CancellationToken,
    _folders: Vec<tempfile::TempDir>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn api(shutdown: &CancellationToken, life: Option<&BootstrapLife>) -> (Client, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
    let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
    for (kind, admission) in life.into_iter().flat_map(Life::admission) {
        api.add_admission(kind, admission);
    }
    let client = api.client();
    tokio::spawn(async move { api.run().await });
    (client, folder)
}

impl Site {
    async fn new() -> Self {
        Self::within(Duration::ZERO).await
    }

    /// One in which messages that change are written once in this time.
    async fn within(messages: Duration) -> Self {
        let shutdown = CancellationToken::new();
        let (made, of_made) = api(&shutdown, None).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}});
        let namespace: k8s_openapi::api::core::v1::Namespace = serde_json::from_value(namespace).unwrap();
        match Api::all(made.clone()).create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(error)) if error.is_already_exists() => {}
            created => drop(created.unwrap()),
        }
        let workloads = Workloads::new(Vec::new());
        workloads.play(NAMESPACE, "c", made.clone());
        let mut watches = Watches::default();
        let soon = Duration::from_millis(50);
        let life = BootstrapLife::new(&mut watches, workloads.clone()).within(BootstrapTimes {
            pause: soon,
            token: soon,
            messages,
        });
        let (client, own) = api(&shutdown, Some(&life)).await;
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        let (tasks, stop) = (Tasks::default(), shutdown.clone());
        let acting = Acting { client: client.clone(), fence: Fence::open(), tasks, store: None, stop };
        for (_, service) in life.act(&acting).unwrap() {
            tokio::spawn(service);
        }
        Self { client, made, workloads, shutdown, _folders: vec![of_made, own] }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + serde::Serialize,
    {
        let mut object = object;
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    async fn tell<K>(&self, name: &str, status: Value)
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api::<K>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A cluster whose infrastructure is there.
    async fn cluster(&self, spec: Value) {
        let mut spec = spec;
        spec["controlPlaneEndpoint"] = json!({"host": "10.0.0.1", "port": 6443});
        self.create::<Cluster>(json!({"metadata": {"name": "c"}, "spec": spec})).await;
        self.tell::<Cluster>("c", json!({"initialization": {"infrastructureProvisioned": true}})).await;
    }

    /// A machine and its KubeadmConfig, as whoever makes machines makes them.
    async fn machine(&self, name: &str, control_plane: bool, spec: Value) {
        let labels = if control_plane { json!({"cluster.x-k8s.io/control-plane": ""}) } else { json!({}) };
        let machine: Machine = self
            .create(json!({"metadata": {"name": name, "labels": labels}, "spec": {
                "clusterName": "c", "version": "v1.35.0",
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name}},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Machine", "name": name},
            }}))
            .await;
        let owner = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": machine.uid().unwrap(), "controller": true});
        let metadata = json!({"name": name, "ownerReferences": [owner]});
        self.create::<KubeadmConfig>(json!({"metadata": metadata, "spec": spec})).await;
    }

    async fn until<K>(&self, what: &str, name: &str, met: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        until(&self.api::<K>(), what, name, met).await
    }

    /// The condition of a KubeadmConfig says this.
    async fn says(&self, name: &str, type_: &str, wanted: &str) {
        self.until::<KubeadmConfig>(wanted, name, |config| {
            let all = config.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            conditions::find(all, type_).is_some_and(|one| format!("{} {}", one.status, one.message).contains(wanted))
        })
        .await;
    }

    /// The user data of a machine, once its KubeadmConfig says that it is there: files by path, and commands.
    async fn data(&self, name: &str) -> Value {
        let config = self
            .until::<KubeadmConfig>("it has user data", name, |config| {
                config.status.as_ref().is_some_and(|status| status.data_secret_name.is_some())
            })
            .await;
        let status = config.status.unwrap();
        assert_eq!(status.initialization.unwrap().data_secret_created, Some(true));
        let ready = conditions::find(&status.conditions, "Ready").map(|one| one.status.clone());
        assert_eq!(ready.as_deref(), Some("True"));
        let secret = self.api::<Secret>().get(name).await.unwrap();
        assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
        assert_eq!(secret.labels()["cluster.x-k8s.io/cluster-name"], "c");
        assert_eq!(secret.owner_references()[0].uid, config.metadata.uid.unwrap());
        assert_eq!(text(&secret, "format"), "cloud-config");
        serde_saphyr::from_str(&text(&secret, "value")).unwrap()
    }

    async fn initialized(&self) {
        let done = json!({"infrastructureProvisioned": true, "controlPlaneInitialized": true});
        self.tell::<Cluster>("c", json!({ "initialization": done })).await;
    }
}

async fn until<K>(api: &Api<K>, what: &str, name: &str, met: impl Fn(&K) -> bool) -> K
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut last = None;
    let wait = async {
        loop {
            if let Some(object) = api.get_opt(name).await.unwrap() {
                if met(&object) {
                    return object;
                }
                last = Some(object);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let met = tokio::time::timeout(DEADLINE, wait).await;
    met.unwrap_or_else(|_| panic!("not in time: {what}: {last:#?}"))
}

/// KubeadmConfigs as clients of v1beta1 see them.
fn older() -> ApiResource {
    ApiResource {
        group: "bootstrap.cluster.x-k8s.io".into(),
        version: "v1beta1".into(),
        api_version: "bootstrap.cluster.x-k8s.io/v1beta1".into(),
        kind: "KubeadmConfig".into(),
        plural: "kubeadmconfigs".into(),
    }
}

fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}

fn file<'d>(data: &'d Value, path: &str) -> &'d str {
    let files = data["write_files"].as_array().unwrap();
    let found = files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("no {path}: {data}"));
    found["content"].as_str().unwrap()
}

fn documents(text: &str) -> Vec<Value> {
    text.split("---\n").filter(|one| !one.is_empty()).map(|one| serde_saphyr::from_str(one).unwrap()).collect()
}

#[tokio::test]
async fn a_cluster_is_begun_by_one_machine_and_the_others_join() {
    let site = Site::new().await;
    let spec = json!({"clusterNetwork": {"pods": {"cidrBlocks": ["10.244.0.0/16"]}}});
    site.create::<Cluster>(json!({"metadata": {"name": "c"}, "spec": spec})).await;
    site.machine("cp-1", true, json!({"initConfiguration": {"nodeRegistration": {"taints": []}}})).await;
    site.says("cp-1", "DataSecretAvailable", "False Waiting for the cluster's infrastructure").await;

    let endpoint = Patch::Merge(json!({"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}));
    site.api::<Cluster>().patch("c", &PatchParams::default(), &endpoint).await.unwrap();
    site.tell::<Cluster>("c", json!({"initialization": {"infrastructureProvisioned": true}})).await;
    let data = site.data("cp-1").await;
    let init = documents(file(&data, "/run/kubeadm/kubeadm.yaml"));
    assert_eq!((&init[0]["kubernetesVersion"], &init[0]["clusterName"]), (&json!("v1.35.0"), &json!("c")));
    assert_eq!(init[0]["controlPlaneEndpoint"], "10.0.0.1:6443");
    assert_eq!(init[1]["nodeRegistration"]["taints"], json!([]));
    let authority = site.api::<Secret>().get("c-ca").await.unwrap();
    assert_eq!(authority.owner_references()[0].kind, "KubeadmConfig");
    assert_eq!(file(&data, "/etc/kubernetes/pki/ca.key"), text(&authority, "tls.key"));
    for path in ["etcd/ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key"] {
        file(&data, &format!("/etc/kubernetes/pki/{path}"));
    }
    let lock = site.api::<ConfigMap>().get("c-lock").await.unwrap();
    assert_eq!(lock.data.unwrap()["lock-information"], r#"{"machineName":"cp-1"}"#);

    site.machine("cp-2", true, json!({})).await;
    site.machine("w-1", false, json!({"joinConfiguration": {"nodeRegistration": {"name": "w"}}})).await;
    site.says("cp-2", "DataSecretAvailable", "False Waiting for the Machine cp-1").await;
    site.says("w-1", "DataSecretAvailable", "False Waiting for the control plane").await;

    site.initialized().await;
    let (plane, worker) = (site.data("cp-2").await, site.data("w-1").await);
    assert!(site.api::<ConfigMap>().get_opt("c-lock").await.unwrap().is_none(), "others may begin other clusters");
    let join = documents(file(&plane, "/run/kubeadm/kubeadm-join-config.yaml"));
    assert_eq!((&join[0]["kind"], &join[0]["controlPlane"]), (&json!("JoinConfiguration"), &json!({})));
    assert_eq!(file(&plane, "/etc/kubernetes/pki/sa.key"), file(&data, "/etc/kubernetes/pki/sa.key"));

    let join = documents(file(&worker, "/run/kubeadm/kubeadm-join-config.yaml"));
    assert!(!worker.to_string().contains("PRIVATE KEY"), "a worker has no keys of the cluster");
    assert_eq!(join[0].get("controlPlane"), None);
    assert_eq!(join[0]["nodeRegistration"]["taints"][0]["key"], "node.cluster.x-k8s.io/uninitialized");
    let discovery = &join[0]["discovery"]["bootstrapToken"];
    assert_eq!(discovery["caCertHashes"], json!(hashes(&text(&authority, "tls.crt")).unwrap()));
    assert_eq!(discovery["apiServerEndpoint"], "10.0.0.1:6443");
    let (id, secret) = discovery["token"].as_str().unwrap().split_once('.').unwrap();
    let tokens = Api::<Secret>::namespaced(site.made.clone(), "kube-system");
    let token = tokens.get(&format!("bootstrap-token-{id}")).await.unwrap();
    assert_eq!((text(&token, "token-id").as_str(), text(&token, "token-secret").as_str()), (id, secret));
    assert_eq!(token.type_.as_deref(), Some("bootstrap.kubernetes.io/token"));
}

#[tokio::test]
async fn a_token_is_good_until_its_node_is_there() {
    let site = Site::new().await;
    site.cluster(json!({})).await;
    site.machine("cp-1", true, json!({})).await;
    site.data("cp-1").await;
    site.initialized().await;
    site.machine("w-1", false, json!({})).await;
    let data = site.data("w-1").await;
    let join = documents(file(&data, "/run/kubeadm/kubeadm-join-config.yaml"));
    let token = join[0]["discovery"]["bootstrapToken"]["token"].as_str().unwrap().to_owned();
    let name = format!("bootstrap-token-{}", token.split_once('.').unwrap().0);
    let tokens = Api::<Secret>::namespaced(site.made.clone(), "kube-system");
    let is_good = |secret: &Secret| text(secret, "expiration").parse::<Timestamp>().unwrap() > Timestamp::now();

    let old = ByteString(b"2020-01-01T00:00:00Z".to_vec());
    let ended = Patch::Merge(json!({"data": {"expiration": old}}));
    tokens.patch(&name, &PatchParams::default(), &ended).await.unwrap();
    until(&tokens, "it is made good again", &name, is_good).await;
    // The cluster takes away what has ended.
    tokens.delete(&name, &DeleteParams::default()).await.unwrap();
    let again = until(&tokens, "it is made again", &name, is_good).await;
    assert!(token.ends_with(&text(&again, "token-secret")));
    assert_eq!(data, site.data("w-1").await, "the machine may have its user data already");
    // What was made goes with its object.
    site.api::<KubeadmConfig>().delete("w-1", &DeleteParams::background()).await.unwrap();
    let gone = async {
        while site.api::<Secret>().get_opt("w-1").await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("the user data goes");
}

#[tokio::test]
async fn answers_that_vary_are_not_written_each_time() {
    // Messages wait for longer than the test lasts.
    let site = Site::within(DEADLINE.saturating_mul(10)).await;
    site.cluster(json!({})).await;
    site.machine("cp-1", true, json!({})).await;
    site.data("cp-1").await;
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    let refuse = move |_: http::Request<kube::client::Body>| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 503,
            "message": format!("request {number}\nis refused"), "reason": "ServiceUnavailable"});
        let body = kube::client::Body::from(status.to_string().into_bytes());
        std::future::ready(Ok::<_, tower::BoxError>(http::Response::builder().status(503).body(body).unwrap()))
    };
    site.workloads.play(NAMESPACE, "c", Client::new(tower::service_fn(refuse), "default"));
    site.initialized().await;
    site.machine("w-1", false, json!({})).await;
    site.says("w-1", "DataSecretAvailable", "is refused").await;
    let version = async || site.api::<KubeadmConfig>().get("w-1").await.unwrap().resource_version();
    let rests = async {
        loop {
            let (before, asked) = (version().await, refused.load(Ordering::Relaxed));
            while refused.load(Ordering::Relaxed) < asked + 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if version().await == before {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, rests).await.expect("nothing is written, though it is asked on");
    site.says("w-1", "DataSecretAvailable", "request ").await;
    let config = site.api::<KubeadmConfig>().get("w-1").await.unwrap();
    let all = config.status.unwrap().conditions;
    assert!(!conditions::find(&all, "DataSecretAvailable").unwrap().message.contains('\n'), "{all:?}");
}

#[tokio::test]
async fn certificates_of_a_control_plane_are_waited_for_and_judged() {
    let site = Site::new().await;
    let reference = json!({"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "c"});
    site.cluster(json!({"controlPlaneRef": reference})).await;
    site.machine("cp-1", true, json!({})).await;
    site.says("cp-1", "CertificatesAvailable", "False there is no Secret \"c-ca\"").await;
    assert!(site.api::<ConfigMap>().get_opt("c-lock").await.unwrap().is_none(), "nobody can begin it yet");
    let bad = json!({"metadata": {"name": "c-ca"}, "stringData": {"tls.crt": "x", "tls.key": "y"}});
    site.create::<Secret>(bad).await;
    site.says("cp-1", "CertificatesAvailable", "False the Secret \"c-ca\" cannot be used: tls.crt").await;
    site.says("cp-1", "Ready", "False").await;
}

#[tokio::test]
async fn secrets_of_the_same_namespace_are_filled_in() {
    let site = Site::new().await;
    site.cluster(json!({})).await;
    let spec = json!({
        "files": [{"path": "/etc/x", "contentFrom": {"secret": {"name": "s", "key": "k"}}}],
        "users": [{"name": "u", "passwdFrom": {"secret": {"name": "s", "key": "hash"}}}],
    });
    let elsewhere: Secret =
        serde_json::from_value(json!({"metadata": {"name": "s"}, "stringData": {"k": "other"}})).unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    let namespace: k8s_openapi::api::core::v1::Namespace = serde_json::from_value(namespace).unwrap();
    Api::all(site.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let others = Api::<Secret>::namespaced(site.client.clone(), "other");
    others.create(&PostParams::default(), &elsewhere).await.unwrap();
    site.machine("cp-1", true, spec).await;
    site.says("cp-1", "DataSecretAvailable", "False spec.files[0]: there is no Secret \"s\"").await;
    site.create::<Secret>(json!({"metadata": {"name": "s"}, "stringData": {"k": "own"}})).await;
    site.says("cp-1", "DataSecretAvailable", "False spec.users[0]: the Secret \"s\" has no key \"hash\"").await;
    let more = Patch::Merge(json!({"stringData": {"hash": "$6$x"}}));
    site.api::<Secret>().patch("s", &PatchParams::default(), &more).await.unwrap();
    let data = site.data("cp-1").await;
    assert_eq!((file(&data, "/etc/x"), &data["users"][0]["passwd"]), ("own", &json!("$6$x")));
}

#[tokio::test]
async fn what_is_somebody_elses_is_not_overwritten() {
    let site = Site::new().await;
    site.create::<Secret>(json!({"metadata": {"name": "cp-1"}, "stringData": {"value": "mine"}})).await;
    site.cluster(json!({})).await;
    site.machine("cp-1", true, json!({})).await;
    site.says("cp-1", "DataSecretAvailable", "False the Secret \"cp-1\" is somebody else's").await;
    assert_eq!(text(&site.api::<Secret>().get("cp-1").await.unwrap(), "value"), "mine");
    site.api::<Secret>().delete("cp-1", &DeleteParams::default()).await.unwrap();
    site.data("cp-1").await;
}

#[tokio::test]
async fn a_machine_that_names_another_config_is_no_owner() {
    let site = Site::new().await;
    site.cluster(json!({})).await;
    site.machine("cp-1", true, json!({})).await;
    let machine = site.api::<Machine>().get("cp-1").await.unwrap();
    let owner = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "cp-1",
        "uid": machine.uid().unwrap(), "controller": true});
    site.create::<KubeadmConfig>(json!({"metadata": {"name": "a-thief", "ownerReferences": [owner]}, "spec": {}}))
        .await;
    // Both are looked at, one after the other.
    site.data("cp-1").await;
    site.machine("cp-2", true, json!({})).await;
    site.says("cp-2", "DataSecretAvailable", "False").await;
    assert!(site.api::<Secret>().get_opt("a-thief").await.unwrap().is_none());
    assert_eq!(site.api::<KubeadmConfig>().get("a-thief").await.unwrap().status, None);
}

#[tokio::test]
async fn a_lock_of_a_machine_that_is_gone_is_given_to_the_next() {
    let site = Site::new().await;
    site.cluster(json!({})).await;
    let lock = json!({"metadata": {"name": "c-lock"}, "data": {"lock-information": r#"{"machineName":"gone"}"#}});
    site.create::<ConfigMap>(lock).await;
    site.machine("cp-1", true, json!({})).await;
    site.data("cp-1").await;
    let lock = site.api::<ConfigMap>().get("c-lock").await.unwrap();
    assert!(lock.data.unwrap()["lock-information"].contains("cp-1"));
}

#[tokio::test]
async fn a_pause_is_kept_and_both_versions_say_the_same() {
    let site = Site::new().await;
    site.cluster(json!({"paused": true})).await;
    site.machine("cp-1", true, json!({"format": "cloud-config"})).await;
    site.says("cp-1", "Paused", "True").await;
    assert!(site.api::<Secret>().get_opt("cp-1").await.unwrap().is_none());
    let go_on = Patch::Merge(json!({"spec": {"paused": false}}));
    site.api::<Cluster>().patch("c", &PatchParams::default(), &go_on).await.unwrap();
    site.data("cp-1").await;
    site.says("cp-1", "Paused", "False").await;
    let old =
        Api::<DynamicObject>::namespaced_with(site.client.clone(), NAMESPACE, &older()).get("cp-1").await.unwrap();
    assert_eq!((&old.data["status"]["ready"], &old.data["status"]["dataSecretName"]), (&json!(true), &json!("cp-1")));
    let ready = old.data["status"]["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Ready");
    assert_eq!(ready.unwrap()["status"], "True");
}

#[tokio::test]
async fn what_only_the_older_version_says_comes_back() {
    let site = Site::new().await;
    let spec = json!({
        "useExperimentalRetryJoin": true,
        "clusterConfiguration": {"networking": {"podSubnet": "10.0.0.0/8"}, "apiServer": {"extraArgs": {"v": "2"},
            "timeoutForControlPlane": "20m0s"}},
        "joinConfiguration": {"discovery": {"timeout": "1m30s"}},
    });
    let old = Api::<DynamicObject>::namespaced_with(site.client.clone(), NAMESPACE, &older());
    let object = DynamicObject::new("x", &older()).data(json!({ "spec": spec }));
    old.create(&PostParams::default(), &object).await.unwrap();
    let new = site.api::<KubeadmConfig>().get("x").await.unwrap().spec;
    let server = new.cluster_configuration.unwrap().api_server.unwrap();
    assert_eq!((server.extra_args[0].name.as_str(), server.extra_args[0].value.as_str()), ("v", "2"));
    let timeouts = new.join_configuration.unwrap().timeouts.unwrap();
    assert_eq!(timeouts.tls_bootstrap_seconds, Some(90));
    assert_eq!(old.get("x").await.unwrap().data["spec"], spec);
}

#[tokio::test]
async fn what_cannot_be_said_in_its_form_is_refused() {
    let site = Site::new().await;
    let api = site.api::<KubeadmConfig>();
    for (spec, field) in [
        (json!({"format": "ignition", "bootCommands": ["x"]}), "spec.bootCommands"),
        (json!({"files": [{"path": "/a"}, {"path": "/a"}]}), "spec.files[1].path"),
    ] {
        let config: KubeadmConfig = serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
        let refused = api.create(&PostParams::default(), &config).await.unwrap_err().to_string();
        assert!(refused.contains(field), "{refused}");
    }
}

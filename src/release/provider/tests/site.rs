//! An appliance's API with the provider and the Machines' hosts, in this process.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::api::kaas::{ClusterRelease, KaaSRelease, PublicKey};
use crate::api::lcm::{HelmBundle, LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;
use crate::api::{Declared, Kind, StoragePolicy};
use crate::apiserver::ApiServer;
use crate::boot::Program;
use crate::cluster::hosts::HostPool;
use crate::cluster::machine_api::MachineApi;
use crate::engine::Fence;
use crate::live::Live;
use crate::module::{Acting, Life};
use crate::modules::{declared, kinds};
use crate::release::catalogue::known::Releases;
use crate::release::names::{API_VERSION, CLUSTER_KIND, LABEL_CLUSTER, LABEL_CONTROL_PLANE, MACHINE_KIND};
use crate::release::provider::{NodePreparer, Provider, Reach};
use crate::release::updates::Updates;
use crate::runtime::mortal_tests::mortal;
use crate::runtime::{Tasks, Watches};
use crate::store::{Store, StoreOptions};

pub const NAMESPACE: &str = "proj";
/// Nothing that a test waits for takes longer.
const DEADLINE: Duration = Duration::from_secs(240);

pub struct Site {
    pub client: Client,
    router: Router,
    store: Store,
    reach: Reach,
    services: Vec<JoinHandle<()>>,
    acting: CancellationToken,
    pub shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// An object of a kind that has a namespace.
pub trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static
{
}

/// The kinds of other rooms, as those declare them or will.
fn all_kinds() -> Vec<Kind> {
    let mut all = kinds();
    for (kind, declared) in all.iter_mut().zip(declared()) {
        kind.crd = declared.generated();
    }
    let policy = StoragePolicy::Administrative;
    for declared in [
        Declared::one::<KaaSRelease>(policy),
        Declared::one::<ClusterRelease>(policy),
        Declared::one::<PublicKey>(policy),
        Declared::one::<LCMCluster>(policy),
        Declared::one::<LCMMachine>(policy),
        Declared::one::<HelmBundle>(policy),
    ] {
        if !all.iter().any(|kind| kind.crd.metadata.name.as_deref() == Some(declared.name())) {
            all.push(Kind::new(declared.generated(), policy));
        }
    }
    all
}

/// What runs of it here.
fn lives(watches: &mut Watches, store: Store, reach: Reach) -> [Box<dyn Life>; 3] {
    let releases = Releases::new(watches);
    let hosts = HostPool::new(watches);
    let preparer = Arc::new(NodePreparer::new(releases.clone()));
    let machines = MachineApi::new(watches, Some(hosts), None).prepared_by(preparer);
    let provider = Provider::new(store).acting(watches, releases, reach);
    let updates = Updates::default().acting(watches);
    [Box::new(machines), Box::new(provider), Box::new(updates)]
}

impl Site {
    /// An appliance that acts.
    pub async fn new() -> Self {
        let mut site = Self::idle().await;
        let client = site.client.clone();
        site.act(&client);
        site
    }

    /// One whose controllers have not begun.
    pub async fn idle() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 10_000 };
        std::fs::write(path.join("program"), "abc").unwrap();
        let shutdown = CancellationToken::new();
        let store = Store::open(options).unwrap();
        let api = ApiServer::new(store.clone(), &all_kinds(), shutdown.clone()).await.unwrap();
        let reach = Reach {
            advertise: Some("10.20.0.2".parse().unwrap()),
            own: Live::from(None),
            api_port: 8443,
            boot_port: 80,
            ca_pem: "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n".into(),
            program: Program::at(&path.join("program")),
        };
        for life in lives(&mut Watches::default(), store.clone(), reach.clone()) {
            life.admission().into_iter().for_each(|(resource, rules)| api.add_admission(resource, rules));
        }
        let (client, router) = (api.client(), api.router());
        tokio::spawn(async move { api.run().await });
        let acting = shutdown.child_token();
        let site = Self { client, router, store, reach, services: Vec::new(), acting, shutdown, _folder: folder };
        site.namespace(NAMESPACE).await;
        site
    }

    /// Begins as a process that starts does, with nothing but what is stored.
    fn act(&mut self, client: &Client) {
        self.acting = self.shutdown.child_token();
        let mut watches = Watches::default();
        let lives = lives(&mut watches, self.store.clone(), self.reach.clone());
        tokio::spawn(watches.run(self.client.clone(), self.acting.clone()));
        let (tasks, stop) = (Tasks::default(), self.acting.clone());
        let acting = Acting { client: client.clone(), fence: Fence::open(), tasks, store: None, stop };
        let services = lives.iter().flat_map(|life| life.act(&acting).unwrap());
        self.services = services.map(|(_, run)| tokio::spawn(async { run.await.unwrap() })).collect();
    }

    /// Begins, and dies right after so many writes.
    pub fn act_and_die_after(&mut self, writes: i64) -> Arc<AtomicI64> {
        let left = Arc::new(AtomicI64::new(writes));
        let client = mortal(&self.client, &left);
        self.act(&client);
        left
    }

    /// The process is killed: what it was about to do is not done.
    pub fn kill(&mut self) {
        self.acting.cancel();
        self.services.drain(..).for_each(|service| service.abort());
    }

    pub async fn namespace(&self, name: &str) {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    }

    pub fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub async fn create<K: Object>(&self, object: Value) -> K {
        self.try_create(object).await.unwrap()
    }

    pub async fn try_create<K: Object>(&self, object: Value) -> Result<K, kube::Error> {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE).to_owned();
        let api = Api::<K>::namespaced(self.client.clone(), &namespace);
        api.create(&PostParams::default(), &typed(object)).await
    }

    /// Makes an object without a namespace.
    pub async fn release<K>(&self, object: Value)
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let api = Api::<K>::all(self.client.clone());
        api.create(&PostParams::default(), &typed(object)).await.unwrap();
    }

    pub async fn get<K: Object>(&self, name: &str) -> Option<K> {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    /// Merges a patch, and the status of it into the status.
    pub async fn change<K: Object>(&self, name: &str, patch: Value) {
        self.try_change::<K>(name, patch).await.unwrap();
    }

    pub async fn try_change<K: Object>(&self, name: &str, patch: Value) -> Result<(), kube::Error> {
        let api = self.api::<K>();
        if patch.get("status").is_some() {
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
        if patch.get("spec").is_some() || patch.get("metadata").is_some() {
            api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
        Ok(())
    }

    pub async fn delete<K: Object>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Waits until an object is so; `None` when it is gone.
    pub async fn until<K: Object>(&self, name: &str, what: &str, met: impl Fn(Option<&K>) -> bool) -> Option<K> {
        let wait = async {
            loop {
                let object = self.get::<K>(name).await;
                if met(object.as_ref()) {
                    return object;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(DEADLINE, wait).await {
            Ok(object) => object,
            Err(_) => panic!("not in time: {name} {what}: {}", json!(self.get::<K>(name).await)),
        }
    }

    /// Waits until an object is there, and is so.
    pub async fn there<K: Object>(&self, name: &str, what: &str, met: impl Fn(&K) -> bool) -> K {
        self.until(name, what, |object| object.is_some_and(&met)).await.unwrap()
    }

    pub async fn gone<K: Object>(&self, name: &str) {
        self.until::<K>(name, "is gone", |object| object.is_none()).await;
    }

    /// Waits until a condition of a Cluster says this.
    pub async fn says(&self, cluster: &str, type_: &str, reason: &str, text: &str) -> Cluster {
        let met = |cluster: &Cluster| {
            let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            let one = conditions.iter().find(|one| one.type_ == type_);
            one.is_some_and(|one| one.reason == reason && one.message.contains(text))
        };
        self.there(cluster, &format!("{type_} is {reason}: {text}"), met).await
    }

    /// Waits until the published condition `LCM` of a Machine says this.
    pub async fn machine_says(&self, machine: &str, text: &str) -> Machine {
        let met = |machine: &Machine| {
            noted(machine)["conditions"][1]["message"].as_str().is_some_and(|said| said.contains(text))
        };
        self.there(machine, &format!("says {text:?}"), met).await
    }

    /// Asks as whoever has this token: the code and the answer.
    pub async fn ask(&self, token: &str, method: &str, path: &str, body: Option<(&str, Value)>) -> (u16, Value) {
        let request =
            http::Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        let request = match body {
            Some((type_, body)) => request.header("content-type", type_).body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        let answer = self.router.clone().oneshot(request.unwrap()).await.unwrap();
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Both releases, the KaaSRelease that lets the second one follow the first, and a key.
    pub async fn releases(&self) {
        let supported = json!([
            {"name": "mosk-1", "version": "1.0.0+25.1", "availableUpgrades": [{"version": "2.0.0+25.2"}]},
            {"name": "mosk-2", "version": "2.0.0+25.2"},
        ]);
        self.release::<ClusterRelease>(release("mosk-1", "1.0.0+25.1")).await;
        self.release::<ClusterRelease>(release("mosk-2", "2.0.0+25.2")).await;
        self.release::<KaaSRelease>(json!({
            "metadata": {"name": "kaas-2-30-0", "labels": {"kaas.mirantis.com/active": "true"}},
            "spec": {"version": "2.30.0", "supportedClusterReleases": supported,
                "management": {"helmReleases": [{"name": "kaas-ui", "chart": "kaas/ui"}]}},
        }))
        .await;
        self.create::<PublicKey>(
            json!({"metadata": {"name": "ops-key"}, "spec": {"publicKey": "ssh-ed25519 AAAA ops"}}),
        )
        .await;
    }

    /// A free host; its BMC's credentials are in a Secret.
    pub async fn free(&self, name: &str, labels: Value) {
        let bmc =
            json!({"address": "redfish://192.0.2.9/redfish/v1/Systems/1", "credentialsName": format!("{name}-bmc")});
        self.create::<Secret>(
            json!({"metadata": {"name": format!("{name}-bmc")}, "stringData": {"username": "u", "password": "p"}}),
        )
        .await;
        self.create::<BareMetalHost>(
            json!({"metadata": {"name": name, "labels": labels}, "spec": {"online": false, "bmc": bmc}}),
        )
        .await;
        self.state(name, "available").await;
    }

    pub async fn state(&self, host: &str, state: &str) {
        self.change::<BareMetalHost>(host, json!({"status": {"provisioning": {"state": state}}})).await;
    }
}

fn typed<K: Resource<DynamicType = ()> + DeserializeOwned>(mut object: Value) -> K {
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    serde_json::from_value(object).unwrap()
}

/// What the provider and the host's part have noted of a Machine.
pub fn noted(machine: &Machine) -> Value {
    machine.status.as_ref().and_then(|status| status.provider_status.clone()).unwrap_or_default()
}

fn release(name: &str, version: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "version": version,
            "lcmType": "kubeadm",
            "machineTypes": {
                "control": [{"name": "kubeadm", "version": version, "params": {"script": "kubeadm init"}}],
                "worker": [
                    {"name": "kubeadm", "version": version, "params": {"script": "kubeadm join"}},
                    {"name": "labels", "phase": "reconfigure", "params": {"script": "label", "nodeLabels": ""}},
                ],
            },
            "helm": {
                "repositories": [{"name": "own", "url": "http://charts.test"}],
                "releases": [
                    {"name": "stacklight", "chart": "own/stacklight", "version": "1", "values": {"size": "small", "logging": {"enabled": true, "days": 3}}},
                    {"name": "ingress", "chart": "own/ingress", "version": "2", "requires": ["stacklight"]},
                ],
            },
            "allowedNodeLabels": [{"key": "stacklight", "value": "enabled"}],
            "allowedDistributions": [
                {"id": "ubuntu/jammy", "image": {"url": "http://images.test/jammy.qcow2", "checksum": "aa"}},
                {"id": "ubuntu/noble", "default": true, "image": {"url": "http://images.test/noble.qcow2", "checksum": "bb"}},
            ],
        },
    })
}

/// The Cluster that upstream publishes, with this merged into its value.
pub fn cluster(name: &str, change: Value) -> Value {
    let mut value = json!({
        "apiVersion": API_VERSION, "kind": CLUSTER_KIND, "release": "mosk-1", "publicKeys": [{"name": "ops-key"}],
        "dedicatedControlPlane": true, "dedicatedMetallbPools": false, "loadBalancerHost": "192.0.2.5",
        "helmReleases": [{"name": "stacklight", "enabled": true, "values": {"logging": {"days": 9}}}],
    });
    json_patch::merge(&mut value, &change);
    json!({
        "metadata": {"name": name, "labels": {"kaas.mirantis.com/provider": "baremetal"}},
        "spec": {
            "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/16"]}, "pods": {"cidrBlocks": ["10.244.0.0/16"]}},
            "providerSpec": {"value": value},
        },
    })
}

/// The Machine that upstream publishes, with this merged into its value.
pub fn machine(name: &str, cluster: &str, control: bool, change: Value) -> Value {
    let mut value = json!({
        "apiVersion": API_VERSION, "kind": MACHINE_KIND,
        "hostSelector": {"matchLabels": {"kaas.mirantis.com/baremetalhost-id": name}},
        "bareMetalHostProfile": {"name": "prof-a", "namespace": NAMESPACE},
    });
    json_patch::merge(&mut value, &change);
    let mut labels = json!({LABEL_CLUSTER: cluster, "kaas.mirantis.com/provider": "baremetal"});
    if control {
        labels[LABEL_CONTROL_PLANE] = json!("true");
    }
    json!({"metadata": {"name": name, "labels": labels}, "spec": {"providerSpec": {"value": value}}})
}

/// The label by which a Machine of this name selects its host.
pub fn of(machine: &str) -> Value {
    json!({"kaas.mirantis.com/baremetalhost-id": machine})
}

/// Where the objects of a kind are.
pub fn path(group: &str, plural: &str, rest: &str) -> String {
    let group = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}") };
    format!("{group}/namespaces/{NAMESPACE}/{plural}{rest}")
}

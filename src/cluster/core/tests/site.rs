//! An API with the controllers of this room, and who plays the rest.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::Shared;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::{Kind, StoragePolicy};
use crate::apiserver::ApiServer;
use crate::cluster::core::ClusterLife;
use crate::cluster::workload::Workloads;
use crate::cluster::workload::played_tests::Played;
use crate::engine::Fence;
use crate::module::{Acting, Life};
use crate::modules::kinds;
use crate::runtime::{Tasks, Watches, conditions};
use crate::store::{Store, StoreOptions};

/// Everything lies in this namespace.
pub(super) const NAMESPACE: &str = "default";
const DEADLINE: Duration = Duration::from_secs(240);

pub(super) struct Site {
    pub client: Client,
    /// The cluster `c`, once it is made.
    pub played: Played,
    /// What the controllers have read.
    pub reads: Reads,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The paths that were read, and whether only metadata was asked for. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Reads(Arc<Mutex<Vec<(String, bool)>>>);

impl Reads {
    /// A client whose reads are noted here.
    fn noted(&self, client: &Client) -> Client {
        let (client, reads) = (client.clone(), self.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            if request.method() == http::Method::GET {
                let accept = request.headers().get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok());
                let is_metadata = accept.is_some_and(|accept| accept.contains("PartialObjectMetadata"));
                reads.0.lock().unwrap().push((request.uri().path().to_owned(), is_metadata));
            }
            let client = client.clone();
            async move { client.send(request).await }
        });
        Client::new(service, NAMESPACE)
    }

    /// How often a path that ends so was read: whole, and of its metadata only.
    pub(super) fn of(&self, end: &str) -> (usize, usize) {
        let reads = self.0.lock().unwrap();
        let count = |metadata| reads.iter().filter(|(path, only)| path.ends_with(end) && *only == metadata).count();
        (count(false), count(true))
    }
}

/// A client that hears nothing of changes of machines before `heard`.
fn deaf(client: &Client, heard: Shared<impl Future<Output = ()> + Send + 'static>) -> Client {
    let client = client.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, heard) = (client.clone(), heard.clone());
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
            if is_watch && request.uri().path().ends_with("/machines") {
                heard.await;
            }
            client.send(request).await
        }
    });
    Client::new(service, NAMESPACE)
}

/// A kind that the tests play a provider for.
fn played(group: &str, kind: &str) -> ApiResource {
    let plural = format!("{}s", kind.to_lowercase());
    let group = format!("{group}.cluster.x-k8s.io");
    let api_version = format!("{group}/v1beta2");
    ApiResource { group, version: "v1beta2".into(), api_version, kind: kind.into(), plural }
}

const PLAYED: [(&str, &str); 11] = [
    ("infrastructure", "TestCluster"),
    ("infrastructure", "TestMachine"),
    ("infrastructure", "TestMachineTemplate"),
    ("infrastructure", "TestRemediation"),
    ("infrastructure", "TestRemediationTemplate"),
    ("bootstrap", "TestConfig"),
    ("bootstrap", "TestConfigTemplate"),
    ("controlplane", "TestControlPlane"),
    ("controlplane", "TestControlPlaneTemplate"),
    ("addons", "TestAddon"),
    // What another tool keeps in the group, and clusters may not name.
    ("infrastructure", "TestIdentity"),
];

fn definition(resource: &ApiResource) -> Kind {
    let (group, kind, plural) = (&resource.group, &resource.kind, &resource.plural);
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let label = if kind == "TestIdentity" { "example.org/v1" } else { "cluster.x-k8s.io/v1beta2" };
    let crd = json!({
        "metadata": {"name": format!("{plural}.{group}"), "labels": {label: "v1beta2"}},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}}}],
        },
    });
    Kind::new(serde_json::from_value(crd).unwrap(), StoragePolicy::Durable)
}

impl Site {
    pub(super) async fn new() -> Self {
        Self::patient(Duration::from_millis(200)).await
    }

    /// Where a cluster that does not answer is waited for so long.
    pub(super) async fn patient(patience: Duration) -> Self {
        Self::behind(patience, std::future::ready(())).await
    }

    /// Where nothing is heard of changes of machines before `heard`.
    pub(super) async fn behind(patience: Duration, heard: impl Future<Output = ()> + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
        let shutdown = CancellationToken::new();
        let mut all = kinds();
        all.extend(PLAYED.iter().map(|(group, kind)| definition(&played(group, kind))));
        let api = ApiServer::new(Store::open(options).unwrap(), &all, shutdown.clone()).await.unwrap();
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let workloads = Workloads::new(Vec::new());
        let cluster = Played::default();
        workloads.play(NAMESPACE, "c", cluster.client());
        let mut watches = Watches::default();
        let life = ClusterLife::new(&mut watches, workloads).within(Duration::from_millis(50), patience);
        tokio::spawn(watches.run(deaf(&client, heard.shared()), shutdown.clone()));
        let reads = Reads::default();
        let acting = Acting {
            client: reads.noted(&client),
            fence: Fence::open(),
            tasks: Tasks::default(),
            store: None,
            stop: shutdown.clone(),
        };
        for (_, service) in life.act(&acting).unwrap() {
            tokio::spawn(service);
        }
        Self { client, played: cluster, reads, shutdown, _folder: folder }
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Objects of a kind that the tests play.
    pub(super) fn of(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), NAMESPACE, &resource(kind))
    }

    /// Makes an object of a kind that the tests play.
    pub(super) async fn play(&self, kind: &str, name: &str, spec: Value) {
        let object = DynamicObject::new(name, &resource(kind)).data(json!({ "spec": spec }));
        self.of(kind).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Says something of an object of a kind that the tests play, as its provider would.
    pub(super) async fn tell(&self, kind: &str, name: &str, spec: Value, status: Value) {
        let api = self.of(kind);
        let patch = |patch: Value| Patch::Merge(patch);
        api.patch(name, &PatchParams::default(), &patch(json!({ "spec": spec }))).await.unwrap();
        api.patch_status(name, &PatchParams::default(), &patch(json!({ "status": status }))).await.unwrap();
    }

    /// Puts the finalizer of a provider on an object, or takes it off.
    pub(super) async fn hold(&self, kind: &str, name: &str, held: bool) {
        let finalizers: &[&str] = if held { &["test/provider"] } else { &[] };
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        self.of(kind).patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Says whose an object of a kind is that the tests play.
    pub(super) async fn own(&self, kind: &str, name: &str, owners: Value) {
        let patch = Patch::Merge(json!({ "metadata": { "ownerReferences": owners } }));
        self.of(kind).patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Makes an object as a client of either version writes it.
    pub(super) async fn apply(&self, object: Value) {
        let version = object["apiVersion"].as_str().unwrap().to_owned();
        let (group, version) = version.split_once('/').unwrap();
        let kind = object["kind"].as_str().unwrap().to_owned();
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: format!("{group}/{version}"),
            plural: format!("{}s", kind.to_lowercase()),
            kind,
        };
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), NAMESPACE, &resource);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    pub(super) async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// The object, once it is so.
    pub(super) async fn until<K>(&self, what: &str, name: &str, met: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api = self.api::<K>();
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

    /// Waits until something is so.
    pub(super) async fn when(&self, what: &str, met: impl AsyncFn() -> bool) {
        let wait = async {
            while !met().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
    }

    /// Waits until an object is gone.
    pub(super) async fn gone<K>(&self, name: &str)
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let what = format!("{} {name} goes", K::kind(&()));
        self.when(&what, async || self.api::<K>().get_opt(name).await.unwrap().is_none()).await;
    }

    /// A cluster whose infrastructure is there and whose control plane answers.
    pub(super) async fn made_cluster(&self) {
        self.play("TestCluster", "c", json!({})).await;
        self.play("TestControlPlane", "c", json!({})).await;
        self.apply(cluster()).await;
        let endpoint = json!({"controlPlaneEndpoint": {"host": "192.0.2.1", "port": 6443}});
        self.tell("TestCluster", "c", endpoint, json!({"initialization": {"provisioned": true}})).await;
        let status = json!({"initialization": {"controlPlaneInitialized": true}});
        self.tell("TestControlPlane", "c", json!({}), status).await;
        self.until::<Cluster>("the control plane answers", "c", |cluster| {
            let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
            done.is_some_and(|done| done.control_plane_initialized == Some(true))
        })
        .await;
    }

    /// A machine with the objects that it names.
    pub(super) async fn machine(&self, name: &str, labels: Value) {
        self.play("TestConfig", name, json!({})).await;
        self.play("TestMachine", name, json!({})).await;
        let mut machine = machine(name);
        machine["metadata"]["labels"] = labels;
        self.apply(machine).await;
    }

    /// The machine's providers have done their part, and its node is there.
    pub(super) async fn running(&self, name: &str) {
        self.provision(name).await;
        self.until::<Machine>("it runs", name, |machine| {
            machine.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Ready"))
        })
        .await;
    }

    /// The machine's providers do their part.
    pub(super) async fn provision(&self, name: &str) {
        let secret = json!({"initialization": {"dataSecretCreated": true}, "dataSecretName": format!("{name}-data")});
        self.tell("TestConfig", name, json!({}), secret).await;
        self.played.node(name, &format!("test://{name}"));
        let status = json!({"initialization": {"provisioned": true},
            "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}], "failureDomain": "row-1"});
        self.tell("TestMachine", name, json!({"providerID": format!("test://{name}")}), status).await;
    }
}

fn resource(kind: &str) -> ApiResource {
    let (group, kind) = PLAYED.iter().find(|(_, played)| *played == kind).unwrap();
    played(group, kind)
}

pub(super) fn reference(group: &str, kind: &str, name: &str) -> Value {
    json!({"apiGroup": format!("{group}.cluster.x-k8s.io"), "kind": kind, "name": name})
}

pub(super) fn cluster() -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c"},
        "spec": {
            "infrastructureRef": reference("infrastructure", "TestCluster", "c"),
            "controlPlaneRef": reference("controlplane", "TestControlPlane", "c"),
        },
    })
}

pub(super) fn machine(name: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": {"name": name},
        "spec": {
            "clusterName": "c", "version": "v1.35.0",
            "bootstrap": {"configRef": reference("bootstrap", "TestConfig", name)},
            "infrastructureRef": reference("infrastructure", "TestMachine", name),
        },
    })
}

/// What a condition says: its status and reason.
pub(super) fn says(conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition], type_: &str) -> String {
    let found = conditions::find(conditions, type_);
    found.map(|condition| format!("{} {}", condition.status, condition.reason)).unwrap_or_default()
}

/// Whether an object is owned by one of this kind and name.
pub(super) fn is_of(object: &impl ResourceExt, kind: &str, name: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.kind == kind && owner.name == name)
}

/// Machines of this many, from templates of this name.
pub(super) fn workers(kind: &str, name: &str, replicas: i32, template: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name},
        "spec": {
            "clusterName": "c", "replicas": replicas,
            "template": {"metadata": {"labels": {"tier": "web"}}, "spec": {
                "clusterName": "c", "version": "v1.35.0",
                "bootstrap": {"configRef": reference("bootstrap", "TestConfigTemplate", template)},
                "infrastructureRef": reference("infrastructure", "TestMachineTemplate", template),
            }},
        },
    })
}

impl Site {
    /// The templates that workers are made from.
    pub(super) async fn templates(&self, name: &str) {
        let inner = json!({"template": {"metadata": {"labels": {"made": "so"}}, "spec": {"from": name}}});
        self.play("TestConfigTemplate", name, inner.clone()).await;
        self.play("TestMachineTemplate", name, inner).await;
    }

    /// The machines that there are, those that go left out.
    pub(super) async fn machines(&self) -> Vec<Machine> {
        let mut machines = self.api::<Machine>().list(&Default::default()).await.unwrap().items;
        machines.retain(|machine| machine.metadata.deletion_timestamp.is_none());
        machines
    }

    /// Plays the providers of all machines until something is so.
    pub(super) async fn provide_until(&self, what: &str, met: impl AsyncFn() -> bool) {
        self.when(what, async || {
            for machine in self.machines().await {
                let name = machine.name_any();
                let there = self.of("TestMachine").get_opt(&name).await.unwrap();
                let both = there.is_some() && self.of("TestConfig").get_opt(&name).await.unwrap().is_some();
                if both && machine.spec.provider_id.is_none() {
                    self.provision(&name).await;
                }
            }
            met().await
        })
        .await;
    }
}

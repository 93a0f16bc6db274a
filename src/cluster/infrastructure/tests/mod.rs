//! Metal3's objects through the API that their users have: hosts, Machines and Clusters are played, and so is the made cluster.

mod clusters;
mod data;
mod machines;
mod nodes;
mod racing;
mod remediations;

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;
use crate::apiserver::ApiServer;
use crate::cluster::infrastructure::machine::Pauses;
use crate::cluster::workload::played_tests::Played;
use crate::modules::kinds;
use crate::runtime::conditions::find;
use crate::store::{Store, StoreOptions};

const NAMESPACE: &str = "default";
const SHORT: Duration = Duration::from_millis(50);

/// An appliance's API, with the controllers of this room.
struct Site {
    client: Client,
    workloads: Workloads,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// An object of a kind that has a namespace.
trait Object:
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

impl Site {
    async fn new() -> Self {
        Self::with_controllers(1).await
    }

    /// So many controllers, each with what it knows itself.
    async fn with_controllers(many: usize) -> Self {
        Self::with(many, Pauses { node: SHORT, data: SHORT }).await
    }

    async fn with(many: usize, pauses: Pauses) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 10_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let workloads = Workloads::new(Vec::new());
        let rules = Infrastructure { caches: None, workloads: workloads.clone() };
        rules.admission().into_iter().for_each(|(resource, admission)| api.add_admission(resource, admission));
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        for _ in 0..many {
            let mut watches = Watches::default();
            let hosts = HostPool::new(&mut watches);
            let InfrastructureCaches { clusters, machines, remediations, hosts } =
                InfrastructureCaches::new(&mut watches, hosts);
            tokio::spawn(watches.run(client.clone(), shutdown.clone()));
            let keeper = Metal3MachineReconciler::new(client.clone(), hosts, workloads.clone(), pauses);
            let healer = Remediations::new(client.clone(), workloads.clone(), SHORT);
            tokio::spawn(Metal3ClusterReconciler::new(client.clone(), clusters).run(shutdown.clone()));
            tokio::spawn(keeper.run(machines, shutdown.clone()));
            tokio::spawn(healer.run(remediations, shutdown.clone()));
        }
        Self { client, workloads, shutdown, _folder: folder }
    }

    fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K: Object>(&self, object: Value) -> K {
        self.try_create(object).await.unwrap()
    }

    async fn try_create<K: Object>(&self, mut object: Value) -> Result<K, kube::Error> {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let object: K = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await
    }

    async fn get<K: Object>(&self, name: &str) -> Option<K> {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    /// Merges a patch, and the status of it into the status.
    async fn change<K: Object>(&self, name: &str, patch: Value) {
        let api = self.api::<K>();
        if patch.get("status").is_some() {
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        }
        if patch.get("spec").is_some() || patch.get("metadata").is_some() {
            api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        }
    }

    async fn delete<K: Object>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Waits until an object is so; `None` when it is gone.
    async fn until<K: Object>(&self, name: &str, what: &str, met: impl Fn(Option<&K>) -> bool) -> Option<K> {
        let wait = async {
            loop {
                let object = self.get::<K>(name).await;
                if met(object.as_ref()) {
                    return object;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(240), wait).await {
            Ok(object) => object,
            Err(_) => panic!("not in time: {name} {what}: {}", json!(self.get::<K>(name).await)),
        }
    }

    async fn gone<K: Object>(&self, name: &str) {
        self.until::<K>(name, "is gone", |object| object.is_none()).await;
    }

    async fn host(&self, name: &str, what: &str, met: impl Fn(&BareMetalHost) -> bool) -> BareMetalHost {
        self.until(name, what, |host| host.is_some_and(&met)).await.unwrap()
    }

    async fn machine(&self, name: &str, what: &str, met: impl Fn(&Metal3Machine) -> bool) -> Metal3Machine {
        self.until(name, what, |machine| machine.is_some_and(&met)).await.unwrap()
    }

    /// Waits until a condition of a machine has this reason, and says what it says.
    async fn says(&self, machine: &str, type_: &str, reason: &str) -> String {
        let said = |machine: &Metal3Machine| {
            let status = machine.status.as_ref()?;
            let condition = find(&status.conditions, type_).filter(|condition| condition.reason == reason)?;
            Some(condition.message.clone())
        };
        let machine = self.machine(machine, &format!("{type_} {reason}"), |machine| said(machine).is_some()).await;
        said(&machine).unwrap()
    }

    /// A cluster whose infrastructure is there.
    async fn cluster(&self, name: &str) -> Cluster {
        let reference = json!({"kind": "Metal3Cluster", "name": name, "apiGroup": "infrastructure.cluster.x-k8s.io"});
        let cluster: Cluster =
            self.create(json!({"metadata": {"name": name}, "spec": {"infrastructureRef": reference}})).await;
        self.create::<Metal3Cluster>(json!({
            "metadata": {"name": name, "ownerReferences": [owner(&cluster)], "labels": {"cluster.x-k8s.io/cluster-name": name}},
            "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}},
        }))
        .await;
        self.change::<Cluster>(name, json!({"status": {"initialization": {"infrastructureProvisioned": true}}})).await;
        cluster
    }

    /// A Machine and its Metal3Machine, with user data; `change` is merged into the latter.
    async fn wish(&self, name: &str, cluster: &str, change: Value) -> Machine {
        self.wish_of(name, cluster, json!({}), change).await
    }

    async fn wish_of(&self, name: &str, cluster: &str, labels: Value, change: Value) -> Machine {
        let secret = format!("{name}-data");
        self.create::<Secret>(json!({"metadata": {"name": secret}, "stringData": {"value": "#cloud-config"}})).await;
        let mut machine = json!({
            "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": cluster}},
            "spec": {
                "clusterName": cluster,
                "bootstrap": {"dataSecretName": secret,
                    "configRef": {"kind": "KubeadmConfig", "name": name, "apiGroup": "bootstrap.cluster.x-k8s.io"}},
                "infrastructureRef": {"kind": "Metal3Machine", "name": name, "apiGroup": "infrastructure.cluster.x-k8s.io"},
            },
        });
        json_patch::merge(&mut machine["metadata"]["labels"], &labels);
        let machine: Machine = self.create(machine).await;
        let mut metal3 = json!({
            "metadata": {"name": name, "ownerReferences": [owner(&machine)], "labels": {"cluster.x-k8s.io/cluster-name": cluster}},
            "spec": {"image": {"url": "http://images.test/os.raw", "checksum": "aa", "diskFormat": "raw"}},
        });
        json_patch::merge(&mut metal3, &change);
        self.create::<Metal3Machine>(metal3).await;
        machine
    }

    /// A free host; `change` is merged into it.
    async fn free(&self, name: &str, change: Value) {
        let mut host = json!({"metadata": {"name": name}, "spec": {"online": false}});
        json_patch::merge(&mut host, &change);
        let status = host.as_object_mut().unwrap().remove("status");
        self.create::<BareMetalHost>(host).await;
        let mut played = json!({"status": {"provisioning": {"state": "available"}}});
        json_patch::merge(&mut played["status"], &status.unwrap_or(json!({})));
        self.change::<BareMetalHost>(name, played).await;
    }

    async fn state(&self, host: &str, state: &str) {
        self.change::<BareMetalHost>(host, json!({"status": {"provisioning": {"state": state}}})).await;
    }

    /// The cluster answers from now on.
    fn answers(&self, cluster: &str) -> Played {
        let played = Played::default();
        self.workloads.play(NAMESPACE, cluster, played.client());
        played
    }

    /// Brings a machine to where it is a node.
    async fn node(&self, machine: &str, host: &str, cluster: &Played) {
        let found = self.host(host, "is told what to run", |host| host.spec.image.is_some()).await;
        self.state(host, "provisioned").await;
        put_node(cluster, machine, json!({"metal3.io/uuid": found.uid().unwrap()}));
        self.machine(machine, "is provisioned", is_provisioned).await;
    }
}

fn owner<K: Object>(object: &K) -> Value {
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "name": object.name_any(), "uid": object.uid().unwrap()})
}

fn is_provisioned(machine: &Metal3Machine) -> bool {
    let status = machine.status.as_ref();
    status.and_then(|status| status.initialization.as_ref()?.provisioned) == Some(true)
}

fn consumer(host: &BareMetalHost) -> Option<String> {
    let consumer = host.spec.consumer_ref.as_ref()?;
    Some(format!("{} {}", consumer.kind.as_deref().unwrap_or_default(), consumer.name.as_deref().unwrap_or_default()))
}

fn is_of(host: &BareMetalHost, machine: &str) -> bool {
    consumer(host) == Some(format!("Metal3Machine {machine}"))
}

/// A node with these labels, that has no identity yet.
fn put_node(cluster: &Played, name: &str, labels: Value) {
    let metadata = json!({"name": name, "uid": format!("uid-{name}"), "labels": labels});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": {}});
    cluster.put(&format!("/api/v1/nodes/{name}"), node);
}

fn node(cluster: &Played, name: &str) -> Value {
    cluster.get(&format!("/api/v1/nodes/{name}")).unwrap_or_default()
}

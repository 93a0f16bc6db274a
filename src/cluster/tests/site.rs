//! An appliance with all rooms of clusters, which can be killed and begins again.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::rack::Rack;
use crate::apiserver::ApiServer;
use crate::cluster::bootstrap::BootstrapLife;
use crate::cluster::certificates::ClusterSecrets;
use crate::cluster::control_plane::ControlPlanes;
use crate::cluster::control_plane::played_tests::{PlayedEtcds, hurried};
use crate::cluster::core::ClusterLife;
use crate::cluster::data::MachineData;
use crate::cluster::hosts::HostPool;
use crate::cluster::infrastructure::Infrastructure;
use crate::cluster::infrastructure::machine::Pauses;
use crate::cluster::ipam::IpamLife;
use crate::cluster::workload::Workloads;
use crate::engine::Fence;
use crate::module::{Acting, Life, Service};
use crate::modules::kinds;
use crate::outbound::Allowed;
use crate::runtime::mortal_tests::mortal;
use crate::runtime::{Tasks, Watches};
use crate::store::{Store, StoreOptions};

/// Everything lies in this namespace, as in the published manifests.
pub(super) const NAMESPACE: &str = "metal3";
/// What is looked at now and then is looked at so often.
const PAUSE: Duration = Duration::from_millis(50);
/// How long what is deleted waits for a cluster that does not answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a test waits for something.
const DEADLINE: Duration = Duration::from_secs(240);
/// Between two looks of a test.
const GLANCE: Duration = Duration::from_millis(10);

/// An appliance, its rack and the clusters that it makes.
pub(super) struct Site {
    pub(super) client: Client,
    pub(super) rack: Rack,
    workloads: Workloads,
    services: Vec<JoinHandle<()>>,
    acting: CancellationToken,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.acting.cancel();
        self.shutdown.cancel();
    }
}

/// An object of a kind that has a namespace.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

impl Site {
    /// An appliance that acts, with clusters of these names to be made.
    pub(super) async fn new(clusters: &[&str]) -> Self {
        let mut site = Self::idle(clusters).await;
        site.act(&site.client.clone());
        site
    }

    /// One whose controllers have not begun.
    pub(super) async fn idle(clusters: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 20_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        // Where clusters are that are not played.
        let workloads = Workloads::new(vec!["127.0.0.1".parse::<Allowed>().unwrap()]);
        let rules = Rooms::new(&mut Watches::default(), &workloads, &PlayedEtcds::default()).admission();
        rules.into_iter().for_each(|(kind, rules)| api.add_admission(kind, rules));
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let rack = Rack::new(client.clone(), &workloads, clusters, shutdown.clone());
        let acting = shutdown.child_token();
        Self { client, rack, workloads, services: Vec::new(), acting, shutdown, _folder: folder }
    }

    /// Begins as a process that starts does, with nothing but what is stored.
    fn act(&mut self, client: &Client) {
        self.acting = self.shutdown.child_token();
        let mut watches = Watches::default();
        let rooms = Rooms::new(&mut watches, &self.workloads, self.rack.etcds());
        tokio::spawn(watches.run(self.client.clone(), self.acting.clone()));
        let (fence, tasks) = (Fence::open(), Tasks::default());
        let acting = Acting { client: client.clone(), fence, tasks, store: None, stop: self.acting.clone() };
        self.services =
            rooms.services(&acting).into_iter().map(|(_, run)| tokio::spawn(async { run.await.unwrap() })).collect();
    }

    /// Begins, and dies right after so many writes, of whose last nobody hears any more. Whether it died yet says the number:
    /// it is negative then.
    pub(super) fn act_and_die_after(&mut self, writes: i64) -> Arc<AtomicI64> {
        let left = Arc::new(AtomicI64::new(writes));
        self.act(&mortal(&self.client, &left));
        left
    }

    /// The process is killed: what it was about to do is not done.
    pub(super) fn kill(&mut self) {
        self.acting.cancel();
        self.services.drain(..).for_each(|service| service.abort());
    }

    /// Begins anew.
    pub(super) fn revive(&mut self) {
        self.act(&self.client.clone());
    }

    pub(super) fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Objects of a kind in a version, whose plural is the kind's with an s.
    pub(super) fn of(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: api_version.into(),
            kind: kind.into(),
            plural: format!("{}s", kind.to_lowercase()),
        };
        Api::namespaced_with(self.client.clone(), NAMESPACE, &resource)
    }

    /// Makes an object as its user wrote it.
    pub(super) async fn apply(&self, object: &Value) {
        self.try_apply(object).await.unwrap_or_else(|error| panic!("{object:#}: {error}"));
    }

    pub(super) async fn apply_all(&self, objects: &[Value]) {
        for object in objects {
            self.apply(object).await;
        }
    }

    pub(super) async fn try_apply(&self, object: &Value) -> Result<DynamicObject, kube::Error> {
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let made: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        self.of(version, kind).create(&PostParams::default(), &made).await
    }

    /// An object as JSON, in a version.
    pub(super) async fn seen(&self, api_version: &str, kind: &str, name: &str) -> Value {
        json!(self.of(api_version, kind).get(name).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}")))
    }

    pub(super) async fn get<K: Object>(&self, name: &str) -> Option<K> {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    /// All objects of a kind, by name.
    pub(super) async fn all<K: Object>(&self) -> Vec<K> {
        let mut all = self.api::<K>().list(&ListParams::default()).await.unwrap().items;
        all.sort_by_key(ResourceExt::name_any);
        all
    }

    /// What an object of a kind says of itself, as a text; nothing when it is not there.
    pub(super) async fn says<K: Object + serde::Serialize>(&self, name: &str) -> String {
        self.get::<K>(name).await.map(|object| json!(object)["status"].to_string()).unwrap_or_default()
    }

    pub(super) async fn patch<K: Object>(&self, name: &str, patch: Value) {
        self.try_patch::<K>(name, patch).await.unwrap();
    }

    pub(super) async fn try_patch<K: Object>(&self, name: &str, patch: Value) -> Result<K, kube::Error> {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
    }

    pub(super) async fn delete<K: Object>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Waits until something is so. What the site looks like is told when it is not in time.
    pub(super) async fn until(&self, what: &str, met: impl AsyncFn() -> bool) {
        let wait = async {
            while !met().await {
                tokio::time::sleep(GLANCE).await;
            }
        };
        if tokio::time::timeout(DEADLINE, wait).await.is_err() {
            panic!("not in time: {what}\n{}", self.story().await);
        }
    }

    /// What hosts and machines are about, in a few lines.
    pub(super) async fn story(&self) -> String {
        use crate::api::cluster::v1beta2::Machine;
        use crate::api::infrastructure::v1beta2::Metal3Machine;
        use crate::api::metal3::BareMetalHost;
        let mut lines = Vec::new();
        for host in self.all::<BareMetalHost>().await {
            let (spec, status) = (json!(host.spec), json!(host.status));
            let state = &status["provisioning"]["state"];
            lines.push(format!(
                "{}: {state} {} {}",
                host.name_any(),
                spec["consumerRef"]["name"],
                status["errorMessage"]
            ));
        }
        let untrue = |conditions: &Value| -> Vec<String> {
            let all = conditions.as_array().into_iter().flatten();
            let untrue = all.filter(|one| one["status"] != "True" && one["message"] != "");
            untrue.map(|one| format!("{} {}", one["type"], one["message"])).collect()
        };
        for machine in self.all::<Machine>().await {
            let status = json!(machine.status);
            lines.push(format!("{}: {} {:?}", machine.name_any(), status["phase"], untrue(&status["conditions"])));
        }
        for machine in self.all::<Metal3Machine>().await {
            lines.push(format!("{}: {:?}", machine.name_any(), untrue(&json!(machine.status)["conditions"])));
        }
        lines.push(format!("{:?}", self.rack.faults()));
        lines.join("\n")
    }
}

/// All rooms that act on clusters, in the order in which the program begins them.
struct Rooms {
    core: ClusterLife,
    control_plane: ControlPlanes,
    infrastructure: Infrastructure,
    certificates: ClusterSecrets,
    bootstrap: BootstrapLife,
    data: MachineData,
    ipam: IpamLife,
}

impl Rooms {
    fn new(watches: &mut Watches, workloads: &Workloads, etcds: &PlayedEtcds) -> Self {
        let workloads = || workloads.clone();
        let hosts = HostPool::new(watches);
        Self {
            core: ClusterLife::new(watches, workloads()).within(PAUSE, PATIENCE),
            control_plane: hurried(ControlPlanes::new(watches, workloads(), true), etcds, PAUSE),
            infrastructure: Infrastructure::new(watches, Some(hosts), workloads()),
            certificates: ClusterSecrets::new(watches).within(PAUSE),
            bootstrap: BootstrapLife::new(watches, workloads()).hurried(PAUSE),
            data: MachineData::watching(watches),
            ipam: IpamLife::watching(watches, true),
        }
    }

    fn admission(&self) -> Vec<(&'static str, crate::apiserver::AdmissionRules)> {
        let lives: [&dyn Life; 7] = [
            &self.core,
            &self.control_plane,
            &self.infrastructure,
            &self.certificates,
            &self.bootstrap,
            &self.data,
            &self.ipam,
        ];
        lives.into_iter().flat_map(Life::admission).collect()
    }

    fn services(&self, acting: &Acting) -> Vec<Service> {
        let pauses = Pauses { node: PAUSE, data: PAUSE };
        let mut all = self.infrastructure.services(acting, pauses, PAUSE);
        let lives: [&dyn Life; 6] =
            [&self.core, &self.control_plane, &self.certificates, &self.bootstrap, &self.data, &self.ipam];
        all.extend(lives.into_iter().flat_map(|life| life.act(acting).unwrap()));
        all
    }
}

//! A cluster that was made, its machines and its etcd, played.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::PATIENCE;
use crate::api::bootstrap::v1beta2::KubeadmConfig;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::control_plane::ANNOTATION_CLEANUP_HOOK;
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::api::infrastructure::v1beta2::{Metal3Machine, Metal3MachineTemplate};
use crate::apiserver::ApiServer;
use crate::cluster::control_plane::ControlPlanes;
use crate::cluster::control_plane::controller::ControlPlaneTimes;
use crate::cluster::control_plane::etcd::{EtcdConnector, EtcdMembers};
use crate::cluster::control_plane::health::{NODE_LABEL, PODS};
use crate::cluster::control_plane::plan::{EtcdMember, EtcdStatus};
use crate::cluster::workload::{Workload, Workloads};
use crate::engine::Fence;
use crate::module::{Acting, Life};
use crate::modules::kinds;
use crate::runtime::{Tasks, Watches};
use crate::store::{Store, StoreOptions};

pub(super) const NAMESPACE: &str = "default";
pub(super) const CLUSTER: &str = "one";
const FINALIZER_MACHINE: &str = "machine.cluster.x-k8s.io";
pub(super) const TIMES: ControlPlaneTimes = ControlPlaneTimes {
    pause: Duration::from_millis(50),
    settled: Duration::from_millis(200),
    grace: Duration::ZERO,
    messages: Duration::ZERO,
    budget: PATIENCE,
};

/// A cluster that was made.
#[derive(Default)]
pub(super) struct Played(Mutex<State>);

#[derive(Default)]
struct State {
    /// Objects by their path.
    objects: BTreeMap<String, Value>,
    etcd: EtcdStatus,
    next_id: u64,
    handed_over: usize,
    /// Fewest members since there were three.
    least: Option<usize>,
    /// Machines whose pods do not run.
    failed: BTreeSet<String>,
    silent: bool,
    /// No request ends.
    hangs: bool,
    /// How many requests were refused, each with another text; nothing while they are answered.
    refused: Option<usize>,
    /// Most machines that had no node at once.
    most: usize,
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

impl Played {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn members(&self) -> Vec<EtcdMember> {
        self.state().etcd.members.clone()
    }

    pub(super) fn handed_over(&self) -> usize {
        self.state().handed_over
    }

    pub(super) fn least_members(&self) -> usize {
        self.state().least.unwrap_or_default()
    }

    pub(super) fn most_at_once(&self) -> usize {
        self.state().most
    }

    pub(super) fn kept(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    pub(super) fn silence(&self) {
        self.state().silent = true;
    }

    /// From now on each request is refused with a text of its own.
    pub(super) fn refuse(&self) {
        self.state().refused = Some(0);
    }

    /// Requests that were refused.
    pub(super) fn refused(&self) -> usize {
        self.state().refused.unwrap_or_default()
    }

    /// From now on no request ends.
    pub(super) fn hang(&self) {
        self.state().hangs = true;
    }

    /// The pods of a machine end.
    pub(super) fn fail(&self, machine: &str) {
        let mut state = self.state();
        state.failed.insert(machine.to_owned());
        let end = format!("-{machine}");
        for (path, object) in &mut state.objects {
            if path.contains("/pods/") && path.ends_with(&end) {
                object["status"] = json!({"phase": "Failed"});
            }
        }
    }

    /// A machine has become a node.
    fn join(&self, name: &str) {
        let mut state = self.state();
        if state.objects.contains_key(&node_path(name)) {
            return;
        }
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {NODE_LABEL: ""}},
            "spec": {"taints": [{"key": NODE_LABEL, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        state.objects.insert(node_path(name), node);
        for (_, pod) in PODS {
            let pod_name = format!("{pod}-{name}");
            let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_name, "namespace": "kube-system"}, "status": status});
            state.objects.insert(format!("/api/v1/namespaces/kube-system/pods/{pod_name}"), pod);
        }
        let id = state.next_id + 1;
        state.next_id = id;
        state.etcd.members.push(EtcdMember { id, name: name.into(), learner: false });
        let config = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
        if !state.objects.contains_key(config) {
            state.etcd.leader = id;
            let text = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.33.0\n";
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
                "data": {"ClusterConfiguration": text}});
            state.objects.insert(config.into(), map);
            let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
                "spec": {"selector": {}, "template": {"spec": {"containers": [
                    {"name": "kube-proxy", "image": "registry.k8s.io/kube-proxy:v1.33.0"}]}}}});
            state.objects.insert("/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy".into(), set);
        }
        let count = state.etcd.members.len();
        state.least = state.least.map(|least| least.min(count)).or((count >= 3).then_some(count));
    }

    fn leave(&self, name: &str) {
        let mut state = self.state();
        let end = format!("-{name}");
        state.objects.retain(|path, _| *path != node_path(name) && !(path.contains("/pods/") && path.ends_with(&end)));
    }

    fn client(self: &Arc<Self>) -> Client {
        let played = self.clone();
        let answer = move |request: Request<Body>| {
            let played = played.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let hangs = played.state().hangs;
                if hangs {
                    std::future::pending::<()>().await;
                }
                let (code, answer) = played.answer(&head.method, head.uri.path(), &body);
                let response = Response::builder().status(code).body(Full::<Bytes>::from(answer.to_string()));
                Ok::<_, Infallible>(response.unwrap())
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let mut state = self.state();
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code}),
            )
        };
        if state.silent {
            return status(503, "ServiceUnavailable");
        }
        if let Some(refused) = &mut state.refused {
            *refused += 1;
            return status(503, &format!("request {refused} is refused"));
        }
        let sent = || serde_json::from_slice::<Value>(body).unwrap();
        match method.as_str() {
            "GET" if path.ends_with("/pods") => {
                let all = state
                    .objects
                    .iter()
                    .filter(|(one, _)| one.starts_with(&format!("{path}/")))
                    .map(|(_, pod)| pod.clone());
                (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": all.collect::<Vec<_>>()}))
            }
            "GET" => state.objects.get(path).map_or_else(|| status(404, "NotFound"), |found| (200, found.clone())),
            "POST" => {
                let object = sent();
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                state.objects.insert(path, object.clone());
                (201, object)
            }
            "PATCH" => {
                let Some(object) = state.objects.get_mut(path) else { return status(404, "NotFound") };
                json_patch::merge(object, &sent());
                (200, object.clone())
            }
            other => panic!("{other} {path}"),
        }
    }
}

/// etcd of the played cluster.
struct PlayedDoor(Arc<Played>);

#[async_trait]
impl EtcdConnector for PlayedDoor {
    async fn open(&self, _: &Client, _: &Workload, _: &str, _: &str) -> Result<Arc<dyn EtcdMembers>, String> {
        Ok(Arc::new(PlayedDoor(self.0.clone())))
    }
}

#[async_trait]
impl EtcdMembers for PlayedDoor {
    async fn look(&self, nodes: &[String]) -> Result<EtcdStatus, String> {
        assert!(!nodes.is_empty());
        Ok(self.0.state().etcd.clone())
    }

    async fn hand_over(&self, from: &str, to: &str) -> Result<(), String> {
        let mut state = self.0.state();
        let id = |name: &str| state.etcd.members.iter().find(|member| member.name == name).map(|member| member.id);
        let (from, to) = (id(from).ok_or("no such member")?, id(to).ok_or("no such member")?);
        assert_eq!(state.etcd.leader, from, "only who leads hands on");
        state.etcd.leader = to;
        state.handed_over += 1;
        Ok(())
    }

    async fn remove(&self, id: u64, nodes: &[String]) -> Result<(), String> {
        let mut state = self.0.state();
        let gone = state.etcd.members.iter().find(|member| member.id == id).map(|member| member.name.clone());
        assert!(gone.is_none_or(|name| !nodes.contains(&name)), "nobody is asked to remove itself");
        assert_ne!(state.etcd.leader, id, "who leads hands on before");
        state.etcd.members.retain(|member| member.id != id);
        let count = state.etcd.members.len();
        state.least = state.least.map(|least| least.min(count));
        Ok(())
    }
}

/// The appliance's API with control planes, and a player for the rest.
pub(super) struct Site {
    client: Client,
    pub(super) played: Arc<Played>,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    pub(super) async fn new() -> Self {
        Self::within(TIMES).await
    }

    pub(super) async fn within(times: ControlPlaneTimes) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let client = api.client();
        let played = Arc::new(Played::default());
        let workloads = Workloads::new(Vec::new());
        workloads.play(NAMESPACE, CLUSTER, played.client());
        let mut watches = Watches::default();
        let life = ControlPlanes::new(&mut watches, workloads, true).with(Arc::new(PlayedDoor(played.clone())), times);
        for (kind, rules) in life.admission() {
            api.add_admission(kind, rules);
        }
        tokio::spawn(async move { api.run().await });
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        let acting = Acting {
            client: client.clone(),
            fence: Fence::open(),
            tasks: Tasks::default(),
            store: None,
            stop: shutdown.clone(),
        };
        for (_, service) in life.act(&acting).unwrap() {
            tokio::spawn(service);
        }
        let site = Self { client, played, shutdown, _folder: folder };
        site.begin().await;
        tokio::spawn(play(site.client.clone(), site.played.clone(), site.shutdown.clone()));
        site
    }

    pub(super) fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn make<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    /// A cluster whose infrastructure is there, and a template.
    async fn begin(&self) {
        let cluster: Cluster = self
            .make(json!({"metadata": {"name": CLUSTER}, "spec": {
                "controlPlaneEndpoint": {"host": "192.0.2.1", "port": 6443},
                "controlPlaneRef": {"kind": "KubeadmControlPlane", "name": "plane", "apiGroup": "controlplane.cluster.x-k8s.io"},
            }}))
            .await;
        let status = json!({"status": {"initialization": {"infrastructureProvisioned": true}}});
        let clusters = self.api::<Cluster>();
        clusters.patch_status(&cluster.name_any(), &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        let _: Metal3MachineTemplate = self
            .make(json!({"metadata": {"name": "template"}, "spec": {"template": {"spec": {
                "image": {"url": "http://192.0.2.1/x", "checksum": "00"}}}}}))
            .await;
    }

    pub(super) async fn create(&self, replicas: i32, version: &str) {
        self.create_of("template", replicas, version).await;
    }

    pub(super) async fn create_of(&self, template: &str, replicas: i32, version: &str) {
        self.try_create(template, replicas, version).await.unwrap();
    }

    pub(super) async fn try_create(
        &self,
        template: &str,
        replicas: i32,
        version: &str,
    ) -> Result<KubeadmControlPlane, kube::Error> {
        let cluster = self.api::<Cluster>().get(CLUSTER).await.unwrap();
        let plane = json!({
            "metadata": {"name": "plane", "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}, "ownerReferences": [
                {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": CLUSTER, "uid": cluster.uid().unwrap(), "controller": true}]},
            "spec": {"replicas": replicas, "version": version, "machineTemplate": {"spec": {"infrastructureRef": {
                "kind": "Metal3MachineTemplate", "name": template, "apiGroup": "infrastructure.cluster.x-k8s.io"}}}},
        });
        let plane: KubeadmControlPlane = serde_json::from_value(plane).unwrap();
        self.api::<KubeadmControlPlane>().create(&PostParams::default(), &plane).await
    }

    pub(super) async fn patch(&self, patch: Value) {
        let planes = self.api::<KubeadmControlPlane>();
        planes.patch("plane", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn plane(&self) -> KubeadmControlPlane {
        self.api::<KubeadmControlPlane>().get("plane").await.unwrap()
    }

    pub(super) async fn machines(&self) -> Vec<Machine> {
        let selector = ListParams::default().labels("cluster.x-k8s.io/control-plane");
        self.api::<Machine>().list(&selector).await.unwrap().items
    }

    pub(super) async fn configs(&self) -> Vec<KubeadmConfig> {
        self.api::<KubeadmConfig>().list(&ListParams::default()).await.unwrap().items
    }

    pub(super) async fn infrastructure(&self, name: &str) -> Metal3Machine {
        self.api::<Metal3Machine>().get(name).await.unwrap()
    }

    /// A machine's conditions, as a health check writes them.
    pub(super) async fn say(&self, machine: &str, conditions: &[(&str, &str)]) {
        loop {
            let machines = self.api::<Machine>();
            let now = machines.get(machine).await.unwrap();
            match write(&machines, &now, conditions, json!({})).await {
                Ok(()) => return,
                Err(kube::Error::Api(error)) if error.is_conflict() => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(super) async fn until(&self, what: &str, met: impl AsyncFn() -> bool) {
        let wait = async {
            while !met().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let plane = self.api::<KubeadmControlPlane>().get_opt("plane").await.unwrap();
            let machines: Vec<String> = self
                .machines()
                .await
                .iter()
                .map(|one| format!("{} {:?}", one.name_any(), one.status.as_ref().map(|status| &status.phase)))
                .collect();
            panic!("{what}: {:#?} {machines:?}", plane.map(|plane| plane.status));
        }
    }
}

/// Writes conditions of a machine beside those that are there, and more of its status.
async fn write(api: &Api<Machine>, machine: &Machine, said: &[(&str, &str)], more: Value) -> Result<(), kube::Error> {
    let mut all = machine.status.clone().unwrap_or_default().conditions;
    for (type_, status) in said {
        let (status, reason) = status.split_once(' ').unwrap_or((status, "Played"));
        all.retain(|condition| condition.type_ != *type_);
        all.push(
            serde_json::from_value(json!({"type": type_, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .unwrap(),
        );
    }
    let mut patch = json!({"metadata": {"resourceVersion": machine.resource_version()}, "status": {"conditions": all}});
    json_patch::merge(&mut patch["status"], &more);
    api.patch_status(&machine.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Machines become nodes, are well, and go when nothing holds them.
async fn play(client: Client, played: Arc<Played>, stop: CancellationToken) {
    let api = Api::<Machine>::namespaced(client, NAMESPACE);
    while !stop.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let Ok(list) = api.list(&ListParams::default().labels("cluster.x-k8s.io/control-plane")).await else {
            continue;
        };
        let young =
            list.items.iter().filter(|one| one.status.as_ref().is_none_or(|status| status.node_ref.is_none())).count();
        {
            let mut state = played.state();
            state.most = state.most.max(young);
        }
        for machine in list.items {
            // Somebody else may have written it: the next round sees it.
            drop(step(&api, &played, &machine).await);
        }
    }
}

async fn step(api: &Api<Machine>, played: &Played, machine: &Machine) -> Result<(), kube::Error> {
    let name = machine.name_any();
    let held = machine.finalizers().iter().any(|finalizer| finalizer == FINALIZER_MACHINE);
    if machine.metadata.deletion_timestamp.is_some() {
        if machine.annotations().contains_key(ANNOTATION_CLEANUP_HOOK) {
            return write(api, machine, &[("Deleting", "True WaitingForPreTerminateHook")], json!({})).await;
        }
        played.leave(&name);
        // What it names goes before it.
        let client = api.clone().into_client();
        let configs = Api::<KubeadmConfig>::namespaced(client.clone(), NAMESPACE);
        drop(configs.delete(&name, &DeleteParams::default()).await);
        drop(Api::<Metal3Machine>::namespaced(client, NAMESPACE).delete(&name, &DeleteParams::default()).await);
        let patch = json!({"metadata": {"finalizers": null}});
        return api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop);
    }
    if !held {
        let patch = json!({"metadata": {"finalizers": [FINALIZER_MACHINE]}, "spec": {"providerID": format!("metal3://{name}")}});
        return api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop);
    }
    if machine.status.as_ref().is_none_or(|status| status.node_ref.is_none()) {
        played.join(&name);
        let said = [("Ready", "True Ready"), ("Available", "True Available")];
        return write(api, machine, &said, json!({"nodeRef": {"name": name}})).await;
    }
    Ok(())
}

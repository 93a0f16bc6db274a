//! An appliance with the controllers of this room, which can be killed; agents and the cluster that is made are played.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::clusters::Times;
use super::super::life::Lcm;
use super::super::view::LABEL_CONTROL_PLANE;
use crate::api::lcm::{LCMCluster, LCMMachine};
use crate::apiserver::ApiServer;
use crate::cluster::workload::Workloads;
use crate::cluster::workload::played_tests::Played;
use crate::engine::Fence;
use crate::module::{Acting, Life, RunningLife};
use crate::modules::{declared, kinds};
use crate::runtime::mortal_tests::mortal;
use crate::runtime::{Tasks, Watches};
use crate::store::{Store, StoreOptions};

pub(super) const NAMESPACE: &str = "rack";
pub(super) const CLUSTER: &str = "c";
/// How long a test waits for something.
const DEADLINE: Duration = Duration::from_secs(240);
const TIMES: Times = Times {
    pause: Duration::from_millis(30),
    silence: SignedDuration::from_mins(5),
    patience: SignedDuration::from_mins(30),
};

/// Who is told of each machine that joins.
type JoinListener = Box<dyn Fn(&str) + Send>;

/// Which steps fail, and what agents did.
#[derive(Default)]
pub(super) struct Fate {
    /// Machine and step.
    pub fails: BTreeSet<(String, String)>,
    /// Machines whose agents do nothing.
    pub mute: BTreeSet<String>,
    /// Machine, step and version, as they were done; a step that was done again stands there again.
    pub done: Vec<(String, String, String)>,
    /// Machines that were rebooted.
    pub rebooted: Vec<String>,
    /// The keys of the deployment's Secret when a machine's deploy was done.
    pub keys: BTreeMap<String, Vec<String>>,
    /// Told of each machine that joins.
    pub watched: Option<JoinListener>,
}

/// An object of a kind that has a namespace.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static
{
}

pub(super) struct Site {
    pub(super) api: ApiServer,
    pub(super) client: Client,
    pub(super) played: Played,
    pub(super) fate: Arc<Mutex<Fate>>,
    workloads: Workloads,
    services: Vec<JoinHandle<()>>,
    pub(super) times: Times,
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

impl Site {
    /// An appliance that acts.
    pub(super) async fn new() -> Self {
        let mut site = Self::idle().await;
        site.begin();
        site
    }

    /// Begins to act.
    pub(super) fn begin(&mut self) {
        let client = self.client.clone();
        self.act(&client);
    }

    /// One whose controllers have not begun; the agents have.
    pub(super) async fn idle() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 20_000 };
        let shutdown = CancellationToken::new();
        let store = Store::open(options).unwrap();
        let mut all = kinds();
        for (kind, declared) in all.iter_mut().zip(declared()) {
            kind.crd = declared.generated();
        }
        let api = ApiServer::new(store.clone(), &all, shutdown.clone()).await.unwrap();
        let workloads = Workloads::new(Vec::new());
        let client = api.client();
        let rules = Lcm::new(&mut Watches::default(), workloads.clone());
        rules.admission().into_iter().for_each(|(kind, rule)| api.add_admission(kind, rule));
        rules.views().into_iter().for_each(|(kind, name, view)| api.add_view(kind, name, view));
        let running = RunningLife {
            client: client.clone(),
            tasks: Tasks::default(),
            store,
            in_memory: Default::default(),
            stop: shutdown.clone(),
        };
        drop(rules.run(&running).unwrap());
        let server = api.clone();
        tokio::spawn(async move { server.run().await });
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let played = Played::default();
        workloads.play(NAMESPACE, CLUSTER, played.client());
        let acting = shutdown.child_token();
        let site = Self {
            api,
            client,
            played,
            fate: Arc::default(),
            workloads,
            services: Vec::new(),
            times: TIMES,
            acting,
            shutdown,
            _folder: folder,
        };
        let agents = Agents { client: site.client.clone(), played: site.played.clone(), fate: site.fate.clone() };
        let stop = site.shutdown.clone();
        tokio::spawn(async move { stop.run_until_cancelled(agents.run()).await });
        site
    }

    /// Begins as a process that starts does, with nothing but what is stored.
    fn act(&mut self, client: &Client) {
        self.acting = self.shutdown.child_token();
        let mut watches = Watches::default();
        let life = Lcm::new(&mut watches, self.workloads.clone()).within(self.times);
        tokio::spawn(watches.run(self.client.clone(), self.acting.clone()));
        let (fence, tasks) = (Fence::open(), Tasks::default());
        let acting = Acting { client: client.clone(), fence, tasks, store: None, stop: self.acting.clone() };
        let services = life.act(&acting).unwrap();
        self.services = services.into_iter().map(|(_, run)| tokio::spawn(async { run.await.unwrap() })).collect();
    }

    /// Begins, and dies right after so many writes, of whose last nobody hears any more. It has died when the number is negative.
    pub(super) fn act_and_die_after(&mut self, writes: i64) -> Arc<AtomicI64> {
        let left = Arc::new(AtomicI64::new(writes));
        let client = mortal(&self.client, &left);
        self.act(&client);
        left
    }

    /// The process is killed: what it was about to do is not done.
    pub(super) fn kill(&mut self) {
        self.acting.cancel();
        self.services.drain(..).for_each(|service| service.abort());
    }

    pub(super) fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(super) async fn create<K: Object>(&self, mut object: Value) -> K {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let object: K = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap()
    }

    pub(super) async fn get<K: Object>(&self, name: &str) -> Option<K> {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    pub(super) async fn patch<K: Object>(&self, name: &str, patch: Value) {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn say(&self, machine: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api::<LCMMachine>().patch_status(machine, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(super) async fn delete<K: Object>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// A cluster with steps of a release.
    pub(super) async fn cluster(&self, release: u32) {
        let spec = spec(release);
        self.create::<LCMCluster>(json!({"metadata": {"name": CLUSTER}, "spec": spec})).await;
    }

    /// Another release.
    pub(super) async fn upgrade(&self, release: u32) {
        self.patch::<LCMCluster>(CLUSTER, json!({"spec": spec(release)})).await;
    }

    /// An empty machine: `m1` is a manager, `w1` a worker.
    pub(super) async fn machine(&self, name: &str) {
        let labels = if name.starts_with('m') { json!({LABEL_CONTROL_PLANE: "true"}) } else { json!({}) };
        let metadata = json!({"name": name, "labels": labels, "annotations": {"lcm.mirantis.com/index": &name[1..]}});
        self.create::<LCMMachine>(json!({"metadata": metadata, "spec": {"clusterName": CLUSTER}})).await;
    }

    /// Waits until something holds.
    pub(super) async fn until(&self, what: &str, met: impl AsyncFn() -> bool) {
        let wait = async {
            while !met().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(DEADLINE, wait).await.is_err() {
            let all = self.api::<LCMMachine>().list(&ListParams::default()).await.unwrap();
            let cluster = json!(self.get::<LCMCluster>(CLUSTER).await);
            panic!(
                "not in time: {what}: {cluster:#} {:#}",
                json!(all.items.iter().map(|one| json!([one.metadata.name, one.spec, one.status])).collect::<Vec<_>>())
            );
        }
    }

    /// Whether a cluster has a release, and so many nodes are ready.
    pub(super) async fn has(&self, release: &str, nodes: i32) -> bool {
        let status = self.get::<LCMCluster>(CLUSTER).await.and_then(|one| one.status).unwrap_or_default();
        let whole = status.requested_nodes == nodes && status.ready_nodes == nodes;
        whole && status.release == release && condition(&status.conditions, "NodesReady").0 == "True"
    }

    pub(super) async fn has_release(&self, release: &str, nodes: i32) {
        self.until(&format!("{nodes} nodes have {release}"), async || self.has(release, nodes).await).await;
    }

    /// Waits until the condition of a machine says this.
    pub(super) async fn says(&self, machine: &str, type_: &str, status: &str, text: &str) {
        let said = async || {
            let all = self.get::<LCMMachine>(machine).await.and_then(|one| one.status).unwrap_or_default().conditions;
            let (is, message) = condition(&all, type_);
            is == status && message.contains(text)
        };
        self.until(&format!("{machine} {type_} is {status}: {text}"), said).await;
    }

    /// The keys of a Secret.
    pub(super) async fn keys(&self, secret: &str) -> Vec<String> {
        self.get::<Secret>(secret).await.and_then(|one| one.data).unwrap_or_default().into_keys().collect()
    }

    /// Which machines did a step of a version, in this order.
    pub(super) fn did(&self, step: &str, version: &str) -> Vec<String> {
        let fate = self.fate.lock().unwrap();
        let all = fate.done.iter().filter(|(_, of, has)| of == step && has == version);
        all.map(|(machine, ..)| machine.clone()).collect()
    }
}

pub(super) fn condition(
    all: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    type_: &str,
) -> (String, String) {
    let one = all.iter().find(|one| one.type_ == type_);
    one.map(|one| (one.status.clone(), one.message.clone())).unwrap_or_default()
}

fn spec(release: u32) -> Value {
    let version = release.to_string();
    let steps = json!([
        {"name": "fetch", "phase": "prepare", "runner": "bash", "version": version, "params": {"script": "true"}},
        {"name": "join", "phase": "deploy", "runner": "bash", "version": version, "params": {"script": "true"}},
        {"name": "tune", "phase": "reconfigure", "runner": "bash", "version": "1", "params": {"script": "true"}},
    ]);
    json!({"release": format!("r{release}"), "lcmType": "kubeadm", "machineTypes": {"control": steps, "worker": steps},
        "sshAuthorizedKeys": ["ssh-ed25519 AAAA ann"], "agentConfig": {"version": "1"}, "dedicatedControlPlane": true,
        "externalEndpoint": {"host": "10.0.0.100", "port": 6443}})
}

/// The agents of all machines.
struct Agents {
    client: Client,
    played: Played,
    fate: Arc<Mutex<Fate>>,
}

/// The address of a machine.
pub(super) fn address(machine: &str) -> String {
    format!("10.0.{}.{}", u8::from(machine.starts_with('w')), &machine[1..])
}

impl Agents {
    async fn run(self) {
        let api = Api::<LCMMachine>::namespaced(self.client.clone(), NAMESPACE);
        loop {
            for machine in api.list(&ListParams::default()).await.unwrap().items {
                let name = machine.name_any();
                if !self.fate.lock().unwrap().mute.contains(&name) {
                    self.one(&api, &name, &machine).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn one(&self, api: &Api<LCMMachine>, name: &str, machine: &LCMMachine) {
        let status = machine.status.clone().unwrap_or_default();
        let say = async |patch: Value| {
            // The machine may be gone by now.
            drop(api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": patch }))).await);
        };
        if status.addresses.is_empty() {
            let addresses =
                json!([{"type": "InternalIP", "address": address(name)}, {"type": "Hostname", "address": name}]);
            return say(
                json!({"addresses": addresses, "agentVersion": "1", "lastHeard": Timestamp::now().to_string()}),
            )
            .await;
        }
        if status.reboot.as_ref().is_some_and(|reboot| reboot.requested_at.is_some() && !reboot.completed) {
            self.fate.lock().unwrap().rebooted.push(name.to_owned());
            return say(json!({"reboot": {"completed": true}})).await;
        }
        let is_open = |item: &&crate::api::lcm::StateItem| {
            let known = status.state_item_statuses.get(&item.name);
            known.is_none_or(|known| known.hash != item.hash() || known.exit_code != Some(0))
        };
        let Some(item) = machine.spec.state_items.iter().find(is_open) else { return };
        let fails = self.fate.lock().unwrap().fails.contains(&(name.to_owned(), item.name.clone()));
        let known = status.state_item_statuses.get(&item.name).filter(|known| known.hash == item.hash());
        if fails {
            if known.is_none_or(|known| known.exit_code.is_none()) {
                let failed =
                    json!({"hash": item.hash(), "exitCode": 1, "attempt": 1, "message": "no space left on device"});
                say(json!({"stateItemStatuses": {&item.name: failed}})).await;
            }
            return;
        }
        if item.name == "join" {
            let secrets = Api::<Secret>::namespaced(self.client.clone(), NAMESPACE);
            let secret = secrets.get_opt(&machine.spec.deployment_secret_name).await.unwrap();
            let keys = secret.and_then(|secret| secret.data).unwrap_or_default().into_keys().collect();
            {
                let mut fate = self.fate.lock().unwrap();
                fate.keys.entry(name.to_owned()).or_insert(keys);
                if let Some(watched) = &fate.watched {
                    watched(name);
                }
            }
            let path = format!("/api/v1/nodes/{name}");
            if self.played.get(&path).is_none() {
                self.played.put(&path, node(name));
            }
        }
        self.fate.lock().unwrap().done.push((name.to_owned(), item.name.clone(), item.version.clone()));
        let done = json!({"hash": item.hash(), "exitCode": 0, "attempt": 1});
        say(json!({"stateItemStatuses": {&item.name: done}})).await;
    }
}

/// The node that a machine becomes.
fn node(name: &str) -> Value {
    let labels = if name.starts_with('m') { json!({"node-role.kubernetes.io/control-plane": ""}) } else { json!({}) };
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}, "status": {
        "addresses": [{"type": "InternalIP", "address": address(name)}, {"type": "Hostname", "address": name}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}})
}

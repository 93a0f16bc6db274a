//! The looks, against the in-process API as the appliance and a played one as the cluster, where a played Job installs a played controller.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::HelmControllers;
use super::deployer::{CONDITION, HelmTimes};
use crate::api::lcm::{HelmBundle, LCMCluster, LCMMachine};
use crate::api::machine_api::Cluster;
use crate::apiserver::ApiServer;
use crate::boot::Program;
use crate::cluster::workload::Workloads;
use crate::cluster::workload::played_tests::Played;
use crate::engine::Fence;
use crate::module::{Acting, Life};
use crate::modules::{declared, kinds};
use crate::release::provider::Reach;
use crate::runtime::{Tasks, Watches};
use crate::store::{Store, StoreOptions};

const NAMESPACE: &str = "proj";
const NAME: &str = "edge";
const DEADLINE: Duration = Duration::from_secs(240);
const TIMES: HelmTimes = HelmTimes {
    pause: Duration::from_millis(30),
    look: Duration::from_millis(50),
    retry: SignedDuration::from_secs(3),
};
const SECRET: &str = "/api/v1/namespaces/kube-system/secrets/slipway-helm-controller";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kube-system/deployments/helm-controller";

struct Site {
    client: Client,
    /// UID of the Cluster that owns what is here.
    owner: String,
    played: Played,
    workloads: Workloads,
    acting: CancellationToken,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    /// A cluster with a manager and a worker, and with a chart.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 20_000 };
        let shutdown = CancellationToken::new();
        let mut all = kinds();
        for (kind, declared) in all.iter_mut().zip(declared()) {
            kind.crd = declared.generated();
        }
        let api = ApiServer::new(Store::open(options).unwrap(), &all, shutdown.clone()).await.unwrap();
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let (played, workloads) = (Played::default(), Workloads::new(Vec::new()));
        workloads.play(NAMESPACE, NAME, played.client());
        let acting = shutdown.child_token();
        let owner = String::new();
        let mut site = Self { client, owner, played, workloads, acting, shutdown, _folder: folder };
        site.create::<Cluster>(json!({"metadata": {"name": NAME}, "spec": {"providerSpec": {}}})).await;
        site.owner = site.api::<Cluster>().get(NAME).await.unwrap().metadata.uid.unwrap();
        let owned = site.owned();
        site.create::<ServiceAccount>(json!({"metadata": {"name": "helm-edge", "ownerReferences": owned}})).await;
        let spec = json!({"release": "r1", "lcmType": "kubeadm", "helmControllerServiceAccountName": "helm-edge"});
        site.create::<LCMCluster>(json!({"metadata": {"name": NAME, "ownerReferences": owned}, "spec": spec})).await;
        for (name, role) in [("m0", "control"), ("w0", "worker")] {
            let spec = json!({"clusterName": NAME, "type": role});
            site.create::<LCMMachine>(json!({"metadata": {"name": name}, "spec": spec})).await;
        }
        site.act();
        site
    }

    /// Begins as a process that starts does, with nothing but what is stored.
    fn act(&mut self) {
        self.acting = self.shutdown.child_token();
        let reach = Reach {
            advertise: Some("192.0.2.1".parse().unwrap()),
            own: crate::live::Live::from(None),
            api_port: 8443,
            boot_port: 80,
            ca_pem: "PEM".into(),
            program: Program::own(),
        };
        let mut watches = Watches::default();
        let life = HelmControllers::new(&mut watches, self.workloads.clone(), reach).within(TIMES);
        tokio::spawn(watches.run(self.client.clone(), self.acting.clone()));
        let (fence, tasks, stop) = (Fence::open(), Tasks::default(), self.acting.clone());
        let acting = Acting { client: self.client.clone(), fence, tasks, store: None, stop };
        for (_, run) in life.act(&acting).unwrap() {
            let stop = self.acting.clone();
            tokio::spawn(async move { stop.run_until_cancelled(run).await });
        }
    }

    fn owned(&self) -> Value {
        json!([{"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Cluster", "name": NAME, "uid": self.owner, "controller": true}])
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K>(&self, mut object: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let object: K = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap();
    }

    async fn bundle(&self, owner: Value, repositories: Value) {
        let spec = json!({"repositories": repositories, "releases": [{"name": "logs", "chart": "ours/logs"}]});
        self.create::<HelmBundle>(json!({"metadata": {"name": NAME, "ownerReferences": owner}, "spec": spec})).await;
    }

    async fn is_ready(&self, machine: &str) {
        let time = "2026-01-01T00:00:00Z";
        let ready =
            json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": time});
        let patch = Patch::Merge(json!({"status": {"state": "Ready", "conditions": [ready]}}));
        self.api::<LCMMachine>().patch_status(machine, &PatchParams::default(), &patch).await.unwrap();
        // As `lcm` does.
        let patch = Patch::Merge(json!({"status": {"readyNodes": if machine == "m0" { 1 } else { 2 }}}));
        self.api::<LCMCluster>().patch_status(NAME, &PatchParams::default(), &patch).await.unwrap();
    }

    /// What is said of the controller: reason and message.
    async fn said(&self) -> (bool, String) {
        let status = self.api::<LCMCluster>().get(NAME).await.unwrap().status.unwrap_or_default();
        let found = status.conditions.iter().find(|one| one.type_ == CONDITION);
        let said = found.map(|one| format!("{} {}: {}", one.status, one.reason, one.message)).unwrap_or_default();
        (status.helm_controller_deployed, said)
    }

    async fn until(&self, what: &str) -> bool {
        let wait = async {
            loop {
                let (deployed, said) = self.said().await;
                if said.contains(what) {
                    return deployed;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(DEADLINE, wait).await {
            Ok(deployed) => deployed,
            Err(_) => panic!("waited for {what:?}; it says {:?}; asked was {:?}", self.said().await, self.jobs()),
        }
    }

    async fn until_played(&self, what: &str, met: impl Fn(&Played) -> bool) {
        let wait = async {
            while !met(&self.played) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(DEADLINE, wait).await.is_ok(), "{what}: {:?}", self.said().await);
    }

    /// Paths of Jobs that were made in the cluster.
    fn jobs(&self) -> Vec<String> {
        self.played.paths("/apis/batch/v1/namespaces/kube-system/jobs/")
    }

    /// The Job ends.
    fn ends(&self, condition: &str) {
        for path in self.jobs() {
            let mut job = self.played.get(&path).unwrap();
            let now = Timestamp::now().to_string();
            job["status"] = json!({"conditions": [{"type": condition, "status": "True", "message": "m", "lastTransitionTime": now}]});
            self.played.put(&path, job);
        }
    }

    fn controller(&self, available: u32) {
        let status = json!({"observedGeneration": 1, "availableReplicas": available});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "helm-controller", "namespace": "kube-system", "generation": 1}, "status": status});
        self.played.put(DEPLOYMENT, deployment);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_is_installed_once_the_cluster_can_run_it_and_its_token_is_kept() {
    let mut site = Site::new().await;
    site.bundle(site.owned(), json!([])).await;
    site.until("False Waiting: a manager").await;
    assert!(site.played.requests().is_empty(), "nothing is asked of a cluster that is none yet");
    site.is_ready("m0").await;
    site.until("False Waiting: a worker").await;
    site.is_ready("w0").await;
    site.until("False Installing").await;
    site.until_played("a Job", |_| site.jobs().len() == 1).await;
    let token = site.played.get(SECRET).unwrap()["data"]["token"].clone();
    assert!(token.is_string());
    // One that failed is done again.
    site.ends("Failed");
    site.until("failed, and is tried again: m").await;
    site.until_played("another Job", |played| {
        site.jobs().iter().any(|path| played.get(path).is_some_and(|job| job["status"].is_null()))
    })
    .await;
    // The process dies, and another one goes on.
    site.acting.cancel();
    site.act();
    site.ends("Complete");
    site.until("no Deployment").await;
    site.controller(1);
    assert!(site.until("True Deployed").await);
    assert_eq!(site.jobs().len(), 1);
    assert_eq!(site.played.get(SECRET).unwrap()["data"]["token"], token, "one that is good is left");
    // One that ends soon is made anew.
    let mut secret = site.played.get(SECRET).unwrap();
    let soon = Timestamp::now() + SignedDuration::from_hours(24);
    secret["metadata"]["annotations"]["slipway.dev/token-expires"] = json!(soon.to_string());
    site.played.put(SECRET, secret);
    site.until_played("another token", |played| played.get(SECRET).unwrap()["data"]["token"] != token).await;
    // Who is silent is not taken for gone, and what was deployed stays so.
    site.played.fall_silent(Some("no route"));
    assert!(site.until("Unknown Unreachable").await);
    site.played.fall_silent(None);
    site.until("True Deployed").await;
    site.controller(0);
    assert!(site.until("no pod of the Deployment").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_gets_logins_of_its_bundles_repositories_and_no_other_secret() {
    let site = Site::new().await;
    let login = json!({"metadata": {"name": "login"}, "type": "kubernetes.io/basic-auth", "stringData": {"username": "u", "password": "p"}});
    site.create::<Secret>(login).await;
    let other = json!({"metadata": {"name": "edge-ca"}, "type": "cluster.x-k8s.io/secret", "stringData": {"username": "u", "password": "p"}});
    site.create::<Secret>(other).await;
    // Somebody has an account of the name, which is of nobody.
    let repository = |secret: &str| json!([{"name": "ours", "url": "https://charts.test", "authSecret": secret}]);
    site.bundle(site.owned(), repository("edge-ca")).await;
    site.is_ready("m0").await;
    site.is_ready("w0").await;
    site.until("False NotPossible: the Secret \"edge-ca\"").await;
    assert!(site.played.get(SECRET).is_none(), "nothing went to the cluster");
    let change = async |patch: Value| {
        site.api::<HelmBundle>().patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    change(json!({"spec": {"repositories": repository("../login")}})).await;
    site.until("is no name of a Secret").await;
    change(json!({"spec": {"repositories": repository("login")}})).await;
    site.until("False Installing").await;
    let data = site.played.get(SECRET).unwrap()["data"].clone();
    assert_eq!((&data["login.username"], &data["login.password"]), (&json!("dQ=="), &json!("cA==")));
    change(json!({"spec": {"repositories": repository("")}})).await;
    site.until_played("the login to go", |played| played.get(SECRET).unwrap()["data"]["login.password"].is_null())
        .await;
    assert!(site.played.get(SECRET).unwrap()["data"]["token"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_and_accounts_of_others_count_for_nothing() {
    let site = Site::new().await;
    // It has the name of the cluster, and is somebody else's.
    site.bundle(json!([]), json!([])).await;
    site.is_ready("m0").await;
    site.is_ready("w0").await;
    // Another one's account in its place.
    site.api::<HelmBundle>().delete(NAME, &Default::default()).await.unwrap();
    site.api::<ServiceAccount>().delete("helm-edge", &Default::default()).await.unwrap();
    assert!(site.played.requests().is_empty(), "nothing was asked of the cluster for it: {:?}", site.said().await);
    site.create::<ServiceAccount>(json!({"metadata": {"name": "helm-edge"}})).await;
    site.bundle(site.owned(), json!([])).await;
    site.until("the account \"helm-edge\"").await;
    assert!(site.played.get(SECRET).is_none(), "a token of somebody else's account went to the cluster");
}

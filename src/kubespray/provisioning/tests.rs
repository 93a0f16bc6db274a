//! Provisionings through the API that their users have; hosts are played.

mod real;
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::metal3::BareMetalHost;
use crate::apiserver::ApiServer;
use crate::modules::kinds;
use crate::store::{Store, StoreOptions};

pub(super) const NAMESPACE: &str = "default";

/// An appliance's API, with so many controllers, each with what it knows itself.
pub(super) struct Site {
    pub(super) client: Client,
    pub(super) shutdown: CancellationToken,
    /// Whose logs are served.
    runs: log_view::KnownRuns,
    /// Clusters that are played.
    pub(super) workloads: Workloads,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    pub(super) async fn with_controllers(many: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options =
            StoreOptions { path: folder.path().join("db"), key_file: folder.path().join("key"), history: 10_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        api.add_admission("bpa.akraino.org/provisionings", Arc::new(admission::provisioning));
        api.add_admission("bpa.akraino.org/softwares", Arc::new(software::admission));
        let client = api.client();
        let mut watches = Watches::default();
        let workloads = Workloads::new(Vec::new());
        let agent =
            ProvisioningAgent::new(&mut watches, &KubesprayConfig::default(), PathBuf::new(), workloads.clone());
        agent.views().into_iter().for_each(|(kind, name, view)| api.add_view(kind, name, view));
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        tokio::spawn(async move { api.run().await });
        let site = Self { client, shutdown, runs: agent.runs, workloads, _folder: folder };
        for _ in 0..many {
            site.control(None);
        }
        site
    }

    /// A controller, until it is told to end.
    fn control(&self, installer: Option<Arc<Installer>>) -> CancellationToken {
        let keeper = Provisionings::new(self.client.clone(), installer, self.workloads.clone());
        self.controlled_by(keeper)
    }

    /// One that is as this makes it, and runs nothing.
    fn control_with(&self, make: impl FnOnce(Provisionings) -> Provisionings) -> CancellationToken {
        self.controlled_by(make(Provisionings::new(self.client.clone(), None, self.workloads.clone())))
    }

    fn controlled_by(&self, keeper: Provisionings) -> CancellationToken {
        let stop = self.shutdown.child_token();
        let mut watches = Watches::default();
        let workloads = self.workloads.clone();
        let agent =
            ProvisioningAgent::new(&mut watches, &KubesprayConfig::default(), PathBuf::new(), workloads.clone());
        tokio::spawn(watches.run(self.client.clone(), stop.clone()));
        let keeper = keeper.quiet_for(Duration::from_millis(100));
        let (keeper, end) = (Arc::new(keeper), stop.clone());
        tokio::spawn(async move { run(keeper, &agent.provisionings, futures::stream::empty(), end).await });
        stop
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(super) async fn create_in<K>(&self, namespace: &str, mut object: Value) -> Result<K, kube::Error>
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
        Api::namespaced(self.client.clone(), namespace).create(&PostParams::default(), &object).await
    }

    /// A cluster of this spec, with an image.
    pub(super) async fn provisioning(&self, name: &str, mut spec: Value) -> Result<Provisioning, kube::Error> {
        spec["image"] = json!({"url": "http://images.test/os.raw", "checksum": "aa", "format": "raw"});
        self.create_in(NAMESPACE, json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// A free host of four processors that boots from this card.
    async fn free(&self, namespace: &str, name: &str, card: u8) {
        let spec = json!({"online": false, "bootMACAddress": format!("52:54:00:00:00:{card:02x}")});
        self.create_in::<BareMetalHost>(namespace, json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
        let hardware = json!({"cpu": {"count": 4}, "ramMebibytes": 8192});
        self.set(namespace, name, json!({"provisioning": {"state": "available"}, "hardware": hardware})).await;
    }

    async fn set(&self, namespace: &str, host: &str, status: Value) {
        let api = Api::<BareMetalHost>::namespaced(self.client.clone(), namespace);
        let patch = json!({ "status": status });
        api.patch_status(host, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Waits until an object is so; `None` when it is gone.
    pub(super) async fn until<K>(&self, name: &str, what: &str, met: impl Fn(Option<&K>) -> bool) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let wait = async {
            loop {
                let object = self.api::<K>().get_opt(name).await.unwrap();
                if met(object.as_ref()) {
                    return object;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(240), wait).await {
            Ok(object) => object,
            Err(_) => panic!("not in time: {name} {what}: {}", json!(self.api::<K>().get_opt(name).await.unwrap())),
        }
    }

    async fn host(&self, name: &str, what: &str, met: impl Fn(&BareMetalHost) -> bool) -> BareMetalHost {
        self.until(name, what, |host| host.is_some_and(&met)).await.unwrap()
    }

    /// Waits until a Provisioning is in a phase and says something, and gives it.
    async fn says(&self, name: &str, phase: &str, text: &str) -> Provisioning {
        let so = |one: &Provisioning| {
            one.status.as_ref().is_some_and(|status| status.phase == phase && status.message.contains(text))
        };
        self.until(name, &format!("{phase}: {text}"), |one: Option<&Provisioning>| one.is_some_and(so)).await.unwrap()
    }
}

fn owner(host: &BareMetalHost) -> Option<String> {
    host.spec.consumer_ref.as_ref()?.name.clone()
}

fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> String {
    match result {
        Err(kube::Error::Api(status)) if status.code == 422 => status.message.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hosts_become_nodes_and_the_inventory_is_kept_until_they_are_let_go() {
    let site = Site::with_controllers(1).await;
    site.free(NAMESPACE, "h1", 1).await;
    let spec = json!({"masters": [{"cp-1": {"mac-address": "52:54:00:00:00:01"}}], "workers": [{"w-1": {"cpu": 4, "memory": "8Gi"}}],
        "PodSubnet": "10.233.64.0/18"});
    site.provisioning("edge", spec).await.unwrap();
    // All or nothing, with the reason.
    let waits = site.says("edge", "Choosing", "w-1: ").await;
    let status = waits.status.unwrap();
    assert_eq!((status.nodes_wanted, status.nodes_ready), (2, 0));
    assert_eq!(owner(&site.host("h1", "is there", |_| true).await), None);
    site.free(NAMESPACE, "h2", 2).await;
    for (host, node) in [("h1", "cp-1"), ("h2", "w-1")] {
        let taken = site.host(host, "is told what to run", |host| host.spec.image.is_some()).await;
        assert_eq!(
            (owner(&taken).as_deref(), taken.annotations()["bpa.akraino.org/node"].as_str()),
            (Some("edge"), node)
        );
        assert!(taken.spec.online);
        assert_eq!(taken.spec.user_data.and_then(|one| one.name).as_deref(), Some("edge-user-data"));
        site.set(NAMESPACE, host, json!({"provisioning": {"state": "provisioned"}})).await;
    }
    site.says("edge", "Provisioning", "no address is leased to the machine of BareMetalHost h").await;
    for (host, address) in [("h1", "10.0.0.11"), ("h2", "10.0.0.12")] {
        let leased = json!([{"address": address, "macAddress": "52:54:00:00:00:01", "network": "n"}]);
        site.set(NAMESPACE, host, json!({ "addresses": leased })).await;
    }
    let ready = site.says("edge", "InventoryReady", "nothing is installed yet").await;
    let status = ready.status.clone().unwrap();
    assert_eq!((status.nodes_ready, status.inventory.as_deref()), (2, Some("edge-inventory")));
    for one in &status.conditions {
        // Nobody runs kubespray here.
        assert_eq!(
            (one.type_ == "Installed", one.status.as_str()),
            (one.reason == "NotConfigured", if one.type_ == "Installed" { "False" } else { "True" }),
            "{one:?}"
        );
    }
    let map = site.until("edge-inventory", "is there", |map: Option<&ConfigMap>| map.is_some()).await.unwrap();
    let data = map.data.unwrap();
    for wanted in [
        "[kube_control_plane]\ncp-1\n",
        "[etcd]\ncp-1\n",
        "[kube_node]\nw-1\n",
        "ansible_host=10.0.0.12 ansible_user=kubespray",
    ] {
        assert!(data["hosts.ini"].contains(wanted), "{wanted}: {}", data["hosts.ini"]);
    }
    assert!(data["hosts.yaml"].contains("\"kube_pods_subnet\": \"10.233.64.0/18\""), "{}", data["hosts.yaml"]);
    assert_eq!(status.hosts_yaml.as_ref(), Some(&data["hosts.yaml"]));
    // The key opens the nodes, and its private part is only in its Secret.
    let key: Secret = site.until("edge-ssh-key", "is there", |one: Option<&Secret>| one.is_some()).await.unwrap();
    let user: Secret = site.until("edge-user-data", "is there", |one: Option<&Secret>| one.is_some()).await.unwrap();
    let public = text(&key, "ssh-publickey");
    assert!(text(&user, "userData").contains(&public) && status.ssh_public_key.as_deref() == Some(public.as_str()));
    let private = text(&key, "ssh-privatekey");
    let secret_line = private.lines().nth(2).unwrap();
    assert!(!text(&user, "userData").contains(secret_line) && !json!(ready).to_string().contains(secret_line));
    // Whoever may write hosts strands none.
    let other = json!({"metadata": {"annotations": {"bpa.akraino.org/node": "other"}}});
    site.api::<BareMetalHost>().patch("h2", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    site.host("h2", "is what it was", |host| host.annotations()["bpa.akraino.org/node"] == "w-1").await;
    site.api::<Provisioning>().delete("edge", &DeleteParams::background()).await.unwrap();
    site.until("edge", "is gone", |one: Option<&Provisioning>| one.is_none()).await;
    for host in ["h1", "h2"] {
        let free = site.host(host, "is let go", |host| host.spec.consumer_ref.is_none()).await;
        assert!(free.spec.image.is_none() && free.spec.user_data.is_none() && !free.spec.online);
    }
    site.until("edge-ssh-key", "is gone", |one: Option<&Secret>| one.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn free_hosts_run_the_sites_image_where_the_object_names_none() {
    let site = Site::with_controllers(0).await;
    site.free(NAMESPACE, "h1", 1).await;
    let spec = json!({"masters": [{"cp-1": {"cpu": 1}}]});
    let object = json!({"metadata": {"name": "edge"}, "spec": spec});
    site.create_in::<Provisioning>(NAMESPACE, object).await.unwrap();
    let first = site.control(None);
    site.says("edge", "Choosing", "neither spec.image nor cluster.default_image").await;
    first.cancel();
    let image = HostImage { url: "slipway://debian-12".into(), ..HostImage::default() };
    site.control_with(|keeper| keeper.with_default_image(Some(image)));
    let taken = site.host("h1", "is told what to run", |host| host.spec.image.is_some()).await;
    assert_eq!(taken.spec.image.unwrap().url, "slipway://debian-12");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_anothers_is_neither_taken_nor_read_nor_changed() {
    let site = Site::with_controllers(1).await;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "far"}})).unwrap();
    Api::<Namespace>::all(site.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    site.free("far", "h1", 1).await;
    let spec = json!({"masters": [{"cp-1": {"mac-address": "52:54:00:00:00:01"}}]});
    site.provisioning("far-host", spec).await.unwrap();
    site.says("far-host", "Choosing", "no host of this namespace has the MAC address 52:54:00:00:00:01").await;
    // A Secret that is there under the name of the key: whoever may not read it learns nothing of it.
    site.free(NAMESPACE, "h2", 2).await;
    let data = json!({"ssh-publickey": "hunter2", "ssh-privatekey": "hunter2"});
    let before: Secret =
        site.create_in(NAMESPACE, json!({"metadata": {"name": "thief-ssh-key"}, "stringData": data})).await.unwrap();
    site.provisioning("thief", json!({"masters": [{"cp-1": {"cpu": 1}}]})).await.unwrap();
    let thief =
        site.says("thief", "Invalid", "the Secret thief-ssh-key is there already and is not this object's").await;
    assert!(!json!(thief).to_string().contains("hunter2"));
    let after: Secret = site.until("thief-ssh-key", "is there", |one: Option<&Secret>| one.is_some()).await.unwrap();
    assert_eq!(before, after);
    assert_eq!(owner(&site.host("h2", "is there", |_| true).await), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn specs_that_make_no_sense_are_refused_and_masters_are_never_taken_away() {
    let site = Site::with_controllers(0).await;
    let two = json!({"masters": [{"a": {"cpu": 1}}, {"b": {"cpu": 1}}]});
    assert!(refused(site.provisioning("even", two).await).contains("2 masters are no odd number"));
    let evil = json!({"masters": [{"a\n[all:vars]\nansible_connection=local": {"cpu": 1}}]});
    assert!(refused(site.provisioning("evil", evil).await).contains("is no name for Ansible"));
    // A body that is null is one: the node is master and worker.
    let spec = json!({"masters": [{"a": {"cpu": 1}}], "workers": [{"a": null}, {"b": {"sriov": true}}]});
    let kept = site.provisioning("edge", spec).await.unwrap();
    assert_eq!(json!(kept.spec.workers), json!([{"a": null}, {"b": {"sriov": true}}]));
    let change = async |spec: Value| {
        let api = site.api::<Provisioning>();
        api.patch("edge", &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
    };
    assert!(refused(change(json!({"workers": []})).await).contains("a master that is a worker stays one"));
    assert!(refused(change(json!({"masters": [{"a": {"cpu": 2}}]})).await).contains("masters may be added"));
    change(json!({"workers": [{"a": null}, {"b": {"sriov": true}}, {"c": {"cpu": 1}}]})).await.unwrap();
}

/// As Akraino published them, and with every field.
#[tokio::test]
async fn published_objects_are_taken_as_they_are() {
    let site = Site::with_controllers(0).await;
    let create = async |object: &Value| {
        let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let path = format!("/apis/bpa.akraino.org/v1alpha1/namespaces/{NAMESPACE}/{plural}?fieldValidation=Strict");
        let body = serde_json::to_vec(object).unwrap();
        site.client.request::<Value>(http::Request::post(path).body(body).unwrap()).await
    };
    let provisioning = json!({"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Provisioning",
        "metadata": {"name": "edge-a", "labels": {"cluster": "edge-a", "owner": "ops"}},
        "spec": {
            "masters": [{"cp-1": {"mac-address": "52:54:00:aa:00:01"}}, {"cp-2": {"cpu": 8, "memory": "16Gi"}},
                {"cp-3": {"mac-address": "52:54:00:aa:00:03", "cpu": 8}}],
            "workers": [{"w-1": {"mac-address": "52:54:00:aa:00:11", "cpu": 16, "memory": "64Gi", "sriov": true, "qat": false}},
                {"cp-1": null}],
            "PodSubnet": "10.233.64.0/18", "KUDPlugins": ["emco"], "hostfile": "/a", "kudInstallerPath": "/b",
            "dhcpLeaseFile": "/c", "multiClusterDir": "/d"}});
    let software = json!({"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Software",
        "metadata": {"name": "edge-a-sw", "labels": {"cluster": "edge-a", "owner": "ops"}},
        "spec": {"masterSoftware": ["htop", {"jq": {"version": "1.6-2.1ubuntu3"}}], "workerSoftware": ["curl", "tmux"]}});
    for object in [provisioning, software] {
        assert_eq!(create(&object).await.unwrap()["spec"], object["spec"]);
        // Strictly.
        let mut wrong = object.clone();
        wrong["metadata"]["name"] = json!("wrong");
        wrong["spec"]["podSubnet"] = json!("10.233.64.0/18");
        let refused = create(&wrong).await.unwrap_err().to_string();
        assert!(refused.contains("podSubnet"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clusters_that_race_for_hosts_have_all_of_theirs_or_none() {
    const HOSTS: u8 = 7;
    const CLUSTERS: usize = 4;
    // One looks at the objects of a namespace one after the other; these know nothing of each other.
    let site = Site::with_controllers(3).await;
    for number in 0..CLUSTERS {
        let spec = json!({"masters": [{"m": {"cpu": 1}}], "workers": [{"w1": {"cpu": 1}}, {"w2": {"cpu": 1}}]});
        site.provisioning(&format!("c{number}"), spec).await.unwrap();
    }
    for number in 0..HOSTS {
        site.free(NAMESPACE, &format!("h{number}"), number).await;
    }
    let owned = async || {
        let hosts = site.api::<BareMetalHost>().list(&ListParams::default()).await.unwrap();
        let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for host in hosts.items.iter().filter(|host| owner(host).is_some()) {
            let node = host.annotations()["bpa.akraino.org/node"].clone();
            assert!(nodes.entry(owner(host).unwrap()).or_default().insert(node), "a node has two hosts");
        }
        nodes
    };
    let settled = async || {
        let nodes = owned().await;
        // A third one may have taken the last host, and lets go of it.
        if nodes.len() != 2 || nodes.values().any(|nodes| nodes.len() != 3) {
            return false;
        }
        let all = site.api::<Provisioning>().list(&ListParams::default()).await.unwrap();
        let says = |phase: &str, text: &str| {
            let so = |one: &&Provisioning| {
                one.status.as_ref().is_some_and(|status| status.phase == phase && status.message.contains(text))
            };
            all.items.iter().filter(so).count()
        };
        says("Provisioning", "") == 2 && says("Choosing", "None of 6") == 2
    };
    let wait = async {
        while !settled().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(240), wait).await.expect("two have theirs, and two are told why not");
}

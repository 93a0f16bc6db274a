//! Releases through the API that their users have.

use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::table_tests::{cluster_release, kaas_release, of};
use super::*;
use crate::api::kaas::LABEL_ACTIVE;
use crate::apiserver::ApiServer;
use crate::modules::kinds;
use crate::store::{Expect, Mutation, StoreOptions};

/// An appliance's API with the rules of this room.
struct Site {
    client: Client,
    store: Store,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
        let (store, shutdown) = (Store::open(options).unwrap(), CancellationToken::new());
        let api = ApiServer::new(store.clone(), &kinds(), shutdown.clone()).await.unwrap();
        for (kind, rules) in Catalogue::new(store.clone()).admission() {
            api.add_admission(kind, rules);
        }
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        Self { client, store, shutdown, _folder: folder }
    }

    fn clusters(&self) -> Api<ClusterRelease> {
        Api::all(self.client.clone())
    }

    fn kaas(&self) -> Api<KaaSRelease> {
        Api::all(self.client.clone())
    }

    async fn create_kaas(&self, release: Value) -> Result<KaaSRelease, String> {
        said(self.kaas().create(&PostParams::default(), &of(release)).await)
    }

    async fn label(&self, name: &str, value: Value, force: Value) -> Result<KaaSRelease, String> {
        let patch = json!({"metadata": {"labels": {LABEL_ACTIVE: value}, "annotations": {ANNOTATION_FORCE: force}}});
        said(self.kaas().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    /// An object of another room, as it is stored.
    async fn put(&self, resource: &str, name: &str, rest: Value) {
        let mut value = json!({"metadata": {"namespace": "default", "name": name, "uid": name}});
        json_patch::merge(&mut value, &rest);
        self.write(resource, name, Some(value)).await;
    }

    async fn write(&self, resource: &str, name: &str, value: Option<Value>) {
        let change = Mutation {
            resource: resource.into(),
            namespace: "default".into(),
            name: name.into(),
            expect: Expect::Any,
            value,
        };
        self.store.write(change).await.unwrap();
    }
}

fn said<T>(done: Result<T, kube::Error>) -> Result<T, String> {
    done.map_err(|error| match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    })
}

fn refused<T: std::fmt::Debug>(done: Result<T, String>, wanted: &str) {
    let message = done.unwrap_err();
    assert!(message.contains(wanted), "{message}");
}

#[tokio::test]
async fn what_a_release_is_never_changes_and_what_is_said_about_it_may() {
    let site = Site::new().await;
    let made = site.clusters().create(&PostParams::default(), &cluster_release("a", json!({}))).await.unwrap();
    for patch in [
        json!({"spec": {"version": "1.2.4"}}),
        json!({"spec": {"machineTypes": {"worker": [{"name": "x", "params": {"script": "evil"}}]}}}),
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"description": "other"}}),
    ] {
        let done = site.clusters().patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await;
        refused(said(done), "spec: Forbidden: a release never changes once it is made: make a new one");
    }
    let patch = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"version": "1.2.3+4"}});
    site.clusters().patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    let mut put = made.clone();
    put.metadata.resource_version = None;
    put.spec.lcm_type = "byo".into();
    put.metadata.resource_version = site.clusters().get("a").await.unwrap().resource_version();
    refused(said(site.clusters().replace("a", &PostParams::default(), &put).await), "never changes");

    site.create_kaas(kaas_release("k", false, json!([]))).await.unwrap();
    let patch = json!({"spec": {"supportedClusterReleases": [{"name": "a", "version": "1.0.0"}]}});
    let done = site.kaas().patch("k", &PatchParams::default(), &Patch::Merge(&patch)).await;
    refused(said(done), "never changes");
    // What makes no sense does not get in.
    let odd = cluster_release("odd", json!({"lcmType": "k0s"}));
    let done = said(site.clusters().create(&PostParams::default(), &odd).await);
    refused(done, "supported: kubeadm, and byo");
    refused(site.create_kaas(kaas_release("odd", false, json!([{"name": "a", "version": "new"}]))).await, "semantic");
}

#[tokio::test]
async fn a_release_in_use_is_not_deleted_and_goes_when_it_is_free() {
    let site = Site::new().await;
    for name in ["of-cluster", "of-nodes", "left", "management", "supported", "free"] {
        site.clusters().create(&PostParams::default(), &cluster_release(name, json!({}))).await.unwrap();
    }
    let value = json!({"release": "of-cluster"});
    site.put("cluster.k8s.io/clusters", "demo", json!({"spec": {"providerSpec": {"value": value}}})).await;
    let nodes = json!({"spec": {"release": "of-nodes"}, "status": {"release": "left"}});
    site.put("lcm.mirantis.com/lcmclusters", "nodes", nodes).await;
    let mut kaas = kaas_release(
        "k",
        true,
        json!([{"name": "of-cluster", "version": "1.0.0"},
        {"name": "of-nodes", "version": "1.0.1"}, {"name": "left", "version": "1.0.2"}, {"name": "supported", "version": "1.0.3"}]),
    );
    kaas["spec"]["clusterRelease"] = json!("management");
    site.create_kaas(kaas).await.unwrap();
    let delete = async |name: &str| said(site.clusters().delete(name, &DeleteParams::default()).await);
    refused(delete("of-cluster").await, "it is used by default/demo");
    refused(delete("of-nodes").await, "it is used by default/nodes");
    refused(delete("left").await, "it is used by default/nodes");
    refused(delete("management").await, "the active KaaSRelease k names it");
    // All at once is no way around it; what is free goes.
    let all = site.clusters().delete_collection(&DeleteParams::default(), &Default::default()).await;
    assert!(all.is_err(), "{all:?}");
    for name in ["of-cluster", "of-nodes", "left", "management"] {
        site.clusters().get(name).await.unwrap();
    }
    if site.clusters().get_opt("free").await.unwrap().is_some() {
        delete("free").await.unwrap();
    }
    site.write("cluster.k8s.io/clusters", "demo", None).await;
    delete("of-cluster").await.unwrap();
    assert!(site.clusters().get_opt("of-cluster").await.unwrap().is_none(), "nothing holds it");
    refused(said(site.kaas().delete("k", &DeleteParams::default()).await), "it is the active one");
    site.label("k", Value::Null, Value::Null).await.unwrap();
    site.kaas().delete("k", &DeleteParams::default()).await.unwrap();
    assert!(site.kaas().get_opt("k").await.unwrap().is_none());
}

#[tokio::test]
async fn one_is_active_and_leaves_no_cluster_behind() {
    let site = Site::new().await;
    let value = json!({"release": "a"});
    site.put("cluster.k8s.io/clusters", "demo", json!({"spec": {"providerSpec": {"value": value}}})).await;
    let (a, b) = (json!([{"name": "a", "version": "1.0.0"}]), json!([{"name": "b", "version": "1.0.1"}]));
    refused(site.create_kaas(kaas_release("one", true, b.clone())).await, "default/demo (a)");
    site.create_kaas(kaas_release("one", true, a)).await.unwrap();
    refused(site.create_kaas(kaas_release("two", true, b.clone())).await, "one is active, and only one may be");
    site.create_kaas(kaas_release("two", false, b)).await.unwrap();
    refused(site.label("two", json!("true"), Value::Null).await, "`slipway release activate two` switches over");
    site.label("one", json!("false"), Value::Null).await.unwrap();
    refused(site.label("two", json!("true"), Value::Null).await, "what these clusters run: default/demo (a)");
    site.label("two", json!("true"), json!("true")).await.unwrap();
    // It is active: what is said about it may change all the same.
    site.label("two", json!("true"), Value::Null).await.unwrap();
    refused(site.label("one", json!("true"), json!("true")).await, "two is active");
}

//! An appliance that is killed between any two of its writes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::site::{Object, Site, cluster, machine, of};
use crate::api::iam::Scope;
use crate::api::kaas::{ClusterUpdatePlan, UpdateGroup};
use crate::api::lcm::{HelmBundle, LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;

/// What is there, by kind and name.
type Objects = BTreeMap<String, Value>;

async fn all<K: Object>(site: &Site) -> Vec<K> {
    site.api::<K>().list(&ListParams::default()).await.unwrap().items
}

/// What all objects of a kind are, without what is each one's own: identities, times and tokens.
async fn add<K: Object>(site: &Site, objects: &mut Objects) {
    for one in all::<K>(site).await {
        let mut value = json!(one);
        let labels = value["metadata"]["labels"].take();
        let fields = value.as_object_mut().unwrap();
        fields.retain(|key, _| ["spec", "rules", "roleRef", "subjects", "type"].contains(&key.as_str()));
        fields.insert("labels".into(), labels);
        if let Some(data) = json!(one)["data"].as_object() {
            fields.insert("data".into(), data.keys().cloned().collect::<Vec<_>>().into());
        }
        objects.insert(format!("{} {}", K::kind(&()), one.meta().name.clone().unwrap_or_default()), value);
    }
}

async fn objects(site: &Site) -> Objects {
    let mut objects = Objects::new();
    add::<ServiceAccount>(site, &mut objects).await;
    add::<Role>(site, &mut objects).await;
    add::<RoleBinding>(site, &mut objects).await;
    add::<Secret>(site, &mut objects).await;
    add::<Scope>(site, &mut objects).await;
    add::<LCMCluster>(site, &mut objects).await;
    add::<LCMMachine>(site, &mut objects).await;
    add::<HelmBundle>(site, &mut objects).await;
    add::<UpdateGroup>(site, &mut objects).await;
    add::<ClusterUpdatePlan>(site, &mut objects).await;
    add::<Cluster>(site, &mut objects).await;
    add::<Machine>(site, &mut objects).await;
    add::<BareMetalHost>(site, &mut objects).await;
    objects
}

/// A status of an object, where it is other; the object may be gone by now.
async fn say<K: Object>(site: &Site, one: &K, status: Value) {
    let old = json!(one);
    let mut new = old["status"].clone();
    json_patch::merge(&mut new, &status);
    if new != old["status"] {
        let name = one.meta().name.clone().unwrap_or_default();
        let patch = Patch::Merge(json!({ "status": status }));
        drop(site.api::<K>().patch_status(&name, &PatchParams::default(), &patch).await);
    }
}

/// What hosts, agents, and whoever looks after nodes and charts do in a moment.
async fn others(site: &Site) {
    let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for host in all::<BareMetalHost>(site).await {
        let state = if host.spec.image.is_some() { "provisioned" } else { "available" };
        say(site, &host, json!({"provisioning": {"state": state}})).await;
    }
    for machine in all::<LCMMachine>(site).await {
        let host = site.get::<BareMetalHost>(&machine.name_any()).await;
        if host.is_some_and(|host| host.spec.image.is_some()) {
            let conditions = json!([condition("Deployed"), condition("Ready")]);
            say(site, &machine, json!({"state": "Ready", "conditions": conditions})).await;
        }
        if machine.spec.prepare_deletion {
            say(site, &machine, json!({"prepareDeletionPhase": "completed"})).await;
        }
    }
    for cluster in all::<LCMCluster>(site).await {
        let status = json!({"release": cluster.spec.release, "requestedNodes": 2, "readyNodes": 2, "helmControllerDeployed": true,
            "conditions": [condition("ControlPlaneInitialized")]});
        say(site, &cluster, status).await;
    }
    for bundle in all::<HelmBundle>(site).await {
        let status = json!({"observedGeneration": bundle.metadata.generation, "conditions": [condition("Ready")]});
        say(site, &bundle, status).await;
    }
}

/// What a user does, and when it is done.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Create,
    Upgrade,
    DeleteMachines,
    DeleteCluster,
}

const STAGES: [Stage; 4] = [Stage::Create, Stage::Upgrade, Stage::DeleteMachines, Stage::DeleteCluster];

impl Stage {
    async fn begin(self, site: &Site) {
        match self {
            Self::Create => {
                site.releases().await;
                for name in ["m", "w"] {
                    site.free(name, of(name)).await;
                    site.create::<Machine>(machine(name, "edge", name == "m", json!({}))).await;
                }
                site.create::<Cluster>(cluster("edge", json!({}))).await;
            }
            Self::Upgrade => {
                let release = json!({"spec": {"providerSpec": {"value": {"release": "mosk-2"}}}});
                site.change::<Cluster>("edge", release).await;
            }
            Self::DeleteMachines => {
                site.delete::<Machine>("m").await;
                site.delete::<Machine>("w").await;
            }
            Self::DeleteCluster => site.delete::<Cluster>("edge").await,
        }
    }

    /// Whether it is done, as far as a user sees.
    async fn is_over(self, site: &Site) -> bool {
        let cluster = site.get::<Cluster>("edge").await;
        let machines = all::<Machine>(site).await;
        let ready = |release: &str| {
            let status = json!(cluster)["status"].clone();
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let is_ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
            let all = machines.iter().all(|one| json!(one)["status"]["providerStatus"]["ready"] == true);
            is_ready && all && status["providerStatus"]["releaseRefs"]["current"]["name"] == release
        };
        match self {
            Self::Create => ready("mosk-1"),
            Self::Upgrade => ready("mosk-2"),
            Self::DeleteMachines => machines.is_empty() && all::<LCMMachine>(site).await.is_empty(),
            Self::DeleteCluster => cluster.is_none() && all::<LCMCluster>(site).await.is_empty(),
        }
    }
}

#[tokio::test]
async fn an_appliance_that_is_killed_at_each_write_makes_the_same_and_nothing_twice() {
    let calm = Site::new().await;
    let mut killed = Site::idle().await;
    let mut lives = 0;
    for stage in STAGES {
        stage.begin(&calm).await;
        let mut rounds = 0;
        while !stage.is_over(&calm).await {
            rounds += 1;
            assert!(rounds < 20_000, "{stage:?}: {:#}", json!(objects(&calm).await));
            others(&calm).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stage.begin(&killed).await;
        // What is collected, and what follows of it, comes in its time with both.
        let same = async |killed: &Site| stage.is_over(killed).await && objects(killed).await == objects(&calm).await;
        while !same(&killed).await {
            lives += 1;
            assert!(lives < 2000, "{stage:?}: {:#}", json!([objects(&killed).await, objects(&calm).await]));
            let left = killed.act_and_die_after(1);
            let mut rounds = 0;
            while left.load(Ordering::SeqCst) >= 0 && !same(&killed).await {
                rounds += 1;
                assert!(rounds < 20_000, "{stage:?}: {:#}", json!([objects(&killed).await, objects(&calm).await]));
                others(&killed).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            killed.kill();
        }
    }
    assert!(lives > 50, "{lives}");
    // Hosts and their credentials are their users', and that account is every namespace's. What was made is collected, which takes its
    // time.
    let is_theirs = async || {
        let left = objects(&killed).await;
        let names: Vec<&str> = left.keys().map(String::as_str).collect();
        names == ["BareMetalHost m", "BareMetalHost w", "Secret m-bmc", "Secret w-bmc", "ServiceAccount default"]
    };
    let collected = async {
        while !is_theirs().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let is_collected = tokio::time::timeout(Duration::from_secs(120), collected).await.is_ok();
    assert!(is_collected, "{:#}", json!(objects(&killed).await));
}

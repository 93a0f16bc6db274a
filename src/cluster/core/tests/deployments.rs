//! Deployments of machines: their sets, and how machines are replaced.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde_json::json;

use super::site::{Site, is_of, reference, says, workers};
use crate::api::cluster::DeploymentPhase;
use crate::api::cluster::keys::{ANNOTATION_REVISION, LABEL_DEPLOYMENT, LABEL_TEMPLATE_HASH, TAINT_OUTDATED};
use crate::api::cluster::v1beta2::{Machine, MachineDeployment, MachineSet};
use crate::cluster::contract::count_versions;

async fn site(replicas: i32) -> Site {
    let site = Site::new().await;
    site.made_cluster().await;
    site.templates("one").await;
    site.templates("two").await;
    site.apply(workers("MachineDeployment", "d", replicas, "one")).await;
    rolled_out(&site, "it is made").await;
    site
}

/// All machines are as they should be.
async fn rolled_out(site: &Site, what: &str) {
    site.provide_until(what, async || {
        let deployment = site.api::<MachineDeployment>().get("d").await.unwrap();
        let current = deployment.metadata.generation;
        deployment.status.is_some_and(|status| {
            status.observed_generation == current
                && status.phase == Some(DeploymentPhase::Running)
                && status.up_to_date_replicas == deployment.spec.replicas
        })
    })
    .await;
}

async fn sets(site: &Site) -> Vec<MachineSet> {
    site.api::<MachineSet>().list(&Default::default()).await.unwrap().items
}

async fn names(site: &Site) -> BTreeSet<String> {
    site.machines().await.iter().map(|machine| machine.name_any()).collect()
}

fn infrastructure(name: &str) -> serde_json::Value {
    let reference = reference("infrastructure", "TestMachineTemplate", name);
    json!({"spec": {"template": {"spec": {"infrastructureRef": reference}}}})
}

#[tokio::test]
async fn machines_are_replaced_one_by_one_when_the_template_changes() {
    let site = site(2).await;
    let first = sets(&site).await;
    assert_eq!(first.len(), 1);
    assert!(is_of(&first[0], "MachineDeployment", "d"));
    assert_eq!(first[0].labels()[LABEL_DEPLOYMENT], "d");
    let hash = &first[0].labels()[LABEL_TEMPLATE_HASH];
    assert_eq!(first[0].spec.selector.match_labels.as_ref().unwrap()[LABEL_TEMPLATE_HASH], *hash);
    let before = names(&site).await;
    site.patch::<MachineDeployment>("d", infrastructure("two")).await;
    rolled_out(&site, "all are replaced").await;
    let after = names(&site).await;
    assert!(before.is_disjoint(&after) && after.len() == 2, "{before:?} {after:?}");
    for name in &after {
        assert_eq!(site.of("TestMachine").get(name).await.unwrap().data["spec"]["from"], "two");
    }
    site.when("the old set goes", async || sets(&site).await.len() == 1).await;
    let deployment = site.api::<MachineDeployment>().get("d").await.unwrap();
    assert_eq!(deployment.annotations()[ANNOTATION_REVISION], "2");
    let status = deployment.status.unwrap();
    assert_eq!(says(&status.conditions, "RollingOut"), "False NotRollingOut");
    assert_eq!(says(&status.conditions, "Available"), "True Available");
    site.delete::<MachineDeployment>("d").await;
    site.gone::<MachineDeployment>("d").await;
    assert!(sets(&site).await.is_empty() && site.machines().await.is_empty());
}

#[tokio::test]
async fn what_is_changed_in_place_replaces_no_machine() {
    let site = site(1).await;
    let before = names(&site).await;
    let template = json!({"metadata": {"labels": {"node.cluster.x-k8s.io/a": "b"}},
        "spec": {"deletion": {"nodeDrainTimeoutSeconds": 7}}});
    site.patch::<MachineDeployment>("d", json!({"spec": {"template": template}})).await;
    let name = before.iter().next().unwrap();
    site.until::<Machine>("the machine follows", name, |machine| {
        let deletion = machine.spec.deletion.as_ref();
        machine.labels().contains_key("node.cluster.x-k8s.io/a")
            && deletion.is_some_and(|deletion| deletion.node_drain_timeout_seconds == Some(7))
    })
    .await;
    site.when("and its node", async || {
        let node = site.played.get(&format!("/api/v1/nodes/{name}")).unwrap();
        node["metadata"]["labels"]["node.cluster.x-k8s.io/a"] == "b"
    })
    .await;
    assert_eq!((sets(&site).await.len(), names(&site).await), (1, before));
}

#[tokio::test]
async fn on_delete_only_what_somebody_deletes_is_replaced() {
    let site = site(2).await;
    let strategy = json!({"spec": {"rollout": {"strategy": {"type": "OnDelete", "rollingUpdate": null}}}});
    site.patch::<MachineDeployment>("d", strategy).await;
    let before = names(&site).await;
    site.patch::<MachineDeployment>("d", infrastructure("two")).await;
    site.until::<MachineDeployment>("it says what is old", "d", |deployment| {
        let status = deployment.status.as_ref();
        status.is_some_and(|status| says(&status.conditions, "RollingOut") == "True RollingOut")
    })
    .await;
    site.when("their nodes are marked", async || {
        before.iter().all(|name| {
            let node = site.played.get(&format!("/api/v1/nodes/{name}")).unwrap();
            node["spec"]["taints"].as_array().is_some_and(|all| all.iter().any(|taint| taint["key"] == TAINT_OUTDATED))
        })
    })
    .await;
    assert_eq!(names(&site).await, before);
    let victim = before.iter().next().unwrap();
    site.delete::<Machine>(victim).await;
    site.provide_until("one of the new template comes", async || {
        let names = names(&site).await;
        names.len() == 2 && names.intersection(&before).count() == 1
    })
    .await;
}

#[tokio::test]
async fn a_pause_replaces_nothing() {
    let site = site(1).await;
    let before = names(&site).await;
    site.patch::<MachineDeployment>("d", json!({"spec": {"paused": true}})).await;
    site.patch::<MachineDeployment>("d", infrastructure("two")).await;
    site.patch::<MachineDeployment>("d", json!({"spec": {"replicas": 2}})).await;
    site.when("it still scales", async || site.machines().await.len() == 2).await;
    assert!(before.is_subset(&names(&site).await));
    assert_eq!(sets(&site).await.len(), 1);
    site.patch::<MachineDeployment>("d", json!({"spec": {"paused": false}})).await;
    rolled_out(&site, "then all are replaced").await;
    assert!(before.is_disjoint(&names(&site).await));
}

#[tokio::test]
async fn machines_have_the_name_of_their_deployment_from_their_set() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.templates("one").await;
    let mut deployment = workers("MachineDeployment", "d", 1, "one");
    deployment["spec"]["selector"] = json!({"matchLabels": {"tier": "web"}});
    site.apply(deployment).await;
    rolled_out(&site, "it is made").await;
    let status = site.api::<MachineDeployment>().get("d").await.unwrap().status.unwrap();
    assert_eq!(status.versions, count_versions(["v1.35.0"]));
    let set = sets(&site).await.remove(0);
    let names = |labels: &BTreeMap<String, String>| labels.get(LABEL_DEPLOYMENT).cloned();
    let of_template = |set: &MachineSet| names(&set.spec.template.metadata.clone().unwrap_or_default().labels);
    assert_eq!((names(set.labels()).as_deref(), of_template(&set)), (Some("d"), None));
    assert_eq!(names(site.machines().await[0].labels()).as_deref(), Some("d"));
    // As it was before, and as of one that was adopted.
    let before = json!({"metadata": {"labels": {LABEL_DEPLOYMENT: null}},
        "spec": {"template": {"metadata": {"labels": {LABEL_DEPLOYMENT: "d"}}}}});
    site.patch::<MachineSet>(&set.name_any(), before).await;
    site.until::<MachineSet>("its template has it no longer", &set.name_any(), |set| {
        names(set.labels()).as_deref() == Some("d") && of_template(set).is_none()
    })
    .await;
    site.until::<Machine>("the machine has it", &site.machines().await[0].name_any(), |machine| {
        names(machine.labels()).as_deref() == Some("d")
    })
    .await;
}

#[tokio::test]
async fn the_older_version_makes_machines_too() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.templates("one").await;
    let old = |group: &str, kind: &str| json!({"apiVersion": format!("{group}.cluster.x-k8s.io/v1beta1"), "kind": kind, "name": "one"});
    site.apply(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachineDeployment", "metadata": {"name": "d"},
        "spec": {"clusterName": "c", "replicas": 1, "template": {"spec": {
            "clusterName": "c", "version": "1.35.0",
            "bootstrap": {"configRef": old("bootstrap", "TestConfigTemplate")},
            "infrastructureRef": old("infrastructure", "TestMachineTemplate"),
        }}},
    }))
    .await;
    rolled_out(&site, "it is made").await;
    let deployment = site.api::<MachineDeployment>().get("d").await.unwrap();
    let strategy = deployment.spec.rollout.unwrap().strategy.unwrap();
    assert!(strategy.rolling_update.is_some());
    assert_eq!(site.machines().await[0].spec.version.as_deref(), Some("v1.35.0"));
}

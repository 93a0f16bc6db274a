//! Sets of machines: how many there are, what they are made from, and which go.

use std::time::Duration;

use futures::FutureExt;
use kube::ResourceExt;
use serde_json::json;

use super::site::{Site, is_of, says, workers};
use crate::api::cluster::keys::{ANNOTATION_CLONED_FROM, ANNOTATION_DELETE_MACHINE, FINALIZER_SET, LABEL_SET};
use crate::api::cluster::v1beta2::{Machine, MachineSet};
use crate::runtime::conditions;

#[tokio::test]
async fn a_set_makes_machines_from_its_templates_and_scales() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.apply(workers("MachineSet", "w", 2, "t")).await;
    site.until::<MachineSet>("it says what lacks", "w", |set| {
        let found = set.status.as_ref().and_then(|status| conditions::find(&status.conditions, "ScalingUp"));
        set.finalizers() == [FINALIZER_SET]
            && found.is_some_and(|condition| condition.message.contains("there is no TestConfigTemplate \"t\""))
    })
    .await;
    site.templates("t").await;
    site.provide_until("both are ready", async || {
        let set = site.api::<MachineSet>().get("w").await.unwrap();
        set.status.is_some_and(|status| (status.replicas, status.available_replicas) == (Some(2), Some(2)))
    })
    .await;
    let machines = site.machines().await;
    let name = machines[0].name_any();
    assert!(name.starts_with("w-"), "{name}");
    assert!(is_of(&machines[0], "MachineSet", "w"));
    assert_eq!((machines[0].labels()[LABEL_SET].as_str(), machines[0].labels()["tier"].as_str()), ("w", "web"));
    let made = site.of("TestMachine").get(&name).await.unwrap();
    assert_eq!(made.data["spec"]["from"], "t");
    assert_eq!((made.annotations()[ANNOTATION_CLONED_FROM].as_str(), made.labels()["made"].as_str()), ("t", "so"));
    assert!(is_of(&made, "Machine", &name));
    // In place, and what the template has no more goes.
    let metadata = json!({"labels": {"tier": null, "node.cluster.x-k8s.io/a": "b"}});
    site.patch::<MachineSet>(
        "w",
        json!({"spec": {"template": {"metadata": metadata, "spec": {"minReadySeconds": 1}}}}),
    )
    .await;
    site.until::<Machine>("the machine follows", &name, |machine| {
        machine.labels().get("tier").is_none()
            && machine.labels().contains_key("node.cluster.x-k8s.io/a")
            && machine.spec.min_ready_seconds == Some(1)
    })
    .await;
    // Whom somebody marked goes first.
    site.patch::<Machine>(&name, json!({"metadata": {"annotations": {ANNOTATION_DELETE_MACHINE: "yes"}}})).await;
    site.patch::<MachineSet>("w", json!({"spec": {"replicas": 1}})).await;
    site.gone::<Machine>(&name).await;
    site.until::<MachineSet>("one is left", "w", |set| {
        set.status.as_ref().is_some_and(|status| status.replicas == Some(1))
    })
    .await;
    assert!(site.of("TestMachine").get_opt(&name).await.unwrap().is_none());
    site.delete::<MachineSet>("w").await;
    site.gone::<MachineSet>("w").await;
    assert!(site.machines().await.is_empty());
}

/// Three looks make so many machines. What they read of the namespace's machines is no more for each of them.
#[tokio::test]
async fn a_set_looks_through_all_machines_once_and_reads_none_whole() {
    const WORKERS: i32 = 45;
    let site = Site::new().await;
    site.made_cluster().await;
    site.templates("t").await;
    site.apply(workers("MachineSet", "w", WORKERS, "t")).await;
    site.until::<MachineSet>("all are made", "w", |set| {
        set.status.as_ref().is_some_and(|status| status.replicas == Some(WORKERS))
    })
    .await;
    assert_eq!(site.machines().await.len(), 45);
    // A look that others come before is begun anew.
    let (whole, metadata) = site.reads.of("/machines");
    assert!(whole == 0 && metadata < 5, "{whole} lists of whole machines, {metadata} of metadata");
    site.patch::<MachineSet>("w", json!({"spec": {"replicas": 1}})).await;
    site.when("one is left", async || site.api::<Machine>().list(&Default::default()).await.unwrap().items.len() == 1)
        .await;
    assert_eq!(site.reads.of("/machines").0, 0);
}

/// What is known of machines is behind: a set goes by what it has made itself.
#[tokio::test]
async fn a_set_that_hears_nothing_of_its_machines_makes_none_twice() {
    let (tell, heard) = tokio::sync::oneshot::channel::<()>();
    let site = Site::behind(Duration::from_millis(200), heard.map(drop)).await;
    site.made_cluster().await;
    site.templates("t").await;
    site.apply(workers("MachineSet", "w", 3, "t")).await;
    site.when("three are made", async || site.machines().await.len() >= 3).await;
    let first: Vec<String> = site.machines().await.iter().map(|machine| machine.name_any()).collect();
    let before = site.reads.of("/machinesets/w").0;
    site.when("it is looked at again and again", async || site.reads.of("/machinesets/w").0 >= before + 5).await;
    let names = async || site.machines().await.iter().map(|machine| machine.name_any()).collect::<Vec<_>>();
    assert_eq!((names().await, first.len()), (first.clone(), 3));
    let (whole, metadata) = site.reads.of("/machines");
    assert!(whole == 0 && metadata < 5, "{whole} lists of whole machines, {metadata} of metadata");
    tell.send(()).unwrap();
    site.until::<MachineSet>("it knows them", "w", |set| {
        set.status.as_ref().is_some_and(|status| status.replicas == Some(3))
    })
    .await;
    assert_eq!(names().await, first);
}

#[tokio::test]
async fn a_set_adopts_machines_of_nobody_and_makes_what_lacks() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.templates("t").await;
    site.machine("stray", json!({"tier": "web"})).await;
    let mut set = workers("MachineSet", "w", 2, "t");
    set["spec"]["selector"] = json!({"matchLabels": {"tier": "web"}});
    site.apply(set).await;
    site.until::<Machine>("it is adopted", "stray", |machine| is_of(machine, "MachineSet", "w")).await;
    site.when("one more is made", async || site.machines().await.len() == 2).await;
    let machines = site.machines().await;
    let made = machines.iter().find(|machine| machine.name_any() != "stray").unwrap().name_any();
    site.when("with its objects", async || site.of("TestMachine").get_opt(&made).await.unwrap().is_some()).await;
    // As after a crash in between.
    site.of("TestMachine").delete(&made, &Default::default()).await.unwrap();
    site.when("what lacks is made again", async || {
        let there = site.of("TestMachine").get_opt(&made).await.unwrap();
        there.is_some_and(|object| object.metadata.deletion_timestamp.is_none())
    })
    .await;
}

#[tokio::test]
async fn no_worker_is_made_while_the_control_plane_is_upgraded() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.templates("t").await;
    let status = json!({"version": "v1.34.0"});
    site.tell("TestControlPlane", "c", json!({"version": "v1.35.0"}), status).await;
    site.apply(workers("MachineSet", "w", 1, "t")).await;
    site.until::<MachineSet>("it waits", "w", |set| {
        let found = set.status.as_ref().and_then(|status| conditions::find(&status.conditions, "ScalingUp"));
        found.is_some_and(|condition| condition.message.contains("ControlPlaneIsStable"))
    })
    .await;
    assert!(site.machines().await.is_empty());
    site.tell("TestControlPlane", "c", json!({}), json!({"version": "v1.35.0"})).await;
    site.when("then it is made", async || site.machines().await.len() == 1).await;
}

#[tokio::test]
async fn a_machine_that_is_to_be_remediated_is_replaced() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.templates("t").await;
    site.apply(workers("MachineSet", "w", 1, "t")).await;
    site.provide_until("it runs", async || {
        let set = site.api::<MachineSet>().get("w").await.unwrap();
        set.status.is_some_and(|status| status.available_replicas == Some(1))
    })
    .await;
    let first = site.machines().await[0].name_any();
    site.apply(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": {"name": "h"},
        "spec": {"clusterName": "c", "selector": {"matchLabels": {"tier": "web"}}},
    }))
    .await;
    site.until::<Machine>("it is well", &first, |machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        says(&conditions, "HealthCheckSucceeded") == "True HealthCheckSucceeded"
    })
    .await;
    site.played.remove(&format!("/api/v1/nodes/{first}"));
    site.gone::<Machine>(&first).await;
    site.when("another one comes", async || site.machines().await.len() == 1).await;
    assert_ne!(site.machines().await[0].name_any(), first);
}

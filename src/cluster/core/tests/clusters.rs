//! Clusters: what they name, how far they are, and how they go.

use kube::ResourceExt;
use serde_json::json;

use super::site::{Site, cluster, is_of, machine, reference, says};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::{FINALIZER_CLUSTER, LABEL_CONTROL_PLANE};
use crate::api::cluster::v1beta2::{Cluster, Machine};

#[tokio::test]
async fn a_cluster_owns_what_it_names_and_says_how_far_it_is() {
    let site = Site::new().await;
    site.apply(cluster()).await;
    site.until::<Cluster>("it is held, and nothing is there", "c", |cluster| {
        cluster.finalizers() == [FINALIZER_CLUSTER]
            && cluster.status.as_ref().is_some_and(|status| {
                status.phase.as_deref() == Some("Provisioning")
                    && says(&status.conditions, "InfrastructureReady") == "False DoesNotExist"
            })
    })
    .await;
    site.play("TestCluster", "c", json!({})).await;
    site.play("TestControlPlane", "c", json!({"replicas": 3})).await;
    site.when("it owns both", async || {
        let infrastructure = site.of("TestCluster").get("c").await.unwrap();
        let control_plane = site.of("TestControlPlane").get("c").await.unwrap();
        let label = infrastructure.labels().get("cluster.x-k8s.io/cluster-name").is_some_and(|name| name == "c");
        label && is_of(&infrastructure, "Cluster", "c") && is_of(&control_plane, "Cluster", "c")
    })
    .await;
    // The older version of the contract.
    let endpoint = json!({"controlPlaneEndpoint": {"host": "192.0.2.1", "port": 6443}});
    let status = json!({"ready": true, "failureDomains": {"a": {"controlPlane": true}}});
    site.tell("TestCluster", "c", endpoint, status).await;
    let provisioned = site
        .until::<Cluster>("it is provisioned", "c", |cluster| {
            cluster.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Provisioned"))
        })
        .await;
    let endpoint = provisioned.spec.control_plane_endpoint.unwrap();
    assert_eq!((endpoint.host.as_str(), endpoint.port), ("192.0.2.1", Some(6443)));
    let status = provisioned.status.unwrap();
    assert_eq!(status.failure_domains[0].name, "a");
    assert_eq!(says(&status.conditions, "ControlPlaneInitialized"), "False NotInitialized");
    let conditions = json!([{"type": "Available", "status": "True", "reason": "Available"}]);
    let status = json!({"initialization": {"controlPlaneInitialized": true}, "replicas": 3, "conditions": conditions});
    site.tell("TestControlPlane", "c", json!({}), status).await;
    let available = site
        .until::<Cluster>("it is available", "c", |cluster| {
            cluster.status.as_ref().is_some_and(|status| says(&status.conditions, "Available") == "True Available")
        })
        .await;
    let counted = available.status.unwrap().control_plane.unwrap();
    assert_eq!((counted.desired_replicas, counted.replicas), (Some(3), Some(3)));
    site.played.fall_silent(Some("no route to host"));
}

#[tokio::test]
async fn a_pause_stops_everything_and_ends() {
    let site = Site::new().await;
    let mut paused = cluster();
    paused["spec"]["paused"] = true.into();
    site.play("TestCluster", "c", json!({})).await;
    site.apply(paused).await;
    let cluster = site
        .until::<Cluster>("it says so", "c", |cluster| {
            cluster.status.as_ref().is_some_and(|status| says(&status.conditions, "Paused") == "True Paused")
        })
        .await;
    assert!(cluster.finalizers().is_empty());
    let infrastructure = site.of("TestCluster").get("c").await.unwrap();
    assert!(infrastructure.owner_references().is_empty());
    site.patch::<Cluster>("c", json!({"spec": {"paused": false}})).await;
    site.when("it goes on", async || is_of(&site.of("TestCluster").get("c").await.unwrap(), "Cluster", "c")).await;
}

#[tokio::test]
async fn somebody_else_may_control_what_a_cluster_names() {
    let site = Site::new().await;
    for (kind, name) in [("TestRemediation", "tool"), ("TestCluster", "c"), ("TestControlPlane", "c")] {
        site.play(kind, name, json!({})).await;
    }
    let tool = site.of("TestRemediation").get("tool").await.unwrap();
    let tool = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "TestRemediation", "name": "tool",
        "uid": tool.uid(), "controller": true, "blockOwnerDeletion": true});
    site.own("TestCluster", "c", json!([tool])).await;
    site.apply(cluster()).await;
    let owners = async |kind: &str| -> Vec<(String, Option<bool>)> {
        let object = site.of(kind).get("c").await.unwrap();
        object.owner_references().iter().map(|owner| (owner.kind.clone(), owner.controller)).collect()
    };
    let shared = ("Cluster".to_owned(), None);
    site.when("it shares its control plane", async || owners("TestControlPlane").await == [shared.clone()]).await;
    site.when("and what somebody controls", async || {
        owners("TestCluster").await == [("TestRemediation".to_owned(), Some(true)), shared.clone()]
    })
    .await;
    // As it was before.
    let uid = site.api::<Cluster>().get("c").await.unwrap().uid();
    let before = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": uid,
        "controller": true, "blockOwnerDeletion": true});
    site.own("TestControlPlane", "c", json!([before])).await;
    site.when("it lets go of the control", async || owners("TestControlPlane").await == [shared.clone()]).await;
    site.delete::<Cluster>("c").await;
    site.gone::<Cluster>("c").await;
    for kind in ["TestCluster", "TestControlPlane"] {
        assert!(site.of(kind).get_opt("c").await.unwrap().is_none(), "{kind}");
    }
}

#[tokio::test]
async fn another_clusters_infrastructure_is_left_alone() {
    let site = Site::new().await;
    site.made_cluster().await;
    let mut thief = cluster();
    thief["metadata"]["name"] = "thief".into();
    thief["spec"].as_object_mut().unwrap().remove("controlPlaneRef");
    site.apply(thief).await;
    site.until::<Cluster>("it hears why", "thief", |cluster| {
        let found = cluster
            .status
            .as_ref()
            .and_then(|status| crate::runtime::conditions::find(&status.conditions, "InfrastructureReady"));
        found.is_some_and(|condition| condition.message.contains("belongs to Cluster \"c\""))
    })
    .await;
    site.delete::<Cluster>("thief").await;
    site.gone::<Cluster>("thief").await;
    assert!(site.of("TestCluster").get("c").await.unwrap().metadata.deletion_timestamp.is_none());
}

/// Who may write a Cluster need have no right on what other rooms of Cluster API keep.
#[tokio::test]
async fn what_is_of_another_group_than_its_role_has_or_of_no_contract_is_left_alone() {
    let site = Site::new().await;
    let other = "only kinds of infrastructure.cluster.x-k8s.io are";
    // The contract's label is for kinds that are meant to be named.
    let no_label = "whose definition has the label cluster.x-k8s.io/v1beta2";
    for (name, group, kind, told) in [
        ("a", "addons", "TestAddon", other),
        ("b", "bootstrap", "TestConfig", other),
        ("p", "controlplane", "TestControlPlane", other),
        ("i", "infrastructure", "TestIdentity", no_label),
    ] {
        site.play(kind, "x", json!({})).await;
        let mut thief = cluster();
        thief["metadata"]["name"] = name.into();
        thief["spec"] = json!({"infrastructureRef": reference(group, kind, "x")});
        site.apply(thief).await;
        site.until::<Cluster>("it hears why", name, |cluster| {
            let all = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            let found = crate::runtime::conditions::find(all, "InfrastructureReady");
            found.is_some_and(|condition| condition.message.contains(told))
        })
        .await;
        site.delete::<Cluster>(name).await;
        site.gone::<Cluster>(name).await;
        let left = site.of(kind).get("x").await.unwrap();
        assert!(left.owner_references().is_empty() && left.labels().is_empty(), "{:?}", left.metadata);
        assert!(left.metadata.deletion_timestamp.is_none(), "{kind}");
    }
}

#[tokio::test]
async fn a_cluster_goes_in_order() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.machine("worker", json!({})).await;
    site.machine("plane", json!({LABEL_CONTROL_PLANE: ""})).await;
    site.running("worker").await;
    for (kind, name) in [("TestMachine", "worker"), ("TestControlPlane", "c"), ("TestCluster", "c")] {
        site.hold(kind, name, true).await;
    }
    site.delete::<Cluster>("c").await;
    let is_deleted =
        async |kind: &str, name: &str| site.of(kind).get(name).await.unwrap().metadata.deletion_timestamp.is_some();
    site.when("the worker goes first", async || is_deleted("TestMachine", "worker").await).await;
    site.until::<Cluster>("it says for what it waits", "c", |cluster| {
        let status = cluster.status.as_ref();
        status.is_some_and(|status| says(&status.conditions, "Deleting") == "True WaitingForWorkersDeletion")
    })
    .await;
    assert!(!is_deleted("TestControlPlane", "c").await);
    site.hold("TestMachine", "worker", false).await;
    site.when("then the control plane", async || is_deleted("TestControlPlane", "c").await).await;
    assert!(site.api::<Machine>().get_opt("worker").await.unwrap().is_none());
    assert!(!is_deleted("TestCluster", "c").await);
    site.hold("TestControlPlane", "c", false).await;
    site.when("then what it runs on", async || is_deleted("TestCluster", "c").await).await;
    assert!(site.api::<Machine>().get_opt("plane").await.unwrap().is_none());
    site.hold("TestCluster", "c", false).await;
    site.gone::<Cluster>("c").await;
}

#[tokio::test]
async fn a_wrong_label_keeps_no_cluster_and_leaves_nothing_behind() {
    let site = Site::new().await;
    site.made_cluster().await;
    // What is paused keeps the label that somebody gave it.
    for (name, cluster, label) in [("own", "c", "other"), ("others", "other", "c")] {
        let mut one = machine(name);
        one["spec"]["clusterName"] = cluster.into();
        one["metadata"]["labels"] = json!({LABEL_CLUSTER: label});
        one["metadata"]["annotations"] = json!({"cluster.x-k8s.io/paused": ""});
        site.apply(one).await;
    }
    site.delete::<Cluster>("c").await;
    site.when("it is found all the same", async || {
        let own = site.api::<Machine>().get_opt("own").await.unwrap();
        own.is_none_or(|own| own.metadata.deletion_timestamp.is_some())
    })
    .await;
    site.gone::<Cluster>("c").await;
    assert!(site.api::<Machine>().get_opt("own").await.unwrap().is_none());
    let others = site.api::<Machine>().get("others").await.unwrap();
    assert_eq!(others.metadata.deletion_timestamp, None);
}

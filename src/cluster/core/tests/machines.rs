//! Machines: what they take over, their nodes, and how they go.

use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::site::{Site, is_of, machine, says};
use crate::api::cluster::keys::{
    FINALIZER_MACHINE, LABEL_CONTROL_PLANE, NODE_MACHINE, PRE_DRAIN_HOOK, PRE_TERMINATE_HOOK,
};
use crate::api::cluster::v1beta2::Machine;

const ROLE: &str = "node-role.kubernetes.io/worker";

fn waits(machine: &Machine, reason: &str) -> bool {
    let status = machine.status.as_ref();
    status.is_some_and(|status| says(&status.conditions, "Deleting") == format!("True {reason}"))
}

fn pod(name: &str, node: &str, more: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "web"},
        "spec": {"nodeName": node, "containers": []}});
    json_patch::merge(&mut pod, &more);
    pod
}

/// A cluster with a control plane's machine, so that nodes of others are not left alone.
async fn site() -> Site {
    with_a_plane(Site::new().await).await
}

async fn with_a_plane(site: Site) -> Site {
    site.made_cluster().await;
    site.machine("plane", json!({LABEL_CONTROL_PLANE: ""})).await;
    site
}

#[tokio::test]
async fn a_machine_becomes_a_node() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.machine("m", json!({ROLE: ""})).await;
    site.when("it owns what it names", async || {
        let config = site.of("TestConfig").get("m").await.unwrap();
        let infrastructure = site.of("TestMachine").get("m").await.unwrap();
        is_of(&config, "Machine", "m") && is_of(&infrastructure, "Machine", "m")
    })
    .await;
    let first = site
        .until::<Machine>("it waits", "m", |machine| {
            machine.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Pending"))
        })
        .await;
    assert_eq!(first.finalizers(), [FINALIZER_MACHINE]);
    assert!(is_of(&first, "Cluster", "c"));
    site.running("m").await;
    let machine = site.api::<Machine>().get("m").await.unwrap();
    assert_eq!(machine.spec.provider_id.as_deref(), Some("test://m"));
    assert_eq!(machine.spec.bootstrap.data_secret_name.as_deref(), Some("m-data"));
    let status = machine.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.node_ref.unwrap().name, "m");
    assert_eq!((status.addresses[0].address.as_str(), status.failure_domain.as_deref()), ("192.0.2.7", Some("row-1")));
    let node = site.played.get("/api/v1/nodes/m").unwrap();
    assert_eq!(node["metadata"]["annotations"][NODE_MACHINE], "m");
    assert_eq!(node["metadata"]["labels"][ROLE], "");
    assert_eq!(node["spec"]["taints"], json!([]));
    // In place: what the machine has no more goes from the node.
    site.patch::<Machine>("m", json!({"metadata": {"labels": {ROLE: null, "node.cluster.x-k8s.io/a": "b"}}})).await;
    site.when("the node follows", async || {
        let labels = site.played.get("/api/v1/nodes/m").unwrap()["metadata"]["labels"].clone();
        labels == json!({"node.cluster.x-k8s.io/a": "b"})
    })
    .await;
}

#[tokio::test]
async fn what_was_made_for_a_machine_is_the_machines() {
    let site = Site::new().await;
    site.made_cluster().await;
    let plane = site.of("TestControlPlane").get("c").await.unwrap();
    let maker = json!([{"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "TestControlPlane", "name": "c",
        "uid": plane.uid()}]);
    for name in ["plane", "worker"] {
        for kind in ["TestConfig", "TestMachine"] {
            site.play(kind, name, json!({})).await;
            site.own(kind, name, maker.clone()).await;
        }
        let mut machine = machine(name);
        if name == "plane" {
            machine["metadata"]["labels"] = json!({LABEL_CONTROL_PLANE: ""});
            machine["metadata"]["ownerReferences"] = json!([{"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
                "kind": "TestControlPlane", "name": "c", "uid": plane.uid(), "controller": true}]);
        }
        site.apply(machine).await;
    }
    let owners = async |kind: &str, name: &str| -> Vec<String> {
        let object = site.of(kind).get(name).await.unwrap();
        object.owner_references().iter().map(|owner| format!("{} {}", owner.kind, owner.name)).collect()
    };
    for kind in ["TestConfig", "TestMachine"] {
        site.when("its maker has it no longer", async || owners(kind, "plane").await == ["Machine plane"]).await;
        // It made nothing for a worker: whatever that is about, it stays.
        site.when("it has both", async || owners(kind, "worker").await == ["TestControlPlane c", "Machine worker"])
            .await;
    }
    site.delete::<Machine>("plane").await;
    site.gone::<Machine>("plane").await;
    for kind in ["TestConfig", "TestMachine"] {
        assert!(site.of(kind).get_opt("plane").await.unwrap().is_none(), "{kind}");
    }
}

#[tokio::test]
async fn a_node_that_is_gone_or_out_of_reach_is_told() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.machine("m", json!({})).await;
    site.running("m").await;
    let is = async |wanted: &str| {
        site.until::<Machine>(wanted, "m", |machine| {
            machine.status.as_ref().is_some_and(|status| says(&status.conditions, "NodeReady") == wanted)
        })
        .await
    };
    site.played.fall_silent(Some("no route to host"));
    let machine = is("Unknown ConnectionDown").await;
    let status = machine.status.unwrap();
    let told = crate::runtime::conditions::find(&status.conditions, "NodeReady").unwrap().message.clone();
    assert!(told.contains("no route to host"), "{told}");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    site.played.fall_silent(None);
    is("True NodeReady").await;
    site.played.remove("/api/v1/nodes/m");
    is("False NodeDeleted").await;
}

#[tokio::test]
async fn a_machine_goes_in_order() {
    let site = site().await;
    site.machine("m", json!({})).await;
    site.running("m").await;
    site.hold("TestMachine", "m", true).await;
    site.hold("TestConfig", "m", true).await;
    let path = "/api/v1/namespaces/web/pods/busy";
    site.played.put(path, pod("busy", "m", json!({})));
    let daemon = json!({"metadata": {"ownerReferences":
        [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": true}]}});
    site.played.put("/api/v1/namespaces/web/pods/daemon", pod("daemon", "m", daemon));
    site.played.put("/api/v1/namespaces/web/pods/other", pod("other", "elsewhere", json!({})));
    let attachment = "/apis/storage.k8s.io/v1/volumeattachments/a";
    site.played.put(attachment, json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": "a"}, "spec": {"attacher": "x", "nodeName": "m", "source": {"persistentVolumeName": "pv"}}}));
    site.played.keep_pods(true);
    let hooks = |first: Value, second: Value| json!({"metadata": {"annotations": {format!("{PRE_DRAIN_HOOK}/a"): first, format!("{PRE_TERMINATE_HOOK}/b"): second}}});
    site.patch::<Machine>("m", hooks("x".into(), "x".into())).await;
    site.delete::<Machine>("m").await;
    let step = async |reason: &str| site.until::<Machine>(reason, "m", |machine| waits(machine, reason)).await;
    step("WaitingForPreDrainHook").await;
    assert_eq!(site.played.get("/api/v1/nodes/m").unwrap()["spec"].get("unschedulable"), None);
    site.patch::<Machine>("m", hooks(Value::Null, "x".into())).await;
    step("DrainingNode").await;
    site.when("it takes no more pods", async || {
        site.played.get("/api/v1/nodes/m").unwrap()["spec"]["unschedulable"] == true
    })
    .await;
    assert!(site.played.get(path).is_some(), "a disruption budget keeps it");
    site.played.keep_pods(false);
    step("WaitingForVolumeDetach").await;
    assert!(site.played.get(path).is_none());
    site.played.remove(attachment);
    step("WaitingForPreTerminateHook").await;
    assert!(site.of("TestMachine").get("m").await.unwrap().metadata.deletion_timestamp.is_none());
    site.patch::<Machine>("m", hooks(Value::Null, Value::Null)).await;
    step("WaitingForInfrastructureDeletion").await;
    site.hold("TestMachine", "m", false).await;
    step("WaitingForBootstrapDeletion").await;
    assert!(site.played.get("/api/v1/nodes/m").is_some());
    site.hold("TestConfig", "m", false).await;
    site.gone::<Machine>("m").await;
    assert!(site.played.get("/api/v1/nodes/m").is_none());
    assert!(site.played.get("/api/v1/namespaces/web/pods/daemon").is_some());
    assert!(site.played.get("/api/v1/namespaces/web/pods/other").is_some());
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_keeps_no_machine() {
    let site = site().await;
    site.machine("m", json!({})).await;
    site.running("m").await;
    site.played.fall_silent(Some("no route to host"));
    site.hold("TestMachine", "m", true).await;
    site.delete::<Machine>("m").await;
    site.until::<Machine>("it is not waited for without end", "m", |machine| {
        waits(machine, "WaitingForInfrastructureDeletion")
    })
    .await;
    site.hold("TestMachine", "m", false).await;
    site.gone::<Machine>("m").await;
}

/// The machine's time for its node began with its deletion, and most of it goes into what is before.
#[tokio::test]
async fn a_node_is_deleted_though_its_cluster_was_away_for_a_moment_and_the_time_for_it_is_over() {
    let site = with_a_plane(Site::patient(Duration::from_secs(600)).await).await;
    site.machine("m", json!({})).await;
    site.running("m").await;
    site.patch::<Machine>("m", json!({"spec": {"deletion": {"nodeDeletionTimeoutSeconds": 1}}})).await;
    site.hold("TestMachine", "m", true).await;
    site.delete::<Machine>("m").await;
    site.until::<Machine>("its time for the node is over", "m", |machine| {
        let deleted = machine.metadata.deletion_timestamp.as_ref();
        waits(machine, "WaitingForInfrastructureDeletion")
            && deleted.is_some_and(|at| jiff::Timestamp::now().duration_since(at.0).as_secs() > 2)
    })
    .await;
    site.played.fall_silent(Some("no route to host"));
    site.hold("TestMachine", "m", false).await;
    site.until::<Machine>("it waits for the cluster", "m", |machine| waits(machine, "DeletingNode")).await;
    site.played.fall_silent(None);
    site.gone::<Machine>("m").await;
    assert!(site.played.get("/api/v1/nodes/m").is_none(), "the node was left");
}

#[tokio::test]
async fn pods_that_stay_are_waited_for_so_long_as_the_machine_says() {
    let site = site().await;
    site.machine("m", json!({})).await;
    site.running("m").await;
    site.played.put("/api/v1/namespaces/web/pods/busy", pod("busy", "m", json!({})));
    site.played.keep_pods(true);
    site.delete::<Machine>("m").await;
    site.until::<Machine>("it says which", "m", |machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let found = crate::runtime::conditions::find(&conditions, "Deleting");
        found.is_some_and(|condition| condition.message.contains("pod web/busy stays"))
    })
    .await;
    // Its time is counted from when the drain began.
    site.patch::<Machine>("m", json!({"spec": {"deletion": {"nodeDrainTimeoutSeconds": 1}}})).await;
    site.gone::<Machine>("m").await;
    assert!(site.played.get("/api/v1/namespaces/web/pods/busy").is_some());
}

#[tokio::test]
async fn a_machine_of_another_kind_of_object_is_refused() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.play("TestConfig", "m", json!({})).await;
    let mut machine = super::site::machine("m");
    machine["spec"]["infrastructureRef"] = json!({"apiGroup": "metal3.io", "kind": "BareMetalHost", "name": "m"});
    site.apply(machine).await;
    site.until::<Machine>("it hears why", "m", |machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let found = crate::runtime::conditions::find(&conditions, "InfrastructureReady");
        found.is_some_and(|condition| condition.message.contains("\"metal3.io\" is not followed"))
    })
    .await;
    site.delete::<Machine>("m").await;
    site.gone::<Machine>("m").await;
}

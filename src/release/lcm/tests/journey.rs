//! A cluster from empty machines to one release and the next, and machines that leave it.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::site::{CLUSTER, Site, address, condition};
use crate::api::lcm::{LCMCluster, LCMClusterState, LCMMachine, MachineRole, NodeState};

#[tokio::test]
async fn three_machines_come_to_a_release_and_to_the_next() {
    let site = Site::new().await;
    for name in ["m1", "m2", "w1"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", 3).await;
    assert_eq!(site.did("join", "1"), ["m1", "m2", "w1"], "one after the other");

    // What each was told, and when.
    let all = ["ca-hash", "ca.crt", "ca.key", "etcd-ca.crt", "etcd-ca.key", "front-proxy-ca.crt", "front-proxy-ca.key"];
    let first: Vec<&str> = [&all[..], &["sa.key", "sa.pub"]].concat();
    let mut second = first.clone();
    second.insert(7, "join-token");
    let keys = site.fate.lock().unwrap().keys.clone();
    assert_eq!(
        (keys["m1"].as_slice(), keys["m2"].as_slice()),
        (
            &first.iter().map(ToString::to_string).collect::<Vec<_>>()[..],
            &second.iter().map(ToString::to_string).collect::<Vec<_>>()[..]
        )
    );
    assert_eq!(keys["w1"], ["ca-hash", "join-token"]);
    for (machine, keys) in [("m2", first.as_slice()), ("w1", &["ca-hash"])] {
        assert_eq!(site.keys(&format!("{machine}-deployment")).await, keys, "who is a node needs no token");
    }
    assert_eq!(site.keys("c-kubeconfig").await, ["admin.conf", "value"]);
    let tokens = site
        .played
        .requests()
        .iter()
        .filter(|one| one.starts_with("POST /api/v1/namespaces/kube-system/secrets"))
        .count();
    assert_eq!(tokens, 2);

    let machine = site.get::<LCMMachine>("m2").await.unwrap();
    assert_eq!(machine.spec.role, Some(MachineRole::Control));
    assert_eq!((machine.spec.service_account.as_str(), machine.spec.release.as_str()), ("lcm-m2", "r1"));
    assert_eq!(machine.spec.ssh_authorized_keys, ["ssh-ed25519 AAAA ann"]);
    let params = &machine.spec.state_items[1].params;
    for (key, value) in [
        ("nodeRole", "control"),
        ("controlNodeIP", &address("m1")),
        ("controlPlaneNodes", "10.0.0.1,10.0.0.2"),
        ("clusterEndpoint", "10.0.0.100:6443"),
    ] {
        assert_eq!(params[key], value, "{key}");
    }
    let status = machine.status.unwrap();
    assert_eq!((status.state, status.release.as_str()), (Some(NodeState::Ready), "r1"));
    for type_ in ["AgentHeard", "Prepared", "Deployed", "Reconfigured", "Ready"] {
        assert_eq!(condition(&status.conditions, type_).0, "True", "{type_}");
    }

    site.upgrade(2).await;
    site.has_release("r2", 3).await;
    assert_eq!(site.did("join", "2"), ["m1", "m2", "w1"]);
    assert_eq!(site.did("tune", "1"), ["m1", "m2", "w1"], "what is the same is not done again");
    // Each was drained, and takes pods again.
    site.until("nothing is asked any more", async || site.get::<LCMClusterState>("cd-w1").await.is_none()).await;
    for name in ["m1", "m2", "w1"] {
        let node = site.played.get(&format!("/api/v1/nodes/{name}")).unwrap();
        assert_eq!(node["spec"]["unschedulable"], Value::Null, "{name}");
        let patches =
            site.played.requests().iter().filter(|one| **one == format!("PATCH /api/v1/nodes/{name}")).count();
        assert_eq!(patches, 2, "{name}");
    }
}

#[tokio::test]
async fn a_machine_that_leaves_is_drained_and_its_node_goes() {
    let site = Site::new().await;
    for name in ["m1", "w1", "w2"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", 3).await;
    let leave = || json!({"spec": {"prepareDeletion": true}});
    let phase = async |name: &str| site.get::<LCMMachine>(name).await.unwrap().status.unwrap().prepare_deletion_phase;

    // Pods that stay are said, and waited for.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "apps"}, "spec": {"nodeName": "w1"}});
    site.played.put("/api/v1/namespaces/apps/pods/p", pod);
    site.played.keep_pods(true);
    site.patch::<LCMMachine>("w1", leave()).await;
    site.says("w1", "Leaving", "True", "pod apps/p stays").await;
    assert_eq!(phase("w1").await, "started");
    site.played.keep_pods(false);
    site.until("it has left", async || phase("w1").await == "completed").await;
    assert_eq!(site.played.get("/api/v1/nodes/w1"), None);
    site.delete::<LCMMachine>("w1").await;
    site.has_release("r1", 2).await;

    // The only manager stays, and says why; a second one lets it go.
    site.patch::<LCMMachine>("m1", leave()).await;
    site.says("m1", "Leaving", "False", "while two are Ready, and 1 of them are").await;
    site.machine("m2").await;
    site.until("the first has left", async || phase("m1").await == "completed").await;
    assert_eq!(site.played.get("/api/v1/nodes/m1"), None);
    assert_eq!(site.did("join", "1").last().map(String::as_str), Some("m2"));

    // With the cluster everybody goes at once.
    site.delete::<LCMMachine>("m1").await;
    site.patch::<LCMMachine>("m2", leave()).await;
    site.delete::<LCMCluster>(CLUSTER).await;
    site.until("the last one may go", async || phase("m2").await == "completed").await;
    assert!(site.get::<LCMMachine>("m2").await.unwrap().finalizers().is_empty());
}

#[tokio::test]
async fn a_machine_reboots_when_somebody_says_so() {
    let site = Site::new().await;
    for name in ["m1", "w1"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", 2).await;
    let mark = json!({"metadata": {"annotations": {"lcm.mirantis.com/graceful-reboot": "true"}}});
    site.patch::<LCMMachine>("w1", mark).await;
    let is_over = async || {
        let one = site.get::<LCMMachine>("w1").await.unwrap();
        !one.annotations().contains_key("lcm.mirantis.com/graceful-reboot") && one.status.unwrap().reboot.is_none()
    };
    site.until("it has rebooted", is_over).await;
    site.until("it takes pods", async || site.get::<LCMClusterState>("cd-w1").await.is_none()).await;
    let patches = site.played.requests().iter().filter(|one| *one == "PATCH /api/v1/nodes/w1").count();
    assert_eq!(patches, 2, "drained before, and taking pods afterwards");
    site.has_release("r1", 2).await;
}

#[tokio::test]
async fn nothing_but_keys_changes_in_maintenance() {
    let site = Site::new().await;
    for name in ["m1", "w1"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", 2).await;
    site.patch::<LCMCluster>(CLUSTER, json!({"spec": {"maintenance": true}})).await;
    let said = async || {
        let status = site.get::<LCMCluster>(CLUSTER).await.unwrap().status.unwrap();
        status.maintenance && site.get::<LCMMachine>("w1").await.unwrap().status.unwrap().maintenance
    };
    site.until("it is in maintenance", said).await;
    site.upgrade(2).await;
    site.patch::<LCMCluster>(CLUSTER, json!({"spec": {"sshAuthorizedKeys": ["ssh-ed25519 BBBB bob"]}})).await;
    let keys =
        async || site.get::<LCMMachine>("w1").await.unwrap().spec.ssh_authorized_keys == ["ssh-ed25519 BBBB bob"];
    site.until("keys are kept", keys).await;
    site.says("w1", "Prepared", "False", "in maintenance").await;
    assert!(site.did("fetch", "2").is_empty());
    site.patch::<LCMCluster>(CLUSTER, json!({"spec": {"maintenance": false}})).await;
    site.has_release("r2", 2).await;
}

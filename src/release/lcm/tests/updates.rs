//! Another release, group by group, with what is paused and what reboots.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::site::{CLUSTER, Site};
use crate::api::lcm::{LCMCluster, LCMClusterState, LCMMachine};

fn groups(paused: &str) -> Value {
    json!({"spec": {"updateGroups": [
        {"name": "c-control", "index": 1, "concurrentUpdates": 1},
        {"name": "first", "index": 1, "concurrentUpdates": 1},
        {"name": "c-default", "index": 2, "concurrentUpdates": 2, "paused": paused},
    ]}})
}

#[tokio::test]
async fn groups_follow_each_other_and_one_that_is_paused_waits() {
    let site = Site::new().await;
    for name in ["m1", "w1", "w2", "w3"] {
        site.machine(name).await;
    }
    site.patch::<LCMMachine>("w3", json!({"spec": {"updateGroup": "first"}})).await;
    site.cluster(1).await;
    site.has_release("r1", 4).await;
    site.patch::<LCMCluster>(CLUSTER, groups("waits for the step k8s-workers-c-default")).await;
    site.upgrade(2).await;
    let progress = async || {
        let status = site.get::<LCMCluster>(CLUSTER).await.unwrap().status.unwrap();
        status.update_groups.iter().map(|one| (one.name.clone(), one.machines, one.updated)).collect::<Vec<_>>()
    };
    let said = |default: i32| {
        vec![("c-control".to_owned(), 1, 1), ("c-default".to_owned(), 2, default), ("first".to_owned(), 1, 1)]
    };
    site.until("the control plane and the first group have it", async || progress().await == said(0)).await;
    site.says("w1", "Prepared", "False", "waits for the step k8s-workers-c-default").await;
    assert_eq!(site.did("join", "2"), ["m1", "w3"]);
    assert!(!site.did("fetch", "2").contains(&"w1".to_owned()), "what is paused is not even prepared");
    assert_eq!(site.get::<LCMCluster>(CLUSTER).await.unwrap().status.unwrap().release, "r1");
    // A machine that becomes a node meanwhile gets the release that the control plane has.
    site.machine("w4").await;
    site.until("it joins", async || site.did("join", "2").contains(&"w4".to_owned())).await;

    site.patch::<LCMCluster>(CLUSTER, groups("")).await;
    site.has_release("r2", 5).await;
    site.until("all of them have it", async || progress().await.iter().all(|(_, all, updated)| all == updated)).await;
}

#[tokio::test]
async fn machines_reboot_for_a_release_where_their_group_says_so() {
    let site = Site::new().await;
    for name in ["m1", "w1", "w2"] {
        site.machine(name).await;
    }
    site.patch::<LCMMachine>("w2", json!({"spec": {"updateGroup": "calm"}})).await;
    site.cluster(1).await;
    site.has_release("r1", 3).await;
    let groups = json!([{"name": "c-default", "index": 1, "concurrentUpdates": 1, "rebootIfUpdateRequires": true},
        {"name": "calm", "index": 2, "concurrentUpdates": 1}]);
    let required = json!({"spec": {"updateGroups": groups, "nodesRebootRequired": true}});
    site.patch::<LCMCluster>(CLUSTER, required).await;
    site.fate.lock().unwrap().rebooted.clear();
    site.upgrade(2).await;
    site.has_release("r2", 3).await;
    let is_over = async || {
        let one = site.get::<LCMMachine>("w1").await.unwrap();
        !one.spec.reboot_required && one.status.unwrap().reboot.is_none()
    };
    site.until("nothing is asked any more", is_over).await;
    assert_eq!(site.fate.lock().unwrap().rebooted, ["w1"], "once, and nobody else");
    site.until("it takes pods", async || site.get::<LCMClusterState>("cd-w1").await.is_none()).await;
    let patches = site.played.requests().iter().filter(|one| *one == "PATCH /api/v1/nodes/w1").count();
    assert_eq!(patches, 2, "one drain for both");
    // The same release again asks for nothing.
    site.patch::<LCMCluster>(CLUSTER, json!({"spec": {"sshAuthorizedKeys": ["ssh-ed25519 CCCC eve"]}})).await;
    let keys = async || site.get::<LCMMachine>("w1").await.unwrap().spec.ssh_authorized_keys[0].contains("eve");
    site.until("it was looked at", keys).await;
    assert!(!site.get::<LCMMachine>("w1").await.unwrap().spec.reboot_required);
    assert!(site.get::<LCMMachine>("w2").await.unwrap().annotations().contains_key("lcm.mirantis.com/was-ready"));
}

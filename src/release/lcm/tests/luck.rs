//! Bad luck.

use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use super::site::{CLUSTER, Site, condition};
use crate::api::lcm::{LCMCluster, LCMMachine};

#[tokio::test]
async fn an_appliance_that_is_killed_at_each_write_gets_there() {
    let mut site = Site::idle().await;
    for name in ["m1", "m2", "w1"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    let mut lives = 0;
    for release in ["r1", "r2"] {
        while !site.has(release, 3).await {
            lives += 1;
            assert!(lives < 2000, "it does not get there");
            let left = site.act_and_die_after(1);
            while left.load(Ordering::SeqCst) >= 0 && !site.has(release, 3).await {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            site.kill();
        }
        if release == "r1" {
            assert_eq!(site.did("join", "1"), ["m1", "m2", "w1"], "once each, in their order");
            site.upgrade(2).await;
        }
    }
    assert_eq!(site.did("join", "2"), ["m1", "m2", "w1"]);
    assert!(lives > 20, "{lives}");
}

#[tokio::test]
async fn a_manager_that_dies_in_an_upgrade_stops_it_until_it_is_mended() {
    let site = Site::new().await;
    for name in ["m1", "m2", "m3", "w1"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", 4).await;
    site.fate.lock().unwrap().fails.insert(("m1".into(), "join".into()));
    site.upgrade(2).await;
    let sentence = "manager m1 does not get on: step join failed with exit code 1 (attempt 1): no space left on device; no other \
                    manager is touched until it is Ready: mend it, for its agent tries again, or delete its Machine";
    site.says("m2", "Deployed", "False", sentence).await;
    site.says("w1", "Deployed", "False", "manager m1 does not get on").await;
    site.says("m1", "Ready", "False", "step join failed with exit code 1").await;
    site.until("all others are Ready", async || {
        let cluster = site.get::<LCMCluster>(CLUSTER).await.unwrap().status.unwrap();
        (cluster.ready_nodes, cluster.release.as_str()) == (3, "r1")
    })
    .await;
    assert!(site.did("join", "2").is_empty());

    site.fate.lock().unwrap().fails.clear();
    site.has_release("r2", 4).await;
    assert_eq!(site.did("join", "2"), ["m1", "m2", "m3", "w1"]);
}

#[tokio::test]
async fn secrets_of_others_are_left_alone() {
    let site = Site::new().await;
    let labels = json!({"cluster.x-k8s.io/cluster-name": "other"});
    site.create::<Secret>(json!({"metadata": {"name": "c-sa", "labels": labels}, "stringData": {"tls.crt": "x"}}))
        .await;
    site.machine("m1").await;
    site.cluster(1).await;
    let said = async || {
        let status = site.get::<LCMCluster>(CLUSTER).await.and_then(|one| one.status).unwrap_or_default();
        condition(&status.conditions, "ControlPlaneInitialized").1
    };
    site.until("it says whose it is", async || {
        said().await.contains("\"c-sa\" is not this cluster's: it is of the cluster \"other\"")
    })
    .await;
    assert!(site.did("join", "1").is_empty());
    site.delete::<Secret>("c-sa").await;
    site.has_release("r1", 1).await;
}

#[tokio::test]
async fn an_agent_that_is_not_heard_is_told_of() {
    let site = Site::new().await;
    site.machine("m1").await;
    site.cluster(1).await;
    site.has_release("r1", 1).await;
    site.say("m1", json!({"lastHeard": "2026-01-01T00:00:00Z"})).await;
    site.patch::<LCMMachine>("m1", json!({"metadata": {"annotations": {"lcm.mirantis.com/index": "7"}}})).await;
    site.says("m1", "AgentHeard", "False", "was not heard since 2026-01-01T00:00:00Z: see whether the machine runs")
        .await;
    site.say("m1", json!({"lastHeard": jiff::Timestamp::now().to_string()})).await;
    site.says("m1", "AgentHeard", "True", "").await;
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_says_so_and_goes_on_when_it_does() {
    let site = Site::new().await;
    for name in ["m1", "w1"] {
        site.machine(name).await;
    }
    site.played.fall_silent(Some("no route to host"));
    site.cluster(1).await;
    site.says("m1", "Ready", "False", "no route to host").await;
    assert_eq!(site.did("join", "1"), ["m1"]);
    site.played.fall_silent(None);
    site.has_release("r1", 2).await;
}

#[tokio::test]
async fn a_machine_leaves_within_its_time_whatever_is_dead() {
    let mut site = Site::idle().await;
    site.times.patience = jiff::SignedDuration::from_secs(1);
    site.begin();
    for name in ["m1", "w1", "w2"] {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", 3).await;
    let leaves = async |name: &str| {
        site.patch::<LCMMachine>(name, json!({"spec": {"prepareDeletion": true}})).await;
    };
    let ended = async |name: &str| {
        let status = site.get::<LCMMachine>(name).await.unwrap().status.unwrap();
        (status.prepare_deletion_phase, condition(&status.conditions, "Leaving").1)
    };
    // A node that is dead: its pods do not end, and what is left of it in the cluster goes, so that they run elsewhere.
    let mut node = site.played.get("/api/v1/nodes/w1").unwrap();
    node["status"]["conditions"][0]["status"] = json!("Unknown");
    site.played.put("/api/v1/nodes/w1", node);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "apps"}, "spec": {"nodeName": "w1"}});
    site.played.put("/api/v1/namespaces/apps/pods/p", pod);
    site.played.keep_pods(true);
    leaves("w1").await;
    site.until("w1 is let go", async || ["completed", "failed"].contains(&ended("w1").await.0.as_str())).await;
    site.until("its node is gone", async || site.played.get("/api/v1/nodes/w1").is_none()).await;
    // A cluster that is dead.
    site.played.fall_silent(Some("no route to host"));
    leaves("w2").await;
    let given_up = async || {
        let (phase, words) = ended("w2").await;
        phase == "failed" && words.contains("whoever deletes the machine goes on") && words.contains("no route to host")
    };
    site.until("w2 is given up", given_up).await;
}

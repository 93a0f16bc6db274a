//! Applications in a cluster that must be asked before its nodes change.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::site::{CLUSTER, Site, condition};
use crate::api::lcm::{CONDITION_LOCKS, LCMCluster, LCMClusterState, LCMMachine, LOCKS_NOT_ASKED, REASON_HELD};
use crate::cluster::workload::played_tests::Played;
use crate::runtime::conditions::find;

const GROUP: &str = "/apis/lcm.mirantis.com/v1alpha1";

fn path(kind: &str, name: &str) -> String {
    format!("{GROUP}/{kind}/{name}")
}

/// A lock of the application controller `storage`: of a node, or of the cluster.
fn lock(node: Option<&str>, status: Value) -> Value {
    let (kind, name) = match node {
        Some(node) => ("NodeWorkloadLock", format!("storage-{node}")),
        None => ("ClusterWorkloadLock", "storage".to_owned()),
    };
    let mut spec = json!({"controllerName": "storage"});
    if let Some(node) = node {
        spec["nodeName"] = json!(node);
    }
    json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec, "status": status})
}

fn put(played: &Played, node: Option<&str>, status: Value) {
    let object = lock(node, status);
    let kind = if node.is_some() { "nodeworkloadlocks" } else { "clusterworkloadlocks" };
    played.put(&path(kind, object["metadata"]["name"].as_str().unwrap()), object);
}

/// A cluster of these machines with the first release, whose applications nobody asks anything.
async fn settled(site: &Site, machines: &[&str]) {
    for name in machines {
        site.machine(name).await;
    }
    site.cluster(1).await;
    site.has_release("r1", i32::try_from(machines.len()).unwrap()).await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeworkloadlocks.lcm.mirantis.com";
    site.until("applications can make locks", async || site.played.get(definition).is_some()).await;
    asked(site, "false").await;
}

/// Waits until what is asked of the cluster's applications is so.
async fn asked(site: &Site, value: &str) {
    let is = async || {
        let request = site.get::<LCMClusterState>("cm-c").await;
        request.and_then(|one| one.status).is_some_and(|status| status.value == value)
    };
    site.until(&format!("the cluster is asked: {value}"), is).await;
}

fn unschedulable(played: &Played, node: &str) -> bool {
    played.get(&format!("/api/v1/nodes/{node}")).is_some_and(|node| node["spec"]["unschedulable"] == true)
}

#[tokio::test]
async fn an_upgrade_waits_for_whoever_holds_the_cluster_or_a_node() {
    let site = Site::new().await;
    settled(&site, &["m1", "w1"]).await;
    put(&site.played, None, json!({"state": "active"}));
    put(&site.played, Some("w1"), json!({"state": "active"}));
    site.upgrade(2).await;
    let sentence = "waits for applications in the cluster: the application controller \"storage\" has not let go of the cluster yet; delete \
                    its ClusterWorkloadLock storage to go on without it";
    site.says("m1", "Deployed", "False", sentence).await;
    let request = site.played.get(&path("clustermaintenancerequests", CLUSTER)).unwrap();
    assert_eq!(request["spec"], json!({"scope": "drain", "release": "r2"}));
    assert_eq!(site.played.get(&path("nodemaintenancerequests", "m1")), None, "first the cluster, then its nodes");
    // Machines are written before their cluster is.
    let told = async || {
        let conditions = site.get::<LCMCluster>(CLUSTER).await.unwrap().status.unwrap().conditions;
        let (held, why) = condition(&conditions, CONDITION_LOCKS);
        held == "False"
            && why.contains("has not let go of the cluster yet")
            && condition(&conditions, "NodesReady").1.contains("ClusterWorkloadLock storage")
    };
    site.until("the cluster says who holds it", told).await;
    // Ready for what it was asked before is not ready for this.
    put(&site.played, None, json!({"state": "inactive", "release": "r1"}));
    site.says("m1", "Deployed", "False", "for release \"r1\", and not for \"r2\" yet").await;
    assert!(!unschedulable(&site.played, "m1") && site.did("join", "2").is_empty());

    put(&site.played, None, json!({"state": "inactive", "release": "r2"}));
    site.until("nobody holds the manager", async || site.did("join", "2") == ["m1"]).await;
    site.says("w1", "Deployed", "False", "has not let go of node w1 yet").await;
    site.says("w1", CONDITION_LOCKS, "False", "has not let go of node w1 yet").await;
    let request = site.played.get(&path("nodemaintenancerequests", "w1")).unwrap();
    assert_eq!(request["spec"], json!({"nodeName": "w1", "scope": "drain", "release": "r2"}));
    let taken_back = async || site.played.get(&path("nodemaintenancerequests", "m1")).is_none();
    site.until("the manager takes pods again", taken_back).await;
    assert!(!unschedulable(&site.played, "w1"), "nothing is done to a node that is held");
    put(&site.played, Some("w1"), json!({"state": "failed", "release": "r2", "errorMessage": "two disks are lost"}));
    let failed = "cannot let go of node w1: two disks are lost; mend that, or delete its NodeWorkloadLock storage-w1 to go on without it";
    site.says("w1", "Deployed", "False", failed).await;
    let status = site.get::<LCMMachine>("w1").await.unwrap().status.unwrap();
    assert!(status.kubernetes_cordon_drain_error.contains("two disks are lost"), "{status:?}");
    site.played.remove(&path("nodeworkloadlocks", "storage-w1"));
    site.has_release("r2", 2).await;
    asked(&site, "false").await;
    assert_eq!(site.did("join", "2"), ["m1", "w1"]);
    for kind in ["clustermaintenancerequests", "nodemaintenancerequests"] {
        assert_eq!(site.played.paths(&format!("{GROUP}/{kind}/")), Vec::<String>::new());
    }
    site.says("w1", CONDITION_LOCKS, "True", "").await;
    let let_go = async || {
        let conditions = site.get::<LCMCluster>(CLUSTER).await.unwrap().status.unwrap().conditions;
        find(&conditions, CONDITION_LOCKS).is_some_and(|one| one.reason == LOCKS_NOT_ASKED)
    };
    site.until("nobody is asked about the cluster", let_go).await;

    // While nothing is under way nobody looks at locks.
    let reads = || site.played.requests().iter().filter(|one| one.contains("workloadlocks")).count();
    let before = reads();
    site.patch::<LCMCluster>(CLUSTER, json!({"spec": {"sshAuthorizedKeys": ["ssh-ed25519 BBBB bob"]}})).await;
    let keys =
        async || site.get::<LCMMachine>("w1").await.unwrap().spec.ssh_authorized_keys == ["ssh-ed25519 BBBB bob"];
    site.until("it was looked at", keys).await;
    assert_eq!(reads(), before);
}

#[tokio::test]
async fn who_reboots_is_asked_for_that() {
    let site = Site::new().await;
    settled(&site, &["m1", "w1"]).await;
    put(&site.played, Some("w1"), json!({"state": "active"}));
    let mark = json!({"metadata": {"annotations": {"lcm.mirantis.com/graceful-reboot": "true"}}});
    site.patch::<LCMMachine>("w1", mark).await;
    site.says("w1", "Ready", "True", "has not let go of node w1 yet").await;
    let request = site.played.get(&path("nodemaintenancerequests", "w1")).unwrap();
    assert_eq!(request["spec"], json!({"nodeName": "w1", "scope": "os", "release": "r1"}));
    let request = site.played.get(&path("clustermaintenancerequests", CLUSTER)).unwrap();
    assert_eq!(request["spec"], json!({"scope": "os", "release": "r1"}));
    site.fate.lock().unwrap().rebooted.clear();
    put(&site.played, Some("w1"), json!({"state": "inactive", "release": "r1"}));
    site.until("it reboots", async || site.fate.lock().unwrap().rebooted == ["w1"]).await;
    asked(&site, "false").await;
    site.has_release("r1", 2).await;
}

#[tokio::test]
async fn a_node_that_is_held_leaves_when_it_is_let_go() {
    let site = Site::new().await;
    settled(&site, &["m1", "w1"]).await;
    let mut node = site.played.get("/api/v1/nodes/w1").unwrap();
    node["metadata"]["uid"] = json!("u-1");
    site.played.put("/api/v1/nodes/w1", node);
    put(&site.played, Some("w1"), json!({"state": "active"}));
    site.patch::<LCMMachine>("w1", json!({"spec": {"prepareDeletion": true}})).await;
    site.says("w1", "Leaving", "False", "has not let go of node w1 yet").await;
    let request = site.played.get(&path("nodedeletionrequests", "w1")).unwrap();
    assert_eq!(request["spec"], json!({"nodeName": "w1"}));
    assert_eq!(request["metadata"]["ownerReferences"][0]["uid"], "u-1", "it goes with its node");
    assert_eq!(site.played.get(&path("clustermaintenancerequests", CLUSTER)), None);
    let leaving = site.get::<LCMMachine>("w1").await.unwrap().status.unwrap();
    let reason = leaving.conditions.iter().find(|one| one.type_ == "Leaving").map(|one| one.reason.clone());
    assert_eq!((leaving.prepare_deletion_phase.as_str(), reason.as_deref()), ("started", Some(REASON_HELD)));
    assert!(!unschedulable(&site.played, "w1"));
    // Whoever stays after all is asked no more.
    site.patch::<LCMMachine>("w1", json!({"spec": {"prepareDeletion": false}})).await;
    site.until("it stays", async || site.get::<LCMClusterState>("cd-w1").await.is_none()).await;
    assert_eq!(site.played.get(&path("nodedeletionrequests", "w1")), None);

    site.patch::<LCMMachine>("w1", json!({"spec": {"prepareDeletion": true}})).await;
    site.says("w1", "Leaving", "False", "has not let go of node w1 yet").await;
    put(&site.played, Some("w1"), json!({"state": "inactive"}));
    let phase = async || site.get::<LCMMachine>("w1").await.unwrap().status.unwrap().prepare_deletion_phase;
    site.until("it has left", async || phase().await == "completed").await;
    assert_eq!(site.played.get("/api/v1/nodes/w1"), None);
}

#[tokio::test]
async fn a_machine_that_is_forced_out_goes_undrained_and_waits_for_nobody() {
    let site = Site::new().await;
    settled(&site, &["m1", "w1", "w2", "w3"]).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "apps"}, "spec": {"nodeName": "w1"}});
    site.played.put("/api/v1/namespaces/apps/pods/p", pod);
    site.played.keep_pods(true);
    put(&site.played, Some("w1"), json!({"state": "active"}));
    let force = || json!({"spec": {"prepareDeletion": true, "forceDeletion": true}});
    let left = async |name: &str| {
        let status = site.get::<LCMMachine>(name).await.unwrap().status.unwrap();
        (status.prepare_deletion_phase, condition(&status.conditions, "Leaving").1)
    };
    site.patch::<LCMMachine>("w1", force()).await;
    site.until("it has left", async || left("w1").await.0 == "completed").await;
    assert_eq!(site.played.get("/api/v1/nodes/w1"), None);
    assert!(site.played.requests().iter().all(|one| !one.ends_with("/eviction")), "nothing is evicted");
    assert_eq!(site.get::<LCMClusterState>("cd-w1").await, None);
    // So does one whose drain waits already.
    put(&site.played, Some("w2"), json!({"state": "active"}));
    site.patch::<LCMMachine>("w2", json!({"spec": {"prepareDeletion": true}})).await;
    site.says("w2", "Leaving", "False", "has not let go of node w2 yet").await;
    site.patch::<LCMMachine>("w2", force()).await;
    site.until("it has left", async || left("w2").await.0 == "completed").await;
    assert_eq!(site.played.get("/api/v1/nodes/w2"), None);
    // A cluster that does not answer is asked once.
    site.played.fall_silent(Some("no route to host"));
    site.patch::<LCMMachine>("w3", force()).await;
    let given_up = async || {
        let (phase, words) = left("w3").await;
        phase == "failed" && words.contains("kubectl delete node") && words.contains("no route to host")
    };
    site.until("it is given up", given_up).await;
}

#[tokio::test]
async fn what_others_wrote_in_the_cluster_brings_about_a_wait_and_nothing_else() {
    let site = Site::new().await;
    settled(&site, &["m1", "w1"]).await;
    // Somebody else's requests of our names are left alone, and stop nobody while there is no lock.
    let theirs = json!({"metadata": {"name": "w1"}, "spec": {"nodeName": "w1", "scope": "os", "release": "r7"}});
    site.played.put(&path("nodemaintenancerequests", "w1"), theirs);
    let theirs = site.played.get(&path("nodemaintenancerequests", "w1"));
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodedeletionrequests.lcm.mirantis.com";
    site.played
        .put(definition, json!({"metadata": {"name": "nodedeletionrequests.lcm.mirantis.com"}, "spec": "theirs"}));
    // A worker's root writes what is no lock, and very many of them.
    let junk =
        json!({"metadata": {"name": "x"}, "spec": {"controllerName": {"a": 1}, "nodeName": 7}, "status": "inactive"});
    site.played.put(&path("nodeworkloadlocks", "x"), junk);
    for at in 0..60 {
        let name = format!("l{at}");
        let lock = json!({"metadata": {"name": name}, "spec": {"controllerName": "y".repeat(5000), "nodeName": "w1"}});
        site.played.put(&path("nodeworkloadlocks", &name), lock);
    }
    site.upgrade(2).await;
    site.says("w1", "Deployed", "False", "NodeMaintenanceRequest").await;
    let said = site.get::<LCMMachine>("w1").await.unwrap().status.unwrap().kubernetes_cordon_drain_error;
    assert!(said.len() < 4000, "{}", said.len());
    assert_eq!(site.did("join", "2"), ["m1"], "who is not held goes on");
    for at in 0..60 {
        site.played.remove(&path("nodeworkloadlocks", &format!("l{at}")));
    }
    site.has_release("r2", 2).await;
    asked(&site, "false").await;
    assert_eq!(site.played.get(&path("nodemaintenancerequests", "w1")), theirs);
    assert_eq!(site.played.get(definition).unwrap()["spec"], "theirs");
}

#[tokio::test]
async fn a_cluster_whose_nodes_are_held_goes_at_once() {
    let site = Site::new().await;
    settled(&site, &["m1", "w1"]).await;
    put(&site.played, Some("w1"), json!({"state": "active"}));
    site.patch::<LCMMachine>("w1", json!({"spec": {"prepareDeletion": true}})).await;
    site.says("w1", "Leaving", "False", "has not let go of node w1 yet").await;
    site.delete::<LCMCluster>(CLUSTER).await;
    let phase = async || site.get::<LCMMachine>("w1").await.unwrap().status.unwrap().prepare_deletion_phase;
    site.until("it may go", async || phase().await == "completed").await;
    site.until("nothing is asked", async || site.get::<LCMClusterState>("cm-c").await.is_none()).await;
}

/// An application controller: lets go of what it is asked for, and takes it again.
async fn storage(played: Played, stop: CancellationToken) {
    let answer = |request: Option<Value>, node: Option<&str>| {
        let kind = if node.is_some() { "nodeworkloadlocks" } else { "clusterworkloadlocks" };
        let name = node.map_or_else(|| "storage".to_owned(), |node| format!("storage-{node}"));
        let status = match request {
            Some(request) => json!({"state": "inactive", "release": request["spec"]["release"]}),
            None => json!({"state": "active", "release": "r1"}),
        };
        if played.get(&path(kind, &name)).is_none_or(|lock| lock["status"] != status) {
            put(&played, node, status);
        }
    };
    let work = async {
        loop {
            answer(played.get(&path("clustermaintenancerequests", CLUSTER)), None);
            for node in ["m1", "m2", "w1"] {
                answer(played.get(&path("nodemaintenancerequests", node)), Some(node));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    stop.run_until_cancelled(work).await;
}

#[tokio::test]
async fn an_appliance_that_is_killed_at_each_write_asks_and_lets_go() {
    let mut site = Site::idle().await;
    site.begin();
    settled(&site, &["m1", "m2", "w1"]).await;
    let stop = CancellationToken::new();
    let _ends = stop.clone().drop_guard();
    tokio::spawn(storage(site.played.clone(), stop));
    site.kill();
    let drained = Arc::new(std::sync::Mutex::new(Vec::new()));
    site.fate.lock().unwrap().watched = Some({
        let (played, drained) = (site.played.clone(), drained.clone());
        Box::new(move |machine| {
            let lock = played.get(&path("nodeworkloadlocks", &format!("storage-{machine}"))).unwrap();
            drained.lock().unwrap().push((machine.to_owned(), lock["status"]["state"] == "inactive"));
        })
    });
    site.upgrade(2).await;
    let is_over = async |site: &Site| {
        let request = site.get::<LCMClusterState>("cm-c").await.unwrap();
        site.has("r2", 3).await
            && request.spec.value == "false"
            && request.status.is_some_and(|one| one.value == "false")
    };
    let mut lives = 0;
    while !is_over(&site).await {
        lives += 1;
        assert!(lives < 2000, "it does not get there");
        let left = site.act_and_die_after(1);
        while left.load(Ordering::SeqCst) >= 0 && !is_over(&site).await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        site.kill();
    }
    let drained = drained.lock().unwrap().clone();
    assert_eq!(drained, [("m1".to_owned(), true), ("m2".to_owned(), true), ("w1".to_owned(), true)]);
    for kind in ["clustermaintenancerequests", "nodemaintenancerequests"] {
        assert_eq!(site.played.paths(&format!("{GROUP}/{kind}/")), Vec::<String>::new());
    }
    assert!(site.get::<LCMMachine>("w1").await.unwrap().annotations().contains_key("lcm.mirantis.com/was-deployed"));
}

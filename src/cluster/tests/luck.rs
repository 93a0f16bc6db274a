//! Bad luck, with all rooms together.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::net::TcpListener;

use super::manifests::{cluster_of, pool, workers};
use super::site::Site;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::api::infrastructure::data::v1beta2::Metal3Data;
use crate::api::infrastructure::remediation::v1beta2::Metal3Remediation;
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::api::ipam::metal3::IPAddress;
use crate::api::metal3::BareMetalHost;

const VERSION: &str = "v1.34.0";
const ENDPOINT: (&str, u16) = ("192.168.111.249", 6443);

/// Whether a control plane has so many machines, and all are ready.
pub(super) async fn is_ready(site: &Site, plane: &str, machines: i32) -> bool {
    let status = site.get::<KubeadmControlPlane>(plane).await.and_then(|plane| plane.status).unwrap_or_default();
    [status.replicas, status.ready_replicas, status.up_to_date_replicas] == [Some(machines); 3]
}

/// How many machines were made from a template of Metal3Machines.
pub(super) async fn cloned_from(site: &Site, template: &str) -> usize {
    let of = |machine: &Metal3Machine| {
        machine.annotations().get("cluster.x-k8s.io/cloned-from-name").is_some_and(|name| name == template)
    };
    site.all::<Metal3Machine>().await.iter().filter(|machine| of(machine)).count()
}

/// Who has a host.
async fn consumer(site: &Site, host: &str) -> Option<String> {
    site.get::<BareMetalHost>(host).await?.spec.consumer_ref?.name
}

/// The machines whose names begin so, by name.
async fn machines(site: &Site, begin: &str) -> Vec<String> {
    let all = site.all::<Machine>().await;
    all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with(begin)).collect()
}

#[tokio::test]
async fn a_host_that_fails_is_marked_and_its_machine_is_replaced_on_another_one() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a", "b"]).await;
    site.rack.break_down("b");
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 1, VERSION)).await;
    site.apply_all(&workers("one", 1, VERSION, "one")).await;
    site.apply(&json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3RemediationTemplate",
        "metadata": {"name": "reboot"},
        "spec": {"template": {"spec": {"strategy": {"type": "Reboot", "retryLimit": 1, "timeoutSeconds": 100}}}}}))
        .await;
    site.apply(&json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
        "metadata": {"name": "workers"},
        "spec": {"clusterName": "one", "selector": {"matchLabels": {"tier": "workers"}}, "remediation": {"templateRef":
            {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3RemediationTemplate", "name": "reboot"}}}}))
        .await;
    site.until("the worker has the broken host", async || consumer(&site, "b").await.is_some()).await;
    let ill = consumer(&site, "b").await.unwrap();
    site.until("its Machine says what is wrong", async || {
        site.says::<Machine>(&ill).await.contains("the disk does not answer")
    })
    .await;
    // Somebody has seen enough. Of the time that each attempt has, nothing is waited for.
    site.rack.hosts_called(&["c"]).await;
    let mark = json!({"metadata": {"annotations": {"cluster.x-k8s.io/remediate-machine": ""}}});
    site.patch::<Machine>(&ill, mark).await;
    site.until("it was tried as often as may be", async || {
        let long_ago = json!({"status": {"lastRemediated": "2020-01-01T00:00:00Z", "retryCount": 1}});
        if site.says::<Metal3Remediation>(&ill).await.contains("\"Waiting\"") {
            let remediations = site.api::<Metal3Remediation>();
            // It may be gone by now.
            drop(remediations.patch_status(&ill, &PatchParams::default(), &Patch::Merge(long_ago)).await);
        }
        site.get::<Machine>(&ill).await.is_none()
    })
    .await;
    site.until("another one has another host", async || consumer(&site, "c").await.is_some()).await;
    let next = consumer(&site, "c").await.unwrap();
    site.until("it runs", async || site.says::<Machine>(&next).await.contains("\"phase\":\"Running\"")).await;
    let broken = site.get::<BareMetalHost>("b").await.unwrap();
    assert!(broken.annotations().contains_key("capm3.metal3.io/unhealthy"), "{:?}", broken.annotations());
    assert_eq!(consumer(&site, "b").await, None);
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn a_machine_that_never_began_the_cluster_is_replaced_and_the_next_one_begins_it() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a"]).await;
    site.rack.hold("a");
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 1, VERSION)).await;
    site.apply(&json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
        "metadata": {"name": "planes"},
        "spec": {"clusterName": "one", "selector": {"matchLabels": {"cluster.x-k8s.io/control-plane": ""}}}}))
        .await;
    site.until("its host is provisioned", async || {
        site.says::<BareMetalHost>("a").await.contains("\"state\":\"provisioned\"")
    })
    .await;
    let dead = consumer(&site, "a").await.unwrap();
    let mark = json!({"metadata": {"annotations": {"cluster.x-k8s.io/remediate-machine": ""}}});
    site.patch::<Machine>(&dead, mark).await;
    site.until("it is gone", async || site.get::<Machine>(&dead).await.is_none()).await;
    site.rack.let_go("a");
    site.until("another one has begun the cluster", async || is_ready(&site, "one", 1).await).await;
    let members: Vec<String> = site.rack.etcds().members("one").into_iter().collect();
    assert_eq!(members, machines(&site, "one").await);
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn a_cluster_whose_first_machine_dies_before_the_second_joins_is_not_begun_twice() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a", "b", "c"]).await;
    ["b", "c"].into_iter().for_each(|host| site.rack.hold(host));
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 3, VERSION)).await;
    site.until("the second one is installed", async || {
        site.says::<BareMetalHost>("b").await.contains("\"state\":\"provisioned\"")
    })
    .await;
    let (first, second) = (consumer(&site, "a").await.unwrap(), consumer(&site, "b").await.unwrap());
    site.rack.die("one", &first);
    site.rack.cluster("one").fall_silent(Some("no route to host"));
    site.until("the control plane says that nobody answers", async || {
        let said = site.says::<KubeadmControlPlane>("one").await;
        said.contains("ConnectionDown") && said.contains("no route to host")
    })
    .await;
    let both = BTreeSet::from([first.clone(), second]);
    assert_eq!(BTreeSet::from_iter(machines(&site, "one").await), both, "none is made or deleted meanwhile");
    // It comes back, and all goes on.
    site.rack.come_back("one", &first);
    site.rack.cluster("one").fall_silent(None);
    ["b", "c"].into_iter().for_each(|host| site.rack.let_go(host));
    site.until("three machines run", async || is_ready(&site, "one", 3).await).await;
    assert!(both.is_subset(&site.rack.etcds().members("one")));
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn no_machine_is_taken_away_while_etcd_has_no_quorum() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a", "b", "c"]).await;
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 3, VERSION)).await;
    site.until("three machines run", async || is_ready(&site, "one", 3).await).await;
    let all = machines(&site, "one").await;
    all.iter().take(2).for_each(|dead| site.rack.die("one", dead));
    // A look of before does not know it.
    site.until("that is seen", async || {
        let plane = json!(site.get::<KubeadmControlPlane>("one").await);
        let conditions = plane["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "EtcdClusterHealthy" && one["status"] != "True")
    })
    .await;
    site.patch::<KubeadmControlPlane>("one", json!({"spec": {"replicas": 1}})).await;
    site.until("it says why none goes", async || {
        let said = site.says::<KubeadmControlPlane>("one").await;
        said.contains("Scaling down from 3 to 1 replicas is blocked because")
            && said.contains("waiting for etcd cluster to become healthy")
    })
    .await;
    let stay = async || {
        let left = site.all::<Machine>().await;
        left.len() == 3 && left.iter().all(|machine| machine.metadata.deletion_timestamp.is_none())
    };
    assert!(stay().await && site.rack.etcds().members("one").len() == 3);
    // One of them is back: two of three are a quorum, and those go that are not needed.
    site.rack.come_back("one", &all[0]);
    site.until("one is left", async || is_ready(&site, "one", 1).await && machines(&site, "one").await.len() == 1)
        .await;
    let members: Vec<String> = site.rack.etcds().members("one").into_iter().collect();
    assert_eq!(members, machines(&site, "one").await);
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn two_clusters_want_the_last_host() {
    let site = Site::new(&["one", "two"]).await;
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 1, VERSION)).await;
    site.apply_all(&cluster_of("two", ("192.168.111.250", 6443), 1, VERSION)).await;
    site.until("both wait for a host", async || {
        let machines = site.all::<Metal3Machine>().await;
        machines.len() == 2
            && machines.iter().all(|machine| json!(machine.status).to_string().contains("There is no BareMetalHost"))
    })
    .await;
    site.rack.hosts_called(&["last"]).await;
    site.until("one of them has begun", async || is_ready(&site, "one", 1).await || is_ready(&site, "two", 1).await)
        .await;
    let (winner, other) = if is_ready(&site, "one", 1).await { ("one", "two") } else { ("two", "one") };
    let (has, lacks) = (machines(&site, winner).await.remove(0), machines(&site, other).await.remove(0));
    assert_eq!(consumer(&site, "last").await, Some(has.clone()));
    site.until("the other one says who has it", async || {
        site.says::<Metal3Machine>(&lacks).await.contains(&format!("(last: Metal3Machine {has})"))
    })
    .await;
    site.delete::<Cluster>(winner).await;
    site.until("then it is the other one's", async || is_ready(&site, other, 1).await).await;
    assert_eq!(consumer(&site, "last").await, Some(lacks));
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

/// A port that takes connections and answers nothing, as a stuck API server does; how often it was asked.
async fn silence() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(stream);
        }
    });
    (port, asked)
}

#[tokio::test]
async fn clusters_that_hang_hold_up_no_other() {
    let mut silent = Vec::new();
    for name in ["hung-0", "hung-1", "hung-2"] {
        let (port, asked) = silence().await;
        silent.push((name, port, asked));
    }
    let site = Site::new(&["well"]).await;
    site.rack.hosts_called(&["a", "b", "c"]).await;
    ["a", "b", "c"].into_iter().for_each(|host| site.rack.hold(host));
    site.apply(&pool()).await;
    for (name, port, _) in &silent {
        site.apply_all(&cluster_of(name, ("127.0.0.1", *port), 1, VERSION)).await;
    }
    site.until("each has a host", async || {
        consumer(&site, "a").await.is_some()
            && consumer(&site, "b").await.is_some()
            && consumer(&site, "c").await.is_some()
    })
    .await;
    site.until("they are asked", async || silent.iter().all(|(.., asked)| asked.load(Ordering::SeqCst) > 0)).await;
    site.rack.hosts_called(&["d"]).await;
    site.apply_all(&cluster_of("well", ENDPOINT, 1, VERSION)).await;
    site.until("the other one is made", async || is_ready(&site, "well", 1).await).await;
    site.delete::<Cluster>("well").await;
    site.until("and goes", async || site.get::<Cluster>("well").await.is_none()).await;
    for (name, ..) in &silent {
        let machine = machines(&site, name).await.remove(0);
        site.until("the silence is said", async || {
            site.says::<Metal3Machine>(&machine).await.contains("did not answer")
        })
        .await;
    }
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

/// Wherever a process ends, the next one goes on: nothing is made twice, and nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_is_made_and_deleted_though_the_appliance_is_killed_again_and_again() {
    let mut site = Site::idle(&["one"]).await;
    let hosts = ["a", "b", "c", "d"];
    site.rack.hosts_called(&hosts).await;
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 3, VERSION)).await;
    site.apply_all(&workers("one", 1, VERSION, "one")).await;
    let runs = async |site: &Site| {
        let machines = site.all::<Machine>().await;
        let running = |machine: &&Machine| json!(machine.status)["phase"] == "Running";
        machines.len() == 4 && machines.iter().filter(running).count() == 4 && is_ready(site, "one", 3).await
    };
    let lives = killed_until(&mut site, runs).await;
    assert!(lives > 20, "it was killed {lives} times only");
    let machines: Vec<String> = machines(&site, "one").await;
    let metal3: Vec<String> = site.all::<Metal3Machine>().await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(metal3, machines);
    let mut consumers = Vec::new();
    for host in hosts {
        consumers.extend(consumer(&site, host).await);
    }
    consumers.sort();
    assert_eq!(consumers, machines, "a host for each machine");
    let indexes: BTreeSet<i32> = site.all::<Metal3Data>().await.iter().filter_map(|data| data.spec.index).collect();
    assert_eq!(indexes, BTreeSet::from([0, 1, 2, 3]));
    let given: BTreeSet<String> = site.all::<IPAddress>().await.into_iter().map(|one| one.spec.address).collect();
    assert_eq!(given.len(), 4, "{given:?}");
    assert_eq!(site.rack.etcds().members("one").len(), 3);
    assert_eq!(site.rack.faults(), Vec::<String>::new());

    site.delete::<Cluster>("one").await;
    killed_until(&mut site, async |site: &Site| site.get::<Cluster>("one").await.is_none()).await;
    site.revive();
    site.until("every host is free again", async || {
        let hosts = site.all::<BareMetalHost>().await;
        let addresses = site.all::<IPAddress>().await;
        addresses.is_empty() && hosts.iter().all(|host| host.spec.consumer_ref.is_none() && host.spec.image.is_none())
    })
    .await;
    assert!(site.all::<Machine>().await.is_empty() && site.all::<Metal3Machine>().await.is_empty());
}

/// Kills the appliance after a few writes, and begins it anew, until all is done. How often it was killed.
async fn killed_until(site: &mut Site, is_done: impl AsyncFn(&Site) -> bool) -> usize {
    for (killed, writes) in (0..1000).zip([1, 2, 3, 5].into_iter().cycle()) {
        let left = site.act_and_die_after(writes);
        let now = &*site;
        now.until("it is dead or done", async || left.load(Ordering::SeqCst) < 0 || is_done(now).await).await;
        let survived = left.load(Ordering::SeqCst) >= 0;
        site.kill();
        if survived {
            return killed;
        }
    }
    panic!("it has made no end\n{}", site.story().await);
}

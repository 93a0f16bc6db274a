//! Bad input and changes of mind, with all rooms together: each is said where its user looks, and does no harm.

use kube::ResourceExt;
use serde_json::json;

use super::luck::{cloned_from, is_ready};
use super::manifests::{cluster_of, machine_template, pool, workers};
use super::site::Site;
use crate::api::bootstrap::v1beta2::KubeadmConfig;
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine};
use crate::api::metal3::BareMetalHost;

const ENDPOINT: (&str, u16) = ("192.168.111.249", 6443);
const VERSION: &str = "v1.34.0";

#[tokio::test]
async fn a_version_without_a_kubeadm_is_named() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a"]).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 1, "v1.17.0")).await;
    site.until("the KubeadmConfig says so", async || {
        let configs = site.all::<KubeadmConfig>().await;
        configs.iter().any(|config| json!(config.status).to_string().contains("v1.22.0 is the oldest one"))
    })
    .await;
    let host = site.get::<BareMetalHost>("a").await.unwrap();
    assert!(host.spec.consumer_ref.is_none(), "a host was taken for a machine that nobody can make");
}

#[tokio::test]
async fn workers_of_another_version_than_their_control_plane_wait() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a", "b"]).await;
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 1, VERSION)).await;
    site.apply_all(&workers("one", 1, "v1.35.0", "one")).await;
    site.until("the control plane is ready", async || is_ready(&site, "one", 1).await).await;
    site.until("the set says why it makes no machine", async || {
        let sets = site.all::<MachineSet>().await;
        sets.iter().any(|set| json!(set.status).to_string().contains("(KubernetesVersionSkew)"))
    })
    .await;
    assert_eq!(site.all::<Machine>().await.len(), 1);
    let right = json!({"spec": {"template": {"spec": {"version": VERSION}}}});
    site.patch::<MachineDeployment>("one", right).await;
    site.until("a worker of the right version runs", async || {
        site.says::<MachineDeployment>("one").await.contains("\"readyReplicas\":1")
    })
    .await;
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn an_endpoint_is_of_one_cluster() {
    let site = Site::new(&["one", "two"]).await;
    site.rack.hosts_called(&["a", "b"]).await;
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 1, VERSION)).await;
    site.until("it runs", async || is_ready(&site, "one", 1).await).await;
    site.apply_all(&cluster_of("two", ENDPOINT, 1, VERSION)).await;
    site.until("the second one hears whose it is", async || {
        site.says::<Metal3Cluster>("two").await.contains("is that of Metal3Cluster one already")
    })
    .await;
    site.until("its Cluster repeats it", async || {
        site.says::<Cluster>("two").await.contains("is that of Metal3Cluster one already")
    })
    .await;
    assert_eq!(site.all::<Machine>().await.len(), 1, "nothing is made for the second one");
    site.delete::<Cluster>("one").await;
    site.until("it has the endpoint then", async || is_ready(&site, "two", 1).await).await;
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn workers_end_with_the_template_that_was_said_last() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a", "b", "c", "d", "e"]).await;
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 1, VERSION)).await;
    for template in ["first", "second", "third"] {
        site.apply_all(&machine_template("one", template)).await;
    }
    site.apply_all(&workers("one", 2, VERSION, "first")).await;
    let ready = async || site.says::<MachineDeployment>("one").await.contains("\"readyReplicas\":2");
    site.until("two workers run", &ready).await;
    let change = async |template: &str| {
        let template = json!({"infrastructureRef": {"name": template}});
        site.patch::<MachineDeployment>("one", json!({"spec": {"template": {"spec": template}}})).await;
    };
    change("second").await;
    site.until("a machine of the second one is there", async || cloned_from(&site, "second").await > 0).await;
    change("third").await;
    site.until("all are of the third one", async || {
        let counts = [cloned_from(&site, "first").await, cloned_from(&site, "second").await];
        // A Machine goes after what it was made of.
        let machines = site.all::<Machine>().await.len();
        counts == [0, 0] && cloned_from(&site, "third").await == 2 && machines == 3 && ready().await
    })
    .await;
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn a_control_plane_ends_with_the_template_that_was_said_last() {
    let site = Site::new(&["one"]).await;
    site.rack.hosts_called(&["a", "b", "c", "d", "e"]).await;
    site.apply(&pool()).await;
    site.apply_all(&cluster_of("one", ENDPOINT, 3, "v1.33.0")).await;
    site.apply_all(&machine_template("one", "other")).await;
    site.until("three machines run", async || is_ready(&site, "one", 3).await).await;
    site.patch::<KubeadmControlPlane>("one", json!({"spec": {"version": VERSION}})).await;
    let of_version = async |version: &str| {
        let machines = site.all::<Machine>().await;
        machines.iter().filter(|machine| machine.spec.version.as_deref() == Some(version)).count()
    };
    site.until("the upgrade has begun", async || of_version(VERSION).await > 0).await;
    let other = json!({"spec": {"machineTemplate": {"spec": {"infrastructureRef": {"name": "other"}}}}});
    site.patch::<KubeadmControlPlane>("one", other).await;
    site.until("all are of the other template and the new version", async || {
        cloned_from(&site, "other").await == 3
            && cloned_from(&site, "one").await == 0
            && of_version(VERSION).await == 3
            && is_ready(&site, "one", 3).await
    })
    .await;
    let machines: Vec<String> = site.all::<Metal3Machine>().await.iter().map(ResourceExt::name_any).collect();
    let members: Vec<String> = site.rack.etcds().members("one").into_iter().collect();
    assert_eq!(members, machines, "a member of etcd for each machine, and no other one");
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}

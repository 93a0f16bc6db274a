//! The fifteen steps in which Metal3 explains how a cluster is deployed: `docs/deployment_workflow.md` of
//! <https://github.com/metal3-io/cluster-api-provider-metal3>. A check for each, by its number.
//!
//! All objects are made at once. Each check says at which version of the store its step was done; which steps must have been
//! before stands beside it.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::journal::Journal;
use super::manifests::{cluster_of, pool, workers};
use super::site::{NAMESPACE, Site};
use crate::api::bootstrap::v1beta2::{KubeadmConfig, KubeadmConfigTemplate};
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::api::infrastructure::data::v1beta2::{Metal3Data, Metal3DataClaim, Metal3DataTemplate};
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine, Metal3MachineTemplate};
use crate::api::ipam::metal3::IPPool;
use crate::api::metal3::BareMetalHost;

const VERSION: &str = "v1.34.0";
const HOSTS: [&str; 5] = ["node-0", "node-1", "node-2", "node-3", "node-4"];

/// What the steps are looked up in.
struct Story<'a> {
    journal: &'a Journal,
    /// The machine that began the cluster, and its host.
    first: String,
    host: String,
    site: &'a Site,
}

/// When a step was done, or why it was not.
type Done = Result<u64, String>;

struct Step {
    name: &'static str,
    done: fn(&Story<'_>) -> Done,
    /// Steps that were before it.
    after: &'static [usize],
}

const STEPS: [Step; 15] = [
    Step { name: "what a cluster names is the cluster's", done: owned_by_the_cluster, after: &[] },
    Step { name: "the endpoint is verified, and the Metal3Cluster ready", done: endpoint_verified, after: &[1] },
    Step { name: "the cluster says that its infrastructure is ready", done: infrastructure_ready, after: &[2] },
    Step { name: "the control plane and the workers are the cluster's", done: keepers_owned, after: &[] },
    Step { name: "the control plane waits for that, and makes one machine", done: first_machine, after: &[3, 4] },
    Step { name: "its user data is made and stored", done: user_data_made, after: &[5] },
    Step { name: "the machine takes over the name of that Secret", done: user_data_known, after: &[6] },
    Step { name: "a host is chosen once the Secret is there", done: host_chosen, after: &[7] },
    Step { name: "data of the template is claimed, and waited for", done: data_claimed, after: &[8] },
    Step { name: "it has the lowest index, and is rendered", done: data_rendered, after: &[9] },
    Step { name: "the host is told what to run, with all of the data", done: host_told, after: &[10] },
    Step { name: "the host is provisioned", done: host_deploys, after: &[11] },
    Step { name: "its node is found by the label, and both have the provider ID", done: node_known, after: &[12] },
    Step { name: "the machine is that node, and runs", done: machine_runs, after: &[13] },
    Step { name: "the others follow, the control plane's one by one", done: others_follow, after: &[14] },
];

fn has_owner(object: &Value, kind: &str) -> bool {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten().any(|owner| owner["kind"] == kind)
}

fn is_plane(object: &Value) -> bool {
    !object["metadata"]["labels"]["cluster.x-k8s.io/control-plane"].is_null()
}

impl Story<'_> {
    /// When the object of this name was so.
    fn when(&self, kind: &str, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Done {
        self.journal.first_of(kind, name, is).ok_or_else(|| format!("{kind} {name} never {what}"))
    }
}

/// 1: owners of everything that is named.
fn owned_by_the_cluster(story: &Story<'_>) -> Done {
    for kind in ["KubeadmConfig", "Metal3Machine"] {
        for made in story.journal.made(kind) {
            story.when(kind, made.name(), "was its Machine's", |object| has_owner(object, "Machine"))?;
        }
    }
    for machine in story.journal.made("Machine") {
        let keeper = if is_plane(&machine.object) { "KubeadmControlPlane" } else { "MachineSet" };
        story.when("Machine", machine.name(), "was its keeper's", |object| has_owner(object, keeper))?;
    }
    story.when("Metal3Cluster", "one", "was the Cluster's", |object| has_owner(object, "Cluster"))
}

/// 2
fn endpoint_verified(story: &Story<'_>) -> Done {
    story.when("Metal3Cluster", "one", "was ready", |object| object["status"]["initialization"]["provisioned"] == true)
}

/// 3
fn infrastructure_ready(story: &Story<'_>) -> Done {
    story.when("Cluster", "one", "said that its infrastructure is ready", |object| {
        object["status"]["initialization"]["infrastructureProvisioned"] == true
    })
}

/// 4
fn keepers_owned(story: &Story<'_>) -> Done {
    let owned = |kind: &str| story.when(kind, "one", "was the Cluster's", |object| has_owner(object, "Cluster"));
    Ok(owned("KubeadmControlPlane")?.min(owned("MachineDeployment")?))
}

/// 5
fn first_machine(story: &Story<'_>) -> Done {
    let begun = story.when("KubeadmControlPlane", "one", "said that it has begun the cluster", |object| {
        object["status"]["initialization"]["controlPlaneInitialized"] == true
    })?;
    let early: Vec<String> = story
        .journal
        .made("Machine")
        .into_iter()
        .filter(|made| is_plane(&made.object) && made.version < begun)
        .map(|made| made.name().to_owned())
        .collect();
    if early != [story.first.clone()] {
        return Err(format!("these were made before the cluster had begun: {early:?}"));
    }
    for kind in ["KubeadmConfig", "Metal3Machine"] {
        story.when(kind, &story.first, "was made", |_| true)?;
    }
    story.when("Machine", &story.first, "was made", |_| true)
}

/// When the cluster said that its control plane has begun.
fn initialized(story: &Story<'_>) -> Done {
    story.when("Cluster", "one", "said that its control plane has begun", |object| {
        object["status"]["initialization"]["controlPlaneInitialized"] == true
    })
}

/// 6
fn user_data_made(story: &Story<'_>) -> Done {
    story.when("Secret", &story.first, "was made as user data", |object| {
        object["type"] == "cluster.x-k8s.io/secret" && !object["data"]["value"].is_null()
    })
}

/// 7
fn user_data_known(story: &Story<'_>) -> Done {
    let named = story.when("Machine", &story.first, "named its user data", |object| {
        object["spec"]["bootstrap"]["dataSecretName"] == story.first.as_str()
    })?;
    story.when("Machine", &story.first, "said that its user data is there", |object| {
        object["status"]["initialization"]["bootstrapDataSecretCreated"] == true
    })?;
    Ok(named)
}

/// 8
fn host_chosen(story: &Story<'_>) -> Done {
    story.when("BareMetalHost", &story.host, "was the machine's", |object| {
        object["spec"]["consumerRef"]["kind"] == "Metal3Machine"
            && object["spec"]["consumerRef"]["name"] == story.first.as_str()
    })
}

/// 9
fn data_claimed(story: &Story<'_>) -> Done {
    story.when("Metal3DataClaim", &story.first, "was made by the Metal3Machine", |object| {
        has_owner(object, "Metal3Machine") && object["spec"]["template"]["name"] == "one"
    })
}

/// 10
fn data_rendered(story: &Story<'_>) -> Done {
    let of = |object: &Value| object["spec"]["index"].as_i64();
    let mut indexes: Vec<_> = story.journal.made("Metal3Data").iter().filter_map(|made| of(&made.object)).collect();
    indexes.sort_unstable();
    if indexes != [0, 1, 2, 3] {
        return Err(format!("four machines have the indexes {indexes:?}"));
    }
    for part in ["metadata", "networkdata"] {
        story.when("Secret", &format!("{}-{part}", story.first), "was made", |object| {
            object["type"] == "infrastructure.cluster.x-k8s.io/secret"
        })?;
    }
    story.when("Metal3Data", "one-0", "was ready for the first machine", |object| {
        object["spec"]["claim"]["name"] == story.first.as_str() && object["status"]["ready"] == true
    })
}

/// 11
fn host_told(story: &Story<'_>) -> Done {
    let told = story
        .when("BareMetalHost", &story.host, "was told what to run", |object| !object["spec"]["image"].is_null())?
        .to_string();
    story.when("BareMetalHost", &story.host, "was told the image with all of its data", |object| {
        let spec = &object["spec"];
        let named = |field: &str, name: &str| spec[field]["name"] == *name && spec[field]["namespace"] == NAMESPACE;
        object["metadata"]["resourceVersion"] == *told
            && spec["image"]["url"] == "http://images.test/one.raw"
            && spec["online"] == true
            && named("userData", &story.first)
            && named("metaData", &format!("{}-metadata", story.first))
            && named("networkData", &format!("{}-networkdata", story.first))
    })
}

/// 12
fn host_deploys(story: &Story<'_>) -> Done {
    story.when("BareMetalHost", &story.host, "was provisioning", |object| {
        object["status"]["provisioning"]["state"] == "provisioning"
    })
}

/// 13
fn node_known(story: &Story<'_>) -> Done {
    let id = format!("metal3://{NAMESPACE}/{}/{}", story.host, story.first);
    let node = story.site.rack.cluster("one").get(&format!("/api/v1/nodes/{}", story.first));
    if node.as_ref().map(|node| &node["spec"]["providerID"]) != Some(&json!(id)) {
        return Err(format!("the node should have the provider ID {id}: {node:?}"));
    }
    let provisioned = story.when("BareMetalHost", &story.host, "was provisioned", |object| {
        object["status"]["provisioning"]["state"] == "provisioned"
    })?;
    let ready = story.when("Metal3Machine", &story.first, "was ready with its provider ID", |object| {
        object["spec"]["providerID"] == id.as_str() && object["status"]["initialization"]["provisioned"] == true
    })?;
    if ready < provisioned { Err("the Metal3Machine was ready before its host".into()) } else { Ok(ready) }
}

/// 14
fn machine_runs(story: &Story<'_>) -> Done {
    let id = format!("metal3://{NAMESPACE}/{}/{}", story.host, story.first);
    initialized(story)?;
    story.when("Machine", &story.first, "was the node, and ran", |object| {
        object["spec"]["providerID"] == id.as_str()
            && object["status"]["nodeRef"]["name"] == story.first.as_str()
            && object["status"]["phase"] == "Running"
    })
}

/// 15
fn others_follow(story: &Story<'_>) -> Done {
    let (planes, others): (Vec<_>, Vec<_>) =
        story.journal.made("Machine").into_iter().partition(|made| is_plane(&made.object));
    if (planes.len(), others.len()) != (3, 1) {
        return Err(format!("there are {} machines of the control plane and {} others", planes.len(), others.len()));
    }
    let runs = |name: &str| story.when("Machine", name, "ran", |object| object["status"]["phase"] == "Running");
    for (before, next) in planes.iter().zip(planes.iter().skip(1)) {
        if next.version < runs(before.name())? {
            return Err(format!("{} was made before {} ran", next.name(), before.name()));
        }
    }
    let initialized = initialized(story)?;
    for other in &others {
        let made = story.when("Secret", other.name(), "was made as user data", |_| true)?;
        if made < initialized {
            return Err(format!("{} had its user data before the cluster had begun", other.name()));
        }
    }
    let all = planes.iter().chain(&others).map(|made| runs(made.name())).collect::<Result<Vec<_>, _>>()?;
    all.into_iter().max().ok_or_else(|| "there are none".into())
}

async fn follow(site: &Site) -> Journal {
    let journal = Journal::default();
    journal.follow::<Cluster>(site).await;
    journal.follow::<Metal3Cluster>(site).await;
    journal.follow::<KubeadmControlPlane>(site).await;
    journal.follow::<MachineDeployment>(site).await;
    journal.follow::<Machine>(site).await;
    journal.follow::<Metal3Machine>(site).await;
    journal.follow::<KubeadmConfig>(site).await;
    journal.follow::<BareMetalHost>(site).await;
    journal.follow::<Metal3DataClaim>(site).await;
    journal.follow::<Metal3Data>(site).await;
    journal.follow::<Secret>(site).await;
    journal
}

fn names<K: ResourceExt>(all: &[K]) -> Vec<String> {
    all.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn a_cluster_is_deployed_in_fifteen_steps_and_deleted() {
    let site = Site::new(&["one"]).await;
    let journal = follow(&site).await;
    // In an order in which nothing finds what it needs.
    let mut manifests = cluster_of("one", ("192.168.111.249", 6443), 3, VERSION);
    manifests.extend(workers("one", 1, VERSION, "one"));
    manifests.push(pool());
    manifests.reverse();
    site.apply_all(&manifests).await;
    site.rack.hosts_called(&HOSTS).await;
    site.until("the last step", async || {
        let Some(first) = journal.first("Machine", is_plane) else { return false };
        let story = Story { journal: &journal, first: first.name().to_owned(), host: String::new(), site: &site };
        let counted = site.get::<KubeadmControlPlane>("one").await.and_then(|plane| plane.status?.ready_replicas);
        counted == Some(3) && others_follow(&story).is_ok()
    })
    .await;

    let first = journal.first("Machine", is_plane).unwrap().name().to_owned();
    let hosts = site.all::<BareMetalHost>().await;
    let its =
        |host: &&BareMetalHost| host.spec.consumer_ref.as_ref().and_then(|one| one.name.as_deref()) == Some(&*first);
    let host = hosts.iter().find(its).unwrap().name_any();
    let story = Story { journal: &journal, first: first.clone(), host, site: &site };
    let mut done = vec![0];
    for (number, Step { name, done: check, after }) in (1..).zip(&STEPS) {
        let at = check(&story).unwrap_or_else(|reason| panic!("step {number}, {name}: {reason}"));
        for before in *after {
            assert!(
                done[*before] < at,
                "step {number}, {name}: it was done at {at}, and step {before} at {}",
                done[*before]
            );
        }
        done.push(at);
    }
    assert_eq!(site.rack.etcds().members("one").len(), 3);
    assert_eq!(site.rack.faults(), Vec::<String>::new());

    // With the Cluster everything goes but for templates, hosts and the Secrets of hosts.
    let credentials: Vec<String> = HOSTS.iter().map(|host| format!("{host}-bmc")).collect();
    site.delete::<Cluster>("one").await;
    site.until("the Cluster goes", async || site.get::<Cluster>("one").await.is_none()).await;
    site.until("its Secrets go", async || names(&site.all::<Secret>().await) == credentials).await;
    assert_eq!(names(&site.all::<KubeadmControlPlane>().await), [""; 0]);
    assert_eq!(names(&site.all::<MachineDeployment>().await), [""; 0]);
    assert_eq!(names(&site.all::<MachineSet>().await), [""; 0]);
    assert_eq!(names(&site.all::<Machine>().await), [""; 0]);
    assert_eq!(names(&site.all::<Metal3Machine>().await), [""; 0]);
    assert_eq!(names(&site.all::<KubeadmConfig>().await), [""; 0]);
    assert_eq!(names(&site.all::<Metal3Cluster>().await), [""; 0]);
    assert_eq!(names(&site.all::<KubeadmConfigTemplate>().await), ["one"]);
    assert_eq!(names(&site.all::<Metal3MachineTemplate>().await), ["one"]);
    assert_eq!(names(&site.all::<Metal3DataTemplate>().await), ["one"]);
    assert_eq!(names(&site.all::<IPPool>().await), ["nodes"]);
    let hosts = site.all::<BareMetalHost>().await;
    assert_eq!(names(&hosts), HOSTS);
    for host in hosts {
        let spec = json!(host.spec);
        let left = ["consumerRef", "image", "userData", "metaData", "networkData"].map(|field| spec.get(field));
        assert_eq!(left, [None; 5], "{}", host.name_any());
    }
}

//! What is kept of Clusters and Machines, and which of them are looked at when something else changes.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::clusters::of_cluster;
use super::machine_spec;
use crate::api::iam::Scope;
use crate::api::kaas::{ClusterRelease, ClusterUpdatePlan, GracefulRebootRequest, KaaSRelease, PublicKey, UpdateGroup};
use crate::api::lcm::{ANNOTATION_GRACEFUL_REBOOT, HelmBundle, LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, GROUP, Machine};
use crate::release::names::LABEL_CLUSTER;
use crate::release::wish::shape;
use crate::runtime::wake::{on, on_change, owner};
use crate::runtime::{Cache, Mention, Slim, Watches};

/// Keys that a cluster is found by, at most.
const KEYS_MAX: usize = 100;

/// Clusters and Machines. None yet, until the watches run.
pub fn watched(watches: &mut Watches) -> (Cache<Slim<Cluster>>, Cache<Slim<Machine>>) {
    let clusters: Cache<Slim<Cluster>> = Cache::indexed(watches, |object: &Cluster| Slim::from(object), keys_of);
    let machines: Cache<Slim<Machine>> = Cache::indexed(watches, |object: &Machine| Slim::from(object), cluster_of);
    // A release that is there now, or another one in force, concerns every cluster.
    let all = clusters.clone();
    let release = |release: &KaaSRelease| (release.uid(), release.labels().clone());
    on_change(watches, release, move |_, _| all.wake_where(|_| true));
    let (all, theirs) = (clusters.clone(), machines.clone());
    on_change(watches, ClusterRelease::uid, move |_, _| {
        all.wake_where(|_| true);
        theirs.wake_where(|_| true);
    });
    let by_key = clusters.clone();
    let key = |key: &PublicKey| (key.uid(), key.metadata.generation);
    on_change(watches, key, move |(namespace, name), _| by_key.wake_mentioning(&of_key(namespace, name)));
    // Before and after, where one becomes another cluster's.
    on(watches, clusters.wakes().clone(), |group: &UpdateGroup| {
        let cluster = group.labels().get(LABEL_CLUSTER);
        cluster.map(|cluster| (group.namespace().unwrap_or_default(), cluster.clone())).into_iter().collect()
    });
    let by_plan = clusters.wakes().clone();
    let commenced = |plan: &ClusterUpdatePlan| (owner(plan, GROUP, "Cluster"), plan.metadata.generation);
    on_change(watches, commenced, move |_, (whose, _)| whose.iter().for_each(|one| by_plan.wake(one.clone())));
    // A request to reboot has the name of its cluster, and so has what is made of that.
    let by_request = clusters.wakes().clone();
    let reboots = |request: &GracefulRebootRequest| (request.uid(), json!(request.status));
    on_change(watches, reboots, move |key, _| by_request.wake(key.clone()));
    let (wakes, theirs) = (clusters.wakes().clone(), machines.clone());
    let told = |lcm: &LCMCluster| {
        let observed = lcm.status.as_ref().and_then(|status| status.observed_generation);
        let is_fresh = observed == lcm.metadata.generation;
        (lcm.metadata.generation, lcm.metadata.deletion_timestamp.is_some(), is_fresh)
    };
    on_change(watches, told, move |(namespace, name), _| theirs.wake_mentioning(&of_cluster(namespace, name)));
    let again = wakes.clone();
    on_change(watches, |lcm: &LCMCluster| hashed(lcm), move |key, _| again.wake(key.clone()));
    on_change(watches, |bundle: &HelmBundle| hashed(bundle), move |key, _| wakes.wake(key.clone()));
    let theirs = machines.clone();
    let cluster = |cluster: &Cluster| (cluster.metadata.generation, cluster.metadata.deletion_timestamp.is_some());
    on_change(watches, cluster, move |(namespace, name), _| theirs.wake_mentioning(&of_cluster(namespace, name)));
    // How many machines a cluster has, it says.
    let wakes = clusters.wakes().clone();
    let named = |machine: &Machine| machine_spec::cluster_of(machine).map(ToOwned::to_owned);
    on_change(watches, named, move |(namespace, _), cluster| {
        if let Some(cluster) = cluster {
            wakes.wake((namespace.clone(), cluster.clone()));
        }
    });
    let wakes = machines.wakes().clone();
    on_change(watches, facts_of, move |key, _| wakes.wake(key.clone()));
    // What somebody changed or took away is put right at once: rights above all.
    made::<Role>(watches, &clusters, &machines);
    made::<RoleBinding>(watches, &clusters, &machines);
    made::<ServiceAccount>(watches, &clusters, &machines);
    made::<Secret>(watches, &clusters, &machines);
    made::<Scope>(watches, &clusters, &machines);
    (clusters, machines)
}

/// Has Clusters and Machines looked at when an object of kind `K` that was made of them changes, or goes.
fn made<K>(watches: &mut Watches, clusters: &Cache<Slim<Cluster>>, machines: &Cache<Slim<Machine>>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    on::<K>(watches, clusters.wakes().clone(), |object| owner(object, GROUP, "Cluster"));
    on::<K>(watches, machines.wakes().clone(), |object| owner(object, GROUP, "Machine"));
}

/// The keys that a Cluster names.
fn keys_of(cluster: &Cluster) -> Vec<Mention> {
    let Some(value) = cluster.spec.provider_spec.value.as_ref().filter(|_| shape::is_ours(&cluster.spec)) else {
        return Vec::new();
    };
    let namespace = cluster.namespace().unwrap_or_default();
    let keys = value["publicKeys"].as_array().into_iter().flatten().filter_map(|key| key["name"].as_str());
    keys.filter(|name| shape::is_name(name)).take(KEYS_MAX).map(|name| of_key(&namespace, name)).collect()
}

fn of_key(namespace: &str, name: &str) -> Mention {
    Mention::new("PublicKey", namespace, name)
}

/// The cluster that a Machine names.
fn cluster_of(machine: &Machine) -> Vec<Mention> {
    let namespace = machine.namespace().unwrap_or_default();
    machine_spec::cluster_of(machine).map(|cluster| of_cluster(&namespace, cluster)).into_iter().collect()
}

fn hashed(object: &impl Serialize) -> u64 {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    // Whatever changes of the metadata but these says nothing.
    let generation = value["metadata"]["generation"].take();
    let uid = value["metadata"]["uid"].take();
    value["metadata"] = json!([uid, generation]);
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    hasher.finish()
}

/// What of an LCMMachine concerns its Machine: what the agent reports in between does not.
fn facts_of(lcm: &LCMMachine) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = &lcm.metadata;
    (meta.uid.as_ref(), meta.generation, meta.deletion_timestamp.is_some()).hash(&mut hasher);
    lcm.annotations().contains_key(ANNOTATION_GRACEFUL_REBOOT).hash(&mut hasher);
    if let Some(status) = &lcm.status {
        (status.state, &status.prepare_deletion_phase, status.maintenance).hash(&mut hasher);
        (&status.release, &status.agent_version).hash(&mut hasher);
        if let Some(replaces) = &status.lcm_agent_upgrade_status {
            (&replaces.error, replaces.finished_at.is_some()).hash(&mut hasher);
        }
        if let Some(reboot) = &status.reboot {
            (reboot.requested_at.is_some(), reboot.completed, &reboot.error_message).hash(&mut hasher);
        }
        (&status.kubernetes_cordon_drain, &status.kubernetes_cordon_drain_error).hash(&mut hasher);
        for address in &status.addresses {
            (&address.type_, &address.address).hash(&mut hasher);
        }
        for condition in &status.conditions {
            (&condition.type_, &condition.status, &condition.message).hash(&mut hasher);
        }
        if let Some(info) = &status.host_info {
            (info.reboot_required, &info.reboot_reason).hash(&mut hasher);
        }
    }
    hasher.finish()
}

//! Who is looked at when something else changes.

use std::collections::HashMap;

use kube::ResourceExt;

use super::machine::{ANNOTATION_PREFIXES, MachineView, made_from, of_cluster};
use super::metal3_cluster;
use crate::api::cluster::v1beta2::{Cluster, ContractReference, Machine};
use crate::api::cluster::{GROUP as CLUSTER_GROUP, LABEL_CLUSTER};
use crate::api::infrastructure::GROUP;
use crate::api::infrastructure::data::v1beta2::{Metal3Data, Metal3DataClaim};
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine, Metal3MachineTemplate};
use crate::cluster::hosts::{self, MachineKind};
use crate::runtime::{Cache, Mention, ObjectKey, Slim, WatchChange, Watches, key, owners, wake};

/// Letters of the host of an endpoint: no name or address has more, and what does is nobody's.
const HOST: usize = 253;

/// What a Metal3Cluster is found by: one that goes, by the cluster whose machines it waits for; any other one by its endpoint, and what
/// it is to that.
pub(super) fn mentions(object: &Metal3Cluster) -> Vec<Mention> {
    let namespace = object.namespace().unwrap_or_default();
    let endpoint = endpoint_of(object);
    let mut all = Vec::new();
    if object.metadata.deletion_timestamp.is_some() {
        let cluster = metal3_cluster::cluster_of(object);
        all.extend(cluster.map(|cluster| left_by(&namespace, cluster)));
    } else if !metal3_cluster::is_provisioned(object) {
        all.extend(endpoint.as_deref().map(|endpoint| wants(&namespace, endpoint)));
    }
    let Some(endpoint) = &endpoint else { return all };
    if metal3_cluster::is_provisioned(object) {
        all.push(has(&namespace, endpoint));
    } else if owners::of_kind(&object.metadata, CLUSTER_GROUP, "Cluster").is_some() {
        all.push(claims(&namespace, endpoint));
    }
    all
}

/// Where the API server of a Metal3Cluster is reached, as one text.
pub(super) fn endpoint_of(object: &Metal3Cluster) -> Option<String> {
    let endpoint = object.spec.control_plane_endpoint.as_ref()?;
    (endpoint.host.len() <= HOST).then(|| format!("{}:{}", endpoint.host.to_ascii_lowercase(), endpoint.port))
}

/// An endpoint, as that of a Metal3Cluster of the namespace that is provisioned.
pub(super) fn has(namespace: &str, endpoint: &str) -> Mention {
    Mention::new("Metal3Cluster with endpoint", namespace, endpoint)
}

/// An endpoint, as that of a Cluster's Metal3Cluster that is not provisioned.
pub(super) fn claims(namespace: &str, endpoint: &str) -> Mention {
    Mention::new("Metal3Cluster of a Cluster for endpoint", namespace, endpoint)
}

/// An endpoint, as what a Metal3Cluster may get when another one lets it go.
fn wants(namespace: &str, endpoint: &str) -> Mention {
    Mention::new("Metal3Cluster without endpoint", namespace, endpoint)
}

/// A cluster, as the one that a machine was of which is gone.
fn left_by(namespace: &str, cluster: &str) -> Mention {
    Mention::new("Cluster", namespace, cluster)
}

/// Has Metal3Clusters looked at when their Clusters change, and when a machine is gone for which one waits, or another one that
/// had the endpoint.
pub(super) fn clusters(watches: &mut Watches, clusters: &Cache<Slim<Metal3Cluster>>) {
    wake::on::<Cluster>(watches, clusters.wakes().clone(), |cluster| {
        named(cluster.namespace(), cluster.spec.infrastructure_ref.as_ref(), "Metal3Cluster")
    });
    left::<Machine>(watches, clusters.clone(), |machine| machine.labels().get(LABEL_CLUSTER).cloned(), left_by);
    left::<Metal3Machine>(watches, clusters.clone(), |machine| machine.labels().get(LABEL_CLUSTER).cloned(), left_by);
    left::<Metal3Cluster>(watches, clusters.clone(), endpoint_of, wants);
}

/// Has those looked at that wait for what an object is of or has, once it is gone or is of or has something else.
fn left<K>(
    watches: &mut Watches,
    waiting: Cache<Slim<Metal3Cluster>>,
    of: fn(&K) -> Option<String>,
    mention: fn(&str, &str) -> Mention,
) where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut known: HashMap<ObjectKey, String> = HashMap::new();
    watches.observe::<K>(move |change: &WatchChange<'_, K>| {
        let (place, now) = match change {
            WatchChange::Put(object) => (key(*object), of(object)),
            WatchChange::Gone(place) => ((*place).clone(), None),
            WatchChange::Listed => return,
        };
        if known.get(&place) == now.as_ref() {
            return;
        }
        let before = match now {
            Some(now) => known.insert(place.clone(), now),
            None => known.remove(&place),
        };
        if let Some(before) = before {
            waiting.wake_mentioning(&mention(&place.0, &before));
        }
    });
}

/// Has Metal3Machines looked at when what they wait for changes.
pub(super) fn machines(watches: &mut Watches, machines: &Cache<MachineView>) {
    wake::on::<Machine>(watches, machines.wakes().clone(), |machine| {
        named(machine.namespace(), Some(&machine.spec.infrastructure_ref), "Metal3Machine")
    });
    let all = machines.clone();
    wake::on_change(watches, cluster_facts, move |(namespace, name), _| {
        all.wake_mentioning(&of_cluster(namespace, name));
    });
    let all = machines.clone();
    let facts = |cluster: &Metal3Cluster| {
        let owner = owners::of_kind(&cluster.metadata, CLUSTER_GROUP, "Cluster");
        let prefixes = cluster.annotations().get(ANNOTATION_PREFIXES).cloned();
        (owner.map(|owner| owner.name.clone()), cluster.spec.cloud_provider_enabled, prefixes)
    };
    wake::on_change(watches, facts, move |(namespace, _), (cluster, ..)| {
        if let Some(cluster) = cluster {
            all.wake_mentioning(&of_cluster(namespace, cluster));
        }
    });
    let all = machines.clone();
    let facts = |template: &Metal3MachineTemplate| template.resource_version();
    wake::on_change(watches, facts, move |(namespace, name), _| {
        all.wake_mentioning(&made_from(namespace, name));
    });
    data(watches, machines);
    hosts::waking::machines(watches, machines, MachineKind::Metal3);
}

/// Has Metal3Machines looked at when the data that they claimed is there, or why it is not is another reason. A claim has its
/// machine's name.
fn data(watches: &mut Watches, machines: &Cache<MachineView>) {
    let wakes = machines.wakes().clone();
    let facts = |claim: &Metal3DataClaim| {
        let status = claim.status.as_ref();
        let rendered = status.and_then(|status| status.rendered_data.as_ref()).map(|data| data.name.clone());
        (rendered, status.and_then(|status| status.error_message.clone()))
    };
    wake::on_change(watches, facts, move |claim, _| wakes.wake(claim.clone()));
    let wakes = machines.wakes().clone();
    let facts = |data: &Metal3Data| {
        let claim = data.spec.claim.as_ref().map(|claim| claim.name.clone());
        let status = data.status.as_ref();
        (claim, status.and_then(|status| status.ready), status.and_then(|status| status.error_message.clone()))
    };
    wake::on_change(watches, facts, move |(namespace, _), (claim, ..)| {
        if let Some(claim) = claim {
            wakes.wake((namespace.clone(), claim.clone()));
        }
    });
}

/// What of a Cluster concerns its machines.
fn cluster_facts(cluster: &Cluster) -> (Option<bool>, Option<bool>, bool, bool) {
    let status = cluster.status.as_ref();
    let initialization = status.and_then(|status| status.initialization.as_ref());
    let old = status.and_then(|status| status.deprecated.as_ref()?.v1beta1.as_ref());
    let old = old
        .is_some_and(|old| old.conditions.iter().any(|one| one.type_ == "InfrastructureReady" && one.status == "True"));
    (
        cluster.spec.paused,
        initialization.and_then(|one| one.infrastructure_provisioned),
        old,
        cluster.metadata.deletion_timestamp.is_some(),
    )
}

fn named(namespace: Option<String>, reference: Option<&ContractReference>, kind: &str) -> Vec<ObjectKey> {
    let reference = reference.filter(|one| one.kind == kind && one.api_group == GROUP);
    reference.map(|one| (namespace.unwrap_or_default(), one.name.clone())).into_iter().collect()
}

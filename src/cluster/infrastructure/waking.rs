//! Who is looked at when something else changes.

use std::collections::HashMap;

use kube::ResourceExt;

use super::machine::{ANNOTATION_PREFIXES, MachineView, made_from, of_cluster};
use super::metal3_cluster;
use crate::api::cluster::v1beta2::{Cluster, Machine, Reference};
use crate::api::cluster::{GROUP as CLUSTER_GROUP, LABEL_CLUSTER};
use crate::api::infrastructure::GROUP;
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine, Metal3MachineTemplate};
use crate::cluster::contract::{owners, wake};
use crate::cluster::hosts::{self, MachineKind};
use crate::runtime::{Cache, Change, Key, Mention, Slim, Watches, key};

/// What a Metal3Cluster waits for: that goes, for the machines of its cluster; that is not provisioned yet, for another one that may
/// have its endpoint.
pub(super) fn waits_for(object: &Metal3Cluster) -> Vec<Mention> {
    let namespace = object.namespace().unwrap_or_default();
    if object.metadata.deletion_timestamp.is_some() {
        let cluster = metal3_cluster::cluster_of(object);
        return cluster.map(|cluster| left_by(&namespace, cluster)).into_iter().collect();
    }
    if metal3_cluster::is_provisioned(object) { Vec::new() } else { vec![without_endpoint(&namespace)] }
}

/// A Metal3Cluster of a namespace that is not provisioned yet.
fn without_endpoint(namespace: &str) -> Mention {
    Mention::new("Metal3Cluster without endpoint", namespace, "")
}

/// A cluster, as the one that a machine was of which is gone.
fn left_by(namespace: &str, cluster: &str) -> Mention {
    Mention::new("Cluster", namespace, cluster)
}

/// Has Metal3Clusters looked at when their Clusters change, and when a machine is gone for which one waits, or another one that
/// may have had the endpoint.
pub(super) fn clusters(watches: &mut Watches, clusters: &Cache<Slim<Metal3Cluster>>) {
    wake::on::<Cluster>(watches, clusters.wakes().clone(), |cluster| {
        named(cluster.namespace(), cluster.spec.infrastructure_ref.as_ref(), "Metal3Cluster")
    });
    leaving::<Machine>(watches, clusters.clone());
    leaving::<Metal3Machine>(watches, clusters.clone());
    let waiting = clusters.clone();
    watches.observe::<Metal3Cluster>(move |change: &Change<'_, Metal3Cluster>| {
        if let Change::Gone((namespace, _)) = change {
            waiting.wake_mentioning(&without_endpoint(namespace));
        }
    });
}

/// Has those looked at that wait for a machine of a cluster to be gone, or not of that cluster any more.
fn leaving<K>(watches: &mut Watches, waiting: Cache<Slim<Metal3Cluster>>)
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut known: HashMap<Key, String> = HashMap::new();
    watches.observe::<K>(move |change: &Change<'_, K>| {
        let (place, now) = match change {
            Change::Put(object) => (key(*object), object.labels().get(LABEL_CLUSTER).cloned()),
            Change::Gone(place) => ((*place).clone(), None),
            Change::Listed => return,
        };
        if known.get(&place) == now.as_ref() {
            return;
        }
        let before = match now {
            Some(now) => known.insert(place.clone(), now),
            None => known.remove(&place),
        };
        if let Some(before) = before {
            waiting.wake_mentioning(&left_by(&place.0, &before));
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
    hosts::waking::machines(watches, machines, MachineKind::Metal3);
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

fn named(namespace: Option<String>, reference: Option<&Reference>, kind: &str) -> Vec<Key> {
    let reference = reference.filter(|one| one.kind == kind && one.api_group == GROUP);
    reference.map(|one| (namespace.unwrap_or_default(), one.name.clone())).into_iter().collect()
}

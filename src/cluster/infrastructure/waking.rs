//! Who is looked at when something else changes.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use kube::ResourceExt;

use super::choose::{Capacity, Consumer, HardwareView, HostView};
use super::machine::{ANNOTATION_PREFIXES, MachineView, made_from, of_cluster, wants_host};
use super::metal3_cluster;
use crate::api::cluster::v1beta2::{Cluster, Machine, Reference};
use crate::api::cluster::{GROUP as CLUSTER_GROUP, LABEL_CLUSTER};
use crate::api::infrastructure::GROUP;
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine, Metal3MachineTemplate};
use crate::api::metal3::{BareMetalHost, HardwareData};
use crate::cluster::contract::{owners, wake};
use crate::runtime::{Cache, Change, Key, Mention, Slim, Wakes, Watches, key};

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
    on_change(watches, cluster_facts, move |(namespace, name), _| {
        all.wake_mentioning(&of_cluster(namespace, name));
    });
    let all = machines.clone();
    let facts = |cluster: &Metal3Cluster| {
        let owner = owners::of_kind(&cluster.metadata, CLUSTER_GROUP, "Cluster");
        let prefixes = cluster.annotations().get(ANNOTATION_PREFIXES).cloned();
        (owner.map(|owner| owner.name.clone()), cluster.spec.cloud_provider_enabled, prefixes)
    };
    on_change(watches, facts, move |(namespace, _), (cluster, ..)| {
        if let Some(cluster) = cluster {
            all.wake_mentioning(&of_cluster(namespace, cluster));
        }
    });
    let all = machines.clone();
    let facts = |template: &Metal3MachineTemplate| template.resource_version();
    on_change(watches, facts, move |(namespace, name), _| {
        all.wake_mentioning(&made_from(namespace, name));
    });
    hosts(watches, machines);
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

/// Machines that wait for a host are told of one that might be theirs, and a machine is told of its own.
fn hosts(watches: &mut Watches, machines: &Cache<MachineView>) {
    let (waiting, wakes) = (machines.clone(), machines.wakes().clone());
    let mut known: HashMap<Key, (Consumer, u64)> = HashMap::new();
    watches.observe::<BareMetalHost>(move |change: &Change<'_, BareMetalHost>| match change {
        Change::Put(host) => {
            let consumer = Consumer::of(host.spec.consumer_ref.as_ref(), &host.namespace().unwrap_or_default());
            let facts = (consumer, facts_of(host));
            match known.insert(key(*host), facts.clone()) {
                Some(before) if before == facts => {}
                before => {
                    let namespace = host.namespace().unwrap_or_default();
                    tell(&wakes, &namespace, &facts.0);
                    if let Some((before, _)) = before.filter(|(before, _)| *before != facts.0) {
                        tell(&wakes, &namespace, &before);
                    }
                }
            }
        }
        Change::Gone(key) => {
            if let Some((consumer, _)) = known.remove(*key) {
                tell(&wakes, &key.0, &consumer);
            }
        }
        Change::Listed => {}
    });
    let all = waiting.clone();
    on_change(watches, offer, move |(namespace, _), offer| {
        if offer.is_some() {
            all.wake_mentioning(&wants_host(namespace));
        }
    });
    let facts = |data: &HardwareData| hashed(HardwareView::from(data).capacity.as_ref());
    on_change(watches, facts, move |(namespace, _), _| {
        waiting.wake_mentioning(&wants_host(namespace));
    });
}

/// What of a host concerns its machine. A host that is at work changes each second, and most of that does not.
fn facts_of(host: &BareMetalHost) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = &host.metadata;
    (meta.uid.as_ref(), meta.generation, meta.labels.as_ref(), meta.annotations.as_ref()).hash(&mut hasher);
    meta.deletion_timestamp.is_some().hash(&mut hasher);
    if let Some(status) = &host.status {
        (status.provisioning.state, &status.error_message, status.powered_on).hash(&mut hasher);
        for address in &status.addresses {
            (&address.address, &address.mac_address).hash(&mut hasher);
        }
        if let Some(hardware) = &status.hardware {
            hardware.hostname.hash(&mut hasher);
            hardware.nics.iter().for_each(|nic| (&nic.mac, &nic.ip).hash(&mut hasher));
        }
    }
    hasher.finish()
}

/// Tells the machine that has a host. One of another namespace has none here, whatever the host says.
fn tell(wakes: &Wakes, of: &str, consumer: &Consumer) {
    if let Consumer::Machine { namespace, name } = consumer
        && namespace == of
    {
        wakes.wake((namespace.clone(), name.clone()));
    }
}

/// What a host offers to whoever wants one: nothing while it is a machine's, or is not to be had.
fn offer(host: &BareMetalHost) -> Option<u64> {
    let view = HostView::from(host);
    let is_had = matches!(view.consumer, Consumer::Machine { .. });
    let is_barred = view.barred.is_some() || view.has_image || !view.error.is_empty() || !view.is_available();
    if is_had || is_barred || view.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    // Who holds it without being a machine may let it go.
    view.consumer.hash(&mut hasher);
    view.labels.hash(&mut hasher);
    hashed(view.capacity.as_ref()).hash(&mut hasher);
    Some(hasher.finish())
}

fn hashed(capacity: Option<&Capacity>) -> u64 {
    let mut hasher = DefaultHasher::new();
    capacity.map(|one| (one.cpus, one.memory, &one.disks, &one.nics)).hash(&mut hasher);
    hasher.finish()
}

fn named(namespace: Option<String>, reference: Option<&Reference>, kind: &str) -> Vec<Key> {
    let reference = reference.filter(|one| one.kind == kind && one.api_group == GROUP);
    reference.map(|one| (namespace.unwrap_or_default(), one.name.clone())).into_iter().collect()
}

/// Tells of an object when its facts are not what they were.
fn on_change<K, F>(
    watches: &mut Watches,
    facts: impl Fn(&K) -> F + Send + 'static,
    tell: impl Fn(&Key, &F) + Send + 'static,
) where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    F: PartialEq + Send + 'static,
{
    let mut known: HashMap<Key, F> = HashMap::new();
    watches.observe::<K>(move |change: &Change<'_, K>| match change {
        Change::Put(object) => {
            let (key, new) = (key(*object), facts(object));
            if known.get(&key) != Some(&new) {
                tell(&key, &new);
                known.insert(key, new);
            }
        }
        Change::Gone(key) => {
            if let Some(last) = known.remove(*key) {
                tell(key, &last);
            }
        }
        Change::Listed => {}
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn offered(change: Value) -> Option<u64> {
        let mut host = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h", "namespace": "rack"},
            "spec": {"online": false}, "status": {"provisioning": {"state": "available"}},
        });
        json_patch::merge(&mut host, &change);
        offer(&serde_json::from_value(host).expect("a host"))
    }

    #[test]
    fn whatever_makes_a_host_another_offer_is_told() {
        let free = offered(json!({}));
        assert!(free.is_some() && free == offered(json!({"status": {"poweredOn": true}})));
        let held = offered(json!({"spec": {"consumerRef": {"kind": "Cluster", "name": "c"}}}));
        assert!(held.is_some() && held != free, "whoever holds it lets it go");
        assert_ne!(free, offered(json!({"metadata": {"labels": {"row": "1"}}})));
        let machine = json!({"kind": "Metal3Machine", "name": "m", "apiVersion": format!("{GROUP}/v1beta2")});
        for none in [
            json!({"spec": {"consumerRef": machine}}),
            json!({"spec": {"image": {"url": "http://x/y"}}}),
            json!({"status": {"provisioning": {"state": "deprovisioning"}}}),
        ] {
            assert_eq!(offered(none.clone()), None, "{none}");
        }
    }
}

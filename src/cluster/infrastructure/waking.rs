//! Who is looked at when something else changes.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use kube::ResourceExt;

use super::choose::{Capacity, Consumer, HardwareView, HostView};
use super::machine::{ANNOTATION_PREFIXES, MachineView};
use crate::api::cluster::GROUP as CLUSTER_GROUP;
use crate::api::cluster::v1beta2::{Cluster, Machine, Reference};
use crate::api::infrastructure::GROUP;
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine, Metal3MachineTemplate};
use crate::api::metal3::{BareMetalHost, HardwareData};
use crate::cluster::contract::{owners, wake};
use crate::runtime::{Cache, Change, Key, Slim, Wakes, Watches, key};

/// Has Metal3Clusters looked at when their Clusters change, and when a machine is gone for which one waits, or another one that
/// may have had the endpoint.
pub(super) fn clusters(watches: &mut Watches, clusters: &Cache<Slim<Metal3Cluster>>) {
    wake::on::<Cluster>(watches, clusters.wakes().clone(), |cluster| {
        named(cluster.namespace(), cluster.spec.infrastructure_ref.as_ref(), "Metal3Cluster")
    });
    let waiting = clusters.clone();
    watches.observe::<Machine>(move |change: &Change<'_, Machine>| leave(&waiting, change));
    let waiting = clusters.clone();
    watches.observe::<Metal3Machine>(move |change: &Change<'_, Metal3Machine>| leave(&waiting, change));
    let waiting = clusters.clone();
    watches.observe::<Metal3Cluster>(move |change: &Change<'_, Metal3Cluster>| {
        if let Change::Gone((namespace, _)) = change {
            waiting.wake_where(|cluster| kube::Resource::meta(cluster).namespace.as_ref() == Some(namespace));
        }
    });
}

fn leave<K>(waiting: &Cache<Slim<Metal3Cluster>>, change: &Change<'_, K>) {
    if let Change::Gone((namespace, _)) = change {
        waiting.wake_where(|cluster| {
            let meta = kube::Resource::meta(cluster);
            meta.deletion_timestamp.is_some() && meta.namespace.as_ref() == Some(namespace)
        });
    }
}

/// Has Metal3Machines looked at when what they wait for changes.
pub(super) fn machines(watches: &mut Watches, machines: &Cache<MachineView>) {
    wake::on::<Machine>(watches, machines.wakes().clone(), |machine| {
        named(machine.namespace(), Some(&machine.spec.infrastructure_ref), "Metal3Machine")
    });
    let all = machines.clone();
    on_change(watches, cluster_facts, move |(namespace, name), _| {
        all.wake_where(|machine| is_in(machine, namespace) && machine.cluster.as_deref() == Some(name));
    });
    let all = machines.clone();
    let facts = |cluster: &Metal3Cluster| {
        let owner = owners::of_kind(&cluster.metadata, CLUSTER_GROUP, "Cluster");
        let prefixes = cluster.annotations().get(ANNOTATION_PREFIXES).cloned();
        (owner.map(|owner| owner.name.clone()), cluster.spec.cloud_provider_enabled, prefixes)
    };
    on_change(watches, facts, move |(namespace, _), (cluster, ..)| {
        all.wake_where(|machine| is_in(machine, namespace) && machine.cluster == *cluster);
    });
    let all = machines.clone();
    let facts = |template: &Metal3MachineTemplate| template.resource_version();
    on_change(watches, facts, move |(namespace, name), _| {
        all.wake_where(|machine| is_in(machine, namespace) && machine.template.as_deref() == Some(name));
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
                    tell(&wakes, &facts.0);
                    if let Some((before, _)) = before.filter(|(before, _)| *before != facts.0) {
                        tell(&wakes, &before);
                    }
                }
            }
        }
        Change::Gone(key) => {
            if let Some((consumer, _)) = known.remove(*key) {
                tell(&wakes, &consumer);
            }
        }
        Change::Listed => {}
    });
    let all = waiting.clone();
    on_change(watches, offer, move |(namespace, _), offer| {
        if offer.is_some() {
            all.wake_where(|machine| machine.wants_host && is_in(machine, namespace));
        }
    });
    let facts = |data: &HardwareData| hashed(HardwareView::from(data).capacity.as_ref());
    on_change(watches, facts, move |(namespace, _), _| {
        waiting.wake_where(|machine| machine.wants_host && is_in(machine, namespace));
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

fn tell(wakes: &Wakes, consumer: &Consumer) {
    if let Consumer::Machine { namespace, name } = consumer {
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
    view.labels.hash(&mut hasher);
    hashed(view.capacity.as_ref()).hash(&mut hasher);
    Some(hasher.finish())
}

fn hashed(capacity: Option<&Capacity>) -> u64 {
    let mut hasher = DefaultHasher::new();
    capacity.map(|one| (one.cpus, one.memory, &one.disks, &one.nics)).hash(&mut hasher);
    hasher.finish()
}

fn is_in(machine: &MachineView, namespace: &str) -> bool {
    kube::Resource::meta(machine).namespace.as_deref() == Some(namespace)
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

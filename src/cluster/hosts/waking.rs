//! Which machines are looked at when hosts change.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use kube::{Resource, ResourceExt};

use super::choose::{CandidateHost, Capacity, HardwareView};
use super::consumer::{Consumer, MachineKind};
use crate::api::metal3::{BareMetalHost, HardwareData};
use crate::runtime::wake::on_change;
use crate::runtime::{Cache, Mention, ObjectKey, Wakes, WatchChange, Watches, key};

/// The hosts of a namespace, as those that a machine wants one of.
pub fn wants_host(namespace: &str) -> Mention {
    Mention::new("BareMetalHost", namespace, "")
}

/// Has machines of a kind looked at when their own host changes, and those that mention [`wants_host`] when one might be theirs.
pub fn machines<V>(watches: &mut Watches, machines: &Cache<V>, kind: MachineKind)
where
    V: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let (waiting, wakes) = (machines.clone(), machines.wakes().clone());
    let mut known: HashMap<ObjectKey, (Consumer, u64)> = HashMap::new();
    watches.observe::<BareMetalHost>(move |change: &WatchChange<'_, BareMetalHost>| match change {
        WatchChange::Put(host) => {
            let consumer = Consumer::of(host.spec.consumer_ref.as_ref(), &host.namespace().unwrap_or_default());
            let facts = (consumer, facts_of(host));
            match known.insert(key(*host), facts.clone()) {
                Some(before) if before == facts => {}
                before => {
                    let namespace = host.namespace().unwrap_or_default();
                    tell(&wakes, (kind, namespace.as_str()), &facts.0);
                    if let Some((before, _)) = before.filter(|(before, _)| *before != facts.0) {
                        tell(&wakes, (kind, namespace.as_str()), &before);
                    }
                }
            }
        }
        WatchChange::Gone(key) => {
            if let Some((consumer, _)) = known.remove(*key) {
                tell(&wakes, (kind, key.0.as_str()), &consumer);
            }
        }
        WatchChange::Listed => {}
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
fn tell(wakes: &Wakes, (kind, namespace): (MachineKind, &str), consumer: &Consumer) {
    if let Consumer::Machine(machine) = consumer
        && (machine.kind, machine.namespace.as_str()) == (kind, namespace)
    {
        wakes.wake((machine.namespace.clone(), machine.name.clone()));
    }
}

/// What a host offers to whoever wants one: nothing while it is a machine's, or is not to be had.
fn offer(host: &BareMetalHost) -> Option<u64> {
    let view = CandidateHost::from(host);
    let is_had = matches!(view.consumer, Consumer::Machine(_));
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::infrastructure::GROUP;

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

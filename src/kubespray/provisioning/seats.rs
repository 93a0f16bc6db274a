//! Which host each node has, or gets. Pure, and the same hosts always give the same answer.
//!
//! A node keeps the host that it has. One with a MAC address gets the host that boots from that card, or has it; whatever else is
//! asked of it must hold, and the host may run a system already, that others installed. All others get free hosts: those that ask for
//! most choose first, and each takes the smallest that suffices, as machines of Cluster API do
//! ([`crate::cluster::hosts::choose`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use super::rack::RackHost;
use super::wanted::WantedNode;
use crate::api::MacAddress;
use crate::api::infrastructure::HostSelector;
use crate::api::metal3::ProvisioningState;
use crate::cluster::hosts::choose::{Choice, HostCandidate, Selector, Way, Wish, choose};
use crate::cluster::hosts::{Consumer, MachineId};

/// Letters of what others wrote that are repeated.
const SHOWN: usize = 200;

/// Where a node is.
#[derive(Clone, Debug)]
pub enum Seat<'h> {
    /// It has this host.
    Has(&'h RackHost),
    /// It is to take this one.
    Takes(&'h RackHost),
    /// There is none for it now, and why.
    None(String),
}

impl<'h> Seat<'h> {
    /// The host, had or not yet.
    pub fn host(&self) -> Option<&'h RackHost> {
        match self {
            Self::Has(host) | Self::Takes(host) => Some(host),
            Self::None(_) => None,
        }
    }
}

/// A host for each of the nodes of a Provisioning, in their order. `hosts` are those of its namespace; `has_image` says whether
/// there is something for free hosts to run.
pub fn seats<'h>(
    (namespace, owner): (&str, &str),
    nodes: &[WantedNode],
    hosts: &'h [RackHost],
    has_image: bool,
) -> Vec<Seat<'h>> {
    let mut sorted: Vec<&RackHost> = hosts.iter().collect();
    sorted.sort_by(|a, b| a.name().cmp(b.name()));
    let mut seats: Vec<Option<Seat<'h>>> = Vec::new();
    for node in nodes {
        let its =
            |host: &&&RackHost| host.is_of(owner) && host.seat.as_ref().is_some_and(|(_, of)| of == node.name.as_str());
        seats.push(sorted.iter().find(its).copied().map(Seat::Has));
    }
    // What anybody of this Provisioning has is nobody else's.
    let mut taken: HashSet<&str> = sorted.iter().filter(|host| host.is_of(owner)).map(|host| host.name()).collect();
    for (seat, node) in seats.iter_mut().zip(nodes).filter(|(seat, _)| seat.is_none()) {
        let Some(mac) = node.mac else { continue };
        *seat = Some(match by_mac(mac, node, &sorted, &taken, has_image) {
            Ok(host) => {
                taken.insert(host.name());
                Seat::Takes(host)
            }
            Err(why) => Seat::None(why),
        });
    }
    let mut rest: Vec<usize> = (0..nodes.len()).filter(|at| seats[*at].is_none()).collect();
    rest.sort_by_key(|at| (Reverse(nodes[*at].labels.len()), Reverse(nodes[*at].needs.size()), *at));
    for at in rest {
        let seat = match by_needs(namespace, &nodes[at], &sorted, &taken, has_image) {
            Ok(host) => {
                taken.insert(host.name());
                Seat::Takes(host)
            }
            Err(why) => Seat::None(why),
        };
        seats[at] = Some(seat);
    }
    seats.into_iter().flatten().collect()
}

fn by_mac<'h>(
    mac: MacAddress,
    node: &WantedNode,
    hosts: &[&'h RackHost],
    taken: &HashSet<&str>,
    has_image: bool,
) -> Result<&'h RackHost, String> {
    let boots = hosts.iter().filter(|host| host.boot == Some(mac));
    let mut found: Vec<_> = boots.collect();
    if found.is_empty() {
        found = hosts.iter().filter(|host| host.cards.contains(&mac)).collect();
    }
    match found.as_slice() {
        [] => Err(format!("no host of this namespace has the MAC address {mac}")),
        [host] => match unfit(host, node, taken, has_image) {
            None => Ok(**host),
            Some(why) => Err(format!("BareMetalHost {} with the MAC address {mac} {why}", host.name())),
        },
        [one, other, ..] => {
            Err(format!("the MAC address {mac} is of more than one host: {}, {}", one.name(), other.name()))
        }
    }
}

/// Why a host that was named cannot be the node's.
fn unfit(host: &RackHost, node: &WantedNode, taken: &HashSet<&str>, has_image: bool) -> Option<String> {
    let view = &host.view;
    let short = |text: &str| text.chars().take(SHOWN).collect::<String>();
    if taken.contains(host.name()) {
        return Some("is another node of this cluster".into());
    }
    match &view.consumer {
        Consumer::Nobody => {}
        Consumer::Machine(machine) => {
            return Some(format!("is claimed by {} {}", machine.kind.kind(), short(&machine.name)));
        }
        Consumer::Other { kind, name } => return Some(format!("is claimed by {} {}", short(kind), short(name))),
    }
    if view.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".into());
    }
    if let Some(barred) = view.barred {
        return Some(format!("is {}", barred.word()));
    }
    if !view.error.is_empty() {
        return Some(format!("has an error: {}", short(&view.error)));
    }
    let Some(labels) = &view.labels else { return Some("has more labels than are looked at".into()) };
    if let Some(label) = node.labels.iter().find(|label| labels.get(**label).is_none_or(|value| value != "true")) {
        return Some(format!("lacks the label {label}=true"));
    }
    if let Some(lack) = node.needs.lack(view.capacity.as_ref()) {
        return Some(format!("must have {}: it has {lack}", lack.needed()));
    }
    match view.state {
        ProvisioningState::Provisioned | ProvisioningState::ExternallyProvisioned => None,
        _ if view.has_image => Some(format!("is told already what to run, and is {}", view.state.as_str())),
        _ if !view.is_available() => Some(format!("is {}", view.state.as_str())),
        _ if !has_image => Some("runs nothing, and spec.image does not say what it should".into()),
        _ => None,
    }
}

fn by_needs<'h>(
    namespace: &str,
    node: &WantedNode,
    hosts: &[&'h RackHost],
    taken: &HashSet<&str>,
    has_image: bool,
) -> Result<&'h RackHost, String> {
    if !has_image {
        return Err("free hosts run nothing, and spec.image does not say what they should".into());
    }
    let free: Vec<&'h RackHost> = hosts.iter().filter(|host| !taken.contains(host.name())).copied().collect();
    if free.is_empty() && !hosts.is_empty() {
        return Err("every host of this namespace is another node of this cluster".into());
    }
    let match_labels: BTreeMap<_, _> =
        node.labels.iter().map(|label| ((*label).to_owned(), "true".to_owned())).collect();
    let selector = HostSelector { match_labels, ..HostSelector::default() };
    let wish = Wish {
        machine: MachineId { namespace: namespace.to_owned(), ..MachineId::default() },
        selector: Selector::new(Some(&selector)).unwrap_or_default(),
        needs: node.needs,
        ..Wish::default()
    };
    let candidates: Vec<HostCandidate<'_>> = free
        .iter()
        .map(|host| HostCandidate { host: &host.view, capacity: host.view.capacity.as_ref(), taken: false })
        .collect();
    match choose(&wish, &candidates) {
        Choice::Host(name, Way::Free) => {
            free.iter().find(|host| host.name() == name).copied().ok_or_else(|| "no host".to_owned())
        }
        // One that says that it is a machine's without a name.
        Choice::Host(name, _) => Err(format!("BareMetalHost {name} is claimed by others")),
        Choice::None(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::wanted::{self, tests::object};
    use super::*;
    use crate::api::metal3::BareMetalHost;

    /// A free host with one card, so many processors and gibibytes; `change` is merged into it.
    fn host(name: &str, card: u8, cpus: u64, memory: u64, change: Value) -> RackHost {
        let mut host = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "namespace": "rack"},
            "spec": {"online": false, "bootMACAddress": format!("52:54:00:00:00:{card:02X}")},
            "status": {"provisioning": {"state": "available"}, "hardware": {
                "cpu": {"count": cpus}, "ramMebibytes": memory << 10,
                "nics": [{"mac": format!("52:54:00:00:01:{card:02x}")}]}},
        });
        json_patch::merge(&mut host, &change);
        RackHost::from(&serde_json::from_value::<BareMetalHost>(host).expect("a host"))
    }

    fn consumer(kind: &str, api_version: &str, name: &str, node: &str) -> Value {
        json!({"metadata": {"annotations": {"bpa.akraino.org/node": node}},
            "spec": {"consumerRef": {"kind": kind, "apiVersion": api_version, "name": name, "namespace": "rack"}}})
    }

    fn ours(node: &str) -> Value {
        consumer("Provisioning", "bpa.akraino.org/v1alpha1", "edge", node)
    }

    /// As `=host` where a node has it, `+host` where it takes it, or why not.
    fn given(spec: Value, hosts: &[RackHost], has_image: bool) -> Vec<String> {
        let wanted = wanted::read(&object(spec)).expect("a cluster");
        let shown = |seat: Seat<'_>| match seat {
            Seat::Has(host) => format!("={}", host.name()),
            Seat::Takes(host) => format!("+{}", host.name()),
            Seat::None(why) => why,
        };
        seats(("rack", "edge"), &wanted.nodes, hosts, has_image).into_iter().map(shown).collect()
    }

    fn by_mac(mac: &str) -> Value {
        json!({"masters": [{"a": {"mac-address": mac, "cpu": 4}}]})
    }

    #[test]
    fn a_mac_address_picks_and_the_rest_must_hold() {
        let wanted = || by_mac("52:54:00:00:00:01");
        let rows: &[(Value, &str)] = &[
            (json!({}), "+h"),
            (
                json!({"spec": {"externallyProvisioned": true}, "status": {"provisioning": {"state": "externally provisioned"}}}),
                "+h",
            ),
            (
                json!({"spec": {"image": {"url": "http://x/y"}}, "status": {"provisioning": {"state": "provisioned"}}}),
                "+h",
            ),
            (json!({"spec": {"image": {"url": "http://x/y"}}}), "is told already what to run, and is available"),
            (json!({"status": {"provisioning": {"state": "inspecting"}}}), "is inspecting"),
            (json!({"status": {"hardware": {"cpu": {"count": 2}}}}), "must have 4 processors: it has 2"),
            (json!({"status": {"hardware": null}}), "must have hardware that is known: it has not inspected"),
            (json!({"status": {"errorMessage": "no power"}}), "has an error: no power"),
            (json!({"metadata": {"annotations": {"baremetalhost.metal3.io/paused": ""}}}), "is paused"),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "is being deleted"),
            (
                consumer("Metal3Machine", "infrastructure.cluster.x-k8s.io/v1beta2", "m", ""),
                "is claimed by Metal3Machine m",
            ),
            (consumer("Provisioning", "bpa.akraino.org/v1alpha1", "other", "a"), "is claimed by Provisioning other"),
            // Another group's kind of the same name is another kind, and another namespace's object another one.
            (consumer("Provisioning", "example.com/v1", "edge", "a"), "is claimed by Provisioning edge"),
            (
                json!({"spec": {"consumerRef": {"kind": "Provisioning", "apiVersion": "bpa.akraino.org/v1alpha1", "name": "edge", "namespace": "other"}}}),
                "is claimed by Provisioning edge",
            ),
            (ours("b"), "is another node of this cluster"),
            (ours("a"), "=h"),
        ];
        for (change, said) in rows {
            let given = given(wanted(), &[host("h", 1, 4, 8, change.clone())], true);
            assert!(given[0].ends_with(said), "{change}: {given:?}");
        }
        let hosts = [host("h", 1, 4, 8, json!({})), host("i", 2, 4, 8, json!({}))];
        assert_eq!(given(by_mac("52:54:00:00:01:02"), &hosts, true), ["+i"], "any card will do");
        assert!(
            given(by_mac("52:54:00:00:09:09"), &hosts, true)[0].starts_with("no host of this namespace has the MAC")
        );
        let twice = [host("h", 1, 4, 8, json!({})), host("i", 1, 4, 8, json!({}))];
        assert!(given(wanted(), &twice, true)[0].ends_with("is of more than one host: h, i"));
        assert!(given(wanted(), &hosts, false)[0].ends_with("spec.image does not say what it should"));
    }

    #[test]
    fn whoever_asks_for_most_chooses_first_and_takes_the_smallest_that_suffices() {
        let hosts = [
            host("big", 1, 64, 256, json!({})),
            host("mid", 2, 16, 64, json!({})),
            host("small-b", 3, 4, 8, json!({})),
            host("small-a", 4, 4, 8, json!({})),
            host("card", 5, 4, 8, json!({"metadata": {"labels": {"bpa.akraino.org/sriov": "true"}}})),
        ];
        let spec = json!({
            "masters": [{"m": {"cpu": 2}}],
            "workers": [{"w1": {"memory": "4Gi"}}, {"w2": {"cpu": 8, "memory": "64Gi"}}, {"w3": {"sriov": true}}, {"w4": {"mac-address": "52:54:00:00:00:04"}}],
        });
        let first = given(spec.clone(), &hosts, true);
        assert_eq!(first, ["+big", "+small-b", "+mid", "+card", "+small-a"]);
        let mut turned = hosts.clone();
        turned.reverse();
        assert_eq!(given(spec, &turned, true), first);
    }

    #[test]
    fn who_gets_nothing_is_told_why_within_bounds() {
        let hosts: Vec<RackHost> =
            (0..200).map(|number| host(&format!("{}-{number}", "x".repeat(200)), 1, 2, 4, json!({}))).collect();
        let spec = json!({"masters": [{"m": {"cpu": 8}}]});
        let why = &given(spec.clone(), &hosts, true)[0];
        assert!(why.starts_with("None of 200 BareMetalHosts") && why.len() < 1200, "{why}");
        assert!(given(spec.clone(), &hosts, false)[0].contains("spec.image"));
        // Whoever names nobody as its machine's name gets nobody's host either.
        let odd = consumer("Metal3Machine", "infrastructure.cluster.x-k8s.io/v1beta2", "", "");
        assert!(given(spec, &[host("h", 1, 8, 8, odd)], true)[0].contains("claimed by others"));
    }
}

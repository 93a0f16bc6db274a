//! Which host each node has, or gets. Pure, and the same hosts always give the same answer.
//!
//! A node keeps the host that it has. One with a MAC address gets the host that boots from that card, or has it; whatever else is
//! asked of it must hold, and the host may run a system already, that others installed. All others get free hosts: those that ask for
//! most choose first, and each takes the smallest that suffices, as machines of Cluster API do
//! ([`crate::cluster::hosts::choose`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::rack::RackHost;
use super::wanted::WantedNode;
use crate::api::MacAddress;
use crate::api::infrastructure::HostSelector;
use crate::api::metal3::ProvisioningState;
use crate::cluster::hosts::choose::{CompiledSelector, HostCandidate, HostChoice, HostWish, Needs, choose, refusal};
use crate::cluster::hosts::{Consumer, MachineId};

/// Letters of what others wrote that are repeated.
const SHOWN: usize = 200;
/// Nodes that are told what each host lacks for them: those that want the same count once.
const TOLD: usize = 16;

/// Where a node is.
#[derive(Clone, Debug)]
pub enum NodeSeat<'h> {
    /// It has this host.
    Has(&'h RackHost),
    /// It is to take this one.
    Takes(&'h RackHost),
    /// There is none for it now, and why.
    None(String),
}

impl<'h> NodeSeat<'h> {
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
) -> Vec<NodeSeat<'h>> {
    let mut rack = SortedHosts::new(namespace, hosts, has_image);
    let mut seats: Vec<Option<NodeSeat<'h>>> = Vec::new();
    let its: HashMap<&str, &RackHost> = rack.of(owner).rev().collect();
    for node in nodes {
        let had = its.get(node.name.as_str()).copied();
        // A name that comes again may mean another machine.
        let other = node.mac.and_then(|mac| had.filter(|host| host.boot != Some(mac) && !host.cards.contains(&mac)));
        let is_other = |host: &RackHost| {
            format!(
                "BareMetalHost {} is this node, and has no such MAC address: remove the node, and add it when it is gone",
                host.name()
            )
        };
        seats.push(other.map(|host| NodeSeat::None(is_other(host))).or(had.map(NodeSeat::Has)));
    }
    // What anybody of this Provisioning has is nobody else's.
    rack.taken.extend(hosts.iter().filter(|host| host.is_of(owner)).map(RackHost::name));
    let mut macs =
        rack.with_macs(nodes.iter().zip(&seats).filter(|(_, seat)| seat.is_none()).filter_map(|(node, _)| node.mac));
    for (seat, node) in seats.iter_mut().zip(nodes).filter(|(seat, _)| seat.is_none()) {
        let Some(mac) = node.mac else { continue };
        *seat = Some(rack.seat(by_mac(mac, node, &macs.remove(&mac).unwrap_or_default(), &rack)));
    }
    let mut rest: Vec<usize> = (0..nodes.len()).filter(|at| seats[*at].is_none()).collect();
    rest.sort_by_key(|at| (Reverse(nodes[*at].labels.len()), Reverse(nodes[*at].needs.size()), *at));
    for at in rest {
        let found = rack.by_needs(&nodes[at]);
        seats[at] = Some(rack.seat(found));
    }
    seats.into_iter().flatten().collect()
}

/// What nodes want of a host that they do not name.
type HostDemands = (Vec<&'static str>, Needs);

/// The hosts of a namespace, put in order once for all nodes.
struct SortedHosts<'h> {
    namespace: String,
    has_image: bool,
    /// By name.
    hosts: Vec<&'h RackHost>,
    /// Those that nodes have, or are to take.
    taken: HashSet<&'h str>,
    /// Free hosts with these labels, the smallest first.
    free: HashMap<Vec<&'static str>, Vec<&'h RackHost>>,
    /// Up to where the free hosts were looked at for nodes that want the same: none of those is for the next one.
    passed: HashMap<HostDemands, usize>,
    /// Why there is none for whoever wants this.
    lacking: HashMap<HostDemands, String>,
    /// How often a host was looked at.
    looked_at: usize,
}

/// The first two hosts that boot from a card, and the first two that have it.
#[derive(Default)]
struct WithMac<'h> {
    boots: Vec<&'h RackHost>,
    has: Vec<&'h RackHost>,
}

impl<'h> SortedHosts<'h> {
    fn new(namespace: &str, hosts: &'h [RackHost], has_image: bool) -> Self {
        let mut hosts: Vec<&RackHost> = hosts.iter().collect();
        hosts.sort_by(|a, b| a.name().cmp(b.name()));
        let (taken, free, passed, lacking) = Default::default();
        Self { namespace: namespace.to_owned(), has_image, hosts, taken, free, passed, lacking, looked_at: 0 }
    }

    /// The hosts that nodes of a Provisioning have, by the nodes' names.
    fn of(&self, owner: &str) -> impl DoubleEndedIterator<Item = (&'h str, &'h RackHost)> {
        let its = self.hosts.iter().filter(move |host| host.is_of(owner));
        its.filter_map(|host| Some((host.seat.as_ref()?.1.as_str(), *host)))
    }

    /// The hosts with these cards.
    fn with_macs(&mut self, macs: impl Iterator<Item = MacAddress>) -> HashMap<MacAddress, WithMac<'h>> {
        let mut found: HashMap<MacAddress, WithMac<'h>> = macs.map(|mac| (mac, WithMac::default())).collect();
        if found.is_empty() {
            return found;
        }
        self.looked_at += self.hosts.len();
        for host in &self.hosts {
            if let Some(one) = host.boot.and_then(|mac| found.get_mut(&mac)).filter(|one| one.boots.len() < 2) {
                one.boots.push(host);
            }
            for mac in &host.cards {
                let one = found.get_mut(mac).filter(|one| one.has.len() < 2);
                if let Some(one) = one.filter(|one| one.has.last().is_none_or(|last| last.name() != host.name())) {
                    one.has.push(host);
                }
            }
        }
        found
    }

    /// A node's seat, which is no other node's then.
    fn seat(&mut self, found: Result<&'h RackHost, String>) -> NodeSeat<'h> {
        match found {
            Ok(host) => {
                self.taken.insert(host.name());
                NodeSeat::Takes(host)
            }
            Err(reason) => NodeSeat::None(reason),
        }
    }

    /// The smallest free host that suffices.
    fn by_needs(&mut self, node: &WantedNode) -> Result<&'h RackHost, String> {
        if !self.has_image {
            return Err("free hosts run nothing, and neither spec.image nor cluster.default_image of slipway.toml says what they should".into());
        }
        if self.taken.len() == self.hosts.len() && !self.hosts.is_empty() {
            return Err("every host of this namespace is another node of this cluster".into());
        }
        let wanted = (node.labels.clone(), node.needs);
        if let Some(reason) = self.lacking.get(&wanted) {
            return Err(reason.clone());
        }
        // Nothing is taken before there is a host for every node, so it need not be known of each what it lacks.
        if self.lacking.len() == TOLD {
            return Err("no host was looked for, as there is none for other nodes".into());
        }
        let wish = wish(&self.namespace, node);
        if !self.free.contains_key(&wanted.0) {
            self.looked_at += self.hosts.len();
            let any = HostWish { needs: Needs::default(), ..wish.clone() };
            let mut free: Vec<&RackHost> = self.hosts.iter().copied().filter(|host| is_free(&any, host)).collect();
            // By name they are already.
            free.sort_by_key(|host| size(host));
            self.free.insert(wanted.0.clone(), free);
        }
        let free = self.free.get(&wanted.0).map(Vec::as_slice).unwrap_or_default();
        let least = node.needs.size().0;
        let first = || free.partition_point(|host| size(host).0 < least);
        let from = self.passed.get(&wanted).copied().unwrap_or_else(first);
        let suits = |host: &RackHost| {
            !self.taken.contains(host.name()) && node.needs.lack(host.view.capacity.as_ref()).is_none()
        };
        let found = free.iter().enumerate().skip(from).find(|(_, host)| suits(host));
        let (to, host) = found.map_or((free.len(), None), |(at, host)| (at + 1, Some(*host)));
        self.looked_at += to - from;
        if let Some(host) = host {
            self.passed.insert(wanted, to);
            return Ok(host);
        }
        let reason = self.reason_for_none(&wish);
        self.lacking.insert(wanted, reason.clone());
        Err(reason)
    }

    /// What is said of the hosts that a node does not get.
    fn reason_for_none(&mut self, wish: &HostWish) -> String {
        self.looked_at += self.hosts.len();
        let left = self.hosts.iter().filter(|host| !self.taken.contains(host.name()));
        let candidates: Vec<HostCandidate<'_>> = left.map(|host| candidate(host)).collect();
        match choose(wish, &candidates) {
            HostChoice::None(reason) => reason,
            // One that says that it is a machine's without a name.
            HostChoice::Host(name, _) => format!("BareMetalHost {name} is claimed by others"),
        }
    }
}

fn wish(namespace: &str, node: &WantedNode) -> HostWish {
    let match_labels: BTreeMap<_, _> =
        node.labels.iter().map(|label| ((*label).to_owned(), "true".to_owned())).collect();
    let selector = HostSelector { match_labels, ..HostSelector::default() };
    HostWish {
        machine: MachineId { namespace: namespace.to_owned(), ..MachineId::default() },
        selector: CompiledSelector::new(Some(&selector)).unwrap_or_default(),
        needs: node.needs,
        ..HostWish::default()
    }
}

fn candidate(host: &RackHost) -> HostCandidate<'_> {
    HostCandidate { host: &host.view, capacity: host.view.capacity.as_ref(), taken: false }
}

/// Whether a host may be had, but for its size.
fn is_free(wish: &HostWish, host: &RackHost) -> bool {
    let is_here = host.view.metadata.namespace.as_deref() == Some(&wish.machine.namespace);
    is_here && host.view.consumer == Consumer::Nobody && refusal(wish, &candidate(host)).is_none()
}

/// What the smallest host has least of: bytes of memory, then processors. What nobody inspected counts as smallest.
fn size(host: &RackHost) -> (u64, u64) {
    host.view.capacity.as_ref().map(|capacity| (capacity.memory, capacity.cpus)).unwrap_or_default()
}

fn by_mac<'h>(
    mac: MacAddress,
    node: &WantedNode,
    WithMac { boots, has }: &WithMac<'h>,
    rack: &SortedHosts<'h>,
) -> Result<&'h RackHost, String> {
    let found = if boots.is_empty() { has } else { boots };
    match found.as_slice() {
        [] => Err(format!("no host of this namespace has the MAC address {mac}")),
        [host] => match unfit(host, node, &rack.taken, rack.has_image) {
            None => Ok(*host),
            Some(reason) => Err(format!("BareMetalHost {} with the MAC address {mac} {reason}", host.name())),
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
        _ if !has_image => Some(
            "runs nothing, and neither spec.image nor cluster.default_image of slipway.toml says what it should".into(),
        ),
        _ => None,
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
        let shown = |seat: NodeSeat<'_>| match seat {
            NodeSeat::Has(host) => format!("={}", host.name()),
            NodeSeat::Takes(host) => format!("+{}", host.name()),
            NodeSeat::None(reason) => reason,
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
        let node = json!({"mac-address": "52:54:00:00:00:01", "sriov": true});
        let spec = json!({"masters": [{"m": {"mac-address": "52:54:00:00:00:02"}}], "workers": [{"w": node}]});
        for (label, said) in [("true", "+h"), ("false", "lacks the label bpa.akraino.org/sriov=true")] {
            let labels = json!({"metadata": {"labels": {"bpa.akraino.org/sriov": label}}});
            let hosts = [host("h", 1, 4, 8, labels), host("i", 2, 4, 8, json!({}))];
            assert!(given(spec.clone(), &hosts, true)[1].ends_with(said), "{label}");
        }
        let hosts = [host("h", 1, 4, 8, json!({})), host("i", 2, 4, 8, json!({}))];
        assert_eq!(given(by_mac("52:54:00:00:01:02"), &hosts, true), ["+i"], "any card will do");
        assert!(
            given(by_mac("52:54:00:00:09:09"), &hosts, true)[0].starts_with("no host of this namespace has the MAC")
        );
        let twice = [host("h", 1, 4, 8, json!({})), host("i", 1, 4, 8, json!({}))];
        assert!(given(wanted(), &twice, true)[0].ends_with("is of more than one host: h, i"));
        assert!(
            given(wanted(), &hosts, false)[0].ends_with("cluster.default_image of slipway.toml says what it should")
        );
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

    /// A node costs what it looks at to find its host, and not the whole rack.
    #[test]
    fn many_nodes_do_not_look_at_every_host_each() {
        const HOSTS: u64 = 1000;
        let hosts: Vec<RackHost> =
            (0..HOSTS).map(|number| host(&format!("h{number:04}"), 1, 2 + number % 8, 4, json!({}))).collect();
        let looked_at = |nodes: Vec<Value>| {
            let spec = json!({"masters": [{"m": {"cpu": 1}}], "workers": nodes});
            let wanted = wanted::read(&object(spec)).expect("a cluster");
            let mut rack = SortedHosts::new("rack", &hosts, true);
            let mut seat = |node: &WantedNode| {
                let found = rack.by_needs(node);
                rack.seat(found)
            };
            let found: Vec<_> = wanted.nodes.iter().map(&mut seat).collect();
            (found.iter().filter(|seat| seat.host().is_some()).count(), rack.looked_at)
        };
        let nodes = |cpu: &dyn Fn(u64) -> u64| -> Vec<Value> {
            (0..500_u64).map(|number| json!({format!("w{number}"): {"cpu": cpu(number)}})).collect()
        };
        // All alike: one look over the hosts is enough for all of them.
        assert_eq!(looked_at(nodes(&|_| 2)), (501, 1502));
        // Each wants another thing that there is not: some are told why, and then that will do.
        let (seated, looked) = looked_at(nodes(&|number| 1000 + number));
        assert_eq!(seated, 1);
        assert!(looked <= 1000 + 1 + TOLD * 2000, "{looked}");
    }

    #[test]
    fn who_gets_nothing_is_told_why_within_bounds() {
        let hosts: Vec<RackHost> =
            (0..200).map(|number| host(&format!("{}-{number}", "x".repeat(200)), 1, 2, 4, json!({}))).collect();
        let spec = json!({"masters": [{"m": {"cpu": 8}}]});
        let reason = &given(spec.clone(), &hosts, true)[0];
        assert!(reason.starts_with("None of 200 BareMetalHosts") && reason.len() < 1200, "{reason}");
        assert!(given(spec.clone(), &hosts, false)[0].contains("spec.image"));
        // Whoever names nobody as its machine's name gets nobody's host either.
        let odd = consumer("Metal3Machine", "infrastructure.cluster.x-k8s.io/v1beta2", "", "");
        assert!(given(spec, &[host("h", 1, 8, 8, odd)], true)[0].contains("claimed by others"));
    }
}

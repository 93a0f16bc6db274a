//! What a Provisioning asks for, read once and checked whole. Pure.
//!
//! The rules are those of the published design where it has any: a worker with the name of a master is that master, a machine has
//! one name, and without workers every master is one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::Ipv4Addr;

use ipnetwork::Ipv4Network;
use kube::ResourceExt;

use crate::ansible::{InventoryHostname, UnsafeText};
use crate::api::bpa::{MAX_MASTERS, MAX_WORKERS, Provisioning, WorkerNode};
use crate::api::{MacAddress, MacAddressError};
use crate::cluster::hosts::choose::{Needs, quantity};

/// The label of a host whose network cards have SR-IOV.
pub const LABEL_SRIOV: &str = "bpa.akraino.org/sriov";
/// The label of a host with QuickAssist.
pub const LABEL_QAT: &str = "bpa.akraino.org/qat";
/// Letters of the object's name, so that what is made for it can be called after it.
const LONGEST_NAME: usize = 200;
/// Groups of kubespray's plays, today's and older, that could be a node's name. A play over such a group would go over that node, and
/// `bastion` would be the way to all others.
const GROUPS: [&str; 7] = ["etcd", "bastion", "kube-master", "kube-node", "k8s-cluster", "calico-rr", "no-floating"];
/// kubespray's `kube_service_addresses`, where nobody sets it.
const SERVICES: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 233, 0, 0), 18);
/// Letters of a node's name: one label of DNS.
const LONGEST_NODE: usize = 63;

/// A cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedCluster {
    /// Masters first, each once, in the order of the spec.
    pub nodes: Vec<WantedNode>,
    /// Addresses of pods.
    pub pod_subnet: Option<UnsafeText>,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedNode {
    /// Its name.
    pub name: InventoryHostname,
    /// Whether it is of the control plane, and a member of etcd.
    pub is_master: bool,
    /// Whether it runs workloads.
    pub is_worker: bool,
    /// A card of its host.
    pub mac: Option<MacAddress>,
    /// Hardware that its host must have.
    pub needs: Needs,
    /// Labels that its host must have, with the value `true`.
    pub labels: Vec<&'static str>,
}

/// What is wrong with a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct ClusterSpecFault {
    /// Where.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Reads it.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn read(object: &Provisioning) -> Result<WantedCluster, Vec<ClusterSpecFault>> {
    let mut reading = SpecReader::default();
    let spec = &object.spec;
    if object.name_any().len() > LONGEST_NAME {
        reading.fault("metadata.name", format!("has more than {LONGEST_NAME} letters"));
    }
    if spec.masters.len() > MAX_MASTERS || spec.workers.len() > MAX_WORKERS {
        reading.fault("spec", format!("has more than {MAX_MASTERS} masters or {MAX_WORKERS} workers"));
        return Err(reading.faults);
    }
    for (at, entry) in spec.masters.iter().enumerate() {
        let path = format!("spec.masters[{at}]");
        let Some((name, node)) = reading.one(&path, entry) else { continue };
        let node = node.clone().unwrap_or_default();
        let node =
            WorkerNode { mac_address: node.mac_address, cpu: node.cpu, memory: node.memory, ..WorkerNode::default() };
        reading.master(&path, name, &node);
    }
    for (at, entry) in spec.workers.iter().enumerate() {
        let path = format!("spec.workers[{at}]");
        let Some((name, node)) = reading.one(&path, entry) else { continue };
        reading.worker(&path, name, &node.clone().unwrap_or_default());
    }
    if spec.workers.is_empty() {
        reading.nodes.iter_mut().for_each(|node| node.is_worker = true);
    }
    if spec.masters.len().is_multiple_of(2) {
        let reason = format!("{} masters are no odd number: each is a member of etcd", spec.masters.len());
        reading.fault("spec.masters", reason);
    }
    let pod_subnet = spec.pod_subnet.as_ref().and_then(|text| match subnet(text) {
        Ok(text) => Some(text),
        Err(reason) => {
            reading.fault("spec.PodSubnet", reason);
            None
        }
    });
    if reading.faults.is_empty() { Ok(WantedCluster { nodes: reading.nodes, pod_subnet }) } else { Err(reading.faults) }
}

/// A subnet that kubespray takes for addresses of pods: IPv4, as nodes have, and none of those that it gives to Services.
fn subnet(text: &str) -> Result<UnsafeText, String> {
    let is_none = || "is no IPv4 subnet as 10.233.64.0/18".to_owned();
    let found: Ipv4Network = text.parse().map_err(|_| is_none())?;
    if !text.contains('/') || !(1..=30).contains(&found.prefix()) {
        return Err(is_none());
    }
    let services = Ipv4Network::new(SERVICES.0, SERVICES.1).map_err(|reason| reason.to_string())?;
    let net = found.network();
    if net.is_loopback() || net.is_link_local() || net.is_multicast() || net.is_unspecified() || net.is_broadcast() {
        return Err("is of addresses that are no pods'".into());
    }
    if found.overlaps(services) {
        return Err(format!("overlaps {services}, which kubespray gives to Services (kube_service_addresses)"));
    }
    UnsafeText::new(found.to_string()).map_err(|reason| reason.to_string())
}

#[derive(Default)]
struct SpecReader {
    nodes: Vec<WantedNode>,
    /// Where each name is in `nodes`, and whether `workers` has it.
    known: HashMap<InventoryHostname, (usize, bool)>,
    macs: HashMap<MacAddress, InventoryHostname>,
    faults: Vec<ClusterSpecFault>,
}

impl SpecReader {
    fn fault(&mut self, path: &str, reason: String) {
        self.faults.push(ClusterSpecFault { path: path.to_owned(), reason });
    }

    /// The one node of an entry.
    fn one<'e, T>(
        &mut self,
        path: &str,
        entry: &'e BTreeMap<String, Option<T>>,
    ) -> Option<(InventoryHostname, &'e Option<T>)> {
        let mut nodes = entry.iter();
        let (Some((name, node)), None) = (nodes.next(), nodes.next()) else {
            self.fault(path, "is not a map of one node, by its name".into());
            return None;
        };
        match InventoryHostname::new(name) {
            Ok(name) if GROUPS.contains(&name.as_str()) => {
                self.fault(path, format!("{name} is the name of a group of kubespray's"));
                None
            }
            Ok(name) if name.as_str().len() <= LONGEST_NODE && !name.as_str().contains('.') => Some((name, node)),
            Ok(name) => {
                self.fault(path, format!("{name}: a node's name has at most {LONGEST_NODE} letters, and no dots"));
                None
            }
            Err(reason) => {
                self.fault(path, reason.to_string());
                None
            }
        }
    }

    fn master(&mut self, path: &str, name: InventoryHostname, node: &WorkerNode) {
        if self.known.contains_key(&name) {
            return self.fault(path, format!("{name} is there twice"));
        }
        self.add(path, name, node, true);
    }

    fn worker(&mut self, path: &str, name: InventoryHostname, node: &WorkerNode) {
        let Some((at, is_worker)) = self.known.get(&name).copied() else { return self.add(path, name, node, false) };
        if is_worker {
            return self.fault(path, format!("{name} is there twice"));
        }
        // It is that master, and says nothing else of it.
        let Some(mac) = self.mac(path, node) else { return };
        let is_same = mac.is_none() || mac == self.nodes[at].mac;
        if !is_same || node.cpu.is_some() || node.memory.is_some() {
            let reason = format!("{name} is a master: its MAC address and its needs stand there, and only there");
            return self.fault(path, reason);
        }
        self.nodes[at].is_worker = true;
        self.nodes[at].labels.extend(labels(node));
        self.known.insert(name, (at, true));
    }

    fn add(&mut self, path: &str, name: InventoryHostname, node: &WorkerNode, is_master: bool) {
        let (Some(mac), Some(needs)) = (self.mac(path, node), self.needs(path, node)) else { return };
        let labels = labels(node);
        if mac.is_none() && needs == Needs::default() && labels.is_empty() {
            // A slip of the pen in a name would erase whichever host comes first.
            return self.fault(path, format!("{name} says neither a MAC address nor what its host must have"));
        }
        if let Some(mac) = mac
            && let Some(other) = self.macs.insert(mac, name.clone())
        {
            return self.fault(path, format!("{name} has the MAC address {mac} of {other}"));
        }
        self.known.insert(name.clone(), (self.nodes.len(), !is_master));
        self.nodes.push(WantedNode { name, is_master, is_worker: !is_master, mac, needs, labels });
    }

    /// None when it is faulty.
    fn mac(&mut self, path: &str, node: &WorkerNode) -> Option<Option<MacAddress>> {
        let Some(text) = &node.mac_address else { return Some(None) };
        match text.parse() {
            Ok(mac) => Some(Some(mac)),
            Err(error) => {
                let error: MacAddressError = error;
                self.fault(path, format!("mac-address: {error}"));
                None
            }
        }
    }

    /// None when they are faulty.
    fn needs(&mut self, path: &str, node: &WorkerNode) -> Option<Needs> {
        let cpus = u64::try_from(node.cpu.unwrap_or_default()).ok();
        if cpus.is_none() {
            self.fault(path, "cpu: is less than nothing".into());
        }
        let memory = node.memory.as_deref().map_or(Some(0), |text| quantity(text.trim()));
        if memory.is_none() {
            self.fault(path, "memory: is no size as 16Gi".into());
        }
        Some(Needs::of(cpus?, memory?))
    }
}

fn labels(node: &WorkerNode) -> Vec<&'static str> {
    let wanted = [(node.sriov, LABEL_SRIOV), (node.qat, LABEL_QAT)];
    wanted.into_iter().filter(|(wanted, _)| *wanted == Some(true)).map(|(_, label)| label).collect()
}

/// Every master that was there is there still, and every node that is there still is the same: hosts were taken for them.
pub fn changed(old: &Provisioning, new: &Provisioning) -> Vec<ClusterSpecFault> {
    let (old, new) = (&old.spec, &new.spec);
    let mut faults = Vec::new();
    let mut fault =
        |path: &str, reason: &str| faults.push(ClusterSpecFault { path: path.to_owned(), reason: reason.to_owned() });
    if !old.masters.iter().all(|node| new.masters.contains(node)) {
        fault(
            "spec.masters",
            "masters may be added; those that are there cannot be changed or removed: each is a member of etcd",
        );
    }
    let is_master = |name: &String| old.masters.iter().any(|entry| entry.contains_key(name));
    let names: HashSet<&String> = new.workers.iter().flatten().map(|(name, _)| name).collect();
    let lost = old.workers.iter().filter(|entry| !new.workers.contains(entry));
    if lost.clone().flatten().any(|(name, _)| names.contains(name)) {
        fault("spec.workers", "a worker that is there cannot be changed: remove it, and when it is gone add it anew");
    } else if lost.clone().flatten().any(|(name, _)| is_master(name)) {
        fault("spec.workers", "a master that is a worker stays one");
    } else if new.workers.is_empty() && !old.workers.is_empty() {
        fault("spec.workers", "the last worker stays: without workers masters would be workers");
    }
    faults
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::kubespray) fn object(spec: Value) -> Provisioning {
        let object = json!({"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Provisioning",
            "metadata": {"name": "edge", "namespace": "rack"}, "spec": spec});
        serde_json::from_value(object).expect("a Provisioning")
    }

    fn faults(spec: Value) -> Vec<String> {
        read(&object(spec)).map_or_else(|faults| faults.iter().map(ToString::to_string).collect(), |_| Vec::new())
    }

    #[test]
    fn every_published_form_is_read() {
        let wanted = read(&object(json!({
            "masters": [
                {"cp-1": {"mac-address": "52:54:00:AA:00:01"}},
                {"cp-2": {"cpu": 8, "memory": "16Gi"}},
                {"cp-3": {"mac-address": "52:54:00:aa:00:03", "cpu": 4}},
            ],
            "workers": [
                {"w-1": {"mac-address": "52:54:00:aa:00:11", "cpu": 16, "memory": "64Gi", "sriov": true, "qat": false}},
                {"cp-1": null},
            ],
            "PodSubnet": "10.233.64.0/18", "KUDPlugins": ["emco"], "hostfile": "/etc/shadow",
            "kudInstallerPath": "/a", "dhcpLeaseFile": "/b", "multiClusterDir": "/c",
        })))
        .expect("a cluster");
        let shown: Vec<_> = wanted
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.is_master, node.is_worker, node.mac.is_some(), node.needs.size()))
            .collect();
        assert_eq!(
            shown,
            [
                ("cp-1", true, true, true, (0, 0)),
                ("cp-2", true, false, false, (16 << 30, 8)),
                ("cp-3", true, false, true, (0, 4)),
                ("w-1", false, true, true, (64 << 30, 16)),
            ]
        );
        assert_eq!(wanted.nodes[3].labels, [LABEL_SRIOV]);
        assert_eq!(wanted.pod_subnet.as_ref().map(UnsafeText::as_str), Some("10.233.64.0/18"));
        // Without workers, masters are.
        let alone = read(&object(json!({"masters": [{"a": {"cpu": 1}}]}))).expect("a cluster");
        assert!(alone.nodes[0].is_master && alone.nodes[0].is_worker);
    }

    #[test]
    fn what_makes_no_sense_is_named_where_it_stands() {
        let one = json!({"a": {"cpu": 1}});
        let rows: &[(Value, &str)] = &[
            (json!({}), "spec.masters: 0 masters are no odd number"),
            (json!({"masters": [one, {"b": {"cpu": 1}}]}), "spec.masters: 2 masters are no odd number"),
            (json!({"masters": [one, one, one]}), "spec.masters[1]: a is there twice"),
            (
                json!({"masters": [one], "workers": [{"b": {"cpu": 1}}, {"b": {"cpu": 1}}]}),
                "spec.workers[1]: b is there twice",
            ),
            (json!({"masters": [one], "workers": [{"a": null}, {"a": null}]}), "spec.workers[1]: a is there twice"),
            (json!({"masters": [{}]}), "spec.masters[0]: is not a map of one node"),
            (json!({"masters": [{"a": null, "b": null}]}), "spec.masters[0]: is not a map of one node"),
            (json!({"masters": [{"a": null}]}), "a says neither a MAC address nor what its host must have"),
            (json!({"masters": [one], "workers": [{"b": null}]}), "spec.workers[0]: b says neither"),
            (json!({"masters": [{"a": {"sriov": true}}]}), "a says neither"),
            (json!({"masters": [{"localhost": {"cpu": 1}}]}), "localhost means something else to Ansible"),
            (json!({"masters": [{"a.b": {"cpu": 1}}]}), "a.b: a node's name has"),
            (json!({"masters": [{"a\n[all:vars]": {"cpu": 1}}]}), "is no name for Ansible"),
            (json!({"masters": [{"a".repeat(64): {"cpu": 1}}]}), "a node's name has"),
            (json!({"masters": [{"a": {"mac-address": "x"}}]}), "spec.masters[0]: mac-address:"),
            (json!({"masters": [{"a": {"cpu": -1}}]}), "cpu: is less than nothing"),
            (json!({"masters": [{"a": {"memory": "much"}}]}), "memory: is no size"),
            (
                json!({"masters": [{"a": {"mac-address": "52:54:00:00:00:01"}}], "workers": [{"b": {"mac-address": "52:54:00:00:00:01"}}]}),
                "spec.workers[0]: b has the MAC address 52:54:00:00:00:01 of a",
            ),
            (
                json!({"masters": [{"a": {"mac-address": "52:54:00:00:00:01"}}], "workers": [{"a": {"mac-address": "52:54:00:00:00:02"}}]}),
                "spec.workers[0]: a is a master",
            ),
            (json!({"masters": [one], "workers": [{"a": {"cpu": 2}}]}), "spec.workers[0]: a is a master"),
            (json!({"masters": [one], "PodSubnet": "10.0.0.0"}), "spec.PodSubnet"),
            (json!({"masters": [one], "PodSubnet": "10.0.0.0/33"}), "spec.PodSubnet"),
            (json!({"masters": [one], "PodSubnet": "{{ x }}/8"}), "spec.PodSubnet"),
            (json!({"masters": [one], "PodSubnet": "fd00::/64"}), "spec.PodSubnet: is no IPv4 subnet"),
            (json!({"masters": [one], "PodSubnet": "10.233.32.0/19"}), "spec.PodSubnet: overlaps 10.233.0.0/18"),
        ];
        for (spec, said) in rows {
            let faults = faults(spec.clone());
            assert!(faults.iter().any(|fault| fault.contains(said)), "{spec}: {faults:?}");
        }
        let many: Vec<Value> = (0..=MAX_WORKERS).map(|number| json!({format!("w{number}"): {"cpu": 1}})).collect();
        assert_eq!(faults(json!({"masters": [one], "workers": many})).len(), 1);
    }

    #[test]
    fn nodes_are_added_workers_are_removed_and_none_is_changed() {
        let a = json!({"a": {"cpu": 1}});
        let b = json!({"b": {"cpu": 1}});
        let old = object(json!({"masters": [a], "workers": [b, {"c": {"cpu": 1}}, {"a": null}]}));
        let rows: &[(Value, &[&str])] = &[
            (
                json!({"masters": [a], "workers": [{"d": {"cpu": 1}}, b, {"c": {"cpu": 1}}, {"a": null}], "PodSubnet": "10.0.0.0/8"}),
                &[],
            ),
            (json!({"masters": [a], "workers": [b, {"a": null}]}), &[]),
            (json!({"masters": [a], "workers": [{"a": null}]}), &[]),
            (json!({"masters": [a], "workers": [b, {"c": {"cpu": 1}}]}), &["a master that is a worker stays one"]),
            (json!({"masters": [a], "workers": [{"b": {"cpu": 2}}, {"a": null}]}), &["cannot be changed: remove it"]),
            (json!({"masters": [{"a": {"cpu": 2}}], "workers": [b, {"a": null}]}), &["each is a member of etcd"]),
            (
                json!({"masters": [], "workers": [b, {"c": {"cpu": 2}}, {"a": null}]}),
                &["each is a member of etcd", "remove it"],
            ),
        ];
        for (new, wanted) in rows {
            let faults = changed(&old, &object(new.clone()));
            assert_eq!(faults.len(), wanted.len(), "{new}: {faults:?}");
            assert!(faults.iter().zip(*wanted).all(|(fault, part)| fault.reason.contains(part)), "{new}: {faults:?}");
        }
        let one = object(json!({"masters": [a], "workers": [b]}));
        assert!(changed(&one, &object(json!({"masters": [a]})))[0].reason.contains("the last worker stays"));
    }
}

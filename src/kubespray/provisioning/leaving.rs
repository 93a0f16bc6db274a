//! Nodes that are wanted no more: those that are in the cluster, and hosts that no node has. Pure.
//!
//! What is in the cluster only the status says, which nobody else writes. A host that says to be a node of the cluster, and is none
//! that is wanted, is let go once the cluster has not that node.

use std::collections::HashSet;

use super::cluster_inventory::NodePlace;
use super::known_hosts::mark;
use super::opening::opened;
use super::progress;
use super::rack::RackHost;
use super::wanted::{WantedCluster, WantedNode};
use crate::ansible::{InventoryHostname, Reachable};
use crate::api::bpa::{NodeProgress, ProvisioningStatus};
use crate::cluster::hosts::choose::Needs;

/// Nodes that are wanted no more.
#[derive(Debug, Default)]
pub struct Leaving {
    /// Workers that are in the cluster.
    pub workers: Vec<WantedNode>,
    /// The first master of the cluster that is wanted no more: it is never taken out of it.
    pub master: Option<String>,
    /// Hosts of nodes that the cluster has not.
    pub free: Vec<String>,
}

/// Nodes that the object `owner` wants no more.
pub fn leaving(owner: &str, status: &ProvisioningStatus, cluster: &WantedCluster, rack: &[RackHost]) -> Leaving {
    let wanted: HashSet<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
    let known = |name: &str| status.nodes.iter().find(|node| node.name == name);
    let is_master = |node: &NodeProgress| node.roles.iter().any(|role| role == "master");
    let gone = status.installed.iter().filter(|name| !wanted.contains(name.as_str()));
    let (masters, workers): (Vec<_>, Vec<_>) = gone.partition(|name| known(name).is_some_and(is_master));
    let installed: HashSet<&str> = status.installed.iter().map(String::as_str).collect();
    let is_free = |host: &RackHost| {
        let seat = host.seat.as_ref().filter(|(of, node)| of == owner && !node.is_empty());
        seat.is_some_and(|(_, node)| !wanted.contains(node.as_str()) && !installed.contains(node.as_str()))
    };
    Leaving {
        workers: workers.into_iter().filter_map(|name| Some(worker(InventoryHostname::new(name).ok()?))).collect(),
        master: masters.first().map(|name| (*name).clone()),
        free: rack.iter().filter(|host| is_free(host)).map(|host| host.name().to_owned()).collect(),
    }
}

fn worker(name: InventoryHostname) -> WantedNode {
    let (needs, labels) = (Needs::default(), Vec::new());
    WantedNode { name, is_master: false, is_worker: true, mac: None, needs, labels }
}

/// Where a node of the cluster is, or was when it was seen last: one that is removed may be dead, and others need not be well for that.
///
/// # Errors
///
/// When nobody knows.
pub fn last_place(
    owner: &str,
    node: &WantedNode,
    status: &ProvisioningStatus,
    rack: &[RackHost],
    user_data: &str,
) -> Result<NodePlace, String> {
    let is_its =
        |host: &&RackHost| host.seat.as_ref().is_some_and(|(of, name)| of == owner && name == node.name.as_str());
    let host = rack.iter().find(is_its);
    let known = status.nodes.iter().find(|known| known.name == node.name.as_str());
    let known = known.and_then(|known| known.address.as_deref());
    // Of one that is wanted no more nobody says any longer which card named it.
    let card = node.mac.or_else(|| host?.card_at(known?));
    let machine = host.map(|host| mark(host, user_data));
    if let Some(Ok(place)) = host.map(|host| progress::place(host, card, user_data)) {
        return Ok(opened(place, status, node, machine.as_deref()));
    }
    let address = host.and_then(|host| host.address(card)).or(known);
    let address = address.and_then(|address| Reachable::new(address).ok());
    let address = address.ok_or_else(|| format!("nobody knows the address of {}", node.name))?;
    // Of a host that is gone only its name matters.
    let has_user = host.is_none_or(|host| host.user_data.as_deref() == Some(user_data));
    Ok(opened(NodePlace { address, has_user }, status, node, machine.as_deref()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::wanted::{read, tests::object};
    use super::*;
    use crate::api::metal3::BareMetalHost;

    fn host(name: &str, consumer: &str, node: &str) -> RackHost {
        let host = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "namespace": "rack", "annotations": {"bpa.akraino.org/node": node}},
            "spec": {"online": true, "consumerRef": {"kind": "Provisioning", "apiVersion": "bpa.akraino.org/v1alpha1",
                "name": consumer, "namespace": "rack"}},
            "status": {"provisioning": {"state": "provisioned"}, "addresses": [{"address": "10.0.0.7"},
                {"address": "10.1.0.7", "macAddress": "52:54:00:00:00:02"}]}});
        RackHost::from(&serde_json::from_value::<BareMetalHost>(host).expect("a host"))
    }

    fn status(installed: &[&str], nodes: Value) -> ProvisioningStatus {
        serde_json::from_value(json!({"installed": installed, "nodes": nodes})).expect("a status")
    }

    #[test]
    fn what_is_in_the_cluster_is_removed_and_what_is_not_is_let_go() {
        let cluster = read(&object(json!({"masters": [{"m": {"cpu": 1}}], "workers": [{"w": {"cpu": 1}}]}))).unwrap();
        let nodes = json!([{"name": "m", "roles": ["master"]}, {"name": "m2", "roles": ["master"]},
            {"name": "w", "roles": ["worker"]}, {"name": "x", "roles": ["worker"]}]);
        let rack = [
            host("h1", "edge", "m"),
            host("h2", "edge", "w"),
            host("h3", "edge", "x"),
            host("h4", "edge", "new"),
            // Others' hosts, and one that does not say which node it is.
            host("h5", "other", "y"),
            host("h6", "edge", ""),
        ];
        let seen = |installed: &[&str]| {
            let status = status(installed, nodes.clone());
            let found = leaving("edge", &status, &cluster, &rack);
            let workers: Vec<String> = found.workers.iter().map(|node| node.name.to_string()).collect();
            (workers.join(" "), found.master, found.free.join(" "))
        };
        assert_eq!(seen(&["m", "w"]), (String::new(), None, "h3 h4".into()));
        assert_eq!(seen(&["m", "w", "x"]), ("x".into(), None, "h4".into()));
        // It has no host any more.
        assert_eq!(seen(&["m", "w", "x", "z"]), ("x z".into(), None, "h4".into()));
        assert_eq!(seen(&["m", "w", "m2"]), (String::new(), Some("m2".into()), "h3 h4".into()));
        assert_eq!(seen(&[]), (String::new(), None, "h3 h4".into()));
    }

    #[test]
    fn a_dead_node_is_where_it_was() {
        let nodes = json!([{"name": "x", "address": "10.0.0.9"}, {"name": "y"}, {"name": "z", "address": "127.0.0.1"},
            {"name": "two", "address": "10.1.0.7"}]);
        let status = status(&["x", "y", "z", "two"], nodes);
        let at = |name: &str, rack: &[RackHost]| {
            let node = worker(InventoryHostname::new(name).unwrap());
            last_place("edge", &node, &status, rack, "u").map(|place| place.address.to_string())
        };
        assert_eq!(at("x", &[host("h", "edge", "x")]), Ok("10.0.0.7".into()));
        assert_eq!(at("two", &[host("h", "edge", "two")]), Ok("10.1.0.7".into()));
        assert_eq!(at("x", &[host("h", "other", "x")]), Ok("10.0.0.9".into()));
        assert_eq!(at("x", &[]), Ok("10.0.0.9".into()));
        for name in ["y", "z"] {
            assert_eq!(at(name, &[]), Err(format!("nobody knows the address of {name}")));
        }
    }
}

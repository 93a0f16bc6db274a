//! Which node of the cluster a machine is. Pure.
//!
//! Agents report addresses and names, and a node's root may report another's. So a node belongs to a machine only while no other one
//! of the cluster reports the same, and a worker is never a node of the control plane: what is drained or deleted for a machine must
//! not be somebody else's.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::view::LcmMachineView;
use crate::api::lcm::MachineRole;
use crate::cluster::workload::Nodes;

/// Labels of nodes of the control plane.
const OF_CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// What was seen of a machine's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SeenNode {
    /// Nobody looked.
    Unasked,
    /// There is none.
    None,
    /// It is there, and its kubelet does not say that it is ready.
    Unready(String),
    /// It is there, and ready.
    Ready(String),
    /// Nobody can tell, or nobody answers.
    Unknown(String),
}

impl SeenNode {
    /// Its name.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Unready(name) | Self::Ready(name) => Some(name),
            Self::Unasked | Self::None | Self::Unknown(_) => None,
        }
    }
}

/// The node of one machine among those of its cluster.
pub(super) fn find(one: &LcmMachineView, machines: &[LcmMachineView], nodes: &Nodes) -> SeenNode {
    let Some(address) = one.address() else { return SeenNode::None };
    for other in machines.iter().filter(|other| other.name_any() != one.name_any()) {
        let both =
            |what: &str| format!("the agents of {} and {} report the same {what}", one.name_any(), other.name_any());
        if other.address() == Some(address) {
            return SeenNode::Unknown(both("address"));
        }
        if one.hostname().is_some() && one.hostname() == other.hostname() {
            return SeenNode::Unknown(both("name"));
        }
    }
    let by_address = nodes.all().find(|node| has_address(node, address));
    let by_name = one.hostname().and_then(|name| nodes.named(name));
    let node = match (by_address, by_name) {
        (Some(one), Some(other)) if one.name_any() != other.name_any() => {
            let names = (one.name_any(), other.name_any());
            return SeenNode::Unknown(format!(
                "its address is that of node {}, its name that of node {}",
                names.0, names.1
            ));
        }
        (Some(node), _) | (None, Some(node)) => node,
        (None, None) => return SeenNode::None,
    };
    let rules = OF_CONTROL_PLANE.iter().any(|label| node.labels().contains_key(*label));
    if rules && one.role() != MachineRole::Control {
        return SeenNode::Unknown(format!(
            "its agent reports to be node {}, which is of the control plane",
            node.name_any()
        ));
    }
    if is_ready(node) { SeenNode::Ready(node.name_any()) } else { SeenNode::Unready(node.name_any()) }
}

fn has_address(node: &Node, address: IpAddr) -> bool {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    all.filter(|one| one.type_ == "InternalIP").any(|one| one.address.parse() == Ok(address))
}

fn is_ready(node: &Node) -> bool {
    let all = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::view::tests::view;
    use super::*;

    fn machine(name: &str, address: &str, hostname: &str, control: bool) -> LcmMachineView {
        let addresses = json!([{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": hostname}]);
        let labels = if control { json!({super::super::view::LABEL_CONTROL_PLANE: ""}) } else { json!({}) };
        view(json!({"name": name, "labels": labels}), json!({}), json!({"addresses": addresses}))
    }

    fn node(name: &str, address: &str, ready: &str, labels: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn a_node_is_a_machines_only_where_nobody_else_says_so() {
        let manager = machine("m", "10.0.0.1", "n1", true);
        let plane = json!({"node-role.kubernetes.io/control-plane": ""});
        let nodes = Nodes::new([
            node("n1", "10.0.0.1", "True", plane),
            node("n2", "10.0.0.2", "False", json!({})),
            node("n3", "10.0.0.3", "True", json!({})),
        ]);
        for (one, wanted) in [
            (machine("w", "10.0.0.2", "n2", false), SeenNode::Unready("n2".into())),
            (machine("w", "10.0.0.3", "", false), SeenNode::Ready("n3".into())),
            (machine("w", "10.0.0.9", "n3", false), SeenNode::Ready("n3".into())),
            (machine("w", "10.0.0.9", "n9", false), SeenNode::None),
            (machine("w", "none", "n3", false), SeenNode::None),
            (machine("w", "10.0.0.2", "n3", false), SeenNode::Unknown("its address is that of node n2".into())),
            // Somebody with root on a worker says to be the manager.
            (machine("w", "10.0.0.1", "n7", false), SeenNode::Unknown("m report the same address".into())),
            (machine("w", "10.0.0.2", "n1", false), SeenNode::Unknown("m report the same name".into())),
        ] {
            let seen = find(&one, &[manager.clone(), one.clone()], &nodes);
            match (&seen, &wanted) {
                (SeenNode::Unknown(reason), SeenNode::Unknown(part)) => {
                    assert!(reason.contains(part.as_str()), "{reason}")
                }
                _ => assert_eq!(seen, wanted),
            }
        }
        // Also before the manager's own agent says anything.
        let thief = machine("w", "10.0.0.1", "", false);
        assert!(
            matches!(find(&thief, std::slice::from_ref(&thief), &nodes), SeenNode::Unknown(reason) if reason.contains("control plane"))
        );
        assert_eq!(find(&manager, std::slice::from_ref(&manager), &nodes), SeenNode::Ready("n1".into()));
    }
}

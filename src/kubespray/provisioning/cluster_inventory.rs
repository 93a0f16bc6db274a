//! kubespray's inventory of a cluster. Pure.
//!
//! The groups are those of kubespray 2.24 and later. `k8s_cluster` is said, though newer versions make it themselves: only then
//! `ansible-playbook --list-hosts` and `group_vars/k8s_cluster` mean anything before a run.
//!
//! <https://github.com/kubernetes-sigs/kubespray/blob/master/docs/ansible/inventory.md>

use std::collections::BTreeMap;

use super::wanted::{WantedCluster, WantedNode};
use crate::ansible::{
    GroupName, Inventory, InventoryFault, InventoryHostname, NameFault, Reachable, TextFault, UnsafeText, Variable,
    Vars,
};

/// The user whom the user data of hosts makes.
pub const USER: &str = "kubespray";

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its address.
    pub address: Reachable,
    /// Whether its system was installed for the cluster, and so has its user.
    pub has_user: bool,
}

/// Why there is no inventory that kubespray would take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterFault {
    /// Two nodes would be one machine.
    #[error("{one} and {other} have the same address {address}: they are one machine")]
    SameAddress {
        /// A node.
        one: InventoryHostname,
        /// Another one.
        other: InventoryHostname,
        /// The address.
        address: Reachable,
    },
    /// Nobody would be the control plane, or etcd could not agree.
    #[error("{0} members of etcd are no odd number")]
    Etcd(usize),
    /// Names that mean something else.
    #[error(transparent)]
    Inventory(#[from] InventoryFault),
    /// The same, of a group.
    #[error(transparent)]
    Name(#[from] NameFault),
    /// A text that Ansible would evaluate.
    #[error(transparent)]
    Text(#[from] TextFault),
}

/// The inventory of nodes, each with its place.
///
/// # Errors
///
/// When kubespray would refuse it, or it would mean something else.
pub fn cluster_inventory(
    cluster: &WantedCluster,
    places: &[(&WantedNode, NodePlace)],
) -> Result<Inventory, ClusterFault> {
    let masters = places.iter().filter(|(node, _)| node.is_master).count();
    if masters.is_multiple_of(2) {
        return Err(ClusterFault::Etcd(masters));
    }
    let [control_plane, etcd, workers, all] = [
        GroupName::new("kube_control_plane")?,
        GroupName::new("etcd")?,
        GroupName::new("kube_node")?,
        GroupName::new("k8s_cluster")?,
    ];
    let mut inventory = Inventory::default();
    if let Some(subnet) = &cluster.pod_subnet {
        inventory.var("kube_pods_subnet", subnet.clone().into());
    }
    let mut known: BTreeMap<Reachable, &InventoryHostname> = BTreeMap::new();
    let mut members = 0;
    for (node, place) in places {
        if let Some(one) = known.insert(place.address, &node.name) {
            let (one, other) = (one.clone(), node.name.clone());
            return Err(ClusterFault::SameAddress { one, other, address: place.address });
        }
        let address: Variable = UnsafeText::new(place.address.to_string())?.into();
        let mut vars = Vars::new();
        for name in ["ansible_host", "ip", "access_ip"] {
            vars.insert(name, address.clone());
        }
        // Not of all: tasks that kubespray delegates to the box that it runs on would become root there, whatever they say.
        vars.insert("ansible_become", Variable::Flag(true));
        if place.has_user {
            vars.insert("ansible_user", UnsafeText::new(USER)?.into());
        }
        if node.is_master {
            members += 1;
            vars.insert("etcd_member_name", UnsafeText::new(format!("etcd{members}"))?.into());
        }
        inventory.host(node.name.clone(), vars)?;
        if node.is_master {
            inventory.member(control_plane.clone(), &node.name)?;
            inventory.member(etcd.clone(), &node.name)?;
        }
        if node.is_worker {
            inventory.member(workers.clone(), &node.name)?;
        }
    }
    inventory.group(workers.clone());
    inventory.child(all.clone(), control_plane)?;
    inventory.child(all, workers)?;
    inventory.check()?;
    Ok(inventory)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::{read, tests::object};
    use super::*;

    fn made(spec: serde_json::Value, addresses: &[&str]) -> Result<Inventory, ClusterFault> {
        let cluster = read(&object(spec)).expect("a cluster");
        let place = |address: &str| NodePlace {
            address: Reachable::new(address).expect(address),
            has_user: address != "10.0.0.9",
        };
        let places: Vec<_> = cluster.nodes.iter().zip(addresses.iter().map(|address| place(address))).collect();
        cluster_inventory(&cluster, &places)
    }

    #[test]
    fn groups_and_variables_are_kubesprays() {
        let spec = json!({
            "masters": [{"z": {"cpu": 1}}, {"b": {"cpu": 1}}, {"a": {"cpu": 1}}],
            "workers": [{"w": {"cpu": 1}}, {"a": null}], "PodSubnet": "10.233.64.0/18",
        });
        let inventory = made(spec, &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"]).expect("an inventory");
        insta::assert_snapshot!(inventory.ini(), @r#"
        [all]
        z access_ip=10.0.0.1 ansible_become='True' ansible_host=10.0.0.1 ansible_user=kubespray etcd_member_name=etcd1 ip=10.0.0.1
        b access_ip=10.0.0.2 ansible_become='True' ansible_host=10.0.0.2 ansible_user=kubespray etcd_member_name=etcd2 ip=10.0.0.2
        a access_ip=10.0.0.3 ansible_become='True' ansible_host=10.0.0.3 ansible_user=kubespray etcd_member_name=etcd3 ip=10.0.0.3
        w access_ip=10.0.0.9 ansible_become='True' ansible_host=10.0.0.9 ip=10.0.0.9

        [etcd]
        z
        b
        a

        [k8s_cluster]

        [kube_control_plane]
        z
        b
        a

        [kube_node]
        a
        w

        [k8s_cluster:children]
        kube_control_plane
        kube_node

        [all:vars]
        kube_pods_subnet="10.233.64.0/18"
        "#);
    }

    #[test]
    fn no_inventory_is_made_that_kubespray_refuses() {
        let one = json!({"masters": [{"a": {"cpu": 1}}], "workers": [{"b": {"cpu": 1}}]});
        let fault = made(one, &["10.0.0.1", "10.0.0.1"]).unwrap_err();
        assert_eq!(fault.to_string(), "a and b have the same address 10.0.0.1: they are one machine");
        let three = json!({"masters": [{"a": {"cpu": 1}}, {"b": {"cpu": 1}}, {"c": {"cpu": 1}}]});
        assert_eq!(made(three.clone(), &["10.0.0.1", "10.0.0.2"]), Err(ClusterFault::Etcd(2)));
        assert_eq!(made(three, &[]), Err(ClusterFault::Etcd(0)));
        // A node may be called as none of the groups is.
        for name in ["etcd", "all", "kube_node"] {
            let spec = json!({"masters": [{name: {"cpu": 1}}]});
            let is_read = read(&object(spec.clone())).is_ok();
            assert!(!is_read || made(spec, &["10.0.0.1"]).is_err(), "{name}");
        }
    }
}

//! The inventory that packages come by. It says what is run on the appliance, so it is made of hosts: whoever may write the status of a
//! Provisioning may have written another one there. Pure.

use kube::ResourceExt;

use super::packages::ByNode;
use crate::ansible::Inventory;
use crate::api::bpa::Provisioning;
use crate::kubespray::provisioning::cluster_inventory::cluster_inventory;
use crate::kubespray::provisioning::rack::RackHost;
use crate::kubespray::provisioning::seats::seats;
use crate::kubespray::provisioning::{made, opening, wanted};

/// The inventory of a cluster that has all its hosts; `packages` are for nodes of it. `rack` are the hosts of its namespace.
///
/// # Errors
///
/// When a host is not there or not well, or packages are for something else.
pub fn inventory(of: &Provisioning, rack: &[RackHost], packages: &ByNode) -> Result<Inventory, String> {
    let (namespace, name) = (of.namespace().unwrap_or_default(), of.name_any());
    let cluster = wanted::read(of).map_err(|_| format!("Provisioning {name} is invalid"))?;
    // A name that Ansible takes for something else is none of them.
    if let Some(other) = packages.keys().find(|key| cluster.nodes.iter().all(|node| node.name.as_str() != *key)) {
        return Err(format!("Provisioning {name} has no node {other:?}"));
    }
    let status = of.status.clone().unwrap_or_default();
    let user_data = made::user_data_name(&name);
    let given = seats((&namespace, &name), &cluster.nodes, rack, false);
    let places = opening::places(&cluster.nodes, &given, &status, &user_data);
    let of_it = |reason| format!("Provisioning {name}: {reason}");
    cluster_inventory(&cluster, &places.map_err(of_it)?).map_err(|reason| of_it(reason.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::metal3::BareMetalHost;

    fn host(name: &str, node: &str, address: Value) -> RackHost {
        let host: BareMetalHost = serde_json::from_value(json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "namespace": "far", "annotations": {"bpa.akraino.org/node": node}},
            "spec": {"online": true, "userData": {"name": "edge-user-data"}, "image": {"url": "http://images.test/a"},
                "consumerRef": {"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Provisioning", "name": "edge"}},
            "status": {"provisioning": {"state": "provisioned"}, "addresses": address},
        }))
        .expect("a host");
        RackHost::from(&host)
    }

    #[test]
    fn it_is_of_hosts_and_of_nothing_that_a_status_says() {
        let evil = json!({"all": {"hosts": {"w": {"ansible_connection": "local"}}}}).to_string();
        let of: Provisioning = serde_json::from_value(json!({
            "apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Provisioning", "metadata": {"name": "edge", "namespace": "far"},
            "spec": {"masters": [{"m": {"cpu": 1}}], "workers": [{"w": {"cpu": 1}}]},
            "status": {"phase": "Ready", "hostsYaml": evil, "installed": ["m", "w", "localhost"]},
        }))
        .expect("a Provisioning");
        let leased = |address: &str| json!([{"address": address, "macAddress": "52:54:00:00:00:01", "network": "n"}]);
        let rack = [host("a", "m", leased("10.0.0.1")), host("b", "w", leased("10.0.0.2"))];
        let packages = |node: &str| ByNode::from([(node.to_owned(), vec!["jq".to_owned()])]);
        let yaml = inventory(&of, &rack, &packages("w")).expect("an inventory").yaml();
        assert!(yaml.contains("10.0.0.2") && yaml.contains("kubespray") && !yaml.contains("local"), "{yaml}");
        for (rack, node, wanted) in [
            (&rack[..], "localhost", "has no node \"localhost\""),
            (&rack[..1], "w", "Provisioning edge: node w has no host"),
            (&[], "m", "Provisioning edge: node m has no host"),
            (&[rack[0].clone(), host("b", "w", json!([]))], "w", "no address is leased"),
            (&[rack[0].clone(), host("b", "w", leased("10.0.0.1"))], "w", "they are one machine"),
        ] {
            let reason = inventory(&of, rack, &packages(node)).expect_err(wanted);
            assert!(reason.contains(wanted), "{reason}");
        }
    }
}

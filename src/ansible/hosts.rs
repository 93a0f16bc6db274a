//! The inventory of hosts, for playbooks of the user's own.
//!
//! A host is named as its BareMetalHost, with `.NAMESPACE` behind it where hosts of several namespaces are meant. It is reached at
//! what DHCP leases to its machine now. Addresses that stand elsewhere, as in a HardwareData, are whatever somebody wrote there, and
//! may be another machine's: they are not used.
//!
//! Groups are `label_KEY_VALUE` for each of its labels, `state_STATE` and `namespace_NAMESPACE`, with `_` for what no group's name can
//! have.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    GroupName, Inventory, InventoryFault, InventoryHostname, NameFault, Reachable, UnsafeText, Variable, Vars,
};

/// What is known of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownHost {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Where it is in its life, as `provisioned`.
    pub state: String,
    /// MAC address that it boots from.
    pub boot_mac: String,
    /// What is leased to its machine, that of its boot card first.
    pub addresses: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// An inventory, and what whoever uses it should know.
#[derive(Clone, Debug, Default)]
pub struct HostsInventory {
    /// Hosts that can be reached.
    pub inventory: Inventory,
    /// Hosts that are not in it, each with the reason: they are its comments, too.
    pub left_out: Vec<String>,
    /// What is in it and may surprise.
    pub remarks: Vec<String>,
}

/// Makes the inventory; `of_all_namespaces` has names with namespaces.
pub fn inventory(hosts: &[KnownHost], of_all_namespaces: bool) -> HostsInventory {
    let mut made = HostsInventory::default();
    let mut making = Making::default();
    for host in hosts {
        let name = if of_all_namespaces { format!("{}.{}", host.name, host.namespace) } else { host.name.clone() };
        if let Err(reason) = making.add(&mut made, host, &name) {
            made.left_out.push(format!("{name}: {reason}"));
        }
    }
    for text in &made.left_out {
        made.inventory.comment(text);
    }
    for (address, hosts) in making.addresses.iter().filter(|(_, hosts)| hosts.len() > 1) {
        let hosts: Vec<&str> = hosts.iter().map(InventoryHostname::as_str).collect();
        made.remarks.push(format!("one machine is there more than once: {} are at {address}", hosts.join(", ")));
    }
    for (group, labels) in making.labels.iter().filter(|(_, labels)| labels.len() > 1) {
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        made.remarks.push(format!("group {group} is of more than one label: {}", labels.join(", ")));
    }
    made
}

/// Why a host is left out.
#[derive(Debug, thiserror::Error)]
enum LeftOutReason {
    #[error("no address is leased to it")]
    NoAddress,
    #[error("{0}")]
    Address(#[from] super::ReachableFault),
    #[error("{0}")]
    Name(#[from] NameFault),
    #[error("{0}")]
    Inventory(#[from] InventoryFault),
}

/// What tells surprises.
#[derive(Default)]
struct Making {
    addresses: BTreeMap<Reachable, Vec<InventoryHostname>>,
    labels: BTreeMap<GroupName, BTreeSet<String>>,
}

impl Making {
    fn add(&mut self, made: &mut HostsInventory, host: &KnownHost, name: &str) -> Result<(), LeftOutReason> {
        let hostname = InventoryHostname::new(name)?;
        let first = Reachable::new(host.addresses.first().ok_or(LeftOutReason::NoAddress)?)?;
        let text = |text: &str| UnsafeText::new(text).map(Variable::from);
        let mut vars = Vars::new();
        let mut unusable = Vec::new();
        let mut labels = BTreeMap::new();
        for (key, value) in &host.labels {
            match (UnsafeText::new(key.as_str()), text(value)) {
                (Ok(key), Ok(value)) => _ = labels.insert(key, value),
                (Err(reason), _) | (_, Err(reason)) => unusable.push(format!("{name}: a label is left out: {reason}")),
            }
        }
        let addresses = host.addresses.iter().filter_map(|one| text(&Reachable::new(one).ok()?.to_string()).ok());
        vars.insert("slipway_addresses", Variable::List(addresses.collect()));
        vars.insert("slipway_labels", Variable::Map(labels));
        for (variable, value) in [
            ("ansible_host", first.to_string().as_str()),
            ("slipway_boot_mac", &host.boot_mac),
            ("slipway_host", &host.name),
            ("slipway_namespace", &host.namespace),
            ("slipway_state", &host.state),
        ] {
            match text(value) {
                Ok(value) => _ = vars.insert(variable, value),
                Err(reason) => unusable.push(format!("{name}: {variable} is left out: {reason}")),
            }
        }
        let inventory = &mut made.inventory;
        inventory.host(hostname.clone(), vars)?;
        made.remarks.append(&mut unusable);
        self.addresses.entry(first).or_default().push(hostname.clone());
        for (key, value) in &host.labels {
            let label = if value.is_empty() { key.clone() } else { format!("{key}_{value}") };
            match GroupName::folded("label", &label) {
                Ok(group) => {
                    inventory.member(group.clone(), &hostname)?;
                    self.labels.entry(group).or_default().insert(super::names::shown(&format!("{key}={value}")));
                }
                Err(reason) => made.remarks.push(format!("{name}: a label makes no group: {reason}")),
            }
        }
        for (prefix, word) in [("state", &host.state), ("namespace", &host.namespace)] {
            if let Some(group) =
                Some(word).filter(|word| !word.is_empty()).and_then(|word| GroupName::folded(prefix, word).ok())
            {
                inventory.member(group, &hostname)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, address: &str, labels: &[(&str, &str)]) -> KnownHost {
        KnownHost {
            namespace: "rack".into(),
            name: name.into(),
            state: "provisioned".into(),
            boot_mac: "52:54:00:12:34:56".into(),
            addresses: [address].into_iter().filter(|one| !one.is_empty()).map(str::to_owned).collect(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        }
    }

    #[test]
    fn hosts_with_an_address_are_in_and_the_others_are_comments() {
        let hosts = [
            host("web-1", "10.0.0.5", &[("role", "web"), ("spare", "")]),
            host("web-2", "", &[("role", "web")]),
            host("localhost", "10.0.0.6", &[]),
            host("db-1", "127.0.0.1", &[]),
            host("web-1", "10.0.0.9", &[]),
        ];
        let made = inventory(&hosts, false);
        insta::assert_snapshot!(made.inventory.ini(), @r#"
        # web-2: no address is leased to it
        # localhost: localhost means something else to Ansible
        # db-1: no other machine is reached at 127.0.0.1
        # web-1: host web-1 is there twice
        [all]
        web-1 ansible_host=10.0.0.5 slipway_addresses='["10.0.0.5"]' slipway_boot_mac='"52:54:00:12:34:56"' slipway_host=web-1 slipway_labels='{"role": "web", "spare": ""}' slipway_namespace=rack slipway_state=provisioned

        [label_role_web]
        web-1

        [label_spare]
        web-1

        [namespace_rack]
        web-1

        [state_provisioned]
        web-1
        "#);
        insta::assert_snapshot!(made.inventory.yaml(), @r##"
        # web-2: no address is leased to it
        # localhost: localhost means something else to Ansible
        # db-1: no other machine is reached at 127.0.0.1
        # web-1: host web-1 is there twice
        all:
          hosts:
            "web-1":
              "ansible_host": "10.0.0.5"
              "slipway_addresses": ["10.0.0.5"]
              "slipway_boot_mac": "52:54:00:12:34:56"
              "slipway_host": "web-1"
              "slipway_labels": {"role": "web", "spare": ""}
              "slipway_namespace": "rack"
              "slipway_state": "provisioned"
          children:
            "label_role_web":
              hosts:
                "web-1": {}
            "label_spare":
              hosts:
                "web-1": {}
            "namespace_rack":
              hosts:
                "web-1": {}
            "state_provisioned":
              hosts:
                "web-1": {}
        "##);
        assert_eq!((made.left_out.len(), made.remarks.len()), (4, 0));
    }

    #[test]
    fn hosts_of_all_namespaces_have_names_of_their_own() {
        let other = KnownHost { namespace: "lab".into(), ..host("web-1", "10.0.0.6", &[]) };
        let made = inventory(&[host("web-1", "10.0.0.5", &[]), other], true);
        assert!(made.left_out.is_empty(), "{:?}", made.left_out);
        assert!(made.inventory.ini().contains("[namespace_lab]\nweb-1.lab\n"), "{}", made.inventory.ini());
        // The last part is the namespace, so that no two make one name, and no name is another machine's address.
        let tricky = KnownHost { namespace: "1".into(), ..host("127.0.0", "10.0.0.7", &[]) };
        assert!(inventory(&[tricky], true).inventory.is_empty());
    }

    #[test]
    fn what_may_surprise_is_said() {
        let hosts = [
            host("a", "10.0.0.5", &[("x/y", "z"), ("x.y", "z")]),
            host("b", "10.0.0.5", &[("x_y", "z"), ("bad", "{{ lookup('pipe', 'id') }}")]),
        ];
        let made = inventory(&hosts, false);
        assert_eq!(
            made.remarks,
            [
                "b: a label is left out: Ansible would evaluate it as a template",
                "one machine is there more than once: a, b are at 10.0.0.5",
                "group label_x_y_z is of more than one label: x.y=z, x/y=z, x_y=z",
            ]
        );
        assert!(!made.inventory.ini().contains("lookup('") && !made.inventory.yaml().contains("{{"));
    }
}

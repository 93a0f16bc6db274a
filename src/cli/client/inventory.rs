//! `-o ansible` and `-o ansible-yaml`: an inventory of hosts ([`crate::ansible::hosts`]).

use std::io::Write;

use serde_json::Value;

use super::output::Language;
use super::types::{ServedType, hosts};
use crate::ansible::hosts::{HostsInventory, KnownHost, inventory};
use crate::cli::failure::{complain, usage};

/// Remarks that are said; more are counted.
const SAID: usize = 50;

/// Whether an inventory can be made of what is asked for.
pub(super) fn check<'t>(mut types: impl Iterator<Item = &'t ServedType>, watch: bool) -> anyhow::Result<()> {
    if watch {
        return Err(usage("an inventory is of one moment: leave --watch out"));
    }
    match types.find(|of| of.qualified() != hosts().qualified()) {
        Some(other) => Err(usage(format!("an inventory is of hosts; {} are none", other.qualified()))),
        None => Ok(()),
    }
}

/// Prints the inventory, and says on standard error what is not in it.
pub(super) fn print(
    objects: &[Value],
    of_all_namespaces: bool,
    language: Language,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let hosts: Vec<KnownHost> = objects.iter().map(known).collect();
    let made = inventory(&hosts, of_all_namespaces);
    let text = match language {
        Language::Ini => made.inventory.ini(),
        Language::Yaml => made.inventory.yaml(),
    };
    out.write_all(text.as_bytes())?;
    said(&made).iter().for_each(complain);
    Ok(())
}

/// What whoever runs a playbook should know, bounded. Ansible itself calls a playbook for nobody a success.
fn said(made: &HostsInventory) -> Vec<String> {
    let left_out = made.left_out.iter().map(|host| format!("not in the inventory: {host}"));
    let all: Vec<String> = left_out.chain(made.remarks.iter().cloned()).collect();
    let more = all.len().saturating_sub(SAID);
    let mut said: Vec<String> = all.into_iter().take(SAID).collect();
    if more > 0 {
        said.push(format!("and {more} more; all hosts that are left out are at the head of the inventory"));
    }
    if made.inventory.is_empty() {
        said.push("no host is in the inventory".into());
    }
    said
}

fn known(host: &Value) -> KnownHost {
    let text = |pointer: &str| host.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let addresses = host.pointer("/status/addresses").and_then(Value::as_array);
    let labels = host.pointer("/metadata/labels").and_then(Value::as_object);
    KnownHost {
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name"),
        state: text("/status/provisioning/state"),
        boot_mac: text("/spec/bootMACAddress"),
        addresses: addresses
            .into_iter()
            .flatten()
            .filter_map(|one| one["address"].as_str())
            .map(str::to_owned)
            .collect(),
        labels: labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host(name: &str, addresses: &[&str]) -> Value {
        let addresses: Vec<Value> = addresses.iter().map(|one| json!({ "address": one })).collect();
        json!({"metadata": {"name": name, "namespace": "rack", "labels": {"role": "web", "odd": 1}},
            "spec": {"bootMACAddress": "52:54:00:00:00:01"},
            "status": {"provisioning": {"state": "provisioned"}, "addresses": addresses,
                "hardware": {"nics": [{"ip": "10.0.0.99"}]}}})
    }

    #[test]
    fn a_host_is_read_as_it_is_and_is_only_where_dhcp_has_it() {
        let read = known(&host("a", &["10.0.0.5", "10.0.0.6"]));
        assert_eq!(read.addresses, ["10.0.0.5", "10.0.0.6"]);
        assert_eq!(read.labels.into_iter().collect::<Vec<_>>(), [("role".to_owned(), "web".to_owned())]);
        assert_eq!((read.state.as_str(), read.boot_mac.as_str()), ("provisioned", "52:54:00:00:00:01"));
        assert_eq!(known(&json!(null)), KnownHost::default());
        let mut out = Vec::new();
        print(&[host("a", &["10.0.0.5"]), host("b", &[])], false, Language::Yaml, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("# b: no address is leased to it\nall:\n"), "{text}");
        assert!(!text.contains("10.0.0.99"), "what a card once had is not used: {text}");
    }

    #[test]
    fn whoever_is_not_in_it_is_named_and_the_rest_is_counted() {
        let hosts: Vec<KnownHost> = (0..60).map(|number| known(&host(&format!("h{number}"), &[]))).collect();
        let said = said(&inventory(&hosts, false));
        assert_eq!(said.len(), SAID + 2);
        assert_eq!(said[0], "not in the inventory: h0: no address is leased to it");
        assert!(said[SAID].starts_with("and 10 more") && said[SAID + 1] == "no host is in the inventory", "{said:?}");
    }

    #[test]
    fn only_hosts_have_inventories() {
        let other = ServedType { plural: "images".into(), group: "slipway.dev".into(), ..ServedType::default() };
        assert!(check([hosts()].iter(), false).is_ok());
        assert!(check([hosts()].iter(), true).unwrap_err().to_string().contains("--watch"));
        assert!(check([hosts(), other].iter(), false).unwrap_err().to_string().contains("images.slipway.dev"));
    }
}

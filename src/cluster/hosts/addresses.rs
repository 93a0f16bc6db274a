//! The addresses of a machine: its host's. Pure.

use std::collections::BTreeSet;

use crate::api::cluster::{AddressType, MachineAddress};
use crate::api::metal3::BareMetalHost;

/// Addresses of a machine, at most.
const MOST: usize = 32;
/// Letters of one, at most.
const LONGEST: usize = 256;

/// What is leased to the host now, then what inspection found on interfaces that have no lease, then its name.
pub fn addresses(host: &BareMetalHost) -> Vec<MachineAddress> {
    let Some(status) = &host.status else { return Vec::new() };
    let leased: BTreeSet<String> = status.addresses.iter().map(|one| one.mac_address.to_lowercase()).collect();
    let nics = status.hardware.iter().flat_map(|hardware| &hardware.nics);
    let inspected = nics.filter(|nic| !leased.contains(&nic.mac.to_lowercase())).map(|nic| &nic.ip);
    let addresses = status.addresses.iter().map(|one| &one.address).chain(inspected);
    let addresses = addresses.map(|address| (AddressType::InternalIP, address));
    let name = status.hardware.iter().map(|hardware| &hardware.hostname);
    let names = name.flat_map(|name| [(AddressType::Hostname, name), (AddressType::InternalDNS, name)]);
    let mut all: Vec<MachineAddress> = Vec::new();
    // The name must have room, too.
    let names: Vec<_> = names.collect();
    let room = MOST - names.len();
    for (type_, address) in addresses.take(room).chain(names) {
        let one = MachineAddress { type_, address: address.clone() };
        if !address.is_empty() && address.len() <= LONGEST && !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn host(status: Value) -> BareMetalHost {
        let host = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h"},
            "spec": {"online": true}, "status": status});
        serde_json::from_value(host).expect("a host")
    }

    fn text(host: &BareMetalHost) -> Vec<String> {
        let word = |one: &MachineAddress| format!("{}={}", json!(one.type_).as_str().unwrap_or_default(), one.address);
        addresses(host).iter().map(word).collect()
    }

    #[test]
    fn leases_count_more_than_what_inspection_found() {
        let nic = |mac: &str, ip: &str| json!({"name": mac, "mac": mac, "ip": ip});
        let status = json!({
            "addresses": [{"address": "10.0.0.7", "macAddress": "AA:AA"}],
            "hardware": {
                "hostname": "node-1",
                "nics": [nic("aa:aa", "10.0.0.200"), nic("bb:bb", "10.1.0.5"), nic("bb:bb", "fd00::5"), nic("cc:cc", "")],
            },
        });
        let wanted = [
            "InternalIP=10.0.0.7",
            "InternalIP=10.1.0.5",
            "InternalIP=fd00::5",
            "Hostname=node-1",
            "InternalDNS=node-1",
        ];
        assert_eq!(text(&host(status)), wanted);
        assert_eq!(text(&host(json!({}))), [""; 0]);
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let nics: Vec<Value> = (0..300).map(|n| json!({"mac": format!("{n}"), "ip": format!("10.0.1.{n}")})).collect();
        let found = text(&host(json!({"hardware": {"hostname": "n", "nics": nics}})));
        assert_eq!((found.len(), found.last().map(String::as_str)), (MOST, Some("InternalDNS=n")));
        let long = "x".repeat(300);
        assert_eq!(text(&host(json!({"hardware": {"hostname": long}}))), [""; 0]);
    }
}

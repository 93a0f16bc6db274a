//! Network interfaces as the inventory has them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use super::lldp::Neighbour;
use crate::agent::net::link::{self, EthernetInterface};
use crate::api::MacAddress;
use crate::api::metal3::Nic;

/// Every interface, once for each of its addresses and once when it has none. `boot` is the interface that the
/// firmware booted from.
pub fn read(
    root: &Path,
    addresses: &BTreeMap<String, Vec<IpAddr>>,
    neighbours: &BTreeMap<String, Neighbour>,
    boot: Option<MacAddress>,
) -> Vec<Nic> {
    let mut nics = Vec::new();
    for interface in link::interfaces(root) {
        let nic = describe(root, &interface, neighbours.get(&interface.name), boot);
        match addresses.get(&interface.name).map(Vec::as_slice) {
            None | Some([]) => nics.push(nic),
            Some(addresses) => {
                nics.extend(addresses.iter().map(|address| Nic { ip: address.to_string(), ..nic.clone() }));
            }
        }
    }
    nics
}

fn describe(
    root: &Path,
    interface: &EthernetInterface,
    neighbour: Option<&Neighbour>,
    boot: Option<MacAddress>,
) -> Nic {
    let path = root.join("sys/class/net").join(&interface.name);
    let read = |file: &str| std::fs::read_to_string(path.join(file)).map(|text| text.trim().to_owned()).ok();
    let ids = [read("device/vendor"), read("device/device")];
    // Megabits a second; -1 or an error without a link.
    let speed = read("speed").and_then(|text| text.parse::<i64>().ok()).unwrap_or(0).max(0);
    Nic {
        name: interface.name.clone(),
        model: ids.into_iter().flatten().collect::<Vec<_>>().join(" "),
        mac: interface.mac.to_string(),
        ip: String::new(),
        speed_gbps: speed / 1000,
        vlans: neighbour.map(Neighbour::vlan_list).unwrap_or_default(),
        vlan_id: neighbour.and_then(|neighbour| neighbour.untagged).map_or(0, i64::from),
        pxe: boot == Some(interface.mac),
        lldp: neighbour.map(Neighbour::identity),
        pci_address: std::fs::canonicalize(path.join("device"))
            .ok()
            .and_then(|device| pci_address(&device))
            .unwrap_or_default(),
    }
}

/// The nearest PCI function on the way up from a device, `0000:3b:00.0`.
pub fn pci_address(device: &Path) -> Option<String> {
    device
        .ancestors()
        .filter_map(|path| path.file_name()?.to_str())
        .find(|name| is_pci_address(name))
        .map(str::to_owned)
}

/// Whether this is domain, bus, slot and function of a PCI device: `0000:3b:00.0`.
pub fn is_pci_address(name: &str) -> bool {
    let hex = |text: &str, least: usize, most: usize| {
        (least..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((place, function)) = name.rsplit_once('.') else { return false };
    let mut parts = place.split(':');
    // Domains of volume management devices have five digits and more.
    hex(function, 1, 1)
        && parts.next().is_some_and(|domain| hex(domain, 4, 8))
        && parts.next().is_some_and(|bus| hex(bus, 2, 2))
        && parts.next().is_some_and(|slot| hex(slot, 2, 2))
        && parts.next().is_none()
}

/// Addresses of the machine's interfaces: IP version 4 first, link-local ones of version 6 left out.
pub fn addresses() -> BTreeMap<String, Vec<IpAddr>> {
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let Ok(entries) = nix::ifaddrs::getifaddrs() else { return found };
    for entry in entries {
        let Some(address) = entry.address else { continue };
        let ip = address
            .as_sockaddr_in()
            .map(|v4| IpAddr::V4(v4.ip()))
            .or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())));
        match ip {
            Some(IpAddr::V6(v6)) if v6.is_unicast_link_local() || v6.is_loopback() => {}
            Some(ip) => found.entry(entry.interface_name).or_default().push(ip),
            None => {}
        }
    }
    for addresses in found.values_mut() {
        addresses.sort();
        addresses.dedup();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A PCI NIC with a link, and a virtio one without a speed.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("sys/devices/pci0000:00");
        let make = |device: &str, name: &str, files: &[(&str, &str)]| {
            let net = devices.join(device).join("net").join(name);
            fs::create_dir_all(&net).unwrap();
            for (file, text) in files {
                fs::write(net.join(file), format!("{text}\n")).unwrap();
            }
            symlink("../..", net.join("device")).unwrap();
            fs::create_dir_all(root.path().join("sys/class/net")).unwrap();
            let target = format!("../../devices/pci0000:00/{device}/net/{name}");
            symlink(target, root.path().join("sys/class/net").join(name)).unwrap();
        };
        let intel = "0000:00:03.0/0000:3b:00.1";
        let base = [("type", "1"), ("ifindex", "2"), ("carrier", "1")];
        make(intel, "eno1", &[&base[..], &[("address", "3c:fd:fe:00:00:01"), ("speed", "25000")]].concat());
        fs::write(devices.join(intel).join("vendor"), "0x8086\n").unwrap();
        fs::write(devices.join(intel).join("device"), "0x158b\n").unwrap();
        let virtio = "0000:00:04.0/virtio0";
        make(virtio, "eth0", &[&base[..], &[("address", "52:54:00:00:00:02"), ("speed", "-1")]].concat());
        root
    }

    #[test]
    fn interfaces_carry_hardware_addresses_and_switch() {
        let root = machine();
        let neighbour = Neighbour {
            chassis: "00:1c:73:00:00:99".into(),
            port: "Ethernet12".into(),
            system: "tor-7".into(),
            untagged: Some(100),
            vlans: vec![(100, "prov".into())],
        };
        let dual: Vec<IpAddr> = vec!["172.22.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        let boot = Some("3c:fd:fe:00:00:01".parse().unwrap());
        let nics = read(root.path(), &[("eno1".into(), dual)].into(), &[("eno1".into(), neighbour)].into(), boot);
        assert_eq!(nics.len(), 3);
        let json = serde_json::to_value(&nics[0]).unwrap();
        let expected = serde_json::json!({
            "name": "eno1", "model": "0x8086 0x158b", "mac": "3c:fd:fe:00:00:01", "ip": "172.22.0.7", "speedGbps": 25,
            "vlans": [{"id": 100, "name": "prov"}], "vlanId": 100, "pxe": true, "pciAddress": "0000:3b:00.1",
            "lldp": {"switchID": "00:1c:73:00:00:99", "portID": "Ethernet12", "switchSystemName": "tor-7"},
        });
        assert_eq!(json, expected);
        assert_eq!((nics[1].ip.as_str(), &nics[1].mac), ("fd00::7", &nics[0].mac));
        let json = serde_json::to_value(&nics[2]).unwrap();
        let expected = serde_json::json!({
            "name": "eth0", "mac": "52:54:00:00:00:02", "pciAddress": "0000:00:04.0",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn pci_addresses_are_told_from_other_names() {
        for good in ["0000:3b:00.0", "10000:e1:00.0", "0001:ff:1f.7"] {
            assert!(is_pci_address(good), "{good}");
        }
        for bad in ["pci0000:00", "virtio0", "0000:3b:00", "000:3b:00.0", "0000:3b:00.0:1", "1-1:1.0", ""] {
            assert!(!is_pci_address(bad), "{bad}");
        }
    }
}

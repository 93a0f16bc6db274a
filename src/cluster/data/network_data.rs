//! Network data of a machine, in OpenStack's form. Pure.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use super::machine::{DataMachine, DataRenderError};
use super::pools::{PoolAddresses, of, of_gateway, of_network};
use crate::api::MacAddress;
use crate::api::infrastructure::data::v1beta2::{self, BondLink, Links};
use crate::api::infrastructure::data::{LinkNetworks, MacSource, NetworkRoute, Services, StaticNetwork};

/// Routes in all networks.
const ROUTES_MAX: usize = 1000;
/// Name servers of a pool or a route.
const SERVERS_MAX: usize = 64;

/// The network data: links, networks and services.
///
/// # Errors
///
/// When something that it is made of is not there, or makes no sense.
pub(super) fn render(
    data: &v1beta2::TemplateNetworkData,
    machine: &DataMachine,
    addresses: &PoolAddresses,
) -> Result<Value, DataRenderError> {
    let links = data.links.as_ref().map(|links| all_links(links, machine)).transpose()?;
    let networks = data.networks.as_ref().map(|networks| all_networks(networks, machine, addresses)).transpose()?;
    let dns = data.services.as_ref().map(|services| name_servers(services, None, "services", addresses)).transpose()?;
    Ok(json!({
        "links": links.unwrap_or_default(),
        "networks": networks.unwrap_or_default(),
        "services": dns.unwrap_or_default(),
    }))
}

/// Bonds, network cards, VLANs, in this order.
fn all_links(links: &Links, machine: &DataMachine) -> Result<Vec<Value>, DataRenderError> {
    let mut all = Vec::new();
    for link in &links.bonds {
        all.push(bond(link, machine)?);
    }
    for link in &links.ethernets {
        let mut entry = common(&link.id, json!(link.type_), link.mtu, &link.name);
        if let Some(mac) = mac(&link.mac_address, &link.id, machine)? {
            entry.insert("ethernet_mac_address".into(), mac.into());
        }
        all.push(entry.into());
    }
    for link in &links.vlans {
        let mut entry = common(&link.id, json!("vlan"), link.mtu, &link.name);
        entry.insert("vlan_link".into(), json!(link.vlan_link));
        entry.insert("vlan_id".into(), json!(link.vlan_id));
        if let Some(mac) = mac(&link.mac_address, &link.id, machine)? {
            entry.insert("vlan_mac_address".into(), mac.into());
        }
        all.push(entry.into());
    }
    Ok(all)
}

fn bond(link: &BondLink, machine: &DataMachine) -> Result<Value, DataRenderError> {
    let mut entry = common(&link.id, json!("bond"), link.mtu, &link.name);
    entry.insert("bond_mode".into(), json!(link.bond_mode));
    entry.insert("bond_links".into(), json!(link.bond_links));
    if let Some(hash) = link.bond_xmit_hash_policy {
        entry.insert("bond_xmit_hash_policy".into(), json!(hash));
    }
    if let Some(mac) = mac(&link.mac_address, &link.id, machine)? {
        entry.insert("ethernet_mac_address".into(), mac.into());
    }
    for parameter in &link.parameters {
        let key = format!("bond_{}", parameter.name);
        if entry.contains_key(&key) || key == "bond_xmit_hash_policy" {
            return Err(DataRenderError::Parameter(parameter.name.clone(), link.id.clone()));
        }
        entry.insert(key, parameter.value.clone());
    }
    Ok(entry.into())
}

fn common(id: &str, type_: Value, mtu: Option<i32>, name: &str) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("id".into(), json!(id));
    entry.insert("type".into(), type_);
    if let Some(mtu) = mtu.filter(|mtu| *mtu != 0) {
        entry.insert("mtu".into(), json!(mtu));
    }
    if !name.is_empty() {
        entry.insert("name".into(), json!(name));
    }
    entry
}

/// The MAC address of a link; none when the template says none.
fn mac(source: &MacSource, link: &str, machine: &DataMachine) -> Result<Option<String>, DataRenderError> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let text = match (given(&source.string), given(&source.from_host_interface), &source.from_annotation) {
        (Some(text), _, _) => text,
        (_, Some(interface), _) => machine.mac_of(&interface)?,
        (_, _, Some(from)) => machine.annotation(from.object, &from.annotation),
        (None, None, None) => return Ok(None),
    };
    // As cloud-init reads it, with either sign between the pairs.
    if text.replace('-', ":").parse::<MacAddress>().is_err() {
        return Err(DataRenderError::Mac(link.to_owned(), text.chars().take(64).collect()));
    }
    Ok(Some(text))
}

/// Static ones, those by DHCP, those by router advertisements.
fn all_networks(
    networks: &LinkNetworks,
    machine: &DataMachine,
    addresses: &PoolAddresses,
) -> Result<Vec<Value>, DataRenderError> {
    let mut all = Vec::new();
    let with_address = networks.ipv4.iter().chain(&networks.ipv6).map(|network| network.routes.len());
    let without = networks.ipv4_dhcp.iter().chain(&networks.ipv6_dhcp).chain(&networks.ipv6_slaac);
    if with_address.chain(without.map(|network| network.routes.len())).sum::<usize>() > ROUTES_MAX {
        return Err(DataRenderError::TooMany("routes", ROUTES_MAX));
    }
    for (type_, list, v6) in [("ipv4", &networks.ipv4, false), ("ipv6", &networks.ipv6, true)] {
        for network in list {
            all.push(static_network(network, type_, v6, machine, addresses)?);
        }
    }
    let dynamic = [
        ("ipv4_dhcp", &networks.ipv4_dhcp, false),
        ("ipv6_dhcp", &networks.ipv6_dhcp, true),
        ("ipv6_slaac", &networks.ipv6_slaac, true),
    ];
    for (type_, list, v6) in dynamic {
        for network in list {
            let routes = routes(&network.routes, v6, &network.id, machine, addresses)?;
            all.push(json!({"id": network.id, "link": network.link, "type": type_, "routes": routes}));
        }
    }
    Ok(all)
}

fn static_network(
    network: &StaticNetwork,
    type_: &str,
    v6: bool,
    machine: &DataMachine,
    addresses: &PoolAddresses,
) -> Result<Value, DataRenderError> {
    let its = of(addresses, &of_network(network, machine)?.0)?;
    if its.address.is_ipv6() != v6 {
        return Err(DataRenderError::Version(network.id.clone(), its.address.to_string(), if v6 { 6 } else { 4 }));
    }
    let mut entry = json!({"id": network.id, "link": network.link, "type": type_, "ip_address": its.address.to_string(),
        "routes": routes(&network.routes, v6, &network.id, machine, addresses)?});
    if let Some(prefix) = its.prefix {
        entry["netmask"] = mask(prefix, v6, &network.id)?.into();
    }
    Ok(entry)
}

fn routes(
    routes: &[NetworkRoute],
    v6: bool,
    network: &str,
    machine: &DataMachine,
    addresses: &PoolAddresses,
) -> Result<Vec<Value>, DataRenderError> {
    let mut all = Vec::new();
    for route in routes {
        let to = in_version(&route.network, v6, network)?;
        let mask = mask(route.prefix.unwrap_or_default().into(), v6, network)?;
        let dns = route.services.as_ref().map(|services| name_servers(services, Some(v6), network, addresses));
        let mut entry = json!({"network": to, "netmask": mask, "services": dns.transpose()?.unwrap_or_default()});
        let gateway = match of_gateway(&route.gateway, machine)? {
            Some((pool, _)) => of(addresses, &pool)?.gateway.clone(),
            None => route.gateway.string.clone(),
        };
        if let Some(gateway) = gateway.filter(|gateway| !gateway.is_empty()) {
            entry["gateway"] = in_version(&gateway, v6, network)?.into();
        }
        all.push(entry);
    }
    Ok(all)
}

/// Name servers, of one version where a route is for one.
fn name_servers(
    services: &Services,
    v6: Option<bool>,
    network: &str,
    addresses: &PoolAddresses,
) -> Result<Vec<Value>, DataRenderError> {
    let pool = services.dns_from_ip_pool.as_ref().filter(|pool| !pool.is_empty());
    let of_pool = pool.map(|pool| of(addresses, pool)).transpose()?;
    let servers = services.dns.len().saturating_add(of_pool.map_or(0, |its| its.dns_servers.len()));
    if servers > SERVERS_MAX {
        return Err(DataRenderError::TooMany("name servers", SERVERS_MAX));
    }
    let all = services.dns.iter().chain(of_pool.into_iter().flat_map(|its| &its.dns_servers));
    all.map(|server| {
        if let Some(v6) = v6 {
            in_version(server, v6, network)?;
        }
        Ok(json!({"type": "dns", "address": server}))
    })
    .collect()
}

fn in_version(text: &str, v6: bool, network: &str) -> Result<String, DataRenderError> {
    let read = text.parse::<IpAddr>().ok().filter(|address| address.is_ipv6() == v6);
    let shown = || text.chars().take(64).collect();
    let wrong = || DataRenderError::Version(network.to_owned(), shown(), if v6 { 6 } else { 4 });
    read.map(|_| text.to_owned()).ok_or_else(wrong)
}

/// A mask as an address of its version.
fn mask(prefix: i64, v6: bool, network: &str) -> Result<String, DataRenderError> {
    let any: IpAddr = if v6 { std::net::Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() };
    let net = u8::try_from(prefix).ok().and_then(|prefix| IpNetwork::new(any, prefix).ok());
    net.map(|net| net.mask().to_string()).ok_or_else(|| DataRenderError::Prefix(network.to_owned(), prefix))
}

#[cfg(test)]
mod tests {
    use super::super::meta_data::tests::{addresses, machine};
    use super::*;
    use crate::image::configdrive;
    use crate::network_data::{LinkType, NetworkPlan};

    fn rendered(data: Value) -> Result<Value, String> {
        let data = serde_json::from_value(data).unwrap();
        render(&data, &machine(), &addresses()).map_err(|error| error.to_string())
    }

    fn link(kind: &str, link: Value) -> Result<Value, String> {
        let data = rendered(json!({"links": {kind: [link]}}))?;
        assert_eq!((&data["networks"], &data["services"]), (&json!([]), &json!([])));
        Ok(data["links"][0].clone())
    }

    fn network(kind: &str, mut network: Value) -> Result<Value, String> {
        network["id"] = "net".into();
        network["link"] = "eno1".into();
        let mut entry = rendered(json!({"networks": {kind: [network]}}))?["networks"][0].clone();
        for (key, value) in [("id", "net"), ("link", "eno1")] {
            assert_eq!(entry[key], value);
            entry.as_object_mut().unwrap().remove(key);
        }
        Ok(entry)
    }

    const MAC: &str = "52:54:00:00:00:02";

    #[test]
    fn every_link_is_rendered() {
        let from_nic = json!({"fromHostInterface": "eno2"});
        let rows = [
            (
                "ethernets",
                json!({"type": "phy", "id": "a", "mtu": 1500, "macAddress": {"string": MAC}}),
                json!({"type": "phy", "id": "a", "mtu": 1500, "ethernet_mac_address": MAC}),
            ),
            (
                "ethernets",
                json!({"type": "hw_veb", "id": "a", "name": "lan0", "macAddress": from_nic}),
                json!({"type": "hw_veb", "id": "a", "name": "lan0", "ethernet_mac_address": MAC}),
            ),
            (
                "ethernets",
                json!({"type": "phy", "id": "a", "macAddress": {"fromAnnotation": {"object": "machine", "annotation": "mac"}}}),
                json!({"type": "phy", "id": "a", "ethernet_mac_address": "52:54:00:00:00:09"}),
            ),
            // The text counts most, then the interface.
            (
                "ethernets",
                json!({"type": "phy", "id": "a", "macAddress": {"string": "52-54-00-00-00-07", "fromHostInterface": "eno9"}}),
                json!({"type": "phy", "id": "a", "ethernet_mac_address": "52-54-00-00-00-07"}),
            ),
            (
                "bonds",
                json!({"bondMode": "802.3ad", "bondXmitHashPolicy": "layer3+4", "id": "bond0", "name": "up", "mtu": 9000,
                    "macAddress": from_nic, "bondLinks": ["a", "b"], "parameters": [{"name": "miimon", "value": 50}]}),
                json!({"type": "bond", "bond_mode": "802.3ad", "bond_xmit_hash_policy": "layer3+4", "id": "bond0", "name": "up",
                    "mtu": 9000, "ethernet_mac_address": MAC, "bond_links": ["a", "b"], "bond_miimon": 50}),
            ),
            (
                "bonds",
                json!({"bondMode": "active-backup", "id": "bond0", "macAddress": {}}),
                json!({"type": "bond", "bond_mode": "active-backup", "id": "bond0", "bond_links": []}),
            ),
            (
                "vlans",
                json!({"vlanID": 100, "id": "v", "vlanLink": "bond0", "macAddress": from_nic, "name": "vlan100", "mtu": 1500}),
                json!({"type": "vlan", "vlan_id": 100, "id": "v", "vlan_link": "bond0", "vlan_mac_address": MAC, "name": "vlan100", "mtu": 1500}),
            ),
        ];
        for (kind, given, wanted) in rows {
            assert_eq!(link(kind, given.clone()), Ok(wanted), "{given}");
        }
        let bad = [
            (
                "ethernets",
                json!({"type": "phy", "id": "a", "macAddress": {"string": "52:54"}}),
                "bad MAC address of the link \"a\": \"52:54\"",
            ),
            (
                "ethernets",
                json!({"type": "phy", "id": "a", "macAddress": {"fromAnnotation": {"object": "machine", "annotation": "x"}}}),
                "bad MAC address of the link \"a\": \"\"",
            ),
            (
                "vlans",
                json!({"vlanID": 1, "id": "a", "vlanLink": "b", "macAddress": {"fromHostInterface": "x"}}),
                "NIC name not found x",
            ),
            (
                "bonds",
                json!({"bondMode": "802.3ad", "id": "b", "macAddress": {}, "parameters": [{"name": "mode", "value": 1}]}),
                "illegal params \"mode\" into bond params blob into link id=b",
            ),
            (
                "bonds",
                json!({"bondMode": "802.3ad", "id": "b", "macAddress": {}, "parameters": [{"name": "xmit_hash_policy", "value": 1}]}),
                "illegal params \"xmit_hash_policy\" into bond params blob into link id=b",
            ),
        ];
        for (kind, given, wanted) in bad {
            assert_eq!(link(kind, given), Err(wanted.to_owned()));
        }
    }

    #[test]
    fn every_network_is_rendered() {
        let dns = |address: &str| json!({"type": "dns", "address": address});
        let rows = [
            (
                "ipv4",
                json!({"ipAddressFromIPPool": "v4"}),
                json!({"type": "ipv4", "ip_address": "10.0.0.5", "netmask": "255.255.255.0", "routes": []}),
            ),
            (
                "ipv6",
                json!({"fromPoolRef": {"name": "v6"}}),
                json!({"type": "ipv6", "ip_address": "fd00::5", "netmask": "ffff:ffff:ffff:ffff::", "routes": []}),
            ),
            (
                "ipv4",
                json!({"ipAddressFromIPPool": "bare"}),
                json!({"type": "ipv4", "ip_address": "10.9.0.5", "routes": []}),
            ),
            (
                "ipv4",
                json!({"ipAddressFromIPPool": "v4", "routes": [
                    {"network": "0.0.0.0", "gateway": {"fromIPPool": "v4"}, "services": {"dns": ["8.8.8.8"], "dnsFromIPPool": "v4"}},
                    {"network": "10.9.0.0", "prefix": 16, "gateway": {"string": "10.0.0.9"}},
                    {"network": "10.8.0.0", "prefix": 32, "gateway": {"fromPoolRef": {"name": "bare"}}}]}),
                json!({"type": "ipv4", "ip_address": "10.0.0.5", "netmask": "255.255.255.0", "routes": [
                    {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1",
                        "services": [dns("8.8.8.8"), dns("10.0.0.2"), dns("10.0.0.3")]},
                    {"network": "10.9.0.0", "netmask": "255.255.0.0", "gateway": "10.0.0.9", "services": []},
                    {"network": "10.8.0.0", "netmask": "255.255.255.255", "services": []}]}),
            ),
            ("ipv4DHCP", json!({}), json!({"type": "ipv4_dhcp", "routes": []})),
            (
                "ipv6DHCP",
                json!({"routes": [{"network": "::", "gateway": {"fromIPPool": "v6"}}]}),
                json!({"type": "ipv6_dhcp", "routes": [{"network": "::", "netmask": "::", "gateway": "fd00::1", "services": []}]}),
            ),
            ("ipv6SLAAC", json!({}), json!({"type": "ipv6_slaac", "routes": []})),
        ];
        for (kind, given, wanted) in rows {
            assert_eq!(network(kind, given.clone()), Ok(wanted), "{given}");
        }
        let bad = [
            ("ipv6", json!({"ipAddressFromIPPool": "v4"}), "network \"net\": 10.0.0.5 is no IPv6 address"),
            ("ipv4", json!({"ipAddressFromIPPool": "x"}), "there is no address of the pool x"),
            (
                "ipv4DHCP",
                json!({"routes": [{"network": "::", "gateway": {}}]}),
                "network \"net\": :: is no IPv4 address",
            ),
            (
                "ipv4DHCP",
                json!({"routes": [{"network": "10.0.0.0", "prefix": 33, "gateway": {}}]}),
                "network \"net\": 33 is no length of a prefix",
            ),
            (
                "ipv6DHCP",
                json!({"routes": [{"network": "::", "gateway": {"string": "10.0.0.1"}}]}),
                "network \"net\": 10.0.0.1 is no IPv6 address",
            ),
        ];
        for (kind, given, wanted) in bad {
            assert_eq!(network(kind, given), Err(wanted.to_owned()));
        }
        let route = json!({"network": "0.0.0.0", "gateway": {}});
        let many = network("ipv4DHCP", json!({"routes": vec![route.clone(); 1001]}));
        assert_eq!(many, Err("routes: 1000 are the limit".to_owned()));
        let many = network(
            "ipv4DHCP",
            json!({"routes": [{"network": "0.0.0.0", "gateway": {}, "services": {"dns": vec!["8.8.8.8"; 65]}}]}),
        );
        assert_eq!(many, Err("name servers: 64 are the limit".to_owned()));
        let services = rendered(json!({"services": {"dns": ["8.8.8.8", "fd00::8"], "dnsFromIPPool": "v6"}})).unwrap();
        assert_eq!(services["services"], json!([dns("8.8.8.8"), dns("fd00::8"), dns("fd00::2")]));
    }

    #[test]
    fn what_is_rendered_is_what_config_drives_and_the_ramdisk_read() {
        let data = rendered(json!({
            "links": {
                "ethernets": [{"type": "phy", "id": "eno1", "mtu": 1500, "macAddress": {"fromHostInterface": "eno1"}},
                    {"type": "phy", "id": "eno2", "macAddress": {"fromHostInterface": "eno2"}}],
                "bonds": [{"bondMode": "802.3ad", "id": "bond0", "macAddress": {"fromHostInterface": "eno1"}, "bondLinks": ["eno1", "eno2"]}],
                "vlans": [{"vlanID": 7, "id": "vlan7", "vlanLink": "bond0", "macAddress": {"string": "52:54:00:00:00:07"}}],
            },
            "networks": {
                "ipv4": [{"id": "a", "link": "vlan7", "ipAddressFromIPPool": "v4", "routes": [{"network": "0.0.0.0", "gateway": {"fromIPPool": "v4"}}]}],
                "ipv6": [{"id": "b", "link": "vlan7", "fromPoolRef": {"name": "v6"}}],
                "ipv4DHCP": [{"id": "c", "link": "bond0"}],
            },
            "services": {"dns": ["8.8.8.8"]},
        }))
        .unwrap();
        let text = super::super::secrets::yaml(&data).unwrap();
        let plan = NetworkPlan::parse(text.as_bytes()).unwrap().unwrap();
        let kinds: Vec<&str> = plan
            .links
            .iter()
            .map(|link| match link.kind {
                LinkType::Card(_) => "card",
                LinkType::Bond { .. } => "bond",
                LinkType::Vlan { .. } => "vlan",
            })
            .collect();
        assert_eq!(kinds, ["card", "card", "bond", "vlan"]);
        let addresses: Vec<String> = plan.addresses().map(|address| address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.5/24", "fd00::5/64"]);
        assert_eq!(configdrive::network_data(text.as_bytes()).unwrap(), Some(data));
    }
}

//! Which pools a template takes addresses from. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::machine::{DataMachine, DataRenderError};
use crate::api::infrastructure::data::v1beta2::Metal3DataTemplateSpec;
use crate::api::infrastructure::data::{
    DEFAULT_POOL_GROUP, DEFAULT_POOL_KIND, DataPoolReference, Gateway, NetworkRoute, StaticNetwork,
};

/// Most pools of one template.
const POOLS_MAX: usize = 256;

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

impl Pool {
    fn new(group: Option<&str>, kind: Option<&str>) -> Self {
        let or = |text: Option<&str>, default: &str| text.filter(|text| !text.is_empty()).unwrap_or(default).to_owned();
        Self { group: or(group, DEFAULT_POOL_GROUP), kind: or(kind, DEFAULT_POOL_KIND) }
    }

    /// Whether its claims are those of its own group. All others have Cluster API's.
    pub fn is_metal3(&self) -> bool {
        self.group == DEFAULT_POOL_GROUP && self.kind == DEFAULT_POOL_KIND
    }
}

/// An address of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocated {
    /// The address.
    pub address: IpAddr,
    /// Length of the network's prefix.
    pub prefix: Option<i64>,
    /// Router.
    pub gateway: Option<String>,
    /// Name servers.
    pub dns_servers: Vec<String>,
}

/// Addresses by the names of their pools.
pub(super) type PoolAddresses = BTreeMap<String, Allocated>;

/// The address of a pool.
pub(super) fn of<'a>(addresses: &'a PoolAddresses, pool: &str) -> Result<&'a Allocated, DataRenderError> {
    addresses.get(pool).ok_or_else(|| DataRenderError::NotAllocated(pool.to_owned()))
}

/// The pool of a network: its name, and where it is said what it is.
pub(super) fn of_network(network: &StaticNetwork, machine: &DataMachine) -> Result<(String, Pool), DataRenderError> {
    let name = &network.ip_address_from_ip_pool;
    let named = Some(name).filter(|name| !name.is_empty());
    let found = first(network.from_pool_annotation.as_ref(), network.from_pool_ref.as_ref(), named, machine)?;
    found.ok_or_else(|| DataRenderError::NoPool(network.id.clone()))
}

/// The pool of a router; none when it is not of one.
pub(super) fn of_gateway(gateway: &Gateway, machine: &DataMachine) -> Result<Option<(String, Pool)>, DataRenderError> {
    if gateway.string.as_ref().is_some_and(|text| !text.is_empty()) {
        return Ok(None);
    }
    let named = gateway.from_ip_pool.as_ref().filter(|name| !name.is_empty());
    first(gateway.from_pool_annotation.as_ref(), gateway.from_pool_ref.as_ref(), named, machine)
}

fn first(
    annotation: Option<&crate::api::infrastructure::data::FromAnnotation>,
    reference: Option<&DataPoolReference>,
    name: Option<&String>,
    machine: &DataMachine,
) -> Result<Option<(String, Pool)>, DataRenderError> {
    if let Some(annotation) = annotation {
        return Ok(Some((machine.pool_name(annotation)?, Pool::new(None, None))));
    }
    if let Some(reference) = reference.filter(|reference| !reference.name.is_empty()) {
        let pool = Pool::new(reference.api_group.as_deref(), reference.kind.as_deref());
        return Ok(Some((reference.name.clone(), pool)));
    }
    Ok(name.map(|name| (name.clone(), Pool::new(None, None))))
}

/// Every pool that a template takes an address from, by name. Of one name there is one.
///
/// # Errors
///
/// When two of one name are meant, or an annotation does not say which.
pub(super) fn referenced(
    template: &Metal3DataTemplateSpec,
    machine: &DataMachine,
) -> Result<BTreeMap<String, Pool>, DataRenderError> {
    let mut pools = PoolsByName(BTreeMap::new());
    if let Some(meta) = &template.meta_data {
        let lists = [
            &meta.ip_addresses_from_pool,
            &meta.prefixes_from_pool,
            &meta.gateways_from_pool,
            &meta.dns_servers_from_pool,
        ];
        for entry in lists.into_iter().flatten() {
            pools.add(entry.name.clone(), Pool::new(entry.api_group.as_deref(), entry.kind.as_deref()))?;
        }
    }
    let Some(data) = &template.network_data else { return Ok(pools.0) };
    if let Some(networks) = &data.networks {
        for network in networks.ipv4.iter().chain(&networks.ipv6) {
            let (name, pool) = of_network(network, machine)?;
            pools.add(name, pool)?;
            pools.routes(&network.routes, machine)?;
        }
        for network in networks.ipv4_dhcp.iter().chain(&networks.ipv6_dhcp).chain(&networks.ipv6_slaac) {
            pools.routes(&network.routes, machine)?;
        }
    }
    pools.dns(data.services.as_ref().and_then(|services| services.dns_from_ip_pool.as_ref()))?;
    Ok(pools.0)
}

struct PoolsByName(BTreeMap<String, Pool>);

impl PoolsByName {
    fn add(&mut self, name: String, pool: Pool) -> Result<(), DataRenderError> {
        if self.0.get(&name).is_some_and(|known| *known != pool) {
            return Err(DataRenderError::TwoPools(name));
        }
        self.0.insert(name, pool);
        if self.0.len() > POOLS_MAX { Err(DataRenderError::TooMany("pools", POOLS_MAX)) } else { Ok(()) }
    }

    fn dns(&mut self, pool: Option<&String>) -> Result<(), DataRenderError> {
        match pool.filter(|name| !name.is_empty()) {
            Some(name) => self.add(name.clone(), Pool::new(None, None)),
            None => Ok(()),
        }
    }

    fn routes(&mut self, routes: &[NetworkRoute], machine: &DataMachine) -> Result<(), DataRenderError> {
        for route in routes {
            if let Some((name, pool)) = of_gateway(&route.gateway, machine)? {
                self.add(name, pool)?;
            }
            self.dns(route.services.as_ref().and_then(|services| services.dns_from_ip_pool.as_ref()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine() -> DataMachine {
        let mut machine = DataMachine::default();
        machine.host.annotations.insert("pool".into(), "of-rack".into());
        machine
    }

    fn found(template: Value) -> Result<Vec<String>, String> {
        let template = serde_json::from_value(template).unwrap();
        let pools = referenced(&template, &machine()).map_err(|error| error.to_string())?;
        Ok(pools.iter().map(|(name, pool)| format!("{name} {}/{}", pool.group, pool.kind)).collect())
    }

    #[test]
    fn pools_are_found_wherever_a_template_names_them() {
        let all = json!({
            "metaData": {
                "ipAddressesFromPool": [{"key": "a", "name": "meta-address"}],
                "prefixesFromPool": [{"key": "a", "name": "meta-prefix", "apiGroup": "ipam.metal3.io", "kind": "IPPool"}],
                "gatewaysFromPool": [{"key": "a", "name": "meta-gateway", "apiGroup": "example.org", "kind": "Pool"}],
                "dnsServersFromPool": [{"key": "a", "name": "meta-dns"}],
            },
            "networkData": {
                "networks": {
                    "ipv4": [
                        {"id": "a", "link": "l", "ipAddressFromIPPool": "v4", "routes": [
                            {"network": "0.0.0.0", "gateway": {"fromIPPool": "router"}, "services": {"dnsFromIPPool": "route-dns"}},
                            {"network": "10.0.0.0", "gateway": {"string": "10.0.0.1", "fromIPPool": "unused"}}]},
                        {"id": "b", "link": "l", "ipAddressFromIPPool": "unused", "fromPoolRef": {"name": "unused"},
                            "fromPoolAnnotation": {"object": "baremetalhost", "annotation": "pool"}},
                    ],
                    "ipv6": [{"id": "c", "link": "l", "fromPoolRef": {"apiGroup": "example.org", "kind": "Pool", "name": "v6"}}],
                    "ipv4DHCP": [{"id": "d", "link": "l", "routes": [{"network": "0.0.0.0", "gateway": {"fromPoolRef": {"name": "dhcp"}}}]}],
                    "ipv6DHCP": [{"id": "e", "link": "l", "routes": [{"network": "::", "gateway": {"fromIPPool": "dhcp6"}}]}],
                    "ipv6SLAAC": [{"id": "f", "link": "l", "routes": [{"network": "::", "gateway": {"fromIPPool": "slaac"}}]}],
                },
                "services": {"dnsFromIPPool": "dns"},
            },
        });
        let metal3 = |name: &str| format!("{name} ipam.metal3.io/IPPool");
        let mut wanted: Vec<String> = [
            "meta-address",
            "meta-prefix",
            "meta-dns",
            "v4",
            "router",
            "route-dns",
            "of-rack",
            "dhcp",
            "dhcp6",
            "slaac",
            "dns",
        ]
        .map(metal3)
        .into();
        wanted.extend(["meta-gateway example.org/Pool", "v6 example.org/Pool"].map(String::from));
        wanted.sort();
        assert_eq!(found(all), Ok(wanted));
        assert_eq!(found(json!({})), Ok(vec![]));
    }

    #[test]
    fn what_is_not_clear_is_said() {
        let rows = [
            (json!({"ipv4": [{"id": "a", "link": "l"}]}), "network \"a\" names no pool"),
            (
                json!({"ipv4": [{"id": "a", "link": "l", "fromPoolAnnotation": {"object": "machine", "annotation": "pool"}}]}),
                "annotation pool not found or empty on machine",
            ),
            (
                json!({"ipv4": [{"id": "a", "link": "l", "ipAddressFromIPPool": "p"}],
                    "ipv6": [{"id": "a", "link": "l", "fromPoolRef": {"name": "p", "kind": "Other"}}]}),
                "multiple references with the same name but different resource types: p",
            ),
        ];
        for (networks, wanted) in rows {
            assert_eq!(found(json!({"networkData": {"networks": networks}})), Err(wanted.to_owned()));
        }
    }
}

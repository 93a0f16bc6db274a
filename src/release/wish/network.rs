//! Networks of a cluster's pods and services. Pure.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::api::machine_api::{CidrBlocks, MachineApiClusterNetwork};

/// Bits of an address that an API server gives to services, at most.
const SERVICE_BITS: u8 = 20;

/// Both networks, as one or two with a comma between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// Of pods.
    pub pods: String,
    /// Of services.
    pub services: String,
}

/// The networks of a cluster whose API server is at `host`.
///
/// # Errors
///
/// The field, and what is wrong with it.
pub fn read(network: Option<&MachineApiClusterNetwork>, host: &str) -> Result<Networks, (&'static str, String)> {
    const PODS: &str = "spec.clusterNetwork.pods.cidrBlocks";
    const SERVICES: &str = "spec.clusterNetwork.services.cidrBlocks";
    let pods = blocks(network.and_then(|network| network.pods.as_ref())).map_err(|reason| (PODS, reason))?;
    let services =
        blocks(network.and_then(|network| network.services.as_ref())).map_err(|reason| (SERVICES, reason))?;
    for network in &services {
        let bits = if network.is_ipv4() { 32 } else { 128 };
        if bits - network.prefix() > SERVICE_BITS {
            return Err((
                SERVICES,
                format!("{network} is too large: an API server takes /{} at most", bits - SERVICE_BITS),
            ));
        }
    }
    if let Some((one, other)) = pods
        .iter()
        .flat_map(|pod| services.iter().map(move |service| (pod, service)))
        .find(|(pod, service)| pod.contains(service.network()) || service.contains(pod.network()))
    {
        return Err((SERVICES, format!("{other} overlaps {one}, the pods' network")));
    }
    if let Ok(address) = host.parse::<IpAddr>()
        && let Some(inside) = pods.iter().chain(&services).find(|network| network.contains(address))
    {
        return Err((
            "spec.providerSpec.value.loadBalancerHost",
            format!("{address} is in {inside}, a network of the cluster"),
        ));
    }
    let text = |all: &[IpNetwork]| all.iter().map(IpNetwork::to_string).collect::<Vec<_>>().join(",");
    Ok(Networks { pods: text(&pods), services: text(&services) })
}

/// One network, or one of each IP version.
fn blocks(blocks: Option<&CidrBlocks>) -> Result<Vec<IpNetwork>, String> {
    let texts = blocks.map(|blocks| blocks.cidr_blocks.as_slice()).unwrap_or_default();
    let mut networks = Vec::new();
    for text in texts.iter().take(3) {
        let shown: String = text.chars().take(64).collect();
        let has_length = text.contains('/');
        let network: IpNetwork = text
            .parse()
            .ok()
            .filter(|_| has_length)
            .ok_or_else(|| format!("{shown:?} is no network, as 10.244.0.0/16"))?;
        if network.network() != network.ip() {
            return Err(format!("{shown:?} is an address in {}/{}", network.network(), network.prefix()));
        }
        networks.push(network);
    }
    match networks.as_slice() {
        [] => Err("must name a network".into()),
        [_] => Ok(networks),
        [one, other] if one.is_ipv4() != other.is_ipv4() => Ok(networks),
        _ => Err("must name one network, or one of each IP version".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn networks_are_there_whole_and_apart() {
        let rows: &[(&[&str], &[&str], &str, &str)] = &[
            (&["10.244.0.0/16"], &["10.96.0.0/16"], "192.0.2.5", ""),
            (&["10.244.0.0/16", "fd00:1::/64"], &["10.96.0.0/12", "fd00:2::/112"], "api.test", ""),
            (&[], &["10.96.0.0/16"], "a", "pods.cidrBlocks: must name a network"),
            (&["10.244.0.0/16"], &[], "a", "services.cidrBlocks: must name a network"),
            (&["10.244.0.1/16"], &["10.96.0.0/16"], "a", "is an address in 10.244.0.0/16"),
            (&["10.244.0.0"], &["10.96.0.0/16"], "a", "is no network"),
            (&["pods"], &["10.96.0.0/16"], "a", "is no network"),
            (&["10.96.0.0/20"], &["10.96.0.0/16"], "a", "overlaps"),
            (&["10.0.0.0/8"], &["10.96.0.0/16"], "a", "overlaps"),
            (&["10.244.0.0/16"], &["10.0.0.0/11"], "a", "/12 at most"),
            (&["fd00:1::/64"], &["fd00:2::/64"], "a", "/108 at most"),
            (&["10.244.0.0/16", "10.245.0.0/16"], &["10.96.0.0/16"], "a", "one of each IP version"),
            (&["10.244.0.0/16", "fd00::/64", "fd01::/64"], &["10.96.0.0/16"], "a", "one of each IP version"),
            (&["10.244.0.0/16"], &["10.96.0.0/16"], "10.96.0.7", "a network of the cluster"),
        ];
        for (pods, services, host, wanted) in rows {
            let network = json!({"pods": {"cidrBlocks": pods}, "services": {"cidrBlocks": services}});
            let network: MachineApiClusterNetwork = serde_json::from_value(network).unwrap();
            match read(Some(&network), host) {
                Ok(found) => {
                    assert_eq!(*wanted, "", "{pods:?} {services:?}");
                    assert_eq!(found, Networks { pods: pods.join(","), services: services.join(",") });
                }
                Err((field, reason)) => {
                    let said = format!("{field}: {reason}");
                    assert!(!wanted.is_empty() && said.contains(wanted), "{pods:?} {services:?}: {said}");
                }
            }
        }
        assert!(read(None, "a").is_err());
    }
}

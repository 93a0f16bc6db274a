//! Ranks of addresses: known host or stranger, from leases, hosts and the kernel's neighbour table.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tokio::sync::watch;

use crate::boot::{HostIndex, neighbour};
use crate::config::Config;
use crate::dhcp;
use crate::ration::{Rank, Ranks};

/// A program on the appliance.
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOCAL_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// What is known of an address. On another API server another appliance may give the addresses. Until the hosts are `listed`
/// nobody can be told from a stranger.
pub(super) fn ranks(
    config: &Config,
    site: &dhcp::Site,
    leases: &dhcp::Leases,
    hosts: &HostIndex,
    listed: watch::Receiver<bool>,
) -> Ranks {
    let leases = Some(leases).filter(|_| config.engine.kubeconfig.is_none()).cloned();
    let (networks, hosts) = (site.networks.clone(), hosts.clone());
    let interfaces = dhcp::interfaces().unwrap_or_default();
    let own: HashSet<IpAddr> =
        interfaces.values().flat_map(|interface| &interface.addresses).map(|address| (*address).into()).collect();
    let cards = neighbour::cached(site.checked.clone());
    Arc::new(move |address| {
        if own.contains(&address) || [LOCAL, LOCAL_V6].contains(&address) {
            return Rank::Own;
        }
        if !*listed.borrow() {
            return Rank::Untold;
        }
        dhcp::rank(&networks.get(), leases.as_ref(), &hosts, &*cards, address)
    })
}

#[cfg(test)]
mod tests;

//! Home networks: in which network the machine of a host boots.
//!
//! Behind a relay nobody here sees network cards, so whoever is in any network can ask for an address in the name of any machine,
//! and then for its script. But machines stay where they are: so a host's script goes to the network in which the appliance was
//! shown what its machine is, and to those that have a reservation for it.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, PoisonError, RwLock};

use ipnetwork::Ipv4Network;

use crate::api::MacAddress;

/// A network of the configuration, as far as who is at home there.
#[derive(Clone, Debug)]
pub struct SiteNetwork {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub subnet: Ipv4Network,
    /// Machines that have a reservation there.
    pub reserved: ReservedMachines,
}

/// Machines that have a reservation, as they are now: reservations come and go. Cheap to clone; all clones see the same.
#[derive(Clone, Debug, Default)]
pub struct ReservedMachines(Arc<RwLock<HashSet<MacAddress>>>);

impl ReservedMachines {
    /// Whether this one has.
    pub fn contains(&self, mac: MacAddress) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&mac)
    }

    /// From now on these.
    pub fn set(&self, machines: impl IntoIterator<Item = MacAddress>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = machines.into_iter().collect();
    }
}

impl FromIterator<MacAddress> for ReservedMachines {
    fn from_iter<T: IntoIterator<Item = MacAddress>>(machines: T) -> Self {
        Self(Arc::new(RwLock::new(machines.into_iter().collect())))
    }
}

/// Where the machine of a host is at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// Where it asks from.
    Here,
    /// In this other network.
    Elsewhere(String),
    /// Nobody knows.
    Unknown,
}

/// Where a machine that asks from `peer` is at home; `recorded` is the network that its host's machine was first seen in.
pub fn home(networks: &[SiteNetwork], mac: MacAddress, recorded: &str, peer: Ipv4Addr) -> Home {
    // One that the configuration has under another name by now is none.
    let Some(recorded) = networks.iter().find(|network| network.name == recorded) else { return Home::Unknown };
    let reserved = |network: &&SiteNetwork| network.subnet.contains(peer) && network.reserved.contains(mac);
    if recorded.subnet.contains(peer) || networks.iter().any(|network| reserved(&network)) {
        Home::Here
    } else {
        Home::Elsewhere(recorded.name.clone())
    }
}

/// Name of the network that an address is of; empty for one of none.
pub fn network_of(networks: &[SiteNetwork], address: IpAddr) -> &str {
    let IpAddr::V4(address) = address.to_canonical() else { return "" };
    networks.iter().find(|network| network.subnet.contains(address)).map_or("", |network| &network.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_machine_is_at_home_where_it_was_first_seen_and_where_it_has_a_reservation() {
        let network = |name: &str, third: u8, reserved: &[MacAddress]| SiteNetwork {
            name: name.into(),
            subnet: Ipv4Network::new([10, 0, third, 0].into(), 24).unwrap(),
            reserved: reserved.iter().copied().collect(),
        };
        let networks = [network("a", 1, &[]), network("b", 2, &[]), network("c", 3, &[MAC])];
        for (recorded, third, wanted) in [
            ("a", 1, Home::Here),
            ("a", 2, Home::Elsewhere("a".into())),
            ("b", 1, Home::Elsewhere("b".into())),
            ("a", 3, Home::Here),
            ("", 1, Home::Unknown),
            // A reservation alone may be for the installed system.
            ("", 2, Home::Unknown),
            ("renamed", 2, Home::Unknown),
        ] {
            assert_eq!(home(&networks, MAC, recorded, [10, 0, third, 9].into()), wanted, "{recorded} {third}");
        }
        assert_eq!(network_of(&networks, "::ffff:10.0.2.7".parse().unwrap()), "b");
        assert_eq!(network_of(&networks, [10, 0, 9, 1].into()), "");
    }
}

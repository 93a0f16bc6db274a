//! What other rooms go by of the networks that are in force.

use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::Ipv4Network;

use crate::boot::home::SiteNetwork;
use crate::boot::neighbour::CheckedNetworks;
use crate::config::{NetworkConfig, NetworkMode};
use crate::dhcp::interface::interface_address;
use crate::dhcp::reserved::Reserved;
use crate::live::Live;

/// The networks that are in force, each time as they are now. Cheap to clone; all clones see the same.
#[derive(Clone)]
pub struct Site {
    /// All of them, those of the configuration first.
    pub networks: Live<Vec<NetworkConfig>>,
    /// Where machines are at home.
    pub homes: Live<Vec<SiteNetwork>>,
    /// Where unknown machines report themselves.
    pub discovery: Live<Vec<Ipv4Network>>,
    /// Where the card that answers must be the machine's, with the interface.
    pub checked: CheckedNetworks,
}

impl Site {
    /// These networks, as long as no others are in force.
    pub fn of(networks: &[NetworkConfig]) -> Self {
        let site = Self {
            networks: Live::default(),
            homes: Live::default(),
            discovery: Live::default(),
            checked: Live::default(),
        };
        let with = |config: &NetworkConfig| (config.clone(), Reserved::of(config));
        site.set(&networks.iter().map(with).collect::<Vec<_>>());
        site
    }

    /// From now on these, with who has a reservation there.
    pub(in crate::dhcp) fn set(&self, networks: &[(NetworkConfig, Reserved)]) {
        let homes = networks.iter().map(|(config, reserved)| SiteNetwork {
            name: config.name.clone(),
            subnet: config.subnet,
            reserved: reserved.machines().collect(),
        });
        self.homes.set(homes.collect::<Vec<_>>());
        let configs = || networks.iter().map(|(config, _)| config);
        let discovery = configs().filter(|config| config.discovery).map(|config| config.subnet);
        self.discovery.set(discovery.collect::<Vec<_>>());
        let checked = configs().filter(|config| config.check_cards);
        self.checked.set(checked.map(|config| (config.subnet, config.interface.clone())).collect::<Vec<_>>());
        self.networks.set(configs().cloned().collect::<Vec<_>>());
    }

    /// How many addresses all of them have.
    pub(in crate::dhcp) fn addresses(&self) -> u64 {
        self.networks.get().iter().map(|network| u64::from(network.subnet.size())).sum()
    }

    /// This appliance's addresses on the networks that it serves, in their order.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let networks = self.networks.get();
        let served = networks.iter().filter(|network| network.mode != NetworkMode::Off);
        served.filter_map(own_address).map(IpAddr::V4).collect()
    }
}

/// This appliance's address on a network.
fn own_address(network: &NetworkConfig) -> Option<Ipv4Addr> {
    network.server.or_else(|| interface_address(&network.interface, network.subnet))
}

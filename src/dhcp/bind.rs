//! From which address of which interface a network is served, and why not.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

use crate::config::{NetworkConfig, NetworkMode};

use super::interface::ServedInterface;
use super::network_leases::ServingFault;
use super::socket::BoundSockets;

/// DHCP cannot serve a network.
#[derive(Debug, thiserror::Error)]
pub enum DhcpBindError {
    /// The kernel does not tell its interfaces.
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(#[source] io::Error),
    /// There is no such interface.
    #[error("network {network:?}: there is no interface {interface:?}; there are {}", .present.join(", "))]
    NoInterface {
        /// The network.
        network: String,
        /// Its interface.
        interface: String,
        /// Interfaces that exist.
        present: Vec<String>,
    },
    /// The interface has no address in the subnet.
    #[error(
        "network {network:?}: interface {interface:?} has no address in {subnet} (it has {}): give it one, or set \
         `server`", list(.present)
    )]
    NoAddress {
        /// The network.
        network: String,
        /// Its interface.
        interface: String,
        /// Its subnet.
        subnet: ipnetwork::Ipv4Network,
        /// Addresses that the interface has.
        present: Vec<Ipv4Addr>,
    },
    /// The port cannot be had.
    #[error("cannot serve DHCP on {interface:?}, UDP port {port}: {source}{}", hint(.source))]
    Socket {
        /// The interface.
        interface: String,
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
}

fn list(addresses: &[Ipv4Addr]) -> String {
    if addresses.is_empty() {
        return "none".into();
    }
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another DHCP server runs on this machine: `ss -ulpn` shows which)",
        io::ErrorKind::PermissionDenied => " (it takes the capabilities CAP_NET_BIND_SERVICE and CAP_NET_RAW, or root)",
        _ => "",
    }
}

impl DhcpBindError {
    /// As a condition has it.
    pub(super) fn fault(&self) -> ServingFault {
        let reason = match self {
            Self::Interfaces(_) => "NoInterfaces",
            Self::NoInterface { .. } => "NoInterface",
            Self::NoAddress { .. } => "NoAddress",
            Self::Socket { .. } => "NotListening",
        };
        ServingFault { reason, message: self.to_string() }
    }
}

/// For each of these networks of which mode whatsoever, this machine's address there. A network behind a relay has no address here:
/// there this machine goes by the one that the relay reaches, that of the first network of the same interface.
pub(super) fn servers(
    networks: &[&NetworkConfig],
    present: &BTreeMap<String, ServedInterface>,
) -> Vec<Result<Ipv4Addr, DhcpBindError>> {
    let own = |config: &NetworkConfig| {
        let interface = present.get(&config.interface)?;
        config.server.or_else(|| interface.address_in(config.subnet))
    };
    let server = |config: &&NetworkConfig| {
        let Some(interface) = present.get(&config.interface) else {
            return Err(DhcpBindError::NoInterface {
                network: config.name.clone(),
                interface: config.interface.clone(),
                present: present.keys().cloned().collect(),
            });
        };
        let on_it = || networks.iter().filter(|other| other.interface == config.interface);
        own(config).or_else(|| on_it().find_map(|other| own(other))).ok_or_else(|| DhcpBindError::NoAddress {
            network: config.name.clone(),
            interface: config.interface.clone(),
            subnet: config.subnet,
            present: interface.addresses.clone(),
        })
    };
    networks.iter().map(server).collect()
}

/// What of these networks DHCP cannot serve with these interfaces.
pub fn unserved(networks: &[NetworkConfig], present: &BTreeMap<String, ServedInterface>) -> Vec<DhcpBindError> {
    let networks: Vec<_> = networks.iter().filter(|config| config.mode != NetworkMode::Off).collect();
    servers(&networks, present).into_iter().filter_map(Result::err).collect()
}

/// Opens the sockets of an interface.
pub(super) fn open(name: &str, interface: &ServedInterface, port: u16) -> Result<BoundSockets, DhcpBindError> {
    BoundSockets::open(name, interface, port).map_err(|source| DhcpBindError::Socket {
        interface: name.to_owned(),
        port,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_served_from_its_address_and_a_routed_one_from_that_of_its_interface() {
        let interface = |addresses: &[[u8; 4]]| ServedInterface {
            addresses: addresses.iter().copied().map(Ipv4Addr::from).collect(),
            ..ServedInterface::default()
        };
        let present: BTreeMap<String, ServedInterface> = [
            ("e0".to_owned(), interface(&[[10, 0, 0, 1], [10, 0, 1, 1], [10, 0, 1, 2]])),
            ("e1".to_owned(), interface(&[])),
        ]
        .into();
        let config = |interface: &str, subnet: &str, more: &str| -> NetworkConfig {
            toml::from_str(&format!("name = 'n'\ninterface = '{interface}'\nsubnet = '{subnet}'\n{more}")).unwrap()
        };
        let rows = [
            (config("e0", "10.9.0.0/24", ""), "10.0.1.1"),
            (config("e0", "10.0.1.0/24", ""), "10.0.1.1"),
            (config("e0", "10.0.0.0/24", "server = '10.0.0.77'"), "10.0.0.77"),
            (config("e1", "10.0.2.0/24", ""), "NoAddress"),
            (config("e2", "10.0.3.0/24", ""), "NoInterface"),
        ];
        let networks: Vec<_> = rows.iter().map(|(config, _)| config).collect();
        let found = servers(&networks, &present);
        for ((config, wanted), found) in rows.iter().zip(found) {
            let found = found.map_or_else(|error| error.fault().reason.to_owned(), |server| server.to_string());
            assert_eq!(found, *wanted, "{}", config.subnet);
        }
        // Alone it has no neighbour.
        assert_eq!(unserved(&[rows[0].0.clone(), rows[3].0.clone()], &present).len(), 2);
    }
}

//! The server: a worker for each interface and port that the networks name, and the views of what they lease.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::boot::HostIndex;
use crate::boot::neighbour::Cards;
use crate::config::{NetworkConfig, NetworkMode};

use super::ServicePorts;
use super::interface::{Interface, interfaces};
use super::leases::Leases;
use super::network::Network;
use super::packet::SERVER_PORT;
use super::publish::{self, LeaseViews};
use super::respond::Port;
use super::socket::BoundSockets;
use super::worker::{InterfaceWorker, ListenAddress};

/// UDP port of proxyDHCP.
const PROXY_PORT: u16 = 4011;

/// DHCP cannot serve a network.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
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

/// The server ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the DHCP server ended: {0}")]
pub struct ServeError(String);

/// A DHCP server with its sockets open.
pub struct Server {
    workers: Vec<InterfaceWorker>,
    leases: Leases,
    hosts: HostIndex,
    views: LeaseViews,
}

impl Server {
    /// Opens the sockets for every network that the leases were loaded for; `views` is where leases are shown.
    ///
    /// # Errors
    ///
    /// The first network that cannot be served, and why.
    pub fn bind(
        service_ports: ServicePorts,
        leases: Leases,
        hosts: HostIndex,
        views: LeaseViews,
    ) -> Result<Self, BindError> {
        let present = interfaces().map_err(BindError::Interfaces)?;
        let mut workers: Vec<InterfaceWorker> = Vec::new();
        for (index, served) in leases.networks().iter().enumerate() {
            let config = &served.config;
            let neighbour = workers.iter().find_map(|worker| worker.server_at(&config.interface));
            let (interface, server) = server_of(config, &present, neighbour)?;
            served.serve_from(server);
            let ports: &[Port] = match config.mode {
                NetworkMode::Proxy => &[Port::Server, Port::Proxy],
                _ => &[Port::Server],
            };
            tracing::info!(
                network = %config.name, interface = %config.interface, subnet = %config.subnet, %server,
                mode = ?config.mode, "DHCP serves the network"
            );
            for port in ports {
                let network = Network::new(config, server, service_ports);
                if let Some(worker) = workers.iter_mut().find(|worker| worker.is_at(&config.interface, *port)) {
                    worker.add(index, network);
                    continue;
                }
                let number = service_ports.number(*port);
                let sockets = open(&config.interface, interface, number)?;
                let listen = ListenAddress { interface: config.interface.clone(), port: *port, number };
                let mut worker = InterfaceWorker::new(listen, sockets, leases.clone(), hosts.clone());
                worker.add(index, network);
                workers.push(worker);
            }
        }
        if service_ports.dhcp_port != SERVER_PORT && !workers.is_empty() {
            tracing::warn!(
                port = service_ports.dhcp_port,
                "DHCP does not listen on port 67, the only one that clients ask: only relays reach it"
            );
        }
        if service_ports.tftp_port != 69 && !workers.is_empty() {
            tracing::warn!(
                port = service_ports.tftp_port,
                "TFTP does not listen on port 69, the only one that PXE firmware asks: it finds no boot program"
            );
        }
        Ok(Self { workers, leases, hosts, views })
    }

    /// Looks up with these which machine answers at an address that a known machine declines. Without, nobody is seen there.
    #[must_use]
    pub fn with_cards(mut self, cards: Cards) -> Self {
        for worker in &mut self.workers {
            worker.set_cards(cards.clone());
        }
        self
    }

    /// Serves until told to stop; then finishes the writes under way.
    ///
    /// # Errors
    ///
    /// When a part of it ends before that. The process should end, too.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let mut tasks = JoinSet::new();
        let views = publish::run(self.leases, self.hosts, self.views, shutdown.clone());
        tasks.spawn(async {
            views.await;
            Ok(())
        });
        for worker in self.workers {
            tasks.spawn(worker.run(shutdown.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Err(error) => return Err(ServeError(error.to_string())),
                Ok(Err(error)) => return Err(ServeError(error.to_string())),
                Ok(Ok(())) if !shutdown.is_cancelled() => return Err(ServeError("a part of it stopped".into())),
                Ok(Ok(())) => {}
            }
        }
        Ok(())
    }
}

/// The interface of a network, and this machine's address there. A network behind a relay has no address here: there this
/// machine goes by the one that the relay reaches, its `neighbour` of the same interface.
fn server_of<'i>(
    config: &NetworkConfig,
    present: &'i BTreeMap<String, Interface>,
    neighbour: Option<Ipv4Addr>,
) -> Result<(&'i Interface, Ipv4Addr), BindError> {
    let Some(interface) = present.get(&config.interface) else {
        return Err(BindError::NoInterface {
            network: config.name.clone(),
            interface: config.interface.clone(),
            present: present.keys().cloned().collect(),
        });
    };
    let found = config.server.or_else(|| interface.address_in(config.subnet)).or(neighbour);
    found.map(|server| (interface, server)).ok_or_else(|| BindError::NoAddress {
        network: config.name.clone(),
        interface: config.interface.clone(),
        subnet: config.subnet,
        present: interface.addresses.clone(),
    })
}

/// What of these networks DHCP cannot serve with these interfaces.
pub fn unserved(networks: &[NetworkConfig], present: &BTreeMap<String, Interface>) -> Vec<BindError> {
    let mut first: BTreeMap<&str, Ipv4Addr> = BTreeMap::new();
    let mut faults = Vec::new();
    for config in networks.iter().filter(|config| config.mode != NetworkMode::Off) {
        match server_of(config, present, first.get(config.interface.as_str()).copied()) {
            Ok((_, server)) => {
                first.entry(&config.interface).or_insert(server);
            }
            Err(error) => faults.push(error),
        }
    }
    faults
}

/// Opens the sockets of an interface.
pub(super) fn open(name: &str, interface: &Interface, port: u16) -> Result<BoundSockets, BindError> {
    BoundSockets::open(name, interface, port).map_err(|source| BindError::Socket {
        interface: name.to_owned(),
        port,
        source,
    })
}

impl ServicePorts {
    fn number(self, port: Port) -> u16 {
        match port {
            Port::Server => self.dhcp_port,
            Port::Proxy => PROXY_PORT,
        }
    }
}

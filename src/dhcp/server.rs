//! The server: a line for each interface and port that the networks name, and the views of what they lease.

use std::io;
use std::net::Ipv4Addr;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::boot::HostIndex;
use crate::boot::neighbour::Cards;
use crate::config::NetworkMode;

use super::BootSite;
use super::interface::{Interface, interfaces};
use super::leases::Leases;
use super::line::{Line, Place};
use super::network::Network;
use super::packet::SERVER_PORT;
use super::publish::{self, Views};
use super::respond::Port;
use super::socket::Opened;

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
    lines: Vec<Line>,
    leases: Leases,
    hosts: HostIndex,
    views: Views,
}

impl Server {
    /// Opens the sockets for every network that the leases were loaded for; `views` is where leases are shown.
    ///
    /// # Errors
    ///
    /// The first network that cannot be served, and why.
    pub fn bind(site: BootSite, leases: Leases, hosts: HostIndex, views: Views) -> Result<Self, BindError> {
        let present = interfaces().map_err(BindError::Interfaces)?;
        let mut lines: Vec<Line> = Vec::new();
        for (index, served) in leases.networks().iter().enumerate() {
            let config = &served.config;
            let Some(interface) = present.get(&config.interface) else {
                return Err(BindError::NoInterface {
                    network: config.name.clone(),
                    interface: config.interface.clone(),
                    present: present.keys().cloned().collect(),
                });
            };
            // A network behind a relay has no address here: there this machine goes by the one that the relay reaches.
            let neighbour = || lines.iter().find_map(|line| line.server_at(&config.interface));
            let found = config.server.or_else(|| interface.address_in(config.subnet)).or_else(neighbour);
            let Some(server) = found else {
                return Err(BindError::NoAddress {
                    network: config.name.clone(),
                    interface: config.interface.clone(),
                    subnet: config.subnet,
                    present: interface.addresses.clone(),
                });
            };
            served.table().exclude(server);
            let ports: &[Port] = match config.mode {
                NetworkMode::Proxy => &[Port::Server, Port::Proxy],
                _ => &[Port::Server],
            };
            tracing::info!(
                network = %config.name, interface = %config.interface, subnet = %config.subnet, %server,
                mode = ?config.mode, "DHCP serves the network"
            );
            for port in ports {
                let network = Network::new(config, server, site);
                if let Some(line) = lines.iter_mut().find(|line| line.is_at(&config.interface, *port)) {
                    line.add(index, network);
                    continue;
                }
                let number = site.number(*port);
                let sockets = open(&config.interface, interface, number)?;
                let place = Place { interface: config.interface.clone(), port: *port, number };
                let mut line = Line::new(place, sockets, leases.clone(), hosts.clone());
                line.add(index, network);
                lines.push(line);
            }
        }
        if site.dhcp_port != SERVER_PORT && !lines.is_empty() {
            tracing::warn!(
                port = site.dhcp_port,
                "DHCP does not listen on port 67, the only one that clients ask: only relays reach it"
            );
        }
        if site.tftp_port != 69 && !lines.is_empty() {
            tracing::warn!(
                port = site.tftp_port,
                "TFTP does not listen on port 69, the only one that PXE firmware asks: it finds no boot program"
            );
        }
        Ok(Self { lines, leases, hosts, views })
    }

    /// Looks with these which machine answers at an address that a known machine declines. Without, nobody is seen there.
    #[must_use]
    pub fn with_cards(mut self, cards: Cards) -> Self {
        for line in &mut self.lines {
            line.look_with(cards.clone());
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
        for line in self.lines {
            tasks.spawn(line.run(shutdown.clone()));
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

/// Opens the sockets of an interface.
pub(super) fn open(name: &str, interface: &Interface, port: u16) -> Result<Opened, BindError> {
    Opened::open(name, interface, port).map_err(|source| BindError::Socket { interface: name.to_owned(), port, source })
}

impl BootSite {
    fn number(self, port: Port) -> u16 {
        match port {
            Port::Server => self.dhcp_port,
            Port::Proxy => PROXY_PORT,
        }
    }
}

//! The server: a worker for each interface and port that the networks name, while these come, change and go; and the views of what
//! they lease.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::boot::HostIndex;
use crate::boot::neighbour::Cards;
use crate::config::NetworkMode;
use crate::runtime::Tasks;

use super::ServicePorts;
use super::assigned::{Assigned, AssignedNetwork};
use super::bind::{DhcpBindError, open, servers};
use super::interface::{LOOK, interfaces};
use super::leases::{Leases, unix_now};
use super::network_leases::NetworkLeases;
use super::packet::SERVER_PORT;
use super::publish::{self, LeaseViews};
use super::respond::Port;
use super::worker::{InterfaceWorker, ListenAddress};

/// UDP port of proxyDHCP.
const PROXY_PORT: u16 = 4011;

/// The server ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the DHCP server ended: {0}")]
pub struct DhcpServeError(String);

/// A DHCP server with its sockets open.
pub struct DhcpServer {
    listeners: Listeners,
    views: LeaseViews,
    /// Those that do not run yet.
    workers: Vec<(InterfaceWorker, CancellationToken)>,
    tasks: Tasks,
}

/// Who listens where, and for which networks.
struct Listeners {
    service_ports: ServicePorts,
    leases: Leases,
    hosts: HostIndex,
    cards: Option<Cards>,
    all: Vec<Listener>,
}

/// One interface and port.
struct Listener {
    interface: String,
    port: Port,
    assigned: Arc<Assigned>,
    /// Whether it had a network.
    served: bool,
    stop: CancellationToken,
}

impl DhcpServer {
    /// Opens the sockets for every network that the leases were loaded for; `views` is where leases are shown.
    ///
    /// # Errors
    ///
    /// The first network of the configuration that cannot be served, and why.
    pub fn bind(
        service_ports: ServicePorts,
        leases: Leases,
        hosts: HostIndex,
        views: LeaseViews,
    ) -> Result<Self, DhcpBindError> {
        let mut listeners = Listeners { service_ports, leases, hosts, cards: None, all: Vec::new() };
        let workers = listeners.follow(true)?;
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
        Ok(Self { listeners, views, workers, tasks: Tasks::default() })
    }

    /// Looks up with these which machine answers at an address that a known machine declines. Without, nobody is seen there.
    #[must_use]
    pub fn with_cards(mut self, cards: Cards) -> Self {
        for (worker, _) in &mut self.workers {
            worker.set_cards(cards.clone());
        }
        self.listeners.cards = Some(cards);
        self
    }

    /// What it does beside its answers are tasks of these.
    #[must_use]
    pub fn with_tasks(self, tasks: &Tasks) -> Self {
        Self { tasks: tasks.clone(), ..self }
    }

    /// Serves until told to stop; then finishes the writes under way. Networks that come are served, those that go no longer.
    ///
    /// # Errors
    ///
    /// When a part of it ends before that. The process should end, too.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), DhcpServeError> {
        let Self { mut listeners, views, workers, tasks } = self;
        let leases = listeners.leases.clone();
        let mut parts = JoinSet::new();
        let publishing = tasks.task("dhcp-leases");
        let views = publish::run(leases.clone(), listeners.hosts.clone(), views, publishing, shutdown.clone());
        let stop = shutdown.clone();
        parts.spawn(async move {
            views.await;
            Ok(stop.is_cancelled())
        });
        let start = |parts: &mut JoinSet<std::io::Result<bool>>,
                     (worker, stop): (InterfaceWorker, CancellationToken)| {
            let (end, shutdown) = (stop.clone(), shutdown.clone());
            parts.spawn(async move {
                // One ends with the server, or with the networks that it is for.
                let forward = async {
                    tokio::select! {
                        () = shutdown.cancelled() => end.cancel(),
                        () = end.cancelled() => {}
                    }
                };
                let (ended, ()) = tokio::join!(
                    async {
                        let ended = worker.run(stop.clone()).await;
                        let told = stop.is_cancelled();
                        stop.cancel();
                        ended.map(|()| told)
                    },
                    forward
                );
                ended
            });
        };
        workers.into_iter().for_each(|worker| start(&mut parts, worker));
        let (mut changes, upkeep) = (leases.set().changes(), tasks.task("dhcp-upkeep"));
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !shutdown.is_cancelled() {
            let mut new = Vec::new();
            let kept = upkeep.run(async {
                // Those of the configuration are served already, and then only say what is wrong.
                new = listeners.follow(false).unwrap_or_default();
                let gone = leases.set().advance(unix_now());
                if gone.is_empty() { Ok(()) } else { leases.commit(gone).await }
            });
            if let Err(error) = kept.await {
                tracing::error!(%error, "the records of DHCP leases that are over could not be removed");
            }
            upkeep.next_in(LOOK);
            new.into_iter().for_each(|worker| start(&mut parts, worker));
            tokio::select! {
                () = shutdown.cancelled() => {}
                _ = changes.changed() => {}
                _ = look.tick() => {}
                Some(ended) = parts.join_next() => judge(ended)?,
            }
        }
        while let Some(ended) = parts.join_next().await {
            judge(ended)?;
        }
        Ok(())
    }
}

/// Whether a part ended because it was told to.
fn judge(ended: Result<std::io::Result<bool>, tokio::task::JoinError>) -> Result<(), DhcpServeError> {
    match ended {
        Err(error) => Err(DhcpServeError(error.to_string())),
        Ok(Err(error)) => Err(DhcpServeError(error.to_string())),
        Ok(Ok(false)) => Err(DhcpServeError("a part of it stopped".into())),
        Ok(Ok(true)) => Ok(()),
    }
}

impl Listeners {
    /// Goes by the networks as they are now. Returns the workers that are to be run. `strict`: a network of the configuration that cannot be served is an error.
    fn follow(&mut self, strict: bool) -> Result<Vec<(InterfaceWorker, CancellationToken)>, DhcpBindError> {
        let present = match interfaces() {
            Ok(present) => present,
            Err(error) if strict => return Err(DhcpBindError::Interfaces(error)),
            Err(error) => {
                tracing::debug!(%error, "cannot list the network interfaces");
                return Ok(Vec::new());
            }
        };
        let networks = self.leases.networks();
        let configs: Vec<_> = networks.iter().map(|network| network.config()).collect();
        let found = servers(&configs.iter().map(AsRef::as_ref).collect::<Vec<_>>(), &present);
        let mut workers = Vec::new();
        let mut places: Vec<(String, Port, AssignedNetwork)> = Vec::new();
        for ((network, config), found) in networks.iter().zip(&configs).zip(found) {
            let opened = found.and_then(|server| {
                for port in ports(config.mode) {
                    if !self.listens(&config.interface, *port) {
                        let number = self.service_ports.number(*port);
                        let interface = present.get(&config.interface).cloned().unwrap_or_default();
                        let sockets = open(&config.interface, &interface, number)?;
                        let listen = ListenAddress { interface: config.interface.clone(), port: *port, number };
                        let (assigned, stop) = (Arc::<Assigned>::default(), CancellationToken::new());
                        let (leases, hosts) = (self.leases.clone(), self.hosts.clone());
                        let mut worker = InterfaceWorker::new(listen, sockets, assigned.clone(), leases, hosts);
                        if let Some(cards) = &self.cards {
                            worker.set_cards(cards.clone());
                        }
                        workers.push((worker, stop.clone()));
                        self.all.push(Listener {
                            interface: config.interface.clone(),
                            port: *port,
                            assigned,
                            served: false,
                            stop,
                        });
                    }
                }
                Ok(server)
            });
            let before = network.server();
            let server = match opened {
                // The one of the first time stays as long as it is there.
                Ok(server) => {
                    let there = |address: &Ipv4Addr| {
                        let addresses = present.get(&config.interface).map(|interface| &interface.addresses);
                        addresses.is_some_and(|addresses| addresses.contains(address)) && config.server.is_none()
                    };
                    let server = before.filter(there).unwrap_or(server);
                    if before != Some(server) || network.fault().is_some() {
                        serves(network, config.mode, server);
                        self.leases.set().tell_served();
                    }
                    server
                }
                Err(error) if strict && network.of_file => return Err(error),
                Err(error) => {
                    if network.not_served(error.fault()) {
                        tracing::warn!(network = %network.name, %error, "DHCP cannot serve the network");
                        self.leases.set().tell_served();
                    }
                    // Its interface may come back: whoever listens there waits for it.
                    let Some(before) = before else { continue };
                    before
                }
            };
            for port in ports(config.mode) {
                let assigned = AssignedNetwork::new(network, server, self.service_ports);
                places.push((config.interface.clone(), *port, assigned));
            }
        }
        for network in self.leases.ending() {
            if let Some(server) = network.server() {
                let assigned = AssignedNetwork::new(&network, server, self.service_ports);
                places.push((network.config().interface.clone(), Port::Server, assigned));
            }
        }
        self.all.retain_mut(|listener| {
            let is_here =
                |(interface, port, _): &&(String, Port, _)| *interface == listener.interface && *port == listener.port;
            let assigned: Vec<_> = places.iter().filter(is_here).map(|(.., network)| network.clone()).collect();
            let stays = !assigned.is_empty();
            listener.assigned.set(assigned);
            if !stays {
                if listener.served {
                    tracing::info!(interface = %listener.interface, "DHCP listens no longer: the interface has no network");
                }
                listener.stop.cancel();
            }
            listener.served |= stays;
            stays
        });
        Ok(workers)
    }

    fn listens(&self, interface: &str, port: Port) -> bool {
        self.all.iter().any(|one| one.interface == interface && one.port == port && !one.stop.is_cancelled())
    }
}

fn serves(network: &NetworkLeases, mode: NetworkMode, server: Ipv4Addr) {
    network.serve_from(server);
    let config = network.config();
    tracing::info!(
        network = %network.name, interface = %config.interface, subnet = %network.subnet, %server, ?mode,
        "DHCP serves the network"
    );
}

/// Where a network is asked.
fn ports(mode: NetworkMode) -> &'static [Port] {
    match mode {
        NetworkMode::Proxy => &[Port::Server, Port::Proxy],
        _ => &[Port::Server],
    }
}

impl ServicePorts {
    fn number(self, port: Port) -> u16 {
        match port {
            Port::Server => self.dhcp_port,
            Port::Proxy => PROXY_PORT,
        }
    }
}

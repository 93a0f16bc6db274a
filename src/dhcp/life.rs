//! The DHCP module: its kinds DHCPLease, Network and Reservation, its metrics, and the server.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use prometheus_client::registry::Registry;

use super::publish::MANAGER;
use super::{DhcpServer, LeaseViews, Leases, Reservations, ServicePorts, metrics, reservations, server_probe};
use crate::api::slipway::{DHCPLease, Network, Reservation};
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::boot::HostIndex;
use crate::boot::neighbour::Cards;
use crate::module::{Acting, KEEPS, Life, Module, Right, RunningLife, Service, service};

/// What is kept of a Reservation beside its object, in bytes, roughly: a copy, what came of it, and its places in maps.
const RESERVATION_MEMORY: usize = 2 << 10;

/// What is kept of a Network beside its object, in bytes, roughly: copies, what came of it, and an empty table of leases.
const NETWORK_MEMORY: usize = 16 << 10;

/// DHCPLease, Network and Reservation.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<DHCPLease>(StoragePolicy::View),
            Declared::one::<Network>(StoragePolicy::Administrative).costing(NETWORK_MEMORY),
            Declared::one::<Reservation>(StoragePolicy::Administrative).costing(RESERVATION_MEMORY),
        ],
        rights: &[
            Right { group: "slipway.dev", resources: &["dhcpleases"], verbs: KEEPS, reason: "" },
            Right {
                group: "slipway.dev",
                resources: &["networks", "networks/status", "reservations", "reservations/status"],
                verbs: KEEPS,
                reason: "Networks and reservations of slipway.toml are shown beside those of the API.",
            },
        ],
    }
}

/// Gives addresses on the networks.
pub struct DhcpService {
    /// Those that are given.
    pub leases: Leases,
    /// Whose an address always is.
    pub reservations: Reservations,
    /// Where boot files are.
    pub service_ports: ServicePorts,
    /// Time between two searches for other DHCP servers; `None`: never.
    pub server_probe: Option<Duration>,
    /// Whose machines are known.
    pub hosts: HostIndex,
    /// Which network card answers at an address.
    pub cards: Arc<dyn Fn() -> Cards + Send + Sync>,
}

impl Life for DhcpService {
    fn register(&self, registry: &mut Registry) {
        metrics::register(&self.leases, registry);
    }

    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        vec![
            ("slipway.dev/reservations", Arc::new(reservations::admit)),
            ("slipway.dev/networks", self.reservations.networks().admission()),
        ]
    }

    fn run(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        let task = running.tasks.task("networks-in-force");
        Ok(vec![service("networks in force", self.reservations.clone().run(task, running.stop.clone()))])
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (client, tasks, stop) = (&acting.client, &acting.tasks, &acting.stop);
        let task = tasks.task("dhcp-reservations");
        let keep = self.reservations.clone().keep(client.clone(), task, stop.clone());
        let (judged, task) = (self.reservations.judged(), tasks.task("dhcp-networks"));
        let networks = self.reservations.networks().clone().keep(judged, client.clone(), task, stop.clone());
        let views = LeaseViews::new(acting.store.as_ref(), &acting.client, MANAGER);
        let server = DhcpServer::bind(self.service_ports, self.leases.clone(), self.hosts.clone(), views)?;
        let server = server.with_cards((self.cards)()).with_tasks(tasks);
        let (reservations, stop) = (self.reservations.clone(), stop.clone());
        let run = async move {
            // Nobody is answered before it is known what is whose, and which networks there are.
            reservations.ready(&stop).await;
            server.run(stop).await
        };
        let dhcp: Service = ("DHCP", run.map(|ended| ended.map_err(Into::into)).boxed());
        let mut services = vec![service("reservations", keep), service("networks", networks), dhcp];
        if let Some(pause) = self.server_probe {
            let task = acting.tasks.task("dhcp-server-probe");
            let probe = server_probe::run(self.leases.clone(), pause, task, acting.stop.clone());
            services.push(service("search for DHCP servers", probe));
        }
        Ok(services)
    }
}

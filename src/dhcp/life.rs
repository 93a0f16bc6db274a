//! The DHCP module: its kinds DHCPLease, Network and Reservation, its metrics, and the server.

use std::sync::Arc;

use futures::FutureExt;
use prometheus_client::registry::Registry;

use super::publish::MANAGER;
use super::{LeaseViews, Leases, Reservations, Server, ServicePorts, metrics, networks, reservations};
use crate::api::slipway::{DHCPLease, Network, Reservation};
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::Admission;
use crate::boot::HostIndex;
use crate::boot::neighbour::Cards;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};
use crate::runtime::Views;

/// What is kept of a Reservation beside its object, in bytes, roughly: a copy, what came of it, and its places in maps.
const RESERVATION_MEMORY: usize = 2 << 10;

/// DHCPLease, Network and Reservation.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<DHCPLease>(StoragePolicy::View),
            Declared::one::<Network>(StoragePolicy::View),
            Declared::one::<Reservation>(StoragePolicy::Administrative).costing(RESERVATION_MEMORY),
        ],
        rights: &[
            Right {
                group: "slipway.dev",
                resources: &["dhcpleases", "networks", "networks/status"],
                verbs: KEEPS,
                why: "",
            },
            Right {
                group: "slipway.dev",
                resources: &["reservations", "reservations/status"],
                verbs: KEEPS,
                why: "Reservations of slipway.toml are shown beside those of the API.",
            },
        ],
    }
}

/// Gives addresses on the networks of the configuration.
pub struct DhcpService {
    /// Those that are given; `None` when no network is configured.
    pub leases: Option<Leases>,
    /// Whose an address always is.
    pub reservations: Reservations,
    /// Where boot files are.
    pub service_ports: ServicePorts,
    /// Whose machines are known.
    pub hosts: HostIndex,
    /// Which network card answers at an address.
    pub cards: Arc<dyn Fn() -> Cards + Send + Sync>,
}

impl Life for DhcpService {
    fn register(&self, registry: &mut Registry) {
        if let Some(leases) = &self.leases {
            metrics::register(leases, registry);
        }
    }

    fn admission(&self) -> Vec<(&'static str, Admission)> {
        vec![("slipway.dev/reservations", Arc::new(reservations::admit))]
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let keep = self.reservations.clone().keep(acting.client.clone(), acting.stop.clone());
        let mut services = vec![service("reservations", keep)];
        if let Some(leases) = &self.leases {
            let networks = Views::<Network>::new(acting.store.as_ref(), &acting.client, MANAGER);
            let shown =
                networks::publish(self.reservations.networks().to_vec(), leases.clone(), networks, acting.stop.clone());
            services.push(service("views of networks", shown));
            let views = LeaseViews::new(acting.store.as_ref(), &acting.client, MANAGER);
            let server = Server::bind(self.service_ports, leases.clone(), self.hosts.clone(), views)?;
            let (reservations, stop) = (self.reservations.clone(), acting.stop.clone());
            let run = server.with_cards((self.cards)());
            let run = async move {
                reservations.ready(&stop).await;
                run.run(stop).await
            };
            services.push(("DHCP", run.map(|ended| ended.map_err(Into::into)).boxed()));
        }
        Ok(services)
    }
}

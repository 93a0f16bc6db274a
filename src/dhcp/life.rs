//! The DHCP module: its kind DHCPLease, its metrics, and the server.

use std::sync::Arc;

use futures::FutureExt;
use prometheus_client::registry::Registry;

use super::publish::MANAGER;
use super::{LeaseViews, Leases, Server, ServicePorts, metrics};
use crate::api::slipway::DHCPLease;
use crate::api::{Declared, StoragePolicy};
use crate::boot::HostIndex;
use crate::boot::neighbour::Cards;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service};

/// DHCPLease.
pub fn module() -> Module {
    Module {
        kinds: vec![Declared::one::<DHCPLease>(StoragePolicy::View)],
        rights: &[Right { group: "slipway.dev", resources: &["dhcpleases"], verbs: KEEPS, why: "" }],
    }
}

/// Gives addresses on the networks of the configuration.
pub struct DhcpService {
    /// Those that are given.
    pub leases: Leases,
    /// Where boot files are.
    pub service_ports: ServicePorts,
    /// Whose machines are known.
    pub hosts: HostIndex,
    /// Which network card answers at an address.
    pub cards: Arc<dyn Fn() -> Cards + Send + Sync>,
}

impl Life for DhcpService {
    fn register(&self, registry: &mut Registry) {
        metrics::register(&self.leases, registry);
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let views = LeaseViews::new(acting.store.as_ref(), &acting.client, MANAGER);
        let server = Server::bind(self.service_ports, self.leases.clone(), self.hosts.clone(), views)?;
        let run = server.with_cards((self.cards)()).run(acting.stop.clone());
        Ok(vec![("DHCP", run.map(|ended| ended.map_err(Into::into)).boxed())])
    }
}

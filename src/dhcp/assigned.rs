//! The networks that a worker is to serve, as they are now.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::NetworkConfig;

use super::ServicePorts;
use super::network::ServedNetwork;
use super::network_leases::NetworkLeases;

/// A network on an interface.
#[derive(Clone)]
pub struct AssignedNetwork {
    /// As answers need it.
    pub network: ServedNetwork,
    /// Its leases.
    pub leases: Arc<NetworkLeases>,
    config: Arc<NetworkConfig>,
}

impl AssignedNetwork {
    /// A network that is served from this address.
    pub fn new(leases: &Arc<NetworkLeases>, server: Ipv4Addr, service_ports: ServicePorts) -> Self {
        let config = leases.config();
        let network = ServedNetwork::new(&config, server, service_ports);
        Self { network, leases: Arc::clone(leases), config }
    }

    /// Whether nothing about it is different.
    fn is(&self, other: &Self) -> bool {
        self.leases.number == other.leases.number
            && self.network.server == other.network.server
            && Arc::ptr_eq(&self.config, &other.config)
    }
}

/// The same while it changes. Who answers messages looks whether it has changed once for all that came together.
#[derive(Default)]
pub struct Assigned {
    // std's lock: held to clone a pointer.
    now: Mutex<Arc<Vec<AssignedNetwork>>>,
    version: AtomicU64,
}

impl Assigned {
    /// From now on these, in the order in which they are looked for.
    pub fn set(&self, networks: Vec<AssignedNetwork>) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let same = now.len() == networks.len() && now.iter().zip(&networks).all(|(one, other)| one.is(other));
        if !same {
            *now = Arc::new(networks);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// What they are, when that is another state than the one that was `seen` last.
    pub fn newer_than(&self, seen: &mut u64) -> Option<Arc<Vec<AssignedNetwork>>> {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen {
            return None;
        }
        *seen = version;
        Some(self.now.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

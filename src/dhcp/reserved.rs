//! The reservations of a network, as they are now: those of the configuration, and those that were made over the API.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::MacAddress;
use crate::config::NetworkConfig;

/// A fixed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// Host name handed out.
    pub hostname: Option<String>,
}

/// Fixed addresses of one network: each machine has one at most, and each address is one machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    by_mac: HashMap<MacAddress, ReservedAddress>,
    by_address: HashMap<Ipv4Addr, MacAddress>,
}

impl Reserved {
    /// Those of the configuration.
    pub fn of(config: &NetworkConfig) -> Self {
        let mut reserved = Self::default();
        for one in &config.reservations {
            reserved.add(one.mac, ReservedAddress { address: one.address, hostname: one.hostname.clone() });
        }
        reserved
    }

    /// Adds one for a machine and an address that have none yet.
    pub fn add(&mut self, mac: MacAddress, reserved: ReservedAddress) {
        self.by_address.insert(reserved.address, mac);
        self.by_mac.insert(mac, reserved);
    }

    /// That of a machine.
    pub fn of_machine(&self, mac: MacAddress) -> Option<&ReservedAddress> {
        self.by_mac.get(&mac)
    }

    /// Whose an address is.
    pub fn owner(&self, address: Ipv4Addr) -> Option<MacAddress> {
        self.by_address.get(&address).copied()
    }

    /// The addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.by_address.keys().copied()
    }

    /// The machines.
    pub fn machines(&self) -> impl Iterator<Item = MacAddress> {
        self.by_mac.keys().copied()
    }
}

/// The same while it changes. Who answers messages looks whether it has changed once for all that came together.
#[derive(Debug)]
pub struct LiveReserved {
    // std's lock: held to clone a pointer.
    now: Mutex<Arc<Reserved>>,
    version: AtomicU64,
}

impl LiveReserved {
    /// These.
    pub fn new(reserved: Reserved) -> Self {
        Self { now: Mutex::new(Arc::new(reserved)), version: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Reserved>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As they are now.
    pub fn get(&self) -> Arc<Reserved> {
        self.lock().clone()
    }

    /// From now on these; whether that is another state.
    pub fn set(&self, reserved: Reserved) -> bool {
        let mut now = self.lock();
        if **now == reserved {
            return false;
        }
        *now = Arc::new(reserved);
        self.version.fetch_add(1, Ordering::Release);
        true
    }

    /// What they are, when that is another state than the one that was `seen` last.
    pub fn newer_than(&self, seen: &mut u64) -> Option<Arc<Reserved>> {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen {
            return None;
        }
        *seen = version;
        Some(self.get())
    }
}

//! The leases of one network, and what is known of it while it is served.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnetwork::Ipv4Network;

use crate::config::NetworkConfig;
use crate::live::Live;

use super::counts::MessageCounts;
use super::network::{empty_table, never_given};
use super::other_servers::OtherServers;
use super::reserved::{LiveReserved, Reserved};
use super::table::{Lease, LeaseState, LeaseTable, QUARANTINE};

/// Why a network is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingFault {
    /// In one word, as conditions have it.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Whether a network is served.
#[derive(Debug, Default)]
struct NetworkServing {
    /// This appliance's address there, once it is served.
    server: Option<Ipv4Addr>,
    fault: Option<ServingFault>,
}

/// The leases of one network.
pub struct NetworkLeases {
    /// A number that no other network has or had in this process.
    pub number: usize,
    /// Its name.
    pub name: Arc<str>,
    /// Its addresses. One with others is another network, whatever its name is.
    pub subnet: Ipv4Network,
    /// Whether it is of the configuration.
    pub of_file: bool,
    config: Live<NetworkConfig>,
    // std's lock: held for one message, never across an await.
    table: Mutex<LeaseTable>,
    pub counts: MessageCounts,
    pub reserved: LiveReserved,
    pub others: OtherServers,
    serving: Mutex<NetworkServing>,
    ending: AtomicBool,
}

impl NetworkLeases {
    /// A network without leases.
    pub fn new(config: &NetworkConfig, reserved: Reserved, of_file: bool) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let mut table = empty_table(config);
        table.set_reserved(reserved.addresses());
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            name: config.name.as_str().into(),
            subnet: config.subnet,
            of_file,
            config: config.clone().into(),
            table: Mutex::new(table),
            counts: MessageCounts::default(),
            reserved: LiveReserved::new(reserved),
            others: OtherServers::default(),
            serving: Mutex::default(),
            ending: AtomicBool::new(false),
        }
    }

    /// How it is configured now.
    pub fn config(&self) -> Arc<NetworkConfig> {
        self.config.get()
    }

    fn serving(&self) -> MutexGuard<'_, NetworkServing> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This appliance's address there, once it is served.
    pub fn server(&self) -> Option<Ipv4Addr> {
        self.serving().server
    }

    /// Why it is not served.
    pub fn fault(&self) -> Option<ServingFault> {
        self.serving().fault.clone()
    }

    /// The network is served from this address, which is nobody else's.
    pub fn serve_from(&self, server: Ipv4Addr) {
        let before = {
            let mut serving = self.serving();
            serving.fault = None;
            serving.server.replace(server)
        };
        if before != Some(server) {
            self.table().exclude(server);
        }
    }

    /// The network cannot be served now. Whether that is news.
    pub fn not_served(&self, fault: ServingFault) -> bool {
        let mut serving = self.serving();
        if serving.fault.as_ref() == Some(&fault) {
            return false;
        }
        serving.fault = Some(fault);
        true
    }

    /// Goes by these reservations from now on.
    pub fn reserve(&self, reserved: Reserved) {
        let addresses: Vec<_> = reserved.addresses().collect();
        if self.reserved.set(reserved) {
            self.table().set_reserved(addresses);
        }
    }

    /// Goes by this configuration of the same name and subnet from now on. Its leases stay.
    pub fn configure(&self, config: &NetworkConfig, reserved: Reserved) {
        if *self.config.get() == *config {
            return self.reserve(reserved);
        }
        let addresses: Vec<_> = reserved.addresses().collect();
        let never = never_given(config).into_iter().chain(self.server());
        self.reserved.set(reserved);
        self.table().draw_from(config.pool.clone(), never, addresses);
        self.config.set(config.clone());
    }

    pub fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is in force no more. Asked while the table is held: from then on nobody is given an address of it.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// It is in force no more.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Takes a lease that was given before. It lasts no longer than a new one.
    pub fn adopt(&self, now: u64, lease: Lease) {
        let longest = match lease.state {
            LeaseState::Declined => QUARANTINE,
            _ => self.config().lease.0.as_secs(),
        };
        let ends = lease.ends.min(now.saturating_add(longest));
        self.table().put(Lease { ends, ..lease });
    }
}

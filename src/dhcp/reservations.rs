//! Reservations as objects: those that are made over the API come into force while the appliance serves, and those of
//! `slipway.toml` are shown beside them.
//!
//! An object counts as the administrator's word, exactly as the file's: the right to write it is of the whole cluster. What is in
//! force is judged anew after each change, in every process, whether it acts or not: boot goes by it, too.

mod judge;
mod objects;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::judge::{Judged, Verdict, Wanted, judge};
use super::interface::interfaces;
use super::leases::Leases;
use super::reserved::Reserved;
use crate::api::slipway::{RESERVATION_OF_FILE, Reservation};
use crate::boot::home::{ReservedMachines, SiteNetwork};
use crate::config::NetworkConfig;
use crate::runtime::{Change, Watches};

pub use objects::admit;

/// Changes that come within this time are judged together: many may be made at once.
const SETTLE: Duration = Duration::from_millis(100);
/// How long DHCP waits for the first list of reservations before it serves with those of the file alone.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// The reservations of all networks of the configuration. Cheap to clone.
#[derive(Clone)]
pub struct Reservations(Arc<Inner>);

struct Inner {
    networks: Vec<NetworkConfig>,
    /// For each network, who has a reservation there, as boot asks.
    machines: Vec<ReservedMachines>,
    leases: Option<Leases>,
    // std's lock: held for map operations, never across an await.
    known: Mutex<Known>,
    changed: Notify,
    /// How often they were judged; 0: never.
    judged: watch::Sender<u64>,
}

#[derive(Default)]
struct Known {
    objects: HashMap<String, Reservation>,
    verdicts: HashMap<String, Verdict>,
    listed: bool,
}

impl Reservations {
    /// Those of the configuration; those of the API as the watches tell, once [`Reservations::run`] does. `leases` are those
    /// that go by them.
    pub fn new(networks: &[NetworkConfig], leases: Option<Leases>, watches: &mut Watches) -> Self {
        let machines = networks.iter().map(|network| Reserved::of(network).machines().collect()).collect();
        let (networks, known) = (networks.to_vec(), Mutex::default());
        let inner = Inner { networks, machines, leases, known, changed: Notify::new(), judged: watch::Sender::new(0) };
        let reservations = Self(Arc::new(inner));
        let told = reservations.clone();
        watches.observe(move |change: &Change<'_, Reservation>| told.take(change));
        reservations
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, change: &Change<'_, Reservation>) {
        let mut known = self.known();
        match change {
            Change::Put(object) => {
                let mut object = Reservation::clone(object);
                object.metadata.managed_fields = None;
                object.metadata.annotations = None;
                known.objects.insert(object.name_any(), object);
            }
            Change::Gone((_, name)) => {
                known.objects.remove(name);
            }
            Change::Listed => known.listed = true,
        }
        drop(known);
        self.0.changed.notify_one();
    }

    /// The networks of the configuration.
    pub(super) fn networks(&self) -> &[NetworkConfig] {
        &self.0.networks
    }

    /// The networks of the configuration, and who has a reservation there, also from now on.
    pub fn site_networks(&self) -> Vec<SiteNetwork> {
        let site = |(network, reserved): (&NetworkConfig, &ReservedMachines)| SiteNetwork {
            name: network.name.clone(),
            subnet: network.subnet,
            reserved: reserved.clone(),
        };
        self.0.networks.iter().zip(&self.0.machines).map(site).collect()
    }

    /// Puts into force what is there, after each change, until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.0.changed.notified() => {}
            }
            if self.known().listed {
                self.judge();
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(SETTLE) => {}
            }
        }
    }

    fn judge(&self) {
        let own: Vec<Ipv4Addr> =
            interfaces().unwrap_or_default().into_values().flat_map(|interface| interface.addresses).collect();
        let mut known = self.known();
        let wanted = known.objects.values().filter(|object| !is_of_file(&object.name_any())).map(wanted);
        let Judged { reserved, verdicts } = judge(&self.0.networks, &own, wanted);
        known.verdicts = verdicts;
        drop(known);
        let served = self.0.leases.as_ref().map_or(&[][..], Leases::networks);
        for ((config, machines), reserved) in self.0.networks.iter().zip(&self.0.machines).zip(reserved) {
            machines.set(reserved.machines());
            if let Some(network) = served.iter().find(|served| served.config.name == config.name) {
                network.reserve(reserved);
            }
        }
        self.0.judged.send_modify(|judged| *judged += 1);
    }

    /// Waits until those of the API are in force.
    pub(super) async fn ready(&self, shutdown: &CancellationToken) {
        let mut judged = self.0.judged.subscribe();
        let listed = tokio::time::timeout(LISTED_WITHIN, judged.wait_for(|judged| *judged > 0));
        tokio::select! {
            () = shutdown.cancelled() => {}
            listed = listed => if listed.is_err() {
                tracing::error!(
                    "the Reservations cannot be listed: DHCP goes by those of slipway.toml alone until they are"
                );
            }
        }
    }
}

/// Whether an object of this name shows a reservation of the configuration.
fn is_of_file(name: &str) -> bool {
    name.starts_with(RESERVATION_OF_FILE)
}

fn wanted(object: &Reservation) -> Wanted {
    Wanted {
        name: object.name_any(),
        created: object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        mac: object.spec.mac_address.clone(),
        address: object.spec.address.clone(),
        hostname: object.spec.hostname.clone(),
    }
}

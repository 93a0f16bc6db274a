//! Reservations as objects: those that are made over the API come into force while the appliance serves, and those of
//! `slipway.toml` are shown beside them.
//!
//! An object counts as the administrator's word, exactly as the file's: the right to write it is of the whole cluster. What is in
//! force is judged anew after each change, in every process, whether it acts or not: boot goes by it, too.

mod judge;
mod objects;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::judge::{EffectiveReservations, ReservationVerdict, WantedReservation, judge};
use super::interface::{LOOK, interfaces};
use super::leases::unix_now;
use super::network_set::EffectiveNetwork;
use super::networks::{NetworkDirectory, NetworkJudgement};
use crate::api::slipway::{RESERVATION_OF_FILE, Reservation};
use crate::boot::neighbour_table;
use crate::config::NetworkConfig;
use crate::runtime::{SupervisedTask, WatchChange, Watches};

pub use objects::admit;

/// Changes that come within this time are judged together: many may be made at once.
const SETTLE: Duration = Duration::from_millis(100);
/// How long DHCP waits for the first list of reservations before it serves with those of the file alone.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// The reservations of all networks. Cheap to clone.
#[derive(Clone)]
pub struct Reservations(Arc<Inner>);

struct Inner {
    networks: NetworkDirectory,
    // std's lock: held for map operations, never across an await.
    known: Mutex<ReservationState>,
    /// How often they were judged; 0: never.
    judged: watch::Sender<u64>,
}

#[derive(Default)]
struct ReservationState {
    objects: HashMap<String, Reservation>,
    verdicts: HashMap<String, ReservationVerdict>,
    listed: bool,
}

impl Reservations {
    /// Those of the configuration; those of the API as the watches tell, once [`Reservations::run`] does.
    pub fn new(networks: NetworkDirectory, watches: &mut Watches) -> Self {
        let inner = Inner { networks, known: Mutex::default(), judged: watch::Sender::new(0) };
        let reservations = Self(Arc::new(inner));
        let told = reservations.clone();
        watches.observe(move |change: &WatchChange<'_, Reservation>| told.take(change));
        reservations
    }

    fn known(&self) -> MutexGuard<'_, ReservationState> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, change: &WatchChange<'_, Reservation>) {
        let mut known = self.known();
        match change {
            WatchChange::Put(object) => {
                let mut object = Reservation::clone(object);
                object.metadata.managed_fields = None;
                object.metadata.annotations = None;
                known.objects.insert(object.name_any(), object);
            }
            WatchChange::Gone((_, name)) => {
                known.objects.remove(name);
            }
            WatchChange::Listed => known.listed = true,
        }
        drop(known);
        self.0.networks.changed().notify_one();
    }

    /// The networks.
    pub(super) fn networks(&self) -> &NetworkDirectory {
        &self.0.networks
    }

    /// Puts networks and reservations into force as they are, after each change, until the shutdown. Each time is a run of the task.
    pub async fn run(self, task: SupervisedTask, shutdown: CancellationToken) {
        let mut room = self.0.networks.site().addresses();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.0.networks.changed().notified() => {}
                () = tokio::time::sleep(LOOK) => if !self.0.networks.are_elsewhere() { continue },
            }
            if self.0.networks.are_listed() && self.known().listed {
                let judged = task.run(async {
                    self.judge();
                    let addresses = self.0.networks.site().addresses();
                    if addresses > room {
                        neighbour_table::make_room(addresses).await;
                        room = addresses;
                    }
                    Ok::<_, Infallible>(())
                });
                // It can only panic, and that is in the log.
                judged.await.ok();
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
        let judgements = self.0.networks.judge();
        let networks: Vec<NetworkConfig> = judgements.iter().map(|one| one.config.clone()).collect();
        let mut known = self.known();
        let wanted = known.objects.values().filter(|object| !is_of_file(&object.name_any())).map(wanted);
        let EffectiveReservations { reserved, verdicts } = judge(&networks, &own, wanted);
        known.verdicts = verdicts;
        drop(known);
        // A machine that has an address finds its network known by those that it asks for a script.
        let site: Vec<_> = networks.into_iter().zip(reserved.iter().cloned()).collect();
        self.0.networks.site().set(&site);
        let in_force = judgements
            .into_iter()
            .zip(reserved)
            .map(|(NetworkJudgement { config, of_file }, reserved)| EffectiveNetwork { config, reserved, of_file });
        let set = self.0.networks.leases().set();
        set.put_in_force(unix_now(), in_force.collect());
        let first = *self.0.judged.borrow() == 0;
        if first && set.waiting() > 0 {
            tracing::info!(
                leases = set.waiting(),
                "the database has DHCP leases of networks that there are not: they are kept"
            );
        }
        self.0.judged.send_modify(|judged| *judged += 1);
    }

    /// How often they were judged.
    pub(super) fn judged(&self) -> watch::Receiver<u64> {
        self.0.judged.subscribe()
    }

    /// Waits until those of the API are in force.
    pub(super) async fn ready(&self, shutdown: &CancellationToken) {
        let mut judged = self.0.judged.subscribe();
        let listed = tokio::time::timeout(LISTED_WITHIN, judged.wait_for(|judged| *judged > 0));
        tokio::select! {
            () = shutdown.cancelled() => {}
            listed = listed => if listed.is_err() {
                tracing::error!(
                    "Networks and Reservations cannot be listed: DHCP goes by those of slipway.toml alone until they are"
                );
            }
        }
    }
}

/// Whether an object of this name shows a reservation of the configuration.
fn is_of_file(name: &str) -> bool {
    name.starts_with(RESERVATION_OF_FILE)
}

fn wanted(object: &Reservation) -> WantedReservation {
    WantedReservation {
        name: object.name_any(),
        created: object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        mac: object.spec.mac_address.clone(),
        address: object.spec.address.clone(),
        hostname: object.spec.hostname.clone(),
    }
}

//! Which networks are in force, and where the leases of others are: networks come, change and go while DHCP serves.
//!
//! The memory is the truth, and the disk follows it. The leases of a network that goes stay its machines' until they are over,
//! and nobody renews them; those of a subnet that no network has wait for one that has it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::config::{NetworkConfig, NetworkMode};
use crate::live::Live;

use super::network_leases::NetworkLeases;
use super::outcome::LeaseWrite;
use super::reserved::Reserved;
use super::table::{Lease, REMEMBER};

/// A network that is to be in force.
pub struct EffectiveNetwork {
    /// The network.
    pub config: NetworkConfig,
    /// Whose its addresses always are.
    pub reserved: Reserved,
    /// Whether it is of the configuration.
    pub of_file: bool,
}

impl EffectiveNetwork {
    /// A network of the configuration, with the reservations that stand there.
    pub fn of_file(config: &NetworkConfig) -> Self {
        Self { config: config.clone(), reserved: Reserved::of(config), of_file: true }
    }
}

/// The networks, and leases of others.
pub struct NetworkSet {
    in_force: Live<Vec<Arc<NetworkLeases>>>,
    // std's lock: held while leases move, never across an await.
    former: Mutex<FormerNetworks>,
    changed: watch::Sender<()>,
    served: watch::Sender<()>,
}

/// What was in force.
#[derive(Default)]
struct FormerNetworks {
    /// Of these machines have addresses still.
    ending: Vec<Arc<NetworkLeases>>,
    /// Leases of no network, and whether they are to be forgotten as those of a network are.
    waiting: BTreeMap<Ipv4Addr, (Lease, bool)>,
    /// Addresses whose public view is out of date.
    changed: Vec<Ipv4Addr>,
}

impl NetworkSet {
    /// No network, and these leases, of which the later one of a machine is its last.
    pub fn new(leases: impl Iterator<Item = Lease>) -> Self {
        let waiting = leases.map(|lease| (lease.address, (lease, false))).collect();
        let former = Mutex::new(FormerNetworks { waiting, ..FormerNetworks::default() });
        Self { in_force: Live::default(), former, changed: watch::Sender::new(()), served: watch::Sender::new(()) }
    }

    fn former(&self) -> MutexGuard<'_, FormerNetworks> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those in force that are not `off`.
    pub fn in_force(&self) -> Arc<Vec<Arc<NetworkLeases>>> {
        self.in_force.get()
    }

    /// Those that are in force no more, as long as machines have addresses of them.
    pub fn ending(&self) -> Vec<Arc<NetworkLeases>> {
        self.former().ending.clone()
    }

    /// Leases of no network.
    pub fn waiting(&self) -> usize {
        self.former().waiting.len()
    }

    /// Tells of each change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Tells when a network is served, or can no longer be.
    pub fn served(&self) -> watch::Receiver<()> {
        self.served.subscribe()
    }

    /// A network is served, or can no longer be.
    pub fn tell_served(&self) {
        self.served.send_replace(());
    }

    /// From now on these are in force, and no others.
    pub fn put_in_force(&self, now: u64, wanted: Vec<EffectiveNetwork>) {
        let mut former = self.former();
        let before = self.in_force.get();
        let is = |network: &NetworkLeases, config: &NetworkConfig| {
            *network.name == *config.name && network.subnet == config.subnet
        };
        let wanted: Vec<_> = wanted.into_iter().filter(|one| one.config.mode != NetworkMode::Off).collect();
        let stays = |network: &NetworkLeases| wanted.iter().any(|one| is(network, &one.config));
        for gone in before.iter().filter(|network| !stays(network)) {
            // First: whoever has its table after this gives no address of it any more.
            gone.end();
            former.ending.push(Arc::clone(gone));
        }
        let mut in_force = Vec::with_capacity(wanted.len());
        for EffectiveNetwork { config, reserved, of_file } in wanted {
            if let Some(network) = before.iter().find(|network| is(network, &config)) {
                network.configure(&config, reserved);
                in_force.push(Arc::clone(network));
                continue;
            }
            let network = NetworkLeases::new(&config, reserved, of_file);
            let mut leases = former.take(&network);
            // A machine's last address is the one it had longest.
            leases.sort_by_key(|lease| lease.ends);
            leases.into_iter().for_each(|lease| network.adopt(now, lease));
            in_force.push(Arc::new(network));
        }
        former.settle();
        self.in_force.set(in_force);
        drop(former);
        self.changed.send_replace(());
    }

    /// Lets time pass for what is in force no more. Returns the records to remove.
    pub fn advance(&self, now: u64) -> Vec<LeaseWrite> {
        let mut former = self.former();
        let mut gone = Vec::new();
        for network in &former.ending {
            gone.extend(network.table().advance(now, &|_| false));
        }
        let count = former.ending.len();
        former.settle();
        let forgotten = |lease: &Lease, forget: bool| forget && now >= lease.ends.saturating_add(REMEMBER);
        let old = former.waiting.extract_if(.., |_, (lease, forget)| forgotten(lease, *forget));
        gone.extend(old.map(|(address, _)| address));
        let fewer = former.ending.len() < count;
        drop(former);
        if fewer {
            self.changed.send_replace(());
        }
        gone.into_iter().map(|address| LeaseWrite { address, record: None }).collect()
    }

    /// Addresses of no network whose public view is out of date.
    pub fn take_changed(&self) -> Vec<Ipv4Addr> {
        std::mem::take(&mut self.former().changed)
    }
}

impl FormerNetworks {
    /// Takes the leases of a network's addresses out of what was in force.
    fn take(&mut self, network: &NetworkLeases) -> Vec<Lease> {
        let subnet = network.subnet;
        let range = subnet.network()..=subnet.broadcast();
        let waiting = self.waiting.extract_if(range, |_, _| true);
        let mut taken: Vec<Lease> = waiting.map(|(_, (lease, _))| lease).collect();
        for ending in self.ending.iter().filter(|ending| ending.subnet.overlaps(subnet)) {
            let mut table = ending.table();
            let leases = table.leases().into_iter().filter(|lease| subnet.contains(lease.address));
            for lease in leases.collect::<Vec<_>>() {
                table.remove(lease.address);
                taken.push(lease);
            }
        }
        taken
    }

    /// What of a network is over waits for another one of its subnet.
    fn settle(&mut self) {
        let (ending, over): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.ending).into_iter().partition(|network| network.table().bound() > 0);
        self.ending = ending;
        for network in over {
            for lease in network.table().leases().into_iter().filter(|lease| lease.stored) {
                self.changed.push(lease.address);
                self.waiting.insert(lease.address, (lease, true));
            }
        }
    }
}

#[cfg(test)]
mod tests;

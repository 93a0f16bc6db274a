//! The leases of all networks: in memory, written through to the store.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api::MacAddress;
use crate::boot::{HostIndex, LeaseOwner};
use crate::config::{NetworkConfig, NetworkMode};
use crate::ration::Rank;
use crate::store::{Store, StoreTable, StoreWriteError};

use super::addresses;
use super::interface::interface_address;
use super::network_leases::NetworkLeases;
use super::network_set::{EffectiveNetwork, NetworkSet};
use super::outcome::LeaseWrite;
use super::recent_messages::{RecentMessage, RecentMessages};
use super::record::{self, RecordError};
use super::table::{IsKnown, Lease, LeaseState};

/// Name of the store's table.
const TABLE: &str = "leases";
/// How long a write may take. A store that takes longer is broken, and the client has long asked again.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// The leases cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store refuses.
    #[error("cannot read the DHCP leases: {0}")]
    Store(#[from] StoreWriteError),
    /// A newer Slipway wrote them; leaving them out would give addresses twice.
    #[error("cannot read the DHCP lease of {address}: {source}; start the newer Slipway again")]
    Newer {
        /// The address.
        address: Ipv4Addr,
        /// Why.
        source: RecordError,
    },
}

/// A lease was not written.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreWriteError),
    /// The store did not answer.
    #[error("the store did not answer within {} s", WRITE_DEADLINE.as_secs())]
    Deadline,
}

/// The leases of all networks. Cheap to clone; all clones see the same leases.
#[derive(Clone)]
pub struct Leases {
    networks: Arc<NetworkSet>,
    table: StoreTable,
    // std's lock: held for one message, never across an await.
    recent: Arc<Mutex<RecentMessages>>,
    addresses: addresses::SharedFacts,
}

/// Holds that an entry of a backup keeps no appliance from starting: that it is no lease of a newer version ([`Leases::load`]).
///
/// # Errors
///
/// When it is one.
pub fn check_entry(table: &str, key: &[u8], value: &[u8]) -> Result<(), RecordError> {
    match record::decode(key, value) {
        Err(newer @ RecordError::Version(_)) if table == TABLE => Err(newer),
        _ => Ok(()),
    }
}

/// Seconds since 1970.
pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Leases {
    /// Reads the leases, and puts these networks in force, those of the configuration. Leases of other networks are kept, for when
    /// the network comes.
    ///
    /// # Errors
    ///
    /// When the store cannot be read or holds leases of a newer version. A damaged record is left out with a line in
    /// the log.
    pub fn load(store: &Store, networks: &[NetworkConfig]) -> Result<Self, LoadError> {
        Self::load_at(store, networks, unix_now())
    }

    /// As [`Leases::load`], at this time, in seconds since 1970. The clock may be wrong yet, ahead or back: no lease lasts
    /// longer than one that is given now, and the one that ended last counts as one that ends now, so that those of machines that
    /// are there are not forgotten all at once.
    fn load_at(store: &Store, networks: &[NetworkConfig], now: u64) -> Result<Self, LoadError> {
        let table = store.table(TABLE)?;
        let mut leases = Vec::new();
        for (key, value) in table.scan() {
            match record::decode(&key, &value) {
                Ok(lease) => leases.push(lease),
                Err(source @ RecordError::Version(_)) => {
                    let address = <[u8; 4]>::try_from(key.as_ref()).map_or(Ipv4Addr::UNSPECIFIED, Ipv4Addr::from);
                    return Err(LoadError::Newer { address, source });
                }
                Err(error @ RecordError::Damaged) => {
                    tracing::warn!(key = ?key, %error, "cannot read a DHCP lease: it is left out");
                }
            }
        }
        // A machine's last address is the one it had longest.
        leases.sort_by_key(|lease| lease.ends);
        let later = now.saturating_sub(leases.last().map_or(now, |lease| lease.ends));
        let leases = leases.into_iter().map(|lease| Lease { ends: lease.ends.saturating_add(later), ..lease });
        let set = NetworkSet::new(leases);
        set.put_in_force(now, networks.iter().map(EffectiveNetwork::of_file).collect());
        Ok(Self { networks: Arc::new(set), table, recent: Arc::default(), addresses: Arc::default() })
    }

    /// The address of a machine: what it leases now, else its reservation, else what it leased last.
    pub fn address_of(&self, mac: MacAddress) -> Option<Ipv4Addr> {
        let networks = self.networks();
        let leased = |only_bound: bool| {
            networks.iter().find_map(|network| {
                let table = network.table();
                let lease = table.of_mac(mac).filter(|it| it.state == LeaseState::Bound || (!only_bound && it.stored));
                lease.map(|lease| lease.address)
            })
        };
        let reserved = || {
            let mut all = networks.iter().map(|network| network.reserved.get());
            all.find_map(|reserved| reserved.of_machine(mac).map(|one| one.address))
        };
        leased(true).or_else(reserved).or_else(|| leased(false))
    }

    /// Whether a machine has a reservation on a network that is served.
    pub(super) fn reserves(&self, mac: MacAddress) -> bool {
        self.networks().iter().any(|network| network.reserved.get().of_machine(mac).is_some())
    }

    /// What DHCP does for a machine and why, for people.
    pub fn explain(&self, mac: MacAddress, hosts: &HostIndex) -> String {
        let host = hosts.by_mac(mac);
        let told = |network: &Arc<NetworkLeases>| {
            let config = network.config();
            let unknown = hosts.unknown_machine(mac, config.discovery);
            let reserved = network.reserved.get();
            let fault = network.fault().map(|fault| fault.message);
            let table = network.table();
            let reservation = reserved.of_machine(mac);
            super::explain::network(mac, &config, reservation, &table, host.as_deref(), &unknown, fault.as_deref())
        };
        let networks = self.networks().iter().map(told).collect();
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner).of_machine(mac);
        super::explain::machine(mac, host.as_deref(), networks) + &super::explain::messages(&recent)
    }

    /// Remembers what came of a machine's message, for [`Leases::explain`].
    pub(super) fn record_message(&self, mac: MacAddress, message: RecentMessage) {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).record(mac, message);
    }

    pub(super) fn addresses(&self) -> &addresses::AddressFacts {
        &self.addresses
    }

    /// The networks that are in force and not `off`, those of the configuration first.
    pub(super) fn networks(&self) -> Arc<Vec<Arc<NetworkLeases>>> {
        self.networks.in_force()
    }

    /// Networks that are in force no more, as long as machines have addresses of them.
    pub(super) fn ending(&self) -> Vec<Arc<NetworkLeases>> {
        self.networks.ending()
    }

    pub(super) fn set(&self) -> &NetworkSet {
        &self.networks
    }

    /// Whether there is a network of this name.
    pub(super) fn has_network(&self, name: &str) -> bool {
        self.networks().iter().any(|network| &*network.name == name)
    }

    /// Looks at all leases of a network whose pool is short. Those of machines that are known no more end as early as a
    /// stranger's, `guest_lease` seconds from now at the latest. A known machine's claim of an address that it left ends when it has a
    /// lease on another network: of two relays anybody can make up one, so the claim of each network would stay for ever.
    /// Returns the records to remove.
    pub(super) fn review(
        &self,
        now: u64,
        network: &NetworkLeases,
        guest_lease: u64,
        known: IsKnown<'_>,
    ) -> Vec<LeaseWrite> {
        let networks = self.networks();
        let claims = {
            let mut table = network.table();
            let cut = table.cut_short(now, guest_lease, known);
            if cut > 0 {
                tracing::info!(
                    network = %network.name, leases = cut,
                    "the pool is nearly used up: leases of hosts that are gone ended early"
                );
            }
            if networks.len() > 1 && table.is_short(known) { table.claims(known) } else { Vec::new() }
        };
        // One table at a time: each line looks at the others' tables.
        let others = || networks.iter().filter(|other| other.number != network.number);
        let mut twice = claims;
        twice.retain(|(_, mac)| others().any(|other| other.table().of_mac(*mac).is_some()));
        let mut table = network.table();
        let ended = twice.into_iter().filter(|(address, mac)| table.end_claim(*address, *mac) == Some(true));
        ended.map(|(address, _)| LeaseWrite { address, record: None }).collect()
    }

    /// The time of day jumped by so many seconds: the leases of a network move with it. Returns the records to write.
    pub(super) fn shift(&self, network: &NetworkLeases, by: i64) -> Vec<LeaseWrite> {
        let shifted = network.table().shift(by);
        shifted.iter().map(|lease| LeaseWrite { address: lease.address, record: Some(record::encode(lease)) }).collect()
    }

    /// Puts changes on disk; returns when they are there. Their order and that of calls is kept.
    pub(super) async fn commit(&self, writes: Vec<LeaseWrite>) -> Result<(), CommitError> {
        let entries = writes.into_iter().map(|LeaseWrite { address, record }| (record::key(address), record)).collect();
        let write = self.table.write_all(entries);
        tokio::time::timeout(WRITE_DEADLINE, write).await.map_err(|_| CommitError::Deadline)??;
        Ok(())
    }

    /// The address that a machine of a relayed network has by a lease that runs in an attached one.
    fn also_at(
        &self,
        mac: MacAddress,
        relayed: &NetworkConfig,
        now: u64,
        is_attached: &dyn Fn(&NetworkConfig) -> bool,
    ) -> Option<Ipv4Addr> {
        let networks = self.networks();
        let others = networks.iter().filter(|network| network.subnet != relayed.subnet);
        let runs = |lease: &Lease| lease.state == LeaseState::Bound && lease.ends > now;
        // Nearly always there is none, and then nobody looks at interfaces.
        let mut held = others.filter_map(|network| {
            let address = network.table().of_mac(mac).filter(|lease| runs(lease)).map(|lease| lease.address)?;
            Some((network, address))
        });
        let (_, address) = held.find(|(network, _)| is_attached(&network.config()))?;
        (!is_attached(relayed)).then_some(address)
    }

    /// The lease of an address with its network, also of one that is in force no more.
    pub(super) fn with_lease<T>(&self, address: Ipv4Addr, read: impl Fn(&NetworkLeases, &Lease) -> T) -> Option<T> {
        let look = |network: &Arc<NetworkLeases>| network.table().get(address).map(|lease| read(network, lease));
        self.networks().iter().find_map(look).or_else(|| self.ending().iter().find_map(look))
    }
}

/// Who holds an address. `leases` are given where this appliance alone gives the addresses of its networks; without them
/// another may have given this one.
pub fn lease_owner(networks: &[NetworkConfig], leases: Option<&Leases>, address: Ipv4Addr) -> LeaseOwner {
    let Some(network) = networks.iter().find(|network| network.subnet.contains(address)) else {
        return LeaseOwner::Outside;
    };
    match (network.mode, leases) {
        (NetworkMode::Proxy | NetworkMode::Off, _) | (_, None) => LeaseOwner::Elsewhere,
        (NetworkMode::Authoritative | NetworkMode::Reservations, Some(leases)) => {
            let bound = |lease: &Lease| (lease.state == LeaseState::Bound).then_some(lease.client.mac);
            let Some(mac) = leases.with_lease(address, |_, lease| bound(lease)).flatten() else {
                return LeaseOwner::Nobody;
            };
            match leases.also_at(mac, network, unix_now(), &is_attached) {
                Some(other) => LeaseOwner::AlsoAt(mac, other),
                None => LeaseOwner::Machine(mac),
            }
        }
    }
}

/// Whether this appliance is on the network's wire, and not only reached through a relay.
fn is_attached(network: &NetworkConfig) -> bool {
    interface_address(&network.interface, network.subnet).is_some()
}

/// What is known of an address: it is a known host's when this appliance leased it to the boot address of a registered one,
/// or to a reservation, and no other card answers there by what `cards` say. What a host, a machine or whoever may make
/// hosts says of further addresses makes nobody known.
pub fn rank(
    networks: &[NetworkConfig],
    leases: Option<&Leases>,
    hosts: &HostIndex,
    cards: &dyn Fn(Ipv4Addr) -> Option<MacAddress>,
    address: IpAddr,
) -> Rank {
    // DHCP is of IPv4.
    let IpAddr::V4(address) = address else {
        return if networks.is_empty() { Rank::Untold } else { Rank::Stranger };
    };
    let owner = lease_owner(networks, leases, address);
    match owner {
        LeaseOwner::Elsewhere => Rank::Untold,
        // Nobody is told of any network, so nobody can be known.
        LeaseOwner::Outside if networks.is_empty() => Rank::Untold,
        LeaseOwner::Outside | LeaseOwner::Nobody => Rank::Stranger,
        LeaseOwner::Machine(mac) | LeaseOwner::AlsoAt(mac, _) => {
            let host = hosts.by_mac(mac).filter(|_| hosts.is_registered(mac));
            let file = || networks.iter().flat_map(|network| &network.reservations).any(|one| one.mac == mac);
            let reserved = || file() || leases.is_some_and(|leases| leases.reserves(mac));
            if host.is_none() && !reserved() {
                return Rank::Stranger;
            }
            let own = |card: MacAddress| card == mac || host.as_ref().is_some_and(|host| host.macs.contains(&card));
            let recorded = host.as_ref().map_or("", |host| &host.ownership.home);
            let home = networks.iter().find(|network| network.name == recorded);
            let is_away = match (home, owner) {
                (Some(home), _) => !home.subnet.contains(address) && !reserved(),
                (None, LeaseOwner::AlsoAt(_, other)) => cards(other).is_some_and(own),
                (None, _) => false,
            };
            if is_away {
                return Rank::Stranger;
            }
            // Only now: of the known there are so many, strangers' addresses are without number.
            if cards(address).is_none_or(own) { Rank::Known } else { Rank::Stranger }
        }
    }
}

#[cfg(test)]
mod tests;

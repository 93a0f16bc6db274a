//! The leases of all networks: in memory, written through to the store.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api::MacAddress;
use crate::boot::{HostIndex, LeaseOwner};
use crate::config::{NetworkConfig, NetworkMode};
use crate::ration::Rank;
use crate::store::{Store, Table, WriteError};

use super::interface::interface_address;
use super::metrics::Counts;
use super::network::empty_table;
use super::outcome::LeaseWrite;
use super::recent_messages::{RecentMessage, RecentMessages};
use super::record::{self, RecordError};
use super::table::{IsKnown, Lease, LeaseState, LeaseTable, QUARANTINE};

/// Name of the store's table.
const TABLE: &str = "leases";
/// How long a write may take. A store that takes longer is broken, and the client has long asked again.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// The leases cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store refuses.
    #[error("cannot read the DHCP leases: {0}")]
    Store(#[from] WriteError),
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
    Store(#[from] WriteError),
    /// The store did not answer.
    #[error("the store did not answer within {} s", WRITE_DEADLINE.as_secs())]
    Deadline,
}

/// The leases of all networks. Cheap to clone; all clones see the same leases.
#[derive(Clone)]
pub struct Leases {
    networks: Arc<[NetworkLeases]>,
    table: Table,
    // std's lock: held for one message, never across an await.
    recent: Arc<Mutex<RecentMessages>>,
}

/// The leases of one network.
pub(super) struct NetworkLeases {
    pub config: NetworkConfig,
    // std's lock: held for one message, never across an await.
    table: Mutex<LeaseTable>,
    pub counts: Counts,
}

impl NetworkLeases {
    pub fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Leases {
    /// Reads the leases of the configured networks. Those of other networks stay on disk, for when the network returns.
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
        let networks: Arc<[_]> = networks
            .iter()
            .filter(|config| config.mode != NetworkMode::Off)
            .map(|config| NetworkLeases {
                config: config.clone(),
                table: Mutex::new(empty_table(config)),
                counts: Counts::default(),
            })
            .collect();
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
        let mut elsewhere = 0_usize;
        let later = now.saturating_sub(leases.last().map_or(now, |lease| lease.ends));
        for lease in leases {
            match networks.iter().find(|network| network.config.subnet.contains(lease.address)) {
                Some(network) => {
                    let longest = match lease.state {
                        LeaseState::Declined => QUARANTINE,
                        _ => network.config.lease.0.as_secs(),
                    };
                    let ends = lease.ends.saturating_add(later).min(now.saturating_add(longest));
                    network.table().put(Lease { ends, ..lease });
                }
                None => elsewhere += 1,
            }
        }
        if elsewhere > 0 {
            tracing::info!(
                leases = elsewhere,
                "the database has DHCP leases of networks that are not configured: they are kept"
            );
        }
        Ok(Self { networks, table, recent: Arc::default() })
    }

    /// The address of a machine: what it leases now, else its reservation, else what it leased last.
    pub fn address_of(&self, mac: MacAddress) -> Option<Ipv4Addr> {
        let leased = |only_bound: bool| {
            self.networks.iter().find_map(|network| {
                let table = network.table();
                let lease = table.of_mac(mac).filter(|it| it.state == LeaseState::Bound || (!only_bound && it.stored));
                lease.map(|lease| lease.address)
            })
        };
        let reserved = || {
            let mut all = self.networks.iter().flat_map(|network| &network.config.reservations);
            all.find(|reservation| reservation.mac == mac).map(|reservation| reservation.address)
        };
        leased(true).or_else(reserved).or_else(|| leased(false))
    }

    /// What DHCP does for a machine and why, for people.
    pub fn explain(&self, mac: MacAddress, hosts: &HostIndex) -> String {
        let host = hosts.by_mac(mac);
        let networks = self.networks.iter().map(|network| {
            let unknown = hosts.unknown_machine(mac, network.config.discovery);
            let table = network.table();
            super::explain::network(mac, &network.config, &table, host.as_deref(), &unknown)
        });
        let networks = networks.collect();
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner).of_machine(mac);
        let name = |index: usize| self.networks.get(index).map_or("", |network| network.config.name.as_str());
        super::explain::machine(mac, host.as_deref(), networks) + &super::explain::messages(&recent, name)
    }

    /// Remembers what came of a machine's message, for [`Leases::explain`].
    pub(super) fn record_message(&self, mac: MacAddress, message: RecentMessage) {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).record(mac, message);
    }

    pub(super) fn networks(&self) -> &[NetworkLeases] {
        &self.networks
    }

    /// Looks at all leases of a network whose pool is short. Those of machines that are known no more end as early as a
    /// stranger's, `guest_lease` seconds from now at the latest. A known machine's claim of an address that it left ends when it has a
    /// lease on another network: of two relays anybody can make up one, so the claim of each network would stay for ever.
    /// Returns the records to remove.
    pub(super) fn review(&self, now: u64, index: usize, guest_lease: u64, known: IsKnown<'_>) -> Vec<LeaseWrite> {
        let Some(network) = self.networks.get(index) else { return Vec::new() };
        let claims = {
            let mut table = network.table();
            let cut = table.cut_short(now, guest_lease, known);
            if cut > 0 {
                tracing::info!(
                    network = %network.config.name, leases = cut,
                    "the pool is nearly used up: leases of hosts that are gone ended early"
                );
            }
            if self.networks.len() > 1 && table.is_short(known) { table.claims(known) } else { Vec::new() }
        };
        // One table at a time: each line looks at the others' tables.
        let others = || self.networks.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let mut twice = claims;
        twice.retain(|(_, mac)| others().any(|other| other.table().of_mac(*mac).is_some()));
        let mut table = network.table();
        let ended = twice.into_iter().filter(|(address, mac)| table.end_claim(*address, *mac) == Some(true));
        ended.map(|(address, _)| LeaseWrite { address, record: None }).collect()
    }

    /// The time of day jumped by so many seconds: the leases of a network move with it. Returns the records to write.
    pub(super) fn shift(&self, index: usize, by: i64) -> Vec<LeaseWrite> {
        let Some(network) = self.networks.get(index) else { return Vec::new() };
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
        let others = self.networks.iter().filter(|network| network.config.subnet != relayed.subnet);
        let runs = |lease: &Lease| lease.state == LeaseState::Bound && lease.ends > now;
        // Nearly always there is none, and then nobody looks at interfaces.
        let mut held = others.filter_map(|network| {
            let address = network.table().of_mac(mac).filter(|lease| runs(lease)).map(|lease| lease.address)?;
            Some((network, address))
        });
        let (_, address) = held.find(|(network, _)| is_attached(&network.config))?;
        (!is_attached(relayed)).then_some(address)
    }

    /// The lease of an address with its network's configuration.
    pub(super) fn with_lease<T>(&self, address: Ipv4Addr, read: impl Fn(&NetworkConfig, &Lease) -> T) -> Option<T> {
        self.networks.iter().find_map(|network| network.table().get(address).map(|lease| read(&network.config, lease)))
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
    match lease_owner(networks, leases, address) {
        LeaseOwner::Elsewhere => Rank::Untold,
        // Nobody is told of any network, so nobody can be known.
        LeaseOwner::Outside if networks.is_empty() => Rank::Untold,
        LeaseOwner::Outside | LeaseOwner::Nobody | LeaseOwner::AlsoAt(..) => Rank::Stranger,
        LeaseOwner::Machine(mac) => {
            let host = hosts.by_mac(mac).filter(|_| hosts.is_registered(mac));
            let reserved = || networks.iter().flat_map(|network| &network.reservations).any(|one| one.mac == mac);
            if host.is_none() && !reserved() {
                return Rank::Stranger;
            }
            let own = |card: MacAddress| card == mac || host.as_ref().is_some_and(|host| host.macs.contains(&card));
            // Only now: of the known there are so many, strangers' addresses are without number.
            if cards(address).is_none_or(own) { Rank::Known } else { Rank::Stranger }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;

    use super::super::client::LeaseClient;
    use super::*;
    use crate::config::Config;
    use crate::store::StoreOptions;

    const NETWORKS: &str = "
        [[network]]
        name = 'a'
        interface = 'eth0'
        subnet = '10.0.0.0/24'
        pool = ['10.0.0.100-10.0.0.199']
        [[network.reservation]]
        mac = '02:00:00:00:00:09'
        address = '10.0.0.9'
        [[network]]
        name = 'beside'
        interface = 'eth0'
        subnet = '10.2.0.0/24'
        mode = 'proxy'
        [[network]]
        name = 'theirs'
        interface = 'eth0'
        subnet = '10.3.0.0/24'
        mode = 'off'
    ";

    fn open(folder: &Path) -> Store {
        let options = StoreOptions { path: folder.join("db"), key_file: folder.join("key"), history: 100 };
        Store::open(options).expect("opens")
    }

    fn write(address: Ipv4Addr, mac: u8, state: LeaseState, ends: u64) -> LeaseWrite {
        let client = LeaseClient { mac: MacAddress([2, 0, 0, 0, 0, mac]), id: None, known: false };
        let lease = Lease { address, client, state, ends, hostname: None, stored: true };
        LeaseWrite { address, record: Some(record::encode(&lease)) }
    }

    /// A stranger can ask in known machines' names through a relay of a network where they are not.
    #[test]
    fn a_machine_on_our_wire_is_nobody_behind_a_relay() {
        let text = "
            [[network]]
            name = 'wire'
            interface = 'eth0'
            subnet = '10.0.0.0/24'
            pool = ['10.0.0.100-10.0.0.109']
            [[network]]
            name = 'routed'
            interface = 'eth0'
            subnet = '10.1.0.0/24'
            pool = ['10.1.0.100-10.1.0.109']
        ";
        let folder = tempfile::tempdir().expect("a folder");
        let networks = Config::parse(text, Path::new("x.toml")).expect("good").networks;
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let store = open(folder.path());
        let rows = [
            (LeaseState::Bound, 2_001, &["wire"][..], true),
            (LeaseState::Bound, 2_000, &["wire"], false),
            (LeaseState::Released, 9_000, &["wire"], false),
            (LeaseState::Bound, 9_000, &["wire", "routed"], false),
            (LeaseState::Bound, 9_000, &[], false),
        ];
        for (state, ends, attached, expected) in rows {
            let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
            let address = Ipv4Addr::new(10, 0, 0, 100);
            let client = LeaseClient { mac, id: None, known: true };
            leases.networks()[0].table().put(Lease { address, client, state, ends, hostname: None, stored: true });
            let is_attached = |network: &NetworkConfig| attached.contains(&network.name.as_str());
            let found = leases.also_at(mac, &networks[1], 2_000, &is_attached);
            assert_eq!(found, expected.then_some(address), "{state:?} {ends} {attached:?}");
        }
    }

    /// A box without a battery starts years back; or somebody sets its clock ahead.
    #[tokio::test]
    async fn a_clock_that_is_wrong_at_the_start_ends_no_lease_and_keeps_none_for_ever() {
        let folder = tempfile::tempdir().expect("a folder");
        let networks = Config::parse(NETWORKS, Path::new("x.toml")).expect("good").networks;
        let (store, lasts) = (open(folder.path()), networks[0].lease.0.as_secs());
        let now = 1_800_000_000;
        let address = |last| Ipv4Addr::new(10, 0, 0, last);
        let leases = Leases::load_at(&store, &networks, now).expect("loads");
        let writes = vec![
            write(address(100), 1, LeaseState::Bound, now + 3_000),
            write(address(101), 2, LeaseState::Bound, now + 1_000),
            write(address(102), 3, LeaseState::Declined, now + 500),
        ];
        leases.commit(writes).await.expect("writes");
        const YEARS: u64 = 300_000_000;
        let rows = [(now, [3_000, 1_000, 500]), (now - YEARS, [lasts, lasts, QUARANTINE]), (now + YEARS, [0, 0, 0])];
        for (start, lefts) in rows {
            let leases = Leases::load_at(&store, &networks, start).expect("loads");
            let table = leases.networks()[0].table();
            for (last, left) in (100..).zip(lefts) {
                let ends = table.get(address(last)).expect("there").ends;
                assert!(ends <= start + left && (left > 0 || ends + 3_000 >= start), "{start} {last} {ends}");
                assert!(left == 0 || ends == start + left, "{start} {last} {ends}");
            }
            drop(table);
            let gone = leases.networks()[0].table().advance(start + 60, &|_| false);
            assert!(!gone.contains(&address(100)) && !gone.contains(&address(101)), "{start} {gone:?}");
        }
        // And it is set right while it runs.
        let leases = Leases::load_at(&store, &networks, now - YEARS).expect("loads");
        let before = leases.networks()[0].table().get(address(100)).expect("there").ends;
        let writes = leases.shift(0, YEARS as i64);
        assert_eq!(writes.len(), 3);
        leases.commit(writes).await.expect("writes");
        let leases = Leases::load_at(&store, &networks, now).expect("loads");
        assert_eq!(leases.networks()[0].table().get(address(100)).expect("there").ends, before + YEARS);
        store.close().await;
    }

    /// A stranger can ask in known machines' names through a relay of a network where they are not.
    #[tokio::test]
    async fn a_claim_of_a_machine_that_is_on_another_network_ends_when_the_pool_is_short() {
        let text = "
            [[network]]
            name = 'here'
            interface = 'eth0'
            subnet = '10.0.0.0/24'
            pool = ['10.0.0.100-10.0.0.109']
            unknown_lease = '5m'
            [[network]]
            name = 'there'
            interface = 'eth0'
            subnet = '10.1.0.0/24'
            pool = ['10.1.0.100-10.1.0.109']
        ";
        let folder = tempfile::tempdir().expect("a folder");
        let networks = Config::parse(text, Path::new("x.toml")).expect("good").networks;
        let mac = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
        let store = open(folder.path());
        for (used, present, freed) in [(5_u8, 5_u8, 0), (10, 10, 10), (10, 4, 4), (10, 0, 0)] {
            let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
            let put = |network: usize, address: [u8; 4], last: u8, state, ends| {
                let client = LeaseClient { mac: mac(last), id: None, known: true };
                let lease = Lease { address: address.into(), client, state, ends, hostname: None, stored: true };
                leases.networks()[network].table().put(lease);
            };
            for last in 0..used {
                put(0, [10, 0, 0, 100 + last], last, LeaseState::Expired, 1_000);
            }
            for last in 0..present {
                put(1, [10, 1, 0, 100 + last], last, LeaseState::Bound, 9_000);
            }
            let writes = leases.review(2_000, 0, 300, &|_| true);
            assert_eq!(writes.len(), freed, "{used} {present}");
            assert!(writes.iter().all(|write| write.record.is_none()));
            assert_eq!(leases.networks()[0].table().get([10, 0, 0, 100].into()).is_none(), freed > 0);
            assert!(leases.review(2_000, 1, 300, &|_| true).is_empty(), "where they are they are bound");
        }
        // Hosts that are gone.
        for (used, cut) in [(5_u8, false), (10, true)] {
            let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
            for last in 0..used {
                let client = LeaseClient { mac: mac(last), id: None, known: true };
                let address = [10, 0, 0, 100 + last].into();
                let lease =
                    Lease { address, client, state: LeaseState::Bound, ends: 5_600, hostname: None, stored: true };
                leases.networks()[0].table().put(lease);
            }
            let known = |one: MacAddress| one == mac(0);
            assert!(leases.review(2_000, 0, 300, &known).is_empty());
            let mut table = leases.networks()[0].table();
            let ends = |table: &LeaseTable, last: u8| table.get([10, 0, 0, 100 + last].into()).map(|lease| lease.ends);
            assert_eq!((ends(&table, 0), ends(&table, 1)), (Some(5_600), Some(if cut { 2_300 } else { 5_600 })));
            table.advance(2_300, &known);
            let stranger = LeaseClient { mac: mac(77), id: None, known: false };
            assert!(table.find(None, &stranger, &known).is_some());
        }
    }

    #[tokio::test]
    async fn what_was_committed_is_there_after_a_restart_and_damage_costs_one_record() {
        let folder = tempfile::tempdir().expect("a folder");
        let networks = Config::parse(NETWORKS, Path::new("x.toml")).expect("good").networks;
        let at = |last: u8| Ipv4Addr::new(10, 0, 0, last);
        let elsewhere = Ipv4Addr::new(10, 1, 0, 1);
        let store = open(folder.path());
        let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
        let writes = vec![
            write(at(100), 1, LeaseState::Bound, 2_000),
            // The later one of two is the machine's.
            write(at(101), 1, LeaseState::Bound, 3_000),
            write(at(102), 2, LeaseState::Released, 1_000),
            write(at(103), 3, LeaseState::Bound, 1_000),
            write(elsewhere, 4, LeaseState::Bound, 1_000),
        ];
        leases.commit(writes).await.expect("writes");
        leases.commit(vec![LeaseWrite { address: at(103), record: None }]).await.expect("writes");
        store
            .table(TABLE)
            .expect("a table")
            .write(record::key(at(104)), Some(Bytes::from_static(b"\x01\x01")))
            .await
            .expect("writes");
        store.close().await;
        drop((leases, store));

        let store = open(folder.path());
        let leases = Leases::load_at(&store, &networks, 1_000).expect("loads");
        let mac = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
        assert_eq!(leases.address_of(mac(1)), Some(at(101)));
        assert_eq!(leases.address_of(mac(2)), Some(at(102)), "what it had last");
        assert_eq!(leases.address_of(mac(3)), None, "removed");
        assert_eq!(leases.address_of(mac(4)), None, "not a network of the configuration");
        assert_eq!(leases.address_of(mac(9)), Some(at(9)), "reserved");
        let rows = [
            (at(101), LeaseOwner::Machine(mac(1))),
            (at(102), LeaseOwner::Nobody),
            (at(9), LeaseOwner::Nobody),
            (elsewhere, LeaseOwner::Outside),
            (Ipv4Addr::new(10, 2, 0, 7), LeaseOwner::Elsewhere),
            (Ipv4Addr::new(10, 3, 0, 7), LeaseOwner::Elsewhere),
        ];
        for (address, wanted) in rows {
            assert_eq!(lease_owner(&networks, Some(&leases), address), wanted, "{address}");
        }
        let hosts = HostIndex::default();
        let machine = |name: &str, last: u8, waiting, registered| {
            let discovery = crate::boot::DiscoveryState { waiting, ..Default::default() };
            hosts.insert(crate::boot::BootHost {
                namespace: "ns".into(),
                name: name.into(),
                uid: name.into(),
                created: 0,
                macs: vec![mac(last)],
                boot_interface: Default::default(),
                intent: None,
                discovery,
                ownership: crate::boot::Ownership {
                    boot_mac: Some(mac(last)),
                    registered,
                    paused: false,
                    record: None,
                },
            });
        };
        let by = |cards: &dyn Fn(Ipv4Addr) -> Option<MacAddress>, address: Ipv4Addr| {
            rank(&networks, Some(&leases), &hosts, cards, address.into())
        };
        let ranked = |address: Ipv4Addr| by(&|_| None, address);
        assert_eq!(ranked(at(101)), Rank::Stranger, "an unknown machine's");
        machine("a", 1, true, true);
        assert_eq!(ranked(at(101)), Rank::Stranger, "it only says that it is there");
        machine("a", 1, false, false);
        assert_eq!(ranked(at(101)), Rank::Stranger, "somebody wrote its address into a host");
        machine("a", 1, false, true);
        assert_eq!(ranked(at(101)), Rank::Known);
        // Who has its address without being it, is nobody.
        assert_eq!(by(&|_| Some(mac(1)), at(101)), Rank::Known, "its own card");
        assert_eq!(by(&|_| Some(mac(0x66)), at(101)), Rank::Stranger, "another card");
        assert_eq!(by(&|asked| panic!("{asked} is asked for"), at(102)), Rank::Stranger, "known without looking");
        assert_eq!((ranked(at(9)), ranked(at(102))), (Rank::Stranger, Rank::Stranger), "nobody has them now");
        assert_eq!((ranked(elsewhere), ranked(Ipv4Addr::new(10, 2, 0, 7))), (Rank::Stranger, Rank::Untold));
        assert_eq!(rank(&networks, None, &hosts, &|_| None, at(101).into()), Rank::Untold);
        assert_eq!(rank(&[], None, &hosts, &|_| None, at(101).into()), Rank::Untold);
        // Beside other appliances leases say nothing; that a network is none of ours is known all the same.
        assert_eq!(lease_owner(&networks, None, at(101)), LeaseOwner::Elsewhere);
        assert_eq!(lease_owner(&networks, None, elsewhere), LeaseOwner::Outside);
        assert_eq!(lease_owner(&[], None, at(101)), LeaseOwner::Outside);
        let text = leases.explain(mac(1), &HostIndex::default());
        assert!(text.contains("10.0.0.101, bound, end 1970-01-01T00:50:00Z"), "{text}");
        assert!(text.contains("its firmware is told nothing to boot: no BareMetalHost"), "{text}");
        assert!(text.contains("no message of it has arrived since Slipway started"), "{text}");
        assert!(leases.explain(mac(9), &HostIndex::default()).contains("10.0.0.9 is reserved for it"));
        let disposition = super::super::outcome::Disposition::Released(at(101));
        leases.record_message(
            mac(1),
            RecentMessage { at: 60, network: 0, kind: dhcproto::v4::MessageType::Release, disposition },
        );
        let text = leases.explain(mac(1), &HostIndex::default());
        assert!(text.contains("  - 1970-01-01T00:01:00Z a: Release: released 10.0.0.101\n"), "{text}");

        store
            .table(TABLE)
            .expect("a table")
            .write(record::key(at(105)), Some(Bytes::from_static(b"\x02")))
            .await
            .expect("writes");
        let error = Leases::load_at(&store, &networks, 1_000).err().expect("a newer version").to_string();
        assert!(error.contains("10.0.0.105") && error.contains("newer"), "{error}");
        store.close().await;
    }
}

//! Network set-up of the ramdisk.
//!
//! The node's network: every Ethernet interface is brought up and asks for an address, all at once. The one that the
//! firmware booted from is preferred. Where network data says how the network is, that is done instead.

pub mod dhcp;
pub mod link;
mod nic;
pub mod packet;
mod static_network;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnetwork::IpNetwork;
use tokio::sync::watch;
use tokio::time::Instant;

use super::inventory::lldp::Neighbour;
use crate::api::MacAddress;
use crate::network_data::NetworkPlan;
use dhcp::ClientLease;
use link::{EthernetInterface, LinkControl, same_subnet};

/// How often sysfs is read for new interfaces and links.
const POLL: Duration = Duration::from_millis(200);
/// How often a wait tells what it waits for.
const TELL: Duration = Duration::from_secs(10);

/// State of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicStatus {
    /// It cannot be used, and why.
    Failed(String),
    /// No cable, or a switch port that is shut.
    NoLink,
    /// Asks for an address; DISCOVERs sent so far.
    Asking(u32),
    /// Has an address.
    Up(ClientLease),
    /// Has the addresses of its network data.
    Fixed(Vec<IpNetwork>),
    /// Network data does not name it.
    Unused,
}

impl fmt::Display for NicStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(reason) => write!(f, "failed: {reason}"),
            Self::NoLink => write!(f, "no link"),
            Self::Asking(0 | 1) => write!(f, "asking for an address"),
            Self::Asking(tries) => write!(f, "no answer to {tries} DHCP requests"),
            Self::Fixed(addresses) => {
                let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "{} by network data", shown.join(", "))
            }
            Self::Unused => write!(f, "not named by network data"),
            Self::Up(lease) => write!(f, "{}/{} from {}", lease.address, lease.prefix, lease.server),
        }
    }
}

/// An interface and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedNic {
    /// The interface.
    pub interface: EthernetInterface,
    /// Its state.
    pub status: NicStatus,
    /// When its link came up.
    pub link_since: Option<Instant>,
}

type Nics = BTreeMap<String, ManagedNic>;

/// The running network. Cheap to clone.
#[derive(Clone)]
pub struct AgentNetwork {
    nics: watch::Receiver<Nics>,
    order: watch::Receiver<Vec<String>>,
    preferred: Option<MacAddress>,
    planned: bool,
    neighbours: Arc<Mutex<BTreeMap<String, Neighbour>>>,
}

/// What the network needs to know of this boot.
#[derive(Clone, Debug)]
pub struct NetworkNeeds {
    /// Where sysfs is mounted: `/`.
    pub root: PathBuf,
    /// Interface that the firmware booted from.
    pub mac: Option<MacAddress>,
    /// Address of the appliance, when it is of IP version 4.
    pub appliance: Option<Ipv4Addr>,
    /// How the network is, where DHCP does not say.
    pub plan: Option<NetworkPlan>,
}

/// No interface came up in time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NetworkError {
    /// There is no interface at all.
    #[error("no network interface was found within {0} s: no driver for it in this ramdisk, or none in the machine")]
    NoInterface(u64),
    /// There are some, without an address.
    #[error("no address within {seconds} s: {states}")]
    NoAddress {
        /// How long it was tried.
        seconds: u64,
        /// Each interface and its state.
        states: String,
    },
}

impl AgentNetwork {
    /// Starts to look for interfaces and to bring them up. Runs until the process ends.
    ///
    /// # Errors
    /// When there is no netlink socket.
    pub fn start(wanted: NetworkNeeds) -> std::io::Result<Self> {
        let links = LinkControl::open()?;
        let (nics, nics_now) = watch::channel(Nics::new());
        let (order, order_now) = watch::channel(Vec::new());
        let neighbours = Arc::new(Mutex::new(BTreeMap::new()));
        let network = Self {
            nics: nics_now,
            order: order_now,
            preferred: wanted.mac,
            planned: wanted.plan.is_some(),
            neighbours: neighbours.clone(),
        };
        let context = nic::NicContext { wanted: wanted.clone(), links, nics: Arc::new(nics), neighbours };
        let mut changes = network.nics.clone();
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let best = best_first(&changes.borrow_and_update(), wanted.mac, wanted.appliance);
                order.send_if_modified(|order| std::mem::replace(order, best.clone()) != best);
            }
        });
        if let Some(plan) = wanted.plan {
            tokio::spawn(static_network::run(context.clone(), plan));
        }
        tokio::spawn(watch_interfaces(context));
        Ok(network)
    }

    /// Names of the interfaces that have an address, the best first.
    pub fn order(&self) -> watch::Receiver<Vec<String>> {
        self.order.clone()
    }

    /// The lease of the best interface.
    pub fn best_lease(&self) -> Option<ClientLease> {
        let name = self.order.borrow().first().cloned()?;
        match &self.nics.borrow().get(&name)?.status {
            NicStatus::Up(lease) => Some(lease.clone()),
            _ => None,
        }
    }

    /// Hardware addresses of all interfaces found so far.
    pub fn mac_addresses(&self) -> Vec<MacAddress> {
        self.nics.borrow().values().map(|nic| nic.interface.mac).collect()
    }

    /// What each switch port has said of itself, by interface.
    pub fn neighbours(&self) -> BTreeMap<String, Neighbour> {
        self.neighbours.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until each interface that has a link and a switch has been told of it by LLDP, at most until `patience`
    /// after its link came up.
    pub async fn wait_for_neighbours(&self, patience: Duration) {
        loop {
            let known = self.neighbours();
            let waiting = self.nics.borrow().values().any(|nic| {
                nic.interface.has_switch()
                    && !known.contains_key(&nic.interface.name)
                    && nic.link_since.is_some_and(|since| since.elapsed() < patience)
            });
            if !waiting {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits for an address: of the interface that the firmware booted from, or of any other once one has had its
    /// address for `grace`. Tells on the console what it waits for.
    ///
    /// # Errors
    /// [`NetworkError`] when there is no interface within `no_interface`, or no address within `no_address`.
    pub async fn ready(
        &self,
        grace: Duration,
        no_interface: Duration,
        no_address: Duration,
    ) -> Result<(), NetworkError> {
        let started = Instant::now();
        let mut told = Instant::now();
        let mut up_since: Option<Instant> = None;
        loop {
            let (none, states, preferred_up) = {
                let nics = self.nics.borrow();
                let states: Vec<String> =
                    nics.iter().map(|(name, nic)| format!("{name} ({}): {}", nic.interface.mac, nic.status)).collect();
                let preferred_up = nics
                    .values()
                    .any(|nic| has_address(&nic.status) && self.preferred.is_none_or(|mac| mac == nic.interface.mac));
                (nics.is_empty(), states.join("; "), preferred_up)
            };
            // A plan says which interface is used; there is none to prefer.
            let preferred_up = preferred_up || (self.planned && !self.order.borrow().is_empty());
            if preferred_up {
                return Ok(());
            }
            if !self.order.borrow().is_empty() && up_since.get_or_insert_with(Instant::now).elapsed() >= grace {
                tracing::warn!(
                    states,
                    "the interface that the firmware booted from has no address: another one is used"
                );
                return Ok(());
            }
            let waited = started.elapsed();
            if none && waited >= no_interface {
                return Err(NetworkError::NoInterface(waited.as_secs()));
            }
            if !none && waited >= no_address {
                return Err(NetworkError::NoAddress { seconds: waited.as_secs(), states });
            }
            if told.elapsed() >= TELL {
                let seconds = waited.as_secs();
                match none {
                    true => tracing::info!(seconds, "waiting for a network interface"),
                    false => tracing::info!(seconds, states, "waiting for an address"),
                }
                told = Instant::now();
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn has_address(status: &NicStatus) -> bool {
    matches!(status, NicStatus::Up(_) | NicStatus::Fixed(_))
}

/// Starts a task for each interface that appears.
async fn watch_interfaces(context: nic::NicContext) {
    let mut known: BTreeMap<u32, MacAddress> = BTreeMap::new();
    loop {
        for interface in link::interfaces(&context.wanted.root) {
            if known.insert(interface.index, interface.mac).is_none() {
                tokio::spawn(nic::run(context.clone(), interface));
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Names of the interfaces with an address: the firmware's own, then those in the appliance's subnet, then by name.
fn best_first(nics: &Nics, mac: Option<MacAddress>, appliance: Option<Ipv4Addr>) -> Vec<String> {
    let mut up: Vec<(bool, bool, &String)> = nics
        .iter()
        .filter_map(|(name, nic)| match &nic.status {
            NicStatus::Up(lease) => Some((
                mac != Some(nic.interface.mac),
                !appliance.is_some_and(|appliance| same_subnet(appliance, lease)),
                name,
            )),
            NicStatus::Fixed(addresses) => Some((
                mac != Some(nic.interface.mac),
                !appliance.is_some_and(|appliance| addresses.iter().any(|one| one.contains(appliance.into()))),
                name,
            )),
            _ => None,
        })
        .collect();
    up.sort();
    up.into_iter().map(|(_, _, name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(address: [u8; 4]) -> NicStatus {
        NicStatus::Up(ClientLease {
            address: address.into(),
            prefix: 24,
            router: None,
            server: Ipv4Addr::new(172, 22, 0, 1),
            hostname: None,
            mtu: None,
            time: Duration::from_secs(60),
            renew: Duration::from_secs(30),
            rebind: Duration::from_secs(50),
        })
    }

    fn nic(last: u8, status: NicStatus) -> (String, ManagedNic) {
        let mac = MacAddress([2, 0, 0, 0, 0, last]);
        let name = format!("eth{last}");
        let interface =
            EthernetInterface { name: name.clone(), index: last.into(), mac, carrier: true, driver: String::new() };
        (name, ManagedNic { interface, status, link_since: None })
    }

    #[test]
    fn the_boot_interface_comes_first_then_the_appliances_subnet() {
        let nics: Nics = [
            nic(0, lease([10, 0, 0, 5])),
            nic(1, NicStatus::NoLink),
            nic(2, lease([172, 22, 0, 7])),
            nic(3, lease([10, 0, 1, 5])),
            nic(4, NicStatus::Asking(3)),
        ]
        .into();
        let appliance = Some(Ipv4Addr::new(172, 22, 0, 1));
        let fixed = NicStatus::Fixed(vec!["172.22.0.9/24".parse().unwrap(), "fd00::9/64".parse().unwrap()]);
        let beside: Nics = [nic(0, lease([10, 0, 0, 5])), nic(5, fixed), nic(6, NicStatus::Unused)].into();
        assert_eq!(best_first(&beside, None, appliance), ["eth5", "eth0"]);
        let mac = |last| Some(MacAddress([2, 0, 0, 0, 0, last]));
        assert_eq!(best_first(&nics, mac(3), appliance), ["eth3", "eth2", "eth0"]);
        assert_eq!(best_first(&nics, mac(4), appliance), ["eth2", "eth0", "eth3"]);
        assert_eq!(best_first(&nics, None, None), ["eth0", "eth2", "eth3"]);
        assert!(best_first(&Nics::new(), None, appliance).is_empty());
    }

    fn network(nics: Nics, preferred: Option<MacAddress>) -> (AgentNetwork, watch::Sender<Nics>) {
        let order = best_first(&nics, preferred, None);
        let (sender, nics) = watch::channel(nics);
        let (_, order) = watch::channel(order);
        (AgentNetwork { nics, order, preferred, planned: false, neighbours: Arc::default() }, sender)
    }

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn each_wait_ends_with_its_reason() {
        let (none, _nics) = network(Nics::new(), None);
        assert_eq!(none.ready(LONG, SHORT, LONG).await, Err(NetworkError::NoInterface(0)));
        let (mute, _nics) = network([nic(0, NicStatus::NoLink), nic(1, NicStatus::Asking(4))].into(), None);
        let error = mute.ready(LONG, LONG, SHORT).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "no address within 0 s: eth0 (02:00:00:00:00:00): no link; \
             eth1 (02:00:00:00:00:01): no answer to 4 DHCP requests"
        );
    }

    #[tokio::test]
    async fn another_interface_is_used_when_the_preferred_one_stays_mute() {
        let preferred = Some(MacAddress([2, 0, 0, 0, 0, 1]));
        let (network, nics) = network([nic(0, lease([10, 0, 0, 5])), nic(1, NicStatus::NoLink)].into(), preferred);
        assert!(network.ready(LONG, LONG, SHORT).await.is_err(), "the preferred interface gets its time");
        assert_eq!(network.ready(SHORT, LONG, LONG).await, Ok(()));
        nics.send_modify(|nics| {
            nics.extend([nic(1, lease([10, 0, 0, 6]))]);
        });
        assert_eq!(network.ready(LONG, LONG, LONG).await, Ok(()));
    }
}

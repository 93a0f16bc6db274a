//! Which addresses machines have by DHCP now, as the status of their hosts shows it, and who is told when that changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use jiff::Timestamp;

use super::leases::Leases;
use super::table::LeaseState;
use crate::api::MacAddress;
use crate::api::metal3::HostAddress;
use crate::api::slipway::DHCPLease;

/// Addresses of one host that are shown; more than machines have cards with an address by DHCP.
const MOST_SHOWN: usize = 32;

/// Is told of machines that were given an address, or have it no more.
type Tell = Box<dyn Fn(MacAddress) + Send + Sync>;

/// What is known of addresses beside the leases of this appliance.
#[derive(Default)]
pub(super) struct AddressFacts {
    /// What other appliances leased, as their views on the same API server say; `None` before these were read.
    others: Mutex<Option<OtherLeases>>,
    tell: OnceLock<Tell>,
}

/// Leases of other appliances, each with its end.
type OtherLeases = HashMap<MacAddress, Vec<(HostAddress, Timestamp)>>;

impl AddressFacts {
    fn others(&self) -> MutexGuard<'_, Option<OtherLeases>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leases {
    /// No other appliance gives addresses on these networks, so nothing is waited for.
    #[must_use]
    pub fn alone(self) -> Self {
        self.learn_of_others(&[]);
        self
    }

    /// The addresses that are leased to these cards now, in the order of the cards. `None` as long as it is not known what
    /// another appliance leased to them that acted before this one.
    pub fn addresses_of(&self, macs: &[MacAddress]) -> Option<Vec<HostAddress>> {
        let others = self.addresses().others();
        let (others, now) = (others.as_ref()?, Timestamp::now());
        let mut found: Vec<HostAddress> = Vec::new();
        for mac in macs {
            for network in self.networks().iter() {
                let table = network.table();
                if let Some(lease) = table.of_mac(*mac).filter(|lease| lease.state == LeaseState::Bound) {
                    found.push(HostAddress {
                        address: lease.address.to_string(),
                        mac_address: mac.to_string(),
                        network: network.name.to_string(),
                    });
                }
            }
            for (other, ends) in others.get(mac).into_iter().flatten() {
                let known = |one: &HostAddress| one.mac_address == other.mac_address && one.network == other.network;
                if now < *ends && !found.iter().any(known) {
                    found.push(other.clone());
                }
            }
        }
        found.truncate(MOST_SHOWN);
        Some(found)
    }

    /// Tells of each machine that is given an address, or has it no more. Only the first who asks is told.
    pub fn tell_of_changes(&self, tell: impl Fn(MacAddress) + Send + Sync + 'static) {
        // It is asked for once in a process.
        self.addresses().tell.set(Box::new(tell)).ok();
    }

    /// A machine was given an address, or has it no more.
    pub(super) fn address_changed(&self, mac: MacAddress) {
        if let Some(tell) = self.addresses().tell.get() {
            tell(mac);
        }
    }

    /// What views say that are on the API server, of other appliances perhaps.
    pub(super) fn learn_of_others(&self, views: &[DHCPLease]) {
        let mut others = OtherLeases::new();
        for DHCPLease { spec, .. } in views.iter().filter(|view| view.spec.state == "bound") {
            let (Ok(mac), Some(ends)) = (spec.mac_address.parse::<MacAddress>(), &spec.expires) else { continue };
            others.entry(mac).or_default().push((
                HostAddress {
                    address: spec.address.clone(),
                    mac_address: mac.to_string(),
                    network: spec.network.clone(),
                },
                ends.0,
            ));
        }
        *self.addresses().others() = Some(others);
    }
}

/// As [`AddressFacts`], for all clones of the leases.
pub(super) type SharedFacts = Arc<AddressFacts>;

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::slipway::DHCPLeaseSpec;
    use crate::dhcp::client::LeaseClient;
    use crate::dhcp::table::Lease;
    use crate::store::{Store, StoreOptions};

    const CARD: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    fn view(address: &str, mac: MacAddress, state: &str, ends: i64) -> DHCPLease {
        let spec = DHCPLeaseSpec {
            address: address.into(),
            mac_address: mac.to_string(),
            network: "a".into(),
            state: state.into(),
            expires: Some(Time(Timestamp::now() + jiff::SignedDuration::from_secs(ends))),
            ..DHCPLeaseSpec::default()
        };
        DHCPLease::new(address, spec)
    }

    #[tokio::test]
    async fn a_host_has_what_is_leased_to_its_cards_here_or_by_who_acted_before() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key_file) = (folder.path().join("db"), folder.path().join("key"));
        let store = Store::open(StoreOptions { path, key_file, history: 10 }).unwrap();
        let text = "name = 'a'\ninterface = 'lo'\nsubnet = '10.0.0.0/24'\npool = ['10.0.0.100-10.0.0.200']";
        let leases = Leases::load(&store, &[toml::from_str(text).unwrap()]).unwrap();
        let bind = |last: u8, mac, state| {
            let (address, client) = ([10, 0, 0, last].into(), LeaseClient { mac, id: None, known: true });
            let lease = Lease { address, client, state, ends: u64::MAX, hostname: None, stored: true };
            leases.networks()[0].table().put(lease);
        };
        let shown = |macs: &[MacAddress]| {
            let found = leases.addresses_of(macs)?;
            Some(found.into_iter().map(|one| format!("{} {}", one.address, one.network)).collect::<Vec<_>>())
        };
        bind(100, CARD, LeaseState::Bound);
        assert_eq!(shown(&[CARD]), None, "others are not known yet");
        leases.learn_of_others(&[
            view("10.0.0.7", CARD, "bound", 60),
            view("10.0.0.8", OTHER, "bound", 60),
            view("10.0.0.9", MacAddress([2; 6]), "bound", -1),
            view("10.0.0.10", MacAddress([2; 6]), "released", 60),
        ]);
        // In the order of the cards; what is leased here counts more than what was elsewhere.
        assert_eq!(shown(&[OTHER, CARD]).unwrap(), ["10.0.0.8 a", "10.0.0.100 a"]);
        assert_eq!(shown(&[MacAddress([2; 6])]).unwrap(), [""; 0], "over, or given back");
        bind(100, CARD, LeaseState::Expired);
        bind(101, OTHER, LeaseState::Bound);
        assert_eq!(shown(&[CARD, OTHER]).unwrap(), ["10.0.0.7 a", "10.0.0.101 a"]);
        assert_eq!(leases.clone().alone().addresses_of(&[CARD]), Some(Vec::new()));
    }
}

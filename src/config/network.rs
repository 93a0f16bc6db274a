//! The section `[[network]]`: who is given which addresses, and how.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnetwork::Ipv4Network;
use serde::Deserialize;

use super::Span;
use crate::api::MacAddress;

/// `[[network]]`
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    /// Name, as leases show it.
    pub name: String,
    /// Interface it is on.
    pub interface: String,
    /// Its subnet.
    pub subnet: Ipv4Network,
    /// Ranges for machines without a reservation. Empty: known hosts only.
    #[serde(default)]
    pub pool: Vec<AddressRange>,
    /// How DHCP behaves there.
    #[serde(default)]
    pub mode: NetworkMode,
    /// Whether unknown machines that boot here report themselves and appear as hosts.
    #[serde(default)]
    pub discovery: bool,
    /// How long a lease holds.
    #[serde(default = "default_lease")]
    pub lease: Span,
    /// How long a lease of a machine holds that is neither a BareMetalHost nor has a reservation; never longer than
    /// `lease`.
    #[serde(default = "default_unknown_lease")]
    pub unknown_lease: Span,
    /// Whether a boot script and a session go to a machine only when the network card that answers at its address is the
    /// host's.
    #[serde(default = "checked")]
    pub check_cards: bool,
    /// This appliance's address there; found on the interface when unset.
    pub server: Option<Ipv4Addr>,
    /// Default router (option 3).
    pub router: Option<Ipv4Addr>,
    /// DNS servers (option 6).
    #[serde(default)]
    pub dns: Vec<Ipv4Addr>,
    /// NTP servers (option 42).
    #[serde(default)]
    pub ntp: Vec<Ipv4Addr>,
    /// Domain name (option 15).
    pub domain: Option<String>,
    /// The only relays from which messages for this network are taken; from any when empty.
    #[serde(default)]
    pub relays: Vec<Ipv4Addr>,
    /// Fixed addresses.
    #[serde(default, rename = "reservation")]
    pub reservations: Vec<ReservationConfig>,
}

fn default_lease() -> Span {
    Span(Duration::from_secs(3600))
}

fn checked() -> bool {
    true
}

fn default_unknown_lease() -> Span {
    Span(Duration::from_secs(300))
}

/// `[[network.reservation]]`
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ReservationConfig {
    /// Hardware address.
    pub mac: MacAddress,
    /// Its address; inside the subnet, inside or outside the pool.
    pub address: Ipv4Addr,
    /// Host name handed out (option 12).
    pub hostname: Option<String>,
}

/// How DHCP behaves on a network.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// The only DHCP server: wrong requests are refused (DHCPNAK).
    #[default]
    Authoritative,
    /// Answers only machines that have a reservation or are known hosts.
    Reservations,
    /// Boot information only, beside another DHCP server.
    Proxy,
    /// Not served.
    Off,
}

/// Addresses from first to last, written `172.22.0.100-172.22.0.199`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AddressRange {
    /// First address.
    pub first: Ipv4Addr,
    /// Last address, not before the first.
    pub last: Ipv4Addr,
}

impl AddressRange {
    /// Every address as a number.
    pub fn numbers(self) -> RangeInclusive<u32> {
        self.first.to_bits()..=self.last.to_bits()
    }

    /// Whether the address lies inside.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        self.numbers().contains(&address.to_bits())
    }
}

impl TryFrom<String> for AddressRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fail = || format!("{text:?} is not an address range: write 172.22.0.100-172.22.0.199");
        let (first, last) = text.split_once('-').ok_or_else(fail)?;
        let first: Ipv4Addr = first.trim().parse().map_err(|_| fail())?;
        let last: Ipv4Addr = last.trim().parse().map_err(|_| fail())?;
        if first > last { Err(fail()) } else { Ok(Self { first, last }) }
    }
}

impl NetworkConfig {
    pub(super) fn faults(&self, at: &str, faults: &mut Vec<String>) {
        faults.extend(self.contradictions().into_iter().map(|(_, fault)| format!("{at}: {fault}")));
    }

    /// In what it contradicts itself: the key, and what is wrong.
    pub fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if self.interface.is_empty() || self.interface.len() > 15 {
            faults.push(("interface", format!("interface {:?} must have 1 to 15 characters", self.interface)));
        }
        if self.subnet.prefix() < 8 || self.subnet.prefix() > 30 {
            faults.push(("subnet", format!("subnet {} must have a prefix of 8 to 30", self.subnet)));
        }
        let mut inside = |key: &'static str, what: &str, address: Ipv4Addr| {
            let host = address != self.subnet.network() && address != self.subnet.broadcast();
            if !self.subnet.contains(address) || !host {
                faults.push((key, format!("{what} {address} is not a host address of {}", self.subnet)));
            }
        };
        for range in &self.pool {
            inside("pool", "pool address", range.first);
            inside("pool", "pool address", range.last);
        }
        for reservation in &self.reservations {
            inside("reservation", "reservation", reservation.address);
        }
        if let Some(server) = self.server {
            inside("server", "server", server);
        }
        if let Some(router) = self.router {
            inside("router", "router", router);
        }
        for relay in self.relays.iter().filter(|it| it.is_unspecified() || it.is_multicast() || it.is_broadcast()) {
            faults.push(("relays", format!("relay {relay} is no address of a machine")));
        }
        for (index, one) in self.pool.iter().enumerate() {
            let overlaps = |other: &&AddressRange| other.first <= one.last && one.first <= other.last;
            if let Some(other) = self.pool[..index].iter().find(overlaps) {
                let text = format!("the pools {}-{} and {}-{} overlap", other.first, other.last, one.first, one.last);
                faults.push(("pool", text));
            }
        }
        for (index, one) in self.reservations.iter().enumerate() {
            for other in &self.reservations[..index] {
                if other.mac == one.mac || other.address == one.address {
                    faults.push(("reservation", format!("two reservations for {} or {}", one.mac, one.address)));
                }
            }
        }
        if self.discovery && self.mode == NetworkMode::Off {
            faults.push(("discovery", "discovery needs a mode other than off".into()));
        }
        if self.lease.0 < Duration::from_secs(60) {
            faults.push(("lease", "a lease must hold at least 60s".into()));
        }
        if self.unknown_lease.0 < Duration::from_secs(60) {
            faults.push(("unknown_lease", "unknown_lease must be at least 60s".into()));
        }
        faults
    }
}

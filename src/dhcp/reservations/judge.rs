//! Which reservations are in force: those of the configuration, then those of the API, the oldest first. Pure.
//!
//! One that cannot be is left out with its reason, and changes nothing of the others.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;

use crate::api::MacAddress;
use crate::config::{NetworkConfig, NetworkMode};
use crate::dhcp::reserved::{Reserved, ReservedAddress};

/// Names of networks that a message lists.
const MOST_NAMED: usize = 8;
/// Longest host name (RFC 1035, 2.3.4).
const LONGEST_NAME: usize = 253;

/// A reservation as somebody wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedReservation {
    /// Name of its object.
    pub name: String,
    /// When that was created, Unix time in seconds.
    pub created: i64,
    /// `spec.macAddress`
    pub mac: String,
    /// `spec.address`
    pub address: String,
    /// `spec.hostname`
    pub hostname: Option<String>,
}

/// What comes of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationVerdict {
    /// It is in force.
    InForce {
        /// Name of its network.
        network: String,
        /// Whose it is.
        mac: MacAddress,
        /// What it reserves.
        address: Ipv4Addr,
        /// How DHCP behaves there.
        mode: NetworkMode,
    },
    /// It cannot be, for this reason.
    Fault {
        /// In one word, as conditions have it.
        reason: &'static str,
        /// For people.
        message: String,
    },
}

/// What is in force.
#[derive(Debug, Default)]
pub struct EffectiveReservations {
    /// For each network.
    pub reserved: Vec<Reserved>,
    /// What comes of each object.
    pub verdicts: HashMap<String, ReservationVerdict>,
}

/// Judges what is wanted. `own` are this appliance's addresses.
pub fn judge(
    networks: &[NetworkConfig],
    own: &[Ipv4Addr],
    wanted: impl IntoIterator<Item = WantedReservation>,
) -> EffectiveReservations {
    let reserved = networks.iter().map(Reserved::of).collect();
    let mut judged = EffectiveReservations { reserved, verdicts: HashMap::new() };
    let mut owners = BTreeMap::new();
    let mut wanted: Vec<_> = wanted.into_iter().collect();
    wanted.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    for one in wanted {
        let verdict = match place(networks, own, &one, &judged.reserved, &owners) {
            Err((reason, message)) => ReservationVerdict::Fault { reason, message },
            Ok((at, mac, address)) => {
                owners.insert((at, mac), one.name.clone());
                judged.reserved[at].add(mac, ReservedAddress { address, hostname: one.hostname });
                let network = &networks[at];
                ReservationVerdict::InForce { network: network.name.clone(), mac, address, mode: network.mode }
            }
        };
        judged.verdicts.insert(one.name, verdict);
    }
    judged
}

/// The network that a reservation is of, with its machine and address; or why there can be none.
fn place(
    networks: &[NetworkConfig],
    own: &[Ipv4Addr],
    wanted: &WantedReservation,
    reserved: &[Reserved],
    owners: &BTreeMap<(usize, MacAddress), String>,
) -> Result<(usize, MacAddress, Ipv4Addr), (&'static str, String)> {
    let mac: MacAddress =
        wanted.mac.parse().map_err(|error| ("InvalidMACAddress", format!("spec.macAddress: {error}")))?;
    let short: String = wanted.address.chars().take(40).collect();
    let address: Ipv4Addr = wanted
        .address
        .parse()
        .map_err(|_| ("InvalidAddress", format!("spec.address: {short:?} is no IPv4 address")))?;
    if wanted.hostname.as_deref().is_some_and(|name| !is_host_name(name)) {
        let message =
            "spec.hostname: letters, digits, dots and hyphens, at most 253, with a letter or digit at both ends";
        return Err(("InvalidHostname", message.to_owned()));
    }
    let Some(at) = networks.iter().position(|network| network.subnet.contains(address)) else {
        return Err(("NoNetwork", no_network(networks, address)));
    };
    let network = &networks[at];
    let name = &network.name;
    let taken = if address == network.subnet.network() || address == network.subnet.broadcast() {
        Some("no host address")
    } else if own.contains(&address) || network.server == Some(address) {
        Some("this appliance's own address")
    } else if network.router == Some(address) {
        Some("the router")
    } else if network.dns.contains(&address) {
        Some("a DNS server")
    } else {
        None
    };
    if let Some(taken) = taken {
        return Err(("AddressTaken", format!("{address} is {taken} of network {name}")));
    }
    let by = |mac: MacAddress| match owners.get(&(at, mac)) {
        Some(other) => format!("Reservation {other}"),
        None => "slipway.toml".to_owned(),
    };
    if let Some(other) = reserved[at].of_machine(mac) {
        let (other, by) = (other.address, by(mac));
        return Err((
            "DuplicateMACAddress",
            format!("{by} reserves {other} of network {name} for {mac}: a machine has one address in a network"),
        ));
    }
    if let Some(owner) = reserved[at].owner(address) {
        return Err(("DuplicateAddress", format!("{} reserves {address} for {owner}", by(owner))));
    }
    Ok((at, mac, address))
}

fn no_network(networks: &[NetworkConfig], address: Ipv4Addr) -> String {
    let named = networks.iter().take(MOST_NAMED).map(|network| format!("{} ({})", network.name, network.subnet));
    let named: Vec<_> = named.collect();
    let there = if named.is_empty() { "there is none".to_owned() } else { format!("there are {}", named.join(", ")) };
    format!("no network has {address}: {there}")
}

fn is_host_name(name: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    name.len() <= LONGEST_NAME
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks() -> Vec<NetworkConfig> {
        let one = |more: &str| toml::from_str(more).unwrap();
        vec![
            one("name = 'a'\ninterface = 'e0'\nsubnet = '10.0.0.0/24'\nrouter = '10.0.0.1'\ndns = ['10.0.0.2']\n\
                 [[reservation]]\nmac = '02:00:00:00:00:01'\naddress = '10.0.0.10'"),
            one("name = 'b'\ninterface = 'e0'\nsubnet = '10.0.1.0/24'\nmode = 'off'"),
        ]
    }

    fn wanted(name: &str, created: i64, mac: &str, address: &str) -> WantedReservation {
        WantedReservation { name: name.into(), created, mac: mac.into(), address: address.into(), hostname: None }
    }

    /// The reason, or the network.
    fn verdict(judged: &EffectiveReservations, name: &str) -> String {
        match &judged.verdicts[name] {
            ReservationVerdict::InForce { network, .. } => network.clone(),
            ReservationVerdict::Fault { reason, message } => format!("{reason}: {message}"),
        }
    }

    #[test]
    fn what_cannot_be_is_left_out_with_its_reason() {
        let (networks, own) = (networks(), [Ipv4Addr::new(10, 0, 0, 3)]);
        for (mac, address, wanted_verdict) in [
            ("02:00:00:00:00:02", "10.0.0.20", "a"),
            ("02-00-00-00-00-02", "10.0.0.20", "a"),
            ("02:00:00:00:00:01", "10.0.1.20", "b"),
            ("02:00", "10.0.0.20", "InvalidMACAddress: spec.macAddress"),
            ("02:00:00:00:00:02", "10.0.0.400", "InvalidAddress: spec.address"),
            ("02:00:00:00:00:02", "10.0.9.20", "NoNetwork: no network has 10.0.9.20: there are a (10.0.0.0/24), b"),
            ("02:00:00:00:00:02", "10.0.0.0", "AddressTaken: 10.0.0.0 is no host address of network a"),
            ("02:00:00:00:00:02", "10.0.0.255", "AddressTaken"),
            ("02:00:00:00:00:02", "10.0.0.1", "AddressTaken: 10.0.0.1 is the router of network a"),
            ("02:00:00:00:00:02", "10.0.0.2", "AddressTaken: 10.0.0.2 is a DNS server"),
            ("02:00:00:00:00:02", "10.0.0.3", "AddressTaken: 10.0.0.3 is this appliance's own address"),
            ("02:00:00:00:00:01", "10.0.0.20", "DuplicateMACAddress: slipway.toml reserves 10.0.0.10"),
            (
                "02:00:00:00:00:02",
                "10.0.0.10",
                "DuplicateAddress: slipway.toml reserves 10.0.0.10 for 02:00:00:00:00:01",
            ),
        ] {
            let judged = judge(&networks, &own, [wanted("r", 0, mac, address)]);
            let found = verdict(&judged, "r");
            assert!(found.starts_with(wanted_verdict), "{mac} {address}: {found}");
            let count = judged.reserved.iter().map(|one| one.machines().count()).sum::<usize>();
            assert_eq!(count, if wanted_verdict.len() == 1 { 2 } else { 1 }, "{found}");
        }
        let bad =
            WantedReservation { hostname: Some("no host".into()), ..wanted("r", 0, "02:00:00:00:00:02", "10.0.0.20") };
        assert!(verdict(&judge(&networks, &own, [bad]), "r").starts_with("InvalidHostname"));
        assert!(
            verdict(&judge(&[], &own, [wanted("r", 0, "02:00:00:00:00:02", "10.0.0.20")]), "r")
                .contains("there is none")
        );
    }

    #[test]
    fn of_two_the_older_is_in_force() {
        let (first, second) = ("02:00:00:00:00:02", "02:00:00:00:00:03");
        let all = [
            wanted("young", 20, second, "10.0.0.20"),
            wanted("old", 10, first, "10.0.0.20"),
            wanted("again", 30, first, "10.0.0.21"),
            // Of the same second: by name.
            wanted("x", 40, "02:00:00:00:00:04", "10.0.0.30"),
            wanted("w", 40, "02:00:00:00:00:05", "10.0.0.30"),
        ];
        let judged = judge(&networks(), &[], all.clone());
        assert_eq!(verdict(&judged, "old"), "a");
        assert_eq!(
            verdict(&judged, "young"),
            "DuplicateAddress: Reservation old reserves 10.0.0.20 for 02:00:00:00:00:02"
        );
        assert!(verdict(&judged, "again").starts_with("DuplicateMACAddress: Reservation old reserves 10.0.0.20"));
        assert_eq!(verdict(&judged, "w"), "a");
        assert!(verdict(&judged, "x").starts_with("DuplicateAddress: Reservation w"));
        // When it goes, the next one comes alive.
        let left = judge(&networks(), &[], all.into_iter().filter(|one| one.name != "old"));
        assert_eq!((verdict(&left, "young"), verdict(&left, "again")), ("a".into(), "a".into()));
    }
}

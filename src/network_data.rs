//! OpenStack network data, parsed.
//!
//! Network data in OpenStack's form (`network_data.json`), read into a plan: what a site without DHCP says of its
//! machines' network. The appliance reads it before it is given to a machine, the agent before it is done.
//!
//! Links: `phy` (and what hypervisors call it), `bond`, `vlan`. Networks: `ipv4` and `ipv6` with addresses and routes,
//! `ipv4_dhcp`. Name servers are passed over: the ramdisk resolves no names. What else a link or network may be called
//! is an error, so that nobody waits for an address that never comes.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::api::MacAddress;

/// Largest document, in bytes.
pub const MAX_NETWORK_DATA: usize = 24 << 10;
/// Links, networks and routes of one network that are read.
const MOST: usize = 64;
/// Types that mean a network card. Hypervisors name theirs after what is at the other end.
const PHYSICAL: [&str; 10] =
    ["phy", "ethernet", "ovs", "bridge", "tap", "vhostuser", "vif", "hw_veb", "hostdev_physical", "macvtap"];
/// `bond_mode` of the kernel's bonding driver, by number.
const BOND_MODES: [&str; 7] =
    ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];

/// What is said of a document in YAML that cannot be read: where, and nothing of what stands there, because it is a Secret's.
pub fn unreadable(error: &serde_saphyr::Error) -> String {
    match error.location() {
        Some(place) => format!("it is neither JSON nor YAML: see line {}, column {}", place.line(), place.column()),
        None => "it is neither JSON nor YAML".to_owned(),
    }
}

/// Why network data cannot be used. The text names the place, and none of the values: who reads it may not read the Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not JSON or YAML, or not a map.
    #[error("network data is not usable: {0}")]
    Document(String),
    /// Larger than [`MAX_NETWORK_DATA`].
    #[error("network data has {0} bytes; {MAX_NETWORK_DATA} are the limit")]
    TooLarge(usize),
    /// A key is absent, or its value cannot be used.
    #[error("network data: {0}")]
    Value(String),
}

/// What the machine's network shall be. Links come before those that are made of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPlan {
    /// The links.
    pub links: Vec<Link>,
}

/// A link with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its `id` in the document.
    pub id: String,
    /// What it is.
    pub kind: LinkType,
    /// 576 to 9216.
    pub mtu: Option<u32>,
    /// Addresses with their prefixes.
    pub addresses: Vec<IpNetwork>,
    /// Routes, default routes included.
    pub routes: Vec<StaticRoute>,
    /// It asks for an IPv4 address.
    pub dhcp: bool,
}

/// What a link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// The network card with this address.
    Card(MacAddress),
    /// A bond.
    Bond {
        /// Its links, by place in [`NetworkPlan::links`].
        of: Vec<usize>,
        /// The kernel's number of its mode, 0 to 6.
        mode: u8,
        /// Milliseconds between two looks at the links.
        miimon: u32,
        /// 0 layer 2, 1 layers 3 and 4, 2 layers 2 and 3.
        hash: Option<u8>,
        /// Its own address.
        mac: Option<MacAddress>,
    },
    /// A VLAN.
    Vlan {
        /// The link it is on, by place in [`NetworkPlan::links`].
        on: usize,
        /// 1 to 4094.
        id: u16,
        /// Its own address.
        mac: Option<MacAddress>,
    },
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticRoute {
    /// Where to.
    pub to: IpNetwork,
    /// By this router; directly when none.
    pub via: Option<IpAddr>,
}

impl NetworkPlan {
    /// Reads a document, JSON or YAML. Empty text is no plan.
    ///
    /// # Errors
    /// [`PlanError`] names what cannot be used.
    pub fn parse(text: &[u8]) -> Result<Option<Self>, PlanError> {
        if text.len() > MAX_NETWORK_DATA {
            return Err(PlanError::TooLarge(text.len()));
        }
        let text = std::str::from_utf8(text).map_err(|error| PlanError::Document(error.to_string()))?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let document: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(json) if text.trim_start().starts_with('{') => return Err(PlanError::Document(json.to_string())),
            Err(_) => serde_saphyr::from_str(text).map_err(|error| PlanError::Document(unreadable(&error)))?,
        };
        match document {
            Value::Null => Ok(None),
            Value::Object(_) => Self::read(&document).map(Some),
            _ => Err(PlanError::Document("it must be a map".into())),
        }
    }

    fn read(document: &Value) -> Result<Self, PlanError> {
        let mut plan = Self::default();
        let mut waiting: Vec<&Value> = list(document, "links")?.iter().collect();
        // A link comes after those it is made of, in whatever order they are written.
        while !waiting.is_empty() {
            let before = waiting.len();
            let mut rest = Vec::new();
            for link in waiting {
                match plan.link(link)? {
                    Some(ready) if plan.place(&ready.id).is_some() => {
                        return Err(PlanError::Value(format!("two links have the id {:?}", ready.id)));
                    }
                    Some(ready) => plan.links.push(ready),
                    None => rest.push(link),
                }
            }
            if rest.len() == before {
                let id = text(rest[0], "id").unwrap_or_default();
                return Err(PlanError::Value(format!("link {id:?} is made of links that are not there")));
            }
            waiting = rest;
        }
        for network in list(document, "networks")? {
            plan.network(network)?;
        }
        if !plan.links.iter().any(|link| link.dhcp || !link.addresses.is_empty()) {
            return Err(PlanError::Value("no network gives any link an address".into()));
        }
        Ok(plan)
    }

    fn place(&self, id: &str) -> Option<usize> {
        self.links.iter().position(|link| link.id == id)
    }

    /// A link, or none as long as one that it is made of was not read.
    fn link(&self, link: &Value) -> Result<Option<Link>, PlanError> {
        let id = text(link, "id").ok_or_else(|| PlanError::Value("a link has no id".into()))?;
        let wrong = |what: String| PlanError::Value(format!("link {id:?}: {what}"));
        let mac = |key: &str| -> Result<Option<MacAddress>, PlanError> {
            let Some(written) = text(link, key) else { return Ok(None) };
            written.parse().map(Some).map_err(|_| wrong(format!("{key} is not a MAC address")))
        };
        let type_ = text(link, "type").unwrap_or_else(|| "phy".into());
        let kind = match type_.as_str() {
            "bond" => {
                let names: Vec<&str> = list(link, "bond_links")?.iter().filter_map(Value::as_str).collect();
                if names.is_empty() {
                    return Err(wrong("bond_links is missing".into()));
                }
                let Some(of) = names.iter().map(|name| self.place(name)).collect::<Option<Vec<usize>>>() else {
                    return Ok(None);
                };
                if of.iter().any(|at| !matches!(self.links[*at].kind, LinkType::Card(_))) {
                    return Err(wrong("a bond is made of network cards".into()));
                }
                let mode = text(link, "bond_mode").unwrap_or_else(|| "active-backup".into());
                let known = BOND_MODES.iter().position(|name| *name == mode).or_else(|| mode.parse().ok());
                let mode = known
                    .and_then(|number| u8::try_from(number).ok())
                    .filter(|number| usize::from(*number) < BOND_MODES.len())
                    .ok_or_else(|| wrong(format!("bond_mode is not one of {}", BOND_MODES.join(", "))))?;
                let hash = match text(link, "bond_xmit_hash_policy").as_deref() {
                    None => None,
                    Some("layer2") => Some(0),
                    Some("layer3+4") => Some(1),
                    Some("layer2+3") => Some(2),
                    Some(_) => return Err(wrong("bond_xmit_hash_policy is not known".into())),
                };
                let miimon = number(link, "bond_miimon").unwrap_or(100).clamp(10, 10_000);
                LinkType::Bond { of, mode, miimon, hash, mac: mac("ethernet_mac_address")? }
            }
            "vlan" => {
                let under = text(link, "vlan_link").ok_or_else(|| wrong("vlan_link is missing".into()))?;
                let Some(on) = self.place(&under) else { return Ok(None) };
                if matches!(self.links[on].kind, LinkType::Vlan { .. }) {
                    return Err(wrong("a VLAN is on a network card or a bond".into()));
                }
                let tag = number(link, "vlan_id").filter(|tag| (1..=4094).contains(tag));
                let tag = tag.ok_or_else(|| wrong("vlan_id must be 1 to 4094".into()))?;
                LinkType::Vlan { on, id: tag as u16, mac: mac("vlan_mac_address")? }
            }
            other if PHYSICAL.contains(&other) => {
                let mac = mac("ethernet_mac_address")?;
                LinkType::Card(mac.ok_or_else(|| wrong("ethernet_mac_address is missing".into()))?)
            }
            _ => return Err(wrong("its type is not phy, bond or vlan".into())),
        };
        let mtu = match &link["mtu"] {
            Value::Null => None,
            _ => Some(
                number(link, "mtu")
                    .filter(|mtu| (576..=9216).contains(mtu))
                    .ok_or_else(|| wrong("mtu must be 576 to 9216".into()))?,
            ),
        };
        Ok(Some(Link { id, kind, mtu, addresses: Vec::new(), routes: Vec::new(), dhcp: false }))
    }

    fn network(&mut self, network: &Value) -> Result<(), PlanError> {
        let name = text(network, "id").unwrap_or_default();
        let wrong = |what: String| PlanError::Value(format!("network {name:?}: {what}"));
        let under = text(network, "link").ok_or_else(|| wrong("link is missing".into()))?;
        let at = self.place(&under).ok_or_else(|| wrong(format!("there is no link {under:?}")))?;
        if self.links.iter().any(|link| matches!(&link.kind, LinkType::Bond { of, .. } if of.contains(&at))) {
            return Err(wrong(format!("link {under:?} is part of a bond: the bond has the address")));
        }
        let type_ = text(network, "type").unwrap_or_default();
        match type_.as_str() {
            "ipv4_dhcp" => self.links[at].dhcp = true,
            "ipv4" | "ipv6" => {
                let v6 = type_ == "ipv6";
                let address = text(network, "ip_address").ok_or_else(|| wrong("ip_address is missing".into()))?;
                let mask = text(network, "netmask");
                let address = subnet(&address, mask.as_deref(), v6).map_err(&wrong)?;
                let link = &mut self.links[at];
                link.addresses.push(address);
                let gateway = |text: String| -> Result<IpAddr, PlanError> {
                    let found = text.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv6() == v6);
                    found.ok_or_else(|| wrong("a gateway is not an address of the network's kind".to_owned()))
                };
                if let Some(via) = text(network, "gateway") {
                    let via = gateway(via)?;
                    link.routes.push(StaticRoute { to: everything(v6), via: Some(via) });
                }
                for route in list(network, "routes")? {
                    let to = text(route, "network").ok_or_else(|| wrong("a route has no network".into()))?;
                    let mask = text(route, "netmask").or_else(|| (!to.contains('/')).then(|| "0".into()));
                    let to = subnet(&to, mask.as_deref(), v6).map_err(&wrong)?;
                    let via = text(route, "gateway").map(&gateway).transpose()?;
                    let to = IpNetwork::new(to.network(), to.prefix()).unwrap_or(to);
                    let route = StaticRoute { to, via };
                    if !link.routes.contains(&route) {
                        link.routes.push(route);
                    }
                }
            }
            _ => {
                return Err(wrong("its type is not ipv4, ipv6 or ipv4_dhcp".into()));
            }
        }
        Ok(())
    }

    /// The addresses that the plan gives, for finding the way to the machine.
    pub fn addresses(&self) -> impl Iterator<Item = IpNetwork> + '_ {
        self.links.iter().flat_map(|link| link.addresses.iter().copied())
    }
}

fn everything(v6: bool) -> IpNetwork {
    match v6 {
        true => IpNetwork::V6(ipnetwork::Ipv6Network::from(std::net::Ipv6Addr::UNSPECIFIED)).with_prefix(0),
        false => IpNetwork::V4(ipnetwork::Ipv4Network::from(std::net::Ipv4Addr::UNSPECIFIED)).with_prefix(0),
    }
}

trait WithPrefix {
    fn with_prefix(self, prefix: u8) -> Self;
}

impl WithPrefix for IpNetwork {
    fn with_prefix(self, prefix: u8) -> Self {
        Self::new(self.ip(), prefix).unwrap_or(self)
    }
}

/// `address/prefix`, or an address and a mask as dotted numbers or as a prefix. Without either the address is alone.
fn subnet(address: &str, mask: Option<&str>, v6: bool) -> Result<IpNetwork, String> {
    let (ip, prefix) = match address.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (address, mask),
    };
    let ip: IpAddr = ip.parse().map_err(|_| "an address is not an IP address".to_owned())?;
    if ip.is_ipv6() != v6 {
        return Err(format!("an address is not one of IP version {}", if v6 { 6 } else { 4 }));
    }
    let bad = || "a mask is not one for its address".to_owned();
    let prefix = match prefix {
        None => {
            if v6 {
                128
            } else {
                32
            }
        }
        Some(text) => match (text.parse::<u8>(), text.parse::<IpAddr>()) {
            (Ok(prefix), _) => prefix,
            (_, Ok(mask)) if mask.is_ipv6() == v6 => ipnetwork::ip_mask_to_prefix(mask).map_err(|_| bad())?,
            _ => return Err(bad()),
        },
    };
    IpNetwork::new(ip, prefix).map_err(|_| bad())
}

fn list<'a>(of: &'a Value, key: &str) -> Result<&'a [Value], PlanError> {
    match &of[key] {
        Value::Null => Ok(&[]),
        Value::Array(items) if items.len() <= MOST => Ok(items),
        Value::Array(items) => {
            Err(PlanError::Value(format!("{key} has {} entries; {MOST} are the limit", items.len())))
        }
        _ => Err(PlanError::Value(format!("{key} must be a list"))),
    }
}

/// A text, or a number written as one.
fn text(of: &Value, key: &str) -> Option<String> {
    let text = match &of[key] {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then(|| text.chars().take(128).collect())
}

fn number(of: &Value, key: &str) -> Option<u32> {
    text(of, key)?.parse().ok()
}

#[cfg(test)]
mod tests;

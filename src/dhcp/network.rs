//! A network as answers need it: the configuration, with what can be worked out once worked out.

use std::net::Ipv4Addr;
use std::sync::Arc;

use dhcproto::v4::DhcpOption;
use dhcproto::{Encodable, Encoder};
use ipnetwork::Ipv4Network;

use crate::api::MacAddress;
use crate::boot::HostIndex;
use crate::config::{NetworkConfig, NetworkMode};

use super::ServicePorts;
use super::packet::DhcpRequest;
use super::reserved::{Reserved, ReservedAddress};
use super::table::LeaseTable;

/// A network that is served.
#[derive(Clone, Debug)]
pub struct ServedNetwork {
    /// Name, as leases show it.
    pub name: String,
    /// Its subnet.
    pub subnet: Ipv4Network,
    /// This appliance's address there.
    pub server: Ipv4Addr,
    /// How DHCP behaves there.
    pub mode: NetworkMode,
    /// Whether unknown machines report themselves.
    pub discovery: bool,
    /// How long a lease holds, in seconds.
    pub lease: u32,
    /// How long a guest's lease holds, in seconds.
    pub guest_lease: u32,
    /// Where boot files are.
    pub service_ports: ServicePorts,
    /// Whether machines answer by ARP.
    check_cards: bool,
    /// Relays that messages are taken from; from any when empty.
    relays: Vec<Ipv4Addr>,
    /// As they were before the messages that came last.
    reserved: Arc<Reserved>,
    /// Options that are the same in every answer, encoded, in the order they are added when the client wants all.
    options: Vec<(u8, Vec<u8>)>,
}

impl ServedNetwork {
    /// A network whose server address is known.
    pub fn new(config: &NetworkConfig, server: Ipv4Addr, service_ports: ServicePorts) -> Self {
        let mut options = vec![DhcpOption::SubnetMask(config.subnet.mask())];
        options.extend(config.router.map(|router| DhcpOption::Router(vec![router])));
        if !config.dns.is_empty() {
            options.push(DhcpOption::DomainNameServer(config.dns.clone()));
        }
        options.extend(config.domain.clone().map(DhcpOption::DomainName));
        options.push(DhcpOption::BroadcastAddr(config.subnet.broadcast()));
        if !config.ntp.is_empty() {
            options.push(DhcpOption::NtpServers(config.ntp.clone()));
        }
        Self {
            name: config.name.clone(),
            subnet: config.subnet,
            server,
            mode: config.mode,
            discovery: config.discovery,
            lease: seconds(config.lease.0),
            guest_lease: seconds(config.unknown_lease.0.min(config.lease.0)),
            service_ports,
            check_cards: config.check_cards,
            relays: config.relays.clone(),
            reserved: Arc::new(Reserved::of(config)),
            options: options.iter().filter_map(encode).map(|bytes| (bytes[0], bytes)).collect(),
        }
    }

    /// Whether this appliance is in the network itself, not behind a relay.
    pub fn is_here(&self) -> bool {
        self.subnet.contains(self.server)
    }

    /// Whether it can be asked by ARP who uses an address that answers this message.
    pub fn can_probe(&self, request: &DhcpRequest<'_>) -> bool {
        self.check_cards && request.giaddr.is_unspecified() && self.is_here()
    }

    /// Whether a message is taken here: when relays are named, by one of them, or from a machine that is here itself.
    pub fn takes(&self, request: &DhcpRequest<'_>) -> bool {
        let direct = request.giaddr.is_unspecified() && self.is_here();
        self.relays.is_empty() || direct || self.relays.contains(&request.giaddr)
    }

    /// The reservation of a machine.
    pub fn reservation(&self, mac: MacAddress) -> Option<&ReservedAddress> {
        self.reserved.of_machine(mac)
    }

    /// Goes by these reservations from now on.
    pub fn set_reserved(&mut self, reserved: Arc<Reserved>) {
        self.reserved = reserved;
    }

    /// Whether a machine is known on this network: it has a reservation here, or is the boot address of a registered host whose machine
    /// is not at home in another network of these names (`boot::home`). Anybody can ask for an address in its name, in any network.
    pub fn knows(&self, mac: MacAddress, hosts: &HostIndex, is_network: impl Fn(&str) -> bool) -> bool {
        let is_away = |home: &str| !home.is_empty() && home != self.name && is_network(home);
        self.reservation(mac).is_some() || hosts.registered(mac).is_some_and(|host| !is_away(&host.ownership.home))
    }

    /// Whose reservation an address is.
    pub fn reserved_for(&self, address: Ipv4Addr) -> Option<MacAddress> {
        self.reserved.owner(address)
    }

    /// An option that is the same in every answer, encoded.
    pub fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.iter().find(|(other, _)| *other == code).map(|(_, bytes)| bytes.as_slice())
    }

    /// Codes of the options that are the same in every answer.
    pub fn option_codes(&self) -> impl Iterator<Item = u8> {
        self.options.iter().map(|(code, _)| *code)
    }

    /// `http://SERVER[:PORT]`
    pub fn http(&self) -> String {
        match self.service_ports.http_port {
            80 => format!("http://{}", self.server),
            port => format!("http://{}:{port}", self.server),
        }
    }

    /// Name that a server gives as its identifier: ours, unless a relay asks for another (RFC 5107).
    pub fn server_id(&self, request: &DhcpRequest<'_>) -> Ipv4Addr {
        request.server_id_override().unwrap_or(self.server)
    }
}

fn seconds(span: std::time::Duration) -> u32 {
    u32::try_from(span.as_secs()).unwrap_or(u32::MAX - 1)
}

/// An empty lease table for a network, which keeps a tenth of it free of guests: its pool without reservations, router, server, and the subnet's own addresses.
pub fn empty_table(config: &NetworkConfig) -> LeaseTable {
    let mut table = LeaseTable::default();
    table.draw_from(config.pool.clone(), never_given(config), config.reservations.iter().map(|it| it.address));
    table
}

/// Addresses of a network that are never given from its pool, whatever is reserved.
pub fn never_given(config: &NetworkConfig) -> Vec<Ipv4Addr> {
    let own = [config.subnet.network(), config.subnet.broadcast()];
    own.into_iter().chain(config.router).chain(config.server).chain(config.dns.iter().copied()).collect()
}

/// An option as bytes: code, length, data, and again for each further 255 bytes.
pub(super) fn encode(option: &DhcpOption) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16);
    option.encode(&mut Encoder::new(&mut bytes)).ok()?;
    (!bytes.is_empty()).then_some(bytes)
}

/// The network that a message is for, among those on one interface. A relayed message names its subnet; a direct one
/// is for the first network that this machine has an address in. `None` when there is none, as when a relay asks for a
/// subnet that is not served here.
pub fn select<'n>(
    networks: impl IntoIterator<Item = &'n ServedNetwork>,
    request: &DhcpRequest<'_>,
) -> Option<&'n ServedNetwork> {
    let mut networks = networks.into_iter();
    match request.subnet_hint() {
        Some(hint) => networks.find(|network| network.subnet.contains(hint)),
        None => networks.find(|network| network.is_here()),
    }
}

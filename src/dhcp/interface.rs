//! Network interfaces of this machine.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use ipnetwork::Ipv4Network;
use nix::sys::socket::LinkAddr;

use crate::api::MacAddress;

/// How often it is looked which interfaces there are, and what they have.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// An interface.
#[derive(Clone, Debug, Default)]
pub struct ServedInterface {
    /// Its IPv4 addresses, in the kernel's order.
    pub addresses: Vec<Ipv4Addr>,
    /// What is on its link, by its addresses' netmasks.
    pub(super) links: Vec<Ipv4Network>,
    /// Its address on the link, with its number; none for interfaces without a link layer.
    pub(super) link: Option<LinkAddr>,
}

impl ServedInterface {
    /// Hardware address.
    pub fn mac(&self) -> Option<MacAddress> {
        self.link.and_then(|link| link.addr()).map(MacAddress)
    }

    /// Its first address in the subnet.
    pub fn address_in(&self, subnet: Ipv4Network) -> Option<Ipv4Addr> {
        self.addresses.iter().copied().find(|address| subnet.contains(*address))
    }
}

/// Every interface by name.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn interfaces() -> io::Result<BTreeMap<String, ServedInterface>> {
    let mut found: BTreeMap<String, ServedInterface> = BTreeMap::new();
    for entry in nix::ifaddrs::getifaddrs()? {
        // Labels such as eth0:1 are addresses of eth0.
        let name = entry.interface_name.split(':').next().unwrap_or_default().to_owned();
        let interface = found.entry(name).or_default();
        let Some(address) = entry.address else { continue };
        if let Some(address) = address.as_sockaddr_in() {
            interface.addresses.push(address.ip());
            let mask = entry.netmask.as_ref().and_then(|mask| mask.as_sockaddr_in()).map(|mask| mask.ip());
            interface.links.extend(mask.and_then(|mask| Ipv4Network::with_netmask(address.ip(), mask).ok()));
        }
        if let Some(link) = address.as_link_addr() {
            interface.link = Some(*link);
        }
    }
    Ok(found)
}

/// This machine's address on an interface in a subnet. `None` when there is no such interface or address.
pub fn interface_address(interface: &str, subnet: Ipv4Network) -> Option<Ipv4Addr> {
    interfaces().ok()?.get(interface)?.address_in(subnet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_with_its_address() {
        let subnet = "127.0.0.0/8".parse().expect("a subnet");
        assert_eq!(interface_address("lo", subnet), Some(Ipv4Addr::LOCALHOST));
        assert_eq!(interface_address("lo", "192.0.2.0/24".parse().expect("a subnet")), None);
        assert_eq!(interface_address("no-such-one", subnet), None);
    }
}

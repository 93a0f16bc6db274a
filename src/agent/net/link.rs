//! Interfaces: what sysfs says of them, and the few rtnetlink requests that the agent makes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnetwork::IpNetwork;
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::{AddressMessageBuilder, Handle, LinkBond, LinkUnspec, LinkVlan, RouteMessageBuilder};

use super::dhcp::ClientLease;
use crate::api::MacAddress;
use crate::network_data::StaticRoute;

/// ARPHRD_ETHER of `linux/if_arp.h`.
const ETHERNET: &str = "1";

/// An Ethernet interface of real hardware (or what a hypervisor passes for it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthernetInterface {
    /// Kernel name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// Hardware address.
    pub mac: MacAddress,
    /// Whether there is a link; false while the interface is down.
    pub carrier: bool,
    /// Driver, empty when unknown.
    pub driver: String,
}

impl EthernetInterface {
    /// Whether a switch port may be at the other end: hypervisors' own bridges do not speak LLDP.
    pub fn has_switch(&self) -> bool {
        !matches!(self.driver.as_str(), "virtio_net" | "vmxnet3" | "hv_netvsc" | "xen_netfront" | "vif")
    }
}

/// Every Ethernet interface that has a device behind it, by name.
pub fn interfaces(root: &Path) -> Vec<EthernetInterface> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(root.join("sys/class/net")) else { return found };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if let Some(interface) = interface(&entry.path(), name) {
            found.push(interface);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn interface(path: &Path, name: String) -> Option<EthernetInterface> {
    let read = |file: &str| std::fs::read_to_string(path.join(file)).map(|text| text.trim().to_owned()).ok();
    if read("type")? != ETHERNET || !path.join("device").exists() {
        return None;
    }
    let driver = std::fs::read_link(path.join("device/driver"))
        .ok()
        .and_then(|link| Some(link.file_name()?.to_str()?.to_owned()))
        .unwrap_or_default();
    Some(EthernetInterface {
        name,
        index: read("ifindex")?.parse().ok()?,
        mac: read("address")?.parse().ok()?,
        carrier: read("carrier").as_deref() == Some("1"),
        driver,
    })
}

/// Changes interfaces through rtnetlink. Needs CAP_NET_ADMIN. Cheap to clone.
#[derive(Clone)]
pub struct LinkControl {
    handle: Handle,
}

impl LinkControl {
    /// Opens the netlink socket; its task runs until the last clone is dropped.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open() -> std::io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Brings the interface up and lets all multicast in, which LLDP needs.
    ///
    /// # Errors
    /// What the kernel says; many drivers report missing firmware here.
    pub async fn up(&self, index: u32) -> Result<(), rtnetlink::Error> {
        let up = LinkUnspec::new_with_index(index).up().allmulticast(true).build();
        self.handle.link().set(up).execute().await
    }

    /// Gives the interface its leased address, MTU and default route. `metric` orders the default routes of several
    /// interfaces, lowest first.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn apply(&self, index: u32, lease: &ClientLease, metric: u32) -> Result<(), rtnetlink::Error> {
        if let Some(mtu) = lease.mtu {
            let set = LinkUnspec::new_with_index(index).mtu(mtu).build();
            if let Err(error) = self.handle.link().set(set).execute().await {
                tracing::warn!(mtu, %error, "cannot set the MTU from DHCP");
            }
        }
        self.handle.address().add(index, lease.address.into(), lease.prefix).replace().execute().await?;
        match default_route(index, lease, metric) {
            Some(route) => self.handle.route().add(route).replace().execute().await,
            None => Ok(()),
        }
    }

    /// Takes the leased address away, and with it its routes.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn remove(&self, index: u32, lease: &ClientLease) -> Result<(), rtnetlink::Error> {
        let address =
            AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(lease.address, lease.prefix).build();
        self.handle.address().del(address).execute().await
    }

    /// Sets the MTU.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), rtnetlink::Error> {
        self.handle.link().set(LinkUnspec::new_with_index(index).mtu(mtu).build()).execute().await
    }

    /// Adds an address; one that is there already stays.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn add_address(&self, index: u32, address: IpNetwork) -> Result<(), rtnetlink::Error> {
        self.handle.address().add(index, address.ip(), address.prefix()).replace().execute().await
    }

    /// Adds a route. `metric` orders the default routes of several interfaces, lowest first. Its router counts as
    /// reachable, be it in a subnet of the interface or not.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn add_route(&self, index: u32, route: &StaticRoute, metric: u32) -> Result<(), rtnetlink::Error> {
        let message = match (route.to, route.via) {
            (IpNetwork::V4(to), via) => {
                let message = RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(to.network(), to.prefix())
                    .output_interface(index)
                    .priority(metric);
                match via {
                    Some(IpAddr::V4(via)) => message.gateway(via).onlink().build(),
                    _ => message.build(),
                }
            }
            (IpNetwork::V6(to), via) => {
                let message = RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(to.network(), to.prefix())
                    .output_interface(index)
                    .priority(metric);
                match via {
                    Some(IpAddr::V6(via)) => message.gateway(via).onlink().build(),
                    _ => message.build(),
                }
            }
        };
        self.handle.route().add(message).replace().execute().await
    }

    /// Makes a bond. Needs the module `bonding`.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn add_bond(
        &self,
        name: &str,
        mode: u8,
        miimon: u32,
        hash: Option<u8>,
        mac: Option<MacAddress>,
    ) -> Result<(), rtnetlink::Error> {
        let mut bond = LinkBond::new(name).mode(mode.into()).miimon(miimon);
        if let Some(hash) = hash {
            bond = bond.xmit_hash_policy(hash.into());
        }
        if let Some(mac) = mac {
            bond = bond.address(mac.0.to_vec());
        }
        self.handle.link().add(bond.build()).execute().await
    }

    /// Makes a VLAN on an interface. Needs the module `8021q`.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn add_vlan(
        &self,
        name: &str,
        on: u32,
        id: u16,
        mac: Option<MacAddress>,
    ) -> Result<(), rtnetlink::Error> {
        let mut vlan = LinkVlan::new(name, on, id);
        if let Some(mac) = mac {
            vlan = vlan.address(mac.0.to_vec());
        }
        self.handle.link().add(vlan.build()).execute().await
    }

    /// Makes an interface part of a bond. The kernel takes only one that is down, and brings it up again.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn enslave(&self, member: u32, bond: u32) -> Result<(), rtnetlink::Error> {
        self.handle.link().set(LinkUnspec::new_with_index(member).down().build()).execute().await?;
        self.handle.link().set(LinkUnspec::new_with_index(member).controller(bond).build()).execute().await?;
        self.up(member).await
    }
}

/// Index of an interface, as the kernel has it.
pub fn index(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}

/// Hardware address of an interface.
pub fn address(name: &str) -> Option<MacAddress> {
    std::fs::read_to_string(Path::new("/sys/class/net").join(name).join("address")).ok()?.trim().parse().ok()
}

fn default_route(index: u32, lease: &ClientLease, metric: u32) -> Option<RouteMessage> {
    let router = lease.router.filter(|router| *router != lease.address)?;
    let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(router).output_interface(index).priority(metric);
    // A router outside the subnet, as some hosters' networks have it.
    Some(if same_subnet(router, lease) { route.build() } else { route.onlink().build() })
}

/// Whether an address is in the lease's subnet.
pub fn same_subnet(address: Ipv4Addr, lease: &ClientLease) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(lease.prefix)).unwrap_or(0);
    u32::from(address) & mask == u32::from(lease.address) & mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_ethernet_with_a_device_is_found() {
        let root = tempfile::tempdir().unwrap();
        let net = root.path().join("sys/class/net");
        let make = |name: &str, kind: &str, device: bool, carrier: &str| {
            let path = net.join(name);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in
                [("type", kind), ("ifindex", "7"), ("address", "52:54:00:00:00:01"), ("carrier", carrier)]
            {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
            if device {
                fs::create_dir_all(path.join("device")).unwrap();
                symlink("../../../../bus/virtio/drivers/virtio_net", path.join("device/driver")).unwrap();
            }
        };
        make("eth1", "1", true, "0");
        make("eth0", "1", true, "1");
        make("lo", "772", false, "1");
        make("ib0", "32", true, "1");
        make("bond0", "1", false, "1");
        fs::create_dir_all(net.join("broken/device")).unwrap();
        fs::write(net.join("bonding_masters"), "bond0").unwrap();
        let found = interfaces(root.path());
        assert_eq!(found.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["eth0", "eth1"]);
        assert!(found[0].carrier && !found[1].carrier);
        assert_eq!((found[0].index, found[0].driver.as_str()), (7, "virtio_net"));
        assert!(!found[0].has_switch());
        assert!(interfaces(Path::new("/nonexistent")).is_empty());
    }
}

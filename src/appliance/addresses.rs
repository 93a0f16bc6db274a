//! The appliance's own names and addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::config::{Config, NetworkConfig, NetworkMode};
use crate::dhcp;

/// The API's address as others reach it: the first of `api.names`, else the address that it listens on, else the
/// first network's, else this host.
pub fn endpoint(config: &Config) -> String {
    let port = config.api.listen.port();
    let host = match config.api.names.first() {
        Some(name) => name.clone(),
        None if !config.api.listen.ip().is_unspecified() => config.api.listen.ip().to_string(),
        None => {
            let own = config.networks.first().and_then(own_address);
            own.map_or_else(|| "127.0.0.1".to_owned(), |address| address.to_string())
        }
    };
    if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
}

/// This appliance's address on a network.
fn own_address(network: &NetworkConfig) -> Option<Ipv4Addr> {
    network.server.or_else(|| dhcp::interface_address(&network.interface, network.subnet))
}

/// This appliance's address on the first network that it serves.
pub(super) fn first_own_address(config: &Config) -> Option<IpAddr> {
    let served = config.networks.iter().filter(|network| network.mode != NetworkMode::Off);
    served.filter_map(own_address).next().map(IpAddr::V4)
}

/// The address that a listener is bound to, if it is one.
pub(super) fn specific(listen: SocketAddr) -> Option<IpAddr> {
    Some(listen.ip()).filter(|ip| !ip.is_unspecified())
}

/// Everything that the server's certificate must name.
pub fn certificate_names(config: &Config) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    if let Ok(name) = nix::unistd::gethostname() {
        names.push(name.to_string_lossy().into_owned());
    }
    names.extend(config.api.names.iter().cloned());
    names.extend(config.boot.advertise.map(|address| address.to_string()));
    names.extend(config.networks.iter().filter_map(own_address).map(|address| address.to_string()));
    let interfaces = dhcp::interfaces().unwrap_or_default();
    names.extend(interfaces.values().flat_map(|i| i.addresses.iter()).map(ToString::to_string));
    let mut seen = BTreeSet::new();
    names.retain(|name| !name.is_empty() && seen.insert(name.clone()));
    names
}

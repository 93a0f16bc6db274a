//! Resolving a BMC's address: the addresses behind the host of `spec.bmc.address`, each judged.

use std::net::SocketAddr;
use std::time::Duration;

use super::address::BmcHost;
use super::{BmcAddress, BmcError};
use crate::outbound::{self, Guard};

/// How long a name may take to resolve.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of a BMC in the order in which they are tried: of a name the lowest IPv4 and the lowest IPv6 address, so
/// that it is the same machine each time, whatever order DNS has today and whichever others are behind the name. Where
/// addresses are judged, of those that are fine.
///
/// # Errors
///
/// [`BmcError::Address`] when the appliance does not connect there, [`BmcError::Unreachable`] when the name cannot be
/// resolved within five seconds.
pub async fn locate(address: &BmcAddress, guard: Option<&Guard>) -> Result<Vec<SocketAddr>, BmcError> {
    let name = match &address.host {
        BmcHost::Ip(ip) => {
            let address = SocketAddr::new(*ip, address.port);
            guard.map_or(Ok(()), |guard| guard.judge(address))?;
            return Ok(vec![address]);
        }
        BmcHost::Name(name) => name.as_str(),
    };
    let unreachable = |reason: String| BmcError::Unreachable { peer: address.peer(), reason };
    let lookup = async {
        match guard {
            Some(guard) => guard.resolve(name, address.port).await,
            None => outbound::lookup(name, address.port).await,
        }
    };
    match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
        Ok(Ok(found)) if found.is_empty() => Err(unreachable("its name has no address".into())),
        Ok(Ok(found)) => Ok(chosen(found)),
        Ok(Err(error)) => Err(match outbound::refusal(&error) {
            Some(refused) => refused.clone().into(),
            None => unreachable(format!("its name cannot be resolved: {error}")),
        }),
        Err(_) => Err(unreachable("its name cannot be resolved: the DNS server does not answer".into())),
    }
}

/// The lowest address of each family.
fn chosen(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let plain = |place: SocketAddr| SocketAddr::new(place.ip().to_canonical(), place.port());
    let mut found: Vec<_> = found.into_iter().map(plain).collect();
    found.sort();
    found.dedup_by_key(|place| place.is_ipv4());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_machine_in_whatever_order_its_addresses_come() {
        for (found, want) in [
            (&["10.0.0.9:623"][..], &["10.0.0.9:623"][..]),
            (&["10.0.0.9:623", "10.0.0.10:623", "9.9.9.9:623"], &["9.9.9.9:623"]),
            (&["9.9.9.9:623", "10.0.0.10:623", "10.0.0.9:623"], &["9.9.9.9:623"]),
            (&["[2001:db8::2]:443", "10.0.0.9:443", "[2001:db8::1]:443"], &["10.0.0.9:443", "[2001:db8::1]:443"]),
            (&["[2001:db8::2]:443", "[2001:db8::1]:443"], &["[2001:db8::1]:443"]),
            (&["[::ffff:10.0.0.9]:443", "10.0.0.9:443"], &["10.0.0.9:443"]),
            (&[], &[]),
        ] {
            let places = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a place")).collect();
            let (found, want): (Vec<SocketAddr>, Vec<_>) = (places(found), places(want));
            assert_eq!(chosen(found.clone()), want, "{found:?}");
        }
    }
}

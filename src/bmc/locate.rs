//! Where a BMC is: the addresses behind the host of `spec.bmc.address`, each judged.

use std::net::SocketAddr;
use std::time::Duration;

use super::address::BmcHost;
use super::{BmcAddress, BmcError};
use crate::outbound::{self, Guard};

/// How long a name may take to resolve.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses of one name that are tried.
const MOST: usize = 4;

/// The addresses of a BMC, at most four, in the order in which they are tried. Where addresses are judged, those that are
/// fine.
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
            None => Ok(tokio::net::lookup_host((name, address.port)).await?.collect()),
        }
    };
    match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
        Ok(Ok(found)) if found.is_empty() => Err(unreachable("its name has no address".into())),
        Ok(Ok(found)) => Ok(found.into_iter().take(MOST).collect()),
        Ok(Err(error)) => Err(match outbound::refusal(&error) {
            Some(refused) => refused.clone().into(),
            None => unreachable(format!("its name cannot be resolved: {error}")),
        }),
        Err(_) => Err(unreachable("its name cannot be resolved: the DNS server does not answer".into())),
    }
}

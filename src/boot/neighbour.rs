//! Whose network card answers at an address: what the kernel's neighbour table (ARP) says, beside what the lease says.
//!
//! DHCP takes a client's word for its MAC address, so the lease alone says nothing of who sends. The kernel has learnt to
//! which card the answers go. When that is none of the host's, somebody else has its address. It takes no more than a
//! forged ARP answer to deceive this as well; a switch that binds MAC addresses to its ports keeps that from arriving.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use ipnetwork::Ipv4Network;
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use tracing::debug;

use crate::api::MacAddress;

/// How long the kernel may take. It answers from memory.
const DEADLINE: Duration = Duration::from_millis(500);

/// Says which network card answers at an address; none when that is not known now, as behind a router.
pub type Neighbours = Arc<dyn Fn(Ipv4Addr) -> BoxFuture<'static, Option<MacAddress>> + Send + Sync>;

/// Why the machine at an address is not the one that has these network cards. What the kernel does not know refuses
/// nobody: a machine boots in doubt.
pub fn another_card(address: Ipv4Addr, answers: Option<MacAddress>, own: &[MacAddress]) -> Option<String> {
    let answers = answers.filter(|answers| !own.contains(answers))?;
    Some(format!(
        "the network card that answers at {address} is {answers}, which is none of the machine's: somebody else uses its address, or the card is new and the host has to be inspected again"
    ))
}

/// The kernel's neighbour table on these networks' interfaces.
pub fn kernel(networks: Vec<(Ipv4Network, String)>) -> Neighbours {
    let networks = Arc::new(networks);
    Arc::new(move |address| {
        let networks = networks.clone();
        async move {
            let (_, interface) = networks.iter().find(|(subnet, _)| subnet.contains(address))?;
            let asked = tokio::time::timeout(DEADLINE, ask(interface, address)).await;
            asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).unwrap_or_else(|error| {
                debug!(%address, %error, "the neighbour table cannot be read");
                None
            })
        }
        .boxed()
    })
}

/// Asks the kernel for one entry (rtnetlink(7), RTM_GETNEIGH).
async fn ask(interface: &str, address: Ipv4Addr) -> std::io::Result<Option<MacAddress>> {
    let (connection, mut handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = nix::net::if_::if_nametoindex(interface)?;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetNeighbour(message));
    request.header.flags = NLM_F_REQUEST;
    let answer = handle.request(request).map_err(std::io::Error::other)?.next().await;
    connection.abort();
    match answer.map(|answer| answer.payload) {
        Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry))) => Ok(card(&entry)),
        // There is no entry: nobody spoke with it, or a router stands between.
        _ => Ok(None),
    }
}

/// The card that an entry names, when the kernel sends there now.
fn card(entry: &NeighbourMessage) -> Option<MacAddress> {
    use NeighbourState::{Delay, Permanent, Probe, Reachable};
    if !matches!(entry.header.state, Reachable | Delay | Probe | Permanent) {
        return None;
    }
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok().map(MacAddress),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(last: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, last])
    }

    #[test]
    fn only_a_card_that_is_known_to_be_another_refuses() {
        let rows: [(Option<u8>, &[u8], bool); 6] = [
            (Some(1), &[1], true),
            (Some(2), &[1, 2], true),
            (Some(9), &[1, 2], false),
            (Some(9), &[], false),
            (None, &[1], true),
            (None, &[], true),
        ];
        for (answers, own, good) in rows {
            let own: Vec<_> = own.iter().copied().map(mac).collect();
            let reason = another_card([10, 0, 0, 1].into(), answers.map(mac), &own);
            assert_eq!(reason.is_none(), good, "{answers:?} {own:?}: {reason:?}");
        }
    }

    #[test]
    fn an_entry_counts_while_the_kernel_sends_there() {
        use NeighbourState::*;
        let card_in = |state, bytes: &[u8]| {
            let mut entry = NeighbourMessage::default();
            entry.header.state = state;
            entry.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet([10, 0, 0, 1].into())));
            entry.attributes.push(NeighbourAttribute::LinkLayerAddress(bytes.to_vec()));
            card(&entry)
        };
        for state in [Reachable, Delay, Probe, Permanent] {
            assert_eq!(card_in(state, &mac(1).0), Some(mac(1)), "{state:?}");
        }
        for state in [Stale, Failed, Incomplete, Noarp, None, Other(0x4000)] {
            assert_eq!(card_in(state, &mac(1).0), Option::None, "{state:?}");
        }
        for odd in [&[][..], &[1; 5], &[1; 20]] {
            assert_eq!(card_in(Reachable, odd), Option::None, "no Ethernet");
        }
    }

    #[tokio::test]
    async fn what_the_kernel_does_not_know_is_nobody() {
        let table = kernel(vec![
            ("127.0.0.0/8".parse().expect("a network"), "lo".into()),
            ("10.0.0.0/8".parse().expect("a network"), "not-there0".into()),
        ]);
        for address in [[127, 0, 0, 66], [10, 0, 0, 1], [192, 0, 2, 1]] {
            assert_eq!(table(address.into()).await, None, "{address:?}");
        }
    }
}

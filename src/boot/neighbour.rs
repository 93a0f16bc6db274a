//! The kernel's neighbour table (ARP): whose network card answers at an address.
//!
//! DHCP takes a client's word for its MAC address, so the lease alone says nothing of who sends. The kernel has learnt to
//! which card the answers go. When that is none of the host's, somebody else has its address. Whoever does not answer ARP for a
//! while makes the kernel forget it, so where it does not know, it is made to ask, and an address where nobody answers is
//! nobody's. It takes no more than a forged ARP answer to deceive this as well; a switch that binds MAC addresses to its ports
//! keeps that from arriving.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use ipnetwork::Ipv4Network;
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use tracing::debug;

use crate::api::MacAddress;
use crate::live::Live;
use crate::netlink::{self, Remembered};

/// How long is waited for an answer to ARP: machines answer within milliseconds, and the kernel asks once a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked meanwhile.
const LOOK: Duration = Duration::from_millis(20);
/// Port of the discard service (RFC 863): nobody answers there, and the kernel has to ask for the card all the same.
const DISCARD: u16 = 9;

/// What answers ARP at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpAnswers {
    /// This network card.
    Card(MacAddress),
    /// None, though the address is on a link of the appliance's own.
    Nobody,
    /// That cannot be seen from here: it is behind a router, on a link without ARP, or where cards are not checked.
    Unseen,
}

impl ArpAnswers {
    /// The card, where one is seen.
    pub fn card(self) -> Option<MacAddress> {
        match self {
            Self::Card(card) => Some(card),
            Self::Nobody | Self::Unseen => None,
        }
    }
}

/// Says what answers at an address. Where the kernel does not know it is made to ask, and the answer takes up to two seconds.
pub type Neighbours = Arc<dyn Fn(Ipv4Addr) -> BoxFuture<'static, ArpAnswers> + Send + Sync>;

/// As [`Neighbours`], for who asks at each packet and cannot wait: from memory, a second old at most. An address is asked for by
/// itself, and the kernel answers from its own memory.
pub type Cards = Arc<dyn Fn(Ipv4Addr) -> Option<MacAddress> + Send + Sync>;

/// The networks on whose interfaces the kernel is asked, as they are now.
pub type CheckedNetworks = Live<Vec<(Ipv4Network, String)>>;

/// Why the machine at an address is not the one that has these network cards. Where nothing can be seen, nobody is refused.
pub fn another_card(address: Ipv4Addr, answers: ArpAnswers, own: &[MacAddress]) -> Option<String> {
    match answers {
        ArpAnswers::Card(card) if !own.contains(&card) => Some(format!(
            "the network card that answers at {address} is {card}, which is none of the machine's: somebody else uses its address, or the card is new and the host has to be inspected again"
        )),
        ArpAnswers::Nobody => Some(format!(
            "no network card answers ARP at {address}, so nobody can say whose it is; where machines do not answer ARP, set check_cards = false on that network"
        )),
        ArpAnswers::Card(_) | ArpAnswers::Unseen => None,
    }
}

/// The kernel's neighbour table on these networks' interfaces. Which card answers is remembered for a second.
pub fn kernel(networks: impl Into<CheckedNetworks>) -> Neighbours {
    let networks = networks.into();
    let remembered = Arc::new(Mutex::new(Remembered::default()));
    Arc::new(move |address| {
        let networks = networks.get();
        let interface = networks.iter().find(|(subnet, _)| subnet.contains(address)).map(|(_, name)| name.clone());
        let remembered = Arc::clone(&remembered);
        async move {
            let Some(interface) = interface else { return ArpAnswers::Unseen };
            let lock = || remembered.lock().unwrap_or_else(PoisonError::into_inner);
            let known = lock().get(&address, Instant::now());
            if let Some(known) = known {
                return known;
            }
            let answers = wait_for_answer(&interface, address).await.unwrap_or_else(|error| {
                tracing::warn!(%address, %error, "cannot read the neighbour table: whose address it is cannot be seen");
                ArpAnswers::Unseen
            });
            if answers != ArpAnswers::Nobody {
                lock().put(address, answers, Instant::now());
            }
            answers
        }
        .boxed()
    })
}

/// What answers at an address, once the kernel knows.
async fn wait_for_answer(interface: &str, address: Ipv4Addr) -> io::Result<ArpAnswers> {
    let index = nix::net::if_::if_nametoindex(interface)?;
    let until = Instant::now() + PATIENCE;
    let mut asked = false;
    loop {
        let entry = entry(index, address)?;
        if let Some(card) = entry.as_ref().and_then(card) {
            return Ok(ArpAnswers::Card(card));
        }
        let state = entry.map(|entry| entry.header.state);
        if state == Some(NeighbourState::Noarp) {
            return Ok(ArpAnswers::Unseen);
        }
        if !asked && !is_on_link(index, address)? {
            return Ok(ArpAnswers::Unseen);
        }
        if asked && Instant::now() >= until {
            return Ok(ArpAnswers::Nobody);
        }
        // Again, too, when the kernel has given up meanwhile: what was begun for somebody else may have had its last try before the
        // machine was there.
        if !asked || matches!(state, None | Some(NeighbourState::Failed)) {
            provoke(address)?;
            asked = true;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether the kernel sends what is for an address to the link of an interface, and asks for its card there.
fn is_on_link(interface: u32, address: Ipv4Addr) -> io::Result<bool> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = 32;
    message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(address)));
    let Some(RouteNetlinkMessage::NewRoute(route)) = netlink::ask(RouteNetlinkMessage::GetRoute(message))? else {
        return Ok(false);
    };
    let has = |wanted: &dyn Fn(&RouteAttribute) -> bool| route.attributes.iter().any(wanted);
    let by_gateway = has(&|one| matches!(one, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)));
    let here = has(&|one| matches!(one, RouteAttribute::Oif(index) if *index == interface));
    Ok(route.header.kind == RouteType::Unicast && here && !by_gateway)
}

/// Has the kernel ask by ARP for the card of an address.
///
/// # Errors
///
/// When it cannot send there.
pub fn provoke(address: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_nonblocking(true)?;
    match socket.send_to(&[], (address, DISCARD)) {
        // Its queue is full: somebody else has made it ask.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        sent => sent.map(drop),
    }
}

/// As [`kernel`], remembered for a second.
pub fn cached(networks: impl Into<CheckedNetworks>) -> Cards {
    let (look, remembered) = (kernel_lookup(networks.into()), Mutex::new(Remembered::default()));
    Arc::new(move |address| {
        let lock = || remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&address, Instant::now());
        known.unwrap_or_else(|| {
            let card = look(address);
            lock().put(address, card, Instant::now());
            card
        })
    })
}

fn kernel_lookup(networks: CheckedNetworks) -> impl Fn(Ipv4Addr) -> Option<MacAddress> + Send + Sync {
    move |address| {
        let networks = networks.get();
        let (_, interface) = networks.iter().find(|(subnet, _)| subnet.contains(address))?;
        ask(interface, address).unwrap_or_else(|error| {
            debug!(%address, %error, "cannot read the neighbour table");
            None
        })
    }
}

/// Whether what is sent to an address on an interface's link leaves at once: the kernel knows its card, or did a moment ago.
///
/// # Errors
///
/// When the kernel cannot be asked.
pub fn is_there(interface: u32, address: Ipv4Addr) -> io::Result<bool> {
    use NeighbourState::{Failed, Incomplete, None};
    Ok(entry(interface, address)?.is_some_and(|entry| !matches!(entry.header.state, None | Incomplete | Failed)))
}

fn ask(interface: &str, address: Ipv4Addr) -> io::Result<Option<MacAddress>> {
    Ok(entry(nix::net::if_::if_nametoindex(interface)?, address)?.as_ref().and_then(card))
}

/// Asks the kernel for one entry (rtnetlink(7), RTM_GETNEIGH).
fn entry(interface: u32, address: Ipv4Addr) -> io::Result<Option<NeighbourMessage>> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = interface;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    match netlink::ask(RouteNetlinkMessage::GetNeighbour(message))? {
        Some(RouteNetlinkMessage::NewNeighbour(entry)) => Ok(Some(entry)),
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
        let card = |last| ArpAnswers::Card(mac(last));
        let rows: [(ArpAnswers, &[u8], bool); 8] = [
            (card(1), &[1], true),
            (card(2), &[1, 2], true),
            (card(9), &[1, 2], false),
            (card(9), &[], false),
            (ArpAnswers::Unseen, &[1], true),
            (ArpAnswers::Unseen, &[], true),
            (ArpAnswers::Nobody, &[1], false),
            (ArpAnswers::Nobody, &[], false),
        ];
        for (answers, own, good) in rows {
            let own: Vec<_> = own.iter().copied().map(mac).collect();
            let reason = another_card([10, 0, 0, 1].into(), answers, &own);
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
    async fn what_is_on_no_link_of_ours_is_not_seen() {
        let table = kernel(vec![
            ("127.0.0.0/8".parse().expect("a network"), "lo".into()),
            ("10.0.0.0/8".parse().expect("a network"), "not-there0".into()),
        ]);
        for address in [[127, 0, 0, 66], [10, 0, 0, 1], [192, 0, 2, 1]] {
            assert_eq!(table(address.into()).await, ArpAnswers::Unseen, "{address:?}");
        }
    }
}

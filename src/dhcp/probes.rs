//! Offers that wait until it is known whether somebody uses their address. Pure; time is a parameter.
//!
//! An address of the pool that its machine never had is asked for on the wire before it is offered. Of offers that may wait there
//! are so many, and of strangers fewer: those beyond leave at once, as if nobody had answered.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use crate::api::MacAddress;

use super::socket::Outgoing;

/// How long an answer by ARP is waited for. Machines answer within milliseconds; firmware asks DHCP again after a second at the
/// earliest.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// Offers that wait, and those of strangers among them: each takes 2 KiB, and a broadcast to everybody.
const MOST: usize = 256;
const MOST_OF_STRANGERS: usize = 64;
/// Addresses that are tried for one message.
pub const TRIES: u8 = 3;

/// An offer that waits.
pub struct HeldOffer {
    /// Number of the network.
    pub network: usize,
    /// The machine that asks.
    pub mac: MacAddress,
    /// Whether it is a stranger.
    pub guest: bool,
    /// Its message, and who sent it.
    pub message: Vec<u8>,
    /// Who sent the message.
    pub source: SocketAddrV4,
    /// The answer.
    pub offer: Outgoing,
    /// Addresses that were asked for because of this message.
    pub tries: u8,
}

/// The offers that wait, by their addresses.
#[derive(Default)]
pub struct Probes {
    held: HashMap<Ipv4Addr, (HeldOffer, Instant)>,
    guests: usize,
}

/// How a wait ended.
pub enum ProbeVerdict {
    /// Nobody answered: the offer may leave.
    Free(HeldOffer),
    /// This card uses the address.
    Taken(Ipv4Addr, HeldOffer, MacAddress),
}

impl Probes {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Keeps an offer back. It is handed back when it may leave at once, because too many wait.
    pub fn hold(&mut self, now: Instant, address: Ipv4Addr, held: HeldOffer) -> Option<HeldOffer> {
        let full = self.held.len() >= MOST || (held.guest && self.guests >= MOST_OF_STRANGERS);
        if full || self.held.contains_key(&address) {
            return Some(held);
        }
        self.guests += usize::from(held.guest);
        self.held.insert(address, (held, now));
        None
    }

    /// Puts a later answer for the same address in the place of the one that waits: the machine asked again. Handed back when
    /// none waits.
    pub fn replace(&mut self, address: Ipv4Addr, mac: MacAddress, offer: Outgoing) -> Option<Outgoing> {
        match self.held.get_mut(&address) {
            Some((held, _)) if held.mac == mac => {
                held.offer = offer;
                None
            }
            _ => Some(offer),
        }
    }

    /// When the next wait ends.
    pub fn next(&self) -> Option<Instant> {
        self.held.values().map(|(_, since)| *since + PATIENCE).min()
    }

    /// Somebody says that he has an address. `is_own`: whether this is a card of the machine that asks for it.
    pub fn answered(
        &mut self,
        address: Ipv4Addr,
        card: MacAddress,
        is_own: impl FnOnce(&HeldOffer) -> bool,
    ) -> Option<ProbeVerdict> {
        let (held, _) = self.held.get(&address)?;
        if is_own(held) {
            return None;
        }
        let held = self.take(address)?;
        Some(ProbeVerdict::Taken(address, held, card))
    }

    /// Ends the waits that are over.
    pub fn due(&mut self, now: Instant) -> Vec<ProbeVerdict> {
        let over = |since: &Instant| now.saturating_duration_since(*since) >= PATIENCE;
        let due: Vec<_> = self.held.iter().filter(|(_, (_, since))| over(since)).map(|(address, _)| *address).collect();
        due.into_iter().filter_map(|address| self.take(address)).map(ProbeVerdict::Free).collect()
    }

    /// Ends all of them: nobody can be asked.
    pub fn give_up(&mut self) -> Vec<HeldOffer> {
        self.guests = 0;
        self.held.drain().map(|(_, (held, _))| held).collect()
    }

    fn take(&mut self, address: Ipv4Addr) -> Option<HeldOffer> {
        let (held, _) = self.held.remove(&address)?;
        self.guests -= usize::from(held.guest);
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{Destination, DhcpReply};
    use super::*;

    fn offer(number: u8) -> Outgoing {
        let peer = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
        let reply = DhcpReply { message: vec![number], to: Destination::Broadcast };
        Outgoing { server: Ipv4Addr::LOCALHOST, peer, reply }
    }

    fn held(last: u8, guest: bool) -> HeldOffer {
        let offer = offer(last);
        let (mac, source) = (MacAddress([2, 0, 0, 0, 0, last]), offer.peer);
        HeldOffer { network: 0, mac, guest, message: Vec::new(), source, offer, tries: 1 }
    }

    fn at(number: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::try_from(number).unwrap())
    }

    #[test]
    fn an_offer_waits_a_quarter_of_a_second_and_leaves_when_nobody_else_answers() {
        let (mut probes, start) = (Probes::default(), Instant::now());
        let card = |last| MacAddress([2, 0, 0, 0, 0, last]);
        assert!(
            probes.hold(start, at(1), held(1, false)).is_none() && probes.hold(start, at(2), held(2, true)).is_none()
        );
        assert!(probes.hold(start, at(1), held(9, false)).is_some(), "one waits for it already");
        assert_eq!(probes.next(), Some(start + PATIENCE));
        // The machine itself has it still.
        assert!(probes.answered(at(1), card(1), |held| held.mac == card(1)).is_none());
        assert!(probes.answered(at(7), card(7), |_| false).is_none(), "nobody asked");
        let Some(ProbeVerdict::Taken(address, other, by)) = probes.answered(at(2), card(8), |_| false) else {
            panic!()
        };
        assert_eq!((address, other.mac, by), (at(2), card(2), card(8)));
        // It asks again meanwhile: the later answer leaves.
        assert!(probes.replace(at(1), card(1), offer(77)).is_none());
        assert!(
            probes.replace(at(1), card(5), offer(78)).is_some() && probes.replace(at(3), card(1), offer(79)).is_some()
        );
        assert!(probes.due(start + PATIENCE / 2).is_empty());
        let due = probes.due(start + PATIENCE);
        let [ProbeVerdict::Free(free)] = &due[..] else { panic!("one is over") };
        assert_eq!(free.offer.reply.message, [77]);
        assert!(probes.is_empty() && probes.next().is_none());
    }

    #[test]
    fn strangers_who_make_up_machines_keep_nobody_waiting() {
        let (mut probes, start) = (Probes::default(), Instant::now());
        let kept = (0..2 * MOST).filter(|number| probes.hold(start, at(*number), held(1, true)).is_none()).count();
        assert_eq!(kept, MOST_OF_STRANGERS);
        let known = (MOST..3 * MOST).filter(|number| probes.hold(start, at(*number), held(1, false)).is_none()).count();
        assert_eq!(known, MOST - MOST_OF_STRANGERS);
        assert_eq!(probes.give_up().len(), MOST);
        assert!(probes.hold(start, at(1), held(1, true)).is_none(), "there is room again");
        assert_eq!((probes.due(start + PATIENCE).len(), probes.guests), (1, 0));
    }
}

//! Relays to which an answer leaves at once, and those where it would wait for ARP. Pure; time is a parameter.
//!
//! Anybody can name addresses as relays where nobody is. The kernel keeps what is sent there for some seconds, at the cost of
//! the socket's send buffer and of its neighbour table. So only a few answers are under way to addresses of which the kernel
//! does not know the card; a relay that is there has asked by ARP for this appliance before it sent, so its card is known.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ipnetwork::Ipv4Network;

/// How long it is believed that a relay is there.
const FRESH: Duration = Duration::from_secs(1);
/// A relay that was silent for so long is looked for like a new one.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Longer than the kernel waits for an answer by ARP: three times a second.
const WAITS: Duration = Duration::from_secs(5);
/// Addresses to which answers wait at once.
const MOST_WAITING: usize = 16;
/// Answers that wait for one of them.
const EACH: usize = 4;
/// Relays that are known to be there; more are looked for at each answer.
const MOST_HEARD: usize = 1024;
/// Looks at the kernel's neighbour table in a second for relays that were not there; one takes some ten microseconds.
const MOST_LOOKS: u32 = 4096;

/// Whether an answer to a relay may wait for ARP: it is on a link of the interface, whose addresses with their networks these
/// are, and it is not this machine itself, which asks nobody for its own card.
pub fn may_wait(links: &[Ipv4Network], relay: Ipv4Addr) -> bool {
    links.iter().any(|link| link.contains(relay)) && links.iter().all(|link| link.ip() != relay)
}

/// What is known of relays on the link.
#[derive(Debug, Default)]
pub struct Relays {
    heard: HashMap<Ipv4Addr, Instant>,
    /// Since when answers wait, and how many.
    waiting: HashMap<Ipv4Addr, (Instant, usize)>,
    looks: u32,
    since: Option<Instant>,
}

impl Relays {
    /// How many of so many answers may be sent to an address on the link now. `is_there` looks whether the kernel knows its
    /// card.
    pub fn admit(
        &mut self,
        now: Instant,
        relay: Ipv4Addr,
        answers: usize,
        is_there: impl FnOnce(Ipv4Addr) -> bool,
    ) -> usize {
        let heard = self.heard.get(&relay).copied();
        if heard.is_some_and(|since| now.saturating_duration_since(since) < FRESH) {
            return answers;
        }
        self.let_pass(now);
        // Who was there is looked for whatever others make up.
        if heard.is_some() || self.looks < MOST_LOOKS {
            self.looks += u32::from(heard.is_none());
            if is_there(relay) {
                self.waiting.remove(&relay);
                if heard.is_some() || self.heard.len() < MOST_HEARD {
                    self.heard.insert(relay, now);
                }
                return answers;
            }
            self.heard.remove(&relay);
        }
        if self.waiting.len() >= MOST_WAITING && !self.waiting.contains_key(&relay) {
            return 0;
        }
        let (_, sent) = self.waiting.entry(relay).or_insert((now, 0));
        let more = answers.min(EACH - *sent);
        *sent += more;
        more
    }

    fn let_pass(&mut self, now: Instant) {
        if self.since.is_some_and(|since| now.saturating_duration_since(since) < FRESH) {
            return;
        }
        self.since = Some(now);
        self.looks = 0;
        self.waiting.retain(|_, (since, _)| now.saturating_duration_since(*since) < WAITS);
        self.heard.retain(|_, since| now.saturating_duration_since(*since) < FORGOTTEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x0a00_0000 + number)
    }

    #[test]
    fn only_other_machines_on_the_link_are_waited_for() {
        let links: Vec<Ipv4Network> =
            ["172.22.0.1/24", "172.22.0.9/24", "10.0.0.1/8"].iter().map(|link| link.parse().unwrap()).collect();
        for (relay, waits) in [
            ("172.22.0.8", true),
            ("10.9.9.9", true),
            ("172.22.0.1", false),
            ("172.22.0.9", false),
            ("10.0.0.1", false),
            ("192.0.2.1", false),
        ] {
            assert_eq!(may_wait(&links, relay.parse().unwrap()), waits, "{relay}");
        }
    }

    #[test]
    fn a_few_answers_wait_for_relays_that_nobody_has_seen_and_none_for_one_that_is_there() {
        let mut relays = Relays::default();
        let begin = Instant::now();
        let second = |number| begin + Duration::from_secs(number);
        let mut under_way = 0;
        for number in 0..10_000 {
            under_way += relays.admit(begin, at(number), 1, |_| false);
        }
        assert_eq!(under_way, MOST_WAITING);
        assert_eq!(relays.admit(begin, at(0), 32, |_| false), EACH - 1);
        assert_eq!(relays.admit(begin, at(0), 1, |_| false), 0, "until the kernel has given it up");
        // Nothing is looked for any more in this second, and in the next one a relay that is there has all of its answers.
        assert_eq!(relays.admit(begin, at(77_777), 9, |_| panic!("looked too often")), 0);
        assert_eq!(relays.admit(second(1), at(77_777), 9, |_| true), 9);
        assert_eq!(relays.admit(second(1), at(77_777), 9, |_| panic!("it is fresh")), 9);
        for number in 0..10_000 {
            relays.admit(second(2), at(number), 1, |_| false);
        }
        assert_eq!(relays.admit(second(2), at(77_777), 9, |_| true), 9, "it was there before");
        // One that answers by ARP now waits no longer; one that has gone is like any other.
        assert_eq!(relays.admit(second(3), at(0), 32, |_| true), 32);
        assert_eq!(relays.admit(second(4), at(0), 32, |_| false), EACH);
        assert_eq!(relays.admit(second(4), at(0), 32, |_| false), 0);
        assert_eq!(relays.admit(second(10), at(0), 32, |_| false), EACH, "and tried again later");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut relays = Relays::default();
        let mut now = Instant::now();
        for number in 0..10_000 {
            now += Duration::from_millis(5);
            relays.admit(now, at(number), 1, |address| address.to_bits() % 2 == 0);
            assert!(relays.heard.len() <= MOST_HEARD && relays.waiting.len() <= MOST_WAITING);
        }
        assert!(relays.heard.len() > MOST_HEARD / 2);
    }
}

//! Other DHCP servers on a network, by what machines say that they chose (RFC 2131 section 4.3.2), and by who answers this
//! appliance's own question.
//!
//! Where this appliance is the only server, another one gives machines addresses that are taken here, and boots them otherwise or
//! not at all. Anybody on the wire can say that he chose one, or answer, so what is remembered is bounded, and told as what it is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::MacAddress;
use crate::config::NetworkMode;
use crate::runtime::conditions::ConditionVerdict;

/// Seconds for which a server is remembered that a machine chose, and between two lines of the log about it.
const REMEMBER: u64 = 3600;
/// Servers of a network that are remembered.
pub const MOST: usize = 16;

/// The other servers of one network.
#[derive(Debug, Default)]
pub struct OtherServers(Mutex<BTreeMap<Ipv4Addr, LastSighting>>);

/// When a server was seen, in seconds since 1970.
#[derive(Debug, Default)]
struct LastSighting {
    /// A machine said that it chose it.
    chosen: Option<u64>,
    /// It answered: its card, when, and for how long that counts.
    answered: Option<(MacAddress, u64, u64)>,
    told: Option<u64>,
}

impl LastSighting {
    fn was_chosen(&self, now: u64) -> bool {
        self.chosen.is_some_and(|when| now.abs_diff(when) < REMEMBER)
    }

    fn card(&self, now: u64) -> Option<MacAddress> {
        self.answered.filter(|(_, when, keep)| now.abs_diff(*when) < *keep).map(|(card, ..)| card)
    }

    fn counts(&self, now: u64) -> bool {
        self.was_chosen(now) || self.card(now).is_some()
    }
}

impl OtherServers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ipv4Addr, LastSighting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine chose this server. Whether that is to be told: once an hour.
    pub fn chosen(&self, now: u64, server: Ipv4Addr) -> bool {
        self.note(now, server, |seen| seen.chosen = Some(now))
    }

    /// This server answered from a network card, which counts for so many seconds. Whether that is to be told: once an hour.
    pub fn offered(&self, now: u64, server: Ipv4Addr, card: MacAddress, keep: u64) -> bool {
        self.note(now, server, |seen| seen.answered = Some((card, now, keep)))
    }

    fn note(&self, now: u64, server: Ipv4Addr, note: impl FnOnce(&mut LastSighting)) -> bool {
        let mut all = self.lock();
        if all.len() >= MOST && !all.contains_key(&server) {
            all.retain(|_, seen| seen.counts(now));
            if all.len() >= MOST {
                return false;
            }
        }
        let seen = all.entry(server).or_default();
        note(seen);
        let tells = seen.told.is_none_or(|told| now.abs_diff(told) >= REMEMBER);
        if tells {
            seen.told = Some(now);
        }
        tells
    }

    /// What the condition `OnlyServer` says, where this appliance should be the only server.
    pub fn condition(&self, now: u64, mode: NetworkMode) -> Option<ConditionVerdict> {
        if mode != NetworkMode::Authoritative {
            return None;
        }
        let all = self.lock();
        let named = all.iter().filter(|(_, seen)| seen.counts(now)).map(|(server, seen)| match seen.card(now) {
            Some(card) => format!("{server} (answers this appliance's own DHCPDISCOVER, from {card})"),
            None => format!("{server} (a machine said within the last hour that it chose it)"),
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            return Some(ConditionVerdict::yes("NoOtherServer"));
        }
        let answers = all.values().any(|seen| seen.card(now).is_some());
        let reason = if answers { "OtherServerAnswers" } else { "OtherServerChosen" };
        let message = format!("another DHCP server is here: {}: stop it, or set mode = \"proxy\"", named.join(", "));
        Some(ConditionVerdict::no(reason, message))
    }

    /// Those that count now.
    pub fn seen(&self, now: u64) -> Vec<Ipv4Addr> {
        let all = self.lock();
        all.iter().filter(|(_, seen)| seen.counts(now)).map(|(server, _)| *server).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::conditions::Truth;

    #[test]
    fn a_server_is_told_of_once_an_hour_and_forgotten_after_one() {
        let others = OtherServers::default();
        let server = Ipv4Addr::new(10, 0, 0, 9);
        let tells = [0, 1, REMEMBER - 1, REMEMBER, REMEMBER + 1, 2 * REMEMBER].map(|now| others.chosen(now, server));
        assert_eq!(tells, [true, false, false, true, false, true]);
        assert_eq!(others.seen(3 * REMEMBER - 1), [server]);
        assert!(others.seen(3 * REMEMBER).is_empty());
        assert!(others.chosen(9 * REMEMBER, server));
    }

    #[test]
    fn whoever_makes_servers_up_fills_nothing() {
        let others = OtherServers::default();
        let told = (0..1000).filter(|number| others.chosen(100, Ipv4Addr::from_bits(*number))).count();
        assert_eq!((told, others.seen(100).len()), (MOST, MOST));
        assert!(others.chosen(100 + REMEMBER, Ipv4Addr::LOCALHOST), "the old ones make room");
        assert_eq!(others.seen(100 + REMEMBER), [Ipv4Addr::LOCALHOST]);
    }

    #[test]
    fn one_that_answers_counts_until_the_search_after_next_and_is_named_with_its_card() {
        let (others, card) = (OtherServers::default(), MacAddress([2, 0, 0, 0, 0, 9]));
        let told = |now| others.condition(now, NetworkMode::Authoritative).unwrap();
        assert!(told(0).is_true() && others.condition(0, NetworkMode::Proxy).is_none());
        let server = Ipv4Addr::new(10, 0, 0, 9);
        assert!(others.offered(0, server, card, 100) && !others.offered(1, server, card, 100));
        assert!(!others.chosen(2, server), "it was told of");
        let ConditionVerdict { truth, reason, message } = told(2);
        assert_eq!((truth, &*reason), (Truth::False, "OtherServerAnswers"));
        assert!(message.contains("10.0.0.9") && message.contains("02:00:00:00:00:09"), "{message}");
        assert_eq!((&*told(101).reason, others.seen(101).len()), ("OtherServerChosen", 1));
        assert!(told(2 + REMEMBER).is_true());
        // The fourth hour it is told of again.
        assert!(others.offered(4 * REMEMBER, server, card, 100));
    }
}

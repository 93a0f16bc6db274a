//! Other DHCP servers on a network, by what machines say that they chose (RFC 2131 section 4.3.2).
//!
//! Where this appliance is the only server, another one gives machines addresses that are taken here, and boots them otherwise or
//! not at all. Anybody on the wire can say that he chose one, so what is remembered is bounded, and told as what it is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Seconds for which a server is remembered, and between two lines of the log about it.
const REMEMBER: u64 = 3600;
/// Servers of a network that are remembered.
const MOST: usize = 16;

/// The other servers of one network.
#[derive(Debug, Default)]
pub struct OtherServers(Mutex<BTreeMap<Ipv4Addr, Seen>>);

#[derive(Debug)]
struct Seen {
    /// Seconds since 1970.
    last: u64,
    told: u64,
}

impl OtherServers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ipv4Addr, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine chose this server. Whether that is to be told: once an hour.
    pub fn chosen(&self, now: u64, server: Ipv4Addr) -> bool {
        let mut all = self.lock();
        if let Some(seen) = all.get_mut(&server) {
            seen.last = now;
            let again = now.abs_diff(seen.told) >= REMEMBER;
            if again {
                seen.told = now;
            }
            return again;
        }
        if all.len() >= MOST {
            all.retain(|_, seen| now.abs_diff(seen.last) < REMEMBER);
        }
        all.len() < MOST && all.insert(server, Seen { last: now, told: now }).is_none()
    }

    /// Those that were chosen within the last hour.
    pub fn seen(&self, now: u64) -> Vec<Ipv4Addr> {
        let all = self.lock();
        all.iter().filter(|(_, seen)| now.abs_diff(seen.last) < REMEMBER).map(|(server, _)| *server).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

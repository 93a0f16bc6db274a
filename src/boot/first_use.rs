//! First come, first served: who asked first for what only one may have, where nothing better says who that is.
//!
//! Where another server gives the addresses, anybody can ask for a machine's script; and who reads a medium's URL can be
//! anybody, too. So whoever asks first has it, and a second address is refused for a while, unless the neighbour table says
//! that it is the machine. In memory: after a restart somebody is first again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Kept at once. Each is one boot of one host.
const MOST: usize = 16_384;

/// Who used what first. Shared.
#[derive(Debug, Default)]
pub(super) struct FirstUses(Mutex<HashMap<String, FirstUse>>);

/// Who used it first, and until when it is theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FirstUse {
    address: IpAddr,
    until: Instant,
}

/// Another address has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} asked first, and keeps others out for {} s more", .left.as_secs() + 1)]
pub(super) struct UsedByOther {
    pub address: IpAddr,
    pub left: Duration,
}

impl FirstUses {
    /// Gives it to who asks, if nobody else has it now, or if this is proven to be the one whose it is. It lasts so long from
    /// the first time on, and from each time on that is proven: asking again keeps nobody out for longer.
    pub fn claim(
        &self,
        what: &str,
        address: IpAddr,
        lasts: Duration,
        proven: bool,
        now: Instant,
    ) -> Result<(), UsedByOther> {
        let address = address.to_canonical();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let present = all.get(what).filter(|first| now < first.until).copied();
        match present {
            Some(first) if first.address != address && !proven => {
                return Err(UsedByOther { address: first.address, left: first.until.saturating_duration_since(now) });
            }
            Some(first) if first.address == address && !proven => return Ok(()),
            _ => {}
        }
        if all.len() >= MOST && !all.contains_key(what) {
            all.retain(|_, first| now < first.until);
            let ends_next = all.iter().min_by_key(|(_, first)| first.until).map(|(what, _)| what.clone());
            if let Some(what) = ends_next.filter(|_| all.len() >= MOST) {
                all.remove(&what);
            }
        }
        all.insert(what.to_owned(), FirstUse { address, until: now + lasts });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(120);

    fn at(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn whoever_is_first_has_it_until_the_machine_shows_itself_or_the_time_is_over() {
        let begin = Instant::now();
        // address, proven, seconds since the begin, what keeps it out
        type Row = (u8, bool, u64, Option<(u8, u64)>);
        let rows: &[&[Row]] = &[
            &[(1, false, 0, None), (2, false, 1, Some((1, 119))), (1, false, 1, None), (2, false, 119, Some((1, 1)))],
            // Asking again keeps nobody out for longer.
            &[(1, false, 0, None), (1, false, 100, None), (2, false, 120, None), (1, false, 121, Some((2, 119)))],
            // The machine takes it from whoever was first, wherever it is now.
            &[(1, false, 0, None), (2, true, 1, None), (1, false, 2, Some((2, 119))), (3, true, 3, None)],
            // And has it for as long again each time.
            &[(1, true, 0, None), (1, true, 100, None), (2, false, 130, Some((1, 90)))],
            // Who was first and shows only later that it is the machine.
            &[(1, false, 0, None), (1, true, 119, None), (2, false, 130, Some((1, 109)))],
        ];
        for row in rows {
            let first_uses = FirstUses::default();
            for &(address, proven, after, wanted) in *row {
                let got = first_uses.claim("a", at(address), LASTS, proven, begin + Duration::from_secs(after));
                let wanted =
                    wanted.map(|(other, left)| UsedByOther { address: at(other), left: Duration::from_secs(left) });
                assert_eq!(got.err(), wanted, "{address} after {after} s of {row:?}");
            }
            assert_eq!(first_uses.claim("b", at(9), LASTS, false, begin), Ok(()), "another boot");
        }
        let mapped = "::ffff:10.0.0.1".parse().expect("an address");
        let first_uses = FirstUses::default();
        assert_eq!(first_uses.claim("a", mapped, LASTS, false, begin), Ok(()));
        assert_eq!(first_uses.claim("a", at(1), LASTS, false, begin), Ok(()), "the same address");
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let (first_uses, begin) = (FirstUses::default(), Instant::now());
        for number in 0..MOST + 10 {
            let now = begin + Duration::from_millis(number as u64);
            assert_eq!(first_uses.claim(&number.to_string(), at(1), LASTS, false, now), Ok(()));
        }
        let all = first_uses.0.lock().expect("no panic");
        assert!(all.len() == MOST && !all.contains_key("9") && all.contains_key("10"));
    }
}

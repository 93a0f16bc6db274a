//! Messages of one network, counted by what was done about them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::outcome::{Disposition, DropReason};

/// What may be done about a message.
const OUTCOMES: [&str; 9] =
    ["offered", "leased", "renewed", "informed", "boot-only", "released", "declined", "refused", "no-address"];
/// Of those that are not answered, all but for want of an address.
const UNANSWERED: &str = "unanswered";

/// Messages of one network by what was done about them.
#[derive(Debug, Default)]
pub struct MessageCounts {
    of: [AtomicU64; OUTCOMES.len()],
    unanswered: AtomicU64,
}

impl MessageCounts {
    /// Counts a message.
    pub fn count(&self, disposition: &Disposition) {
        let name = name(disposition);
        let of = OUTCOMES.iter().position(|outcome| *outcome == name).map_or(&self.unanswered, |at| &self.of[at]);
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// Each outcome with how often it was.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        OUTCOMES
            .iter()
            .zip(&self.of)
            .map(move |(name, count)| (*name, of(count)))
            .chain([(UNANSWERED, of(&self.unanswered))])
    }
}

fn name(disposition: &Disposition) -> &'static str {
    match disposition {
        Disposition::Offered { .. } => "offered",
        Disposition::Bound { renewed: false, .. } => "leased",
        Disposition::Bound { renewed: true, .. } => "renewed",
        Disposition::Informed(_) => "informed",
        Disposition::BootOnly(_) => "boot-only",
        Disposition::Released(_) | Disposition::Kept(_) => "released",
        Disposition::Declined { .. } | Disposition::ConflictReported(_) => "declined",
        Disposition::Refused { .. } => "refused",
        Disposition::Dropped(
            DropReason::NoPool
            | DropReason::PoolEmpty
            | DropReason::PoolKept
            | DropReason::PoolShared
            | DropReason::ReservationTaken(_),
        ) => "no-address",
        Disposition::Dropped(_) => UNANSWERED,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::dhcp::outcome::NakReason;

    #[test]
    fn each_message_counts_once() {
        let address = Ipv4Addr::LOCALHOST;
        let dispositions = [
            Disposition::Offered { address, boot: None, new: false },
            Disposition::Bound { address, renewed: false, boot: None },
            Disposition::Bound { address, renewed: true, boot: None },
            Disposition::Informed(address),
            Disposition::BootOnly(String::new()),
            Disposition::Released(address),
            Disposition::Declined { address, reserved: true },
            Disposition::Refused { address, reason: NakReason::Taken },
            Disposition::Dropped(DropReason::PoolEmpty),
            Disposition::Dropped(DropReason::NotKnown),
        ];
        let counts = MessageCounts::default();
        dispositions.iter().for_each(|disposition| counts.count(disposition));
        assert!(counts.all().map(|(_, count)| count).eq([1; OUTCOMES.len() + 1]));
        [Disposition::Kept(address), Disposition::ConflictReported(address)]
            .iter()
            .for_each(|disposition| counts.count(disposition));
        let twice: Vec<_> = counts.all().filter(|(_, count)| *count == 2).map(|(name, _)| name).collect();
        assert_eq!(twice, ["released", "declined"]);
    }
}

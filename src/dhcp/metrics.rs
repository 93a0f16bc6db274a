//! DHCP metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::leases::{Leases, unix_now};
use super::outcome::{Disposition, DropReason};

/// What may be done about a message.
const OUTCOMES: [&str; 9] =
    ["offered", "leased", "renewed", "informed", "boot-only", "released", "declined", "refused", "no-address"];
/// Of those that are not answered, all but for want of an address.
const UNANSWERED: &str = "unanswered";

/// Messages of one network by what was done about them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    of: [AtomicU64; OUTCOMES.len()],
    unanswered: AtomicU64,
}

impl Counts {
    pub fn count(&self, disposition: &Disposition) {
        let name = name(disposition);
        let of = OUTCOMES.iter().position(|outcome| *outcome == name).map_or(&self.unanswered, |at| &self.of[at]);
        of.fetch_add(1, Ordering::Relaxed);
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNetwork {
    network: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    network: String,
    outcome: &'static str,
}

/// Names everything for a scrape.
pub(super) fn register(leases: &Leases, registry: &mut Registry) {
    let messages = Family::<OfOutcome, Counter>::default();
    let (pool, used, declined) =
        <(Family<OfNetwork, Gauge>, Family<OfNetwork, Gauge>, Family<OfNetwork, Gauge>)>::default();
    let others = Family::<OfNetwork, Gauge>::default();
    let set = |family: &Family<OfNetwork, Gauge>, network: &str, count: u64| {
        let labels = OfNetwork { network: network.to_owned() };
        family.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    for served in leases.networks() {
        let network = &served.config.name;
        for (outcome, count) in served.counts.all() {
            messages.get_or_create(&OfOutcome { network: network.clone(), outcome }).inc_by(count);
        }
        let usage = served.table().usage();
        set(&pool, network, usage.pool);
        set(&used, network, usage.used);
        set(&declined, network, usage.declined);
        set(&others, network, served.others.seen(unix_now()).len() as u64);
    }
    registry.register("slipway_dhcp_messages", "Messages of clients, by what was done about them", messages);
    registry.register("slipway_dhcp_pool_addresses", "Addresses that the pool has", pool);
    registry.register("slipway_dhcp_leases", "Addresses that are offered or leased, reservations among them", used);
    registry.register(
        "slipway_dhcp_other_servers",
        "Other DHCP servers that machines said they chose within the last hour",
        others,
    );
    registry.register(
        "slipway_dhcp_declined_addresses",
        "Addresses that somebody uses who did not get them here",
        declined,
    );
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
        let counts = Counts::default();
        dispositions.iter().for_each(|disposition| counts.count(disposition));
        assert!(counts.all().map(|(_, count)| count).eq([1; OUTCOMES.len() + 1]));
        [Disposition::Kept(address), Disposition::ConflictReported(address)]
            .iter()
            .for_each(|disposition| counts.count(disposition));
        let twice: Vec<_> = counts.all().filter(|(_, count)| *count == 2).map(|(name, _)| name).collect();
        assert_eq!(twice, ["released", "declined"]);
    }
}

//! DHCP metrics.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::leases::{Leases, unix_now};

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
    for served in leases.networks().iter() {
        let network = &served.name.to_string();
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
        "Other DHCP servers that machines said they chose within the last hour, or that answered a search",
        others,
    );
    registry.register(
        "slipway_dhcp_declined_addresses",
        "Addresses that somebody uses who did not get them here",
        declined,
    );
}

//! What is counted of the connections to the API's port.

use std::sync::{Arc, OnceLock};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::connections::ListenerConnections;

/// What is counted of one listener. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct ConnectionMeters(Arc<Inner>);

#[derive(Default)]
struct Inner {
    connections: OnceLock<ListenerConnections>,
    refused: Counter,
}

impl ConnectionMeters {
    /// These are the connections. Others are not taken later.
    pub(super) fn of(&self, connections: &ListenerConnections) {
        self.0.connections.set(connections.clone()).ok();
    }

    /// An address had too many.
    pub(in crate::apiserver) fn refused(&self) {
        self.0.refused.inc();
    }

    /// Names them for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        let open = Family::<[(&'static str, &'static str); 1], Gauge>::default();
        for (rank, count) in self.0.connections.get().map(ListenerConnections::counts).into_iter().flatten() {
            open.get_or_create(&[("rank", rank)]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        registry.register("slipway_api_connections", "Connections to the API's port, by rank", open);
        let help = "Connections to the API's port that were closed at once: their address had too many";
        registry.register("slipway_api_refused_connections", help, self.0.refused.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ration::Rank;

    #[test]
    fn connections_are_counted_by_whose_they_are() {
        let (meters, connections) = (ConnectionMeters::default(), ListenerConnections::new(16, 4, [1 << 20, 1 << 20]));
        meters.of(&connections);
        let admit = |last: u8, rank| connections.admit([10, 0, 0, last].into(), rank).expect("a slot");
        let slots = [admit(1, Rank::Known), admit(2, Rank::Stranger), admit(3, Rank::Stranger)];
        slots[2].vouch("somebody");
        meters.refused();
        let text = crate::metrics::shown(|registry| meters.register(registry));
        for line in [
            "slipway_api_connections{rank=\"known\"} 1",
            "slipway_api_connections{rank=\"untold\"} 0",
            "slipway_api_connections{rank=\"stranger\"} 1",
            "slipway_api_connections{rank=\"caller\"} 1",
            "slipway_api_refused_connections_total 1",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}

//! What is counted of watches: how often each was listed and broke, and which are broken now.

use std::sync::LazyLock;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type KindLabel = [(&'static str, String); 1];

/// One for the process, as its watches are.
static METERS: LazyLock<WatchSeries> = LazyLock::new(WatchSeries::default);

#[derive(Default)]
struct WatchSeries {
    listings: Family<KindLabel, Counter>,
    breaks: Family<KindLabel, Counter>,
    broken: Family<KindLabel, Gauge>,
}

/// Names what watches count, for a scrape.
pub fn register(registry: &mut Registry) {
    let WatchSeries { listings, breaks, broken } = &*METERS;
    registry.register("slipway_watch_listings", "Times that all objects were listed", listings.clone());
    registry.register("slipway_watch_breaks", "Times that a watch broke and everything is listed anew", breaks.clone());
    registry.register(
        "slipway_watch_broken",
        "Watches of a resource that are broken, until all its objects are listed again",
        broken.clone(),
    );
}

/// A watch's own.
pub(super) struct WatchMeters {
    listings: Counter,
    breaks: Counter,
    broken: Gauge,
    is_broken: bool,
}

impl WatchMeters {
    /// Those of a resource, as `<plural>.<group>`.
    pub fn of(plural: &str, group: &str) -> Self {
        let resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let label = [("resource", resource)];
        let WatchSeries { listings, breaks, broken } = &*METERS;
        let broken = broken.get_or_create_owned(&label);
        // Nothing is known of them before the first listing.
        broken.inc();
        let (listings, breaks) = (listings.get_or_create_owned(&label), breaks.get_or_create_owned(&label));
        Self { listings, breaks, broken, is_broken: true }
    }

    /// Everything is listed.
    pub fn listed(&mut self) {
        self.listings.inc();
        self.set(false);
    }

    /// It cannot be followed any further.
    pub fn broke(&mut self) {
        self.breaks.inc();
        self.set(true);
    }

    fn set(&mut self, is_broken: bool) {
        match (std::mem::replace(&mut self.is_broken, is_broken), is_broken) {
            (false, true) => drop(self.broken.inc()),
            (true, false) => drop(self.broken.dec()),
            _ => {}
        }
    }
}

impl Drop for WatchMeters {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_broken_until_everything_is_listed() {
        let shown = || crate::metrics::shown(register);
        let broken = |value| format!("slipway_watch_broken{{resource=\"cats.of.this.test\"}} {value}\n");
        let mut meters = WatchMeters::of("cats", "of.this.test");
        assert!(shown().contains(&broken(1)));
        meters.listed();
        assert!(shown().contains(&broken(0)));
        meters.broke();
        let text = shown();
        assert!(text.contains(&broken(1)));
        assert!(text.contains("slipway_watch_breaks_total{resource=\"cats.of.this.test\"} 1\n"), "{text}");
        assert!(text.contains("slipway_watch_listings_total{resource=\"cats.of.this.test\"} 1\n"), "{text}");
        drop(meters);
        assert!(shown().contains(&broken(0)), "it is none any more");
    }
}

//! What controllers do, counted: names and labels are those of controller-runtime, which dashboards and alerts know
//! (<https://book.kubebuilder.io/reference/metrics-reference>).

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds that divide looks at an object: most write something or nothing, and some wait for a machine.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 600.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

/// One for the process, as the controllers' names are: they say what is counted, and not where it is kept.
static METERS: LazyLock<ReconcileSeries> = LazyLock::new(|| ReconcileSeries {
    looks: Family::default(),
    seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
    under_way: Family::default(),
    failing: Family::default(),
});

struct ReconcileSeries {
    looks: Family<ReconcileLabels, Counter>,
    seconds: Family<ControllerLabels, Histogram, fn() -> Histogram>,
    under_way: Family<ControllerLabels, Gauge>,
    failing: Family<ControllerLabels, Gauge>,
}

/// Names what controllers count, for a scrape.
pub fn register(registry: &mut Registry) {
    let ReconcileSeries { looks, seconds, under_way, failing } = &*METERS;
    registry.register("controller_runtime_reconcile", "Looks at an object that ended, by result", looks.clone());
    registry.register(
        "controller_runtime_reconcile_time_seconds",
        "How long a look at an object took",
        seconds.clone(),
    );
    registry.register("controller_runtime_active_workers", "Looks at objects that are under way", under_way.clone());
    registry.register("slipway_controller_failing_objects", "Objects at which the last look failed", failing.clone());
}

/// A controller's own.
#[derive(Clone)]
pub(super) struct ControllerMeters {
    controller: &'static str,
    seconds: Histogram,
    under_way: Gauge,
    failing: Gauge,
}

impl ControllerMeters {
    pub fn of(controller: &'static str) -> Self {
        let of = ControllerLabels { controller };
        Self {
            controller,
            seconds: METERS.seconds.get_or_create_owned(&of),
            under_way: METERS.under_way.get_or_create_owned(&of),
            failing: METERS.failing.get_or_create_owned(&of),
        }
    }

    /// Counts a look for as long as it lasts, however it ends.
    pub fn begin(&self) -> ReconcilesInProgress {
        self.under_way.inc();
        ReconcilesInProgress(self.under_way.clone())
    }

    /// Notes how a look ended.
    pub fn ended(&self, result: &'static str, took: Duration) {
        self.seconds.observe(took.as_secs_f64());
        METERS.looks.get_or_create(&ReconcileLabels { controller: self.controller, result }).inc();
    }

    /// Notes at how many objects the last look failed.
    pub fn failing(&self, objects: usize) {
        self.failing.set(i64::try_from(objects).unwrap_or(i64::MAX));
    }
}

pub(super) struct ReconcilesInProgress(Gauge);

impl Drop for ReconcilesInProgress {
    fn drop(&mut self) {
        self.0.dec();
    }
}

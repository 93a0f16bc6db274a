//! What is counted of the runs of this box: how many there are, what they came to, and how long they took.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::kubespray::runs::{RunId, RunPhase, RunStatus, RunVerdict};

/// Seconds that divide runs by how long they took: packages take a minute, clusters half an hour and more.
const SECONDS: [f64; 8] = [30.0, 60.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 7200.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    of: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunEndLabels {
    of: &'static str,
    result: &'static str,
}

/// The runs of this box, as they are counted. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct RunMeters {
    state: Family<[(&'static str, &'static str); 1], Gauge>,
    ended: Family<RunEndLabels, Counter>,
    seconds: Family<RunLabels, Histogram, fn() -> Histogram>,
    /// Those that were under way when they were last looked at.
    // std's lock: held for a look, never across an await.
    open: Arc<Mutex<BTreeSet<RunId>>>,
}

impl Default for RunMeters {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        let seconds = Family::new_with_constructor(histogram);
        Self { state: Family::default(), ended: Family::default(), seconds, open: Arc::default() }
    }
}

impl RunMeters {
    /// Names them for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Runs of playbooks that are under way, and objects that wait for a place for theirs";
        registry.register("slipway_kubespray_runs", help, self.state.clone());
        registry.register(
            "slipway_kubespray_runs_ended",
            "Runs of playbooks that ended, by result",
            self.ended.clone(),
        );
        let help = "How long runs of playbooks took, from the start of Ansible";
        registry.register("slipway_kubespray_run_duration_seconds", help, self.seconds.clone());
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<RunId>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run is under way.
    pub fn begun(&self, id: &RunId) {
        self.open().insert(id.clone());
    }

    /// A run is over. Whether it was under way when it was last looked at: then it is to be counted.
    pub fn is_over(&self, id: &RunId) -> bool {
        self.open().remove(id)
    }

    /// Counts a run that is over.
    pub fn ended(&self, run: &RunStatus) {
        let of = match (&run.owner, &run.requester) {
            (None, _) => "person",
            (Some(_), None) => "cluster",
            (Some(_), Some(_)) => "packages",
        };
        let result = match &run.verdict {
            Some(RunVerdict::Succeeded) => "succeeded",
            Some(RunVerdict::Failed(_)) => "failed",
            Some(RunVerdict::Cancelled) => "cancelled",
            None => return,
        };
        self.ended.get_or_create(&RunEndLabels { of, result }).inc();
        if let (RunPhase::Ended(ended), Some(began)) = (&run.phase, run.started_at) {
            let took = ended.at.saturating_sub(began).max(0);
            self.seconds.get_or_create(&RunLabels { of }).observe(took as f64);
        }
    }

    /// So many are under way, and so many objects wait for a place.
    pub fn are(&self, under_way: usize, waiting: usize) {
        for (state, number) in [("under-way", under_way), ("waiting", waiting)] {
            self.state.get_or_create(&[("state", state)]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubespray::runs::{Cause, RunEnd as RunEnded, RunOwner};

    #[test]
    fn a_run_that_was_seen_under_way_is_counted_once_it_is_over() {
        let (meters, id): (_, RunId) = (RunMeters::default(), "p-1".parse().unwrap());
        assert!(!meters.is_over(&id), "it was over before anybody looked");
        meters.begun(&id);
        assert!(meters.is_over(&id) && !meters.is_over(&id));
        let status = |verdict, of: Option<RunOwner>| RunStatus {
            playbook: "cluster.yml".into(),
            phase: RunPhase::Ended(RunEnded { cause: Cause::Exited(0), at: 100 }),
            started_at: Some(40),
            progress: Default::default(),
            verdict,
            expected: Vec::new(),
            owner: of.clone(),
            requester: None,
        };
        let owner = RunOwner { namespace: "a".into(), name: "b".into(), uid: "c".into() };
        meters.ended(&status(Some(RunVerdict::Failed("no".into())), Some(owner)));
        meters.ended(&status(Some(RunVerdict::Succeeded), None));
        meters.ended(&status(None, None));
        meters.are(1, 2);
        let text = crate::metrics::shown(|registry| meters.register(registry));
        for line in [
            "slipway_kubespray_runs_ended_total{of=\"cluster\",result=\"failed\"} 1",
            "slipway_kubespray_runs_ended_total{of=\"person\",result=\"succeeded\"} 1",
            "slipway_kubespray_run_duration_seconds_sum{of=\"cluster\"} 60.0",
            "slipway_kubespray_runs{state=\"under-way\"} 1",
            "slipway_kubespray_runs{state=\"waiting\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}

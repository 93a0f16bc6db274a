//! What agents do, counted: their calls, sessions and steps. No label says which host's.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::api::slipway::StepAction;
use crate::boot::BootAnswers;

/// A session whose agent calls is alive for so long: it asks for a step, or tells of one, more often.
const ALIVE: Duration = Duration::from_secs(60);
/// An agent that was silent for so long is not remembered.
const FORGET: Duration = Duration::from_secs(600);
/// Seconds that divide steps: from a boot entry to an image on a slow disk.
const SECONDS: [f64; 12] = [0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0];
/// Calls, as their path has them.
const CALLS: [&str; 7] = ["session", "step", "event", "result", "log", "manifest", "chunk"];

/// What ends is counted from zero: else nobody could tell the first from what was before.
const ACTIONS: [StepAction; 9] = [
    StepAction::Inspect,
    StepAction::Erase,
    StepAction::WriteImage,
    StepAction::WriteConfigDrive,
    StepAction::SetBootEntry,
    StepAction::Kexec,
    StepAction::Reboot,
    StepAction::PowerOff,
    StepAction::CollectLogs,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    action: String,
    outcome: &'static str,
}

impl StepLabels {
    fn of(action: StepAction, succeeded: bool) -> Self {
        Self { action: action.to_string(), outcome: if succeeded { "succeeded" } else { "failed" } }
    }
}

/// Counters of all agents of one appliance.
pub(in crate::host) struct AgentMetrics {
    /// Answers to their calls, by [`kind`].
    pub answers: BootAnswers,
    /// Bytes of steps' results, those of unknown machines among them.
    pub report_bytes: Counter,
    /// Bytes of logs that were kept.
    pub log_bytes: Counter,
    steps: Family<StepLabels, Counter>,
    step_seconds: Family<StepLabels, Histogram, fn() -> Histogram>,
    /// By the uid of the host. std's lock: held for a look, never across an await.
    heard: Mutex<HashMap<String, AgentContact>>,
}

/// An agent that called.
struct AgentContact {
    last: Instant,
    /// The step that it was given last, and when it was given that first.
    step: Option<(String, Instant)>,
}

impl Default for AgentMetrics {
    fn default() -> Self {
        let steps = Family::<StepLabels, Counter>::default();
        for ended in ACTIONS.iter().flat_map(|action| [true, false].map(|succeeded| StepLabels::of(*action, succeeded)))
        {
            drop(steps.get_or_create(&ended));
        }
        Self {
            answers: BootAnswers::default(),
            report_bytes: Counter::default(),
            log_bytes: Counter::default(),
            steps,
            step_seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            heard: Mutex::default(),
        }
    }
}

/// What a call is about, by the path of its route.
pub(in crate::host) fn kind(route: &str) -> &'static str {
    let call = route.strip_prefix("/agent/v1/").and_then(|rest| rest.split('/').next());
    CALLS.into_iter().find(|known| Some(*known) == call).unwrap_or("other")
}

impl AgentMetrics {
    /// Names everything for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        self.answers.register("slipway_agent_requests", "slipway_agent_sent_bytes", registry);
        let sessions = Gauge::<i64>::default();
        sessions.set(i64::try_from(self.alive(Instant::now())).unwrap_or(i64::MAX));
        registry.register("slipway_agent_sessions", "Hosts whose agent called within the last minute", sessions);
        registry.register("slipway_agent_steps", "Steps that ended", self.steps.clone());
        registry.register(
            "slipway_agent_step_duration_seconds",
            "Time from a step's first being given to its result",
            self.step_seconds.clone(),
        );
        registry.register("slipway_agent_report_bytes", "Bytes of steps' results", self.report_bytes.clone());
        registry.register("slipway_agent_log_bytes", "Bytes of nodes' logs", self.log_bytes.clone());
    }

    /// The host's agent calls now.
    pub fn called(&self, uid: &str, now: Instant) {
        let mut heard = self.heard();
        match heard.get_mut(uid) {
            Some(one) => one.last = now,
            None => {
                heard.retain(|_, one| now.saturating_duration_since(one.last) < FORGET);
                heard.insert(uid.to_owned(), AgentContact { last: now, step: None });
            }
        }
    }

    /// It is given this step, for the first time or again.
    pub fn given(&self, uid: &str, step: &str, now: Instant) {
        let mut heard = self.heard();
        let Some(one) = heard.get_mut(uid) else { return };
        if one.step.as_ref().is_none_or(|(known, _)| known != step) {
            one.step = Some((step.to_owned(), now));
        }
    }

    /// The step's result was stored. How long it took is not known when another process gave it.
    pub fn ended(&self, uid: &str, step: &str, action: StepAction, succeeded: bool, now: Instant) {
        let ended = StepLabels::of(action, succeeded);
        self.steps.get_or_create(&ended).inc();
        let given = self.heard().get_mut(uid).and_then(|one| one.step.take_if(|(known, _)| known == step));
        if let Some((_, since)) = given {
            let took = now.saturating_duration_since(since);
            self.step_seconds.get_or_create(&ended).observe(took.as_secs_f64());
        }
    }

    fn alive(&self, now: Instant) -> usize {
        self.heard().values().filter(|one| now.saturating_duration_since(one.last) < ALIVE).count()
    }

    fn heard(&self) -> MutexGuard<'_, HashMap<String, AgentContact>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_from_its_first_being_given_to_its_result() {
        let metrics = AgentMetrics::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        metrics.called("a", at(0));
        metrics.given("a", "1.1", at(0));
        // Its answer got lost.
        metrics.given("a", "1.1", at(20));
        metrics.ended("a", "1.1", StepAction::WriteImage, true, at(100));
        metrics.given("a", "1.2", at(100));
        metrics.ended("a", "1.2", StepAction::WriteImage, false, at(101));
        // Given by the process before this one.
        metrics.called("b", at(101));
        metrics.ended("b", "7.3", StepAction::WriteImage, true, at(101));
        let text = crate::metrics::shown(|registry| metrics.register(registry));
        for line in [
            "slipway_agent_steps_total{action=\"write-image\",outcome=\"succeeded\"} 2",
            "slipway_agent_steps_total{action=\"write-image\",outcome=\"failed\"} 1",
            "slipway_agent_step_duration_seconds_sum{action=\"write-image\",outcome=\"succeeded\"} 100.0",
            "slipway_agent_step_duration_seconds_count{action=\"write-image\",outcome=\"succeeded\"} 1",
            "slipway_agent_step_duration_seconds_sum{action=\"write-image\",outcome=\"failed\"} 1.0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn a_session_is_alive_while_its_agent_calls_and_forgotten_after_a_while() {
        let metrics = AgentMetrics::default();
        let begin = Instant::now();
        metrics.called("a", begin);
        metrics.called("b", begin + ALIVE / 2);
        metrics.called("a", begin + ALIVE / 2);
        assert_eq!((metrics.alive(begin + ALIVE), metrics.alive(begin + ALIVE * 2)), (2, 0));
        metrics.called("c", begin + FORGET * 2);
        assert_eq!(metrics.alive(begin + FORGET * 2), 1);
        assert_eq!(metrics.heard().len(), 1);
    }

    #[test]
    fn a_route_becomes_one_of_a_few_kinds() {
        let rows = [
            ("/agent/v1/session", "session"),
            ("/agent/v1/chunk/{sha256}", "chunk"),
            ("/agent/v1/manifest/{digest}", "manifest"),
            ("/agent/v1/evil", "other"),
            ("/evil", "other"),
        ];
        for (route, wanted) in rows {
            assert_eq!(kind(route), wanted, "{route}");
        }
    }
}

//! An agent's steps: which is next, how far it is, and how it ended.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tracing::info;

use super::session::SessionCaller;
use super::{Sessions, step_payload};
use crate::api::slipway::{BootIntent, BootIntentStatus, IntentStep, StepProgress, StepResult};
use crate::host::refused::AgentRefused;
use crate::protocol::{AgentStep, STEP_WAIT_SECONDS, StepEvent, StepOutcome};

/// Lines of a node's log kept in the intent when a step fails.
const LOG_LINES: usize = 200;
/// Characters of an agent's word in a line of the log.
const LOGGED: usize = 500;
/// Results kept in an intent.
const RESULTS: usize = 32;

/// What a step is to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepState {
    /// None in particular.
    Unnamed,
    Planned,
    /// Its result is stored.
    Ended,
}

impl Sessions {
    /// The next step, as soon as there is one; `None` when there is none for as long as a call is held.
    pub(super) async fn next_step(
        &self,
        caller: &SessionCaller,
        after: &str,
    ) -> Result<Option<AgentStep>, AgentRefused> {
        let mut follow = self.0.intents.follow(&caller.namespace, &caller.name);
        let give_up = tokio::time::sleep(Duration::from_secs(STEP_WAIT_SECONDS));
        tokio::pin!(give_up);
        let intent = follow.borrow().clone();
        self.touch(caller, intent.as_deref()).await?;
        loop {
            let intent = follow.borrow_and_update().clone();
            let Some(intent) = intent.filter(|intent| intent.spec.generation == caller.generation) else {
                return Err(AgentRefused(StatusCode::UNAUTHORIZED, "this session has ended".into()));
            };
            let inner = &self.0;
            let host = inner.index.by_name(&caller.namespace, &caller.name);
            // What is under way comes to its end; nothing is begun.
            let paused = host.is_some_and(|host| host.ownership.paused);
            if let Some(step) = next_of(&intent, after).filter(|_| !paused) {
                let metrics = self.metrics();
                let (namespace, name) = (&caller.namespace, &caller.name);
                let drives = &inner.drives;
                match step_payload::render(&inner.client, metrics, drives, namespace, name, caller.generation, step)
                    .await
                {
                    Ok(step) => {
                        metrics.agents().given(&caller.uid, &step.id, Instant::now());
                        return Ok(Some(step));
                    }
                    Err(step_payload::PayloadError::Api(error)) => return Err(error.into()),
                    // The operator must see why, so the step ends here, before the agent had it.
                    Err(error) => {
                        let failed =
                            StepOutcome { step: step.id.clone(), message: error.to_string(), ..StepOutcome::default() };
                        self.end_step(caller, &failed).await?;
                    }
                }
            }
            tokio::select! {
                changed = follow.changed() => if changed.is_err() {
                    return Ok(None);
                },
                () = &mut give_up => return Ok(None),
            }
        }
    }

    /// Refuses what is said of a step that the host does not want any more, so that the agent stops it.
    pub(super) async fn still_wanted(&self, caller: &SessionCaller, step: &str) -> Result<StepState, AgentRefused> {
        let intent = self.api(&caller.namespace).get(&caller.name).await?;
        if intent.status.as_ref().is_some_and(|status| has_ended(status, step)) {
            return Ok(StepState::Ended);
        }
        if step.is_empty() {
            return Ok(StepState::Unnamed);
        }
        let planned = intent.spec.steps.iter().any(|planned| planned.id == step);
        planned
            .then_some(StepState::Planned)
            .ok_or_else(|| AgentRefused(StatusCode::GONE, "this step is not wanted any more".into()))
    }

    /// Stores how far a step is, unless it has ended meanwhile.
    pub(super) async fn record_progress(
        &self,
        caller: &SessionCaller,
        event: &StepEvent,
        rate: Option<i64>,
    ) -> Result<(), AgentRefused> {
        let now = Time(Timestamp::now());
        self.record(caller, |status, _| {
            if !has_ended(status, &event.step) {
                status.progress = Some(progress(event, status.progress.as_ref(), rate, &now));
            }
        })
        .await
    }

    /// Stores how a step ended; durable when it returns. A second result of the same step changes nothing.
    pub(super) async fn end_step(&self, caller: &SessionCaller, outcome: &StepOutcome) -> Result<(), AgentRefused> {
        let host = format!("{}/{}", caller.namespace, caller.name);
        let message: String = outcome.message.chars().take(LOGGED).collect();
        let step: String = outcome.step.chars().take(LOGGED).collect();
        info!(%host, step, succeeded = outcome.succeeded, outcome = message, "the agent ended a step");
        let finished = Time(self.0.index.report_time(Timestamp::now()));
        self.0.meter.end(&(caller.namespace.clone(), caller.name.clone()));
        let ended = self.record(caller, |status, intent| {
            let planned = intent.spec.steps.iter().find(|step| step.id == outcome.step);
            let action = planned.filter(|step| !has_ended(status, &step.id))?.action;
            // The agent names its last step when it asks for the next, so the newest results must stay.
            let surplus = (status.results.len() + 1).saturating_sub(RESULTS);
            status.results.drain(..surplus);
            status.results.push(StepResult {
                id: outcome.step.clone(),
                succeeded: outcome.succeeded,
                message: outcome.message.chars().take(2000).collect(),
                finished: Some(finished.clone()),
            });
            status.progress = None;
            if let Some(inventory) = &outcome.inventory {
                status.inventory = Some(inventory.clone());
            }
            if !outcome.succeeded {
                let skip = outcome.log.len().saturating_sub(LOG_LINES);
                status.log = outcome.log.iter().skip(skip).map(|line| line.chars().take(500).collect()).collect();
            }
            Some(action)
        });
        if let Some(action) = ended.await? {
            let now = Instant::now();
            self.metrics().agents().ended(&caller.uid, &outcome.step, action, outcome.succeeded, now);
        }
        Ok(())
    }
}

fn has_ended(status: &BootIntentStatus, step: &str) -> bool {
    status.results.iter().any(|result| result.id == step)
}

/// The first step without a result, unless one of its operation failed before. `after` guards against an answer
/// made from a record older than the agent's own last step; one that is not planned any more needs no result.
pub(super) fn next_of<'a>(intent: &'a BootIntent, after: &str) -> Option<&'a IntentStep> {
    let results = intent.status.as_ref().map_or(&[][..], |status| &status.results);
    let pending = intent.spec.steps.iter().any(|step| step.id == after);
    if pending && !results.iter().any(|result| result.id == after) {
        return None;
    }
    let ended = |step: &IntentStep| results.iter().find(|result| result.id == step.id);
    let step = intent.spec.steps.iter().find(|step| ended(step).is_none())?;
    let broken = intent
        .spec
        .steps
        .iter()
        .any(|other| other.operation == step.operation && ended(other).is_some_and(|result| !result.succeeded));
    (!broken).then_some(step)
}

fn progress(event: &StepEvent, before: Option<&StepProgress>, rate: Option<i64>, now: &Time) -> StepProgress {
    let number = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
    let (done, total) = (number(event.bytes_done), number(event.bytes_total));
    let percent = match (done, total) {
        (Some(done), Some(total)) if total > 0 => Some((done.saturating_mul(100) / total).clamp(0, 100)),
        _ => None,
    };
    let same = before.filter(|before| before.step == event.step && before.phase == event.phase);
    StepProgress {
        step: event.step.chars().take(64).collect(),
        phase: event.phase.chars().take(64).collect(),
        percent,
        bytes_done: done,
        bytes_total: total,
        bytes_per_second: rate,
        message: event.message.as_ref().map(|message| message.chars().take(500).collect()),
        since: same.and_then(|same| same.since.clone()).or_else(|| Some(now.clone())),
    }
}

//! Which step is next. Decides; does nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::config::AgentPauses;
use crate::api::lcm::{StateItem, StateItemStatus};

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NextStep {
    /// This step, as often as it was tried before.
    Step(Box<StateItem>),
    /// A step that failed is tried again after this time; those behind it wait.
    Later(Duration),
    /// Nothing.
    Idle,
}

/// Whether a step is done.
pub(super) fn is_done(item: &StateItem, steps: &BTreeMap<String, StateItemStatus>) -> bool {
    steps.get(&item.name).is_some_and(|step| step.exit_code == Some(0) && step.hash == item.hash())
}

/// The next step of these, which are in order.
pub(super) fn next(
    items: &[StateItem],
    steps: &BTreeMap<String, StateItemStatus>,
    now: Timestamp,
    pauses: &AgentPauses,
) -> NextStep {
    let Some(item) = items.iter().find(|item| !is_done(item, steps)) else { return NextStep::Idle };
    match steps.get(&item.name).filter(|step| step.hash == item.hash()) {
        Some(step) => match pause(step, now, pauses) {
            pause if pause.is_zero() => NextStep::Step(Box::new(item.clone())),
            pause => NextStep::Later(pause),
        },
        None => NextStep::Step(Box::new(item.clone())),
    }
}

/// How long a step that was tried is left alone. Clocks may be put right meanwhile: it is never longer than it would be at first.
fn pause(step: &StateItemStatus, now: Timestamp, pauses: &AgentPauses) -> Duration {
    // Its agent died on it. Once this is chance; a step that kills its agent each time has its pauses.
    let was_cut = step.exit_code.is_none();
    let tries = if was_cut { step.attempt - 1 } else { step.attempt };
    if tries < 1 {
        return Duration::ZERO;
    }
    let whole = AgentPauses::after(pauses.retry_least, pauses.retry_most, tries);
    let Some(since) = step.finished_at.as_ref().or(step.started_at.as_ref()) else { return whole };
    let passed = now.duration_since(since.0).max(SignedDuration::ZERO);
    whole.saturating_sub(Duration::try_from(passed).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn item(name: &str) -> StateItem {
        StateItem { name: name.into(), ..StateItem::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn step(name: &str, exit_code: Option<i32>, attempt: i32, finished: Option<i64>) -> StateItemStatus {
        StateItemStatus {
            hash: item(name).hash(),
            exit_code,
            attempt,
            started_at: Some(Time(at(-5))),
            finished_at: finished.map(|second| Time(at(second))),
            ..StateItemStatus::default()
        }
    }

    #[test]
    fn the_first_that_is_not_done_is_next_and_one_that_failed_waits_longer_each_time() {
        let pauses = AgentPauses::default();
        let other = StateItemStatus { hash: "other".into(), exit_code: Some(0), attempt: 9, ..Default::default() };
        let of_a = |status| BTreeMap::from([("a".to_owned(), status)]);
        let seconds = |count| NextStep::Later(Duration::from_secs(count));
        let run = |name: &str| NextStep::Step(Box::new(item(name)));
        let rows = [
            (BTreeMap::new(), run("a")),
            (of_a(step("a", Some(0), 1, Some(0))), run("b")),
            (of_a(other.clone()), run("a")),
            (of_a(StateItemStatus { exit_code: Some(1), ..other }), run("a")),
            (of_a(step("a", Some(1), 1, Some(0))), seconds(10)),
            (of_a(step("a", Some(1), 1, Some(-4))), seconds(6)),
            (of_a(step("a", Some(1), 1, Some(-10))), run("a")),
            (of_a(step("a", Some(1), 3, Some(0))), seconds(40)),
            (of_a(step("a", Some(1), 99, Some(0))), seconds(300)),
            // A clock that was put back by years.
            (of_a(step("a", Some(1), 1, Some(400_000_000))), seconds(10)),
            // Cut off by a crash: again at once, and later from then on.
            (of_a(step("a", None, 1, None)), run("a")),
            (of_a(step("a", None, 2, None)), seconds(5)),
            (
                BTreeMap::from([
                    ("a".to_owned(), step("a", Some(0), 1, Some(0))),
                    ("b".to_owned(), step("b", Some(0), 1, Some(0))),
                ]),
                NextStep::Idle,
            ),
        ];
        for (steps, wanted) in rows {
            assert_eq!(next(&[item("a"), item("b")], &steps, at(0), &pauses), wanted, "{steps:?}");
        }
        assert_eq!(next(&[], &BTreeMap::new(), at(0), &pauses), NextStep::Idle);
    }
}

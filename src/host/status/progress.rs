//! Progress of a host, for `status.progress`: a pure function of what is stored and decided.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::metal3::{BareMetalHostStatus, HostProgress, OperationalStatus, ProvisioningState as State};
use crate::api::slipway::{BootIntent, BootTarget, ImagePhase, IntentStep};
use crate::host::lifecycle::{AfterStore, HostObservation};

/// Longest reason, in characters.
const REASON_MAX: usize = 300;

/// What the host does or waits for, given the status and what comes next. `None` when it is at rest.
pub(in crate::host) fn of(
    observed: &HostObservation<'_>,
    status: &BareMetalHostStatus,
    next: &AfterStore,
) -> Option<HostProgress> {
    let before = observed.host.status.as_ref().and_then(|status| status.progress.as_ref());
    let mut progress = match next {
        AfterStore::Wait { reason, until } => waiting(observed, status, reason, *until)?,
        // Something is done at once: what was true before is true until it is done.
        AfterStore::Paused => return before.cloned(),
        AfterStore::Again | AfterStore::Do(_) | AfterStore::Gone => {
            return before.filter(|_| is_moving(status)).cloned();
        }
    };
    let same = before.filter(|before| before.phase == progress.phase && before.step == progress.step);
    progress.since = progress.since.or_else(|| same.and_then(|same| same.since.clone())).or(Some(Time(observed.now)));
    Some(progress)
}

fn waiting(
    observed: &HostObservation<'_>,
    status: &BareMetalHostStatus,
    reason: &str,
    until: Timestamp,
) -> Option<HostProgress> {
    let reason: String = reason.chars().take(REASON_MAX).collect();
    let state = status.provisioning.state;
    let base = HostProgress { phase: "waiting".into(), reason, ..HostProgress::default() };
    if status.operational_status == OperationalStatus::Error {
        // A rest between two attempts ends by itself.
        return Some(HostProgress { phase: "failed, will try again".into(), deadline: Some(Time(until)), ..base });
    }
    if status.operational_status == OperationalStatus::Delayed {
        return Some(HostProgress { phase: "waiting for its turn".into(), ..base });
    }
    if state == State::Unmanaged {
        return Some(HostProgress { phase: "waiting for the operator".into(), ..base });
    }
    if state == State::Available && observed.waits_for_image() {
        return Some(HostProgress { phase: "waiting for the image".into(), ..base });
    }
    if !is_moving(status) {
        return None;
    }
    let intent = observed.intent.filter(|intent| intent.spec.target == BootTarget::Ramdisk);
    let Some(intent) = intent.filter(|intent| !intent.spec.steps.is_empty()) else {
        return Some(importing(observed, base));
    };
    match session_heard(intent) {
        Some(heard) => {
            let deadline = observed.settings.agent_deadline.0;
            let silent_at = observed.counted(heard, deadline) + deadline;
            let base = HostProgress { deadline: Some(Time(silent_at)), ..base };
            match under_way(intent) {
                Some(step) => Some(working(intent, step, base)),
                None => Some(importing(observed, base)),
            }
        }
        None => {
            let deadline = observed.settings.boot_deadline.0;
            let called_by = intent.spec.started.as_ref().map(|at| observed.counted(at.0, deadline) + deadline);
            let phase = if called_by.is_some() { "booting" } else { "powering on" };
            Some(HostProgress { phase: phase.into(), deadline: called_by.map(Time), ..base })
        }
    }
}

/// Whether the state is one that ends by itself.
pub(in crate::host) fn is_moving(status: &BareMetalHostStatus) -> bool {
    use State::{
        Deleting, Deprovisioning, Inspecting, MatchProfile, PoweringOffBeforeDelete, Preparing, Provisioning,
        Registering,
    };
    matches!(
        status.provisioning.state,
        Registering
            | Inspecting
            | MatchProfile
            | Preparing
            | Provisioning
            | Deprovisioning
            | PoweringOffBeforeDelete
            | Deleting
    )
}

fn session_heard(intent: &BootIntent) -> Option<Timestamp> {
    let session = intent.status.as_ref()?.session.as_ref()?;
    let current = session.generation == intent.spec.generation;
    session.last_seen.as_ref().or(session.opened.as_ref()).filter(|_| current).map(|time| time.0)
}

/// The first step without a result.
fn under_way(intent: &BootIntent) -> Option<&IntentStep> {
    let results = intent.status.as_ref().map_or(&[][..], |status| &status.results);
    intent.spec.steps.iter().find(|step| !results.iter().any(|result| result.id == step.id))
}

fn working(intent: &BootIntent, step: &IntentStep, base: HostProgress) -> HostProgress {
    let told = intent.status.as_ref().and_then(|status| status.progress.as_ref()).filter(|told| told.step == step.id);
    let Some(told) = told else {
        return HostProgress { step: step.action.to_string(), phase: "with the agent".into(), ..base };
    };
    let left = told.bytes_done.zip(told.bytes_total).zip(told.bytes_per_second.filter(|rate| *rate > 0));
    HostProgress {
        step: step.action.to_string(),
        phase: if told.phase == step.action.to_string() { step.action.doing().into() } else { told.phase.clone() },
        percent: told.percent,
        bytes_done: told.bytes_done,
        bytes_total: told.bytes_total,
        bytes_per_second: told.bytes_per_second,
        seconds_left: left.map(|((done, total), rate)| (total - done).max(0) / rate),
        since: told.since.clone(),
        ..base
    }
}

/// Waits for the library, when that is what is waited for.
fn importing(observed: &HostObservation<'_>, base: HostProgress) -> HostProgress {
    let image = observed.image.and_then(|image| image.status.as_ref());
    match image.filter(|image| matches!(image.phase, ImagePhase::Importing | ImagePhase::Pending)) {
        Some(image) => HostProgress { phase: "importing the image".into(), percent: image.percent, ..base },
        None => base,
    }
}

/// Whether two say the same but for what moves by itself: the time of the next look.
pub(in crate::host) fn says_the_same(one: Option<&HostProgress>, other: Option<&HostProgress>) -> bool {
    let near = |a: &Time, b: &Time| a.0.duration_since(b.0).abs() < SignedDuration::from_secs(30);
    match (one, other) {
        (Some(one), Some(other)) => {
            let deadlines = match (&one.deadline, &other.deadline) {
                (Some(a), Some(b)) => near(a, b),
                (a, b) => a == b,
            };
            deadlines
                && HostProgress { deadline: None, ..one.clone() } == HostProgress { deadline: None, ..other.clone() }
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::{BareMetalHost, ErrorType, ProvisionStatus};
    use crate::api::slipway::{
        BootIntentSpec, BootIntentStatus, Image, ImageStatus, SessionStatus, StepAction, StepProgress, StepResult,
    };
    use crate::config::HostConfig;
    use crate::host::lifecycle::Access;

    const NOW: i64 = 1_800_000_000;

    fn at(offset: i64) -> Timestamp {
        Timestamp::from_second(NOW + offset).expect("a time")
    }

    fn intent(session: bool, progress: Option<StepProgress>, done: &[&str]) -> BootIntent {
        let step = |id: &str, action| IntentStep { id: id.into(), action, ..IntentStep::default() };
        let spec = BootIntentSpec {
            generation: 7,
            target: BootTarget::Ramdisk,
            steps: vec![step("7.1", StepAction::WriteImage), step("7.2", StepAction::PowerOff)],
            started: Some(Time(at(-60))),
            ..BootIntentSpec::default()
        };
        let heard = SessionStatus { generation: 7, last_seen: Some(Time(at(-5))), ..SessionStatus::default() };
        let results = done.iter().map(|id| StepResult { id: (*id).into(), succeeded: true, ..Default::default() });
        let mut intent = BootIntent::new("h", spec);
        intent.status = Some(BootIntentStatus {
            session: session.then_some(heard),
            progress,
            results: results.collect(),
            ..BootIntentStatus::default()
        });
        intent
    }

    fn ask(state: State, error: bool, intent: Option<&BootIntent>, image: Option<&Image>) -> Option<HostProgress> {
        let status = BareMetalHostStatus {
            provisioning: ProvisionStatus { state, ..ProvisionStatus::default() },
            operational_status: if error { OperationalStatus::Error } else { OperationalStatus::OK },
            error_type: error.then_some(ErrorType::Provisioning),
            ..BareMetalHostStatus::default()
        };
        let (host, settings) = (BareMetalHost::default(), HostConfig::default());
        let observed = HostObservation {
            now: at(0),
            up_since: Timestamp::UNIX_EPOCH,
            host: &host,
            intent,
            access: &Access::None,
            power: None,
            image,
            equal: None,
            hardware: None,
            hardware_from: None,
            record_time: 0,
            mac_owner: None,
            held_until: None,
            data_cd: false,
            room: true,
            settings: &settings,
        };
        of(&observed, &status, &AfterStore::Wait { reason: "because".into(), until: at(60) })
    }

    #[test]
    fn every_wait_has_its_phase_and_where_there_is_one_its_deadline() {
        let told = StepProgress {
            step: "7.1".into(),
            phase: "writing the image".into(),
            percent: Some(25),
            bytes_done: Some(250),
            bytes_total: Some(1000),
            bytes_per_second: Some(50),
            since: Some(Time(at(-20))),
            ..StepProgress::default()
        };
        let mut image = Image::new("i", Default::default());
        image.status = Some(ImageStatus { phase: ImagePhase::Importing, percent: Some(40), ..ImageStatus::default() });
        let (booting, fresh) = (intent(false, None, &[]), intent(true, None, &[]));
        let (writing, between) = (intent(true, Some(told), &[]), intent(true, None, &["7.1", "7.2"]));
        let rows = [
            (State::Provisioning, false, Some(&booting), None, Some(("booting", "", None, Some(840)))),
            (State::Provisioning, false, Some(&fresh), None, Some(("with the agent", "write-image", None, Some(115)))),
            (
                State::Provisioning,
                false,
                Some(&writing),
                None,
                Some(("writing the image", "write-image", Some(25), Some(115))),
            ),
            (
                State::Provisioning,
                false,
                Some(&between),
                Some(&image),
                Some(("importing the image", "", Some(40), Some(115))),
            ),
            (State::Provisioning, false, None, Some(&image), Some(("importing the image", "", Some(40), None))),
            (State::Provisioning, true, Some(&writing), None, Some(("failed, will try again", "", None, Some(60)))),
            (State::Unmanaged, false, None, None, Some(("waiting for the operator", "", None, None))),
            (State::Available, false, None, None, None),
            (State::Provisioned, false, Some(&writing), None, None),
        ];
        for (state, error, intent, image, wanted) in rows {
            let found = ask(state, error, intent, image);
            let deadline = |progress: &HostProgress| progress.deadline.as_ref().map(|time| time.0.as_second() - NOW);
            let short = found.as_ref().map(|it| (it.phase.as_str(), it.step.as_str(), it.percent, deadline(it)));
            assert_eq!(short, wanted, "{state:?}");
            assert!(found.is_none_or(|found| found.reason == "because" && found.since.is_some()));
        }
        let progress = ask(State::Provisioning, false, Some(&writing), None).expect("it moves");
        assert_eq!((progress.seconds_left, progress.bytes_per_second), (Some(15), Some(50)));
        assert_eq!(progress.since, Some(Time(at(-20))));
    }

    #[test]
    fn a_deadline_that_moves_with_every_word_of_the_agent_is_not_news() {
        let progress = |deadline, percent| HostProgress {
            deadline: Some(Time(at(deadline))),
            percent: Some(percent),
            ..HostProgress::default()
        };
        for (one, other, same) in [
            (Some(progress(0, 1)), Some(progress(10, 1)), true),
            (Some(progress(0, 1)), Some(progress(40, 1)), false),
            (Some(progress(0, 1)), Some(progress(0, 2)), false),
            (Some(progress(0, 1)), None, false),
            (None, None, true),
        ] {
            assert_eq!(says_the_same(one.as_ref(), other.as_ref()), same, "{one:?} {other:?}");
        }
    }
}

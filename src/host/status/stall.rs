//! Stuck hosts: an event once, and a gauge for as long as it lasts.
//!
//! A host is stuck when it is in a state that ends by itself and nothing about it has changed for `host.stuck_after`, or
//! when the deadline of its wait has passed by a while and nothing came of it. It watches from outside: whatever holds up
//! the reconciler does not hold up this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Client, Resource, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::progress::is_moving;
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost, BareMetalHostStatus, OperationalStatus};
use crate::config::HostConfig;
use crate::host::COMPONENT;
use crate::live::Live;
use crate::log::named;
use crate::runtime::{Note, ObjectKey, SupervisedTask, WatchChange, Watches, events, key};

/// How often all hosts are looked at.
const LOOK: Duration = Duration::from_secs(10);
/// So long after a deadline somebody should have acted on it.
const AFTER_DEADLINE: jiff::SignedDuration = jiff::SignedDuration::from_secs(120);

/// Hosts that do not get on, by state and reason. Cheap to clone.
#[derive(Clone, Default)]
pub struct StallDetector {
    gauge: Family<StallLabels, Gauge>,
    hosts: Arc<Mutex<HashMap<ObjectKey, LastProgress>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StallLabels {
    state: &'static str,
    reason: &'static str,
}

impl StallDetector {
    /// Knows what hosts do as the watch of hosts tells.
    pub fn new(watches: &mut Watches) -> Self {
        let stuck = Self::default();
        let told = stuck.clone();
        watches.observe(move |change: &WatchChange<'_, BareMetalHost>| told.take(change, Instant::now()));
        stuck
    }

    /// Names the gauge for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("slipway_host_stuck", "Hosts that do not get on", self.gauge.clone());
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<ObjectKey, LastProgress>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, change: &WatchChange<'_, BareMetalHost>, now: Instant) {
        match change {
            WatchChange::Put(host) => take(&mut self.kept(), host, now),
            WatchChange::Gone(key) => {
                if let Some(mut host) = self.kept().remove(*key) {
                    self.forget(&mut host);
                }
            }
            WatchChange::Listed => {}
        }
    }

    /// Takes the host out of the gauge.
    fn forget(&self, host: &mut LastProgress) {
        if let Some(labels) = host.told.take() {
            self.gauge.get_or_create(&labels).dec();
        }
    }

    /// Brings the gauge up to date; the hosts of which something is new, with what is to be said.
    fn look(&self, limit: Duration, now: Instant, time: Timestamp) -> Vec<(ObjectReference, Note)> {
        let mut all = self.kept();
        let mut news = Vec::new();
        for kept in all.values_mut() {
            let still = now.saturating_duration_since(kept.moved);
            let found = judge(kept.mark.state, &kept.look, still, limit, time);
            let labels =
                found.as_ref().map(|(reason, _)| StallLabels { state: kept.mark.state, reason: reason.as_str() });
            if kept.told == labels {
                continue;
            }
            let before = kept.told.clone();
            self.forget(kept);
            if let Some(labels) = &labels {
                self.gauge.get_or_create(labels).inc();
            }
            // Another reason for the same standstill is no other occurrence.
            let note = match (&before, found) {
                (None, Some((_, message))) => Some(Note { reason: "Stuck", message, warning: true }),
                (Some(_), None) => {
                    Some(Note { reason: "NoLongerStuck", message: "The host gets on again".into(), warning: false })
                }
                _ => None,
            };
            kept.told = labels;
            news.extend(note.map(|note| (kept.host.clone(), note)));
        }
        all.retain(|_, kept| kept.look.moving);
        news
    }
}

/// Why a host counts as stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    NoProgress,
    Deadline,
    Error,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Self::NoProgress => "no-progress",
            Self::Deadline => "deadline",
            Self::Error => "error",
        }
    }
}

/// A host that is to get on, as it was when something about it changed last. Of a rack most are not: they are not kept.
struct LastProgress {
    host: ObjectReference,
    look: HostInspectionRequest,
    /// What counts as getting on.
    mark: ProgressMark,
    moved: Instant,
    told: Option<StallLabels>,
}

/// What is asked of a host.
struct HostInspectionRequest {
    /// Whether it is in a state that ends by itself, and neither paused nor waiting for others.
    moving: bool,
    doing: String,
    deadline: Option<Timestamp>,
    error: String,
}

impl HostInspectionRequest {
    fn at(host: &BareMetalHost, status: &BareMetalHostStatus) -> Self {
        let paused = host.annotations().contains_key(ANNOTATION_PAUSED);
        let waits_for_others = status.operational_status == OperationalStatus::Delayed;
        let progress = status.progress.clone().unwrap_or_default();
        Self {
            moving: is_moving(status) && !waits_for_others && !paused,
            doing: if progress.reason.is_empty() { progress.phase } else { progress.reason },
            deadline: progress.deadline.map(|time| time.0),
            error: status.error_message.clone(),
        }
    }
}

/// What changes when a host gets on. Times, errors' numbers and words about waiting do not count.
#[derive(Clone, Debug, PartialEq)]
struct ProgressMark {
    state: &'static str,
    phase: String,
    step: String,
    percent: Option<i64>,
    done: Option<i64>,
}

fn mark(status: &BareMetalHostStatus) -> ProgressMark {
    let progress = status.progress.clone().unwrap_or_default();
    // Going from one failed attempt to the next is no getting on.
    let failed = status.operational_status == OperationalStatus::Error || status.error_count > 0;
    ProgressMark {
        state: status.provisioning.state.as_str(),
        phase: if failed { String::new() } else { progress.phase },
        step: if failed { String::new() } else { progress.step },
        percent: progress.percent,
        done: progress.bytes_done,
    }
}

/// Whether a host is stuck that has been in this state without a change for `still`.
fn judge(
    state: &str,
    look: &HostInspectionRequest,
    still: Duration,
    limit: Duration,
    now: Timestamp,
) -> Option<(Why, String)> {
    let HostInspectionRequest { moving: true, doing, deadline, error } = look else { return None };
    if let Some(deadline) = deadline.filter(|deadline| now.duration_since(*deadline) > AFTER_DEADLINE) {
        return Some((Why::Deadline, format!("{state}: the deadline of its wait, {deadline:.0}, has passed: {doing}")));
    }
    if still < limit {
        return None;
    }
    let minutes = still.as_secs() / 60;
    if error.is_empty() {
        return Some((Why::NoProgress, format!("{state}: nothing has moved for {minutes} minutes: {doing}")));
    }
    Some((Why::Error, format!("{state}: no attempt has succeeded for {minutes} minutes; the last one: {error}")))
}

/// Looks at every host until the shutdown. Each look is a run of the task.
pub async fn run(
    client: Client,
    stuck: StallDetector,
    settings: Live<HostConfig>,
    task: SupervisedTask,
    shutdown: CancellationToken,
) {
    // Another appliance may look at them afterwards.
    let stuck = StallWatch(stuck);
    let look = async || {
        let mut stored = Ok(());
        for (host, note) in stuck.0.look(settings.get().stuck_after.0, Instant::now(), Timestamp::now()) {
            let label = named(host.namespace.as_deref().unwrap_or_default(), host.name.as_deref().unwrap_or_default());
            warn!(host = %label, reason = note.reason, details = note.message, "the host is stuck");
            stored = events::store(&client, COMPONENT, &host, &note).await.and(stored);
        }
        stored
    };
    task.every(LOOK, &shutdown, look).await;
}

/// Somebody looks; when he ends, however, no host is in the gauge any more.
struct StallWatch(StallDetector);

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.0.kept().values_mut().for_each(|host| self.0.forget(host));
    }
}

fn take(all: &mut HashMap<ObjectKey, LastProgress>, host: &BareMetalHost, now: Instant) {
    let nothing = BareMetalHostStatus::default();
    let status = host.status.as_ref().unwrap_or(&nothing);
    let (look, mark) = (HostInspectionRequest::at(host, status), mark(status));
    let key = key(host);
    match all.get_mut(&key) {
        // Another one under the same name begins anew.
        Some(kept) if kept.host.uid != host.uid() => {
            *kept = LastProgress { host: host.object_ref(&()), look, mark, moved: now, told: kept.told.take() };
        }
        Some(kept) => {
            if kept.mark != mark {
                (kept.mark, kept.moved) = (mark, now);
            }
            kept.look = look;
        }
        None if look.moving => {
            all.insert(key, LastProgress { host: host.object_ref(&()), look, mark, moved: now, told: None });
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::{HostProgress, ProvisioningState as State};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    const LIMIT: Duration = Duration::from_secs(900);

    fn host(state: State, change: impl FnOnce(&mut BareMetalHostStatus)) -> BareMetalHost {
        let mut status = BareMetalHostStatus::default();
        status.provisioning.state = state;
        change(&mut status);
        let mut host = BareMetalHost::new("h", Default::default());
        host.metadata.uid = Some("u".into());
        host.status = Some(status);
        host
    }

    fn says(state: State, deadline: Option<i64>) -> BareMetalHost {
        host(state, |status| {
            let deadline = deadline.map(|second| Time(Timestamp::from_second(second).expect("a time")));
            status.progress = Some(HostProgress { reason: "because".into(), deadline, ..HostProgress::default() });
        })
    }

    #[test]
    fn stuck_is_what_stands_still_or_let_a_deadline_pass() {
        let now = Timestamp::from_second(10_000).expect("a time");
        let failed = |status: &mut BareMetalHostStatus| status.error_message = "no answer".into();
        let delayed = |status: &mut BareMetalHostStatus| status.operational_status = OperationalStatus::Delayed;
        let mut paused = says(State::Inspecting, None);
        paused.annotations_mut().insert(ANNOTATION_PAUSED.into(), String::new());
        let rows = [
            (says(State::Inspecting, None), 899, None),
            (says(State::Inspecting, None), 900, Some(Why::NoProgress)),
            (says(State::Inspecting, Some(9_900)), 0, None),
            (says(State::Inspecting, Some(9_800)), 0, Some(Why::Deadline)),
            (says(State::Inspecting, Some(Timestamp::MAX.as_second())), 0, None),
            (host(State::Registering, failed), 900, Some(Why::Error)),
            (host(State::Deleting, |_| {}), 900, Some(Why::NoProgress)),
            (host(State::Available, failed), 9_000, None),
            (says(State::Unmanaged, None), 9_000, None),
            (host(State::Registering, delayed), 9_000, None),
            (paused, 9_000, None),
        ];
        for (host, still, wanted) in rows {
            let status = host.status.clone().unwrap_or_default();
            let (look, state) = (HostInspectionRequest::at(&host, &status), status.provisioning.state.as_str());
            let found = judge(state, &look, Duration::from_secs(still), LIMIT, now);
            assert_eq!(found.map(|(reason, _)| reason), wanted, "{host:?}");
        }
    }

    #[test]
    fn it_is_said_once_and_ends_when_the_host_moves() {
        let stuck = StallDetector::default();
        let (start, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let writing = |percent| {
            host(State::Provisioning, |status| {
                status.progress = Some(HostProgress { percent: Some(percent), ..HostProgress::default() });
            })
        };
        let gauge = |reason| stuck.gauge.get_or_create(&StallLabels { state: "provisioning", reason }).get();
        let put =
            |host: &BareMetalHost, seconds| stuck.take(&WatchChange::Put(host), start + Duration::from_secs(seconds));
        put(&writing(1), 0);
        let look = |seconds| {
            let news = stuck.look(LIMIT, start + Duration::from_secs(seconds), time);
            news.into_iter().map(|(_, note)| note.reason).collect::<Vec<_>>()
        };
        assert_eq!(look(800), [""; 0]);
        assert_eq!(look(1000), ["Stuck"]);
        assert_eq!(look(1010), [""; 0], "once");
        assert_eq!(gauge("no-progress"), 1);
        // The same again, written anew, is no move.
        put(&writing(1), 1020);
        assert_eq!(look(1030), [""; 0]);
        put(&writing(2), 1040);
        assert_eq!(look(1050), ["NoLongerStuck"]);
        assert_eq!(gauge("no-progress"), 0);
        assert_eq!(look(5000), ["Stuck"], "another time");
        assert_eq!(gauge("no-progress"), 1);
        // There, it needs nobody's eye any more.
        put(&host(State::Provisioned, |_| {}), 5010);
        assert_eq!(look(5020), ["NoLongerStuck"]);
        assert_eq!((gauge("no-progress"), stuck.kept().len()), (0, 0));
        put(&host(State::Provisioned, |_| {}), 5030);
        assert_eq!(stuck.kept().len(), 0);
        put(&writing(3), 5040);
        assert_eq!(look(9000), ["Stuck"]);
        stuck.take(&WatchChange::Gone(&key(&writing(3))), start);
        assert_eq!(gauge("no-progress"), 0, "gone with its host");
    }
}

//! The reconciler: looks at the world, asks [`lifecycle::step`], stores the status, does the one effect, looks again.
//!
//! It is the only writer of a host's status and of its boot intent's spec.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, UnboundedSender};
use tracing::{debug, info, warn};

use super::context::HostContext;
use super::deadlines::{Deadlines, within};
use super::recording::Recording;
use super::resets::Resets;
use super::up_since::UpSince;
use super::{effects, registration};
use crate::api::metal3::{BareMetalHost, ProvisioningState};
use crate::bmc::BmcRegistry;
use crate::config::HostConfig;
use crate::dhcp::Leases;
use crate::host::bmc_access::status_cache::StatusCache;
use crate::host::directory::Directory;
use crate::host::directory::at_rest::AtRest;
use crate::host::directory::boot_index_feeder::Intents;
use crate::host::directory::host_view::HostView;
use crate::host::directory::interrupts::Interrupts;
use crate::host::label;
use crate::host::lifecycle::{self, AfterStore, HostObservation, Transition};
use crate::host::media::Media;
use crate::host::scheduling::provisioning_slots::ProvisioningSlots;
use crate::host::scheduling::reconcile_slots::{self, ReconcileSlots};
use crate::host::status::metrics::HostMetrics;
use crate::host::status::{hardware_data, progress};
use crate::live::Live;
use crate::module::Acting;
use crate::runtime::{Conflict, ObjectKey, Reconcile, run as run_controller};

mod around;
mod clearing;
mod saving;

use around::{HostSurroundings, look_around};
use clearing::clear_all;

/// Turns in one reconciliation; more than any path through the machine needs without waiting.
const MAX_TURNS: usize = 24;

/// Longest and shortest time between two looks at a host.
const LOOK_AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(600);

/// Until a host is tried again after the API failed.
const RETRY: Duration = Duration::from_secs(5);

/// How long logging out of all BMCs may take in the end.
const LOG_OUT: Duration = Duration::from_secs(5);

/// The reconciler.
pub struct Reconciler {
    context: HostContext,
    places: ProvisioningSlots,
    looks: Arc<ReconcileSlots>,
    intents: Intents,
    at_rest: AtRest,
    interrupts: Interrupts,
    patience: Deadlines,
    hearing: UpSince,
    turns: Semaphore,
    leases: Option<Leases>,
    /// Told of hosts that are gone.
    orphans: UnboundedSender<ObjectKey>,
}

/// Why a reconciliation could not go on. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The API refused or could not be reached.
    #[error("the API: {0}")]
    Api(#[from] kube::Error),
    /// The state machine did not come to rest.
    #[error("no rest after {MAX_TURNS} turns in state {0:?}")]
    Restless(ProvisioningState),
}

impl Conflict for ReconcileError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Restless(_) => false,
        }
    }
}

/// Reconciliations at once: looks ([`reconcile_slots::AT_ONCE`]), most of whose time is a BMC's, and some that only find that their
/// host has to wait for its turn. The controller polls all that are under way whenever one moves.
const HOSTS_AT_ONCE: u16 = reconcile_slots::AT_ONCE as u16 + 16;

/// Hosts decided upon at once. Each takes memory, and more than keep the processors and the disk busy are of no use.
const TURNS_AT_ONCE: usize = 8;

/// The ways to a machine: connections to BMCs, and what machines boot without the network.
pub struct Hardware {
    /// Connections.
    pub bmcs: BmcRegistry,
    /// None where no boot HTTP runs.
    pub media: Option<Media>,
    /// Addresses that were given to machines; none where no network is configured.
    pub leases: Option<Leases>,
}

impl From<BmcRegistry> for Hardware {
    fn from(bmcs: BmcRegistry) -> Self {
        Self { bmcs, media: None, leases: None }
    }
}

/// Reconciles every BareMetalHost until the shutdown. What the fence keeps out is not done to any machine.
pub async fn run(
    acting: Acting,
    directory: Directory,
    settings: impl Into<Live<HostConfig>> + Send,
    hardware: impl Into<Hardware> + Send,
    metrics: HostMetrics,
) {
    let Hardware { bmcs, media, leases } = hardware.into();
    let Acting { client, fence, tasks, stop: shutdown, .. } = acting;
    registration::complete(&client, &tasks.task("host-registrations"), &shutdown).await;
    let Directory { index, equal, conflicts, cache, intents, at_rest, interrupts, .. } = directory;
    at_rest.clear();
    let settings = settings.into();
    let begun = settings.get();
    let (places, free) = ProvisioningSlots::new(begun.busy_limit, begun.boot_deadline.0);
    let (looks, turns) = ReconcileSlots::new(metrics.looks_waiting());
    let context = HostContext {
        client,
        bmcs,
        index,
        settings,
        power: StatusCache::default(),
        fence,
        metrics,
        media,
        conflicts,
        equal,
        logins: Arc::default(),
        resets: Resets::default(),
        recording: Recording::default(),
        releasing: tokio::sync::Mutex::default(),
    };
    let (orphans, gone) = mpsc::unbounded_channel();
    let reconciler = Arc::new(Reconciler {
        context,
        places,
        looks,
        intents,
        at_rest: at_rest.clone(),
        interrupts,
        patience: Deadlines::default(),
        hearing: UpSince::from(Timestamp::now(), Instant::now()),
        turns: Semaphore::new(TURNS_AT_ONCE),
        leases,
        orphans,
    });
    let woken = futures::stream::select(free, turns).inspect(move |key| at_rest.end(key));
    let task = tasks.task("host-clearing");
    tokio::join!(
        run_controller(reconciler.clone(), &cache, woken, shutdown.clone()),
        clear_all(&reconciler.context, gone, &task, &shutdown)
    );
    if tokio::time::timeout(LOG_OUT, reconciler.context.bmcs.close()).await.is_err() {
        warn!("cannot log out of all BMCs in time: some Redfish sessions are left to expire");
    }
}

impl Reconcile for Reconciler {
    type Object = HostView;
    type Error = ReconcileError;

    const NAME: &'static str = "baremetalhost";

    const OF_HOSTS: bool = true;
    const AT_ONCE: u16 = HOSTS_AT_ONCE;

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, host: Arc<HostView>) -> Result<Action, ReconcileError> {
        let (namespace, name) = (host.namespace().unwrap_or_default(), host.name_any());
        let key = (namespace.clone(), name.clone());
        if !self.context.conflicts.is_listed() {
            return Ok(Action::requeue(*LOOK_AGAIN.start()));
        }
        if let Some(left) = self.at_rest.goes_on(&key, &host, self.intents.get(&key).as_deref()) {
            return Ok(Action::requeue(left));
        }
        let Some(_look) = self.looks.begin(&key, self.context.conflicts.is_registered(host.as_ref())) else {
            return Ok(Action::await_change());
        };
        self.at_rest.look(key.clone());
        // Before the look, in which the host may go: nothing of it is left then.
        self.context.metrics.reconciled(&namespace, &name);
        let outcome = self.context.metrics.effort().of(self.look_after(&namespace, &name)).await;
        outcome.inspect_err(|_| self.context.metrics.failed())
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        self.context.metrics.forget(namespace, name);
        let key = (namespace.to_owned(), name.to_owned());
        self.places.leave(&key);
        self.looks.leave(&key);
        self.at_rest.end(&key);
        // Who reads them is gone only at the end.
        self.orphans.send(key).ok();
    }
}

impl Reconciler {
    async fn look_after(&self, namespace: &str, name: &str) -> Result<Action, ReconcileError> {
        let mut state = ProvisioningState::None;
        let (began, mut asked) = (Instant::now(), 0);
        let key = (namespace.to_owned(), name.to_owned());
        // What the last turn left as it was, or had back; read again when it did something that may have taken its time.
        let mut known: Option<(BareMetalHost, HostSurroundings)> = None;
        // What is awaited in a turn is boxed: hundreds of hosts wait at once, and what is not under way should take nothing.
        let mut place = None;
        for _ in 0..MAX_TURNS {
            if place.is_none() {
                // None only when it was closed, which nobody does.
                place = self.turns.acquire().await.ok();
            }
            let (host, mut around) = match known.take() {
                Some(known) => known,
                None => {
                    let Some(host) = self.context.api::<BareMetalHost>(namespace).get_opt(name).await? else {
                        self.context.metrics.forget(namespace, name);
                        self.places.leave(&key);
                        return Ok(Action::await_change());
                    };
                    let around = Box::pin(look_around(&self.context, &host)).await?;
                    (host, around)
                }
            };
            let transition = self.decide(&host, &around);
            let intent = around.intent.as_ref();
            state = transition.status.provisioning.state;
            if transition.next == AfterStore::Paused {
                return Ok(Action::await_change());
            }
            let warned = transition.notes.iter().any(|note| note.warning);
            if warned {
                // Before the error itself: or it would look as if the spec had changed since, and never rest.
                effects::note_tried(&self.context, &host, intent).await?;
            }
            let host = if effects::goes_before_the_status(&transition.next) {
                host
            } else {
                match Box::pin(self.save(&host, &transition)).await {
                    Err(kube::Error::Api(error)) if error.is_conflict() => continue,
                    saved => saved?,
                }
            };
            match transition.next {
                // Only the status changed, and that is at hand; after a warning the intent may have, too.
                AfterStore::Again | AfterStore::Paused => known = (!warned).then_some((host, around)),
                AfterStore::Gone => {
                    self.context.metrics.forget(namespace, name);
                    self.places.leave(&key);
                    let uid = host.uid().unwrap_or_default();
                    self.context.power.forget(&uid);
                    self.context.resets.forget(&uid);
                    self.context.logins.tidy(&uid, std::time::Instant::now());
                    return Ok(Action::await_change());
                }
                AfterStore::Wait { until, .. } => {
                    let wait = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
                    let wait = wait.clamp(*LOOK_AGAIN.start(), *LOOK_AGAIN.end());
                    self.at_rest.begin(&key, &host, around.intent.as_ref(), wait);
                    return Ok(Action::requeue(wait));
                }
                AfterStore::Do(effect) => {
                    let quick = effects::is_of_the_intent(&effect);
                    if !quick {
                        // It may take minutes; what it does not need, it does not hold.
                        drop((around.hardware.take(), around.image.take(), place.take()));
                    }
                    let patience = self.patience.with(&effect);
                    if patience.is_some() {
                        if self.patience.is_over(began.elapsed(), asked) {
                            return Ok(Action::requeue(*LOOK_AGAIN.start()));
                        }
                        asked += 1;
                    }
                    debug!(host = %label(&host), ?effect, "the reconciler begins an effect");
                    let work = within(patience, &host, effects::perform(&self.context, &host, intent, &effect));
                    let done = if effects::asks_a_bmc(&effect) {
                        let Some(done) = self.interrupts.unless_untouched(&key, work).await else {
                            info!(host = %label(&host), ?effect, "broken off: the host is deleted without its machine");
                            return Ok(Action::requeue(*LOOK_AGAIN.start()));
                        };
                        done
                    } else {
                        work.await
                    };
                    self.context.logins.hold(&host.uid().unwrap_or_default(), effects::held_until(&done));
                    match done {
                        Ok(stored) => {
                            self.publish(&host, effect.done().as_slice()).await;
                            if quick && stored.is_some() {
                                around.intent = stored;
                                known = Some((host, around));
                            }
                        }
                        Err(effects::EffectError::Api(kube::Error::Api(error))) if error.is_conflict() => {}
                        // The API will not change its mind by itself: the operator must see why.
                        Err(effects::EffectError::Api(kube::Error::Api(error)))
                            if matches!(error.code, 400 | 403 | 413 | 422) =>
                        {
                            self.record_failure(&host, intent, &effect, &error.message).await?;
                        }
                        Err(effects::EffectError::Api(error)) => return Err(error.into()),
                        Err(effects::EffectError::NotYet) => return Ok(Action::requeue(*LOOK_AGAIN.start())),
                        Err(effects::EffectError::Bmc(error)) => {
                            self.context.power.forget(&host.uid().unwrap_or_default());
                            self.record_failure(&host, intent, &effect, &error.to_string()).await?;
                        }
                    }
                }
            }
        }
        Err(ReconcileError::Restless(state))
    }

    fn decide(&self, host: &BareMetalHost, around: &HostSurroundings) -> Transition {
        let HostSurroundings { intent, access, image, equal, hardware, data_cd } = around;
        let settings = self.context.settings.get();
        self.places.set(settings.busy_limit, settings.boot_deadline.0);
        let power = match access {
            lifecycle::Access::Ready { version, .. } => {
                let uid = host.uid().unwrap_or_default();
                self.context.power.get(&uid, &effects::power_key(host, version), settings.power_poll.0)
            }
            lifecycle::Access::None | lifecycle::Access::Broken(_) | lifecycle::Access::Taken(_) => None,
        };
        let mac = host.spec.boot_mac_address.as_deref();
        let mac_owner = mac.and_then(|mac| self.context.conflicts.mac_owner(host, mac));
        let key = (host.namespace().unwrap_or_default(), host.name_any());
        let now = Timestamp::now();
        let up_since = self.hearing.since(now, Instant::now());
        let observed = |room| HostObservation {
            now,
            up_since,
            host,
            intent: intent.as_ref(),
            access,
            power,
            image: image.as_ref(),
            equal: equal.as_ref(),
            hardware: hardware.as_ref().and_then(|hardware| hardware.spec.hardware.as_ref()),
            hardware_from: hardware.as_ref().and_then(hardware_data::operation),
            record_time: self.context.index.record_time(now.as_millisecond()),
            mac_owner: mac_owner.as_deref(),
            held_until: self.context.logins.held(host.metadata.uid.as_deref().unwrap_or_default()),
            data_cd: *data_cd,
            room,
            settings: &settings,
        };
        self.places.decide(
            &key,
            Instant::now(),
            || self.context.conflicts.busy(),
            |room| {
                let observed = observed(room);
                let mut transition = lifecycle::step(&observed);
                transition.status.progress = progress::of(&observed, &transition.status, &transition.next);
                let slot_state = lifecycle::slot_state(host, &transition);
                (transition, slot_state)
            },
        )
    }
}

#[cfg(test)]
mod tests;

//! The reconciler: looks at the world, asks [`machine::step`], stores the status, does the one effect, looks again.
//!
//! It is the only writer of a host's status and of its boot intent's spec.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store, reflector};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::crowd::Crowd;
use super::logins::Logins;
use super::looks::{self, Looks};
use super::machine::{self, Effect, Next, Note, Turn, World};
use super::media::Media;
use super::metrics::Metrics;
use super::patience::{Patience, within};
use super::places::Places;
use super::readings::Readings;
use super::view::HostView;
use super::{access, conditions, dataimage, effects, events, hardware_data, progress, registration};
use crate::api::metal3::{BareMetalHost, BareMetalHostStatus, HardwareData, ProvisioningState};
use crate::api::slipway::{BootIntent, Image};
use crate::bmc::Registry;
use crate::boot::HostIndex;
use crate::config::HostConfig;
use crate::engine::Fence;
use crate::engine::ending::to_its_end;
use crate::engine::watching;

/// Turns in one reconciliation; more than any path through the machine needs without waiting.
const MAX_TURNS: usize = 24;

/// Longest and shortest time between two looks at a host.
const LOOK_AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(600);

/// Tries to clear up after a host that is gone, and the time between two.
const CLEAR_TRIES: usize = 60;
const CLEAR_PAUSE: Duration = Duration::from_secs(5);

/// What the reconciler works with.
pub struct Reconciler {
    pub(super) client: Client,
    pub(super) bmcs: Registry,
    pub(super) index: HostIndex,
    pub(super) settings: HostConfig,
    pub(super) power: Readings,
    pub(super) fence: Fence,
    pub(super) metrics: Metrics,
    /// What machines boot without the network; none where no boot HTTP runs.
    pub(super) media: Option<Media>,
    places: Places,
    looks: Arc<Looks>,
    patience: Patience,
    up_since: Timestamp,
    pub(super) crowd: Arc<Crowd>,
    pub(super) logins: Arc<Logins>,
    turns: Semaphore,
}

/// What is decided with besides the host itself.
struct Around {
    intent: Option<BootIntent>,
    access: machine::Access,
    image: Option<Image>,
    hardware: Option<HardwareData>,
    /// Whether a DataImage of a host that is to go is still in its drive.
    data_cd: bool,
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

/// Reconciliations at once: looks ([`looks::AT_ONCE`]), most of whose time is a BMC's, and some that only find that their
/// host has to wait for its turn. The controller polls all that are under way whenever one moves.
const HOSTS_AT_ONCE: u16 = looks::AT_ONCE as u16 + 16;

/// Hosts decided upon at once. Each takes memory, and more than keep the processors and the disk busy are of no use.
const TURNS_AT_ONCE: usize = 8;

/// The ways to a machine: connections to BMCs, and what machines boot without the network.
pub struct Hardware {
    /// Connections.
    pub bmcs: Registry,
    /// None where no boot HTTP runs.
    pub media: Option<Media>,
}

impl From<Registry> for Hardware {
    fn from(bmcs: Registry) -> Self {
        Self { bmcs, media: None }
    }
}

/// Reconciles every BareMetalHost until the shutdown. What the fence keeps out is not done to any machine.
pub async fn run(
    client: Client,
    index: HostIndex,
    settings: HostConfig,
    hardware: impl Into<Hardware> + Send,
    fence: Fence,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let Hardware { bmcs, media } = hardware.into();
    registration::complete(&client, &shutdown).await;
    let every = watching;
    let crowd = Arc::new(Crowd::new(index.clone()));
    let (hosts, writer) = reflector::store();
    let observer = crowd.clone();
    let seen = reflector(writer, watcher(Api::<HostView>::all(client.clone()), every()))
        .inspect_ok(move |event| observer.take(event))
        .applied_objects();
    let controller = Controller::for_stream(seen, hosts.clone());
    let (places, free) = Places::new(settings.busy_limit, settings.boot_deadline.0);
    let (looks, turns) = Looks::new(metrics.looks_waiting());
    let woken = futures::stream::select(free, turns);
    let woken = woken.map(|(namespace, name)| ObjectRef::new(&name).within(&namespace));
    let reconciler = Arc::new(Reconciler {
        client: client.clone(),
        places,
        looks,
        patience: Patience::default(),
        up_since: Timestamp::now(),
        bmcs,
        index,
        settings,
        power: Readings::default(),
        fence,
        metrics,
        media,
        crowd,
        logins: Arc::default(),
        turns: Semaphore::new(TURNS_AT_ONCE),
    });
    // Whose they are is all that matters here.
    let intents = Api::<PartialObjectMeta<BootIntent>>::all(client.clone());
    let hardware = Api::<PartialObjectMeta<HardwareData>>::all(client.clone());
    let by_image = hosts.clone();
    let by_secret = hosts.clone();
    let controller = controller
        .with_config(Config::default().concurrency(HOSTS_AT_ONCE))
        .reconcile_on(woken)
        .owns_stream(watcher(intents, every()).touched_objects())
        .owns_stream(watcher(hardware, every()).touched_objects())
        .watches(Api::<Image>::all(client.clone()), every(), move |image: Image| {
            let name = image.name_any();
            references(&by_image, move |host| host.image_name() == Some(name.as_str()))
        })
        .watches(Api::<Secret>::all(client), every(), move |secret: Secret| {
            let (namespace, name) = (secret.namespace(), secret.name_any());
            references(&by_secret, move |host| {
                host.namespace() == namespace && host.credentials_name() == Some(name.as_str())
            })
        })
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(reconcile, retry, reconciler.clone())
        .for_each(|outcome| {
            let reconciler = reconciler.clone();
            async move {
                match outcome {
                    Ok((host, _)) => debug!(host = %host, "looked at"),
                    // It went while it was queued, or something of its own outlived it.
                    Err(kube::runtime::controller::Error::ObjectNotFound(host)) => {
                        let namespace = host.namespace.clone().unwrap_or_default();
                        reconciler.metrics.forget(&namespace, &host.name);
                        let key = (namespace, host.name.clone());
                        reconciler.places.leave(&key);
                        reconciler.looks.leave(&key);
                        tokio::spawn(async move {
                            reconciler.clear_after(host.namespace.as_deref().unwrap_or_default(), &host.name).await;
                        });
                    }
                    Err(error) => debug!(%error, "reconciliation failed"),
                }
            }
        });
    to_its_end(controller, hosts, shutdown).await;
    reconciler.bmcs.close().await;
}

fn references(hosts: &Store<HostView>, wanted: impl Fn(&HostView) -> bool) -> Vec<ObjectRef<HostView>> {
    hosts.state().iter().filter(|host| wanted(host)).map(|host| ObjectRef::from_obj(host.as_ref())).collect()
}

fn retry(host: Arc<HostView>, error: &ReconcileError, _: Arc<Reconciler>) -> Action {
    warn!(host = %label(host.as_ref()), %error, "will try again");
    Action::requeue(Duration::from_secs(5))
}

pub(super) fn label(host: &impl ResourceExt) -> String {
    format!("{}/{}", host.namespace().unwrap_or_default(), host.name_any())
}

async fn reconcile(host: Arc<HostView>, reconciler: Arc<Reconciler>) -> Result<Action, ReconcileError> {
    let (namespace, name) = (host.namespace().unwrap_or_default(), host.name_any());
    let key = (namespace.clone(), name.clone());
    if !reconciler.crowd.is_listed() {
        return Ok(Action::requeue(*LOOK_AGAIN.start()));
    }
    let Some(_look) = reconciler.looks.begin(&key, reconciler.crowd.is_registered(host.as_ref())) else {
        return Ok(Action::await_change());
    };
    let outcome = reconciler.metrics.effort().of(reconciler.reconcile(&namespace, &name)).await;
    reconciler.metrics.reconciled(&namespace, &name, outcome.is_err());
    outcome
}

impl Reconciler {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, ReconcileError> {
        let mut state = ProvisioningState::None;
        let (began, mut asked) = (Instant::now(), 0);
        let key = (namespace.to_owned(), name.to_owned());
        // What the last turn left as it was; read again when it did something, which may have taken its time.
        let mut known: Option<(BareMetalHost, Around)> = None;
        // What is awaited in a turn is boxed: hundreds of hosts wait at once, and what is not under way should take nothing.
        for _ in 0..MAX_TURNS {
            // None only when it was closed, which nobody does.
            let place = self.turns.acquire().await.ok();
            let (host, around) = match known.take() {
                Some(known) => known,
                None => {
                    let Some(host) = self.api::<BareMetalHost>(namespace).get_opt(name).await? else {
                        self.places.leave(&key);
                        return Ok(Action::await_change());
                    };
                    let around = Box::pin(self.look_around(&host)).await?;
                    (host, around)
                }
            };
            let turn = self.decide(&host, &around);
            let intent = around.intent.as_ref();
            state = turn.status.provisioning.state;
            if turn.next == Next::Still {
                return Ok(Action::await_change());
            }
            let warned = turn.notes.iter().any(|note| note.warning);
            if warned {
                // Before the error itself: or it would look as if the spec had changed since, and never rest.
                effects::note_tried(self, &host, intent).await?;
            }
            let host = match Box::pin(self.save(&host, &turn)).await {
                Err(kube::Error::Api(error)) if error.is_conflict() => continue,
                saved => saved?,
            };
            drop(place);
            match turn.next {
                // Only the status changed, and that is at hand; after a warning the intent may have, too.
                Next::Again | Next::Still => known = (!warned).then_some((host, around)),
                Next::Gone => {
                    self.metrics.forget(namespace, name);
                    self.places.leave(&key);
                    let uid = host.uid().unwrap_or_default();
                    self.power.forget(&uid);
                    self.logins.tidy(&uid, std::time::Instant::now());
                    return Ok(Action::await_change());
                }
                Next::Wait { until, .. } => {
                    let wait = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
                    return Ok(Action::requeue(wait.clamp(*LOOK_AGAIN.start(), *LOOK_AGAIN.end())));
                }
                Next::Do(effect) => {
                    // It may take minutes; what it does not need, it does not hold.
                    drop((around.hardware, around.image));
                    let patience = self.patience.with(&effect);
                    if patience.is_some() {
                        if self.patience.is_over(began.elapsed(), asked) {
                            return Ok(Action::requeue(*LOOK_AGAIN.start()));
                        }
                        asked += 1;
                    }
                    debug!(host = %label(&host), ?effect, "doing");
                    let done = within(patience, &host, effects::perform(self, &host, intent, &effect)).await;
                    self.logins.hold(&host.uid().unwrap_or_default(), effects::held_until(&done));
                    match done {
                        Ok(()) => self.publish(&host, effect.done().as_slice()).await,
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
                            self.power.forget(&host.uid().unwrap_or_default());
                            self.record_failure(&host, intent, &effect, &error.to_string()).await?;
                        }
                    }
                }
            }
        }
        Err(ReconcileError::Restless(state))
    }

    /// A host that went without its life's end, because somebody took its finalizer, must not leave an intent that
    /// nobody lets go.
    async fn clear_after(&self, namespace: &str, name: &str) {
        for _ in 0..CLEAR_TRIES {
            let cleared = match self.api::<BootIntent>(namespace).get_opt(name).await {
                Ok(Some(intent)) if intent.metadata.deletion_timestamp.is_some() => {
                    effects::let_intent_go(self, &intent).await
                }
                read => read.map(drop),
            };
            match cleared {
                Ok(()) => return,
                Err(error) => warn!(host = %format!("{namespace}/{name}"), %error, "its boot intent is still there"),
            }
            tokio::time::sleep(CLEAR_PAUSE).await;
        }
    }

    /// Reads what a decision on a host needs besides the host.
    async fn look_around(&self, host: &BareMetalHost) -> Result<Around, kube::Error> {
        let namespace = host.namespace().unwrap_or_default();
        let intent = self.api::<BootIntent>(&namespace).get_opt(&host.name_any()).await?;
        let access = access::read(self, host).await.inspect_err(|_| self.metrics.credentials_unread())?;
        let image = match &host.spec.image {
            Some(image) if !image.url.is_empty() => {
                Api::<Image>::all(self.client.clone()).get_opt(&machine::image_name(image)).await?
            }
            _ => None,
        };
        let hardware = hardware_data::read(self, host).await?;
        let going = host.metadata.deletion_timestamp.is_some();
        let data_cd = going && dataimage::is_attached(&self.api(&namespace), &host.name_any()).await?;
        Ok(Around { intent, access, image, hardware, data_cd })
    }

    fn decide(&self, host: &BareMetalHost, around: &Around) -> Turn {
        let Around { intent, access, image, hardware, data_cd } = around;
        let power = match access {
            machine::Access::Ready { version, .. } => {
                let uid = host.uid().unwrap_or_default();
                self.power.get(&uid, &effects::power_key(host, version), self.settings.power_poll.0)
            }
            machine::Access::None | machine::Access::Broken(_) | machine::Access::Taken(_) => None,
        };
        let mac = host.spec.boot_mac_address.as_deref();
        let mac_owner = mac.and_then(|mac| self.crowd.mac_owner(host, mac));
        let key = (host.namespace().unwrap_or_default(), host.name_any());
        let world = |room| World {
            now: Timestamp::now(),
            up_since: self.up_since,
            host,
            intent: intent.as_ref(),
            access,
            power,
            image: image.as_ref(),
            hardware: hardware.as_ref().and_then(|hardware| hardware.spec.hardware.as_ref()),
            hardware_from: hardware.as_ref().and_then(hardware_data::operation),
            mac_owner: mac_owner.as_deref(),
            held_until: self.logins.held(host.metadata.uid.as_deref().unwrap_or_default()),
            data_cd: *data_cd,
            room,
            settings: &self.settings,
        };
        self.places.decide(
            &key,
            Instant::now(),
            || self.crowd.busy(),
            |room| {
                let world = world(room);
                let mut turn = machine::step(&world);
                turn.status.progress = progress::of(&world, &turn.status, &turn.next);
                let standing = machine::standing(host, &turn);
                (turn, standing)
            },
        )
    }

    /// Stores the status when it changed, then publishes the events.
    async fn save(&self, host: &BareMetalHost, turn: &Turn) -> Result<BareMetalHost, kube::Error> {
        let before = host.status.clone().unwrap_or_default();
        let mut status = turn.status.clone();
        let waiting = match &turn.next {
            Next::Wait { reason, .. } => Some(reason.as_str()),
            // To look is no progress: or a host at rest would be written twice at each look.
            Next::Do(Effect::ReadPower) if status.provisioning.state == before.provisioning.state => {
                conditions::waits_for(&before)
            }
            _ => None,
        };
        let health = self.power.health(&host.uid().unwrap_or_default());
        let vendor = status.hardware.as_ref().and_then(|hardware| hardware.system_vendor.as_ref());
        let twin = vendor.and_then(|vendor| self.crowd.twin(host, vendor));
        status.conditions = conditions::of(host, &status, waiting, health, twin.as_deref(), Timestamp::now());
        let mut notes = turn.notes.clone();
        if let Some(twin) = twin.filter(|_| !conditions::knows_twin(&before)) {
            let message = conditions::twin_message(&twin);
            notes.push(Note { reason: conditions::DUPLICATE_SERIAL_NUMBER, message, warning: true });
        }
        if progress::says_the_same(status.progress.as_ref(), before.progress.as_ref()) {
            status.progress = before.progress.clone();
        }
        let same = BareMetalHostStatus { last_updated: before.last_updated.clone(), ..status.clone() } == before;
        if same || turn.next == Next::Gone {
            self.publish(host, &notes).await;
            return Ok(host.clone());
        }
        // A change of the conditions or the progress alone must not prolong a rest, which counts from `lastUpdated`.
        let shown = BareMetalHostStatus {
            conditions: before.conditions.clone(),
            progress: before.progress.clone(),
            ..status.clone()
        };
        if shown != before {
            status.last_updated = Some(Time(Timestamp::now()));
        }
        if status.provisioning.state != before.provisioning.state {
            info!(host = %label(host), from = before.provisioning.state.as_str(), to = status.provisioning.state.as_str(), "state");
        }
        let changed = BareMetalHost { status: Some(status), ..host.clone() };
        let api = self.api::<BareMetalHost>(&host.namespace().unwrap_or_default());
        let saved = api.replace_status(&host.name_any(), &PostParams::default(), &changed).await?;
        let after = saved.status.clone().unwrap_or_default();
        self.metrics.stored(&host.namespace().unwrap_or_default(), &host.name_any(), &before, &after);
        self.publish(host, &notes).await;
        Ok(saved)
    }

    async fn publish(&self, host: &BareMetalHost, notes: &[Note]) {
        for note in notes {
            if note.warning {
                warn!(host = %label(host), reason = note.reason, message = %note.message, "host");
            }
            if let Err(error) = events::publish(&self.client, &host.object_ref(&()), note).await {
                warn!(host = %label(host), %error, reason = note.reason, "cannot publish an event");
            }
        }
    }

    /// Notes that an effect failed: first that this spec was tried, then the error, so that a newer spec ends the rest.
    async fn record_failure(
        &self,
        host: &BareMetalHost,
        intent: Option<&BootIntent>,
        effect: &Effect,
        message: &str,
    ) -> Result<(), kube::Error> {
        if *effect == Effect::ReadPower {
            self.metrics.no_access();
        }
        effects::note_tried(self, host, intent).await?;
        let status = host.status.clone().unwrap_or_default();
        let error_type = effect.error_type(status.provisioning.state);
        let (status, note) = machine::fail(&status, error_type, message);
        let until = Timestamp::now();
        let turn = Turn { status, notes: vec![note], next: Next::Wait { reason: message.to_owned(), until } };
        match self.save(host, &turn).await {
            Err(kube::Error::Api(error)) if error.is_conflict() => Ok(()),
            saved => saved.map(|_| ()),
        }
    }

    pub(super) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

#[cfg(test)]
#[path = "crash_tests.rs"]
mod crash_tests;
#[cfg(test)]
#[path = "reconciler_tests.rs"]
mod tests;

//! Background deletion: garbage collection, ending namespaces, old events.
//!
//! What happens by itself: dependents go with their owners (`garbage`), ending namespaces are emptied, old events are
//! forgotten.
//!
//! One task looks at what changed when it is woken (by a deletion or by an object that names an owner), and at everything
//! when it starts and now and then, so that nothing is missed for long and a restart costs nothing. It rests at least as long
//! as it worked, and after a round that was not finished for longer, whoever wakes it.
//!
//! Each kind of this work is a task ([`Tasks`](crate::runtime::Tasks)): a fault in one costs the others nothing.
//!
//! One object that cannot be removed keeps nothing else from going. On a full disk only what is removed at once, which gives
//! room back, still is.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::StoragePolicy;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::events;
use crate::apiserver::kinds::registry::Registry;
use crate::apiserver::kinds::resource::Resource;
use crate::apiserver::objects::meta;
use crate::apiserver::writing::delete::DeleteOptions;
use crate::apiserver::{ApiServer, Identity};
use crate::runtime::Task;
use crate::store::{Expect, Mutation, Object, WriteError};

/// A sweep is made at least this often.
const EVERY: Duration = Duration::from_secs(300);
/// Wakes that come within this time after a sweep share the next one.
const PAUSE: Duration = Duration::from_millis(50);
/// Time to the next sweep after one that failed or left something to do.
const RETRY: Duration = Duration::from_secs(5);
/// How often old events are looked for.
const EVENTS_EVERY: Duration = Duration::from_secs(10);
/// One of so many looks at events reads them all for their age; each sees whether they are too many.
const EVENTS_READ: u32 = 6;

/// How often it is looked whether client certificates were revoked.
const SERIES_EVERY: Duration = Duration::from_secs(1);

/// How long a round of one kind takes before the next kind of work has its turn: whoever has made much of it keeps nobody waiting.
const SLICE: Duration = Duration::from_millis(250);
/// How long a round works before it is others' turn.
const TURN: Duration = Duration::from_millis(1);
/// Events that are removed at once, so that they share what a write takes.
const EVENTS_AT_ONCE: usize = 64;
/// How long events are removed before the rest waits for the next look.
const EVENTS_TIME: Duration = Duration::from_secs(5);

/// What became of an object that is to go, or to change.
#[derive(Debug, PartialEq)]
pub(in crate::apiserver) enum Outcome {
    /// It is gone, or another one has its name; or it is changed.
    Done,
    /// Finalizers hold it.
    Held,
    /// Somebody else wrote it meanwhile.
    Changed,
    /// It may not be; why.
    Refused(String),
    /// The disk is full.
    NoRoom,
}

/// One round of the sweeper's work.
pub(in crate::apiserver) struct Round {
    began: Instant,
    turn: Instant,
    /// Why what needs room is not done in this round any more.
    no_room: Option<ApiError>,
}

impl Default for Round {
    fn default() -> Self {
        Self { began: Instant::now(), turn: Instant::now(), no_room: None }
    }
}

impl Round {
    /// Leaves the processor to others now and then.
    pub(in crate::apiserver) async fn yield_now(&mut self) {
        if self.turn.elapsed() >= TURN {
            tokio::task::yield_now().await;
            self.turn = Instant::now();
        }
    }

    /// Whether it is the turn of other work of the sweeper. What is left is done in the next round.
    pub(in crate::apiserver) fn is_over(&self) -> bool {
        self.began.elapsed() >= SLICE
    }

    /// Whether something was not done because the disk is full.
    pub(super) fn lacks_room(&self) -> bool {
        self.no_room.is_some()
    }

    /// Whether all was done that could be.
    pub(in crate::apiserver) fn end(self) -> Result<(), ApiError> {
        self.no_room.map_or(Ok(()), Err)
    }

    fn is_full(&mut self, error: ApiError) -> Outcome {
        self.no_room = Some(error);
        Outcome::NoRoom
    }
}

/// All of them, beginning with any: where a round ends before all had their turn, it is not always the same that have it.
pub(in crate::apiserver) fn from_anywhere<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let first = if all.is_empty() { 0 } else { rand::random_range(0..all.len()) };
    all[first..].iter().chain(&all[..first])
}

/// What a look at what is to be done consists of.
const SWEEPS: [&str; 3] = ["garbage-collection", "namespace-removal", "definition-removal"];

/// One run of a sweep.
async fn one(task: Task, work: impl Future<Output = Result<(), ApiError>>) -> Result<(), ApiError> {
    task.run(work).await.map_err(|fault| fault.into_error(ApiError::internal))
}

impl ApiServer {
    /// Does what happens by itself until the server is shut down. To be run once, by the owner of the server.
    pub async fn run(&self) {
        tokio::join!(
            self.keep_sweeping(),
            self.keep_events_few(),
            self.run_access_controllers(),
            self.look_for_revocations(),
            self.inner.response_memory.keep_moving(self.shutdown())
        );
    }

    async fn keep_sweeping(&self) {
        let mut next_everything = Instant::now();
        loop {
            let began = Instant::now();
            if began >= next_everything {
                next_everything = began + EVERY;
                self.owner_graph().check_everything();
            }
            let swept = self.sweep_once().await;
            let rest = match &swept {
                Ok(()) => PAUSE.max(began.elapsed().min(RETRY)),
                Err(error) => {
                    tracing::warn!(%error, "cannot finish the collection of garbage: trying again");
                    RETRY
                }
            };
            let next = if swept.is_ok() { next_everything.saturating_duration_since(Instant::now()) } else { rest };
            SWEEPS.iter().for_each(|name| self.tasks().task(name).next_in(next));
            tokio::select! {
                () = self.shutdown().cancelled() => return,
                () = tokio::time::sleep(rest) => {}
            }
            // What was not finished needs nobody's call.
            if swept.is_ok() {
                tokio::select! {
                    () = self.shutdown().cancelled() => return,
                    () = self.sweeper_woken() => {}
                    () = tokio::time::sleep_until(next_everything) => {}
                }
            }
        }
    }

    /// Looks whether client certificates were revoked.
    async fn look_for_revocations(&self) {
        let Some(series) = self.inner.auth.series() else { return };
        self.tasks().task("client-certificates").every(SERIES_EVERY, self.shutdown(), || series.look()).await;
    }

    async fn keep_events_few(&self) {
        let mut looks = 0_u32;
        let look = || {
            let reads = looks.is_multiple_of(EVENTS_READ);
            looks = looks.wrapping_add(1);
            async move {
                if reads {
                    self.forget_events(Timestamp::now()).await;
                }
                self.bound_events(events::COUNT_MAX).await;
                Ok::<_, Infallible>(())
            }
        };
        self.tasks().task("event-expiry").every(EVENTS_EVERY, self.shutdown(), look).await;
    }

    /// Looks at what is to be done, until nothing is left that nobody else has to do.
    #[cfg(test)]
    pub(in crate::apiserver) async fn sweep(&self) -> Result<(), ApiError> {
        loop {
            let began = Instant::now();
            self.sweep_once().await?;
            if began.elapsed() < SLICE {
                return Ok(());
            }
        }
    }

    /// One look at what is to be done.
    pub(in crate::apiserver) async fn sweep_once(&self) -> Result<(), ApiError> {
        let [garbage, namespaces, definitions] = SWEEPS.map(|name| self.tasks().task(name));
        let outcomes = [
            one(garbage, self.collect_garbage()).await,
            one(namespaces, self.end_namespaces()).await,
            one(definitions, self.end_definitions()).await,
        ];
        outcomes.into_iter().collect()
    }

    /// Deletes for the sweeper.
    pub(in crate::apiserver) async fn remove(
        &self,
        resource: &Resource,
        object: &Object,
        options: &DeleteOptions,
        round: &mut Round,
    ) -> Result<Outcome, ApiError> {
        if resource.policy == StoragePolicy::View {
            return Ok(Outcome::Done);
        }
        let meta = object.metadata();
        let held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if held && object.is_ending() {
            return Ok(Outcome::Held);
        }
        // A mark of its deletion takes room, and there was none a moment ago.
        if held && round.no_room.is_some() {
            return Ok(Outcome::NoRoom);
        }
        let identity = Identity::in_process();
        match self.delete_object(resource, &object.namespace, &object.name, options, &identity, None).await {
            Ok(crate::apiserver::writing::delete::Deleted::Gone(_)) => {
                tracing::debug!(resource = resource.plural, object = %crate::log::named(&object.namespace, &object.name), "deleted an object by itself");
                Ok(Outcome::Done)
            }
            Ok(crate::apiserver::writing::delete::Deleted::Held(_)) => Ok(Outcome::Held),
            Err(error) if error.code == http::StatusCode::NOT_FOUND => Ok(Outcome::Done),
            // A new object of the same name, or this one as somebody wrote it.
            Err(error) if error.code == http::StatusCode::CONFLICT => {
                let now = self.store().get(&object.resource, &object.namespace, &object.name);
                let is_there = now.is_some_and(|now| now.metadata()["uid"] == meta["uid"]);
                Ok(if is_there { Outcome::Changed } else { Outcome::Done })
            }
            // What is removed at once gives room back: when even that is refused, nothing else can be done.
            Err(error) if error.code == http::StatusCode::INSUFFICIENT_STORAGE && held => Ok(round.is_full(error)),
            Err(error) => Ok(Outcome::Refused(refused(error, resource, object)?)),
        }
    }

    /// Changes an object, unless it was written meanwhile.
    pub(in crate::apiserver) async fn rewrite(
        &self,
        resource: &Resource,
        object: &Object,
        round: &mut Round,
        edit: impl Fn(&mut Value),
    ) -> Result<Outcome, ApiError> {
        let old = object.value();
        let mut value = old.clone();
        edit(&mut value);
        if value == old {
            return Ok(Outcome::Done);
        }
        let meta = &value["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let ends = !meta["deletionTimestamp"].is_null() && !held && resource.kind != "Namespace";
        if !ends && round.no_room.is_some() {
            return Ok(Outcome::NoRoom);
        }
        let change = Mutation {
            resource: Arc::clone(&resource.storage),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            expect: Expect::Revision(object.revision),
            value: (!ends).then_some(value),
        };
        match self.commit(resource, change).await {
            Ok(_) | Err(WriteError::NotFound) => Ok(Outcome::Done),
            Err(WriteError::Conflict { .. }) => Ok(Outcome::Changed),
            Err(WriteError::Full) if !ends => {
                Ok(round.is_full(ApiError::from_write(&WriteError::Full, resource, &object.name)))
            }
            // Others have room.
            Err(error @ (WriteError::Crowded { .. } | WriteError::TooMany { .. })) => {
                Ok(Outcome::Refused(error.to_string()))
            }
            Err(error) => {
                let error = ApiError::from_write(&error, resource, &object.name);
                Ok(Outcome::Refused(refused(error, resource, object)?))
            }
        }
    }

    /// Empties namespaces that are being deleted, and removes those that are empty.
    async fn end_namespaces(&self) -> Result<(), ApiError> {
        let (registry, mut round) = (self.registry(), Round::default());
        let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(()) };
        let all = self.store().list(&namespaces.storage, None).objects;
        for namespace in from_anywhere(&all).filter(|namespace| namespace.is_ending()) {
            if round.is_over() {
                self.wake_sweeper();
                break;
            }
            self.empty_namespace(&registry, namespaces, namespace, &mut round).await?;
        }
        round.end()
    }

    async fn empty_namespace(
        &self,
        registry: &Registry,
        namespaces: &Resource,
        namespace: &Object,
        round: &mut Round,
    ) -> Result<(), ApiError> {
        let mut left = Remains::default();
        let served: Vec<_> = registry.stored().filter(|resource| resource.namespaced).collect();
        for (storage, count) in self.store().stored_in(&namespace.name) {
            if !served.iter().any(|resource| resource.storage == storage) {
                left.unserved.insert(storage.to_string(), count);
            }
        }
        for (storage, _, name) in self.store().unreadable().into_iter().filter(|(_, of, _)| *of == namespace.name) {
            left.refuse(format!("{storage} {name} is damaged and cannot be read: delete it by its name"));
        }
        // Events go last: they may tell why the rest does not go.
        let (last, first): (Vec<_>, Vec<_>) = served.into_iter().partition(|r| &*r.storage == "/events");
        for resource in first.into_iter().chain(last) {
            if &*resource.storage == "/events" && !left.is_empty() {
                break;
            }
            for object in self.store().list(&resource.storage, Some(&namespace.name)).objects {
                round.yield_now().await;
                let outcome = self.remove(resource, &object, &DeleteOptions::default(), round).await?;
                let is_held = outcome == Outcome::Held && object.is_ending();
                left.add(resource, &object, outcome);
                // What is held already costs nothing; of the rest it is not known yet what is left.
                if !is_held && round.is_over() {
                    self.wake_sweeper();
                    return Ok(());
                }
            }
        }
        let told = if left.is_empty() {
            self.end_namespace(namespaces, namespace, round).await?
        } else {
            self.rewrite(namespaces, namespace, round, |value| left.tell(value)).await?
        };
        if told == Outcome::Changed || left.is_changing {
            self.wake_sweeper();
        }
        Ok(())
    }

    async fn end_namespace(
        &self,
        namespaces: &Resource,
        namespace: &Object,
        round: &mut Round,
    ) -> Result<Outcome, ApiError> {
        // Creates in this namespace that passed their check are done once the gate was ours; later ones find it ending.
        drop(self.namespace_gate().write().await);
        if !self.store().stored_in(&namespace.name).is_empty() {
            return Ok(Outcome::Changed);
        }
        let old = namespace.value();
        let mut value = old.clone();
        if let Some(spec) = value["spec"].as_object_mut() {
            spec.remove("finalizers");
        }
        let held = value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if held && value == old {
            return Ok(Outcome::Held);
        }
        if held {
            return self.rewrite(namespaces, namespace, round, |now| *now = value.clone()).await;
        }
        let change = Mutation {
            resource: Arc::clone(&namespaces.storage),
            namespace: String::new(),
            name: namespace.name.clone(),
            expect: Expect::Revision(namespace.revision),
            value: None,
        };
        match self.commit(namespaces, change).await {
            Ok(_) | Err(WriteError::NotFound) => Ok(Outcome::Done),
            Err(WriteError::Conflict { .. }) => Ok(Outcome::Changed),
            Err(error) => Err(ApiError::from_write(&error, namespaces, &namespace.name)),
        }
    }

    /// Removes the oldest events of the namespaces that have most when there are too many, so that nobody makes others lose
    /// theirs. Failures wait for the next time.
    pub(in crate::apiserver) async fn bound_events(&self, limit: usize) {
        let counts = self.store().counts();
        if counts.iter().all(|(resource, count)| &**resource != "/events" || *count <= limit) {
            return;
        }
        let mut events = self.store().list("/events", None).objects;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        events.iter().for_each(|event| *counts.entry(event.namespace.as_str()).or_default() += 1);
        let mut kept = events::shares(&counts, limit);
        let most = counts.iter().max_by_key(|(_, count)| **count).map_or("", |(namespace, _)| namespace).to_owned();
        // The newest of each namespace stay.
        events.sort_by_cached_key(|event| std::cmp::Reverse(event.revision));
        events.retain(|event| match kept.get_mut(&event.namespace) {
            Some(kept) if *kept > 0 => {
                *kept -= 1;
                false
            }
            _ => true,
        });
        tracing::warn!(
            events = events.len(),
            most,
            "there are too many events: removed the oldest of the namespaces that have most"
        );
        self.remove_events(&events).await;
    }

    /// Removes events that are too old. Failures wait for the next time.
    pub(in crate::apiserver) async fn forget_events(&self, now: Timestamp) {
        let (lifetime, mut round) = (self.event_lifetime(), Round::default());
        let mut old = Vec::new();
        for event in self.store().list("/events", None).objects {
            round.yield_now().await;
            if events::expired(&event.value(), now, lifetime) {
                old.push(event);
            }
        }
        self.remove_events(&old).await;
    }

    /// Removes events, many in one write. What takes too long, or finds the disk full, waits for the next time.
    async fn remove_events(&self, events: &[Arc<Object>]) {
        let began = Instant::now();
        for events in events.chunks(EVENTS_AT_ONCE) {
            if began.elapsed() >= EVENTS_TIME {
                return;
            }
            let removal = |event: &Arc<Object>| Mutation {
                resource: Arc::clone(&event.resource),
                namespace: event.namespace.clone(),
                name: event.name.clone(),
                expect: Expect::Revision(event.revision),
                value: None,
            };
            let removals: Vec<_> = events.iter().map(removal).map(|change| self.store().write(change)).collect();
            for removed in futures::future::join_all(removals).await {
                if let Err(error @ (WriteError::Failed(_) | WriteError::Full)) = removed {
                    tracing::warn!(%error, "cannot remove an old event: trying again later");
                    return;
                }
            }
        }
    }
}

/// Why an object may not be removed or changed, as long as that says nothing of the others: then they are gone on with.
fn refused(error: ApiError, resource: &Resource, object: &Object) -> Result<String, ApiError> {
    if matches!(error.code, http::StatusCode::SERVICE_UNAVAILABLE | http::StatusCode::INSUFFICIENT_STORAGE) {
        return Err(error);
    }
    tracing::warn!(
        resource = resource.plural,
        object = %crate::log::named(&object.namespace, &object.name),
        error = error.message,
        "cannot delete an object that is to be deleted by itself"
    );
    Ok(error.message)
}

/// Names that are told of what is left in a namespace; whoever may write in it makes as many as he likes.
const TOLD: usize = 16;

/// What is left in a namespace that is being deleted.
#[derive(Default)]
struct Remains {
    /// Objects by `plural.group`.
    resources: BTreeMap<String, usize>,
    /// Objects by the finalizer that holds them.
    finalizers: BTreeMap<String, usize>,
    /// Why objects may not go, and how many that are.
    refusals: Vec<String>,
    refused: usize,
    /// Objects of kinds that are not served, by their name in the store. Whoever makes a namespace of this name later, and
    /// has the kind again, would have them.
    unserved: BTreeMap<String, usize>,
    /// Whether some are written all the time.
    is_changing: bool,
}

impl Remains {
    fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.unserved.is_empty() && self.refused == 0
    }

    fn refuse(&mut self, why: String) {
        self.refused += 1;
        if self.refusals.len() < TOLD {
            self.refusals.push(why);
        }
    }

    fn add(&mut self, resource: &Resource, object: &Object, outcome: Outcome) {
        match outcome {
            Outcome::Done => return,
            Outcome::Held | Outcome::NoRoom => {}
            Outcome::Changed => self.is_changing = true,
            Outcome::Refused(why) => self.refuse(why),
        }
        *self.resources.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += 1;
        for finalizer in object.metadata()["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            // Of very many some are enough.
            if self.finalizers.len() < 64 * TOLD || self.finalizers.contains_key(finalizer) {
                *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
    }

    /// Says in the namespace's status what is left, in the words of upstream's controller.
    fn tell(&self, namespace: &mut Value) {
        let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
            let part = |(name, count): (&String, &usize)| {
                format!("{} {verb} {count} resource instances", crate::apiserver::answers::status::shorten(name, 317))
            };
            let mut parts: Vec<String> = counts.iter().take(TOLD).map(part).collect();
            if counts.len() > TOLD {
                parts.push(format!("and {} more", counts.len() - TOLD));
            }
            parts.join(", ")
        };
        let content = format!("Some resources are remaining: {}", listed(&self.resources, "has"));
        let finalizers =
            format!("Some content in the namespace has finalizers remaining: {}", listed(&self.finalizers, "in"));
        let refusals = format!(
            "Failed to delete all resource types, {} remaining: {}",
            self.refused,
            crate::apiserver::answers::status::shorten(&self.refusals.join(", "), 1024)
        );
        let unserved = format!(
            "Discovery failed for some groups, {} failing: of kinds that are not served, {}",
            self.unserved.len(),
            listed(&self.unserved, "has")
        );
        let fine = |kind, reason, message| (kind, "False", reason, message);
        let told = [
            if self.unserved.is_empty() {
                fine(
                    "NamespaceDeletionDiscoveryFailure",
                    "ResourcesDiscovered",
                    "All resources successfully discovered",
                )
            } else {
                ("NamespaceDeletionDiscoveryFailure", "True", "DiscoveryFailed", &*unserved)
            },
            fine(
                "NamespaceDeletionGroupVersionParsingFailure",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            if self.refused == 0 {
                fine(
                    "NamespaceDeletionContentFailure",
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                )
            } else {
                ("NamespaceDeletionContentFailure", "True", "ContentDeletionFailed", &*refusals)
            },
            if self.resources.is_empty() {
                fine("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed")
            } else {
                ("NamespaceContentRemaining", "True", "SomeResourcesRemain", &*content)
            },
            if self.finalizers.is_empty() {
                fine(
                    "NamespaceFinalizersRemaining",
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                )
            } else {
                ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", &*finalizers)
            },
        ];
        for (kind, status, reason, message) in told {
            meta::set_condition(namespace, meta::Condition { kind, status, reason, message }, meta::now());
        }
    }
}

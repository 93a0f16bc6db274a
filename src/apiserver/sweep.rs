//! What happens by itself: dependents go with their owners (`garbage`), ending namespaces are emptied, old events are
//! forgotten.
//!
//! One task looks at what changed when it is woken (by a deletion or by an object that names an owner), and at everything
//! when it starts and now and then, so that nothing is missed for long and a restart costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::delete::DeleteOptions;
use super::registry::Registry;
use super::resource::Resource;
use super::status::ApiError;
use super::{ApiServer, Identity, events, meta};
use crate::api::Keep;
use crate::store::{Change, Expect, Object, WriteError};

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

/// What became of an object that is to go.
#[derive(Debug, PartialEq)]
pub(super) enum Removed {
    /// It is gone, or another one has its name.
    Gone,
    /// Finalizers hold it.
    Held,
    /// It may not go; why.
    Refused(String),
}

impl ApiServer {
    /// Does what happens by itself until the server is shut down. To be run once, by the owner of the server.
    pub async fn run(&self) {
        tokio::join!(self.keep_sweeping(), self.keep_access(), self.inner.answers.keep_moving(self.shutdown()));
    }

    async fn keep_sweeping(&self) {
        let mut next_events = Instant::now();
        let mut next_everything = Instant::now();
        let mut looks = 0_u32;
        loop {
            if Instant::now() >= next_everything {
                next_everything = Instant::now() + EVERY;
                self.dependents().look_at_everything();
            }
            let mut wait = EVERY;
            if let Err(error) = self.sweep().await {
                tracing::warn!(%error, "a sweep was not finished and will be tried again");
                wait = RETRY;
            }
            if Instant::now() >= next_events {
                next_events = Instant::now() + EVENTS_EVERY;
                if looks.is_multiple_of(EVENTS_READ) {
                    self.forget_events(Timestamp::now()).await;
                }
                self.bound_events(events::COUNT_MAX).await;
                looks = looks.wrapping_add(1);
            }
            tokio::select! {
                () = self.shutdown().cancelled() => return,
                () = self.sweeper_woken() => {}
                () = tokio::time::sleep(wait) => {}
                () = tokio::time::sleep_until(next_everything) => {}
                () = tokio::time::sleep_until(next_events) => {}
            }
            tokio::select! {
                () = self.shutdown().cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// One look at what is to be done.
    pub(super) async fn sweep(&self) -> Result<(), ApiError> {
        self.collect_garbage().await?;
        self.end_namespaces().await?;
        self.end_definitions().await
    }

    /// Deletes for the sweeper.
    pub(super) async fn remove(
        &self,
        resource: &Resource,
        object: &Object,
        options: &DeleteOptions,
    ) -> Result<Removed, ApiError> {
        if resource.keep == Keep::View {
            return Ok(Removed::Gone);
        }
        let identity = Identity::in_process();
        match self.delete_object(resource, &object.namespace, &object.name, options, &identity).await {
            Ok(super::delete::Deleted::Gone(_)) => {
                tracing::debug!(resource = resource.plural, namespace = object.namespace, name = object.name, "swept");
                Ok(Removed::Gone)
            }
            Ok(super::delete::Deleted::Held(_)) => Ok(Removed::Held),
            // Gone, or a new object of the same name.
            Err(error) if error.code == http::StatusCode::NOT_FOUND || error.code == http::StatusCode::CONFLICT => {
                Ok(Removed::Gone)
            }
            // What may not be deleted stays, and keeps nothing else from going.
            Err(error) if error.code.is_client_error() => {
                tracing::warn!(
                    resource = resource.plural,
                    namespace = object.namespace,
                    name = object.name,
                    error = error.message,
                    "an object that is to go cannot be deleted"
                );
                Ok(Removed::Refused(error.message))
            }
            Err(error) => Err(error),
        }
    }

    /// Changes an object as it is now; one that was written meanwhile is left to the next sweep, which that write
    /// or the caller's wake brings.
    pub(super) async fn rewrite(
        &self,
        resource: &Resource,
        object: &Object,
        edit: impl Fn(&mut Value),
    ) -> Result<(), ApiError> {
        let old = object.value();
        let mut value = old.clone();
        edit(&mut value);
        if value == old {
            return Ok(());
        }
        let meta = &value["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let ends = !meta["deletionTimestamp"].is_null() && !held && resource.kind != "Namespace";
        let change = Change {
            resource: Arc::clone(&resource.storage),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            expect: Expect::Revision(object.revision),
            value: (!ends).then_some(value),
        };
        match self.commit(resource, change).await {
            Ok(_) => Ok(()),
            Err(WriteError::NotFound) => Ok(()),
            Err(WriteError::Conflict { .. }) => {
                self.wake_sweeper();
                Ok(())
            }
            Err(error) => Err(ApiError::from_write(&error, resource, &object.name)),
        }
    }

    /// Empties namespaces that are being deleted, and removes those that are empty.
    async fn end_namespaces(&self) -> Result<(), ApiError> {
        let registry = self.registry();
        let Some(namespaces) = registry.find("", "v1", "namespaces") else { return Ok(()) };
        for namespace in self.store().list(&namespaces.storage, None).objects {
            if !namespace.is_ending() {
                continue;
            }
            // Events go last: they may tell why the rest does not go.
            let mut left = Remains::default();
            let (last, first): (Vec<_>, Vec<_>) =
                registry.stored().filter(|r| r.namespaced).partition(|r| &*r.storage == "/events");
            for resource in first.into_iter().chain(last) {
                if &*resource.storage == "/events" && !left.resources.is_empty() {
                    break;
                }
                for object in self.store().list(&resource.storage, Some(&namespace.name)).objects {
                    let removed = self.remove(resource, &object, &DeleteOptions::default()).await?;
                    left.add(resource, &object, removed);
                }
            }
            if left.resources.is_empty() {
                self.end_namespace(&registry, namespaces, &namespace).await?;
            } else {
                self.rewrite(namespaces, &namespace, |value| left.tell(value)).await?;
            }
        }
        Ok(())
    }

    async fn end_namespace(
        &self,
        registry: &Registry,
        namespaces: &Resource,
        namespace: &Object,
    ) -> Result<(), ApiError> {
        // Creates in this namespace that passed their check are done once the gate is ours.
        let _gate = self.namespace_gate().write().await;
        let mut stored = registry.stored().filter(|resource| resource.namespaced && resource.keep != Keep::View);
        if stored.any(|resource| !self.store().list(&resource.storage, Some(&namespace.name)).objects.is_empty()) {
            self.wake_sweeper();
            return Ok(());
        }
        let old = namespace.value();
        let mut value = old.clone();
        if let Some(spec) = value["spec"].as_object_mut() {
            spec.remove("finalizers");
        }
        let held = value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if held && value == old {
            return Ok(());
        }
        let change = Change {
            resource: Arc::clone(&namespaces.storage),
            namespace: String::new(),
            name: namespace.name.clone(),
            expect: Expect::Revision(namespace.revision),
            value: held.then_some(value),
        };
        match self.commit(namespaces, change).await {
            Ok(_) | Err(WriteError::NotFound) => Ok(()),
            Err(WriteError::Conflict { .. }) => {
                self.wake_sweeper();
                Ok(())
            }
            Err(error) => Err(ApiError::from_write(&error, namespaces, &namespace.name)),
        }
    }

    /// Removes the oldest events of the namespaces that have most when there are too many, so that nobody makes others lose
    /// theirs. Failures wait for the next time.
    pub(super) async fn bound_events(&self, limit: usize) {
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
        events.sort_by_key(|event| std::cmp::Reverse(event.revision));
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
            "there are too many events: the oldest of who has most are removed"
        );
        self.remove_events(&events).await;
    }

    /// Removes events that are too old. Failures wait for the next time.
    pub(super) async fn forget_events(&self, now: Timestamp) {
        let lifetime = self.event_lifetime();
        let mut old = self.store().list("/events", None).objects;
        old.retain(|event| events::expired(&event.value(), now, lifetime));
        self.remove_events(&old).await;
    }

    async fn remove_events(&self, events: &[Arc<Object>]) {
        for event in events {
            let change = Change {
                resource: Arc::clone(&event.resource),
                namespace: event.namespace.clone(),
                name: event.name.clone(),
                expect: Expect::Revision(event.revision),
                value: None,
            };
            if let Err(error @ WriteError::Failed(_)) = self.store().write(change).await {
                tracing::warn!(%error, "an old event could not be removed");
                return;
            }
        }
    }
}

/// What is left in a namespace that is being deleted.
#[derive(Default)]
struct Remains {
    /// Objects by `plural.group`.
    resources: BTreeMap<String, usize>,
    /// Objects by the finalizer that holds them.
    finalizers: BTreeMap<String, usize>,
    /// Why objects may not go.
    refusals: Vec<String>,
}

impl Remains {
    fn add(&mut self, resource: &Resource, object: &Object, removed: Removed) {
        match removed {
            Removed::Gone => return,
            Removed::Held => {}
            Removed::Refused(why) => self.refusals.push(why),
        }
        *self.resources.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += 1;
        for finalizer in object.metadata()["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }

    /// Says in the namespace's status what is left, in the words of upstream's controller.
    fn tell(&self, namespace: &mut Value) {
        let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
            let parts: Vec<String> =
                counts.iter().map(|(name, count)| format!("{name} {verb} {count} resource instances")).collect();
            parts.join(", ")
        };
        let content = format!("Some resources are remaining: {}", listed(&self.resources, "has"));
        let finalizers =
            format!("Some content in the namespace has finalizers remaining: {}", listed(&self.finalizers, "in"));
        let refusals = format!(
            "Failed to delete all resource types, {} remaining: {}",
            self.refusals.len(),
            super::status::shorten(&self.refusals.join(", "), 1024)
        );
        let fine = |kind, reason, message| (kind, "False", reason, message);
        let told = [
            fine("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
            fine(
                "NamespaceDeletionGroupVersionParsingFailure",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            if self.refusals.is_empty() {
                fine(
                    "NamespaceDeletionContentFailure",
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                )
            } else {
                ("NamespaceDeletionContentFailure", "True", "ContentDeletionFailed", &*refusals)
            },
            ("NamespaceContentRemaining", "True", "SomeResourcesRemain", &*content),
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

//! What happens by itself: dependents go with their owners, ending namespaces are emptied, old events are forgotten.
//!
//! One task looks at everything when it is woken (by a deletion or by an object that names an owner), when it starts,
//! and now and then. It keeps no state of its own, so that nothing can be missed and a restart costs nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::delete::DeleteOptions;
use super::registry::{Registry, Resource};
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

/// Whether an owner is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Alive,
    /// Waits for its dependents (`foregroundDeletion`).
    Waiting,
    Gone,
    /// Of a kind that is not served here; its dependents are left alone.
    Unknown,
}

impl ApiServer {
    /// Does what happens by itself until the server is shut down. To be run once, by the owner of the server.
    pub async fn run(&self) {
        tokio::join!(self.keep_sweeping(), self.keep_access());
    }

    async fn keep_sweeping(&self) {
        let mut next_events = Instant::now();
        let mut looks = 0_u32;
        loop {
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
                () = tokio::time::sleep_until(next_events) => {}
            }
            tokio::select! {
                () = self.shutdown().cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// One look at everything.
    pub(super) async fn sweep(&self) -> Result<(), ApiError> {
        self.collect_garbage().await?;
        self.end_namespaces().await?;
        self.end_definitions().await
    }

    async fn collect_garbage(&self) -> Result<(), ApiError> {
        let registry = self.registry();
        let mut owners: HashMap<(String, String, String, String), Owner> = HashMap::new();
        // Owners that wait (by uid) and whether something still holds them; orphaning ones.
        let mut blocked: HashSet<String> = HashSet::new();
        let mut ending: Vec<(Arc<Resource>, Arc<Object>, Value)> = Vec::new();
        let mut dependents: Vec<(Arc<Resource>, Arc<Object>, Value)> = Vec::new();
        for resource in registry.stored() {
            for object in self.store().list(&resource.storage, None).objects {
                if !object.is_ending() && !object.is_owned() {
                    continue;
                }
                let meta = object.metadata();
                if object.is_ending() && (has_finalizer(&meta, meta::FOREGROUND) || has_finalizer(&meta, meta::ORPHAN))
                {
                    ending.push((Arc::clone(resource), Arc::clone(&object), meta.clone()));
                }
                if object.is_owned() {
                    dependents.push((Arc::clone(resource), object, meta));
                }
            }
        }
        let orphaning: HashSet<&str> = ending
            .iter()
            .filter(|(_, _, meta)| has_finalizer(meta, meta::ORPHAN))
            .filter_map(|(_, _, meta)| meta["uid"].as_str())
            .collect();
        for (resource, object, meta) in &dependents {
            let references = meta["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
            let mut states = Vec::with_capacity(references.len());
            for reference in references {
                let state = self.owner_state(&registry, &object.namespace, reference, &mut owners);
                states.push((reference, state));
            }
            let orphaned = |reference: &Value| reference["uid"].as_str().is_some_and(|uid| orphaning.contains(uid));
            let keep: Vec<Value> = states
                .iter()
                .filter(|(reference, state)| *state != Owner::Gone && !orphaned(reference))
                .map(|(reference, _)| (*reference).clone())
                .collect();
            let solid = states
                .iter()
                .any(|(reference, state)| matches!(state, Owner::Alive | Owner::Unknown) && !orphaned(reference));
            let dead = states.iter().any(|(_, state)| *state == Owner::Gone);
            let waiting = states.iter().any(|(reference, state)| *state == Owner::Waiting && !orphaned(reference));
            let lost_to_orphaning = states.iter().any(|(reference, _)| orphaned(reference));
            if !solid && (dead || waiting) && !(lost_to_orphaning && keep.is_empty()) {
                let options = DeleteOptions::of_uid(meta["uid"].as_str().map(str::to_owned));
                let left = self.remove(resource, object, &options).await?;
                if left {
                    for (reference, state) in &states {
                        if *state == Owner::Waiting
                            && reference["blockOwnerDeletion"] == true
                            && let Some(uid) = reference["uid"].as_str()
                        {
                            blocked.insert(uid.to_owned());
                        }
                    }
                }
            } else if keep.len() < references.len() {
                self.rewrite(resource, object, |value| set_owners(value, &keep)).await?;
            }
        }
        for (resource, object, meta) in &ending {
            let uid = meta["uid"].as_str().unwrap_or_default();
            if !blocked.contains(uid) {
                self.rewrite(resource, object, |value| drop_finalizers(value, &[meta::FOREGROUND, meta::ORPHAN]))
                    .await?;
            }
        }
        Ok(())
    }

    fn owner_state(
        &self,
        registry: &Registry,
        namespace: &str,
        reference: &Value,
        known: &mut HashMap<(String, String, String, String), Owner>,
    ) -> Owner {
        let text = |key: &str| reference[key].as_str().unwrap_or_default().to_owned();
        let key = (namespace.to_owned(), text("kind"), text("name"), text("uid"));
        if let Some(state) = known.get(&key) {
            return *state;
        }
        let Some(resource) = registry.find_kind(&text("apiVersion"), &key.1) else { return Owner::Unknown };
        // What lies in no namespace cannot name an owner that does: which one would it be?
        if resource.namespaced && namespace.is_empty() {
            return Owner::Unknown;
        }
        let namespace = if resource.namespaced { namespace } else { "" };
        let state = match self.store().get(&resource.storage, namespace, &key.2) {
            Some(owner) if owner.metadata()["uid"] == *key.3 => {
                if owner.is_ending() && has_finalizer(&owner.metadata(), meta::FOREGROUND) {
                    Owner::Waiting
                } else {
                    Owner::Alive
                }
            }
            _ => Owner::Gone,
        };
        known.insert(key, state);
        state
    }

    /// Deletes for the sweeper; whether the object is still there, held by finalizers.
    pub(super) async fn remove(
        &self,
        resource: &Resource,
        object: &Object,
        options: &DeleteOptions,
    ) -> Result<bool, ApiError> {
        if resource.keep == Keep::View {
            return Ok(false);
        }
        let identity = Identity::in_process();
        match self.delete_object(resource, &object.namespace, &object.name, options, &identity).await {
            Ok(super::delete::Deleted::Gone(_)) => {
                tracing::debug!(resource = resource.plural, namespace = object.namespace, name = object.name, "swept");
                Ok(false)
            }
            Ok(super::delete::Deleted::Held(_)) => Ok(true),
            // Gone, or a new object of the same name.
            Err(error) if error.code == http::StatusCode::NOT_FOUND || error.code == http::StatusCode::CONFLICT => {
                Ok(false)
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
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Changes an object as it is now; one that was written meanwhile is left to the next sweep, which that write
    /// or the caller's wake brings.
    async fn rewrite(&self, resource: &Resource, object: &Object, edit: impl Fn(&mut Value)) -> Result<(), ApiError> {
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
            let mut left = 0;
            let (last, first): (Vec<_>, Vec<_>) =
                registry.stored().filter(|r| r.namespaced).partition(|r| &*r.storage == "/events");
            for resource in first.into_iter().chain(last) {
                if &*resource.storage == "/events" && left > 0 {
                    break;
                }
                for object in self.store().list(&resource.storage, Some(&namespace.name)).objects {
                    left += usize::from(self.remove(resource, &object, &DeleteOptions::default()).await?);
                }
            }
            if left == 0 {
                self.end_namespace(&registry, namespaces, &namespace).await?;
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

    /// Removes the oldest events when there are too many. Failures wait for the next time.
    pub(super) async fn bound_events(&self, limit: usize) {
        let counts = self.store().counts();
        if counts.iter().all(|(resource, count)| &**resource != "/events" || *count <= limit) {
            return;
        }
        let mut events = self.store().list("/events", None).objects;
        events.sort_by_key(|event| event.revision);
        events.truncate(events.len().saturating_sub(limit));
        tracing::warn!(events = events.len(), "there are too many events: the oldest are removed");
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

fn has_finalizer(meta: &Value, name: &str) -> bool {
    meta["finalizers"].as_array().is_some_and(|list| list.iter().any(|one| one == name))
}

fn set_owners(value: &mut Value, owners: &[Value]) {
    if let Some(meta) = value["metadata"].as_object_mut() {
        if owners.is_empty() {
            meta.remove("ownerReferences");
        } else {
            meta.insert("ownerReferences".into(), owners.into());
        }
    }
}

fn drop_finalizers(value: &mut Value, names: &[&str]) {
    if let Some(Value::Array(list)) = value["metadata"].get_mut("finalizers") {
        list.retain(|one| !names.iter().any(|name| one == name));
    }
}

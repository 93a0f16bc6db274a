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

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::round::{SweepOutcome, SweepRound};
use crate::api::StoragePolicy;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::events;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::writing::delete::DeleteOptions;
use crate::apiserver::{ApiServer, UserIdentity};
use crate::runtime::SupervisedTask;
use crate::store::{Expect, Mutation, Object, StoreWriteError};

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

/// What a look at what is to be done consists of.
const SWEEPS: [&str; 3] = ["garbage-collection", "namespace-removal", "definition-removal"];

/// One run of a sweep.
async fn one(task: SupervisedTask, work: impl Future<Output = Result<(), ApiError>>) -> Result<(), ApiError> {
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
            if began.elapsed() < super::round::SLICE {
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
        resource: &ServedResource,
        object: &Object,
        options: &DeleteOptions,
        round: &mut SweepRound,
    ) -> Result<SweepOutcome, ApiError> {
        if resource.policy == StoragePolicy::View {
            return Ok(SweepOutcome::Done);
        }
        let meta = object.metadata();
        let held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if held && object.is_ending() {
            return Ok(SweepOutcome::Held);
        }
        // A mark of its deletion takes room, and there was none a moment ago.
        if held && round.no_room.is_some() {
            return Ok(SweepOutcome::NoRoom);
        }
        let identity = UserIdentity::in_process();
        match self.delete_object(resource, &object.namespace, &object.name, options, &identity, None).await {
            Ok(crate::apiserver::writing::delete::Deleted::Gone(_)) => {
                tracing::debug!(resource = resource.plural, object = %crate::log::named(&object.namespace, &object.name), "deleted an object by itself");
                Ok(SweepOutcome::Done)
            }
            Ok(crate::apiserver::writing::delete::Deleted::Held(_)) => Ok(SweepOutcome::Held),
            Err(error) if error.code == http::StatusCode::NOT_FOUND => Ok(SweepOutcome::Done),
            // A new object of the same name, or this one as somebody wrote it.
            Err(error) if error.code == http::StatusCode::CONFLICT => {
                let now = self.store().get(&object.resource, &object.namespace, &object.name);
                let is_there = now.is_some_and(|now| now.metadata()["uid"] == meta["uid"]);
                Ok(if is_there { SweepOutcome::Changed } else { SweepOutcome::Done })
            }
            // What is removed at once gives room back: when even that is refused, nothing else can be done.
            Err(error) if error.code == http::StatusCode::INSUFFICIENT_STORAGE && held => Ok(round.is_full(error)),
            Err(error) => Ok(SweepOutcome::Refused(refused(error, resource, object)?)),
        }
    }

    /// Changes an object, unless it was written meanwhile.
    pub(in crate::apiserver) async fn rewrite(
        &self,
        resource: &ServedResource,
        object: &Object,
        round: &mut SweepRound,
        edit: impl Fn(&mut Value),
    ) -> Result<SweepOutcome, ApiError> {
        let old = object.value();
        let mut value = old.clone();
        edit(&mut value);
        if value == old {
            return Ok(SweepOutcome::Done);
        }
        let meta = &value["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let ends = !meta["deletionTimestamp"].is_null() && !held && resource.kind != "Namespace";
        if !ends && round.no_room.is_some() {
            return Ok(SweepOutcome::NoRoom);
        }
        let change = Mutation {
            resource: Arc::clone(&resource.storage),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            expect: Expect::Revision(object.revision),
            value: (!ends).then_some(value),
        };
        match self.commit(resource, change).await {
            Ok(_) | Err(StoreWriteError::NotFound) => Ok(SweepOutcome::Done),
            Err(StoreWriteError::Conflict { .. }) => Ok(SweepOutcome::Changed),
            Err(StoreWriteError::Full) if !ends => {
                Ok(round.is_full(ApiError::from_write(&StoreWriteError::Full, resource, &object.name)))
            }
            // Others have room.
            Err(error @ (StoreWriteError::Crowded { .. } | StoreWriteError::TooMany { .. })) => {
                Ok(SweepOutcome::Refused(error.to_string()))
            }
            Err(error) => {
                let error = ApiError::from_write(&error, resource, &object.name);
                Ok(SweepOutcome::Refused(refused(error, resource, object)?))
            }
        }
    }
}

/// Why an object may not be removed or changed, as long as that says nothing of the others: then they are gone on with.
fn refused(error: ApiError, resource: &ServedResource, object: &Object) -> Result<String, ApiError> {
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

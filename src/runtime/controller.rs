//! How a controller is built, run and ended.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{FutureExt, Stream, StreamExt, stream};
use kube::runtime::controller::{self, Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::field::{Value, display};
use tracing::{debug, error, warn};

use self::meters::ControllerMeters;
use super::cache::Cache;
use super::conflict::Conflict;
use super::ending::to_its_end;
use super::shares::NamespaceShares;
use super::watches::{ObjectKey, key};
use crate::log::named;
use crate::outbound;

mod meters;

pub(super) use meters::register;

/// Longest pause before an object is tried again, unless its controller makes longer ones.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Looks that are begun at once where namespaces have [shares](Shares), those included that find no place and end at once.
const BEGUN: u16 = 1024;

/// What a controller does about one object.
pub trait Reconcile: Send + Sync + 'static {
    /// What it is handed of the object. It reads the object anew before it decides.
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;
    /// Why it could not go on; it is tried again. A conflict is no fault, and nobody is warned of it.
    type Error: Error + Conflict + Send + 'static;

    /// Its name in metrics.
    const NAME: &'static str;

    /// Whether each object has the name of its host, which the log then names.
    const OF_HOSTS: bool = false;

    /// Objects that are looked at at once; 0 is as many as there are.
    const AT_ONCE: u16 = 0;

    /// Objects of one namespace that are looked at at once, so that whoever has many holds up nobody else; 0 is as many as there are.
    /// Where it is not 0, all namespaces together have 128, the last quarter of which is for those that have few.
    const OF_A_NAMESPACE: u16 = 0;

    /// How long a look at an object may take; then it ends wherever it is, as in a crash, and the object is tried again. None
    /// where what is done has bounds of its own.
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(3600));

    /// Looks at an object, and says when it is to be looked at again without a change.
    fn reconcile(&self, object: Arc<Self::Object>) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// How long until it is tried again after an error; after further ones of the same object twice as long each time, up to a
    /// minute.
    fn retry_after(&self) -> Duration;

    /// What is done when an object that was to be looked at is gone.
    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        let _ = (namespace, name);
    }
}

/// Looks at every object that is there and at whatever is woken for, until the shutdown. What is under way then is done first.
pub async fn run<R: Reconcile>(
    reconciler: Arc<R>,
    cache: &Cache<R::Object>,
    also: impl Stream<Item = (String, String)> + Send + 'static,
    shutdown: CancellationToken,
) {
    let also = also.map(|(namespace, name)| ObjectRef::new(&name).within(&namespace));
    let woken = stream::select(cache.woken(), also);
    let context = Arc::new(Careful {
        reconciler,
        failures: Mutex::default(),
        meters: ControllerMeters::of(R::NAME),
        shares: NamespaceShares::new(R::OF_A_NAMESPACE, R::AT_ONCE),
    });
    // Where namespaces have shares, these say how many are looked at: who has no place is to be sent away, and not to wait in front.
    let begun = if R::OF_A_NAMESPACE > 0 { BEGUN } else { R::AT_ONCE };
    // Which objects there are is in the cache already.
    let controller = Controller::for_stream(stream::pending(), cache.store().clone())
        .with_config(Config::default().concurrency(begun))
        .reconcile_on(woken)
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(
            |object, careful: Arc<Careful<R>>| async move { careful.reconcile(object).await },
            |object, error, careful| careful.retry(object.as_ref(), error),
            context.clone(),
        )
        .for_each(|outcome| {
            match outcome {
                Ok((object, _)) => {
                    let (host, object) = labels::<R>(object.namespace.as_deref().unwrap_or_default(), &object.name);
                    debug!(kind = %R::Object::kind(&()), host, object, "reconciled an object");
                }
                // It went while it was queued, or something of its own outlived it.
                Err(controller::Error::ObjectNotFound(object)) => {
                    let key = (object.namespace.unwrap_or_default(), object.name);
                    context.forget(&key);
                    context.reconciler.clone().gone(&key.0, &key.1);
                }
                Err(error) => debug!(%error, "reconciling an object failed"),
            }
            std::future::ready(())
        });
    to_its_end(controller, cache.store().clone(), shutdown).await;
}

/// Why a look at an object was none.
#[derive(Debug, thiserror::Error)]
enum ReconcileFault<E> {
    /// It says so itself.
    #[error("{0}")]
    Own(E),
    /// A fault of this program, which must cost this object alone.
    #[error("a look at it panicked: {0}")]
    Panicked(String),
    #[error("a look at it did not end within {0:?}")]
    Endless(Duration),
}

/// A reconciler, and how often in a row looks at an object failed.
struct Careful<R> {
    reconciler: Arc<R>,
    failures: Mutex<HashMap<ObjectKey, u32>>,
    meters: ControllerMeters,
    shares: NamespaceShares,
}

impl<R: Reconcile> Careful<R> {
    fn failures(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What failed before does so no more.
    fn forget(&self, key: &ObjectKey) {
        let mut failures = self.failures();
        if failures.remove(key).is_some() {
            self.meters.failing(failures.len());
        }
    }

    async fn reconcile(&self, object: Arc<R::Object>) -> Result<Action, ReconcileFault<R::Error>> {
        let key = key(object.as_ref());
        // Who waits for his turn waits in the queue, where he takes least room, and in nobody's place.
        let _share = match self.shares.take(&key.0) {
            Ok(share) => share,
            Err(pause) => return Ok(Action::requeue(pause)),
        };
        let (began, _under_way) = (Instant::now(), self.meters.begin());
        let outcome = self.look(key, object).await;
        let result = match &outcome {
            Ok(_) => "success",
            Err(ReconcileFault::Own(error)) if error.is_conflict() => "requeue",
            Err(_) => "error",
        };
        self.meters.ended(result, began.elapsed());
        outcome
    }

    async fn look(&self, key: ObjectKey, object: Arc<R::Object>) -> Result<Action, ReconcileFault<R::Error>> {
        // Boxed: it is large, and would be moved from one to the next.
        let look = outbound::for_namespace(key.0.clone(), Box::pin(self.reconciler.reconcile(object)));
        let look = AssertUnwindSafe(look).catch_unwind();
        let looked = match R::DEADLINE {
            Some(deadline) => {
                tokio::time::timeout(deadline, look).await.map_err(|_| ReconcileFault::Endless(deadline))?
            }
            None => look.await,
        };
        match looked {
            Ok(Ok(action)) => {
                self.forget(&key);
                Ok(action)
            }
            Ok(Err(error)) => Err(ReconcileFault::Own(error)),
            Err(panic) => Err(ReconcileFault::Panicked(words(&*panic))),
        }
    }

    fn retry(&self, failed: &R::Object, error: &ReconcileFault<R::Error>) -> Action {
        let (kind, first) = (R::Object::kind(&()), self.reconciler.retry_after());
        let (namespace, name) = (failed.namespace().unwrap_or_default(), failed.name_any());
        let (host, object) = labels::<R>(&namespace, &name);
        if matches!(error, ReconcileFault::Own(error) if error.is_conflict()) {
            debug!(%kind, host, object, "somebody else wrote the object in between: trying again");
            return Action::requeue(first);
        }
        let mut failures = self.failures();
        let before = failures.entry(key(failed)).or_default();
        let pause = pause(first, *before);
        *before = before.saturating_add(1);
        self.meters.failing(failures.len());
        drop(failures);
        match error {
            ReconcileFault::Own(error) => {
                warn!(%kind, host, object, %error, ?pause, "reconciling failed: trying again after a pause");
            }
            fault => {
                error!(%kind, host, object, error = %fault, ?pause, "a fault of this program: reconciling the object again after a pause");
            }
        }
        Action::requeue(pause)
    }
}

/// What the log calls an object: its host, or else the object itself.
fn labels<'a, R: Reconcile>(namespace: &'a str, name: &'a str) -> (Option<impl Value + 'a>, Option<impl Value + 'a>) {
    let label = || display(named(namespace, name));
    (R::OF_HOSTS.then(label), (!R::OF_HOSTS).then(label))
}

/// The pause before the next try after so many failures.
fn pause(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.min(16)).min(LONGEST_RETRY.max(first))
}

pub(super) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why").to_owned()
}

#[cfg(test)]
mod tests;

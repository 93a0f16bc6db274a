//! How a controller is built, run and ended.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use kube::runtime::controller::{self, Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::cache::Cache;
use super::ending::to_its_end;

/// What a controller does about one object.
pub trait Reconcile: Send + Sync + 'static {
    /// What it is handed of the object. It reads the object anew before it decides.
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;
    /// Why it could not go on; it is tried again.
    type Error: Error + Send + 'static;

    /// Objects that are looked at at once; 0 is as many as there are.
    const AT_ONCE: u16 = 0;

    /// Looks at an object, and says when it is to be looked at again without a change.
    fn reconcile(&self, object: Arc<Self::Object>) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// How long until it is tried again after an error.
    fn retry_after(&self) -> Duration;

    /// Whether an error is no fault, only another's write in between.
    fn is_conflict(error: &Self::Error) -> bool {
        let _ = error;
        false
    }

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
    // Which objects there are is in the cache already.
    let controller = Controller::for_stream(stream::pending(), cache.store().clone())
        .with_config(Config::default().concurrency(R::AT_ONCE))
        .reconcile_on(woken)
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(
            |object, reconciler: Arc<R>| async move { reconciler.reconcile(object).await },
            |object, error, reconciler| retry(reconciler.as_ref(), object.as_ref(), error),
            reconciler.clone(),
        )
        .for_each(|outcome| {
            match outcome {
                Ok((object, _)) => debug!(%object, "looked at"),
                // It went while it was queued, or something of its own outlived it.
                Err(controller::Error::ObjectNotFound(object)) => {
                    reconciler.clone().gone(object.namespace.as_deref().unwrap_or_default(), &object.name);
                }
                Err(error) => debug!(%error, "reconciliation failed"),
            }
            std::future::ready(())
        });
    to_its_end(controller, cache.store().clone(), shutdown).await;
}

fn retry<R: Reconcile>(reconciler: &R, object: &R::Object, error: &R::Error) -> Action {
    let (kind, pause) = (R::Object::kind(&()), reconciler.retry_after());
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    if R::is_conflict(error) {
        debug!(%kind, namespace, name, "somebody else wrote it in between; it is looked at again");
    } else {
        warn!(%kind, namespace, name, %error, "it could not be looked after; that is tried again in {pause:?}");
    }
    Action::requeue(pause)
}

//! What is left of hosts that are gone.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::api::slipway::BootIntent;
use crate::host::reconcile::context::HostContext;
use crate::host::reconcile::{credentials, effects};
use crate::host::status::hardware_data;
use crate::log::named;
use crate::runtime::{ObjectKey, SupervisedTask};

/// Until it is tried again to clear up after a host that is gone, at first, and at most after several tries.
const CLEAR_PAUSE: Duration = Duration::from_secs(5);
const CLEAR_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Clears up after hosts that are gone, several at once, until the shutdown. What is not done by then is done after the next
/// start: what a host held wakes for it.
pub(super) async fn clear_all(
    context: &HostContext,
    mut gone: UnboundedReceiver<ObjectKey>,
    task: &SupervisedTask,
    shutdown: &CancellationToken,
) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(key) = gone.recv() => under_way.push(clear_after(context, key, task)),
            Some(()) = under_way.next(), if !under_way.is_empty() => {}
        }
    }
}

/// A host that went without its life's end, because somebody took its finalizer, must not leave anything that nobody
/// lets go: its namespace could not be deleted. Each try is a run of the task.
async fn clear_after(context: &HostContext, (namespace, name): ObjectKey, task: &SupervisedTask) {
    let mut pause = CLEAR_PAUSE;
    while let Err(error) = task.run(clear(context, &namespace, &name)).await {
        warn!(host = %named(&namespace, &name), %error, "cannot release what a deleted host held: trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(CLEAR_PAUSE_MAX);
    }
}

async fn clear(context: &HostContext, namespace: &str, name: &str) -> Result<(), kube::Error> {
    let intent = context.api::<BootIntent>(namespace).get_opt(name).await?;
    if let Some(intent) = intent.filter(|intent| intent.metadata.deletion_timestamp.is_some()) {
        // A host that was deleted in order has released them before.
        credentials::release_gone(context, namespace, name).await?;
        effects::let_intent_go(context, &intent).await?;
    }
    hardware_data::let_go(&context.api(namespace), name).await
}

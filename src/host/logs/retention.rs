//! Deletion of logs whose hosts are gone.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tracing::warn;

use super::Logs;
use crate::api::metal3::BareMetalHost;
use crate::boot::HostIndex;
use crate::runtime::{ObjectKey, SupervisedTask, WatchChange, Watches};

/// Removes the logs of hosts that go, and after the first listing those of hosts that went unseen. Cheap to clone.
#[derive(Clone)]
pub struct Retention {
    /// Hosts that went; none: all of them are to be looked at. Held by whoever removes logs.
    gone: Arc<Mutex<UnboundedReceiver<Option<ObjectKey>>>>,
    index: HostIndex,
    logs: Logs,
}

impl Retention {
    /// Of no host yet, until the watches run.
    pub fn new(watches: &mut Watches, index: HostIndex, logs: Logs) -> Self {
        let (tell, gone) = mpsc::unbounded_channel();
        let mut swept = false;
        watches.observe(move |change: &WatchChange<'_, BareMetalHost>| {
            let job = match change {
                WatchChange::Gone(key) => Some((*key).clone()),
                WatchChange::Listed if !swept => {
                    swept = true;
                    None
                }
                WatchChange::Put(_) | WatchChange::Listed => return,
            };
            // Who reads them is gone only at the end.
            tell.send(job).ok();
        });
        Self { gone: Arc::new(Mutex::new(gone)), index, logs }
    }

    /// Removes them, each time in a run of the task. Ends with the watches.
    pub async fn run(self, task: SupervisedTask) {
        let mut gone = self.gone.lock().await;
        while let Some(job) = gone.recv().await {
            let (logs, index) = (self.logs.clone(), self.index.clone());
            let done = tokio::task::spawn_blocking(move || match job {
                Some((namespace, name)) => logs.forget(&namespace, &name),
                // No host has a log before the index knows it.
                None => logs.sweep(|namespace, name| index.by_name(namespace, name).is_some()),
            });
            let done = async { done.await.map_err(std::io::Error::other).and_then(|done| done) };
            if let Err(error) = task.run(done).await {
                warn!(%error, "cannot delete the logs of hosts that are gone");
            }
        }
    }
}

//! Logs go with their hosts.

use std::collections::HashSet;

use futures::StreamExt;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::logs::Logs;
use crate::api::metal3::BareMetalHost;
use crate::engine::watching;

/// Removes the logs of hosts that go, and after each listing those of hosts that went unseen.
pub async fn run(client: Client, logs: Logs, shutdown: CancellationToken) {
    let hosts = watcher(Api::<PartialObjectMeta<BareMetalHost>>::all(client), watching()).default_backoff();
    let mut hosts = std::pin::pin!(hosts);
    let mut listed = HashSet::new();
    loop {
        let event = tokio::select! {
            event = hosts.next() => event,
            () = shutdown.cancelled() => return,
        };
        let key = |host: &PartialObjectMeta<BareMetalHost>| (host.namespace().unwrap_or_default(), host.name_any());
        let logs = logs.clone();
        let done = match event {
            Some(Ok(watcher::Event::Init)) => {
                listed.clear();
                continue;
            }
            Some(Ok(watcher::Event::InitApply(host))) => {
                listed.insert(key(&host));
                continue;
            }
            Some(Ok(watcher::Event::InitDone)) => {
                let known = std::mem::take(&mut listed);
                let is_host = move |namespace: &str, name: &str| known.contains(&(namespace.into(), name.into()));
                tokio::task::spawn_blocking(move || logs.sweep(is_host)).await
            }
            Some(Ok(watcher::Event::Delete(host))) => {
                let (namespace, name) = key(&host);
                tokio::task::spawn_blocking(move || logs.forget(&namespace, &name)).await
            }
            Some(Ok(watcher::Event::Apply(_))) => continue,
            Some(Err(error)) => {
                warn!(%error, "watch of hosts broke; it is set up again");
                continue;
            }
            None => return,
        };
        if let Err(error) = done.map_err(std::io::Error::other).and_then(|done| done) {
            warn!(%error, "logs of hosts that are gone stay on disk");
        }
    }
}

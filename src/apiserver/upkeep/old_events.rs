//! Events are forgotten: those that are old, and the oldest where there are too many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::round::SweepRound;
use crate::apiserver::ApiServer;
use crate::apiserver::kinds::events;
use crate::store::{Expect, Mutation, Object, StoreWriteError};

/// Events that are removed at once, so that they share what a write takes.
const EVENTS_AT_ONCE: usize = 64;
/// How long events are removed before the rest waits for the next look.
const EVENTS_TIME: Duration = Duration::from_secs(5);

impl ApiServer {
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
        let (lifetime, mut round) = (self.event_lifetime(), SweepRound::default());
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
                if let Err(error @ (StoreWriteError::Failed(_) | StoreWriteError::Full)) = removed {
                    tracing::warn!(%error, "cannot remove an old event: trying again later");
                    return;
                }
            }
        }
    }
}

//! The appliance's side of the agent protocol: sessions, steps, progress, results ([`crate::protocol`]).
//!
//! A session lives as long as the boot intent's generation that its token was made for. The session's record
//! is in the intent's status, so that a restart of the appliance costs an agent nothing but a repeated call.

mod agent_identity;
mod progress_rate;
mod request_limits;
mod routes;
mod session;
mod step_payload;
mod steps;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use axum::Router;
use kube::{Api, Client};

use self::progress_rate::ProgressRate;
use self::request_limits::RequestLimits;
use crate::api::slipway::BootIntent;
use crate::boot::home::SiteNetwork;
use crate::boot::neighbour::Neighbours;
use crate::boot::{BootTokens, DownloadScheduler, HostIndex};
use crate::host::directory::boot_index_feeder::Intents;
use crate::host::discovery::DiscoveryService;
use crate::host::logs::Logs;
use crate::host::status::metrics::HostMetrics;
use crate::image::Library;
use crate::live::Live;

/// What the sessions work with. Cheap to clone.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    client: Client,
    index: HostIndex,
    intents: Intents,
    tokens: Arc<BootTokens>,
    library: Library,
    logs: Logs,
    meter: ProgressRate,
    discovery: OnceLock<DiscoveryService>,
    downloads: DownloadScheduler,
    limits: RequestLimits,
    metrics: OnceLock<HostMetrics>,
    neighbours: OnceLock<Neighbours>,
    networks: OnceLock<Live<Vec<SiteNetwork>>>,
    drives: step_payload::Drives,
}

impl Sessions {
    /// `logs` is where nodes' logs are kept; chunks of images wait for their permits in `downloads`.
    pub fn new(
        client: Client,
        index: HostIndex,
        intents: Intents,
        tokens: Arc<BootTokens>,
        library: Library,
        logs: Logs,
        downloads: DownloadScheduler,
    ) -> Self {
        let (meter, discovery, metrics) = (ProgressRate::default(), OnceLock::new(), OnceLock::new());
        let (limits, neighbours) = (RequestLimits::default(), OnceLock::new());
        Self(Arc::new(Inner {
            client,
            index,
            intents,
            tokens,
            library,
            logs,
            meter,
            discovery,
            downloads,
            limits,
            metrics,
            neighbours,
            networks: OnceLock::new(),
            drives: step_payload::Drives::default(),
        }))
    }

    /// Counts in these.
    #[must_use]
    pub fn with_metrics(self, metrics: HostMetrics) -> Self {
        self.0.metrics.set(metrics).ok();
        self
    }

    fn metrics(&self) -> &HostMetrics {
        self.0.metrics.get_or_init(HostMetrics::default)
    }

    /// Looks which network card answers where a boot's token was given to.
    #[must_use]
    pub fn with_neighbours(self, neighbours: Neighbours) -> Self {
        self.0.neighbours.set(neighbours).ok();
        self
    }

    /// Notes which of these networks a machine calls from.
    #[must_use]
    pub fn with_networks(self, networks: impl Into<Live<Vec<SiteNetwork>>>) -> Self {
        self.0.networks.set(networks.into()).ok();
        self
    }

    /// Also takes the reports of machines that no host has.
    #[must_use]
    pub fn with_discovery(self, discovery: DiscoveryService) -> Self {
        self.0.discovery.set(discovery).ok();
        self
    }

    /// Everything under `/agent/v1`. Expects the peer's address as [`Peer`](crate::apiserver::tls::Peer).
    pub fn router(self) -> Router {
        routes::router(self)
    }

    fn api(&self, namespace: &str) -> Api<BootIntent> {
        Api::namespaced(self.0.client.clone(), namespace)
    }
}

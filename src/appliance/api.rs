//! The API's port: objects, and the calls of agents.

use std::sync::Arc;

use axum::Router;
use futures::FutureExt;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::early;
use super::objects::{ObjectsPlace, ObjectsServer};
use super::shared::SharedServices;
use crate::apiserver::audit::Audit;
use crate::apiserver::tls::{self, Callers, Limits};
use crate::boot;
use crate::config::Config;
use crate::host::agent_api::Sessions;
use crate::host::discovery::DiscoveryService;
use crate::module::Service;
use crate::pki::Pki;
use crate::store::Store;

/// The calls of agents.
pub(super) fn agents(
    config: &Config,
    store: &Store,
    shared: &SharedServices,
    client: &Client,
) -> anyhow::Result<Router> {
    let index = &shared.directory.index;
    let sessions = Sessions::new(
        client.clone(),
        index.clone(),
        shared.directory.intents.clone(),
        shared.tokens.clone(),
        shared.library.clone(),
        shared.logs.clone(),
        shared.downloads.clone(),
    )
    .with_discovery(DiscoveryService::new(client.clone(), index.clone(), config.discovery.clone(), store)?)
    .with_metrics(shared.metrics.clone())
    .with_neighbours(boot::neighbour::kernel(shared.site.checked.clone()))
    .with_networks(shared.site.homes.clone());
    // An agent must not hear that its host is gone, only because the hosts are not listed yet.
    Ok(early::once(shared.directory.ready.clone(), sessions.router()))
}

/// Who answers on the API's port, with so many connections at once.
pub(super) fn service(
    listener: TcpListener,
    (config, pki, shared): (&Config, &Pki, &SharedServices),
    objects: &ObjectsServer,
    agents: Router,
    connections: usize,
    stop: CancellationToken,
) -> anyhow::Result<Service> {
    let limits = Limits { connections, per_address: config.api.connections_per_address.get(), ..Limits::default() };
    let audit = match &objects.server {
        ObjectsPlace::Embedded { audit, .. } => Some(audit),
        ObjectsPlace::External(_) => None,
    };
    let refused = audit.map(Audit::refused_certificates).unwrap_or_else(|| Arc::new(|_, _| {}));
    let callers = Callers { ranks: shared.ranks.clone(), refused, meters: shared.connections.clone() };
    let router = objects.router.clone().merge(agents);
    let serve = tls::serve_knowing(listener, pki.server_config()?, router, stop, limits, callers);
    Ok(("API", serve.map(|ended| ended.map_err(Into::into)).boxed()))
}

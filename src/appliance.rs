//! `slipway serve`: builds every service from the configuration, runs them, and shuts them down in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::api::Kind;
use crate::apiserver;
use crate::apiserver::audit::Audit;
use crate::backup;
use crate::boot;
use crate::config::Config;
use crate::descriptors;
use crate::engine::Fence;
use crate::log::{LevelHandle, Ration};
use crate::module::{Acting, Life, RunningLife, Service, service};
use crate::modules::{LiveSettings, kinds};
use crate::pki::Pki;
use crate::store::{self, Store, StoreOptions};

mod acting;
mod addresses;
mod administrator;
mod api;
pub mod checks;
mod early;
mod edge;
mod objects;
mod ownership;
mod ranks;
mod reload;
mod service_manager;
mod shared;
mod signals;

pub use addresses::{certificate_names, endpoint};
pub use administrator::{authority, kubeconfig, local_kubeconfig};

use early::LateServices;
use edge::{Edge, MachineEdge};
use objects::{Foundation, ObjectsPlace, ObjectsServer};
use reload::Reload;
use shared::{Opened, SharedServices};
use signals::ApplianceSignals;

/// Changes kept for watches that come back, for each resource.
const HISTORY: usize = 10_000;
/// How long services may take to end.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(20);

/// Makes ring the process's TLS provider. Needed once, before anything speaks TLS.
pub fn install_tls_provider() {
    // A second call finds it done.
    rustls::crypto::ring::default_provider().install_default().ok();
}

/// What rules the log of a running appliance.
#[derive(Clone)]
pub struct LogControl {
    /// How many lines of whom.
    pub ration: Ration,
    /// Which lines; none where the configuration does not say it.
    pub level: Option<LevelHandle>,
}

/// Runs the appliance until SIGTERM or SIGINT, or until a part of it fails.
pub async fn run(config: Config, log: LogControl) -> anyhow::Result<()> {
    install_tls_provider();
    let mut signals = ApplianceSignals::install()?;
    let most = descriptors::DescriptorShares { api: apiserver::tls::CONNECTIONS_MAX, boot: boot::MAX_CONNECTIONS };
    let shares = descriptors::share(descriptors::raise()?, most)?;
    // A third of the work of a start, and it needs nothing of what is opened meanwhile.
    let kinds = spawn_blocking(kinds);
    let (config, (pki, store)) = {
        let mut opening = spawn_blocking(move || open(&config).map(|opened| (config, opened)));
        tokio::select! {
            opened = &mut opening => opened??,
            signal = signals.end() => {
                // What is half open is closed again.
                if let Ok(Ok(Ok((_, (_, store))))) = tokio::time::timeout(SHUTDOWN_DEADLINE, opening).await {
                    store.close().await;
                }
                warn!(%signal, "stopped before it was ready");
                return Ok(());
            }
        }
    };
    let shutdown = CancellationToken::new();
    tokio::spawn(service_manager::keep_alive(shutdown.clone()));
    let outcome = serve(&config, &pki, &store, PreparedStart { kinds, shares, log }, &mut signals, &shutdown).await;
    shutdown.cancel();
    service_manager::stopping();
    store.close().await;
    info!("the appliance has stopped");
    outcome
}

/// Keys and database. Takes seconds where the database is large.
fn open(config: &Config) -> anyhow::Result<(Pki, Store)> {
    ownership::check(&config.data_dir)?;
    let folder = &config.data_dir.0;
    store::make_private_folder(folder).with_context(|| format!("data_dir {}", folder.display()))?;
    backup::restore::refuse_unfinished(folder)?;
    let pki = Pki::open(&config.data_dir.pki(), &certificate_names(config))?;
    Ok((pki, Store::open(store_options(config))?))
}

/// How the appliance of this configuration opens its store.
pub fn store_options(config: &Config) -> StoreOptions {
    let key_file = config.data_dir.pki().join("store.key");
    StoreOptions { path: config.data_dir.db(), key_file, history: HISTORY }
}

/// What was made ready before keys and database were opened.
struct PreparedStart {
    kinds: JoinHandle<Vec<Kind>>,
    /// Connections that each listener may have.
    shares: descriptors::DescriptorShares,
    log: LogControl,
}

/// A service: what it is called, and how it ended.
type ServiceEnd = (&'static str, anyhow::Result<()>);

async fn serve(
    config: &Config,
    pki: &Pki,
    store: &Store,
    prepared: PreparedStart,
    signals: &mut ApplianceSignals,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let mut services = JoinSet::<ServiceEnd>::new();
    let begun = tokio::select! {
        begun = begin(config, pki, store, prepared, &mut services, shutdown) => Some(begun),
        signal = signals.end() => {
            warn!(%signal, "stopped before it was ready");
            None
        }
    };
    let (audit, ended) = match begun {
        None => (None, Ok(())),
        Some(Err(error)) => (None, Err(error)),
        Some(Ok(EarlyServices { audit, rest, reload })) => {
            signals.reload_with(reload);
            let ended = match rest.when_listed(&mut services, store, signals).await {
                Ok(true) => supervise(&mut services, store, signals).await,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            (audit, ended)
        }
    };
    shutdown.cancel();
    let all = async { while services.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_DEADLINE, all).await.is_err() {
        warn!("some services did not end in time: they were cut off");
    }
    if let Some(audit) = audit {
        audit.close().await;
    }
    ended
}

/// What is begun before any host is known.
struct EarlyServices {
    /// Closed after all services.
    audit: Option<Audit>,
    /// What is still to be started.
    rest: LateServices,
    /// What SIGHUP does.
    reload: Reload,
}

/// Starts what need not know any host: the API above all.
async fn begin(
    config: &Config,
    pki: &Pki,
    store: &Store,
    prepared: PreparedStart,
    services: &mut JoinSet<ServiceEnd>,
    shutdown: &CancellationToken,
) -> anyhow::Result<EarlyServices> {
    let PreparedStart { kinds, shares, log: LogControl { ration: log, level } } = prepared;
    let live = LiveSettings::of(config)?;
    if !config.networks.is_empty() {
        boot::neighbour_table::make_room(config.networks.iter().map(|network| u64::from(network.subnet.size())).sum())
            .await;
    }
    let api_listener = listen(config.api.listen, "API", "api.listen").await?;
    let sockets = MachineEdge::bind(config).await?;
    let Opened { shared, watches, mut lives } =
        SharedServices::open(config, pki, store, live.clone(), sockets.files.clone())?;
    let shared = Arc::new(shared);
    lives.push(Box::new(Edge::new(sockets, Arc::clone(&shared), config, pki, shares.boot)?));
    let lives: Arc<[Box<dyn Life>]> = lives.into();
    log.ranked_by(shared.ranks.clone());

    if config.engine.kubeconfig.is_some() {
        // That API server, or its kinds, may not be there for hours, and whoever starts the service would wait for that.
        service_manager::ready();
    }
    let (tell, started) = watch::channel(false);
    let foundation = Foundation { config, pki, store, shared: &shared, lives: &lives, started, stop: shutdown };
    let objects = ObjectsServer::open(kinds, foundation).await?;
    let (tasks, client) = (shared.tasks.clone(), objects.client.clone());
    let (store, in_memory, stop) = (store.clone(), objects.in_memory(), shutdown.clone());
    let running = RunningLife { client: client.clone(), tasks, store, in_memory, stop };

    spawn(services, service("watches", watches.run(client.clone(), shutdown.clone())));
    spawn(services, service("log", log.report(shutdown.clone())));
    for life in lives.iter() {
        life.run(&running)?.into_iter().for_each(|service| spawn(services, service));
    }
    let agents = api::agents(config, &running.store, &shared, &client)?;
    let of = (config, pki, &*shared);
    spawn(services, api::service(api_listener, of, &objects, agents, shares.api, shutdown.clone())?);
    let (api, audit, external) = match objects.server {
        ObjectsPlace::Embedded { api, audit } => (Some(api), Some(audit), None),
        ObjectsPlace::External(external) => (None, None, Some(*external)),
    };
    if let Some(api) = api.clone() {
        spawn(services, service("API upkeep", async move { api.run().await }));
    }

    let listed = shared.directory.ready.clone();
    let parts = acting::ActingParts { engine: config.engine.clone(), lives, tasks: running.tasks.clone() };
    let reload = Reload::new(config, level, live, api);
    let config = config.clone();
    let start = move |services: &mut JoinSet<ServiceEnd>| {
        parts.serve(services, &running)?;
        let RunningLife { client, tasks, store, stop, .. } = running;
        match external {
            Some(external) => {
                let lead = parts.run_while_leading(external, stop);
                spawn(services, ("leader election", Box::pin(lead)));
            }
            None => parts.act(services, &Acting { client, fence: Fence::open(), tasks, store: Some(store), stop })?,
        }
        info!(api = %config.api.listen, boot = %config.boot.listen, tftp = %config.boot.tftp, networks = config.networks.len(), "the appliance is ready");
        service_manager::ready();
        Ok(())
    };
    Ok(EarlyServices { audit, rest: LateServices { listed, start: Box::new(start), started: tell }, reload })
}

/// Waits for a signal, a service that ends, or a store that cannot write.
async fn supervise(
    services: &mut JoinSet<ServiceEnd>,
    store: &Store,
    signals: &mut ApplianceSignals,
) -> anyhow::Result<()> {
    tokio::select! {
        _ = signals.end() => Ok(()),
        reason = store.failed() => bail!("the store cannot write any more: {reason}; what was acknowledged is safe, and a restart is needed"),
        ended = services.join_next() => match ended {
            Some(Ok((name, Ok(())))) => bail!("{name} ended by itself"),
            Some(Ok((name, Err(error)))) => Err(error.context(name)),
            Some(Err(panic)) => {
                error!(%panic, "a service panicked");
                bail!("a service panicked: {panic}")
            }
            None => bail!("no service runs"),
        },
    }
}

fn spawn(services: &mut JoinSet<ServiceEnd>, (name, run): Service) {
    services.spawn(async move { (name, run.await) });
}

async fn listen(address: SocketAddr, what: &str, key: &str) -> anyhow::Result<TcpListener> {
    let told = |error| {
        anyhow::anyhow!(
            "{what} cannot listen on {address}: {error}{}",
            descriptors::port_hint(&error, "TCP", &address, key)
        )
    };
    TcpListener::bind(address).await.map_err(told)
}

//! `slipway serve`: builds every service from the configuration, runs them, and shuts them down in order.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::api::{Kind, MacAddress, StoragePolicy};
use crate::apiserver::{self, ApiServer};
use crate::backup;
use crate::boot::{self, HostIndex, Tokens};
use crate::cluster::workload::Workloads;
use crate::config::Config;
use crate::engine::{External, Fence};
use crate::host::agent_api::Sessions;
use crate::host::directory::Directory;
use crate::host::discovery::Discovery;
use crate::host::logs::Logs;
use crate::host::logs::retention;
use crate::host::media::{HostNetworkData, Media, ToMachines};
use crate::host::status::boot_refusals::BootRefusals;
use crate::host::status::metrics::Metrics;
use crate::image::{self, Library};
use crate::live::Live;
use crate::log::{LevelHandle, Ration};
use crate::metrics::Meters;
use crate::module::{Acting, Life};
use crate::modules::{self, House, LiveSettings, acted_on, declared, kinds};
use crate::pki::Pki;
use crate::runtime::{self, Tasks, Watches};
use crate::store::{self, Store, StoreOptions};
use crate::{descriptors, dhcp, tftp};

mod acting;
mod administrator;
pub mod checks;
mod early;
mod ownership;
mod ranks;
mod reload;
mod service_manager;
mod signals;

pub use administrator::{authority, kubeconfig, local_kubeconfig};

use early::Rest;
use reload::Reload;
use signals::Signals;

/// Changes kept for watches that come back, for each resource.
const HISTORY: usize = 10_000;
/// How often it is looked whether client certificates were revoked.
const SERIES_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether the server's certificate names the addresses on all networks.
const NAMES_EVERY: Duration = Duration::from_secs(2);
/// How long services may take to end.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(20);

/// Makes ring the process's TLS provider. Needed once, before anything speaks TLS.
pub fn install_tls_provider() {
    // A second call finds it done.
    rustls::crypto::ring::default_provider().install_default().ok();
}

/// The API's address as others reach it: the first of `api.names`, else the address that it listens on, else the
/// first network's, else this host.
pub fn endpoint(config: &Config) -> String {
    let port = config.api.listen.port();
    let host = match config.api.names.first() {
        Some(name) => name.clone(),
        None if !config.api.listen.ip().is_unspecified() => config.api.listen.ip().to_string(),
        None => {
            let own = config.networks.first().and_then(own_address);
            own.map_or_else(|| "127.0.0.1".to_owned(), |address| address.to_string())
        }
    };
    if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
}

/// This appliance's address on a network.
fn own_address(network: &crate::config::NetworkConfig) -> Option<Ipv4Addr> {
    network.server.or_else(|| dhcp::interface_address(&network.interface, network.subnet))
}

/// This appliance's address on the first network that it serves.
fn first_own_address(config: &Config) -> Option<IpAddr> {
    let served = config.networks.iter().filter(|network| network.mode != crate::config::NetworkMode::Off);
    served.filter_map(own_address).next().map(IpAddr::V4)
}

/// The address that a listener is bound to, if it is one.
fn specific(listen: SocketAddr) -> Option<IpAddr> {
    Some(listen.ip()).filter(|ip| !ip.is_unspecified())
}

/// Everything that the server's certificate must name.
pub fn certificate_names(config: &Config) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    if let Ok(name) = nix::unistd::gethostname() {
        names.push(name.to_string_lossy().into_owned());
    }
    names.extend(config.api.names.iter().cloned());
    names.extend(config.boot.advertise.map(|address| address.to_string()));
    names.extend(config.networks.iter().filter_map(own_address).map(|address| address.to_string()));
    let interfaces = dhcp::interfaces().unwrap_or_default();
    names.extend(interfaces.values().flat_map(|i| i.addresses.iter()).map(ToString::to_string));
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| !name.is_empty() && seen.insert(name.clone()));
    names
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
    let mut signals = Signals::install()?;
    let most = descriptors::Shares { api: apiserver::tls::CONNECTIONS_MAX, boot: boot::MAX_CONNECTIONS };
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
    let outcome = serve(&config, &pki, &store, Prepared { kinds, shares, log }, &mut signals, &shutdown).await;
    shutdown.cancel();
    service_manager::stopping();
    store.close().await;
    info!("stopped");
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
struct Prepared {
    kinds: JoinHandle<Vec<Kind>>,
    /// Connections that each listener may have.
    shares: descriptors::Shares,
    log: LogControl,
}

/// A service: what it is called, and how it ended.
type Ended = (&'static str, anyhow::Result<()>);

async fn serve(
    config: &Config,
    pki: &Pki,
    store: &Store,
    prepared: Prepared,
    signals: &mut Signals,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let mut services = JoinSet::<Ended>::new();
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
        Some(Ok((audit, rest, reload))) => {
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

/// Starts what need not know any host: the API above all. Returns the audit log, which is closed after all services, what is
/// still to be started, and what SIGHUP does.
async fn begin(
    config: &Config,
    pki: &Pki,
    store: &Store,
    prepared: Prepared,
    services: &mut JoinSet<Ended>,
    shutdown: &CancellationToken,
) -> anyhow::Result<(Option<apiserver::audit::Audit>, Rest, Reload)> {
    let Prepared { kinds, shares, log: LogControl { ration: log, level } } = prepared;
    let live = LiveSettings::of(config)?;
    if !config.networks.is_empty() {
        boot::neighbour_table::make_room(config.networks.iter().map(|network| u64::from(network.subnet.size())).sum())
            .await;
    }
    let api_listener = listen(config.api.listen, "API", "api.listen").await?;
    let boot_listener = listen(config.boot.listen, "boot HTTP", "boot.listen").await?;
    let own = config.data_dir.boot();
    let folder = boot::boot_folder(&own, &config.boot.packaged_files);
    let files = boot::BootFiles::new(folder);
    if files.has_ramdisk() {
        info!(folder = %folder.display(), "machines boot the ramdisk of this folder");
    } else {
        warn!(
            folder = %folder.display(),
            "there is no kernel and ramdisk yet: make them with `slipway ramdisk build`, machines cannot be inspected before"
        );
    }
    let tftp = tftp::Server::bind(config.boot.tftp, files.clone())?;
    let library = Library::open(config.data_dir.images(), image_sources(config, &live))
        .with_context(|| format!("image library {}", config.data_dir.images().display()))?;
    let published = image::publish::Published::default();
    let tokens = Arc::new(Tokens::open(&config.data_dir.pki())?);
    let mut watches = Watches::default();
    let tasks = Tasks::default();
    let directory = Directory::new(&mut watches);
    let Directory { index, intents, ready: listed, .. } = directory.clone();
    let (tell, started) = watch::channel(false);
    let logs = Logs::new(config.data_dir.logs());
    let log_upkeep = retention::keep(&mut watches, index.clone(), logs.clone(), tasks.task("log-retention"));
    let metrics = Metrics::default();
    let refusals = BootRefusals::default();
    // Until the networks of the API are known.
    let own: Live<Option<IpAddr>> = first_own_address(config).into();
    let media = media(config, &tokens, &files, own.clone());
    let leases = leases(config, store)?;
    let networks = dhcp::Networks::new(&config.networks, leases.clone(), &mut watches);
    let place = networks.site().clone();
    let reservations = dhcp::Reservations::new(networks, &mut watches);
    let sources = image_sources(config, &live);
    let cards = place.checked.clone();
    let lives: Arc<[Box<dyn Life>]> = modules::begin(&mut House {
        watches: &mut watches,
        tasks: &tasks,
        config,
        live: &live,
        directory: &directory,
        logs: &logs,
        media: &media,
        metrics: &metrics,
        refusals: &refusals,
        library: &library,
        published: &published,
        sources: &sources,
        leases: &leases,
        reservations: &reservations,
        workloads: &Workloads::new(live.cluster_allow.clone()),
        hosts: None,
        cards: Arc::new(move || boot::neighbour::cached(cards.clone())),
    })
    .into();
    let token = || shutdown.clone();
    if config.engine.kubeconfig.is_some() {
        // That API server, or its kinds, may not be there for hours, and whoever starts the service would wait for that.
        service_manager::ready();
    }
    let external = External::open(&config.engine).await?;
    let copies = backup::schedule::Meters::default();
    let downloads = boot::DownloadScheduler::default();
    let boot_metrics = boot::Metrics::new(downloads.clone());
    let mut views = HashSet::new();
    let mut audit = None;
    let mut embedded_api = None;
    let counted: Meters = {
        let (lives, tftp, boot, copies) = (lives.clone(), tftp.metrics(), boot_metrics.clone(), copies.clone());
        Arc::new(move |registry| {
            lives.iter().for_each(|life| life.register(registry));
            runtime::register(registry);
            tftp.register(registry);
            boot.register(registry);
            copies.register(registry);
        })
    };
    let (client, api_router) = match &external {
        Some(external) => {
            info!(api = external.endpoint(), "the objects are in another API server: the embedded one is off");
            external.wait_for_kinds(&acted_on()).await;
            (external.client(), external.router(started.clone(), counted))
        }
        None => {
            let api = embedded(config, pki, store, &kinds.await?, started.clone(), shutdown).await?;
            modules::bounded().for_each(|(kind, rule)| api.add_admission(&kind, rule));
            for life in lives.iter() {
                life.admission().into_iter().for_each(|(kind, rules)| api.add_admission(kind, rules));
                life.views().into_iter().for_each(|(kind, name, view)| api.add_view(kind, name, view));
                life.uploads().into_iter().for_each(|(kind, name, upload)| api.add_upload(kind, name, upload));
                life.faces().into_iter().for_each(|(path, face)| api.add_face(path, face));
            }
            api.add_metrics(counted);
            api.set_tasks(tasks.clone());
            api.set_webhooks(live.webhooks.clone());
            let log = apiserver::audit::Audit::start(apiserver::audit::AuditOptions {
                path: config.data_dir.logs().join("audit.log"),
                max_bytes: config.audit.max_size_mb * 1_000_000,
                max_files: config.audit.max_files,
            })
            .context("audit log")?;
            api.set_audit(log.clone());
            for kind in declared().filter(|kind| kind.memory() > 0) {
                store.add_weight(&kind.storage(), kind.memory());
            }
            for kind in declared().filter(|kind| kind.is_kept_parsed()) {
                store.weigh_parsed(&kind.storage());
            }
            let in_memory = |kind: &&Arc<apiserver::Resource>| kind.policy == StoragePolicy::View;
            views.extend(api.registry().stored().filter(in_memory).map(|kind| kind.storage.to_string()));
            api.set_backup(backup::page::page(backup_source(config, store, &views), token()));
            audit = Some(log);
            embedded_api = Some(api.clone());
            let (series, look) = (pki.authority().series().clone(), tasks.task("client-certificates"));
            let stop = token();
            let follow = async move { look.every(SERIES_EVERY, &stop, || series.look()).await };
            spawn(services, "client certificates", follow);
            let made = (api.client(), api.router());
            spawn(services, "API upkeep", async move { api.run().await });
            made
        }
    };

    spawn(services, "watches", watches.run(client.clone(), token()));
    spawn(services, "reservations in force", reservations.clone().run(token()));

    let (certificate, look) = (pki.server_certificate().clone(), tasks.task("server-certificate"));
    let (stop, site, first) = (token(), place.clone(), own.clone());
    let follow = async move {
        look.every(NAMES_EVERY, &stop, || {
            let (certificate, addresses) = (certificate.clone(), site.own_addresses());
            first.set(addresses.first().copied());
            async move { certificate.set_further(addresses).map(drop) }
        })
        .await;
    };
    spawn(services, "server certificate", follow);

    spawn(services, "log", log.clone().report(token()));
    let sessions = Sessions::new(
        client.clone(),
        index.clone(),
        intents,
        tokens.clone(),
        library.clone(),
        logs.clone(),
        downloads.clone(),
    )
    .with_discovery(Discovery::new(client.clone(), index.clone(), config.discovery.clone(), store)?)
    .with_metrics(metrics.clone())
    .with_neighbours(boot::neighbour::kernel(place.checked.clone()))
    .with_networks(place.homes.clone());
    // An agent must not hear that its host is gone, only because the hosts are not listed yet.
    let router = api_router.merge(early::once(listed.clone(), sessions.router()));
    spawn(services, "logs", log_upkeep);

    if let Some(folder) = config.backup.folder.clone() {
        let source = backup_source(config, store, &views);
        let task = tasks.task("backup");
        let run = backup::schedule::run(config.backup.clone(), folder, source, copies, task, token());
        spawn(services, "backup", run);
    }

    let ranks = ranks::ranks(config, &place, &leases, &index, listed.clone());
    log.ranked_by(ranks.clone());

    let limits = apiserver::tls::Limits {
        connections: shares.api,
        per_address: config.api.connections_per_address.get(),
        ..apiserver::tls::Limits::default()
    };
    let refused = audit.as_ref().map(apiserver::audit::Audit::refused_certificates);
    let refused = refused.unwrap_or_else(|| Arc::new(|_, _| {}));
    let callers = apiserver::tls::Callers { ranks: ranks.clone(), refused };
    let api = apiserver::tls::serve_knowing(api_listener, pki.server_config()?, router, token(), limits, callers);
    services.spawn(named("API", api));

    let site = boot::BootServerConfig::new(config.api.listen.port(), pki.ca_pem(), &config.boot.kernel_args)?
        .with_networks(boot_networks(config, &place, &leases, &index))
        .with_network_data(Arc::new(HostNetworkData(client.clone())))
        .telling(Arc::new(move |host, reason| refusals.take(host, reason)))
        .with_addresses(config.boot.advertise.or(specific(config.api.listen)), own);
    let router = boot::router(site, index.clone(), tokens, files, downloads.clone())
        .merge(boot::live::router(index.clone(), library.clone(), ranks.clone()))
        .merge(boot::published::router(published, library.clone(), downloads, ranks.clone()));
    let parts = acting::Parts { engine: config.engine.clone(), lives, tasks: tasks.clone() };
    let reload = Reload::new(config, level, live, embedded_api);
    let (config, store, shutdown) = (config.clone(), store.clone(), shutdown.clone());
    let start = move |services: &mut JoinSet<Ended>| {
        let boot = boot::serve(boot_listener, router, ranks.clone(), shares.boot, boot_metrics, shutdown.clone());
        services.spawn(named("boot HTTP", boot));
        services.spawn(named("TFTP", tftp.ranked_by(ranks).run(shutdown.clone())));
        match external {
            Some(external) => {
                services.spawn(named("leader election", parts.run_while_leading(external, shutdown)));
            }
            None => parts
                .start(services, &Acting { client, fence: Fence::open(), tasks, store: Some(store), stop: shutdown })?,
        }
        info!(api = %config.api.listen, boot = %config.boot.listen, tftp = %config.boot.tftp, networks = config.networks.len(), "ready");
        service_manager::ready();
        Ok(())
    };
    Ok((audit, Rest { listed, start: Box::new(start), started: tell }, reload))
}

/// What machines boot without the network.
fn media(config: &Config, tokens: &Arc<Tokens>, files: &boot::BootFiles, own: Live<Option<IpAddr>>) -> Media {
    Media {
        tokens: tokens.clone(),
        files: files.clone(),
        port: config.boot.listen.port(),
        advertise: config.boot.advertise_to_bmcs.or(specific(config.boot.listen)),
        machines: ToMachines { advertise: config.boot.advertise.or(specific(config.boot.listen)), own },
    }
}

/// The addresses that were given.
fn leases(config: &Config, store: &Store) -> anyhow::Result<dhcp::Leases> {
    if config.networks.is_empty() {
        warn!("no [[network]] is configured: DHCP answers nobody where no Network object says otherwise");
    }
    let leases = dhcp::Leases::load(store, &config.networks)?;
    // On another API server another appliance may have given addresses before.
    Ok(if config.engine.kubeconfig.is_none() { leases.alone() } else { leases })
}

/// What a backup is taken of; `views` are the resources that are in memory only.
fn backup_source(config: &Config, store: &Store, views: &HashSet<String>) -> backup::take::Source {
    backup::take::Source::new(store.clone(), config.data_dir.pki(), &config.text, views.clone())
}

/// What boot HTTP knows of the networks. On another API server another appliance may give the addresses.
fn boot_networks(config: &Config, site: &dhcp::Site, leases: &dhcp::Leases, hosts: &HostIndex) -> boot::BootNetworks {
    let explain: Arc<dyn Fn(MacAddress) -> String + Send + Sync> = {
        let (hosts, leases) = (hosts.clone(), leases.clone());
        Arc::new(move |mac| leases.explain(mac, &hosts))
    };
    let leases = Some(leases).filter(|_| config.engine.kubeconfig.is_none()).cloned();
    let networks = site.networks.clone();
    boot::BootNetworks {
        discovery: site.discovery.clone(),
        lease_owner: Some(Arc::new(move |address| dhcp::lease_owner(&networks.get(), leases.as_ref(), address))),
        neighbours: Some(boot::neighbour::kernel(site.checked.clone())),
        site: site.homes.clone(),
        dhcp: Some(explain),
    }
}

/// Where images may come from.
fn image_sources(config: &Config, live: &LiveSettings) -> image::Sources {
    let image = config.image.clone();
    image::Sources {
        ca_file: image.ca_file,
        allow: live.image_allow.clone(),
        file_folder: image.file_folder,
        data_dir: Some(config.data_dir.0.clone()),
        max_unpacked: image.max_unpacked_gib << 30,
        max_library: image.max_library_gib.map_or(u64::MAX, |most| most << 30),
        max_chunks: image::MAX_LIBRARY_CHUNKS,
    }
}

/// The embedded API server.
async fn embedded(
    config: &Config,
    pki: &Pki,
    store: &Store,
    kinds: &[Kind],
    started: watch::Receiver<bool>,
    shutdown: &CancellationToken,
) -> anyhow::Result<ApiServer> {
    let access = apiserver::auth::AuthOptions {
        token_key: Some(apiserver::auth::TokenKey::from_pkcs8(pki.token_key())?),
        ca_pem: pki.ca_pem().to_owned(),
        series: Some(pki.authority().series().clone()),
    };
    let api = ApiServer::with_auth(store.clone(), kinds, access, shutdown.clone()).await?;
    api.keep_events(config.api.event_lifetime.0);
    let synced = move || if *started.borrow() { Ok(()) } else { Err("hosts are not listed yet".to_owned()) };
    api.add_check("informer-sync", apiserver::health::Scope::Readiness, Arc::new(synced));
    Ok(api)
}

/// Waits for a signal, a service that ends, or a store that cannot write.
async fn supervise(services: &mut JoinSet<Ended>, store: &Store, signals: &mut Signals) -> anyhow::Result<()> {
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

fn spawn(services: &mut JoinSet<Ended>, name: &'static str, service: impl Future<Output = ()> + Send + 'static) {
    services.spawn(async move {
        service.await;
        (name, Ok(()))
    });
}

async fn named<E: Into<anyhow::Error>>(name: &'static str, service: impl Future<Output = Result<(), E>>) -> Ended {
    (name, service.await.map_err(Into::into))
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

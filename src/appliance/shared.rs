//! What lives share: all that configuration, keys and database give before any API server is asked.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use tracing::warn;

use super::addresses::{first_own_address, specific};
use super::ranks::ranks;
use crate::apiserver::tls::ConnectionMeters;
use crate::boot::{BootFiles, BootTokens, DownloadScheduler};
use crate::cluster::workload::Workloads;
use crate::config::Config;
use crate::dhcp;
use crate::host::directory::Directory;
use crate::host::logs::Logs;
use crate::host::media::{Media, ToMachines};
use crate::host::status::boot_refusals::BootRefusals;
use crate::host::status::metrics::HostMetrics;
use crate::image::publish::Published;
use crate::image::{self, Library};
use crate::live::Live;
use crate::module::Life;
use crate::modules::{self, House, LiveSettings};
use crate::pki::Pki;
use crate::ration::Ranks;
use crate::runtime::{Tasks, Watches};
use crate::store::Store;

/// What lives and listeners share.
pub(super) struct SharedServices {
    pub live: LiveSettings,
    pub tasks: Tasks,
    pub directory: Directory,
    /// Tokens of boots and sessions.
    pub tokens: Arc<BootTokens>,
    /// What every machine boots.
    pub files: BootFiles,
    pub logs: Logs,
    /// What hosts go through.
    pub metrics: HostMetrics,
    /// Boots that were refused to their machines.
    pub refusals: BootRefusals,
    pub library: Library,
    /// What of it is served without a login.
    pub published: Published,
    /// Whose turn it is to be sent something large.
    pub downloads: DownloadScheduler,
    pub leases: dhcp::Leases,
    pub site: dhcp::Site,
    /// This appliance's address on the first network; that of the configuration until the networks of the API are known.
    pub own: Live<Option<IpAddr>>,
    /// Connections to the API's port, as they are counted.
    pub connections: ConnectionMeters,
    /// Who goes first where not everybody can be served.
    pub ranks: Ranks,
}

/// What is there once all is open.
pub(super) struct Opened {
    pub shared: SharedServices,
    /// To be run.
    pub watches: Watches,
    pub lives: Vec<Box<dyn Life>>,
}

impl SharedServices {
    /// Opens what is on disk, and makes the lives with it. What they know comes by the watches, once these run.
    ///
    /// # Errors
    /// When something on disk cannot be used.
    pub(super) fn open(
        config: &Config,
        pki: &Pki,
        store: &Store,
        live: LiveSettings,
        files: BootFiles,
    ) -> anyhow::Result<Opened> {
        let sources = image_sources(config, &live);
        let library = Library::open(config.data_dir.images(), sources.clone())
            .with_context(|| format!("image library {}", config.data_dir.images().display()))?;
        let tokens = Arc::new(BootTokens::open(&config.data_dir.pki())?);
        let mut watches = Watches::default();
        let directory = Directory::new(&mut watches);
        let leases = leases(config, store)?;
        let networks = dhcp::NetworkDirectory::new(&config.networks, leases.clone(), &mut watches);
        let site = networks.site().clone();
        let reservations = dhcp::Reservations::new(networks, &mut watches);
        let ranks = ranks(config, &site, &leases, &directory.index, directory.ready.clone());
        let shared = Self {
            tasks: Tasks::default(),
            tokens,
            files,
            logs: Logs::new(config.data_dir.logs()),
            metrics: HostMetrics::default(),
            refusals: BootRefusals::default(),
            library,
            published: Published::default(),
            downloads: DownloadScheduler::default(),
            connections: ConnectionMeters::default(),
            own: first_own_address(config).into(),
            live,
            directory,
            leases,
            site,
            ranks,
        };
        let lives = modules::begin(&mut House {
            watches: &mut watches,
            tasks: &shared.tasks,
            config,
            pki,
            store,
            live: &shared.live,
            directory: &shared.directory,
            logs: &shared.logs,
            media: &shared.media(config),
            metrics: &shared.metrics,
            refusals: &shared.refusals,
            library: &shared.library,
            published: &shared.published,
            sources: &sources,
            leases: &shared.leases,
            reservations: &reservations,
            site: &shared.site,
            own: &shared.own,
            workloads: &Workloads::new(shared.live.cluster_allow.clone()),
            hosts: None,
            releases: None,
        });
        Ok(Opened { shared, watches, lives })
    }

    /// What machines boot without the network.
    fn media(&self, config: &Config) -> Media {
        Media {
            tokens: self.tokens.clone(),
            files: self.files.clone(),
            port: config.boot.listen.port(),
            advertise: config.boot.advertise_to_bmcs.or(specific(config.boot.listen)),
            machines: ToMachines {
                advertise: config.boot.advertise.or(specific(config.boot.listen)),
                own: self.own.clone(),
            },
        }
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

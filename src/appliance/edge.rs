//! What machines ask without a login: boot HTTP and TFTP.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use futures::FutureExt;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tracing::{info, warn};

use super::addresses::specific;
use super::listen;
use super::shared::SharedServices;
use crate::api::MacAddress;
use crate::boot::{self, BootFiles, BootNetworks, BootServerConfig};
use crate::config::Config;
use crate::dhcp;
use crate::host::media::HostNetworkData;
use crate::module::{Life, RunningLife, Service};
use crate::pki::Pki;
use crate::tftp;

/// Where machines ask, and what all of them boot.
pub(super) struct MachineEdge {
    pub files: BootFiles,
    boot: TcpListener,
    tftp: tftp::TftpServer,
}

impl MachineEdge {
    /// Listens. Nobody is answered yet.
    ///
    /// # Errors
    /// When an address cannot be had.
    pub(super) async fn bind(config: &Config) -> anyhow::Result<Self> {
        let boot = listen(config.boot.listen, "boot HTTP", "boot.listen").await?;
        let own = config.data_dir.boot();
        let folder = boot::boot_folder(&own, &config.boot.packaged_files);
        let files = BootFiles::new(folder);
        if files.has_ramdisk() {
            info!(folder = %folder.display(), "machines boot the ramdisk of this folder");
        } else {
            warn!(
                folder = %folder.display(),
                "there is no kernel and ramdisk yet: make them with `slipway ramdisk build`, machines cannot be inspected before"
            );
        }
        let tftp = tftp::TftpServer::bind(config.boot.tftp, files.clone())?;
        Ok(Self { files, boot, tftp })
    }
}

/// Boot HTTP and TFTP. Both answer whether this appliance leads or not: machines ask where DHCP told them to.
pub(super) struct Edge {
    // std's lock: held to take what there is, once.
    sockets: Mutex<Option<(TcpListener, tftp::TftpServer)>>,
    site: BootServerConfig,
    shared: Arc<SharedServices>,
    /// Connections that boot HTTP may have.
    connections: usize,
    boot: boot::BootHttpMetrics,
    tftp: tftp::TftpMetrics,
}

impl Edge {
    /// # Errors
    /// When the kernel's arguments of the configuration cannot be used.
    pub(super) fn new(
        sockets: MachineEdge,
        shared: Arc<SharedServices>,
        config: &Config,
        pki: &Pki,
        connections: usize,
    ) -> anyhow::Result<Self> {
        let MachineEdge { boot, tftp, .. } = sockets;
        let refusals = shared.refusals.clone();
        let site = BootServerConfig::new(config.api.listen.port(), pki.ca_pem(), &config.boot.kernel_args)?
            .with_networks(networks(config, &shared))
            .telling(Arc::new(move |host, reason| refusals.take(host, reason)))
            .with_addresses(config.boot.advertise.or(specific(config.api.listen)), shared.own.clone());
        let tftp = tftp.ranked_by(shared.ranks.clone());
        Ok(Self {
            boot: boot::BootHttpMetrics::new(shared.downloads.clone()),
            tftp: tftp.metrics(),
            sockets: Mutex::new(Some((boot, tftp))),
            site,
            shared,
            connections,
        })
    }
}

impl Life for Edge {
    fn register(&self, registry: &mut Registry) {
        self.tftp.register(registry);
        self.boot.register(registry);
    }

    fn serve(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (listener, tftp) = sockets.context("boot HTTP and TFTP are served already")?;
        let SharedServices { directory, tokens, files, library, published, downloads, ranks, .. } = &*self.shared;
        let site = self.site.clone().with_network_data(Arc::new(HostNetworkData(running.client.clone())));
        let router = boot::router(site, directory.index.clone(), tokens.clone(), files.clone(), downloads.clone())
            .merge(boot::live::router(directory.index.clone(), library.clone(), ranks.clone()))
            .merge(boot::published::router(published.clone(), library.clone(), downloads.clone(), ranks.clone()));
        let (metrics, stop) = (self.boot.clone(), running.stop.clone());
        let boot = boot::serve(listener, router, ranks.clone(), self.connections, metrics, stop.clone());
        Ok(vec![
            ("boot HTTP", boot.map(|ended| ended.map_err(Into::into)).boxed()),
            ("TFTP", tftp.run(stop).map(|ended| ended.map_err(Into::into)).boxed()),
        ])
    }
}

/// What boot HTTP knows of the networks. On another API server another appliance may give the addresses.
fn networks(config: &Config, shared: &SharedServices) -> BootNetworks {
    let SharedServices { site, leases, directory, .. } = shared;
    let explain: Arc<dyn Fn(MacAddress) -> String + Send + Sync> = {
        let (hosts, leases) = (directory.index.clone(), leases.clone());
        Arc::new(move |mac| leases.explain(mac, &hosts))
    };
    let leases = Some(leases).filter(|_| config.engine.kubeconfig.is_none()).cloned();
    let networks = site.networks.clone();
    BootNetworks {
        discovery: site.discovery.clone(),
        lease_owner: Some(Arc::new(move |address| dhcp::lease_owner(&networks.get(), leases.as_ref(), address))),
        neighbours: Some(boot::neighbour::kernel(site.checked.clone())),
        site: site.homes.clone(),
        dhcp: Some(explain),
    }
}

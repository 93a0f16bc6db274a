//! Speaking to the appliance on this box.

use anyhow::{Context, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::appliance;
use crate::config::Config;
use crate::engine;
use crate::pki::Authority;

/// The appliance's CA. Only somebody who can read its keys can have it.
pub(super) fn authority(config: &Config) -> anyhow::Result<Authority> {
    let folder = config.data_dir.pki();
    Authority::open(&folder).with_context(|| format!("certificates in {}", folder.display()))
}

/// A kubeconfig with a new certificate for an administrator; with `revoke` all that were made before end.
pub(super) fn kubeconfig(config: &Config, server: Option<&str>, revoke: bool) -> anyhow::Result<String> {
    if let Some(file) = &config.engine.kubeconfig {
        bail!("the objects are in another API server (engine.kubeconfig): {} is the kubeconfig for it", file.display());
    }
    let folder = config.data_dir.pki();
    let authority = match revoke {
        true => Authority::revoking(&folder).with_context(|| format!("certificates in {}", folder.display()))?,
        false => authority(config)?,
    };
    let server = server.map_or_else(|| appliance::endpoint(config), str::to_owned);
    Ok(authority.kubeconfig(&server, config.api.admin_certificate.0)?)
}

/// The embedded API of the appliance on this box.
fn server(config: &Config) -> String {
    let mut listen = config.api.listen;
    if listen.ip().is_unspecified() {
        listen.set_ip([127, 0, 0, 1].into());
    }
    format!("https://{listen}")
}

/// The credentials for the objects of the appliance on this box: its administrator's, or those it has itself for the
/// API server that keeps them.
pub(super) fn credentials(config: &Config) -> anyhow::Result<(Kubeconfig, KubeConfigOptions)> {
    match engine::kubeconfig(&config.engine) {
        Some(engine) => Ok(engine?),
        None => {
            let text = kubeconfig(config, Some(&server(config)), false)?;
            Ok((Kubeconfig::from_yaml(&text)?, KubeConfigOptions::default()))
        }
    }
}

/// A client of the appliance on this box.
pub(super) async fn client(config: &Config) -> anyhow::Result<kube::Client> {
    let (kubeconfig, options) = credentials(config)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Runs a client command.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    appliance::install_tls_provider();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(Box::pin(work))
}

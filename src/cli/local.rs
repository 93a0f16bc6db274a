//! Requests to the appliance on this box.

use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::appliance::{self, local_kubeconfig};
use crate::config::Config;
use crate::engine;

/// The credentials for the objects of the appliance on this box: its administrator's, or those it has itself for the
/// API server that keeps them.
pub(super) fn credentials(config: &Config) -> anyhow::Result<(Kubeconfig, KubeConfigOptions)> {
    match engine::kubeconfig(&config.engine) {
        Some(engine) => Ok(engine?),
        None => Ok((Kubeconfig::from_yaml(&local_kubeconfig(config)?)?, KubeConfigOptions::default())),
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

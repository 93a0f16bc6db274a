//! Access for the administrator on the appliance's own box: who can read its keys may make a certificate.

use anyhow::{Context, bail};

use super::endpoint;
use crate::config::Config;
use crate::pki::Authority;

/// The appliance's CA.
///
/// # Errors
/// Its keys are not there or cannot be read.
pub fn authority(config: &Config) -> anyhow::Result<Authority> {
    let folder = config.data_dir.pki();
    Authority::open(&folder).with_context(|| format!("certificates in {}", folder.display()))
}

/// A kubeconfig with a new certificate for an administrator, for `server` or else the appliance's endpoint; with `revoke`
/// all that were made before end.
///
/// # Errors
/// The objects are in another API server, or the keys cannot be read.
pub fn kubeconfig(config: &Config, server: Option<&str>, revoke: bool) -> anyhow::Result<String> {
    if let Some(file) = &config.engine.kubeconfig {
        bail!("the objects are in another API server (engine.kubeconfig): {} is the kubeconfig for it", file.display());
    }
    let folder = config.data_dir.pki();
    let authority = match revoke {
        true => Authority::revoking(&folder).with_context(|| format!("certificates in {}", folder.display()))?,
        false => authority(config)?,
    };
    let server = server.map_or_else(|| endpoint(config), str::to_owned);
    Ok(authority.kubeconfig(&server, config.api.admin_certificate.0)?)
}

/// The same for a program on this box: it need not go out to the network to come back.
///
/// # Errors
/// As for [`kubeconfig`].
pub fn local_kubeconfig(config: &Config) -> anyhow::Result<String> {
    let mut listen = config.api.listen;
    if listen.ip().is_unspecified() {
        listen.set_ip([127, 0, 0, 1].into());
    }
    kubeconfig(config, Some(&format!("https://{listen}")), false)
}

//! Installs the controller's own chart, by the real `helm`: what a Job in a cluster does.

use std::fs::File;
use std::io::BufWriter;

use anyhow::{Context, bail};
use serde_json::Value;
use tracing::info;

use super::chart::{self, CHART_NAME};
use super::command::Helm;

/// Has the controller be there as this Helm release with these values, of the version of this program.
///
/// # Errors
/// What helm says.
pub async fn install(helm: &Helm, name: &str, namespace: &str, values: &str) -> anyhow::Result<()> {
    let values: Value = serde_json::from_str(values).context("the values are no JSON")?;
    if !values.is_object() {
        bail!("the values must be an object");
    }
    let path = helm.scratch.join(format!("{CHART_NAME}-{}.tgz", env!("CARGO_PKG_VERSION")));
    let cannot = || format!("cannot write {}", path.display());
    let out = BufWriter::new(File::create(&path).with_context(cannot)?);
    chart::package(env!("CARGO_PKG_VERSION"), out).with_context(cannot)?;
    let all = helm.list("").await.context("helm cannot say what is there")?;
    let there = all.iter().find(|there| there.name == name && there.namespace == namespace);
    // Whoever did it died over it: nobody else installs a controller.
    match there.map(|there| there.status.as_str()) {
        Some("pending-install" | "uninstalling") => helm.uninstall(name, namespace).await?,
        Some("pending-upgrade" | "pending-rollback") => helm.roll_back(name, namespace).await?,
        _ => {}
    }
    helm.install(name, namespace, &path, &values).await?;
    info!(name, namespace, version = env!("CARGO_PKG_VERSION"), "the Helm controller is installed");
    Ok(())
}

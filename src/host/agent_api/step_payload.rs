//! Step payloads: the intent's step with the secrets it needs, read now and kept nowhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use thiserror::Error;
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

use crate::api::metal3::{BareMetalHost, SecretReference};
use crate::api::slipway::{IntentStep, StepAction};
use crate::apiserver::subdomain;
use crate::host::status::metrics::HostMetrics;
use crate::image::configdrive;
use crate::protocol::{Action, AgentStep};
use crate::runtime::ObjectKey;

/// Why a step cannot be given to the agent now.
#[derive(Debug, Error)]
pub(super) enum PayloadError {
    #[error("the API: {0}")]
    Api(#[from] kube::Error),
    #[error("secret {namespace}/{name} of spec.{field} does not exist")]
    Missing { field: &'static str, namespace: String, name: String },
    #[error("secret {name} of spec.{field} is in namespace {namespace}, which is not the host's own")]
    Foreign { field: &'static str, namespace: String, name: String },
    #[error("config drive: {0}")]
    ConfigDrive(String),
    #[error("step {0} names no image")]
    NoImage(String),
}

/// Config drives that are made at once.
const AT_ONCE: usize = 4;

/// Whose turn it is to have a config drive made: a few at a time, and of a host one. Each takes many times what the host's
/// Secrets hold, and an agent may ask as often as it likes.
pub(super) struct Drives {
    hosts: Mutex<HashMap<ObjectKey, Arc<tokio::sync::Mutex<()>>>>,
    turns: Semaphore,
}

impl Default for Drives {
    fn default() -> Self {
        Self { hosts: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

struct PayloadTurn<'a> {
    drives: &'a Drives,
    host: ObjectKey,
    _host: OwnedMutexGuard<()>,
    /// None only when nobody gives turns any more.
    _turn: Option<SemaphorePermit<'a>>,
}

impl Drop for PayloadTurn<'_> {
    fn drop(&mut self) {
        let mut hosts = self.drives.hosts();
        // Another one is of who waits.
        if hosts.get(&self.host).is_some_and(|host| Arc::strong_count(host) <= 2) {
            hosts.remove(&self.host);
        }
    }
}

impl Drives {
    fn hosts(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<tokio::sync::Mutex<()>>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn(&self, namespace: &str, name: &str) -> PayloadTurn<'_> {
        let host = (namespace.to_owned(), name.to_owned());
        let own = self.hosts().entry(host.clone()).or_default().clone();
        let own = own.lock_owned().await;
        PayloadTurn { drives: self, host, _host: own, _turn: self.turns.acquire().await.ok() }
    }
}

pub(super) async fn render(
    client: &Client,
    metrics: &HostMetrics,
    drives: &Drives,
    namespace: &str,
    name: &str,
    generation: i64,
    step: &IntentStep,
) -> Result<AgentStep, PayloadError> {
    let hints = step.root_device_hints.clone();
    let action = match step.action {
        StepAction::Inspect => Action::Inspect,
        StepAction::Erase => Action::Erase { mode: step.erase.unwrap_or_default() },
        StepAction::WriteImage => Action::WriteImage {
            digest: step.image.clone().ok_or_else(|| PayloadError::NoImage(step.id.clone()))?,
            root_device_hints: hints,
        },
        StepAction::WriteConfigDrive => {
            let _turn = drives.turn(namespace, name).await;
            let iso = config_drive(client, metrics, namespace, name).await?;
            Action::WriteConfigDrive {
                iso: base64::engine::general_purpose::STANDARD.encode(iso),
                root_device_hints: hints,
            }
        }
        StepAction::SetBootEntry => Action::SetBootEntry { root_device_hints: hints },
        StepAction::Kexec => Action::Kexec { root_device_hints: hints },
        StepAction::Reboot => Action::Reboot,
        StepAction::PowerOff => Action::PowerOff,
        StepAction::CollectLogs => Action::CollectLogs,
    };
    Ok(AgentStep { id: step.id.clone(), generation, action })
}

/// Where each part comes from: docs/design/host.md, "Config drive".
async fn config_drive(
    client: &Client,
    metrics: &HostMetrics,
    namespace: &str,
    name: &str,
) -> Result<Vec<u8>, PayloadError> {
    let host = Api::<BareMetalHost>::namespaced(client.clone(), namespace).get(name).await?;
    let spec = &host.spec;
    let preprovisioning = spec
        .preprovisioning_network_data_name
        .as_ref()
        .map(|name| SecretReference { name: Some(name.clone()), namespace: None });
    let network = spec.network_data.as_ref().or(preprovisioning.as_ref());
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let content = async |field: &'static str, reference: Option<&SecretReference>| {
        let Some((name, other)) = named(reference) else { return Ok(None) };
        let read = read(&secrets, namespace, field, name, other).await;
        // Nothing under the keys is no fault of the host, but of whoever expects its data there.
        if !matches!(read, Ok(Some(_))) {
            metrics.no_data(field);
        }
        read
    };
    let user_data = content("userData", spec.user_data.as_ref()).await?;
    let meta_data = content("metaData", spec.meta_data.as_ref()).await?;
    let network_data = content("networkData", network).await?;
    let invalid = |error: configdrive::ConfigDriveError| PayloadError::ConfigDrive(error.to_string());
    let uid = host.uid().unwrap_or_default();
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let build = move || {
        let drive = configdrive::ConfigDrive {
            meta_data: configdrive::meta_data(&uid, &namespace, &name, meta_data.as_deref())?,
            user_data,
            network_data: match network_data {
                Some(text) => configdrive::network_data(&text)?,
                None => None,
            },
        };
        configdrive::build(&drive)
    };
    // Not on a thread that serves: an agent asks as often as it likes.
    let built = tokio::task::spawn_blocking(build).await;
    built.map_err(|error| PayloadError::ConfigDrive(error.to_string()))?.map_err(invalid)
}

/// Name and namespace of a reference that names a secret.
fn named(reference: Option<&SecretReference>) -> Option<(&str, Option<&str>)> {
    let reference = reference?;
    let name = reference.name.as_deref().filter(|name| !name.is_empty())?;
    Some((name, reference.namespace.as_deref().filter(|other| !other.is_empty())))
}

/// The content under `field`, else under `value`; neither means nothing, which is no fault.
async fn read(
    secrets: &Api<Secret>,
    namespace: &str,
    field: &'static str,
    name: &str,
    other: Option<&str>,
) -> Result<Option<Vec<u8>>, PayloadError> {
    let name = name.to_owned();
    if let Some(other) = other.filter(|other| *other != namespace) {
        return Err(PayloadError::Foreign { field, namespace: other.to_owned(), name });
    }
    // It becomes part of a path, and the API server may have let anything through.
    let possible = subdomain(&name).is_empty();
    let Some(secret) = (if possible { secrets.get_opt(&name).await? } else { None }) else {
        return Err(PayloadError::Missing { field, namespace: namespace.to_owned(), name });
    };
    let data = secret.data.unwrap_or_default();
    Ok(data.get(field).or_else(|| data.get("value")).map(|bytes| bytes.0.clone()))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_host_has_one_turn_at_a_time_and_nothing_is_kept_of_those_that_are_over() {
        let drives = Drives::default();
        let first = drives.turn("ns", "a").await;
        let mut second = Box::pin(drives.turn("ns", "a"));
        assert!(second.as_mut().now_or_never().is_none(), "of one host");
        let others: Vec<_> = futures::future::join_all(["b", "c", "d"].map(|name| drives.turn("ns", name))).await;
        let mut fifth = Box::pin(drives.turn("ns", "e"));
        assert!(fifth.as_mut().now_or_never().is_none(), "of all");
        drop(first);
        let fifth = fifth.await;
        drop(others);
        let second = second.await;
        assert_eq!(drives.hosts().len(), 2);
        drop((second, fifth));
        assert!(drives.hosts().is_empty());
    }
}

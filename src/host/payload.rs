//! A step as the agent gets it: the intent's step with the secrets it needs, read now and kept nowhere.

use base64::Engine;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use thiserror::Error;

use super::metrics::Metrics;
use crate::api::metal3::{BareMetalHost, SecretReference};
use crate::api::slipway::{IntentStep, StepAction};
use crate::apiserver::subdomain;
use crate::image::configdrive;
use crate::protocol::{Action, Step};

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

pub(super) async fn render(
    client: &Client,
    metrics: &Metrics,
    namespace: &str,
    name: &str,
    generation: i64,
    step: &IntentStep,
) -> Result<Step, PayloadError> {
    let hints = step.root_device_hints.clone();
    let action = match step.action {
        StepAction::Inspect => Action::Inspect,
        StepAction::Erase => Action::Erase { mode: step.erase.unwrap_or_default() },
        StepAction::WriteImage => Action::WriteImage {
            digest: step.image.clone().ok_or_else(|| PayloadError::NoImage(step.id.clone()))?,
            root_device_hints: hints,
        },
        StepAction::WriteConfigDrive => {
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
    Ok(Step { id: step.id.clone(), generation, action })
}

/// Where each part comes from: docs/design/host.md, "Config drive".
async fn config_drive(
    client: &Client,
    metrics: &Metrics,
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
    let drive = configdrive::ConfigDrive {
        meta_data: configdrive::meta_data(&uid, namespace, name, meta_data.as_deref()).map_err(invalid)?,
        user_data,
        network_data: match network_data {
            Some(text) => configdrive::network_data(&text).map_err(invalid)?,
            None => None,
        },
    };
    configdrive::build(&drive).map_err(invalid)
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

//! DataImage (reference section 4): a CD image in the virtual drive of a provisioned host.
//!
//! The drive itself is touched by the host's reconciler alone, before it powers a provisioned host on
//! ([`before_power_on`]). Here its object is kept: owned by the host, and held by a finalizer until the drive is empty.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use reqwest::Url;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::reconciler::label;
use crate::api::metal3::{
    ANNOTATION_DETACHED, ANNOTATION_PAUSED, AttachedImage, BareMetalHost, DataImage, DataImageError, DataImageStatus,
    FINALIZER_DATA_IMAGE,
};
use crate::apiserver::{AdmissionRequest, FieldError, Operation};
use crate::bmc::{Bmc, BmcError};

/// How often a host is looked for that is not there, or must let go first.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// Characters of a reason that are kept.
const MESSAGE_MAX: usize = 1000;

/// What a DataImage must be before it is stored.
///
/// # Errors
///
/// When its URL is none that a BMC could read.
pub fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == Operation::Delete {
        return Ok(());
    }
    let url = |object: &serde_json::Value| object["spec"]["url"].as_str().unwrap_or_default().to_owned();
    let text = url(request.object);
    let fine = Url::parse(&text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if fine || request.old.is_some_and(|old| url(old) == text) {
        return Ok(());
    }
    let detail = "must be a URL that begins with http:// or https://";
    Err(vec![FieldError::invalid("spec.url", &json!(text), detail)])
}

/// Keeps every DataImage until the shutdown.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let images = Api::<DataImage>::all(client.clone());
    Controller::new(images, watcher::Config::default())
        .graceful_shutdown_on(async move { shutdown.cancelled().await })
        .run(reconcile, retry, Arc::new(client))
        .for_each(|outcome| async {
            if let Err(error) = outcome {
                debug!(%error, "DataImage");
            }
        })
        .await;
}

fn retry(image: Arc<DataImage>, error: &kube::Error, _: Arc<Client>) -> Action {
    warn!(image = %label(image.as_ref()), %error, "will try again");
    Action::requeue(LOOK_AGAIN)
}

/// What is to be done with a DataImage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its host must be its owner, and a finalizer hold it.
    Hold,
    /// Nothing holds it any more.
    LetGo,
    /// Nothing before something changes that is not seen from here.
    Wait,
    /// Nothing.
    Rest,
}

fn decide(image: &DataImage, host: Option<&BareMetalHost>) -> Step {
    let deleted = image.metadata.deletion_timestamp.is_some();
    let held = image.finalizers().iter().any(|finalizer| finalizer == FINALIZER_DATA_IMAGE);
    let Some(host) = host else {
        return if held { Step::LetGo } else { Step::Wait };
    };
    let annotated = |key: &str| host.annotations().contains_key(key);
    if annotated(ANNOTATION_PAUSED) {
        return Step::Wait;
    }
    if deleted {
        let attached = image.status.as_ref().is_some_and(|status| status.attached_image.is_some());
        return match (held, attached && !annotated(ANNOTATION_DETACHED)) {
            (false, _) => Step::Rest,
            (true, false) => Step::LetGo,
            (true, true) => Step::Wait,
        };
    }
    let owned = image.owner_references().iter().any(|owner| Some(&owner.uid) == host.metadata.uid.as_ref());
    if owned && held { Step::Rest } else { Step::Hold }
}

async fn reconcile(image: Arc<DataImage>, client: Arc<Client>) -> Result<Action, kube::Error> {
    let namespace = image.namespace().unwrap_or_default();
    let hosts = Api::<BareMetalHost>::namespaced(client.as_ref().clone(), &namespace);
    let host = hosts.get_opt(&image.name_any()).await?;
    let images = Api::<DataImage>::namespaced(client.as_ref().clone(), &namespace);
    let metadata = match (decide(&image, host.as_ref()), &host) {
        (Step::Rest, _) => return Ok(Action::await_change()),
        (Step::Hold, Some(host)) => {
            let mut owners = image.owner_references().to_vec();
            owners.retain(|owner| Some(&owner.uid) != host.metadata.uid.as_ref());
            owners.extend(host.owner_ref(&()));
            let mut finalizers = image.finalizers().to_vec();
            finalizers.retain(|finalizer| finalizer != FINALIZER_DATA_IMAGE);
            finalizers.push(FINALIZER_DATA_IMAGE.to_owned());
            json!({ "ownerReferences": owners, "finalizers": finalizers })
        }
        (Step::LetGo, _) => {
            let kept: Vec<_> =
                image.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER_DATA_IMAGE).collect();
            json!({ "finalizers": kept })
        }
        (Step::Wait | Step::Hold, _) => return Ok(Action::requeue(LOOK_AGAIN)),
    };
    let mut patch = json!({ "metadata": metadata });
    patch["metadata"]["resourceVersion"] = json!(image.resource_version());
    match images.patch(&image.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        // Its next version is on its way here.
        Err(kube::Error::Api(error)) if error.is_conflict() || error.is_not_found() => Ok(Action::await_change()),
        patched => patched.map(|_| Action::await_change()),
    }
}

/// Puts into the drive of a host what its DataImage says, before the host is powered on.
///
/// # Errors
///
/// When the BMC fails: the host must not start without its image. One that has no such drive never will have, so the
/// host starts; the object says why.
pub(super) async fn before_power_on(
    images: &Api<DataImage>,
    host: &str,
    bmc: &dyn Bmc,
) -> Result<(), super::effects::EffectError> {
    let Some(image) = images.get_opt(host).await? else { return Ok(()) };
    let before = image.status.clone().unwrap_or_default();
    let wanted = image.metadata.deletion_timestamp.is_none().then_some(image.spec.url.as_str());
    let done = match (wanted, &before.attached_image) {
        // Also when it is known to be in: something else may have been in the drive meanwhile.
        (Some(url), _) => bmc.insert_media(url).await,
        (None, Some(_)) => bmc.eject_media().await,
        (None, None) => return Ok(()),
    };
    let now = Some(Time(Timestamp::now()));
    let status = match &done {
        Ok(()) => {
            info!(image = %label(&image), attached = wanted.unwrap_or("nothing"), "virtual CD");
            let attached_image = wanted.map(|url| AttachedImage { url: url.to_owned() });
            DataImageStatus { last_reconciled: now, attached_image, error: DataImageError::default() }
        }
        Err(error) => {
            let message = error.to_string().chars().take(MESSAGE_MAX).collect();
            let error = DataImageError { count: before.error.count + 1, message };
            DataImageStatus { last_reconciled: now, error, ..before.clone() }
        }
    };
    // A merge leaves alone what is not named, so what is gone must be named.
    let patch = json!({ "status": {
        "lastReconciled": status.last_reconciled,
        "attachedImage": status.attached_image,
        "error": status.error,
    }});
    match images.patch_status(host, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => {}
        patched => drop(patched?),
    }
    match done {
        Err(BmcError::Unsupported { .. }) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[path = "dataimage_tests.rs"]
mod tests;

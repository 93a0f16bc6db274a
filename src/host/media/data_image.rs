//! DataImage (docs/design/host.md, "DataImage"): a CD image in the virtual drive of a provisioned host.
//!
//! The drive itself is touched by the host's reconciler alone, before it powers a provisioned host on
//! ([`before_power_on`]) and before it lets a host go ([`eject`]). Here its object is kept: owned by the host, and held by
//! a finalizer until the drive is empty, or emptying it was given up.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::api::metal3::{
    ANNOTATION_DETACHED, ANNOTATION_PAUSED, AttachedImage, BareMetalHost, DataImage, DataImageError, DataImageStatus,
    FINALIZER_DATA_IMAGE, ProvisioningState,
};
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
use crate::bmc::{Bmc, BmcError};
use crate::host::{COMPONENT, label};
use crate::image::web_url;
use crate::outbound::masked;
use crate::runtime::objects::ControllerMarks;
use crate::runtime::{Cache, Note, Reconcile, Slim, Watches, events, objects, run as run_controller};

/// How often a host is looked for that is not there, or must let go first.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// Characters of a reason that are kept.
const MESSAGE_MAX: usize = 1000;
/// After this many failures of its host in a row, a deleted image is let go.
const GIVE_UP_AFTER: i64 = 3;
/// So long a deleted image waits for a host of which nothing is to be expected.
const PATIENCE: SignedDuration = SignedDuration::from_secs(900);

/// Why the drive does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub(in crate::host) enum DriveError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Bmc(#[from] BmcError),
}

/// What a DataImage must be before it is stored.
///
/// # Errors
///
/// When its URL is none that a BMC could read.
pub fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let url = |object: &serde_json::Value| object["spec"]["url"].as_str().unwrap_or_default().to_owned();
    let text = url(request.object);
    let judged = web_url(&text);
    if request.old.is_some_and(|old| url(old) == text) {
        return Ok(());
    }
    judged.map(drop).map_err(|detail| vec![FieldError::invalid("spec.url", &json!(masked(&text)), detail)])
}

/// The DataImages that this process knows. Cheap to clone.
#[derive(Clone)]
pub struct DataImages(Cache<Slim<DataImage>>);

impl DataImages {
    /// None, until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        Self(Cache::new(watches, Slim::<DataImage>::clone))
    }
}

/// Keeps every DataImage until the shutdown.
pub async fn run(client: Client, images: DataImages, shutdown: CancellationToken) {
    keep(client, images, LOOK_AGAIN, shutdown).await;
}

/// What is kept, and how often what is waited for is looked at.
struct DataImageReconciler {
    client: Client,
    pause: Duration,
}

pub(in crate::host) async fn keep(client: Client, images: DataImages, pause: Duration, shutdown: CancellationToken) {
    run_controller(Arc::new(DataImageReconciler { client, pause }), &images.0, stream::empty(), shutdown).await;
}

/// What is to be done with a DataImage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataImageStep {
    /// Its host must be its owner, and a finalizer hold it.
    Hold,
    /// Nothing holds it any more.
    LetGo,
    /// Its host will not empty the drive; it must not wait for ever.
    GiveUp,
    /// Nothing before something changes that is not seen from here.
    Wait,
    /// Nothing.
    Rest,
}

fn decide(image: &DataImage, host: Option<&BareMetalHost>, now: Timestamp) -> DataImageStep {
    let deleted = image.metadata.deletion_timestamp.as_ref();
    let held = objects::is_held(image, FINALIZER_DATA_IMAGE);
    let Some(host) = host else {
        return if held { DataImageStep::LetGo } else { DataImageStep::Wait };
    };
    let annotated = |key: &str| host.annotations().contains_key(key);
    if annotated(ANNOTATION_PAUSED) {
        return DataImageStep::Wait;
    }
    if let Some(deleted) = deleted {
        return match (held, attached(image) && !annotated(ANNOTATION_DETACHED)) {
            (false, _) => DataImageStep::Rest,
            (true, false) => DataImageStep::LetGo,
            (true, true) if is_hopeless(host, deleted.0, now) => DataImageStep::GiveUp,
            (true, true) => DataImageStep::Wait,
        };
    }
    let owned = image.owner_references().iter().any(|owner| Some(&owner.uid) == host.metadata.uid.as_ref());
    if owned && held { DataImageStep::Rest } else { DataImageStep::Hold }
}

fn attached(image: &DataImage) -> bool {
    image.status.as_ref().is_some_and(|status| status.attached_image.is_some())
}

/// Whether the drive is not going to be emptied: by a host that fails again and again, or one that nobody powers on. One
/// that is well is waited for, however long: it may be months until its next start. One that is deleted has its own end.
fn is_hopeless(host: &BareMetalHost, deleted: Timestamp, now: Timestamp) -> bool {
    if host.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let long_ago = |then: Timestamp| now.duration_since(then) > PATIENCE;
    let status = host.status.clone().unwrap_or_default();
    if !is_installed(host) {
        return long_ago(deleted);
    }
    let since = status.last_updated.map_or(deleted, |updated| updated.0.max(deleted));
    status.error_type.is_some() && (status.error_count > GIVE_UP_AFTER || long_ago(since))
}

/// Whether the host has a system that a DataImage is for.
pub(in crate::host) fn is_installed(host: &BareMetalHost) -> bool {
    let state = host.status.as_ref().map(|status| status.provisioning.state).unwrap_or_default();
    matches!(state, ProvisioningState::Provisioned | ProvisioningState::ExternallyProvisioned)
}

impl Reconcile for DataImageReconciler {
    type Object = Slim<DataImage>;
    type Error = kube::Error;

    const NAME: &'static str = "dataimage";

    const OF_HOSTS: bool = true;

    fn retry_after(&self) -> Duration {
        self.pause
    }

    async fn reconcile(&self, image: Arc<Slim<DataImage>>) -> Result<Action, kube::Error> {
        let Self { client, pause } = self;
        let namespace = image.namespace().unwrap_or_default();
        let images = Api::<DataImage>::namespaced(client.clone(), &namespace);
        let Some(image) = images.get_opt(&image.name_any()).await? else { return Ok(Action::await_change()) };
        let hosts = Api::<BareMetalHost>::namespaced(client.clone(), &namespace);
        let host = hosts.get_opt(&image.name_any()).await?;
        let step = decide(&image, host.as_ref(), Timestamp::now());
        let written = match (step, &host) {
            (DataImageStep::Rest, _) => return Ok(Action::await_change()),
            (DataImageStep::Hold, Some(host)) => {
                let mut owners = image.owner_references().to_vec();
                owners.retain(|owner| Some(&owner.uid) != host.metadata.uid.as_ref());
                owners.extend(host.owner_ref(&()));
                let marks = ControllerMarks {
                    finalizer: Some(FINALIZER_DATA_IMAGE),
                    owners: Some(owners),
                    ..ControllerMarks::default()
                };
                objects::mark(&images, image, &marks).await.map(drop)
            }
            (DataImageStep::LetGo | DataImageStep::GiveUp, _) => {
                objects::release(&images, &image, FINALIZER_DATA_IMAGE).await
            }
            (DataImageStep::Wait | DataImageStep::Hold, _) => return Ok(Action::requeue(*pause)),
        };
        match written {
            // Its next version is on its way here.
            Err(kube::Error::Api(error)) if error.is_conflict() || error.is_not_found() => {
                return Ok(Action::await_change());
            }
            written => written?,
        }
        if let (DataImageStep::GiveUp, Some(host)) = (step, &host) {
            self.tell_abandoned(host).await;
        }
        Ok(Action::await_change())
    }
}

impl DataImageReconciler {
    /// An event that cannot be stored, as in a namespace that goes, keeps nothing from going.
    async fn tell_abandoned(&self, host: &BareMetalHost) {
        let error = host.status.as_ref().map(|status| status.error_message.as_str()).unwrap_or_default();
        let message = format!(
            "The deleted DataImage is let go, what it put into the virtual CD drive may still be there{}{error}",
            if error.is_empty() { "" } else { ": " }
        );
        let note = Note { reason: "DataImageAbandoned", message, warning: true };
        events::store(&self.client, COMPONENT, &host.object_ref(&()), &note).await.ok();
    }
}

/// Whether the drive holds what the host's DataImage says, as far as is known.
pub(in crate::host) async fn is_attached(images: &Api<DataImage>, host: &str) -> Result<bool, kube::Error> {
    Ok(images.get_opt(host).await?.is_some_and(|image| attached(&image)))
}

/// Puts into the drive of a host what its DataImage says, before the host is powered on. Without an installed system
/// only what was deleted is taken out.
///
/// # Errors
///
/// When the BMC fails: the host must not start without its image. One that has no such drive never will have, so the
/// host starts; the object says why.
pub(in crate::host) async fn before_power_on(
    images: &Api<DataImage>,
    host: &str,
    installed: bool,
    bmc: &dyn Bmc,
) -> Result<(), DriveError> {
    let Some(image) = images.get_opt(host).await? else { return Ok(()) };
    if image.metadata.deletion_timestamp.is_none() && installed {
        // The API server may have let anything through, and it is not only a BMC that has files.
        if let Err(reason) = web_url(&image.spec.url) {
            let refused = BmcError::Refused(format!("spec.url of the DataImage {reason}"));
            return settle(images, &image, Some(&image.spec.url), Err(refused)).await;
        }
        if !note_before(images, &image).await? {
            return Ok(());
        }
        // Also when it is known to be in: something else may have been in the drive meanwhile.
        let done = bmc.insert_media(&image.spec.url).await;
        return settle(images, &image, Some(&image.spec.url), done).await;
    }
    if image.metadata.deletion_timestamp.is_some() && attached(&image) {
        return settle(images, &image, None, take_out(&image, bmc).await).await;
    }
    Ok(())
}

/// Says that the image is in the drive before it is put there: one that is deleted meanwhile would be let go, and stay in
/// for ever. False when it is gone already.
async fn note_before(images: &Api<DataImage>, image: &DataImage) -> Result<bool, kube::Error> {
    let is_in = |status: &DataImageStatus| {
        status.attached_image.as_ref().is_some_and(|attached| attached.url == image.spec.url)
    };
    if image.status.as_ref().is_some_and(is_in) {
        return Ok(true);
    }
    let attached = AttachedImage { url: image.spec.url.clone() };
    let patch = json!({ "status": { "attachedImage": attached } });
    match images.patch_status(&image.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(false),
        patched => patched.map(|_| true),
    }
}

/// Empties the drive, unless something else is in it by now: that is somebody else's.
async fn take_out(image: &DataImage, bmc: &dyn Bmc) -> Result<(), BmcError> {
    let url = image.status.as_ref().and_then(|status| status.attached_image.as_ref()).map(|attached| &attached.url);
    match (bmc.media().await, url) {
        (Ok(Some(shown)), Some(url)) if !may_be(&shown, url) => {
            info!(host = %label(image), "the virtual CD drive has another medium by now, which stays");
            Ok(())
        }
        _ => bmc.eject_media().await,
    }
}

/// Whether what a controller shows may be this image: some show the file's name alone, or nothing.
fn may_be(shown: &str, url: &str) -> bool {
    fn name(text: &str) -> &str {
        let path = text.split(['?', '#']).next().unwrap_or_default();
        path.rsplit(['/', '\\']).next().unwrap_or_default()
    }
    shown.is_empty() || shown == url || name(shown).eq_ignore_ascii_case(name(url))
}

/// Empties the drive of a host that goes, where its DataImage says that something is in.
///
/// # Errors
///
/// When the BMC fails.
pub(in crate::host) async fn eject(images: &Api<DataImage>, host: &str, bmc: &dyn Bmc) -> Result<(), DriveError> {
    match images.get_opt(host).await?.filter(attached) {
        Some(image) => settle(images, &image, None, take_out(&image, bmc).await).await,
        None => Ok(()),
    }
}

/// Notes what the drive holds from now on, or why it does not.
async fn settle(
    images: &Api<DataImage>,
    image: &DataImage,
    holds: Option<&str>,
    done: Result<(), BmcError>,
) -> Result<(), DriveError> {
    let now = Some(Time(Timestamp::now()));
    let before = image.status.clone().unwrap_or_default();
    let status = match &done {
        Ok(()) => {
            let attached = holds.map_or_else(|| "nothing".into(), masked);
            info!(host = %label(image), attached, "the virtual CD drive was set");
            let attached_image = holds.map(|url| AttachedImage { url: url.to_owned() });
            DataImageStatus { last_reconciled: now, attached_image, error: DataImageError::default() }
        }
        Err(error) => {
            // BMCs repeat what they were told.
            let url = &image.spec.url;
            let message = error.to_string().replace(url.as_str(), &masked(url)).chars().take(MESSAGE_MAX).collect();
            let error = DataImageError { count: before.error.count + 1, message };
            // What is not there cannot hold anything.
            let lacking = matches!(done, Err(BmcError::Unsupported { .. })) && holds.is_none();
            let attached_image = before.attached_image.filter(|_| !lacking);
            DataImageStatus { last_reconciled: now, attached_image, error }
        }
    };
    // A merge leaves alone what is not named, so what is gone must be named.
    let patch = json!({ "status": {
        "lastReconciled": status.last_reconciled,
        "attachedImage": status.attached_image,
        "error": status.error,
    }});
    match images.patch_status(&image.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => {}
        patched => drop(patched?),
    }
    match done {
        Err(BmcError::Unsupported { .. }) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;

//! What the state machine asks for, done. Every effect may be done twice without harm.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tracing::{info, warn};

use super::boot_effect;
use super::fenced::Fenced;
use super::logins::{self, Attempt};
use super::machine::Effect;
use super::rationed::Rationed;
use super::reconciler::{Reconciler, label};
use super::{access, dataimage, hardware_data, registration};
use crate::api::metal3::{BareMetalHost, DataImage, FINALIZER_HOST};
use crate::api::slipway::{
    ANNOTATION_REGISTRATION, BootIntent, BootIntentSpec, FINALIZER_INTENT, Image, ImageSpec, Registration,
};
use crate::bmc::{Bmc, BmcAddress, BmcError, PowerAction, PowerState};

/// How long a BMC may take to empty its drive while nobody waits for it.
const TAKE_OUT: Duration = Duration::from_secs(180);

/// Why an effect was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum EffectError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Bmc(#[from] BmcError),
    /// Something that follows by itself must come first.
    #[error("not yet")]
    NotYet,
}

/// Does what the state machine asks for.
///
/// Each effect is a future of its own: many hosts wait for their BMCs at once, and none should hold the room that another
/// effect would need.
pub(super) fn perform<'a>(
    reconciler: &'a Reconciler,
    host: &'a BareMetalHost,
    intent: Option<&'a BootIntent>,
    effect: &'a Effect,
) -> BoxFuture<'a, Result<(), EffectError>> {
    match effect {
        Effect::AddFinalizer => {
            let mut finalizers = host.finalizers().to_vec();
            finalizers.push(FINALIZER_HOST.to_owned());
            patch_metadata(reconciler, host, json!({ "finalizers": finalizers })).boxed()
        }
        Effect::DropAnnotations(keys) => drop_annotations(reconciler, host, keys).boxed(),
        Effect::SetArchitecture(architecture) => {
            let patch = json!({
                "metadata": { "resourceVersion": host.resource_version() },
                "spec": { "architecture": architecture },
            });
            patch_host(reconciler, host, patch).boxed()
        }
        Effect::ReadPower => read_power(reconciler, host).boxed(),
        Effect::Intent(spec) => store_intent(reconciler, host, intent, spec).boxed(),
        Effect::Register(registration) => record(reconciler, intent, registration).boxed(),
        Effect::HandOver(spec) => hand_over(reconciler, host, intent, spec).boxed(),
        Effect::Boot(device) => boot_effect::boot(reconciler, host, intent, *device).boxed(),
        Effect::PowerOn => power_on(reconciler, host).boxed(),
        Effect::PowerOff { soft } => power_off(reconciler, host, *soft).boxed(),
        Effect::Reboot { served } => reboot(reconciler, host, served).boxed(),
        Effect::EnsureImage { name, spec } => ensure_image(reconciler, name, spec).boxed(),
        Effect::SaveHardware { operation, hardware } => {
            hardware_data::save(reconciler, host, operation, hardware).err_into().boxed()
        }
        Effect::InspectOutOfBand { operation } => inspect_out_of_band(reconciler, host, operation).boxed(),
        Effect::EjectDataImage => eject_data_image(reconciler, host).boxed(),
        Effect::ForgetIntent => forget_intent(reconciler, intent).boxed(),
        Effect::Release => release(reconciler, host).boxed(),
    }
}

/// Until when the BMC is not logged in at.
pub(super) fn held_until<T>(done: &Result<T, EffectError>) -> Option<jiff::Timestamp> {
    match done {
        Err(EffectError::Bmc(BmcError::Held { until, .. })) => Some(*until),
        _ => None,
    }
}

async fn read_power(reconciler: &Reconciler, host: &BareMetalHost) -> Result<(), EffectError> {
    let (bmc, version) = connect(reconciler, host).await?;
    let power = bmc.power().await?;
    let uid = host.uid().unwrap_or_default();
    reconciler.power.put(&uid, &version, power);
    // The power is what counts; a BMC that has no health to tell is not at fault.
    reconciler.power.put_health(&uid, bmc.health().await.unwrap_or_default());
    Ok(())
}

async fn hand_over(
    reconciler: &Reconciler,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
    spec: &BootIntentSpec,
) -> Result<(), EffectError> {
    // The system is on its way whatever the BMC says.
    match connect(reconciler, host).await {
        Ok((bmc, _)) => {
            let out = boot_effect::take_out(host, bmc.as_ref());
            if tokio::time::timeout(TAKE_OUT, out).await.is_err() {
                warn!(host = %label(host), "the virtual CD stays in: the BMC takes too long");
            }
        }
        Err(error) => warn!(host = %label(host), %error, "the virtual CD stays in"),
    }
    store_intent(reconciler, host, intent, spec).await
}

async fn power_on(reconciler: &Reconciler, host: &BareMetalHost) -> Result<(), EffectError> {
    let (bmc, _) = connect(reconciler, host).await?;
    let images = reconciler.api::<DataImage>(&host.namespace().unwrap_or_default());
    let installed = dataimage::is_installed(host);
    dataimage::before_power_on(&images, &host.name_any(), installed, bmc.as_ref()).await?;
    set_power(reconciler, host, PowerAction::On).await
}

async fn power_off(reconciler: &Reconciler, host: &BareMetalHost, soft: bool) -> Result<(), EffectError> {
    if soft {
        match set_power(reconciler, host, PowerAction::SoftOff).await {
            Err(EffectError::Bmc(BmcError::NotApplied { .. } | BmcError::Unsupported { .. })) => {
                info!(host = %label(host), "the system did not power off by itself: switching off");
            }
            done => return done,
        }
    }
    set_power(reconciler, host, PowerAction::ForceOff).await
}

async fn reboot(reconciler: &Reconciler, host: &BareMetalHost, served: &[String]) -> Result<(), EffectError> {
    set_power(reconciler, host, PowerAction::Reset).await?;
    drop_annotations(reconciler, host, served).await
}

async fn inspect_out_of_band(
    reconciler: &Reconciler,
    host: &BareMetalHost,
    operation: &str,
) -> Result<(), EffectError> {
    let (bmc, _) = connect(reconciler, host).await?;
    let hardware = bmc.inventory().await?;
    Ok(hardware_data::save(reconciler, host, operation, &hardware).await?)
}

async fn eject_data_image(reconciler: &Reconciler, host: &BareMetalHost) -> Result<(), EffectError> {
    let (bmc, _) = connect(reconciler, host).await?;
    let images = reconciler.api::<DataImage>(&host.namespace().unwrap_or_default());
    dataimage::eject(&images, &host.name_any(), bmc.as_ref()).await
}

/// Notes in the intent that the host's present spec was tried.
pub(super) async fn note_tried(
    reconciler: &Reconciler,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
) -> Result<(), kube::Error> {
    let generation = host.metadata.generation.unwrap_or_default();
    let Some(intent) = intent.filter(|intent| intent.spec.host_generation != generation) else { return Ok(()) };
    let patch = json!({ "spec": { "hostGeneration": generation } });
    patch_intent(reconciler, intent, patch).await
}

async fn patch_metadata(
    reconciler: &Reconciler,
    host: &BareMetalHost,
    mut metadata: serde_json::Value,
) -> Result<(), EffectError> {
    metadata["resourceVersion"] = json!(host.resource_version());
    patch_host(reconciler, host, json!({ "metadata": metadata })).await
}

async fn patch_host(
    reconciler: &Reconciler,
    host: &BareMetalHost,
    patch: serde_json::Value,
) -> Result<(), EffectError> {
    let api = reconciler.api::<BareMetalHost>(&host.namespace().unwrap_or_default());
    api.patch(&host.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn drop_annotations(reconciler: &Reconciler, host: &BareMetalHost, keys: &[String]) -> Result<(), EffectError> {
    let gone: serde_json::Map<_, _> = keys.iter().map(|key| (key.clone(), serde_json::Value::Null)).collect();
    patch_metadata(reconciler, host, json!({ "annotations": gone })).await
}

/// Only in the intent that was decided with: another host of this name would have another one.
async fn record(
    reconciler: &Reconciler,
    intent: Option<&BootIntent>,
    registration: &Registration,
) -> Result<(), EffectError> {
    let Some(intent) = intent else { return Ok(()) };
    let patch = json!({ "metadata": {
        "resourceVersion": intent.resource_version(),
        "annotations": { ANNOTATION_REGISTRATION: registration::text(registration) },
    }});
    Ok(patch_intent(reconciler, intent, patch).await?)
}

async fn patch_intent(
    reconciler: &Reconciler,
    intent: &BootIntent,
    patch: serde_json::Value,
) -> Result<(), kube::Error> {
    let api = reconciler.api::<BootIntent>(&intent.namespace().unwrap_or_default());
    api.patch(&intent.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
}

async fn store_intent(
    reconciler: &Reconciler,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
    spec: &BootIntentSpec,
) -> Result<(), EffectError> {
    let api = reconciler.api::<BootIntent>(&host.namespace().unwrap_or_default());
    match intent {
        Some(intent) => {
            let mut changed = BootIntent { spec: spec.clone(), ..intent.clone() };
            if !intent.finalizers().iter().any(|finalizer| finalizer == FINALIZER_INTENT) {
                changed.finalizers_mut().push(FINALIZER_INTENT.to_owned());
            }
            api.replace(&host.name_any(), &PostParams::default(), &changed).await?;
        }
        None => {
            // Registered with nothing yet. Only intents of versions that did not keep it do not say so.
            let new = registration::new(host, spec.clone(), &Registration::default());
            api.create(&PostParams::default(), &new).await?;
        }
    }
    Ok(())
}

/// Takes our finalizer off an intent, after which one that was deleted is gone.
pub(super) async fn let_intent_go(reconciler: &Reconciler, intent: &BootIntent) -> Result<(), kube::Error> {
    let kept: Vec<_> = intent.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER_INTENT).collect();
    if kept.len() == intent.finalizers().len() {
        return Ok(());
    }
    let patch = json!({ "metadata": { "resourceVersion": intent.resource_version(), "finalizers": kept } });
    match patch_intent(reconciler, intent, patch).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        patched => patched,
    }
}

/// In a namespace that ends, the host is about to be deleted too and needs its intent for the way out; a new one
/// could not be created there.
async fn forget_intent(reconciler: &Reconciler, intent: Option<&BootIntent>) -> Result<(), EffectError> {
    let Some(intent) = intent else { return Ok(()) };
    let namespaces = Api::<Namespace>::all(reconciler.client.clone());
    let namespace = namespaces.get_opt(&intent.namespace().unwrap_or_default()).await?;
    if namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
        return Err(EffectError::NotYet);
    }
    let_intent_go(reconciler, intent).await?;
    if intent.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    // Of a former host: the collector may not have come yet.
    let this = Preconditions { uid: intent.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
    let api = reconciler.api::<BootIntent>(&intent.namespace().unwrap_or_default());
    match api.delete(&intent.name_any(), &params).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        deleted => Ok(deleted.map(drop)?),
    }
}

/// The host's BMC, and the version of the credentials it is spoken to with.
pub(super) async fn connect(
    reconciler: &Reconciler,
    host: &BareMetalHost,
) -> Result<(std::sync::Arc<dyn Bmc>, String), EffectError> {
    let details = host.spec.bmc.clone().unwrap_or_default();
    let address = BmcAddress::parse(&details.address).map_err(|error| BmcError::Address(error.to_string()))?;
    let api = reconciler.api::<Secret>(&host.namespace().unwrap_or_default());
    let secret = api.get(&details.credentials_name).await?;
    let credentials = access::credentials(&secret)
        .map_err(|reason| BmcError::Address(format!("secret {}: {reason}", details.credentials_name)))?;
    let places = reconciler.bmcs.locate(&address).await?;
    let controllers = logins::controllers(places.iter().map(std::net::SocketAddr::ip));
    let attempt = Attempt {
        shared: reconciler.crowd.is_anothers_controller(host, &address, &controllers),
        namespace: host.namespace().unwrap_or_default(),
        controllers,
        fingerprint: reconciler.logins.fingerprint(&credentials),
        retry: reconciler.settings.retry.0,
    };
    let verify = !details.disable_certificate_verification;
    let bmc = reconciler.bmcs.connect_at(&address, &places, &credentials, verify);
    let bmc = std::sync::Arc::new(Rationed::new(bmc, address.peer(), attempt, reconciler.logins.clone()));
    let bmc = std::sync::Arc::new(Fenced::new(bmc, reconciler.fence.clone()));
    Ok((bmc, power_key(host, &secret.resource_version().unwrap_or_default())))
}

/// What a reading of the power is good for: this BMC, with this version of the credentials.
pub(super) fn power_key(host: &BareMetalHost, version: &str) -> String {
    let address = host.spec.bmc.as_ref().map(|bmc| bmc.address.as_str()).unwrap_or_default();
    format!("{version} {address}")
}

async fn set_power(reconciler: &Reconciler, host: &BareMetalHost, action: PowerAction) -> Result<(), EffectError> {
    let (bmc, version) = connect(reconciler, host).await?;
    let (namespace, name) = (host.namespace().unwrap_or_default(), host.name_any());
    reconciler.metrics.power_change(&namespace, &name, matches!(action, PowerAction::On | PowerAction::Reset));
    bmc.set_power(action).await?;
    let power = match action {
        PowerAction::On | PowerAction::Reset => PowerState::On,
        PowerAction::ForceOff | PowerAction::SoftOff => PowerState::Off,
    };
    reconciler.power.put(&host.uid().unwrap_or_default(), &version, power);
    if power == PowerState::Off {
        boot_effect::take_out(host, bmc.as_ref()).await;
    }
    Ok(())
}

async fn ensure_image(reconciler: &Reconciler, name: &str, spec: &ImageSpec) -> Result<(), EffectError> {
    let image = Image::new(name, spec.clone());
    match Api::<Image>::all(reconciler.client.clone()).create(&PostParams::default(), &image).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => Ok(()),
        created => Ok(created.map(|_| ())?),
    }
}

async fn release(reconciler: &Reconciler, host: &BareMetalHost) -> Result<(), EffectError> {
    let namespace = host.namespace().unwrap_or_default();
    registration::hand_over(reconciler, host).await?;
    hardware_data::remove(reconciler, host).await?;
    access::release(reconciler, host).await?;
    let intents = reconciler.api::<BootIntent>(&namespace);
    if let Some(intent) = intents.get_opt(&host.name_any()).await? {
        let_intent_go(reconciler, &intent).await?;
        match intents.delete(&host.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => {}
            deleted => drop(deleted?),
        }
    }
    let kept: Vec<_> = host.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER_HOST).collect();
    patch_metadata(reconciler, host, json!({ "finalizers": kept })).await
}

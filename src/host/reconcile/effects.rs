//! Effects: what the state machine asks for, done. Every effect may be done twice without harm.

use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tracing::{info, warn};

use super::context::HostContext;
use super::recording::{Claimed, OtherRecords};
use super::{boot_effect, credentials, registration, resets};
use crate::api::metal3::{BareMetalHost, DataImage, FINALIZER_HOST};
use crate::api::slipway::{
    ANNOTATION_REGISTRATION, BootIntent, BootIntentSpec, FINALIZER_INTENT, Image, ImageSpec, Registration,
};
use crate::bmc::{Bmc, BmcAddress, BmcError, PowerAction, PowerState};
use crate::host::bmc_access::fenced::Fenced;
use crate::host::bmc_access::login_limited::LoginLimited;
use crate::host::bmc_access::login_limits::{self, LoginAttempt};
use crate::host::directory::conflicts::is_same_bmc;
use crate::host::label;
use crate::host::lifecycle::{AfterStore, Effect};
use crate::host::media::data_image::{self, DriveError};
use crate::host::status::hardware_data;
use crate::runtime::{Conflict, changes, objects};

/// How long a BMC may take to empty its drive while nobody waits for it.
const TAKE_OUT: Duration = Duration::from_secs(180);

/// Why an effect was not done.
#[derive(Debug, thiserror::Error)]
pub(in crate::host) enum EffectError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Bmc(#[from] BmcError),
    /// Something that follows by itself must come first.
    #[error("not yet")]
    NotYet,
}

impl Conflict for EffectError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Bmc(_) | Self::NotYet => false,
        }
    }
}

impl From<DriveError> for EffectError {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Api(error) => Self::Api(error),
            DriveError::Bmc(error) => Self::Bmc(error),
        }
    }
}

/// Does what the state machine asks for. The boot intent as it is stored now, where nothing else but that was changed.
///
/// Each effect is a future of its own: many hosts wait for their BMCs at once, and none should hold the room that another
/// effect would need.
pub(in crate::host) fn perform<'a>(
    context: &'a HostContext,
    host: &'a BareMetalHost,
    intent: Option<&'a BootIntent>,
    effect: &'a Effect,
) -> BoxFuture<'a, Result<Option<BootIntent>, EffectError>> {
    match effect {
        Effect::Intent(spec) => store_intent(context, host, intent, spec).map_ok(Some).boxed(),
        Effect::Register(registration) => record(context, host, intent, registration).boxed(),
        effect => act(context, host, intent, effect).map_ok(|()| None).boxed(),
    }
}

/// Whether nothing but the host's boot intent is changed by this.
pub(in crate::host) fn is_of_the_intent(effect: &Effect) -> bool {
    matches!(effect, Effect::Intent(_) | Effect::Register(_))
}

/// Whether it is a BMC that is waited for.
pub(super) fn asks_a_bmc(effect: &Effect) -> bool {
    match effect {
        Effect::ReadPower
        | Effect::Boot(_)
        | Effect::PowerOn
        | Effect::PowerOff { .. }
        | Effect::Reboot { .. }
        | Effect::InspectOutOfBand { .. }
        | Effect::EjectDataImage
        | Effect::HandOver(_) => true,
        Effect::AddFinalizer
        | Effect::DropAnnotations(_)
        | Effect::SetArchitecture(_)
        | Effect::Intent(_)
        | Effect::Register(_)
        | Effect::EnsureImage { .. }
        | Effect::SaveHardware { .. }
        | Effect::ForgetIntent
        | Effect::Release => false,
    }
}

/// Whether the status is written only after it: what was decided beside it is then decided again, and written once. Nobody has
/// seen it, and it does not depend on it.
pub(super) fn goes_before_the_status(next: &AfterStore) -> bool {
    matches!(next, AfterStore::Do(Effect::AddFinalizer | Effect::Register(_)))
}

fn act<'a>(
    context: &'a HostContext,
    host: &'a BareMetalHost,
    intent: Option<&'a BootIntent>,
    effect: &'a Effect,
) -> BoxFuture<'a, Result<(), EffectError>> {
    match effect {
        Effect::AddFinalizer => {
            let api = context.api::<BareMetalHost>(&host.namespace().unwrap_or_default());
            async move { Ok(objects::hold(&api, host.clone(), FINALIZER_HOST).await.map(drop)?) }.boxed()
        }
        Effect::DropAnnotations(keys) => drop_annotations(context, host, keys).boxed(),
        Effect::SetArchitecture(architecture) => {
            patch_host(context, host, json!({ "spec": { "architecture": architecture } })).boxed()
        }
        Effect::ReadPower => read_power(context, host).boxed(),
        Effect::Intent(spec) => store_intent(context, host, intent, spec).map_ok(drop).boxed(),
        Effect::Register(registration) => record(context, host, intent, registration).map_ok(drop).boxed(),
        Effect::HandOver(spec) => hand_over(context, host, intent, spec).boxed(),
        Effect::Boot(device) => boot_effect::boot(context, host, intent, *device).boxed(),
        Effect::PowerOn => power_on(context, host).boxed(),
        Effect::PowerOff { soft } => power_off(context, host, *soft).boxed(),
        Effect::Reboot { served } => reboot(context, host, served).boxed(),
        Effect::EnsureImage { name, spec } => ensure_image(context, name, spec).boxed(),
        Effect::SaveHardware { operation, hardware } => {
            hardware_data::save(&context.client, host, operation, hardware).err_into().boxed()
        }
        Effect::InspectOutOfBand { operation } => inspect_out_of_band(context, host, operation).boxed(),
        Effect::EjectDataImage => eject_data_image(context, host).boxed(),
        Effect::ForgetIntent => forget_intent(context, intent).boxed(),
        Effect::Release => release(context, host).boxed(),
    }
}

/// Until when the BMC is not logged in at.
pub(in crate::host) fn held_until<T>(done: &Result<T, EffectError>) -> Option<jiff::Timestamp> {
    match done {
        Err(EffectError::Bmc(BmcError::Held { until, .. })) => Some(*until),
        _ => None,
    }
}

async fn read_power(context: &HostContext, host: &BareMetalHost) -> Result<(), EffectError> {
    let (bmc, version) = connect(context, host).await?;
    let power = bmc.power().await?;
    let uid = host.uid().unwrap_or_default();
    context.power.put(&uid, &version, power);
    // The power is what counts; a BMC that has no health to tell is not at fault.
    context.power.put_health(&uid, bmc.health().await.unwrap_or_default());
    Ok(())
}

async fn hand_over(
    context: &HostContext,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
    spec: &BootIntentSpec,
) -> Result<(), EffectError> {
    // The system is on its way whatever the BMC says.
    match connect(context, host).await {
        Ok((bmc, _)) => {
            let out = boot_effect::take_out(host, bmc.as_ref());
            if tokio::time::timeout(TAKE_OUT, out).await.is_err() {
                warn!(host = %label(host), "cannot eject the virtual CD in time: it stays in");
            }
        }
        Err(error) => warn!(host = %label(host), %error, "cannot eject the virtual CD: it stays in"),
    }
    store_intent(context, host, intent, spec).await.map(drop)
}

async fn power_on(context: &HostContext, host: &BareMetalHost) -> Result<(), EffectError> {
    let (bmc, _) = connect(context, host).await?;
    let images = context.api::<DataImage>(&host.namespace().unwrap_or_default());
    let installed = data_image::is_installed(host);
    data_image::before_power_on(&images, &host.name_any(), installed, bmc.as_ref()).await?;
    set_power(context, host, PowerAction::On).await
}

async fn power_off(context: &HostContext, host: &BareMetalHost, soft: bool) -> Result<(), EffectError> {
    if soft {
        match set_power(context, host, PowerAction::SoftOff).await {
            Err(EffectError::Bmc(BmcError::NotApplied { .. } | BmcError::Unsupported { .. })) => {
                info!(host = %label(host), "the system did not shut down by itself: the power is cut");
            }
            done => return done,
        }
    }
    set_power(context, host, PowerAction::ForceOff).await
}

async fn reboot(context: &HostContext, host: &BareMetalHost, served: &[String]) -> Result<(), EffectError> {
    let uid = host.uid().unwrap_or_default();
    let requests = resets::requests(host, served);
    // Done again for as long as the annotations cannot be taken off, it would never let the system start.
    if !context.resets.served(&uid, &requests) {
        set_power(context, host, PowerAction::Reset).await?;
        context.resets.put(&uid, requests);
    }
    drop_annotations(context, host, served).await?;
    context.resets.forget(&uid);
    Ok(())
}

async fn inspect_out_of_band(context: &HostContext, host: &BareMetalHost, operation: &str) -> Result<(), EffectError> {
    let (bmc, _) = connect(context, host).await?;
    let hardware = bmc.inventory().await?;
    Ok(hardware_data::save(&context.client, host, operation, &hardware).await?)
}

async fn eject_data_image(context: &HostContext, host: &BareMetalHost) -> Result<(), EffectError> {
    let (bmc, _) = connect(context, host).await?;
    let images = context.api::<DataImage>(&host.namespace().unwrap_or_default());
    Ok(data_image::eject(&images, &host.name_any(), bmc.as_ref()).await?)
}

/// Notes in the intent that the host's present spec was tried.
pub(in crate::host) async fn note_tried(
    context: &HostContext,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
) -> Result<(), kube::Error> {
    let generation = host.metadata.generation.unwrap_or_default();
    let Some(intent) = intent.filter(|intent| intent.spec.host_generation != generation) else { return Ok(()) };
    let patch = json!({ "spec": { "hostGeneration": generation } });
    patch_intent(context, intent, patch).await.map(drop)
}

async fn patch_host(context: &HostContext, host: &BareMetalHost, patch: serde_json::Value) -> Result<(), EffectError> {
    let api = context.api::<BareMetalHost>(&host.namespace().unwrap_or_default());
    changes::change(&api, host, patch).await?;
    Ok(())
}

async fn drop_annotations(context: &HostContext, host: &BareMetalHost, keys: &[String]) -> Result<(), EffectError> {
    let gone: serde_json::Map<_, _> = keys.iter().map(|key| (key.clone(), serde_json::Value::Null)).collect();
    patch_host(context, host, json!({ "metadata": { "annotations": gone } })).await
}

/// Only in the intent that was decided with: another host of this name would have another one. And not while another host is
/// recorded with this machine, or was since the decision: that is decided anew.
async fn record(
    context: &HostContext,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
    registration: &Registration,
) -> Result<Option<BootIntent>, EffectError> {
    let Some(intent) = intent else { return Ok(None) };
    let claimed = Claimed::of(&host.uid().unwrap_or_default(), registration);
    if !context.recording.begin(&claimed, &OtherHosts { context, host }, Instant::now()) {
        return Err(EffectError::NotYet);
    }
    let patch = json!({ "metadata": {
        "resourceVersion": intent.resource_version(),
        "annotations": { ANNOTATION_REGISTRATION: registration::text(registration) },
    }});
    let patched = patch_intent(context, intent, patch).await;
    // Without an answer it may have been written.
    if matches!(patched, Err(kube::Error::Api(_))) {
        context.recording.give_up(&claimed);
    }
    Ok(Some(patched?))
}

/// What is known of others than this host.
struct OtherHosts<'a> {
    context: &'a HostContext,
    host: &'a BareMetalHost,
}

impl OtherRecords for OtherHosts<'_> {
    fn shows(&self, claimed: &Claimed) -> bool {
        let Some(host) = self.context.index.by_uid(&claimed.uid) else { return true };
        host.ownership.record.as_ref().is_some_and(|record| Claimed::of(&claimed.uid, record) == *claimed)
    }

    fn is_anothers(&self, claimed: &Claimed) -> bool {
        let conflicts = &self.context.conflicts;
        let mac = claimed.mac.and_then(|mac| conflicts.mac_owner(self.host, &mac.to_string()));
        mac.or_else(|| conflicts.bmc_owner(self.host, claimed.bmc.as_ref()?)).is_some()
    }

    fn is_same_bmc(&self, a: &BmcAddress, b: &BmcAddress) -> bool {
        is_same_bmc(a, b)
    }
}

async fn patch_intent(
    context: &HostContext,
    intent: &BootIntent,
    patch: serde_json::Value,
) -> Result<BootIntent, kube::Error> {
    let api = context.api::<BootIntent>(&intent.namespace().unwrap_or_default());
    api.patch(&intent.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

async fn store_intent(
    context: &HostContext,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
    spec: &BootIntentSpec,
) -> Result<BootIntent, EffectError> {
    let api = context.api::<BootIntent>(&host.namespace().unwrap_or_default());
    match intent {
        Some(intent) => {
            let mut changed = BootIntent { spec: spec.clone(), ..intent.clone() };
            changed.metadata.finalizers = Some(objects::with(intent, FINALIZER_INTENT));
            // The next session begins without what this one reported.
            if let Some(record) = intent.registration() {
                let record = registration::text(&record.with_report(intent));
                changed.annotations_mut().insert(ANNOTATION_REGISTRATION.to_owned(), record);
            }
            Ok(api.replace(&host.name_any(), &PostParams::default(), &changed).await?)
        }
        None => {
            // Registered with nothing yet. Only intents of versions that did not keep it do not say so.
            let new = registration::new(host, spec.clone(), &Registration::default());
            Ok(api.create(&PostParams::default(), &new).await?)
        }
    }
}

/// Takes our finalizer off an intent, after which one that was deleted is gone.
pub(in crate::host) async fn let_intent_go(context: &HostContext, intent: &BootIntent) -> Result<(), kube::Error> {
    let api = context.api::<BootIntent>(&intent.namespace().unwrap_or_default());
    objects::release(&api, intent, FINALIZER_INTENT).await
}

/// In a namespace that ends, the host is about to be deleted too and needs its intent for the way out; a new one
/// could not be created there.
async fn forget_intent(context: &HostContext, intent: Option<&BootIntent>) -> Result<(), EffectError> {
    let Some(intent) = intent else { return Ok(()) };
    let namespaces = Api::<Namespace>::all(context.client.clone());
    let namespace = namespaces.get_opt(&intent.namespace().unwrap_or_default()).await?;
    if namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
        return Err(EffectError::NotYet);
    }
    let_intent_go(context, intent).await?;
    if intent.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    // Of a former host: the collector may not have come yet.
    let this = Preconditions { uid: intent.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
    let api = context.api::<BootIntent>(&intent.namespace().unwrap_or_default());
    match api.delete(&intent.name_any(), &params).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        deleted => Ok(deleted.map(drop)?),
    }
}

/// The host's BMC, and the version of the credentials it is spoken to with.
pub(in crate::host) async fn connect(
    context: &HostContext,
    host: &BareMetalHost,
) -> Result<(std::sync::Arc<dyn Bmc>, String), EffectError> {
    let details = host.spec.bmc.clone().unwrap_or_default();
    let address = BmcAddress::parse(&details.address).map_err(|error| BmcError::Address(error.to_string()))?;
    let api = context.api::<Secret>(&host.namespace().unwrap_or_default());
    let secret = api.get(&details.credentials_name).await?;
    let credentials = credentials::credentials(&secret)
        .map_err(|reason| BmcError::Address(format!("secret {}: {reason}", details.credentials_name)))?;
    let places = context.bmcs.locate(&address).await?;
    let controllers = login_limits::controllers(places.iter().map(std::net::SocketAddr::ip));
    let attempt = LoginAttempt {
        shared: context.conflicts.is_anothers_controller(host, &address, &controllers),
        namespace: host.namespace().unwrap_or_default(),
        controllers,
        fingerprint: context.logins.fingerprint(&credentials),
        retry: context.settings.get().retry.0,
    };
    let verify = !details.disable_certificate_verification;
    let bmc = context.bmcs.connect_at(&address, &places, &credentials, verify);
    let bmc = std::sync::Arc::new(LoginLimited::new(bmc, address.peer(), attempt, context.logins.clone()));
    let bmc = std::sync::Arc::new(Fenced::new(bmc, context.fence.clone()));
    Ok((bmc, power_key(host, &secret.resource_version().unwrap_or_default())))
}

/// What a reading of the power is good for: this BMC, with this version of the credentials.
pub(in crate::host) fn power_key(host: &BareMetalHost, version: &str) -> String {
    let address = host.spec.bmc.as_ref().map(|bmc| bmc.address.as_str()).unwrap_or_default();
    format!("{version} {address}")
}

async fn set_power(context: &HostContext, host: &BareMetalHost, action: PowerAction) -> Result<(), EffectError> {
    let (bmc, version) = connect(context, host).await?;
    let (namespace, name) = (host.namespace().unwrap_or_default(), host.name_any());
    context.metrics.power_change(&namespace, &name, matches!(action, PowerAction::On | PowerAction::Reset));
    bmc.set_power(action).await?;
    let power = match action {
        PowerAction::On | PowerAction::Reset => PowerState::On,
        PowerAction::ForceOff | PowerAction::SoftOff => PowerState::Off,
    };
    context.power.put(&host.uid().unwrap_or_default(), &version, power);
    if power == PowerState::Off {
        boot_effect::take_out(host, bmc.as_ref()).await;
    }
    Ok(())
}

async fn ensure_image(context: &HostContext, name: &str, spec: &ImageSpec) -> Result<(), EffectError> {
    let image = Image::new(name, spec.clone());
    match Api::<Image>::all(context.client.clone()).create(&PostParams::default(), &image).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => Ok(()),
        created => Ok(created.map(|_| ())?),
    }
}

async fn release(context: &HostContext, host: &BareMetalHost) -> Result<(), EffectError> {
    let namespace = host.namespace().unwrap_or_default();
    registration::hand_over(context, host).await?;
    hardware_data::remove(&context.client, host).await?;
    credentials::release(context, host).await?;
    let intents = context.api::<BootIntent>(&namespace);
    if let Some(intent) = intents.get_opt(&host.name_any()).await? {
        let_intent_go(context, &intent).await?;
        match intents.delete(&host.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => {}
            deleted => drop(deleted?),
        }
    }
    let hosts = context.api::<BareMetalHost>(&namespace);
    Ok(objects::release(&hosts, host, FINALIZER_HOST).await?)
}

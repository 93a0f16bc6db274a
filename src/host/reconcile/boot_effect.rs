//! The boot effect: off, boot device, on. How the ramdisk reaches a machine follows from its BMC's address.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::PostParams;
use tracing::{info, warn};

use super::context::HostContext;
use super::effects::{EffectError, connect};
use crate::api::metal3::{BareMetalHost, BootMode};
use crate::api::slipway::{BootIntent, BootIntentSpec, BootIntentStatus, BootTarget};
use crate::bmc::{Bmc, BmcAddress, BmcError, BootDevice, BootInterface, FirmwareMode, PowerAction, PowerState};
use crate::boot::media::is_ours;
use crate::host::label;
use crate::host::media::{self, MediumFetcher};
use crate::network_data::NetworkPlan;
use crate::runtime::changes;

/// Fewer characters than any ticket has.
const TICKET_LEAST: usize = 90;

/// How long a machine may take to power itself off after its agent said that it would.
const POWER_OFF_DEADLINE: Duration = Duration::from_secs(90);

/// Off, boot device, on: an order that every BMC can follow, since many change the boot device only while off. A machine
/// whose power must never go off is reset instead.
pub(in crate::host) async fn boot(
    context: &HostContext,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
    device: BootDevice,
) -> Result<(), EffectError> {
    let Some(intent) = intent else { return Err(EffectError::NotYet) };
    let namespace = host.namespace().unwrap_or_default();
    // The machine will ask soon: what it boots must be known by then.
    let known = context.index.by_name(&namespace, &host.name_any()).and_then(|known| known.intent.clone());
    if known.is_none_or(|known| known.generation != intent.spec.generation) {
        return Err(EffectError::NotYet);
    }
    let (bmc, version) = connect(context, host).await?;
    let uid = host.uid().unwrap_or_default();
    let started = |at: Time| note(context, intent, move |spec| spec.started = Some(at.clone()));
    // Unless this is a later start of the same boot, as of a live system.
    let begun = intent.spec.powering_on.clone().filter(|_| intent.spec.started.is_none());
    let on = bmc.power().await? == PowerState::On;
    if on && let Some(begun) = begun {
        context.power.put(&uid, &version, PowerState::On);
        info!(host = %label(host), ?device, generation = intent.spec.generation, "the machine was powered on for this boot already");
        return started(begun).await;
    }
    let ramdisk = intent.spec.target == BootTarget::Ramdisk;
    if on && ramdisk && called(context, intent).await?.is_some() {
        // The machine started itself anew when its former session had ended. Switched off now it would have to be booted
        // once more.
        info!(host = %label(host), generation = intent.spec.generation, "the agent of this boot has its session already");
        return started(Time(Timestamp::now())).await;
    }
    let source = source(context, host, intent, device).await?;
    let reset = on && host.spec.disable_power_off;
    if on && !reset {
        let off_by_itself = device == BootDevice::Disk && goes_off(bmc.as_ref()).await?;
        if !off_by_itself {
            bmc.set_power(PowerAction::ForceOff).await?;
        }
        context.power.put(&uid, &version, PowerState::Off);
    }
    if ramdisk && let Some(late) = called(context, intent).await? {
        // Its agent called while it was being switched off, and is no more. A boot has one session: as long as this one
        // stands the machine would be sent to its disk.
        info!(host = %label(host), generation = intent.spec.generation, "the agent's session ended because the machine was switched off");
        let ended = BootIntent { status: Some(BootIntentStatus::default()), ..late };
        let intents = context.api::<BootIntent>(&namespace);
        intents.replace_status(&host.name_any(), &PostParams::default(), &ended).await?;
        // What boots the machine must have seen it too.
        return Err(EffectError::NotYet);
    }
    prepare(host, bmc.as_ref(), &source).await?;
    let now = Time(Timestamp::now());
    if device == BootDevice::Disk {
        // Noted before it is done: done twice, it would switch off a system in its first boot. If the process ends
        // between the two, the power is switched on because the host is to be online.
        started(now.clone()).await?;
    } else if !reset {
        // Nobody else would switch this one on. Done twice, it would cost the firmware's start again.
        let at = now.clone();
        note(context, intent, move |spec| spec.powering_on = Some(at.clone())).await?;
    }
    let action = if reset { PowerAction::Reset } else { PowerAction::On };
    bmc.set_power(action).await?;
    context.power.put(&uid, &version, PowerState::On);
    info!(host = %label(host), ?device, ?action, generation = intent.spec.generation, "the machine was started");
    if device != BootDevice::Disk {
        started(now).await?;
    }
    Ok(())
}

/// The intent as it is now, when an agent has opened the session of this boot.
async fn called(context: &HostContext, intent: &BootIntent) -> Result<Option<BootIntent>, EffectError> {
    let intents = context.api::<BootIntent>(&intent.namespace().unwrap_or_default());
    let now = intents.get(&intent.name_any()).await?;
    let generation = intent.spec.generation;
    let open = now.status.as_ref().and_then(|status| status.session.as_ref());
    let is_open = now.spec.generation == generation && open.is_some_and(|session| session.generation == generation);
    Ok(is_open.then_some(now))
}

/// Notes in the intent how far its boot is, unless it is another boot by now: that one has to be started itself.
pub(in crate::host) async fn note(
    context: &HostContext,
    intent: &BootIntent,
    change: impl Fn(&mut BootIntentSpec),
) -> Result<(), EffectError> {
    let (api, change) = (&context.api::<BootIntent>(&intent.namespace().unwrap_or_default()), &change);
    // The agent may have written its part.
    let noted = changes::retry(|| async move {
        let stored = api.get_opt(&intent.name_any()).await?.filter(|stored| stored.uid() == intent.uid());
        let same = stored.filter(|stored| stored.spec.generation == intent.spec.generation);
        let Some(mut stored) = same else { return Err(EffectError::NotYet) };
        change(&mut stored.spec);
        Ok(api.replace(&intent.name_any(), &PostParams::default(), &stored).await.map(drop)?)
    });
    noted.await?.ok_or(EffectError::NotYet)
}

/// Where the machine is to boot from.
enum BootSource {
    Disk,
    Network,
    /// The virtual CD with this URL.
    Cd(String),
    /// What UEFI firmware loads from this URL.
    Url(String),
}

/// What the machine is to boot from. Nothing is done yet, so that what is wrong with it costs no running system.
async fn source(
    context: &HostContext,
    host: &BareMetalHost,
    intent: &BootIntent,
    device: BootDevice,
) -> Result<BootSource, EffectError> {
    if device != BootDevice::Pxe {
        return Ok(BootSource::Disk);
    }
    // A fault in it would show only as a machine that never calls.
    let network = media::network_data(&context.client, &host.namespace().unwrap_or_default(), &host.name_any())
        .await
        .inspect_err(|_| context.metrics.no_data("networkData"))
        .map_err(BmcError::Refused)?;
    let plan = network.as_deref().and_then(|network| NetworkPlan::parse(network).ok().flatten());
    let url = async |fetcher: &MediumFetcher<'_>| -> Result<String, EffectError> {
        let details = host.spec.bmc.clone().unwrap_or_default();
        let address = BmcAddress::parse(&details.address).map_err(|error| BmcError::Address(error.to_string()))?;
        let media = context.media.as_ref();
        let media = media.ok_or_else(|| BmcError::Refused("this process serves no media to boot from".into()))?;
        if let Some(digest) = intent.spec.live_iso.as_deref().filter(|_| intent.spec.target == BootTarget::LiveIso) {
            return Ok(media.live_url(digest, &address, fetcher).await?);
        }
        Ok(media.url(&host.uid().unwrap_or_default(), intent.spec.generation, &address, fetcher).await?)
    };
    match interface(host).unwrap_or(BootInterface::Pxe) {
        BootInterface::Pxe => Ok(BootSource::Network),
        BootInterface::VirtualMedia => Ok(BootSource::Cd(url(&MediumFetcher::Bmc).await?)),
        BootInterface::UefiHttp if firmware_mode(host) == FirmwareMode::Bios => Err(BmcError::Refused(
            "bootMode legacy cannot boot from a URL: use redfish-virtualmedia or redfish, or bootMode UEFI".into(),
        )
        .into()),
        BootInterface::UefiHttp => Ok(BootSource::Url(url(&MediumFetcher::Firmware(plan.as_ref())).await?)),
    }
}

/// Makes the BMC start the machine from there.
async fn prepare(host: &BareMetalHost, bmc: &dyn Bmc, source: &BootSource) -> Result<(), BmcError> {
    let mode = firmware_mode(host);
    match source {
        BootSource::Disk => {
            // What was for the ramdisk must not come before the disk when its turn is over.
            if interface(host) == Some(BootInterface::VirtualMedia) {
                eject_ours(bmc).await?;
            }
            bmc.set_boot_device(BootDevice::Disk, mode).await
        }
        BootSource::Network => bmc.set_boot_device(BootDevice::Pxe, mode).await,
        BootSource::Cd(url) => {
            bmc.insert_media(url).await?;
            bmc.set_boot_device(BootDevice::Cd, mode).await
        }
        BootSource::Url(url) => bmc.boot_from_url(url).await,
    }
}

/// How the ramdisk reaches the host's machine, by its BMC's address.
fn interface(host: &BareMetalHost) -> Option<BootInterface> {
    let address = BmcAddress::parse(&host.spec.bmc.as_ref()?.address).ok()?;
    Some(address.capabilities().boot)
}

/// A machine that is off, or about to run its own system, has no more use for a medium of ours: at the next start it would
/// boot from it again where the firmware tries CDs first. Another one, which the operator wanted, stays.
pub(in crate::host) async fn take_out(host: &BareMetalHost, bmc: &dyn Bmc) {
    if interface(host) != Some(BootInterface::VirtualMedia) {
        return;
    }
    if let Err(error) = eject_ours(bmc).await {
        warn!(host = %label(host), %error, "cannot eject the virtual CD: it stays in");
    }
}

async fn eject_ours(bmc: &dyn Bmc) -> Result<(), BmcError> {
    match bmc.media().await? {
        // A controller that does not say what is in can only be believed to hold what it was given last; one that shows
        // the file's name alone shows a ticket's, which is longer than any that people give.
        Some(url) if url.is_empty() || is_ours(&url) || (url.len() > TICKET_LEAST && !url.contains('/')) => {
            bmc.eject_media().await
        }
        _ => Ok(()),
    }
}

fn firmware_mode(host: &BareMetalHost) -> FirmwareMode {
    match host.spec.boot_mode.unwrap_or_default() {
        BootMode::UEFI | BootMode::UEFISecureBoot => FirmwareMode::Uefi,
        BootMode::Legacy => FirmwareMode::Bios,
    }
}

/// Waits for the machine to go off by itself.
async fn goes_off(bmc: &dyn Bmc) -> Result<bool, BmcError> {
    let deadline = tokio::time::Instant::now() + POWER_OFF_DEADLINE;
    while tokio::time::Instant::now() < deadline {
        if bmc.power().await? == PowerState::Off {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(false)
}

#[cfg(test)]
mod tests;

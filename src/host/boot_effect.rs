//! `Effect::Boot`, done: off, boot device, on. How the ramdisk reaches a machine follows from its BMC's address.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;
use tracing::info;

use super::effects::{EffectError, connect, patch_intent};
use super::reconciler::{Reconciler, label};
use crate::api::metal3::{BareMetalHost, BootMode};
use crate::api::slipway::BootIntent;
use crate::bmc::{Bmc, BmcError, BootDevice, FirmwareMode, PowerAction, PowerState};

/// How long a machine may take to power itself off after its agent said that it would.
const POWER_OFF_DEADLINE: Duration = Duration::from_secs(90);

/// Off, boot device, on: an order that every BMC can follow, since many change the boot device only while off.
pub(super) async fn boot(
    reconciler: &Reconciler,
    host: &BareMetalHost,
    intent: Option<&BootIntent>,
    device: BootDevice,
) -> Result<(), EffectError> {
    let Some(intent) = intent else { return Err(EffectError::NotYet) };
    let namespace = host.namespace().unwrap_or_default();
    // The machine will ask soon: what it boots must be known by then.
    let known = reconciler.index.by_name(&namespace, &host.name_any()).and_then(|known| known.intent.clone());
    if known.is_none_or(|known| known.generation != intent.spec.generation) {
        return Err(EffectError::NotYet);
    }
    let (bmc, version) = connect(reconciler, host).await?;
    let uid = host.uid().unwrap_or_default();
    if bmc.power().await? == PowerState::On {
        let off_by_itself = device == BootDevice::Disk && goes_off(bmc.as_ref()).await?;
        if !off_by_itself {
            bmc.set_power(PowerAction::ForceOff).await?;
        }
        reconciler.power.put(&uid, &version, PowerState::Off);
    }
    bmc.set_boot_device(device, firmware_mode(host)).await?;
    let started = || json!({ "spec": { "started": Time(Timestamp::now()) } });
    if device == BootDevice::Disk {
        // Noted before it is done: done twice, it would switch off a system in its first boot. If the process ends
        // between the two, the power is switched on because the host is to be online.
        patch_intent(reconciler, intent, started()).await?;
    }
    bmc.set_power(PowerAction::On).await?;
    reconciler.power.put(&uid, &version, PowerState::On);
    info!(host = %label(host), ?device, generation = intent.spec.generation, "powered on");
    if device == BootDevice::Pxe {
        patch_intent(reconciler, intent, started()).await?;
    }
    Ok(())
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

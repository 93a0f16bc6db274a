//! `spec.raid` (reference 1.9).

use serde_json::json;

use super::hints;
use crate::api::metal3::{BareMetalHost, HardwareRaidVolume, RootDeviceHints, SoftwareRaidLevel, SoftwareRaidVolume};
use crate::apiserver::FieldError;

const HARDWARE: &str = "spec.raid.hardwareRAIDVolumes";
const SOFTWARE: &str = "spec.raid.softwareRAIDVolumes";

pub(super) fn check(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let Some(raid) = &host.spec.raid else { return };
    let hard = raid.hardware_raid_volumes.as_deref().unwrap_or_default();
    let soft = raid.software_raid_volumes.as_deref().unwrap_or_default();
    if !hard.is_empty() && !soft.is_empty() {
        let detail = "hardware and software RAID cannot be asked for at the same time";
        errors.push(FieldError::forbidden(SOFTWARE, detail));
    }
    for (at, volume) in hard.iter().enumerate() {
        hardware(&format!("{HARDWARE}[{at}]"), volume, errors);
    }
    software(soft, errors);
    let hinted = host.spec.root_device_hints.as_ref().is_some_and(|hints| *hints != RootDeviceHints::default());
    if hinted && soft.iter().any(|volume| volume.root_volume) {
        let detail = "the root device is the software RAID volume that says rootVolume";
        errors.push(FieldError::forbidden("spec.rootDeviceHints", detail));
    }
}

fn hardware(path: &str, volume: &HardwareRaidVolume, errors: &mut Vec<FieldError>) {
    let disks = volume.physical_disks.len();
    if disks == 0 {
        return;
    }
    if volume.controller.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(format!("{path}.controller"), "physicalDisks are named by their controller"));
    }
    if let Some(number) = volume.number_of_physical_disks
        && usize::try_from(number) != Ok(disks)
    {
        let detail = format!("physicalDisks names {disks}");
        errors.push(FieldError::invalid(format!("{path}.numberOfPhysicalDisks"), &json!(number), detail));
    }
}

fn software(volumes: &[SoftwareRaidVolume], errors: &mut Vec<FieldError>) {
    let mut root = false;
    for (at, volume) in volumes.iter().enumerate() {
        let path = format!("{SOFTWARE}[{at}]");
        if volume.level != SoftwareRaidLevel::One && (at == 0 || volume.root_volume) {
            let which = if at == 0 { "the first volume" } else { "the root volume" };
            errors.push(FieldError::invalid(
                format!("{path}.level"),
                &json!(volume.level),
                format!("{which} must be of level \"1\""),
            ));
        }
        if volume.root_volume && root {
            errors.push(FieldError::forbidden(format!("{path}.rootVolume"), "only one volume can be the root volume"));
        }
        root |= volume.root_volume;
        for (disk, wanted) in volume.physical_disks.iter().flatten().enumerate() {
            hints(&format!("{path}.physicalDisks[{disk}]"), Some(wanted), errors);
        }
    }
}

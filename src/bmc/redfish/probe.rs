//! What a Redfish service is and can do.

use super::controller::{FoundSystem, RedfishBmc};
use super::message::clean;
use super::model::{self, RedfishBoot};
use super::virtual_media_model;
use crate::bmc::BmcError;
use crate::bmc::probe::{Drive, ProbeReport, health};

impl RedfishBmc {
    pub(super) async fn report(&self, found: &FoundSystem) -> Result<ProbeReport, BmcError> {
        let root = self.client.get("/redfish/v1/").await?.body;
        let system = self.read_system(&found.path).await?;
        let (_, resource) = self.boot_resource(&system, &found.path).await?;
        let system = system.body;
        let boot = &resource.body["Boot"];
        let reset = &system["Actions"]["#ComputerSystem.Reset"];
        let reset_types = match model::allowable(reset, "ResetType") {
            Some(types) => types,
            None => self.action_info(reset).await.unwrap_or_default(),
        };
        let text = |key: &str| clean(system[key].as_str().unwrap_or_default(), 128);
        let version = clean(root["RedfishVersion"].as_str().unwrap_or_default(), 20);
        let mut report = ProbeReport {
            protocol: format!("Redfish {version}").trim().to_owned(),
            manufacturer: text("Manufacturer"),
            model: text("Model"),
            serial_number: text("SerialNumber"),
            bmc_firmware: self.manager_firmware(&system).await,
            bios_version: text("BiosVersion"),
            system: Some(found.path.clone()),
            health: health(model::health(&system)),
            boot: Some(RedfishBoot::read(&resource.body).to_string()),
            boot_devices: model::allowable(boot, "BootSourceOverrideTarget").unwrap_or_default(),
            reset_types,
            profiles: found.quirks.profiles.clone(),
            ..ProbeReport::default()
        };
        match model::power(&system) {
            Ok(power) => report.power = Some(power.into()),
            Err(reason) => report.notes.push(format!("the power cannot be read: {reason}")),
        }
        if report.boot_devices.is_empty() {
            report.notes.push("it does not say which boot devices it takes".into());
        }
        let takes = |report: &ProbeReport, target: &str| report.boot_devices.iter().any(|one| one == target);
        // Without a property for the URL the firmware boots whatever DHCP names.
        report.uefi_http = takes(&report, "UefiHttp") && boot.get("HttpBootUri").is_some();
        match self.virtual_drives(found).await {
            Ok(drives) => {
                let chosen = virtual_media_model::choose(&drives, &found.quirks).map(|drive| drive.path.clone());
                report.virtual_media = drives
                    .into_iter()
                    .map(|drive| Drive {
                        chosen: chosen.as_deref() == Some(drive.path.as_str()),
                        written_by: if drive.insert.is_some() && !found.quirks.media_by_patch {
                            "action"
                        } else {
                            "patch"
                        }
                        .into(),
                        id: drive.id,
                        path: drive.path,
                        types: drive.types,
                        inserted: drive.inserted,
                    })
                    .collect();
            }
            Err(error) => report.notes.push(format!("virtual drives cannot be read: {error}")),
        }
        report.schemes = schemes(&report);
        Ok(report)
    }
}

/// What can be written into `spec.bmc.address`, by what the report says.
fn schemes(report: &ProbeReport) -> Vec<String> {
    let maker = report.manufacturer.to_lowercase();
    let of = |plain: &'static str, dell: &'static str| if maker.contains("dell") { dell } else { plain };
    let can_cd = report.boot_devices.is_empty() || report.boot_devices.iter().any(|one| one == "Cd" || one == "UsbCd");
    let media = report.virtual_media.iter().any(|drive| drive.chosen) && can_cd;
    let mut schemes = Vec::new();
    if media {
        schemes.push(of("redfish-virtualmedia", "idrac-virtualmedia").to_owned());
    }
    if report.uefi_http {
        schemes.push("redfish-uefihttp".to_owned());
    }
    schemes.push(of("redfish", "idrac-redfish").to_owned());
    schemes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_follow_the_maker_and_what_there_is() {
        let drive = Drive { chosen: true, ..Drive::default() };
        for (maker, targets, drives, uefi_http, want) in [
            ("Acme", &["Pxe", "Hdd"][..], vec![], false, "redfish"),
            ("Acme", &["Pxe", "Cd"], vec![drive.clone()], false, "redfish-virtualmedia redfish"),
            ("Acme", &["Pxe", "UsbCd"], vec![drive.clone()], true, "redfish-virtualmedia redfish-uefihttp redfish"),
            ("Acme", &["Pxe"], vec![drive.clone()], false, "redfish"),
            ("Acme", &[], vec![drive.clone()], false, "redfish-virtualmedia redfish"),
            ("Acme", &[], vec![Drive::default()], false, "redfish"),
            ("Dell Inc.", &["Cd"], vec![drive], true, "idrac-virtualmedia redfish-uefihttp idrac-redfish"),
        ] {
            let report = ProbeReport {
                manufacturer: maker.into(),
                boot_devices: targets.iter().map(ToString::to_string).collect(),
                virtual_media: drives,
                uefi_http,
                ..ProbeReport::default()
            };
            assert_eq!(schemes(&report).join(" "), want, "{maker} {targets:?}");
        }
    }
}

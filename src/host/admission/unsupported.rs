//! Fields of a BareMetalHost that Slipway does not support yet.
//!
//! What Metal3 lets a BareMetalHost ask for and Slipway does not do yet: it is said, and nobody is left to believe that it
//! was done. Admission refuses it; the [lifecycle](super::super::lifecycle) shows it as an error before it does anything else, for
//! hosts that came in another way: with an earlier version, or through a Kubernetes API server of its own.

use std::fmt;

use serde::Serialize;

use crate::api::metal3::{
    BareMetalHostSpec, BootMode, MAX_NETWORK_INTERFACES, MAX_SPEC, MAX_TAINTS, MAX_VOLUME_DISKS, MAX_VOLUMES,
};

/// The architecture that ramdisk and boot programs are made for.
pub const ARCHITECTURE: &str = "x86_64";

/// A field that asks for too much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Its path in the object.
    pub field: String,
    /// Its value, where the field is good with another one.
    pub value: Option<String>,
    /// What is not supported, and what to write instead.
    pub reason: String,
}

impl Unsupported {
    fn field(field: impl Into<String>, reason: &str) -> Self {
        Self { field: field.into(), value: None, reason: reason.to_owned() }
    }

    fn value(field: &str, value: &str, reason: String) -> Self {
        Self { field: field.to_owned(), value: Some(value.to_owned()), reason }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} {value:?}: {}", self.field, self.reason),
            None => write!(f, "{}: {}", self.field, self.reason),
        }
    }
}

/// Everything in a spec that asks for what is not done. What asks for nothing (an empty list, an interface that is only
/// named) is none of it. The machine of somebody else's system is neither prepared nor booted from the network, so its
/// volumes, boot mode and architecture are as they are.
pub fn unsupported(spec: &BareMetalHostSpec) -> Vec<Unsupported> {
    let mut found = Vec::new();
    if !spec.externally_provisioned {
        prepared(spec, &mut found);
    }
    too_long(spec, &mut found);
    too_large(spec, &mut found);
    let asks = |firmware: &serde_json::Value| firmware.as_object().is_none_or(|settings| !settings.is_empty());
    if spec.firmware.as_ref().is_some_and(asks) {
        let reason = "firmware settings are not supported yet: leave them out, and set up the machine by its own means";
        found.push(Unsupported::field("spec.firmware", reason));
    }
    for (at, interface) in spec.network_interfaces.iter().enumerate() {
        let field = match (&interface.host_network_attachment, &interface.switch_port) {
            (Some(_), _) => "hostNetworkAttachment",
            (None, Some(_)) => "switchPort",
            (None, None) => continue,
        };
        let reason = "setting switch ports is not supported yet: leave it out";
        found.push(Unsupported::field(format!("spec.networkInterfaces[{at}].{field}"), reason));
    }
    found
}

/// Lists that are longer, and a spec that is larger, than is read again and again.
fn too_large(spec: &BareMetalHostSpec, found: &mut Vec<Unsupported>) {
    let mut more = |field: String, count: usize, most: usize, what: &str| {
        if count > most {
            found.push(Unsupported::field(field, &format!("more than {most} {what} are not supported")));
        }
        count > most
    };
    let mut cut = more("spec.taints".into(), spec.taints.len(), MAX_TAINTS, "taints, or 1000 values in them,");
    let interfaces = spec.network_interfaces.len();
    cut |= more("spec.networkInterfaces".into(), interfaces, MAX_NETWORK_INTERFACES, "network interfaces");
    let raid = spec.raid.as_ref();
    let hardware = raid.and_then(|raid| raid.hardware_raid_volumes.as_deref()).unwrap_or_default();
    let software = raid.and_then(|raid| raid.software_raid_volumes.as_deref()).unwrap_or_default();
    let hardware_disks = hardware.iter().map(|volume| volume.physical_disks.len()).collect::<Vec<_>>();
    let software_disks = software.iter().map(|volume| volume.physical_disks.as_ref().map_or(0, Vec::len)).collect();
    for (kind, disks) in [("hardwareRAIDVolumes", hardware_disks), ("softwareRAIDVolumes", software_disks)] {
        let field = format!("spec.raid.{kind}");
        cut |= more(field.clone(), disks.len(), MAX_VOLUMES, "volumes");
        let most = disks.into_iter().max().unwrap_or_default();
        cut |= more(format!("{field}.physicalDisks"), most, MAX_VOLUME_DISKS, "disks of a volume");
    }
    // What was cut when it was read has its error already.
    if !cut && size(spec) > MAX_SPEC {
        found.push(Unsupported::field("spec", &format!("more than {MAX_SPEC} bytes are not supported")));
    }
}

/// Bytes of a value as JSON.
pub(in crate::host) fn size(value: &impl Serialize) -> usize {
    struct LengthCounter(usize);
    impl std::io::Write for LengthCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = LengthCounter(0);
    serde_json::to_writer(&mut counter, value).map_or(usize::MAX, |()| counter.0)
}

/// Bytes that what a disk is recognized by may have: it goes into the boot intent, which is kept in memory.
const HINT_MAX: usize = 1024;

fn too_long(spec: &BareMetalHostSpec, found: &mut Vec<Unsupported>) {
    let Some(hints) = &spec.root_device_hints else { return };
    let texts = [
        ("deviceName", &hints.device_name),
        ("hctl", &hints.hctl),
        ("model", &hints.model),
        ("vendor", &hints.vendor),
        ("serialNumber", &hints.serial_number),
        ("wwn", &hints.wwn),
        ("wwnWithExtension", &hints.wwn_with_extension),
        ("wwnVendorExtension", &hints.wwn_vendor_extension),
    ];
    for (name, text) in texts {
        if text.as_ref().is_some_and(|text| text.len() > HINT_MAX) {
            let reason = format!("more than {HINT_MAX} bytes are not supported");
            found.push(Unsupported::field(format!("spec.rootDeviceHints.{name}"), &reason));
        }
    }
}

fn prepared(spec: &BareMetalHostSpec, found: &mut Vec<Unsupported>) {
    if let Some(raid) = &spec.raid {
        if raid.hardware_raid_volumes.as_ref().is_some_and(|volumes| !volumes.is_empty()) {
            let reason = "building RAID volumes is not supported yet: leave it out, and build them with the controller's \
                          own tools before the host is inspected";
            found.push(Unsupported::field("spec.raid.hardwareRAIDVolumes", reason));
        }
        if raid.software_raid_volumes.as_ref().is_some_and(|volumes| !volumes.is_empty()) {
            let reason = "building RAID volumes is not supported yet: leave it out";
            found.push(Unsupported::field("spec.raid.softwareRAIDVolumes", reason));
        }
    }
    if spec.boot_mode == Some(BootMode::UEFISecureBoot) {
        let reason = "Secure Boot is not supported yet: write \"UEFI\" or \"legacy\"".to_owned();
        found.push(Unsupported::value("spec.bootMode", "UEFISecureBoot", reason));
    }
    let architecture = spec.architecture.as_deref().unwrap_or_default();
    if !supports(architecture) {
        found.push(Unsupported::value("spec.architecture", architecture, architecture_reason()));
    }
}

/// Whether machines of an architecture can be booted; of one that is not known they may be.
pub fn supports(architecture: &str) -> bool {
    architecture.is_empty() || architecture == ARCHITECTURE
}

/// Why a machine of another architecture is of no use.
pub fn architecture_reason() -> String {
    format!("machines other than {ARCHITECTURE:?} are not supported yet: there is no ramdisk for them")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_is_asked_and_not_done() {
        const NOTHING: &[&str] = &[];
        let mirror = json!([{"level": "1"}]);
        let port = json!({"switchID": "02:00:00:00:00:02", "portID": "Ethernet1/1"});
        let attachment = json!({"name": "a"});
        let disks = |count: usize| json!([{"level": "1", "physicalDisks": vec!["a"; count]}]);
        let rows: [(Value, &[&str]); 37] = [
            (json!({}), NOTHING),
            (json!({"raid": null}), NOTHING),
            (json!({"rootDeviceHints": {"model": "A".repeat(1024)}}), NOTHING),
            (json!({"rootDeviceHints": {"model": "A".repeat(1025)}}), &["spec.rootDeviceHints.model"]),
            (json!({"taints": vec![json!({"key": "a"}); 100]}), NOTHING),
            (json!({"taints": vec![json!({"key": "a"}); 101]}), &["spec.taints"]),
            (json!({"taints": vec![json!({"key": "a"}); 20_000]}), &["spec.taints"]),
            (json!({"taints": [{"key": vec![1; 20_000]}]}), &["spec.taints"]),
            (json!({"networkInterfaces": vec![json!({"name": "a"}); 256]}), NOTHING),
            (json!({"networkInterfaces": vec![json!({"name": "a"}); 257]}), &["spec.networkInterfaces"]),
            (json!({"description": "a".repeat(60_000)}), NOTHING),
            (json!({"description": "a".repeat(70_000)}), &["spec"]),
            (json!({"externallyProvisioned": true, "raid": {"hardwareRAIDVolumes": disks(256)}}), NOTHING),
            (
                json!({"externallyProvisioned": true, "raid": {"hardwareRAIDVolumes": disks(257)}}),
                &["spec.raid.hardwareRAIDVolumes.physicalDisks"],
            ),
            (
                json!({"externallyProvisioned": true, "raid": {"softwareRAIDVolumes": vec![json!({"level": "1"}); 129]}}),
                &["spec.raid.softwareRAIDVolumes"],
            ),
            (json!({"raid": {}}), NOTHING),
            (json!({"raid": {"hardwareRAIDVolumes": null, "softwareRAIDVolumes": null}}), NOTHING),
            (json!({"raid": {"hardwareRAIDVolumes": [], "softwareRAIDVolumes": []}}), NOTHING),
            (json!({"raid": {"hardwareRAIDVolumes": mirror}}), &["spec.raid.hardwareRAIDVolumes"]),
            (json!({"raid": {"softwareRAIDVolumes": mirror}}), &["spec.raid.softwareRAIDVolumes"]),
            (
                json!({"raid": {"hardwareRAIDVolumes": mirror, "softwareRAIDVolumes": mirror}}),
                &["spec.raid.hardwareRAIDVolumes", "spec.raid.softwareRAIDVolumes"],
            ),
            (json!({"bootMode": null}), NOTHING),
            (json!({"bootMode": "UEFI"}), NOTHING),
            (json!({"bootMode": "legacy"}), NOTHING),
            (json!({"bootMode": "UEFISecureBoot"}), &["spec.bootMode"]),
            (json!({"architecture": ""}), NOTHING),
            (json!({"architecture": "x86_64"}), NOTHING),
            (json!({"architecture": "aarch64"}), &["spec.architecture"]),
            (json!({"architecture": "riscv64"}), &["spec.architecture"]),
            (json!({"networkInterfaces": []}), NOTHING),
            (json!({"networkInterfaces": [{"name": "eno1"}, {"macAddress": "02:00:00:00:00:01"}]}), NOTHING),
            (
                json!({"networkInterfaces": [{"name": "a"}, {"name": "b", "switchPort": port}]}),
                &["spec.networkInterfaces[1].switchPort"],
            ),
            (
                json!({"networkInterfaces": [{"name": "a", "switchPort": port, "hostNetworkAttachment": attachment}]}),
                &["spec.networkInterfaces[0].hostNetworkAttachment"],
            ),
            (json!({"firmware": {}}), NOTHING),
            (json!({"firmware": {"sriovEnabled": false}}), &["spec.firmware"]),
            // Nothing is done to the machine of somebody else's system, whatever it is.
            (
                json!({"externallyProvisioned": true, "raid": {"hardwareRAIDVolumes": mirror},
                    "bootMode": "UEFISecureBoot", "architecture": "aarch64"}),
                NOTHING,
            ),
            (
                json!({"externallyProvisioned": true, "networkInterfaces": [{"name": "a", "switchPort": port}]}),
                &["spec.networkInterfaces[0].switchPort"],
            ),
        ];
        for (over, want) in rows {
            let mut spec = json!({"online": true});
            spec.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
            let found = unsupported(&serde_json::from_value(spec).unwrap());
            let fields: Vec<&str> = found.iter().map(|one| one.field.as_str()).collect();
            assert_eq!(fields, want, "{over}");
            assert!(found.iter().all(|one| one.to_string().contains("not supported")), "{found:?}");
        }
    }
}

//! What a BareMetalHost must be before it is stored (reference 1.1), beyond what its schema says.
//!
//! The rules that look at the status see the stored one: clients cannot change it through the main resource.

use serde_json::{Value, json};

use crate::api::metal3::{
    BareMetalHost, BootMode, ChecksumType, Image, InspectionMode, OperationalStatus, ProvisioningState, SecretReference,
};
use crate::apiserver::{AdmissionRequest, FieldError, Operation};
use crate::bmc::BmcAddress;
use crate::bmc::address::RaidInterface;

/// Schemes that `spec.image.url` may have.
const IMAGE_SCHEMES: [&str; 5] = ["http", "https", "ftp", "gopher", "oci"];

/// The rules as the API server asks for them. Who deletes or reports a status is not judged.
///
/// # Errors
///
/// Every rule that the change breaks.
pub fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == Operation::Delete {
        return Ok(());
    }
    let errors = check(request.old, request.object);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Every rule that the new object breaks. Objects that cannot be read as a host are left to the schema.
pub fn check(old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let Ok(host) = serde_json::from_value::<BareMetalHost>(new.clone()) else { return Vec::new() };
    let before = old.and_then(|old| serde_json::from_value::<BareMetalHost>(old.clone()).ok());
    let mut errors = Vec::new();
    name(&host, &mut errors);
    bmc(&host, &mut errors);
    power(&host, &mut errors);
    image(host.spec.image.as_ref(), &mut errors);
    hints(&host, &mut errors);
    secrets(&host, &mut errors);
    if host.spec.firmware.is_some() {
        errors.push(FieldError::forbidden("spec.firmware", "write the settings to a HostFirmwareSettings object"));
    }
    if let Some(before) = before {
        changes(&before, &host, &mut errors);
    }
    errors
}

fn name(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let name = host.metadata.name.as_deref().unwrap_or_default();
    if !name.is_empty() && uuid::Uuid::parse_str(name).is_ok() {
        errors.push(FieldError::invalid("metadata.name", &json!(name), "a host's name must not be a UUID"));
    }
}

fn bmc(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let disabled = host.spec.inspection_mode == Some(InspectionMode::Disabled);
    let needs_mac = |errors: &mut Vec<FieldError>, why: &str| {
        if host.spec.boot_mac_address.is_none() {
            errors.push(FieldError::required("spec.bootMACAddress", why));
        }
    };
    if disabled {
        needs_mac(errors, "without inspection the boot MAC address cannot be found");
    }
    let Some(bmc) = host.spec.bmc.as_ref().filter(|bmc| !bmc.address.is_empty()) else { return };
    let address = match BmcAddress::parse(&bmc.address) {
        Ok(address) => address,
        Err(error) => {
            errors.push(FieldError::invalid("spec.bmc.address", &json!(bmc.address), error.to_string()));
            return;
        }
    };
    let can = address.capabilities();
    if can.needs_mac && !disabled {
        needs_mac(errors, "this kind of BMC needs it");
    }
    if host.spec.boot_mode == Some(BootMode::UEFISecureBoot) && !can.secure_boot {
        errors.push(FieldError::invalid(
            "spec.bootMode",
            &json!("UEFISecureBoot"),
            "this kind of BMC cannot switch Secure Boot",
        ));
    }
    if host.spec.inspection_mode == Some(InspectionMode::Fast) && !can.fast_inspection {
        errors.push(FieldError::invalid("spec.inspectionMode", &json!("fast"), "needs Redfish"));
    }
    let hardware_raid = host.spec.raid.as_ref().is_some_and(|raid| raid["hardwareRAIDVolumes"].is_array());
    if hardware_raid && can.raid == RaidInterface::None {
        errors
            .push(FieldError::forbidden("spec.raid.hardwareRAIDVolumes", "this kind of BMC cannot build RAID volumes"));
    }
}

fn power(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    if host.spec.disable_power_off && !host.spec.online {
        errors.push(FieldError::invalid("spec.online", &json!(false), "cannot be false while disablePowerOff is true"));
    }
}

fn image(image: Option<&Image>, errors: &mut Vec<FieldError>) {
    let Some(image) = image.filter(|image| !image.url.is_empty()) else { return };
    let scheme = image.url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).unwrap_or_default();
    if !IMAGE_SCHEMES.contains(&scheme.as_str()) {
        let detail =
            format!("must begin with one of {}", IMAGE_SCHEMES.map(|scheme| format!("{scheme}://")).join(", "));
        errors.push(FieldError::invalid("spec.image.url", &json!(image.url), detail));
        return;
    }
    let checksum = image.checksum.as_deref().unwrap_or_default();
    if scheme == "oci" {
        if !checksum.is_empty() {
            errors.push(FieldError::forbidden("spec.image.checksum", "an oci image is checked by its digest"));
        }
        return;
    }
    let live = image.format.as_deref() == Some("live-iso");
    if checksum.is_empty() {
        if !live {
            let detail = "give the checksum, or the URL of a file of checksums";
            errors.push(FieldError::required("spec.image.checksum", detail));
        }
        return;
    }
    if checksum.contains("://") {
        return;
    }
    let digits = match image.checksum_type.unwrap_or_default() {
        ChecksumType::Md5 => vec![32],
        ChecksumType::Sha256 => vec![64],
        ChecksumType::Sha512 => vec![128],
        ChecksumType::Auto => vec![32, 64, 128],
    };
    if !digits.contains(&checksum.len()) || !checksum.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let lengths = digits.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let detail = format!("must have {lengths} hex digits, or be the URL of a file of checksums");
        errors.push(FieldError::invalid("spec.image.checksum", &json!(checksum), detail));
    }
}

fn hints(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let device = host.spec.root_device_hints.as_ref().and_then(|hints| hints.device_name.as_deref());
    let Some(device) = device else { return };
    let plain = |name: &str| !name.is_empty() && !name.contains('/') && name != ".." && name != ".";
    let by_path = device.strip_prefix("/dev/disk/by-path/").is_some_and(plain);
    if !by_path && !device.strip_prefix("/dev/").is_some_and(plain) {
        let detail = "must be /dev/NAME or /dev/disk/by-path/NAME";
        errors.push(FieldError::invalid("spec.rootDeviceHints.deviceName", &json!(device), detail));
    }
}

fn secrets(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let own = host.metadata.namespace.as_deref().unwrap_or_default();
    let mut local = |field: &str, reference: Option<&SecretReference>| {
        let other = reference.and_then(|reference| reference.namespace.as_deref()).filter(|other| !other.is_empty());
        if other.is_some_and(|other| other != own) {
            errors.push(FieldError::forbidden(format!("spec.{field}.namespace"), "must be the host's own namespace"));
        }
    };
    local("userData", host.spec.user_data.as_ref());
    local("metaData", host.spec.meta_data.as_ref());
    local("networkData", host.spec.network_data.as_ref());
}

fn changes(before: &BareMetalHost, host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let status = before.status.clone().unwrap_or_default();
    let state = status.provisioning.state;
    let detached = status.operational_status == OperationalStatus::Detached;
    let address = |host: &BareMetalHost| host.spec.bmc.as_ref().map(|bmc| bmc.address.clone()).unwrap_or_default();
    let (old, new) = (address(before), address(host));
    let open = matches!(state, ProvisioningState::None | ProvisioningState::Unmanaged | ProvisioningState::Registering);
    if !old.is_empty() && old != new && !open && !detached {
        let detail = "can be changed only while the host is registering or detached";
        errors.push(FieldError::forbidden("spec.bmc.address", detail));
    }
    if let Some(old) = &before.spec.boot_mac_address {
        let same = host.spec.boot_mac_address.as_ref().is_some_and(|new| new.eq_ignore_ascii_case(old));
        if !same {
            errors.push(FieldError::forbidden("spec.bootMACAddress", "cannot be changed once set"));
        }
    }
    let adopted = host.spec.externally_provisioned && !before.spec.externally_provisioned;
    if adopted && state != ProvisioningState::Available {
        let detail = "can become true only on creation or while the host is available";
        errors.push(FieldError::forbidden("spec.externallyProvisioned", detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(spec: Value) -> Value {
        json!({ "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": { "name": "h", "namespace": "ns" }, "spec": spec })
    }

    fn paths(old: Option<&Value>, new: &Value) -> Vec<String> {
        check(old, new).into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn each_rule_names_its_field() {
        let sha = "a".repeat(64);
        let rows = [
            (json!({ "online": true }), vec![]),
            (
                json!({ "online": true, "bmc": { "address": "carrier-pigeon://x", "credentialsName": "s" } }),
                vec!["spec.bmc.address"],
            ),
            (
                json!({ "online": true, "bmc": { "address": "ipmi://10.0.0.1", "credentialsName": "s" }, "bootMode": "UEFISecureBoot" }),
                vec!["spec.bootMode"],
            ),
            (
                json!({ "online": true, "bmc": { "address": "ipmi://10.0.0.1", "credentialsName": "s" }, "inspectionMode": "fast" }),
                vec!["spec.inspectionMode"],
            ),
            (
                json!({ "online": true, "bmc": { "address": "ipmi://10.0.0.1", "credentialsName": "s" }, "raid": { "hardwareRAIDVolumes": [] } }),
                vec!["spec.raid.hardwareRAIDVolumes"],
            ),
            (
                json!({ "online": true, "bmc": { "address": "libvirt://10.0.0.1", "credentialsName": "s" } }),
                vec!["spec.bootMACAddress"],
            ),
            (json!({ "online": true, "inspectionMode": "disabled" }), vec!["spec.bootMACAddress"]),
            (json!({ "online": false, "disablePowerOff": true }), vec!["spec.online"]),
            (
                json!({ "online": true, "image": { "url": "file:///etc/passwd", "checksum": sha } }),
                vec!["spec.image.url"],
            ),
            (json!({ "online": true, "image": { "url": "http://x/i.qcow2" } }), vec!["spec.image.checksum"]),
            (
                json!({ "online": true, "image": { "url": "http://x/i.qcow2", "checksum": "abc" } }),
                vec!["spec.image.checksum"],
            ),
            (
                json!({ "online": true, "image": { "url": "http://x/i.qcow2", "checksum": sha, "checksumType": "md5" } }),
                vec!["spec.image.checksum"],
            ),
            (
                json!({ "online": true, "image": { "url": "http://x/i.qcow2", "checksum": "http://x/SHA256SUMS" } }),
                vec![],
            ),
            (json!({ "online": true, "image": { "url": "http://x/i.iso", "format": "live-iso" } }), vec![]),
            (json!({ "online": true, "image": { "url": "oci://x/i", "checksum": sha } }), vec!["spec.image.checksum"]),
            (
                json!({ "online": true, "rootDeviceHints": { "deviceName": "/dev/../sda" } }),
                vec!["spec.rootDeviceHints.deviceName"],
            ),
            (json!({ "online": true, "rootDeviceHints": { "deviceName": "/dev/disk/by-path/pci-0" } }), vec![]),
            (
                json!({ "online": true, "userData": { "name": "u", "namespace": "other" } }),
                vec!["spec.userData.namespace"],
            ),
            (json!({ "online": true, "firmware": { "sriovEnabled": true } }), vec!["spec.firmware"]),
        ];
        for (spec, expected) in rows {
            assert_eq!(paths(None, &host(spec.clone())), expected, "{spec}");
        }
        let mut named = host(json!({ "online": true }));
        named["metadata"]["name"] = json!("3f3a0b3e-7a8e-4a4e-9f3e-0f6d3f1c2b1a");
        assert_eq!(paths(None, &named), ["metadata.name"]);
    }

    #[test]
    fn what_may_change_depends_on_the_state() {
        let with = |address: &str, state: &str| {
            let mut host = host(json!({ "online": true, "bmc": { "address": address, "credentialsName": "s" } }));
            host["status"] = json!({ "provisioning": { "state": state, "ID": "" } });
            host
        };
        let (one, two) = ("ipmi://10.0.0.1", "ipmi://10.0.0.2");
        assert!(paths(Some(&with(one, "registering")), &with(two, "registering")).is_empty());
        assert_eq!(paths(Some(&with(one, "available")), &with(two, "available")), ["spec.bmc.address"]);
        assert!(paths(Some(&with("", "unmanaged")), &with(two, "unmanaged")).is_empty());
        let mac = |mac: Option<&str>| host(json!({ "online": true, "bootMACAddress": mac }));
        assert!(paths(Some(&mac(Some("aa:bb:cc:00:00:01"))), &mac(Some("AA:BB:CC:00:00:01"))).is_empty());
        assert_eq!(paths(Some(&mac(Some("aa:bb:cc:00:00:01"))), &mac(None)), ["spec.bootMACAddress"]);
        assert!(paths(Some(&mac(None)), &mac(Some("aa:bb:cc:00:00:01"))).is_empty());
        let adopt = |adopted: bool| host(json!({ "online": true, "externallyProvisioned": adopted }));
        assert_eq!(paths(Some(&adopt(false)), &adopt(true)), ["spec.externallyProvisioned"]);
    }
}

//! What a BareMetalHost must be before it is stored (docs/design/host.md, "Admission"), beyond what its schema says.
//!
//! The rules that look at the status see the stored one: clients cannot change it through the main resource. What a
//! stored host breaks already does not stop another change of it, so that a rule that is new here never keeps a
//! finalizer on a host.

pub mod annotations;
pub(in crate::host) mod bmc_addresses;
mod image;
#[cfg(test)]
mod tests;
pub(in crate::host) mod unsupported;

use serde_json::{Value, json};

use self::unsupported::{size, unsupported};
use crate::api::metal3::{
    BareMetalHost, InspectionMode, MAX_SPEC, NetworkInterface, OperationalStatus, ProvisioningState, RootDeviceHints,
    SecretReference,
};
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError, FieldFault, subdomain};
use crate::bmc::BmcAddress;
use crate::outbound::masked;

/// The rules as the API server asks for them. Who deletes or reports a status is not judged.
///
/// # Errors
///
/// Every rule that the change breaks.
pub fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let errors = check(request.old, request.object);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Every rule that the new object breaks and the old one did not. Objects that cannot be read as a host are left to
/// the schema.
pub fn check(old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let read = |object: &Value| serde_json::from_value::<BareMetalHost>(object.clone()).ok();
    let Some(host) = read(new) else { return Vec::new() };
    let mut errors = faults(&host);
    // Of what is read no further than its bound, all counts here.
    let large = |object: &Value| size(&object["spec"]) > MAX_SPEC;
    if errors.is_empty() && large(new) && !old.is_some_and(large) {
        errors.push(FieldError::forbidden("spec", format!("more than {MAX_SPEC} bytes are not supported")));
    }
    if let Some(before) = old.and_then(read) {
        if !errors.is_empty() {
            let known = faults(&before);
            errors.retain(|error| !known.contains(error));
        }
        changes(&before, &host, &mut errors);
    }
    errors
}

/// What is wrong with a host by itself.
fn faults(host: &BareMetalHost) -> Vec<FieldError> {
    let mut errors = Vec::new();
    name(host, &mut errors);
    annotations::check(host, &mut errors);
    bmc(host, &mut errors);
    power(host, &mut errors);
    image::check(host, &mut errors);
    hints("spec.rootDeviceHints", host.spec.root_device_hints.as_ref(), &mut errors);
    secrets(host, &mut errors);
    interfaces(&host.spec.network_interfaces, &mut errors);
    metadata(host, &mut errors);
    errors.extend(unsupported(&host.spec).into_iter().map(|one| match one.value {
        Some(value) => FieldError::with_value(FieldFault::NotSupported, one.field, &json!(value), one.reason),
        None => FieldError::forbidden(one.field, one.reason),
    }));
    errors
}

/// Whether the host is inspected by nobody: by its spec, or by the annotation that did it before.
fn inspection_disabled(host: &BareMetalHost) -> bool {
    host.spec.inspection_mode == Some(InspectionMode::Disabled)
        || annotations::inspect(host) == Some(annotations::INSPECT_DISABLED)
}

fn name(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let name = host.metadata.name.as_deref().unwrap_or_default();
    if !name.is_empty() && uuid::Uuid::parse_str(name).is_ok() {
        errors.push(FieldError::invalid("metadata.name", &json!(name), "a host's name must not be a UUID"));
    }
}

/// Labels, finalizers and owners of a host. Annotations have a bound of their own, with every kind.
const MAX_METADATA: usize = 256;

fn metadata(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let (owners, metadata) = (host.metadata.owner_references.as_ref(), &host.metadata);
    for (field, count) in [
        ("labels", metadata.labels.as_ref().map_or(0, std::collections::BTreeMap::len)),
        ("finalizers", metadata.finalizers.as_ref().map_or(0, Vec::len)),
        ("ownerReferences", owners.map_or(0, Vec::len)),
    ] {
        if count > MAX_METADATA {
            let detail = format!("more than {MAX_METADATA} are not supported");
            errors.push(FieldError::forbidden(format!("metadata.{field}"), detail));
        }
    }
}

fn bmc(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let Some(bmc) = host.spec.bmc.as_ref() else { return };
    object_name("spec.bmc.credentialsName", &bmc.credentials_name, errors);
    if bmc.address.is_empty() {
        return;
    }
    let address = match BmcAddress::parse(&bmc.address) {
        Ok(address) => address,
        Err(error) => {
            let said = masked(&bmc.address);
            errors.push(FieldError::invalid("spec.bmc.address", &json!(said), error.to_string()));
            return;
        }
    };
    let can = address.capabilities();
    let scheme = address.driver.scheme();
    if host.spec.boot_mac_address.is_none() {
        if can.needs_mac {
            errors.push(FieldError::required("spec.bootMACAddress", format!("{scheme}:// needs it")));
        } else if inspection_disabled(host) && !can.fast_inspection {
            let detail = "without inspection the boot MAC address cannot be found";
            errors.push(FieldError::required("spec.bootMACAddress", detail));
        }
    }
    if host.spec.inspection_mode == Some(InspectionMode::Fast) && !can.fast_inspection {
        let detail = format!("needs Redfish, which {scheme}:// is not");
        errors.push(FieldError::invalid("spec.inspectionMode", &json!("fast"), detail));
    }
}

fn power(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    if host.spec.disable_power_off && !host.spec.online {
        errors.push(FieldError::invalid("spec.online", &json!(false), "cannot be false while disablePowerOff is true"));
    }
}

fn hints(path: &str, hints: Option<&RootDeviceHints>, errors: &mut Vec<FieldError>) {
    let device = hints.and_then(|hints| hints.device_name.as_deref()).filter(|device| !device.is_empty());
    let Some(device) = device else { return };
    let plain = |name: &str| !name.is_empty() && !name.contains('/') && name != ".." && name != ".";
    let by_path = device.strip_prefix("/dev/disk/by-path/").is_some_and(plain);
    if !by_path && !device.strip_prefix("/dev/").is_some_and(plain) {
        let detail = "must be /dev/NAME or /dev/disk/by-path/NAME";
        errors.push(FieldError::invalid(format!("{path}.deviceName"), &json!(device), detail));
    }
}

/// The name of an object that the host refers to: it becomes part of a path.
fn object_name(path: &str, name: &str, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        return;
    }
    errors.extend(subdomain(name).into_iter().map(|fault| FieldError::invalid(path, &json!(name), fault)));
}

fn secrets(host: &BareMetalHost, errors: &mut Vec<FieldError>) {
    let own = host.metadata.namespace.as_deref().unwrap_or_default();
    let mut local = |field: &str, reference: Option<&SecretReference>| {
        let Some(reference) = reference else { return };
        object_name(&format!("spec.{field}.name"), reference.name.as_deref().unwrap_or_default(), errors);
        let other = reference.namespace.as_deref().filter(|other| !other.is_empty());
        if other.is_some_and(|other| other != own) {
            errors.push(FieldError::forbidden(format!("spec.{field}.namespace"), "must be the host's own namespace"));
        }
    };
    let spec = &host.spec;
    local("userData", spec.user_data.as_ref());
    local("metaData", spec.meta_data.as_ref());
    local("networkData", spec.network_data.as_ref());
    let network = spec.preprovisioning_network_data_name.as_deref().unwrap_or_default();
    object_name("spec.preprovisioningNetworkDataName", network, errors);
}

fn interfaces(interfaces: &[NetworkInterface], errors: &mut Vec<FieldError>) {
    for (at, interface) in interfaces.iter().enumerate() {
        let path = format!("spec.networkInterfaces[{at}]");
        match (&interface.name, &interface.mac_address) {
            (None, None) => errors.push(FieldError::required(path, "give name or macAddress")),
            (Some(_), Some(_)) => {
                errors.push(FieldError::forbidden(format!("{path}.macAddress"), "give name or macAddress, not both"));
            }
            _ => {}
        }
    }
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
    // Nothing was done yet to the machine of a host that waits to be accepted, or names no BMC.
    let untouched = matches!(state, ProvisioningState::None | ProvisioningState::Unmanaged);
    if adopted && !untouched && state != ProvisioningState::Available {
        let detail = "can become true only on creation, or while the host is unmanaged or available";
        errors.push(FieldError::forbidden("spec.externallyProvisioned", detail));
    }
}

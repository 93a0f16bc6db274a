//! What an inventory must be before it is stored: what its BareMetalHost must be.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::mirror;
use crate::api::kaas::BareMetalHostInventory;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
use crate::host;

/// Rules for a change of an inventory.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn inventory(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let errors = faults(request.old, request.object);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn faults(old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let Some(wanted) = as_host(new) else { return Vec::new() };
    let mut errors = host::admission::check(old.and_then(as_host).as_ref(), &wanted);
    for error in &mut errors {
        if error.path == "spec.bmc.credentialsName" {
            error.path = "spec.bmc.bmhCredentialsName".into();
        }
    }
    errors
}

/// The host that would be made of an inventory, in the state in which its host is. One that cannot be read is left to the schema.
fn as_host(inventory: &Value) -> Option<Value> {
    let inventory: BareMetalHostInventory = serde_json::from_value(inventory.clone()).ok()?;
    let mut spec = json!(mirror::spec(&inventory));
    if let Some(bmc) = &inventory.spec.bmc {
        spec["bmc"]["credentialsName"] = bmc.bmh_credentials_name.clone().into();
    }
    let status = inventory.status.clone().unwrap_or_default();
    Some(json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {"name": inventory.name_any(), "namespace": inventory.namespace(),
            "annotations": mirror::annotations(&inventory), "labels": mirror::labels(&inventory)},
        "spec": spec,
        "status": {"operationalStatus": status.operational_status, "provisioning": status.provisioning},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inventory_is_judged_as_its_host_is() {
        let inventory = |spec: Value, state: &str| json!({"metadata": {"name": "a", "namespace": "rack"}, "spec": spec, "status": {"provisioning": {"state": state}}});
        let bmc = |address: &str, credential: &str| {
            json!({"online": true, "bootMACAddress": "52:54:00:00:00:01",
                "bmc": {"address": address, "bmhCredentialsName": credential}})
        };
        let (good, other) = ("redfish://192.0.2.9/redfish/v1/Systems/1", "redfish://192.0.2.8/redfish/v1/Systems/1");
        let mut moved = bmc(good, "c");
        moved["bootMACAddress"] = "52:54:00:00:00:02".into();
        for (old, new, wanted) in [
            (None, inventory(bmc(good, "c"), ""), None),
            (None, inventory(json!({"online": false}), ""), None),
            (None, inventory(bmc("gopher://x", "c"), ""), Some("spec.bmc.address")),
            (None, inventory(bmc(good, "../c"), ""), Some("spec.bmc.bmhCredentialsName")),
            (
                Some(inventory(bmc(good, "c"), "available")),
                inventory(bmc(other, "c"), "available"),
                Some("spec.bmc.address"),
            ),
            (Some(inventory(bmc(good, "c"), "registering")), inventory(bmc(other, "c"), "registering"), None),
            (Some(inventory(bmc(good, "c"), "")), inventory(moved, ""), Some("spec.bootMACAddress")),
        ] {
            let said = faults(old.as_ref(), &new);
            assert_eq!(said.first().map(|error| error.path.as_str()), wanted, "{new}: {said:?}");
        }
    }
}

//! Bodies of the simulated Redfish service.

use axum::body::Body;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json as value};

use super::machine::{BootOverride, Machine, Override};
use super::redfish::RedfishOptions;
use crate::bmc::{BootDevice, Health};

pub(super) fn json(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn ok(body: &Value) -> Response<Body> {
    json(StatusCode::OK, body)
}

pub(super) fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

pub(super) fn error(status: StatusCode, id: &str, text: &str) -> Response<Body> {
    let info = value!([{"MessageId": format!("Base.1.18.{id}"), "Message": text}]);
    let code = "Base.1.18.GeneralError";
    json(
        status,
        &value!({"error": {"code": code, "message": "See @Message.ExtendedInfo.", "@Message.ExtendedInfo": info}}),
    )
}

pub(super) fn unauthorized() -> Response<Body> {
    let mut response =
        error(StatusCode::UNAUTHORIZED, "InsufficientPrivilege", "The credentials are missing or wrong.");
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"simulated BMC\""));
    response
}

pub(super) fn root(sessions: bool) -> Value {
    let mut root = value!({
        "@odata.id": "/redfish/v1/", "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Id": "RootService",
        "Name": "Root Service", "RedfishVersion": "1.15.0", "Systems": {"@odata.id": "/redfish/v1/Systems"},
    });
    if sessions {
        root["SessionService"] = value!({"@odata.id": "/redfish/v1/SessionService"});
        root["Links"] = value!({"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}});
    }
    root
}

fn path(name: &str) -> String {
    format!("/redfish/v1/Systems/{name}")
}

pub(super) fn systems(names: &[&str]) -> Value {
    let members: Vec<Value> = names.iter().map(|n| value!({"@odata.id": path(n)})).collect();
    value!({
        "@odata.id": "/redfish/v1/Systems", "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
        "Name": "Computer System Collection", "Members@odata.count": members.len(), "Members": members,
    })
}

fn boot(machine: &Machine) -> Value {
    let now = machine.boot();
    value!({
        "BootSourceOverrideEnabled": match now.enabled {
            Override::Disabled => "Disabled",
            Override::Once => "Once",
            Override::Continuous => "Continuous",
        },
        "BootSourceOverrideTarget": match (now.enabled, now.device) {
            (Override::Disabled, _) | (_, None) => "None",
            (_, Some(BootDevice::Pxe)) => "Pxe",
            (_, Some(BootDevice::Disk)) => "Hdd",
        },
        "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "Hdd"],
        "BootSourceOverrideMode": if now.uefi { "UEFI" } else { "Legacy" },
        "BootSourceOverrideMode@Redfish.AllowableValues": ["UEFI", "Legacy"],
    })
}

pub(super) fn system(machine: &Machine, options: &RedfishOptions) -> Value {
    let id = path(&machine.profile.name);
    let mut system = value!({
        "@odata.id": id, "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
        "Id": machine.profile.name, "Name": machine.profile.name, "SystemType": "Physical",
        "Manufacturer": machine.profile.manufacturer, "Model": machine.profile.model,
        "PowerState": if machine.is_on() { "On" } else { "Off" },
        "Boot": boot(machine),
        "Actions": {"#ComputerSystem.Reset": {
            "target": format!("{id}/Actions/ComputerSystem.Reset"),
            "ResetType@Redfish.AllowableValues": options.reset_types,
        }},
    });
    let health = match machine.health() {
        Health::Unknown => None,
        Health::Ok => Some("OK"),
        Health::Warning => Some("Warning"),
        Health::Critical => Some("Critical"),
    };
    system["Status"] = value!({"State": "Enabled", "HealthRollup": health});
    if options.settings_resource {
        // The system itself shows what is in force; what is to come is in the settings.
        system["Boot"]["BootSourceOverrideEnabled"] = "Disabled".into();
        system["Boot"]["BootSourceOverrideTarget"] = "None".into();
        system["@Redfish.Settings"] = value!({"SettingsObject": {"@odata.id": format!("{id}/Settings")}});
    }
    system
}

pub(super) fn settings(machine: &Machine) -> Value {
    let id = path(&machine.profile.name);
    value!({
        "@odata.id": format!("{id}/Settings"), "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
        "Id": "Settings", "Name": "Future state", "Boot": boot(machine),
    })
}

/// The boot override that a write leads to, or the message id and text of its refusal.
pub(super) fn boot_from(
    body: &Value,
    now: BootOverride,
    options: &RedfishOptions,
) -> Result<BootOverride, (&'static str, String)> {
    let Some(properties) = body.as_object() else {
        return Err(("PropertyMissing", "The property Boot is missing.".into()));
    };
    let mut boot = if options.forgets_unsent { BootOverride::default() } else { now };
    for (key, given) in properties {
        let given = given.as_str().unwrap_or_default();
        let wrong = || ("PropertyValueNotInList", format!("The value {given:?} of {key} is not in the list."));
        match key.as_str() {
            "BootSourceOverrideMode" if options.mode_read_only => {
                return Err(("PropertyNotWritable", format!("The property {key} is read only.")));
            }
            "BootSourceOverrideMode" => {
                boot.uefi = match given {
                    "UEFI" => true,
                    "Legacy" => false,
                    _ => return Err(wrong()),
                }
            }
            "BootSourceOverrideEnabled" => {
                boot.enabled = match given {
                    "Disabled" => Override::Disabled,
                    "Once" if options.no_once => Override::Continuous,
                    "Once" => Override::Once,
                    "Continuous" => Override::Continuous,
                    _ => return Err(wrong()),
                }
            }
            "BootSourceOverrideTarget" => {
                boot.device = match given {
                    "None" => None,
                    "Pxe" => Some(BootDevice::Pxe),
                    "Hdd" => Some(BootDevice::Disk),
                    _ => return Err(wrong()),
                }
            }
            _ => return Err(("PropertyUnknown", format!("The property {key} is unknown."))),
        }
    }
    Ok(boot)
}

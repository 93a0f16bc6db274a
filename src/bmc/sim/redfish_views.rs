//! Bodies of the simulated Redfish service.

use axum::body::Body;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json as value};

use super::machine::{BootOverride, Override, SimulatedMachine};
use super::redfish::{MediaStyle, RedfishOptions};
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
        "Managers": {"@odata.id": "/redfish/v1/Managers"},
    });
    if sessions {
        root["SessionService"] = value!({"@odata.id": "/redfish/v1/SessionService"});
        root["Links"] = value!({"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}});
    }
    root
}

const MANAGER: &str = "/redfish/v1/Managers/1";

fn collection(path: &str, kind: &str, name: &str, members: &[String]) -> Value {
    let members: Vec<Value> = members.iter().map(|path| value!({"@odata.id": path})).collect();
    value!({
        "@odata.id": path, "@odata.type": format!("#{kind}Collection.{kind}Collection"), "Name": name,
        "Members@odata.count": members.len(), "Members": members,
    })
}

pub(super) fn managers() -> Value {
    collection("/redfish/v1/Managers", "Manager", "Manager Collection", &[MANAGER.to_owned()])
}

pub(super) fn manager(names: &[&str], options: &RedfishOptions) -> Value {
    let servers: Vec<Value> = names.iter().map(|name| value!({"@odata.id": path(name)})).collect();
    let mut manager = value!({
        "@odata.id": MANAGER, "@odata.type": "#Manager.v1_19_0.Manager", "Id": "1", "Name": "Simulated BMC",
        "ManagerType": "BMC", "FirmwareVersion": env!("CARGO_PKG_VERSION"), "Links": {"ManagerForServers": servers},
    });
    if matches!(options.media, MediaStyle::Manager | MediaStyle::ManagerPatch) {
        manager["VirtualMedia"] = value!({"@odata.id": format!("{MANAGER}/VirtualMedia")});
    }
    manager
}

fn drives_path(machine: &SimulatedMachine, style: MediaStyle) -> String {
    let above = if style == MediaStyle::System { path(&machine.profile.name) } else { MANAGER.to_owned() };
    format!("{above}/VirtualMedia")
}

pub(super) fn drives(machine: &SimulatedMachine, style: MediaStyle) -> Value {
    let path = drives_path(machine, style);
    collection(&path, "VirtualMedia", "Virtual Media Collection", &[format!("{path}/Cd")])
}

pub(super) fn drive(machine: &SimulatedMachine, style: MediaStyle) -> Value {
    let path = format!("{}/Cd", drives_path(machine, style));
    let image = machine.media();
    let mut drive = value!({
        "@odata.id": path, "@odata.type": "#VirtualMedia.v1_6_3.VirtualMedia", "Id": "Cd", "Name": "Virtual CD",
        "MediaTypes": ["CD", "DVD"], "ConnectedVia": if image.is_some() { "URI" } else { "NotConnected" },
        "Inserted": image.is_some(), "Image": image, "WriteProtected": true,
    });
    if style != MediaStyle::ManagerPatch {
        let action = |name: &str| value!({"target": format!("{path}/Actions/{name}")});
        drive["Actions"] = value!({
            "#VirtualMedia.InsertMedia": action("VirtualMedia.InsertMedia"),
            "#VirtualMedia.EjectMedia": action("VirtualMedia.EjectMedia"),
        });
    }
    drive
}

/// A processor, a network card and a disk, for inventories. The card's address follows from the machine's name.
pub(super) fn hardware(machine: &SimulatedMachine, rest: &[&str]) -> Option<Value> {
    let id = path(&machine.profile.name);
    let of = |folder: &str, kind: &str| {
        let at = format!("{id}/{folder}");
        collection(&at, kind, &format!("{kind} Collection"), &[format!("{at}/1")])
    };
    Some(match rest {
        ["Processors"] => of("Processors", "Processor"),
        ["Processors", "1"] => value!({
            "@odata.id": format!("{id}/Processors/1"), "@odata.type": "#Processor.v1_18_0.Processor", "Id": "1",
            "Name": "Processor", "ProcessorType": "CPU", "ProcessorArchitecture": "x86", "InstructionSet": "x86-64",
            "Model": "Simulated", "MaxSpeedMHz": 2000, "TotalCores": 4, "TotalThreads": 8,
        }),
        ["EthernetInterfaces"] => of("EthernetInterfaces", "EthernetInterface"),
        ["EthernetInterfaces", "1"] => value!({
            "@odata.id": format!("{id}/EthernetInterfaces/1"), "Id": "1", "Name": "Network card",
            "@odata.type": "#EthernetInterface.v1_10_0.EthernetInterface",
            "MACAddress": mac(&machine.profile.name), "SpeedMbps": 10_000,
        }),
        ["Storage"] => of("Storage", "Storage"),
        ["Storage", "1"] => value!({
            "@odata.id": format!("{id}/Storage/1"), "@odata.type": "#Storage.v1_15_0.Storage", "Id": "1",
            "Name": "Storage", "Drives": [{"@odata.id": format!("{id}/Storage/1/Drives/1")}],
        }),
        ["Storage", "1", "Drives", "1"] => value!({
            "@odata.id": format!("{id}/Storage/1/Drives/1"), "@odata.type": "#Drive.v1_18_0.Drive", "Id": "1",
            "Name": "Drive", "MediaType": "SSD", "Protocol": "NVMe", "CapacityBytes": 480_103_981_056_i64,
            "Model": "Simulated", "SerialNumber": format!("{}-1", machine.profile.name),
        }),
        _ => return None,
    })
}

/// A locally administered address made of the name.
fn mac(name: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(name);
    crate::api::MacAddress([2, digest[0], digest[1], digest[2], digest[3], digest[4]]).to_string()
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

/// The name of the CD drive as a boot device.
fn cd(options: &RedfishOptions) -> &'static str {
    if options.cd_on_usb { "UsbCd" } else { "Cd" }
}

fn boot(machine: &SimulatedMachine, options: &RedfishOptions) -> Value {
    let now = machine.boot();
    let mut targets = vec!["None", "Pxe", "Hdd"];
    if options.media != MediaStyle::None {
        targets.push(cd(options));
    }
    if options.uefi_http {
        targets.push("UefiHttp");
    }
    let mut boot = value!({
        "BootSourceOverrideEnabled": match now.enabled {
            Override::Disabled => "Disabled",
            Override::Once => "Once",
            Override::Continuous => "Continuous",
        },
        "BootSourceOverrideTarget": match (now.enabled, now.device) {
            (Override::Disabled, _) | (_, None) => "None",
            (_, Some(BootDevice::Pxe)) => "Pxe",
            (_, Some(BootDevice::Disk)) => "Hdd",
            (_, Some(BootDevice::Cd)) => cd(options),
            (_, Some(BootDevice::UefiHttp)) => "UefiHttp",
        },
        "BootSourceOverrideTarget@Redfish.AllowableValues": targets,
        "BootSourceOverrideMode": if now.uefi { "UEFI" } else { "Legacy" },
        "BootSourceOverrideMode@Redfish.AllowableValues": ["UEFI", "Legacy"],
    });
    if options.uefi_http {
        boot["HttpBootUri"] = machine.http_uri().map_or(Value::Null, Value::from);
    }
    boot
}

pub(super) fn system(machine: &SimulatedMachine, options: &RedfishOptions) -> Value {
    let id = path(&machine.profile.name);
    let mut system = value!({
        "@odata.id": id, "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
        "Id": machine.profile.name, "Name": machine.profile.name, "SystemType": "Physical",
        "Manufacturer": machine.profile.manufacturer, "Model": machine.profile.model,
        "PowerState": if machine.is_on() { "On" } else { "Off" },
        "Boot": boot(machine, options),
        "ProcessorSummary": {"Count": 1, "Model": "Simulated"}, "MemorySummary": {"TotalSystemMemoryGiB": 16},
        "SerialNumber": machine.profile.name, "BiosVersion": "1.0",
        "Processors": {"@odata.id": format!("{id}/Processors")},
        "EthernetInterfaces": {"@odata.id": format!("{id}/EthernetInterfaces")},
        "Storage": {"@odata.id": format!("{id}/Storage")},
        "Links": {"ManagedBy": [{"@odata.id": MANAGER}]},
        "Actions": {"#ComputerSystem.Reset": {
            "target": format!("{id}/Actions/ComputerSystem.Reset"),
            "ResetType@Redfish.AllowableValues": options.reset_types,
        }},
    });
    if options.media == MediaStyle::System {
        system["VirtualMedia"] = value!({"@odata.id": format!("{id}/VirtualMedia")});
    }
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

pub(super) fn settings(machine: &SimulatedMachine, options: &RedfishOptions) -> Value {
    let id = path(&machine.profile.name);
    value!({
        "@odata.id": format!("{id}/Settings"), "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
        "Id": "Settings", "Name": "Future state", "Boot": boot(machine, options),
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
                    "Cd" | "UsbCd" if given == cd(options) => Some(BootDevice::Cd),
                    "UefiHttp" if options.uefi_http => Some(BootDevice::UefiHttp),
                    _ => return Err(wrong()),
                }
            }
            "HttpBootUri" if options.uefi_http => {}
            _ => return Err(("PropertyUnknown", format!("The property {key} is unknown."))),
        }
    }
    Ok(boot)
}

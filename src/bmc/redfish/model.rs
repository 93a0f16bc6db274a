//! Redfish resources as plain data, and the pure choices made from them.

use serde_json::{Value, json};

use crate::bmc::quirks::{RedfishIdentity, RedfishQuirks};
use crate::bmc::{BootDevice, FirmwareMode, Health, PowerAction, PowerState};

/// Links are paths on the same service; anything else is not followed.
pub fn link(value: &Value) -> Option<String> {
    let path = value["@odata.id"].as_str()?;
    let fine = path.starts_with('/')
        && !path.starts_with("//")
        && path.len() <= 1024
        && path.bytes().all(|b| b.is_ascii_graphic());
    fine.then(|| path.trim_end_matches('/').to_string())
}

/// The members of a collection, at most 64.
pub fn members(collection: &Value) -> Vec<String> {
    let list = collection["Members"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().take(64).filter_map(link).collect()
}

/// How many members a collection has, whether they are on this page of it and can be asked or not.
pub fn count(collection: &Value) -> usize {
    let said = collection["Members@odata.count"].as_u64().and_then(|count| count.try_into().ok());
    said.unwrap_or(0).max(collection["Members"].as_array().map_or(0, Vec::len))
}

/// Who made the machine.
pub fn identity(system: &Value) -> RedfishIdentity {
    let text = |key: &str| super::message::clean(system[key].as_str().unwrap_or_default(), 128);
    RedfishIdentity { manufacturer: text("Manufacturer"), model: text("Model"), firmware: String::new() }
}

/// Power of a system. On its way counts as not yet there.
pub fn power(system: &Value) -> Result<PowerState, String> {
    match &system["PowerState"] {
        Value::String(s) => match s.as_str() {
            "On" | "PoweringOff" | "Paused" => Ok(PowerState::On),
            "Off" | "PoweringOn" => Ok(PowerState::Off),
            // Not shown: a BMC may repeat what it was sent, a password too.
            _ => Err("a PowerState that is none of ComputerSystem (DSP2046)".into()),
        },
        _ => Err("a system without PowerState".into()),
    }
}

/// Health of a system with all that is in it; of the system alone where the service sums nothing up.
pub fn health(system: &Value) -> Health {
    let status = &system["Status"];
    match status["HealthRollup"].as_str().or(status["Health"].as_str()) {
        Some("OK") => Health::Ok,
        Some("Warning") => Health::Warning,
        Some("Critical") => Health::Critical,
        _ => Health::Unknown,
    }
}

/// `X@Redfish.AllowableValues`, or none when the service does not say.
pub fn allowable(object: &Value, property: &str) -> Option<Vec<String>> {
    let list = object.get(format!("{property}@Redfish.AllowableValues"))?;
    list.is_array().then(|| strings(list))
}

/// The texts of a list, at most 64 of at most 64 characters.
pub fn strings(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.take(64).map(|text| super::message::clean(text, 64)).collect()
}

/// `ResetType` for an action: the first of the wanted ones that the service allows.
pub fn reset_type(action: PowerAction, quirks: &RedfishQuirks, allowed: Option<&[String]>) -> Option<String> {
    let wanted = match action {
        PowerAction::On => &quirks.reset_on,
        PowerAction::ForceOff => &quirks.reset_force_off,
        PowerAction::SoftOff => &quirks.reset_soft_off,
        PowerAction::Reset => &quirks.reset_restart,
    };
    wanted.iter().find(|w| allowed.is_none_or(|a| a.contains(w))).cloned()
}

/// The boot override of a system or of its settings resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedfishBoot {
    /// `BootSourceOverrideEnabled`.
    pub enabled: Option<String>,
    /// `BootSourceOverrideTarget`.
    pub target: Option<String>,
    /// `BootSourceOverrideMode`.
    pub mode: Option<String>,
    /// `HttpBootUri`.
    pub http_uri: Option<String>,
}

impl RedfishBoot {
    /// Reads `Boot`.
    pub fn read(resource: &Value) -> Self {
        let text = |key: &str| resource["Boot"][key].as_str().map(|t| super::message::clean(t, 40));
        Self {
            enabled: text("BootSourceOverrideEnabled"),
            target: text("BootSourceOverrideTarget"),
            mode: text("BootSourceOverrideMode"),
            http_uri: resource["Boot"]["HttpBootUri"].as_str().map(|t| super::message::clean(t, 2048)),
        }
    }

    /// What to write for this device and mode.
    pub fn wanted(device: BootDevice, mode: FirmwareMode, quirks: &RedfishQuirks) -> Self {
        let enabled = if quirks.boot_override_once_unsupported { "Continuous" } else { "Once" };
        let target = match device {
            BootDevice::Pxe => "Pxe",
            BootDevice::Disk => "Hdd",
            BootDevice::Cd => "Cd",
            BootDevice::UefiHttp => "UefiHttp",
        };
        let mode = match mode {
            FirmwareMode::Uefi => "UEFI",
            FirmwareMode::Bios => "Legacy",
        };
        Self { enabled: Some(enabled.into()), target: Some(target.into()), mode: Some(mode.into()), http_uri: None }
    }

    /// A CD that the service only knows as one on USB.
    pub fn choose_target(&mut self, boot: &Value) {
        let Some(allowed) = allowable(boot, "BootSourceOverrideTarget") else { return };
        let has = |target: &str| allowed.iter().any(|one| one == target);
        if self.target.as_deref() == Some("Cd") && !has("Cd") && has("UsbCd") {
            self.target = Some("UsbCd".into());
        }
    }

    /// Whether `self`, as read, is what was wanted. A mode that the service does not report cannot be compared.
    pub fn satisfies(&self, want: &Self, quirks: &RedfishQuirks) -> bool {
        let mode = self.mode.is_none() || quirks.mode_not_reported || self.mode == want.mode;
        let other = quirks.uefi_http_reported_as.as_ref().filter(|_| want.target.as_deref() == Some("UefiHttp"));
        let target = self.target == want.target || (other.is_some() && self.target.as_ref() == other);
        let url = want.http_uri.is_none() || self.http_uri == want.http_uri;
        self.enabled == want.enabled && target && mode && url
    }

    /// Without the mode.
    fn without_mode(&self) -> Self {
        Self { mode: None, ..self.clone() }
    }

    /// Only what differs from `now`; the target always.
    fn changed(&self, now: &Self) -> Self {
        let differs = |want: &Option<String>, now: &Option<String>| want.clone().filter(|_| want != now);
        Self {
            enabled: differs(&self.enabled, &now.enabled),
            target: self.target.clone(),
            mode: differs(&self.mode, &now.mode),
            http_uri: self.http_uri.clone(),
        }
    }

    /// Body of the write.
    pub fn body(&self) -> Value {
        let mut boot = serde_json::Map::new();
        for (key, value) in [("Enabled", &self.enabled), ("Target", &self.target), ("Mode", &self.mode)] {
            if let Some(value) = value {
                boot.insert(format!("BootSourceOverride{key}"), json!(value));
            }
        }
        if let Some(url) = &self.http_uri {
            boot.insert("HttpBootUri".into(), json!(url));
        }
        json!({ "Boot": boot })
    }
}

impl std::fmt::Display for RedfishBoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |v: &Option<String>| v.clone().unwrap_or_else(|| "?".into());
        write!(f, "{}, {}, {}", part(&self.target), part(&self.mode), part(&self.enabled))?;
        // Which one is not told: URLs may hold what lets a machine in.
        if self.http_uri.as_ref().is_some_and(|url| !url.is_empty()) { f.write_str(", with a URL") } else { Ok(()) }
    }
}

/// The writes to try, one after the other, until one reads back.
///
/// Some services want every property, some refuse those that do not change, some do not let the mode be written. A mode
/// that is right already is left alone at first: writing it may rebuild a machine's firmware settings.
pub fn recipes(want: &RedfishBoot, now: &RedfishBoot, quirks: &RedfishQuirks) -> Vec<RedfishBoot> {
    let without_mode = want.without_mode();
    let changes_mode = now.mode.is_some() && now.mode != want.mode;
    let lean = if changes_mode { want.clone() } else { without_mode.clone() };
    let all = match (quirks.mode_must_be_omitted, quirks.boot_resend_unchanged) {
        (true, true) => vec![without_mode],
        (true, false) => vec![without_mode.clone(), without_mode.changed(now)],
        (false, true) => vec![want.clone(), without_mode],
        (false, false) => vec![lean, want.clone(), without_mode.changed(now), without_mode],
    };
    let mut out: Vec<RedfishBoot> = Vec::new();
    for boot in all {
        if !out.contains(&boot) {
            out.push(boot);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_of_the_same_service_are_followed() {
        for (text, want) in [
            ("/redfish/v1/Systems/1/", Some("/redfish/v1/Systems/1")),
            ("//evil/redfish", None),
            ("http://evil/", None),
            ("/a b", None),
            ("", None),
        ] {
            assert_eq!(link(&json!({"@odata.id": text})).as_deref(), want, "{text}");
        }
        assert_eq!(link(&json!(null)), None);
        let many: Vec<_> = (0..500).map(|n| json!({"@odata.id": format!("/s/{n}")})).collect();
        assert_eq!(members(&json!({"Members": many})).len(), 64);
    }

    #[test]
    fn a_system_is_the_only_one_when_no_other_is_told_of() {
        let one = json!({"@odata.id": "/s/1"});
        for (collection, want) in [
            (json!({"Members": [one]}), 1),
            (json!({"Members": [one], "Members@odata.count": 1}), 1),
            (json!({"Members": [one], "Members@odata.count": 2}), 2),
            (json!({"Members": [one, {"@odata.id": "/s/node 2"}], "Members@odata.count": 1}), 2),
            (json!({"Members": "none", "Members@odata.count": -1}), 0),
        ] {
            assert_eq!(count(&collection), want, "{collection}");
        }
    }

    #[test]
    fn health_is_the_rollup_where_there_is_one() {
        for (status, want) in [
            (json!({"HealthRollup": "Warning", "Health": "OK"}), Health::Warning),
            (json!({"HealthRollup": null, "Health": "OK"}), Health::Ok),
            (json!({"Health": "Critical"}), Health::Critical),
            (json!({"Health": "Splendid"}), Health::Unknown),
            (json!({"State": "Enabled"}), Health::Unknown),
            (json!(null), Health::Unknown),
        ] {
            assert_eq!(health(&json!({ "Status": status })), want, "{status}");
        }
    }

    #[test]
    fn reset_types_follow_what_is_allowed() {
        let q = RedfishQuirks::default();
        let allowed = |list: &[&str]| Some(list.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        use PowerAction::*;
        for (action, allowed, want) in [
            (On, None, Some("On")),
            (On, allowed(&["ForceOn", "ForceOff"]), Some("ForceOn")),
            (ForceOff, allowed(&["On", "ForceOff"]), Some("ForceOff")),
            (SoftOff, allowed(&["On", "PushPowerButton"]), Some("PushPowerButton")),
            (SoftOff, allowed(&["On", "ForceOff"]), None),
            (Reset, allowed(&["ForceRestart", "PowerCycle"]), Some("ForceRestart")),
            (Reset, allowed(&["PowerCycle"]), Some("PowerCycle")),
        ] {
            assert_eq!(reset_type(action, &q, allowed.as_deref()).as_deref(), want, "{action:?} {allowed:?}");
        }
    }

    #[test]
    fn power_states() {
        for (value, want) in [
            (json!("On"), Some(PowerState::On)),
            (json!("Off"), Some(PowerState::Off)),
            (json!("PoweringOn"), Some(PowerState::Off)),
            (json!("PoweringOff"), Some(PowerState::On)),
            (json!(null), None),
            (json!("Maybe"), None),
        ] {
            assert_eq!(power(&json!({"PowerState": value})).ok(), want);
        }
        let repeated = power(&json!({"PowerState": "s3cret"})).unwrap_err();
        assert!(repeated.contains("PowerState") && !repeated.contains("s3cret"), "{repeated}");
    }

    #[test]
    fn the_writes_that_are_tried_depend_on_the_controller() {
        let boot = |e: &str, t: &str, m: Option<&str>| RedfishBoot {
            enabled: (!e.is_empty()).then(|| e.into()),
            target: Some(t.into()),
            mode: m.map(Into::into),
            http_uri: None,
        };
        let q = RedfishQuirks::default();
        let want = RedfishBoot::wanted(BootDevice::Pxe, FirmwareMode::Uefi, &q);
        let now = boot("Once", "Hdd", Some("UEFI"));
        let list = recipes(&want, &now, &q);
        assert_eq!(list, [boot("Once", "Pxe", None), boot("Once", "Pxe", Some("UEFI")), boot("", "Pxe", None)]);
        // The mode changes.
        let list = recipes(&want, &boot("Disabled", "None", Some("Legacy")), &q);
        assert_eq!(list, [boot("Once", "Pxe", Some("UEFI")), boot("Once", "Pxe", None)]);
        // No mode shown.
        let list = recipes(&want, &boot("Disabled", "None", None), &q);
        assert_eq!(list, [boot("Once", "Pxe", None), boot("Once", "Pxe", Some("UEFI"))]);
        let hpe = RedfishQuirks { mode_must_be_omitted: true, ..q.clone() };
        assert!(recipes(&want, &now, &hpe).iter().all(|b| b.mode.is_none()));
        let supermicro = RedfishQuirks { boot_resend_unchanged: true, ..q.clone() };
        assert!(recipes(&want, &now, &supermicro).iter().all(|b| b.enabled.is_some()));
        let no_once = RedfishQuirks { boot_override_once_unsupported: true, ..q };
        let want = RedfishBoot::wanted(BootDevice::Disk, FirmwareMode::Bios, &no_once);
        assert_eq!(want.to_string(), "Hdd, Legacy, Continuous");
    }
}

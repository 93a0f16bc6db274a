//! What a controller is and can do: the answer of `slipway bmc probe`.

use serde::Serialize;

use super::{Health, PowerState};

/// What a controller says of itself and its machine. What it does not say is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    /// `Redfish 1.15.0` or `IPMI 2.0`.
    pub protocol: String,
    /// Maker of the machine; by IPMI the controller's enterprise number.
    pub manufacturer: String,
    /// Model of the machine; by IPMI the controller's product number.
    pub model: String,
    /// Serial number of the machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub serial_number: String,
    /// Version of the controller's firmware.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bmc_firmware: String,
    /// Version of the machine's firmware.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bios_version: String,
    /// Path of the system that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// `on` or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<ProbedPower>,
    /// `ok`, `warning` or `critical`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<&'static str>,
    /// The boot override as it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Boot devices that can be set, by Redfish's names.
    pub boot_devices: Vec<String>,
    /// `ResetType` values that are allowed; empty for IPMI, which has a fixed set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reset_types: Vec<String>,
    /// Whether the firmware can be given a URL to boot from.
    pub uefi_http: bool,
    /// Virtual drives.
    pub virtual_media: Vec<Drive>,
    /// Quirk profiles that fit, in the order in which they are applied: name, and the file in brackets.
    pub profiles: Vec<String>,
    /// Address schemes of `spec.bmc.address` that it can serve, the one that needs least of the network first.
    pub schemes: Vec<String>,
    /// What could not be found out, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Power, for people and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbedPower {
    /// On.
    On,
    /// Off.
    Off,
}

impl From<PowerState> for ProbedPower {
    fn from(power: PowerState) -> Self {
        match power {
            PowerState::On => Self::On,
            PowerState::Off => Self::Off,
        }
    }
}

/// A virtual drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drive {
    /// Its `Id`.
    pub id: String,
    /// Its path.
    pub path: String,
    /// What it takes.
    pub types: Vec<String>,
    /// `action` or `patch`: how it is written.
    pub written_by: String,
    /// Whether something is in it.
    pub inserted: bool,
    /// Whether it is the one that Slipway uses.
    pub chosen: bool,
}

/// As shown; nothing when it is not known.
pub fn health(health: Health) -> Option<&'static str> {
    match health {
        Health::Unknown => None,
        Health::Ok => Some("ok"),
        Health::Warning => Some("warning"),
        Health::Critical => Some("critical"),
    }
}

impl ProbeReport {
    /// For people: one line for each thing that is known.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("Protocol", self.protocol.clone())];
        let mut add = |name, value: &str| {
            if !value.is_empty() {
                lines.push((name, value.to_owned()));
            }
        };
        let list = |texts: &[String]| if texts.is_empty() { "none".to_owned() } else { texts.join(", ") };
        add("System", self.system.as_deref().unwrap_or_default());
        add("Manufacturer", &self.manufacturer);
        add("Model", &self.model);
        add("Serial number", &self.serial_number);
        add("BMC firmware", &self.bmc_firmware);
        add("BIOS", &self.bios_version);
        add("Power", self.power.map_or("", |power| if power == ProbedPower::On { "on" } else { "off" }));
        add("Health", self.health.unwrap_or_default());
        add("Boot override", self.boot.as_deref().unwrap_or_default());
        add("Boot devices", &list(&self.boot_devices));
        add("Reset types", &self.reset_types.join(", "));
        add("UEFI HTTP", if self.uefi_http { "yes" } else { "no" });
        for drive in &self.virtual_media {
            let used = if drive.chosen { ", used" } else { "" };
            let full = if drive.inserted { ", something is in it" } else { "" };
            add(
                "Virtual drive",
                &format!("{} ({}), by {}{full}{used}", drive.path, list(&drive.types), drive.written_by),
            );
        }
        if self.virtual_media.is_empty() {
            add("Virtual drive", "none");
        }
        add("Quirk profiles", &list(&self.profiles));
        add("Address schemes", &list(&self.schemes));
        for note in &self.notes {
            add("Note", note);
        }
        lines
    }
}

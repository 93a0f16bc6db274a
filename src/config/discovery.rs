//! The section `[discovery]`: what becomes of unknown machines on networks with `discovery = true`.

use std::collections::BTreeMap;

use minijinja::{Environment, UndefinedBehavior, context};
use serde::Deserialize;

use crate::api::MacAddress;

/// Steps that a name template may take.
const TEMPLATE_FUEL: u64 = 10_000;

/// `[discovery]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryConfig {
    /// Namespace of the hosts that no rule puts elsewhere.
    pub namespace: String,
    /// What a machine does when it has reported itself.
    pub then: AfterReport,
    /// Hosts that may wait to be accepted; further unknown machines boot their disk. At least 1.
    pub limit: usize,
    /// What is known of machines by their inventory. Every rule that matches counts, in this order; what a later one
    /// sets goes before an earlier one's, and labels add up.
    #[serde(rename = "rule")]
    pub rules: Vec<DiscoveryRule>,
}

impl Default for DiscoveryConfig {
    fn default() -> Self {
        Self { namespace: "default".into(), then: AfterReport::PowerOff, limit: 256, rules: Vec::new() }
    }
}

/// What a machine does when it has reported itself.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum AfterReport {
    /// It powers off.
    #[default]
    PowerOff,
    /// Its ramdisk stays up until the host is accepted or deleted, then restarts.
    Wait,
}

/// `[[discovery.rule]]`
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryRule {
    /// Which machines; all that is given must hold.
    #[serde(rename = "match")]
    pub matches: DiscoveryMatch,
    /// Template of the host's name, see [`HostName`].
    pub name: Option<HostName>,
    /// Namespace of the host.
    pub namespace: Option<String>,
    /// Labels of the host.
    pub labels: BTreeMap<String, String>,
    /// Secret with the BMC's user and password, in the host's namespace.
    pub credentials_name: Option<String>,
    /// Scheme of the BMC's address, as `idrac-redfish`; found out when unset.
    pub bmc_scheme: Option<String>,
    /// Whether the BMC's certificate is not checked.
    pub disable_certificate_verification: Option<bool>,
    /// Whether the host is taken into use without being asked about.
    pub accept: Option<bool>,
    /// Whether the machine keeps the system that is on it: the host is externally provisioned.
    pub externally_provisioned: Option<bool>,
    /// Whether the machine's disks are never erased: automatedCleaningMode is disabled.
    pub keep_disks: Option<bool>,
}

/// Which machines a rule is for. Texts are patterns with `*` and `?`, case does not matter.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryMatch {
    /// Manufacturer (SMBIOS).
    pub manufacturer: Option<String>,
    /// Product (SMBIOS).
    pub product: Option<String>,
    /// Serial number (SMBIOS).
    pub serial: Option<String>,
    /// Beginning of the MAC address that the machine booted from, as `52:54:00`.
    pub mac: Option<MacPrefix>,
    /// Least memory in MiB.
    pub memory_mib: Option<i64>,
    /// Least number of logical processors.
    pub cpus: Option<i64>,
    /// Least number of disks.
    pub disks: Option<usize>,
    /// Least size of the largest disk, in GB (10⁹ bytes).
    pub disk_gb: Option<i64>,
    /// Name or chassis ID of a switch that the machine is connected to (LLDP).
    pub switch: Option<String>,
    /// Port of that switch (LLDP).
    pub port: Option<String>,
}

/// The beginning of MAC addresses: one to six bytes, written as `52:54:00`.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct MacPrefix(Vec<u8>);

impl MacPrefix {
    /// Whether the address begins so.
    pub fn covers(&self, mac: MacAddress) -> bool {
        mac.0.starts_with(&self.0)
    }
}

impl TryFrom<String> for MacPrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let byte = |pair: &str| (pair.len() == 2).then(|| u8::from_str_radix(pair, 16).ok())?;
        let bytes: Option<Vec<u8>> = text.split([':', '-']).map(byte).collect();
        let bytes = bytes.filter(|bytes| bytes.len() <= 6);
        bytes.map(Self).ok_or_else(|| format!("{text:?} is no beginning of a MAC address: write it as 52:54:00"))
    }
}

/// Facts that a name is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameFacts<'a> {
    /// Serial number, empty when the machine has none worth the name.
    pub serial: &'a str,
    /// Manufacturer.
    pub manufacturer: &'a str,
    /// Product.
    pub product: &'a str,
    /// Switch by name, else by chassis ID.
    pub switch: &'a str,
    /// Port of the switch.
    pub port: &'a str,
}

/// Template of a host's name: minijinja, with `serial`, `mac` (hex digits), `manufacturer`, `product`, `switch` and
/// `port`. What does not belong into a name becomes a hyphen.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct HostName(String);

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let template = Self(text);
        let facts = NameFacts { serial: "s", manufacturer: "m", product: "p", switch: "w", port: "1" };
        template.render(MacAddress([2, 0, 0, 0, 0, 1]), &facts)?;
        Ok(template)
    }
}

impl HostName {
    /// What the template says for a machine; not yet a name.
    ///
    /// # Errors
    ///
    /// Why the template cannot be used.
    pub fn render(&self, mac: MacAddress, facts: &NameFacts<'_>) -> Result<String, String> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        let NameFacts { serial, manufacturer, product, switch, port } = *facts;
        let mac = mac.hyphenated().replace('-', "");
        environment
            .render_str(&self.0, context! { serial, mac, manufacturer, product, switch, port })
            .map_err(|error| format!("discovery rule's name {:?}: {error}", self.0))
    }
}

impl DiscoveryConfig {
    pub(super) fn faults(&self, faults: &mut Vec<String>) {
        if self.limit == 0 {
            faults
                .push("discovery.limit must be at least 1; discovery = false in a [[network]] switches it off".into());
        }
        if self.namespace.is_empty() {
            faults.push("discovery.namespace must not be empty".into());
        }
        for (number, rule) in self.rules.iter().enumerate() {
            let at = format!("discovery.rule {}", number + 1);
            if rule.accept == Some(true) && rule.credentials_name.is_none() && self.rules[..number].is_empty() {
                faults.push(format!("{at}: accept = true needs credentials_name: nothing could reach the BMC"));
            }
        }
    }
}

//! What a host was registered with, kept with its boot intent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::boot_intent::BootIntent;
use super::steps::StepAction;
use crate::api::MacAddress;

/// On a BootIntent: what its host was registered with, a [`Registration`] as JSON. Missing only in intents of versions that
/// did not keep it.
pub const ANNOTATION_REGISTRATION: &str = "slipway.dev/registration";

/// What a host was registered with, and when: its BMC let the appliance in. Empty while it was not registered.
///
/// It is kept with the boot intent, which only Slipway writes: who may write hosts, or their status, cannot claim to have been
/// registered with something else.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// `spec.bootMACAddress` of the host; empty without one.
    #[serde(default, rename = "bootMACAddress", skip_serializing_if = "String::is_empty")]
    pub boot_mac_address: String,
    /// `spec.bmc.address` of the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bmc_address: String,
    /// Unix time in milliseconds; 0 while it is not registered.
    #[serde(default)]
    pub since: i64,
    /// Taken over from the host that this one is a copy of: until then, Unix time in milliseconds, it counts although no BMC
    /// let the appliance in for this host yet. 0 otherwise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub until: i64,
    /// Network cards that its machine's agent reported, by MAC address, each with when it did so first: Unix time in
    /// milliseconds. At most [`Registration::MAX_CARDS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cards: BTreeMap<String, i64>,
    /// Network of the configuration that its machine reported itself from in the last inspection, or called from first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Registration {
    /// More network cards than a machine boots from.
    pub const MAX_CARDS: usize = 32;

    /// Whether it is of a host that names this boot address and this BMC.
    pub fn fits(&self, boot_mac: Option<MacAddress>, bmc_address: &str) -> bool {
        self.has_mac(boot_mac) && self.has_bmc(bmc_address)
    }

    /// Whether it is of a host that names this boot address, or none.
    pub fn has_mac(&self, boot_mac: Option<MacAddress>) -> bool {
        self.since > 0 && self.boot_mac_address.parse().ok() == boot_mac
    }

    /// Whether it is of a host that names this BMC.
    pub fn has_bmc(&self, address: &str) -> bool {
        self.since > 0 && self.bmc_address == address
    }

    /// Whether it counts at this time, Unix time in milliseconds. `registered`: whether the host was registered by itself.
    pub fn counts(&self, registered: bool, now: i64) -> bool {
        self.since > 0 && (self.until == 0 || registered || now < self.until)
    }

    /// With the cards and the network of the last inspection; cards that were known keep their time.
    #[must_use]
    pub fn with_report(mut self, intent: &BootIntent) -> Self {
        let reported = intent.reported_cards();
        let network = intent.status.as_ref().and_then(|status| status.session.as_ref()).map(|session| &session.network);
        if let Some(network) = network.filter(|_| reported.is_some() || self.network.is_empty()) {
            self.network.clone_from(network);
        }
        if let Some((cards, at)) = reported {
            let since = |mac: &MacAddress| self.cards.get(&mac.to_string()).copied().unwrap_or(at);
            self.cards = cards.iter().take(Self::MAX_CARDS).map(|mac| (mac.to_string(), since(mac))).collect();
        }
        self
    }
}

impl BootIntent {
    /// What its host was registered with; none where that was not kept, or cannot be read.
    pub fn registration(&self) -> Option<Registration> {
        serde_json::from_str(self.metadata.annotations.as_ref()?.get(ANNOTATION_REGISTRATION)?).ok()
    }

    /// The network cards that the machine's agent reported in an inspection of this boot, and when, Unix time in milliseconds.
    /// Only what was reported to the appliance counts: whoever may write hosts can write any cards into them.
    fn reported_cards(&self) -> Option<(Vec<MacAddress>, i64)> {
        let status = self.status.as_ref()?;
        let inspects =
            |id: &String| self.spec.steps.iter().any(|step| step.id == *id && step.action == StepAction::Inspect);
        let result = status.results.iter().find(|result| result.succeeded && inspects(&result.id))?;
        // It is written in seconds: who was registered in this one was so before.
        let at = result.finished.as_ref()?.0.as_second().saturating_add(1).saturating_mul(1000);
        let nics = &status.inventory.as_ref()?.nics;
        Some((nics.iter().filter_map(|nic| nic.mac.parse().ok()).collect(), at))
    }
}

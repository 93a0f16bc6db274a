//! What follows from releases for a cluster. Pure.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::kaas::{AllowedDistribution, ClusterRelease, KaaSRelease, LABEL_ACTIVE, SupportedClusterRelease};
use crate::api::lcm::HelmRelease;
use crate::api::metal3::any_object;

/// The provider of this appliance's machines.
pub const PROVIDER: &str = "baremetal";

/// Why no KaaSRelease can be gone by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoActive {
    /// None has the label.
    #[error("no KaaSRelease is active: `slipway release activate NAME` makes one so")]
    None,
    /// Several have it, as after two changes at one moment.
    #[error("several KaaSReleases are active, {0}: take the label kaas.mirantis.com/active off all but one")]
    Several(String),
}

/// Whether a KaaSRelease is the active one.
pub fn is_active(release: &KaaSRelease) -> bool {
    release.labels().get(LABEL_ACTIVE).is_some_and(|value| value == "true")
}

/// The active KaaSRelease.
///
/// # Errors
/// When there is none, or more than one.
pub fn active<'a>(releases: impl IntoIterator<Item = &'a KaaSRelease>) -> Result<&'a KaaSRelease, NoActive> {
    let mut active: Vec<&KaaSRelease> = releases.into_iter().filter(|release| is_active(release)).collect();
    match (active.pop(), active.is_empty()) {
        (None, _) => Err(NoActive::None),
        (Some(one), true) => Ok(one),
        (Some(last), false) => {
            let names: BTreeSet<String> = active.into_iter().chain([last]).map(ResourceExt::name_any).collect();
            Err(NoActive::Several(Vec::from_iter(names).join(" and ")))
        }
    }
}

/// What a KaaSRelease says of a ClusterRelease, by its name.
pub fn entry<'a>(kaas: &'a KaaSRelease, name: &str) -> Option<&'a SupportedClusterRelease> {
    kaas.spec.supported_cluster_releases.iter().find(|release| release.name == name)
}

/// Whether clusters of a provider may have a ClusterRelease, by its name.
pub fn supported(kaas: &KaaSRelease, name: &str, provider: &str) -> bool {
    let providers = entry(kaas, name).map(|release| release.providers.as_ref().map(|all| &all.supported));
    match providers {
        None => false,
        Some(None) => true,
        Some(Some(names)) => names.is_empty() || names.iter().any(|name| name == provider),
    }
}

/// A release that may follow the one that a cluster has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeTarget {
    /// ClusterRelease, by its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether nodes are rebooted for it.
    pub reboot_required: bool,
}

/// What may follow a ClusterRelease, the oldest first. Nothing does where the release is not supported.
pub fn available_upgrades(kaas: &KaaSRelease, current: &str) -> Vec<UpgradeTarget> {
    let Some(current) = entry(kaas, current) else { return Vec::new() };
    let all = &kaas.spec.supported_cluster_releases;
    let mut targets = Vec::new();
    for upgrade in &current.available_upgrades {
        let Some(release) = all.iter().find(|release| release.version == upgrade.version) else { continue };
        let target = UpgradeTarget {
            name: release.name.clone(),
            version: release.version.clone(),
            reboot_required: upgrade.reboot_required,
        };
        targets.push(target);
    }
    targets
}

/// Why a machine has no system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DistributionFault {
    /// The one that is asked for is not allowed.
    #[error("the release {release} has no distribution {asked:?}; it has: {allowed}")]
    Unknown {
        /// The ClusterRelease.
        release: String,
        /// What was asked for.
        asked: String,
        /// What there is.
        allowed: String,
    },
    /// None is asked for, and none is the default.
    #[error(
        "the release {release} has no default distribution: say which one the machine is to run; it has: {allowed}"
    )]
    NoDefault {
        /// The ClusterRelease.
        release: String,
        /// What there is.
        allowed: String,
    },
}

/// The system that a machine of a release runs: the one that is asked for, whatever its case, or else the default one.
///
/// # Errors
/// When it is not in the release, or none is asked for and there is no default.
pub fn distribution<'a>(
    release: &'a ClusterRelease,
    asked: Option<&str>,
) -> Result<&'a AllowedDistribution, DistributionFault> {
    let all = &release.spec.allowed_distributions;
    let asked = asked.filter(|asked| !asked.is_empty());
    let found = match asked {
        Some(asked) => all.iter().find(|one| one.id.to_lowercase() == asked.to_lowercase()),
        None => all.iter().find(|one| one.default),
    };
    found.ok_or_else(|| {
        let ids: Vec<&str> = all.iter().map(|one| one.id.as_str()).collect();
        let allowed = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
        let release = release.name_any();
        match asked {
            Some(asked) => DistributionFault::Unknown { release, asked: asked.to_owned(), allowed },
            None => DistributionFault::NoDefault { release, allowed },
        }
    })
}

/// What a cluster says of a Helm release otherwise (`spec.providerSpec.value.helmReleases` of a Cluster).
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ChartOverride {
    /// Its name.
    pub name: String,
    /// Whether the cluster has it; it has where this is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Values over those of the release: maps are merged, everything else is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub values: Option<Value>,
}

/// Why a cluster cannot have what it wants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChartFault {
    /// There is no such Helm release.
    #[error("the release {release} has no Helm release {name:?}; it has: {known}")]
    Unknown {
        /// The ClusterRelease.
        release: String,
        /// What the cluster names.
        name: String,
        /// What there is.
        known: String,
    },
    /// It is named more than once.
    #[error("the Helm release {0:?} is named twice")]
    Twice(String),
    /// It cannot be switched off.
    #[error("the Helm release {0:?} is required: it cannot be disabled")]
    Required(String),
    /// One that is on needs one that is off.
    #[error("the Helm release {name:?} requires {needs:?}, which is disabled: disable both or none")]
    Needs {
        /// What is on.
        name: String,
        /// What is off.
        needs: String,
    },
}

/// Helm releases of a cluster, in the order of its release.
///
/// # Errors
/// The first thing that is wrong with what the cluster says.
pub fn charts(release: &ClusterRelease, overrides: &[ChartOverride]) -> Result<Vec<HelmRelease>, ChartFault> {
    let all = release.spec.helm.as_ref().map(|helm| helm.releases.as_slice()).unwrap_or_default();
    let mut said: BTreeMap<&str, &ChartOverride> = BTreeMap::new();
    for one in overrides {
        if !all.iter().any(|chart| chart.release.name == one.name) {
            let names: Vec<&str> = all.iter().map(|chart| chart.release.name.as_str()).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(ChartFault::Unknown { release: release.name_any(), name: one.name.clone(), known });
        }
        if said.insert(&one.name, one).is_some() {
            return Err(ChartFault::Twice(one.name.clone()));
        }
    }
    let mut off = BTreeSet::new();
    let mut charts = Vec::new();
    for chart in all {
        let said = said.get(chart.release.name.as_str());
        if said.is_some_and(|said| said.enabled == Some(false)) {
            if chart.required {
                return Err(ChartFault::Required(chart.release.name.clone()));
            }
            off.insert(chart.release.name.as_str());
            continue;
        }
        let mut made = chart.release.clone();
        if let Some(values) = said.and_then(|said| said.values.as_ref()) {
            merge(made.values.get_or_insert_with(|| Value::Object(<_>::default())), values);
        }
        charts.push(made);
    }
    for chart in &charts {
        if let Some(needs) = chart.requires.iter().find(|needed| off.contains(needed.as_str())) {
            return Err(ChartFault::Needs { name: chart.name.clone(), needs: needs.clone() });
        }
    }
    Ok(charts)
}

/// Puts values over others: maps key by key, everything else whole. What is null is null, as Helm takes away a default by it.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(key) {
                    Some(there) => merge(there, value),
                    None => drop(into.insert(key.clone(), value.clone())),
                }
            }
        }
        (into, from) => *into = from.clone(),
    }
}

//! What follows from releases for a cluster. Pure: other rooms ask.
//!
//! A ClusterRelease is supported by its name; what may follow it is given by versions. Both are joined through the list of the KaaSRelease.

use std::collections::BTreeSet;

use kube::ResourceExt;
use semver::Version;

use crate::api::kaas::{AllowedDistribution, ClusterRelease, KaaSRelease, LABEL_ACTIVE, SupportedClusterRelease};

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
            let names: BTreeSet<String> = active.into_iter().chain([last]).map(|one| one.name_any()).collect();
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
    let mut targets: Vec<(Option<Version>, UpgradeTarget)> = Vec::new();
    for upgrade in &current.available_upgrades {
        let Some(release) = all.iter().find(|release| release.version == upgrade.version) else { continue };
        let target = UpgradeTarget {
            name: release.name.clone(),
            version: release.version.clone(),
            reboot_required: upgrade.reboot_required,
        };
        targets.push((Version::parse(&release.version).ok(), target));
    }
    targets.sort_by(|(one, _), (other, _)| one.cmp(other));
    targets.into_iter().map(|(_, target)| target).collect()
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

//! What a KaaSRelease must be. Pure.

use std::collections::{BTreeMap, BTreeSet};

use semver::Version;

use super::faults::Faults;
use super::helm;
use crate::api::kaas::{KaaSReleaseSpec, SupportedClusterRelease};
use crate::apiserver::FieldError;

/// Longest name of an object.
const NAME_MAX: usize = 253;

/// What is wrong with it.
pub(super) fn faults(spec: &KaaSReleaseSpec) -> Vec<FieldError> {
    let mut faults = Faults::default();
    faults.version("spec.version", &spec.version);
    helm::repositories("spec.helmRepositories", &spec.helm_repositories, &mut faults);
    let mut charts = |path: &str, list: &[_]| helm::releases(path, list.iter(), &spec.helm_repositories, &mut faults);
    if let Some(management) = &spec.management {
        charts("spec.management.helmReleases", &management.helm_releases);
    }
    charts("spec.regionalHelmReleases", &spec.regional_helm_releases);
    for (at, regional) in spec.regional.iter().enumerate() {
        charts(&format!("spec.regional[{at}].helmReleases"), &regional.helm_releases);
    }
    supported(&spec.supported_cluster_releases, &mut faults);
    faults.end()
}

fn supported(list: &[SupportedClusterRelease], faults: &mut Faults) {
    const PATH: &str = "spec.supportedClusterReleases";
    let (mut names, mut versions) = (BTreeSet::new(), BTreeSet::new());
    let mut known: BTreeMap<&str, Version> = BTreeMap::new();
    for (at, release) in list.iter().enumerate() {
        if release.name.is_empty() || release.name.len() > NAME_MAX {
            faults.invalid(format!("{PATH}[{at}].name"), &release.name, "is no name of a ClusterRelease");
        }
        faults.once(format!("{PATH}[{at}].name"), &release.name, &mut names);
        faults.once(format!("{PATH}[{at}].version"), &release.version, &mut versions);
        if let Some(version) = faults.version(format!("{PATH}[{at}].version"), &release.version) {
            known.insert(&release.version, version);
        }
    }
    for (at, release) in list.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for (number, upgrade) in release.available_upgrades.iter().enumerate() {
            let path = format!("{PATH}[{at}].availableUpgrades[{number}].version");
            faults.once(&path, &upgrade.version, &mut seen);
            let (from, to) = (known.get(release.version.as_str()), known.get(upgrade.version.as_str()));
            match (from, to) {
                (_, None) => faults.invalid(path, &upgrade.version, "is the version of no release in this list"),
                (Some(from), Some(to)) if to <= from => {
                    faults.invalid(path, &upgrade.version, format!("is not newer than {from}, which it is to follow"));
                }
                _ => {}
            }
        }
    }
}

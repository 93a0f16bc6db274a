//! What charts of a release must be. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::faults::Faults;
use crate::api::is_dns_label;
use crate::api::lcm::{HelmRelease, HelmRepository};

/// Longest name of a Helm release, as Helm has it.
const NAME_MAX: usize = 53;
/// Most that a release may require.
const REQUIRES_MAX: usize = 32;

/// Judges repositories of charts.
pub(super) fn repositories(path: &str, repositories: &[HelmRepository], faults: &mut Faults) {
    let mut names = BTreeSet::new();
    for (at, repository) in repositories.iter().enumerate() {
        if !is_dns_label(&repository.name) {
            faults.invalid(format!("{path}[{at}].name"), &repository.name, "has small letters, digits and hyphens");
        }
        faults.once(format!("{path}[{at}].name"), &repository.name, &mut names);
        faults.url(format!("{path}[{at}].url"), &repository.url, &["https", "http", "oci"]);
    }
}

/// Judges Helm releases of one list. `repositories` are those that their charts may name.
pub(super) fn releases<'a>(
    path: &str,
    releases: impl Iterator<Item = &'a HelmRelease> + Clone,
    repositories: &[HelmRepository],
    faults: &mut Faults,
) {
    let all: BTreeSet<&str> = releases.clone().map(|release| release.name.as_str()).collect();
    let mut names = BTreeSet::new();
    for (at, release) in releases.clone().enumerate() {
        let at = format!("{path}[{at}]");
        if release.name.len() > NAME_MAX || !is_dns_label(&release.name) {
            let detail = format!("has small letters, digits and hyphens, {NAME_MAX} at most");
            faults.invalid(format!("{at}.name"), &release.name, detail);
        }
        faults.once(format!("{at}.name"), &release.name, &mut names);
        chart(&at, release, repositories, faults);
        faults.too_many(format!("{at}.requires"), release.requires.len(), REQUIRES_MAX);
        for required in release.requires.iter().filter(|required| !all.contains(required.as_str())) {
            faults.invalid(format!("{at}.requires"), required, "is no Helm release of this list");
        }
    }
    if let Some(circle) = circle(releases) {
        faults.forbidden(path, format!("these require each other in a circle: {}", circle.join(", ")));
    }
}

fn chart(path: &str, release: &HelmRelease, repositories: &[HelmRepository], faults: &mut Faults) {
    if !release.chart_url.is_empty() {
        return faults.url(format!("{path}.chartURL"), &release.chart_url, &["https", "http", "oci"]);
    }
    match release.chart.split_once('/') {
        _ if release.chart.is_empty() => {
            faults.required(format!("{path}.chart"), "REPOSITORY/NAME, or chartURL in its place");
        }
        Some((repository, name)) if !name.is_empty() => {
            if !repositories.iter().any(|known| known.name == repository) {
                faults.invalid(format!("{path}.chart"), &release.chart, "names a repository that is not in the list");
            }
        }
        _ => faults.invalid(format!("{path}.chart"), &release.chart, "is not of the form REPOSITORY/NAME"),
    }
}

/// Some that require each other in a circle, in order.
fn circle<'a>(releases: impl Iterator<Item = &'a HelmRelease>) -> Option<Vec<String>> {
    let mut left: BTreeMap<&str, BTreeSet<&str>> = releases
        .map(|release| (release.name.as_str(), release.requires.iter().map(String::as_str).collect()))
        .collect();
    // Those that wait for nobody are taken away, until none does.
    loop {
        let free: Vec<&str> = left
            .iter()
            .filter(|(_, requires)| !requires.iter().any(|required| left.contains_key(required)))
            .map(|(name, _)| *name)
            .collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|name| drop(left.remove(name)));
    }
    // Every one that is left requires one that is left: who follows comes back to where they were.
    let mut way: Vec<&str> = Vec::new();
    let mut at = *left.keys().next()?;
    while !way.contains(&at) {
        way.push(at);
        at = left[at].iter().find(|required| left.contains_key(*required))?;
    }
    let start = way.iter().position(|name| *name == at).unwrap_or_default();
    Some(way[start..].iter().map(|name| (*name).to_owned()).collect())
}

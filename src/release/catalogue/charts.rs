//! Which Helm releases a cluster has: those of its release, with what the cluster says otherwise. Pure: other rooms ask.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::kaas::ClusterRelease;
use crate::api::lcm::HelmRelease;
use crate::api::metal3::any_object;

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

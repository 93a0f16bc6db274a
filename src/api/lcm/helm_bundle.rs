//! Helm releases that a cluster is to have.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::bounded;
use crate::api::metal3::any_object;

/// Most Helm releases of a bundle.
pub const MAX_CHARTS: usize = 200;

/// Helm releases that a cluster is to have. The one with the name of the cluster is made of its release.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "lcm.mirantis.com",
    version = "v1alpha1",
    kind = "HelmBundle",
    plural = "helmbundles",
    singular = "helmbundle",
    namespaced,
    status = "HelmBundleStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Release","type":"string","jsonPath":".spec.release","description":"Release of the cluster"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether all Helm releases are as they are to be"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What it waits for","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct HelmBundleSpec {
    /// Repositories that charts are named in.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 50>")]
    pub repositories: Vec<HelmRepository>,
    /// Helm releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_CHARTS>")]
    pub releases: Vec<HelmRelease>,
    /// Version of the Helm controller that is to work it off; any where it is not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
}

/// A repository of charts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HelmRepository {
    /// Its name, which a chart has before a slash.
    pub name: String,
    /// Where it is: `https://`, `http://` or `oci://`.
    pub url: String,
    /// Secret with a login.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub auth_secret: String,
}

/// A Helm release: a chart with values.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HelmRelease {
    /// Its name.
    #[schemars(length(min = 1, max = 53))]
    pub name: String,
    /// Namespace that it is in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The chart, as `REPOSITORY/NAME`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub chart: String,
    /// Its version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Where the chart is, instead of a repository.
    #[serde(default, rename = "chartURL", skip_serializing_if = "String::is_empty")]
    pub chart_url: String,
    /// Labels of the Helm release.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub values: Option<Value>,
    /// Helm releases of this bundle that must be ready before.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_CHARTS>")]
    pub requires: Vec<String>,
    /// Always so here: kept, without effect.
    #[serde(default, rename = "helmV3", skip_serializing_if = "Option::is_none")]
    pub helm_v3: Option<bool>,
}

/// What became of the Helm releases of a bundle.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HelmBundleStatus {
    /// The generation that it was found out for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Release of the cluster that it was found out for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// What became of each, by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub release_statuses: BTreeMap<String, HelmReleaseStatus>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What became of a Helm release.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HelmReleaseStatus {
    /// Namespace that it is in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Helm's revision.
    #[serde(default)]
    pub revision: i64,
    /// The chart.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub chart: String,
    /// Its version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// SHA-256 of chart, version and values, as 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Helm's word for it: `deployed`, `failed`, `pending-upgrade`, …
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Whether it is as it is to be. The older word for `ready`.
    #[serde(default)]
    pub success: bool,
    /// Whether it is as it is to be, and what it made runs.
    #[serde(default)]
    pub ready: bool,
    /// What it waits for, or why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How many times it was tried.
    #[serde(default)]
    pub attempt: i32,
    /// When it was tried last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// What the chart says to people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

//! What releases of clusters an appliance supports.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounded;
use crate::api::lcm::{HelmRelease, HelmRepository, MAX_CHARTS};

/// Releases of clusters that are supported, and which may follow which. It never changes: another one is made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "KaaSRelease",
    plural = "kaasreleases",
    singular = "kaasrelease",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.version","description":"Its version"}"#,
    printcolumn = r#"{"name":"Active","type":"string","jsonPath":".metadata.labels.kaas\\.mirantis\\.com/active","description":"Whether it is in force"}"#,
    printcolumn = r#"{"name":"ClusterRelease","type":"string","jsonPath":".spec.clusterRelease","description":"Release of the management cluster","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct KaaSReleaseSpec {
    /// Its version.
    pub version: String,
    /// ClusterRelease of the management cluster, by its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster_release: String,
    /// Repositories of charts.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 50>")]
    pub helm_repositories: Vec<HelmRepository>,
    /// Charts of the management cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub management: Option<ManagementCharts>,
    /// Charts by provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 50>")]
    pub regional: Vec<RegionalCharts>,
    /// Charts of every provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_CHARTS>")]
    pub regional_helm_releases: Vec<HelmRelease>,
    /// Releases of clusters that are supported.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 500>")]
    pub supported_cluster_releases: Vec<SupportedClusterRelease>,
}

/// Charts of a management cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ManagementCharts {
    /// Helm releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_CHARTS>")]
    pub helm_releases: Vec<HelmRelease>,
}

/// Charts of a provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RegionalCharts {
    /// The provider.
    #[serde(default)]
    pub provider: String,
    /// Helm releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_CHARTS>")]
    pub helm_releases: Vec<HelmRelease>,
}

/// A release of clusters that is supported.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SupportedClusterRelease {
    /// Its ClusterRelease.
    pub name: String,
    /// Its version, as `21.0.0+25.2`.
    pub version: String,
    /// What it is called besides.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tag: String,
    /// What may follow it, by version.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 100>")]
    pub available_upgrades: Vec<AvailableUpgrade>,
    /// Providers that it is supported for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<SupportedProviders>,
}

/// A release that may follow another one.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AvailableUpgrade {
    /// Its version.
    pub version: String,
    /// Whether nodes are rebooted for it.
    #[serde(default)]
    pub reboot_required: bool,
}

/// Providers that a release is supported for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct SupportedProviders {
    /// Their names; none is all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 50>")]
    pub supported: Vec<String>,
}

//! What a cluster of a release is made of.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounded;
use crate::api::lcm::{AgentConfig, HelmRelease, HelmRepository, MAX_CHARTS, StateItem};

/// What a cluster is made of: steps of its nodes, charts, systems. It never changes: another one is made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "ClusterRelease",
    plural = "clusterreleases",
    singular = "clusterrelease",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.version","description":"Its version"}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.lcmType","description":"How clusters of it are made"}"#,
    printcolumn = r#"{"name":"Agent","type":"string","jsonPath":".spec.agent.version","description":"Version of the agent on nodes","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReleaseSpec {
    /// Its version, as `21.0.0+25.2`.
    pub version: String,
    /// Components and their versions, a line each.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What is new in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 100>")]
    pub release_notes: Vec<ReleaseNotes>,
    /// The agent on nodes; the appliance's own program where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentConfig>,
    /// Steps of each kind of machine: `control`, `worker`, `bastion`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machine_types: BTreeMap<String, Vec<StateItem>>,
    /// Charts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helm: Option<ReleaseHelm>,
    /// Images of containers, by what they are for: `helmController`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// How clusters of it are made: `kubeadm`, or `byo` where its steps make whatever they make.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lcm_type: String,
    /// Labels that users may give nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 200>")]
    pub allowed_node_labels: Vec<AllowedNodeLabel>,
    /// Systems that nodes may run.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 50>")]
    pub allowed_distributions: Vec<AllowedDistribution>,
}

/// What is new in a version.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ReleaseNotes {
    /// The version.
    pub version: String,
    /// What is new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<ReleaseNote>,
}

/// Something that is new.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ReleaseNote {
    /// What.
    #[serde(default)]
    pub text: String,
}

/// Charts of a release.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ReleaseHelm {
    /// Repositories that charts are named in.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, 50>")]
    pub repositories: Vec<HelmRepository>,
    /// Helm releases of each cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_CHARTS>")]
    pub releases: Vec<ReleaseChart>,
    /// The Helm controller's own chart; the appliance's where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<HelmRelease>,
}

/// A Helm release that clusters of a release have.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseChart {
    /// What it is.
    #[serde(flatten)]
    pub release: HelmRelease,
    /// Whether every cluster has it, whatever its user says.
    #[serde(default)]
    pub required: bool,
    /// Whether it needs a provider of volumes.
    #[serde(default)]
    pub requires_persistent_volumes: bool,
}

/// A label that users may give nodes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNodeLabel {
    /// Its key.
    pub key: String,
    /// Its value; each where it is not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// What people call it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub display_name: String,
}

/// A system that nodes may run.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct AllowedDistribution {
    /// Its name, as `ubuntu/jammy`. Case makes no difference.
    pub id: String,
    /// Its version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// What people call it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Whether a machine runs it that does not say what it runs. One of the list, at most.
    #[serde(default)]
    pub default: bool,
    /// Its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<DistributionImage>,
}

/// Image of a system.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct DistributionImage {
    /// Where it is.
    #[serde(default)]
    pub url: String,
    /// Its checksum, as a BareMetalHost has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checksum: String,
}

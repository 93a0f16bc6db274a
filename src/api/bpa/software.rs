//! `Software`: packages on the nodes of a cluster of kubespray's, as Akraino's Binary Provisioning Agent has them. The status is Slipway's
//! own.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::RunProgress;
use crate::api::bounded;

/// Most packages of a list.
pub const MAX_PACKAGES: usize = 200;

/// Packages that masters and workers of a cluster are to have. The label `cluster` says of which: of the Provisioning with that label, or
/// with that name.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "bpa.akraino.org",
    version = "v1alpha1",
    kind = "Software",
    plural = "softwares",
    singular = "software",
    shortname = "sw",
    namespaced,
    status = "SoftwareStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"How far it is"}"#,
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".status.cluster","description":"The Provisioning whose nodes have the packages"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","description":"What it waits for, or what was changed"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SoftwareSpec {
    /// On masters: each a name, or a map of one name with a `version`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_PACKAGES>")]
    #[schemars(schema_with = "packages")]
    pub master_software: Vec<Package>,
    /// The same, on workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_PACKAGES>")]
    #[schemars(schema_with = "packages")]
    pub worker_software: Vec<Package>,
}

/// A package: `htop`, or `{jq: {version: "1.6-2.1"}}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(untagged)]
pub enum Package {
    /// In whichever version.
    Name(String),
    /// In this one.
    Versioned(BTreeMap<String, Option<PackageVersion>>),
}

/// Which version of a package.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct PackageVersion {
    /// As the distribution has it; unset: whichever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A text or an object: no type of a structural schema is both.
fn packages(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}})
}

/// How far the packages are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SoftwareStatus {
    /// `Invalid`, `Waiting`, `Updating`, `Current` or `Failed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// What it waits for, what was changed, or what to do next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The Provisioning whose nodes have the packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The run that was begun last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunProgress>,
    /// A hash of the packages by node that it was begun for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// What it changed, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodePackages>,
    /// `Current`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What was changed on a node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodePackages {
    /// The node.
    #[serde(default)]
    pub name: String,
    /// `Unchanged`, `Changed` or `Unknown`, where the run did not come to it or did not come to an end there.
    #[serde(default)]
    pub state: String,
    /// The packages that are others than before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<PackageChange>,
    /// How many more are others, of which there is no room to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<i64>,
}

/// A package that is another one than before.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PackageChange {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// The version that was there; unset: none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The version that is there; unset: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

//! A request to do something in a cluster, and its answer.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked to be done in a cluster.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "lcm.mirantis.com",
    version = "v1alpha1",
    kind = "LCMClusterState",
    plural = "lcmclusterstates",
    singular = "lcmclusterstate",
    namespaced,
    status = "LCMClusterStateStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterName","description":"Cluster in which it is done"}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type","description":"What is asked"}"#,
    printcolumn = r#"{"name":"Arg","type":"string","jsonPath":".spec.arg","description":"The node"}"#,
    printcolumn = r#"{"name":"Value","type":"string","jsonPath":".spec.value","description":"Whether it is to be so"}"#,
    printcolumn = r#"{"name":"Actual","type":"string","jsonPath":".status.value","description":"Whether it is so"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","description":"What it waits for"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct LCMClusterStateSpec {
    /// Cluster in which it is done.
    #[serde(default)]
    pub cluster_name: String,
    /// What is asked.
    #[serde(rename = "type")]
    pub request: Request,
    /// The node, where it is about one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arg: String,
    /// `true` or `false`: whether it is to be so.
    #[schemars(regex(pattern = "^(true|false)$"))]
    pub value: String,
    /// Release for which it is asked, by its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// For what applications in the cluster are asked to be ready before; they are not asked where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<MaintenanceScope>,
}

/// What is about to happen to a node, for the applications on it. Each scope has those before it in it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum MaintenanceScope {
    /// It is drained.
    #[default]
    Drain,
    /// It is drained, and reboots.
    Os,
    /// It leaves the cluster.
    Deletion,
}

/// What can be asked of a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Whether the Helm controller runs.
    HelmDeployed,
    /// Whether a node takes no pods and has none but those that stay.
    #[default]
    CordonDrain,
    /// Whether applications know that nodes of their cluster change, and are ready for it.
    ClusterMaintenance,
}

/// What the workload locks of those who were asked say together.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LocksState {
    /// At least one of them holds the cluster, or the node.
    Active,
    /// None does.
    Inactive,
}

/// What became of a request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LCMClusterStateStatus {
    /// `true` or `false`: whether it is so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What applications say that were asked first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<LocksState>,
    /// How many times it was tried.
    #[serde(default)]
    pub attempt: i32,
    /// The generation of the request that this is the answer to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

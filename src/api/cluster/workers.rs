//! What MachineSets and MachineDeployments have alike in both versions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OldCondition;

/// Conditions of machines that a health check must not go by, for it sets them.
pub(super) const NOT_OF_CHECKS: &str =
    "!(self in ['Ready','Available','HealthCheckSucceeded','OwnerRemediated','ExternallyRemediated'])";

/// Labels and annotations of objects that are made from a template.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct TemplateMeta {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// How machines are named.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct MachineNaming {
    /// With `{{ .cluster.name }}`, `{{ .machineSet.name }}` and `{{ .random }}`, of which the last must be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub template: Option<String>,
}

/// Which machines go first when there are too many.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionOrder {
    /// Any.
    #[default]
    Random,
    /// The youngest.
    Newest,
    /// The oldest.
    Oldest,
}

/// By whom machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RolloutType {
    /// By and by.
    #[default]
    RollingUpdate,
    /// By whoever deletes them.
    OnDelete,
}

/// How many machines have a version of Kubernetes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionCount {
    /// The version.
    #[schemars(length(min = 1, max = 256))]
    pub version: String,
    /// So many have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub replicas: Option<i32>,
}

/// Versions that a status counts, at most,
pub const VERSIONS_MAX: usize = 100;
/// and those that the status of a Cluster does.
pub const CLUSTER_VERSIONS_MAX: usize = 32;

/// Versions as a list by version.
pub(in crate::api) fn version_counts(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": generator.subschema_for::<VersionCount>(),
        "minItems": 1,
        "maxItems": VERSIONS_MAX,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["version"],
    })
}

/// Versions in the status of a Cluster, as a list.
pub(super) fn cluster_version_counts(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": generator.subschema_for::<VersionCount>(),
        "minItems": 1,
        "maxItems": CLUSTER_VERSIONS_MAX,
    })
}

/// What is done about a MachineDeployment.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeploymentPhase {
    /// Machines are made.
    ScalingUp,
    /// Machines are deleted.
    ScalingDown,
    /// As many are there as are wished for.
    Running,
    /// It cannot go on.
    Failed,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// Fields of the status of a MachineSet or MachineDeployment in v1beta1 that v1beta2 has not, or means otherwise.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OldReplicaStatus {
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// Fault that nobody will mend, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The same, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub failure_message: Option<String>,
    /// Machines with all labels of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fully_labeled_replicas: Option<i32>,
    /// Machines whose node is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines whose node has been ready for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Machines that lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,
}

/// Fields of such a status that came with v1beta2.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NewReplicaStatus {
    /// Conditions of the new form, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
    /// Machines that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines that have been ready for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
}

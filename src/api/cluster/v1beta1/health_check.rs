//! MachineHealthCheck.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::cluster::{CONDITION_TYPE, NOT_OF_CHECKS, NewConditions, OldCondition};
use crate::api::metal3::ObjectReference;

/// When machines have failed, and what is done then.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta1",
    kind = "MachineHealthCheck",
    plural = "machinehealthchecks",
    singular = "machinehealthcheck",
    shortname = "mhc",
    shortname = "mhcs",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "MachineHealthCheckStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterName","description":"Cluster of the machines"}"#,
    printcolumn = r#"{"name":"ExpectedMachines","type":"integer","jsonPath":".status.expectedMachines","description":"Machines that are looked at"}"#,
    printcolumn = r#"{"name":"MaxUnhealthy","type":"string","jsonPath":".spec.maxUnhealthy","description":"Of which so many may have failed"}"#,
    printcolumn = r#"{"name":"CurrentHealthy","type":"integer","jsonPath":".status.currentHealthy","description":"Machines that are well"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.clusterName == oldSelf.clusterName", "message": "clusterName cannot be changed"},
    {"rule": "(has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)", "message": "selector must not be empty"}
]))]
pub struct MachineHealthCheckSpec {
    /// Name of the cluster.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Which machines are looked at.
    #[schemars(extend("x-kubernetes-map-type" = "atomic", "x-kubernetes-validations" = crate::api::cluster::bounded_selector()))]
    pub selector: LabelSelector,
    /// A machine has failed when its node says one of these for long enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub unhealthy_conditions: Vec<UnhealthyCondition>,
    /// A machine has failed when it says one of these for long enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub unhealthy_machine_conditions: Vec<UnhealthyMachineCondition>,
    /// Something is done while at most so many have failed, or so large a part (`40%`); all when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unhealthy: Option<IntOrString>,
    /// Something is done while as many have failed as are in this range: `[3-5]`. Counts before the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^\[[0-9]+-[0-9]+\]$"))]
    pub unhealthy_range: Option<String>,
    /// A machine has failed that has no node after this time; `10m0s` when unset, never when `0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_startup_timeout: Option<String>,
    /// Template of the object that does something; when unset, who made the machine replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation_template: Option<ObjectReference>,
}

/// A condition of a node that tells of a failure.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct UnhealthyCondition {
    /// Its type.
    #[serde(rename = "type")]
    #[schemars(length(min = 1))]
    pub type_: String,
    /// Its status.
    #[schemars(length(min = 1))]
    pub status: String,
    /// Time that it must have had it, as `5m0s`.
    pub timeout: String,
}

/// A condition of a machine that tells of a failure.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct UnhealthyMachineCondition {
    /// Its type.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316), regex(pattern = CONDITION_TYPE), extend("x-kubernetes-validations" = [
        {"rule": NOT_OF_CHECKS, "message": "the check itself sets this condition"}
    ]))]
    pub type_: String,
    /// Its status.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Time that it must have had it, as `5m0s`.
    pub timeout: String,
}

/// What became of the machines that are looked at.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckStatus {
    /// Machines that are looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub expected_machines: Option<i32>,
    /// Machines that are well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub current_healthy: Option<i32>,
    /// Further machines that something would be done about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub remediations_allowed: Option<i32>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Names of the machines that are looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000), inner(length(min = 1, max = 253)))]
    pub targets: Vec<String>,
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// What v1beta2 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<NewConditions>,
}

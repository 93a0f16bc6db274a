//! The way of a cluster from one release to another, step by step.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounded;

/// Most steps of a plan: one for the control plane, and one for each group of workers.
pub const MAX_PLAN_STEPS: usize = 101;

/// The way of a cluster from its release to another one. The appliance makes one for each release that may follow; users say which
/// steps may begin.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "ClusterUpdatePlan",
    plural = "clusterupdateplans",
    singular = "clusterupdateplan",
    namespaced,
    status = "ClusterUpdatePlanStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.cluster","description":"Cluster that it is about"}"#,
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".spec.source","description":"Release that the cluster has"}"#,
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".spec.target","description":"Release that it goes to"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.status","description":"How far it is"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Completed\")].message","description":"What it waits for, and what to do","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpdatePlanSpec {
    /// The cluster, in this namespace.
    pub cluster: String,
    /// ClusterRelease that it has.
    pub source: String,
    /// ClusterRelease that it goes to.
    pub target: String,
    /// What is new, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release_notes: String,
    /// Steps, in their order.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "bounded::list::<_, _, MAX_PLAN_STEPS>"
    )]
    pub steps: Vec<UpdatePlanStep>,
}

/// A step of a plan.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePlanStep {
    /// `k8s-controllers`, or `k8s-workers-GROUP`.
    pub id: String,
    /// What it is called.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What is done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What must be so before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<String>,
    /// What users and workloads notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impact: Option<UpdatePlanImpact>,
    /// How long it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<UpdatePlanDuration>,
    /// `cluster` or `machine`: what it is done to at once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub granularity: String,
    /// Whether it may begin. Once it has begun this stays.
    #[serde(default)]
    pub commence: bool,
}

/// What a step does to whoever uses the cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePlanImpact {
    /// `none`, `minor` or `major`, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub users: String,
    /// The same for what runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workloads: String,
    /// In words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub info: Vec<String>,
}

/// How long a step takes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePlanDuration {
    /// As `1h30m`. Not said where nobody knows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub estimated: String,
    /// In words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub info: Vec<String>,
}

/// How far a plan, or a step of it, is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdatePlanState {
    /// Nothing has begun.
    #[default]
    NotStarted,
    /// It has begun.
    InProgress,
    /// It is done.
    Completed,
}

/// How far a plan is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpdatePlanStatus {
    /// How far it is.
    #[serde(default)]
    pub status: UpdatePlanState,
    /// When the cluster was told of the release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When every machine had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// How far each step is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<UpdatePlanStepStatus>,
    /// `Completed`: with what it waits for, and what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// How far a step is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePlanStepStatus {
    /// Its id.
    #[serde(default)]
    pub id: String,
    /// What it is called.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// How far it is.
    #[serde(default)]
    pub status: UpdatePlanState,
    /// What it waits for, and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// How long it took, in seconds as `95s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub duration: String,
}

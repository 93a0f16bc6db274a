//! `iam.mirantis.com/v1alpha1`: who may do what, as Mirantis Container Cloud names it.
//!
//! Of its kinds there is one: there is no Keycloak here, users and their groups are those of the appliance's API.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// API group.
pub const GROUP: &str = "iam.mirantis.com";

/// Which groups have rights in a cluster and its namespace: a record of what was bound.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "iam.mirantis.com",
    version = "v1alpha1",
    kind = "Scope",
    plural = "scopes",
    singular = "scope",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Scope","type":"string","jsonPath":".spec.scopeFQN","description":"What its roles begin with"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ScopeSpec {
    /// What is named: `m:k8s:NAMESPACE:CLUSTER`.
    #[serde(default, rename = "scopeFQN")]
    pub scope_fqn: String,
    /// Groups that have rights, each as `m:APP[:NAMESPACE[:CLUSTER]]@ROLE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Whether the cluster asks OIDC who its users are. It does not.
    #[serde(default)]
    pub oidc_required: bool,
}

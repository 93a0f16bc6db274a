//! A request to reboot machines of a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounded;

/// Most machines that a request names.
pub const MAX_REBOOTS: usize = 1000;

/// Has machines of the cluster with its name rebooted, one after the other, drained before. It goes when all of them were.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "GracefulRebootRequest",
    plural = "gracefulrebootrequests",
    singular = "gracefulrebootrequest",
    namespaced,
    status = "GracefulRebootRequestStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Machines","type":"integer","jsonPath":".status.requested","description":"Machines that are to reboot"}"#,
    printcolumn = r#"{"name":"Rebooted","type":"integer","jsonPath":".status.rebooted","description":"Those that have"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Completed\")].message","description":"What it waits for, and what to do"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GracefulRebootRequestSpec {
    /// Machines of the cluster; all that it has now, where none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_REBOOTS>")]
    pub machines: Vec<String>,
}

/// How far the reboots are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GracefulRebootRequestStatus {
    /// Machines that are to reboot.
    #[serde(default)]
    pub requested: i32,
    /// Those that have.
    #[serde(default)]
    pub rebooted: i32,
    /// `Completed`: with what it waits for, and what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

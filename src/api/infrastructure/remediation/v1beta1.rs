//! Remediation in `infrastructure.cluster.x-k8s.io/v1beta1`, served for the manifests and clients that there are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a machine that is not well is brought back: what is wanted.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "Metal3Remediation",
    plural = "metal3remediations",
    singular = "metal3remediation",
    shortname = "m3r",
    shortname = "m3remediation",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "Metal3RemediationStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Retry limit","type":"string","jsonPath":".spec.strategy.retryLimit","description":"How often at most it is tried again"}"#,
    printcolumn = r#"{"name":"Retry count","type":"string","jsonPath":".status.retryCount","description":"How often it was tried again"}"#,
    printcolumn = r#"{"name":"Last Remediated","type":"string","jsonPath":".status.lastRemediated","description":"When it was tried last"}"#,
    printcolumn = r#"{"name":"Strategy","type":"string","jsonPath":".spec.strategy.type","description":"What is done"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"How far it is"}"#
)]
pub struct Metal3RemediationSpec {
    /// What is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Metal3RemediationStrategy>,
}

/// What is done with a machine that is not well.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3RemediationStrategy {
    /// `Reboot`: it is switched off, its node is taken out of service, and it is switched on again.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// How often at most it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_limit: Option<i32>,
    /// How long a machine has to become well before it is tried again, as `10m0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// How a machine that is not well is brought back: how far that is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3RemediationStatus {
    /// `Running`, `Waiting`, `Deleting machine` or `Failed`; none before it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// How often it was tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<i32>,
    /// When it was tried last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_remediated: Option<Time>,
}

/// From which Metal3Remediations are made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "Metal3RemediationTemplate",
    plural = "metal3remediationtemplates",
    singular = "metal3remediationtemplate",
    shortname = "m3rt",
    shortname = "m3remediationtemplate",
    shortname = "m3remediationtemplates",
    shortname = "metal3rt",
    shortname = "metal3remediationtemplate",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "Metal3RemediationTemplateStatus",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct Metal3RemediationTemplateSpec {
    /// What is copied.
    pub template: Metal3RemediationTemplateResource,
}

/// What of a template is copied.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Metal3RemediationTemplateResource {
    /// How machines are brought back.
    pub spec: Metal3RemediationSpec,
}

/// What a template shows. Nothing writes it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Metal3RemediationTemplateStatus {
    /// As a Metal3Remediation has it.
    pub status: Metal3RemediationStatus,
}

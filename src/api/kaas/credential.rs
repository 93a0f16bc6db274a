//! Credentials of a host's management controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{FieldSealing, SealedField};

/// Where passwords of a BareMetalHostCredential go: a Secret of its own.
pub static SEALED_PASSWORDS: FieldSealing = FieldSealing {
    suffix: "-bmhc-passwords",
    fields: &[
        SealedField { path: &["spec", "password"], key: "password" },
        SealedField { path: &["spec", "monitoringPassword"], key: "monitoringPassword" },
    ],
};

/// Who logs in to a host's management controller, and with what.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "BareMetalHostCredential",
    plural = "baremetalhostcredentials",
    singular = "baremetalhostcredential",
    shortname = "bmhc",
    namespaced,
    status = "BareMetalHostCredentialStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"User","type":"string","jsonPath":".spec.username","description":"Who logs in"}"#,
    printcolumn = r#"{"name":"Valid","type":"boolean","jsonPath":".status.valid","description":"Whether there is a password"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","description":"What is missing"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BareMetalHostCredentialSpec {
    /// User of the management controller.
    #[schemars(length(min = 1, max = 255))]
    pub username: String,
    /// Its password.
    pub password: CredentialPassword,
    /// User who only reads; kept, and not used by the appliance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub monitoring_username: Option<String>,
    /// Its password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitoring_password: Option<CredentialPassword>,
}

/// A password: written as `value`, read as the Secret into which it went.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct CredentialPassword {
    /// The password. Whoever writes it here never sees it again: it goes into a Secret of the object's own, before the object is stored,
    /// and `secret` says into which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where the password is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<PasswordSecret>,
}

/// A value of a Secret in the object's own namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct PasswordSecret {
    /// Name of the Secret.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,
    /// Key of the value.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub key: String,
}

/// Whether a credential can be used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BareMetalHostCredentialStatus {
    /// Whether there are a user and a password. Whether a management controller takes them its host says.
    #[serde(default)]
    pub valid: bool,
    /// What is missing, and what to do.
    #[serde(default)]
    pub message: String,
    /// The generation that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The same as `Valid`, with times and reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]
    ))]
    pub conditions: Vec<Condition>,
}

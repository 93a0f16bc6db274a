//! Keys that open nodes by SSH.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key that opens the nodes of clusters that name it.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "PublicKey",
    plural = "publickeys",
    singular = "publickey",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PublicKeySpec {
    /// The key, as a line of `authorized_keys`.
    #[serde(default)]
    pub public_key: String,
}

//! DataImage: a CD image in the virtual drive of a provisioned host (docs/design/host.md, "DataImage").

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A CD image for the virtual drive of the BareMetalHost of the same name and namespace. It is attached, exchanged or
/// taken out when the provisioned host is powered on next.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "metal3.io",
    version = "v1alpha1",
    kind = "DataImage",
    plural = "dataimages",
    singular = "dataimage",
    namespaced,
    status = "DataImageStatus",
    derive = "PartialEq"
)]
pub struct DataImageSpec {
    /// Where the image is: `http` or `https`. The BMC reads it from there.
    pub url: String,
}

/// What became of it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DataImageStatus {
    /// When it was attached, taken out or tried last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reconciled: Option<Time>,
    /// The image in the drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_image: Option<AttachedImage>,
    /// Failures since the last success, and the last reason.
    #[serde(default)]
    pub error: DataImageError,
}

/// The image in a drive.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct AttachedImage {
    /// Where it is.
    #[serde(default)]
    pub url: String,
}

/// Why a drive does not hold what it should.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct DataImageError {
    /// Failures since the last success.
    #[serde(default)]
    pub count: i64,
    /// The last reason; empty when there is none.
    #[serde(default)]
    pub message: String,
}

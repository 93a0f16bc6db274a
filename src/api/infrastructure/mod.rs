//! `infrastructure.cluster.x-k8s.io`: Metal3's kinds of Cluster API's infrastructure, in both of their versions.
//!
//! What is alike in the two versions stands here; each has a file of its own, and [`convert`] says how one becomes the
//! other.

pub mod convert;
pub mod data;
pub mod remediation;
pub mod v1beta1;
pub mod v1beta2;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The API group.
pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";

/// Rule of a cluster: somebody must say where it is reached, for nothing here makes a load balancer.
const NEEDS_ENDPOINT: &str = "has(self.spec.controlPlaneEndpoint) && has(self.spec.controlPlaneEndpoint.host) \
    && self.spec.controlPlaneEndpoint.host != ''";
/// Rule of a machine: it needs something to run.
const NEEDS_DEPLOY: &str = "(has(self.image) && has(self.image.url) && self.image.url != '') \
    || (has(self.customDeploy) && self.customDeploy.method != '')";
/// Rule of an image: registries check by themselves what they send.
const OCI_HAS_NO_CHECKSUM: &str =
    "!has(self.url) || !self.url.startsWith('oci://') || !has(self.checksum) || self.checksum == ''";

/// Where a cluster's API server is reached.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ControlPlaneEndpoint {
    /// Host name or address.
    pub host: String,
    /// Port.
    #[serde(default = "default_port")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: i32,
}

fn default_port() -> i32 {
    6443
}

/// A deploy method other than writing an image.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineCustomDeploy {
    /// Name of the method.
    pub method: String,
}

/// Which hosts a machine may have.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HostSelector {
    /// Labels that a host must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions that a host's labels must meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<HostRequirement>,
}

/// A condition that a host's labels must meet.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct HostRequirement {
    /// Key of the label.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`, in any case, or `=`, `==`, `!=`.
    pub operator: String,
    /// What the label's value is compared with.
    pub values: Vec<String>,
}

/// What an object has of its template's metadata.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct TemplateMetadata {
    /// Labels that it gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations that it gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Algorithm of an image's checksum.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum MachineChecksumType {
    /// MD5.
    Md5,
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

/// Form of an image.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DiskFormat {
    /// The disk as it is.
    #[default]
    Raw,
    /// QEMU's.
    Qcow2,
    /// VirtualBox's.
    Vdi,
    /// VMware's.
    Vmdk,
    /// A system that runs without being installed.
    LiveIso,
}

//! `infrastructure.cluster.x-k8s.io/v1beta2`, the version that objects are stored in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ControlPlaneEndpoint, DiskFormat, HostSelector, MachineChecksumType, MachineCustomDeploy, NEEDS_DEPLOY,
    NEEDS_ENDPOINT, OCI_HAS_NO_CHECKSUM, TemplateMetadata,
};
use crate::api::cluster::{DeprecatedStatus, FailureDomain, MachineAddress, conditions, failure_domains};
use crate::api::metal3::{AutomatedCleaningMode, SecretReference};

/// What a cluster of bare metal runs on: what it should be.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Metal3Cluster",
    plural = "metal3clusters",
    singular = "metal3cluster",
    shortname = "m3c",
    shortname = "m3cluster",
    shortname = "m3clusters",
    shortname = "metal3c",
    shortname = "metal3cluster",
    category = "cluster-api",
    namespaced,
    status = "Metal3ClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    validation = Rule::new(NEEDS_ENDPOINT).message("is required").field_path(".spec.controlPlaneEndpoint"),
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"Provisioned","type":"string","jsonPath":".status.initialization.provisioned","description":"Whether all is there that the cluster runs on"}"#,
    printcolumn = r#"{"name":"Error","type":"string","jsonPath":".status.deprecated.v1beta1.failureReason","description":"Last fault"}"#,
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.x-k8s\\.io/cluster-name","description":"Cluster that it is for"}"#,
    printcolumn = r#"{"name":"Endpoint","type":"string","jsonPath":".spec.controlPlaneEndpoint","description":"Where the cluster's API server is reached"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct Metal3ClusterSpec {
    /// Where the cluster's API server is reached. Whoever makes the cluster provides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ControlPlaneEndpoint>,
    /// Whether a cloud provider in the cluster gives nodes their identity; otherwise it is found by their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub cloud_provider_enabled: Option<bool>,
    /// Where machines may be, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "failure_domains")]
    pub failure_domains: Vec<FailureDomain>,
}

/// What a cluster of bare metal runs on: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3ClusterStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// When this was written last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// What is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfrastructureInitialization>,
    /// Where machines may be, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "failure_domains")]
    pub failure_domains: Vec<FailureDomain>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<DeprecatedStatus>,
}

/// What is done once, and stays done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct InfrastructureInitialization {
    /// All is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// From which the Metal3Clusters of a class are made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Metal3ClusterTemplate",
    plural = "metal3clustertemplates",
    singular = "metal3clustertemplate",
    shortname = "m3ct",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    derive = "Default"
)]
pub struct Metal3ClusterTemplateSpec {
    /// What is copied.
    pub template: Metal3ClusterTemplateResource,
}

/// What of a template is copied.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Metal3ClusterTemplateResource {
    /// Labels and annotations of what is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// What the Metal3Cluster should be.
    pub spec: Metal3ClusterSpec,
}

/// A machine of bare metal: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Metal3Machine",
    plural = "metal3machines",
    singular = "metal3machine",
    shortname = "m3m",
    shortname = "m3machine",
    shortname = "m3machines",
    shortname = "metal3m",
    shortname = "metal3machine",
    category = "cluster-api",
    namespaced,
    status = "Metal3MachineStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#,
    printcolumn = r#"{"name":"ProviderID","type":"string","jsonPath":".spec.providerID","description":"Identity of the machine at its provider"}"#,
    printcolumn = r#"{"name":"Provisioned","type":"string","jsonPath":".status.initialization.provisioned","description":"Whether the host runs its image"}"#,
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.x-k8s\\.io/cluster-name","description":"Cluster that it is for"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{"rule": NEEDS_DEPLOY, "message": "either image or customDeploy is required"}]))]
pub struct Metal3MachineSpec {
    /// Identity of the machine, as its node has it: `metal3://<namespace>/<host>/<machine>`.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub provider_id: Option<String>,
    /// The image that the host gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<MachineImage>,
    /// A deploy method other than writing an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_deploy: Option<MachineCustomDeploy>,
    /// Secret with user data, instead of the bootstrap provider's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<SecretReference>,
    /// Which hosts it may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_selector: Option<HostSelector>,
    /// Metal3DataTemplate from which its meta data and network data are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_template: Option<Metal3Reference>,
    /// Secret with meta data, instead of the made one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<SecretReference>,
    /// Secret with network data, instead of the made one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<SecretReference>,
    /// Whether the host's disks are wiped before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automated_cleaning_mode: Option<AutomatedCleaningMode>,
    /// Where it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
}

/// An image and how to check it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "(has(self.diskFormat) && self.diskFormat == 'live-iso') || self.url.startsWith('oci://') \
                 || (has(self.checksum) && self.checksum != '')",
        "message": "checksum is required",
    },
    {"rule": OCI_HAS_NO_CHECKSUM, "message": "checksum must be empty for an oci url"},
]))]
pub struct MachineImage {
    /// Where it is.
    #[schemars(length(min = 1))]
    pub url: String,
    /// Its checksum, or where that is. Live systems need none, and registries check by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Algorithm of the checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum_type: Option<MachineChecksumType>,
    /// Form of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_format: Option<DiskFormat>,
}

/// An object of Metal3.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Metal3Reference {
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Its namespace; the machine's own when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A machine of bare metal: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Metal3MachineStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// When this was written last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Addresses of the host, and its names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32))]
    pub addresses: Vec<MachineAddress>,
    /// What is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfrastructureInitialization>,
    /// Secret with the user data that is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<SecretReference>,
    /// Metal3Data that was made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendered_data: Option<Metal3Reference>,
    /// Secret with the meta data that is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<SecretReference>,
    /// Secret with the network data that is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<SecretReference>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<DeprecatedStatus>,
}

/// From which Metal3Machines are made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Metal3MachineTemplate",
    plural = "metal3machinetemplates",
    singular = "metal3machinetemplate",
    shortname = "m3mt",
    shortname = "m3machinetemplate",
    shortname = "m3machinetemplates",
    shortname = "metal3mt",
    shortname = "metal3machinetemplate",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct Metal3MachineTemplateSpec {
    /// What is copied.
    pub template: Metal3MachineTemplateResource,
    /// Whether a machine that takes another's place gets the host that the other had.
    #[serde(default)]
    pub node_reuse: bool,
}

/// What of a template is copied.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Metal3MachineTemplateResource {
    /// Labels and annotations of what is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// What the Metal3Machine should be.
    pub spec: Metal3MachineSpec,
}

//! `bootstrap.cluster.x-k8s.io/v1beta2`, the version that objects are stored in.

mod kubeadm;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::UserDataFormat;
use super::node::{Filesystem, IgnitionSpec, NodeUser, Ntp, PartitionSpec, TableType, UserDataFile};
use crate::api::cluster::{DeprecatedStatus, TemplateMeta, conditions};

pub use kubeadm::{
    Arg, BootstrapToken, ClusterConfiguration, Component, InitConfiguration, JoinConfiguration, JoinControlPlane,
    JoinDiscovery, KubeadmApiServer, KubeadmEtcd, KubeadmTimeouts, LocalEtcd, NodeRegistration,
};

/// How kubeadm makes a node: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmConfig",
    plural = "kubeadmconfigs",
    singular = "kubeadmconfig",
    category = "cluster-api",
    namespaced,
    status = "KubeadmConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']","description":"Cluster of the node"}"#,
    printcolumn = r#"{"name":"Paused","type":"string","jsonPath":".status.conditions[?(@.type==\"Paused\")].status","description":"Whether nothing is done about it","priority":10}"#,
    printcolumn = r#"{"name":"Data secret created","type":"string","jsonPath":".status.initialization.dataSecretCreated","description":"Whether the secret with the user data is there"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmConfigSpec {
    /// The cluster, for the node that begins it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_configuration: Option<ClusterConfiguration>,
    /// The node that begins the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_configuration: Option<InitConfiguration>,
    /// A node that joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_configuration: Option<JoinConfiguration>,
    /// Files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 200))]
    pub files: Vec<UserDataFile>,
    /// Partitions and file systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_setup: Option<DiskSetup>,
    /// What is mounted: the columns of an fstab.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 100), inner(length(min = 1, max = 512))))]
    pub mounts: Vec<Vec<String>>,
    /// Commands early at each boot. Ignition has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1, max = 10240)))]
    pub boot_commands: Vec<String>,
    /// Commands before kubeadm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1, max = 10240)))]
    pub pre_kubeadm_commands: Vec<String>,
    /// Commands after kubeadm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1, max = 10240)))]
    pub post_kubeadm_commands: Vec<String>,
    /// Users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub users: Vec<NodeUser>,
    /// Where the node has its time from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub ntp: Option<Ntp>,
    /// Form of the user data; `cloud-config` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<UserDataFormat>,
    /// How much kubeadm says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<i32>,
    /// What only Ignition knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub ignition: Option<IgnitionSpec>,
}

/// Partitions and file systems of a node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct DiskSetup {
    /// Partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub partitions: Vec<Partition>,
    /// File systems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub filesystems: Vec<Filesystem>,
}

/// The partitions of a disk.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "[has(self.layout),has(self.diskLayout)].filter(x,x==true).size() == 1",
    "message": "exactly one of the fields in [layout diskLayout] must be set",
}]))]
pub struct Partition {
    /// The disk.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
    /// Whether it has one partition, of all of it; otherwise it is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<bool>,
    /// Whether what is on the disk goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// Kind of the partition table; `mbr` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_type: Option<TableType>,
    /// Its partitions, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub disk_layout: Vec<PartitionSpec>,
}

/// How kubeadm makes a node: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmConfigStatus {
    /// Conditions, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// What is done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<BootstrapInitialization>,
    /// Secret with the user data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub data_secret_name: Option<String>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// What v1beta1 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<DeprecatedStatus>,
}

/// What is done once, and stays done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct BootstrapInitialization {
    /// The secret with the user data is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_created: Option<bool>,
}

/// From which KubeadmConfigs are made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmConfigTemplate",
    plural = "kubeadmconfigtemplates",
    singular = "kubeadmconfigtemplate",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"ClusterClass","type":"string","jsonPath":".metadata.ownerReferences[?(@.kind==\"ClusterClass\")].name","description":"Class that has the template"}"#,
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.ownerReferences[?(@.kind==\"Cluster\")].name","description":"Cluster that has the template"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
pub struct KubeadmConfigTemplateSpec {
    /// What is copied.
    pub template: KubeadmConfigTemplateResource,
}

/// What of a template is copied.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmConfigTemplateResource {
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMeta>,
    /// What the KubeadmConfig should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<KubeadmConfigSpec>,
}

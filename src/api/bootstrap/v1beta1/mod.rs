//! `bootstrap.cluster.x-k8s.io/v1beta1`, served for the manifests and clients that there are.

mod kubeadm;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::UserDataFormat;
use super::node::{Filesystem, IgnitionSpec, NodeUser, Ntp, PartitionSpec, TableType, UserDataFile};
use crate::api::cluster::{NewConditions, OldCondition, TemplateMeta};

pub use kubeadm::{
    BootstrapToken, ClusterConfiguration, Component, InitConfiguration, JoinConfiguration, JoinControlPlane,
    JoinDiscovery, KubeadmApiServer, KubeadmEtcd, LocalEtcd, Networking, NodeRegistration,
};

/// How kubeadm makes a node: what it should be.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "KubeadmConfig",
    plural = "kubeadmconfigs",
    singular = "kubeadmconfig",
    category = "cluster-api",
    namespaced,
    deprecated,
    status = "KubeadmConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']","description":"Cluster of the node"}"#,
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
    #[schemars(length(max = 200))]
    pub files: Vec<UserDataFile>,
    /// Partitions and file systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_setup: Option<DiskSetup>,
    /// What is mounted: the columns of an fstab.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 100), inner(length(min = 1, max = 512))))]
    pub mounts: Vec<Vec<String>>,
    /// Commands early at each boot. Ignition has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 10240)))]
    pub boot_commands: Vec<String>,
    /// Commands before kubeadm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 10240)))]
    pub pre_kubeadm_commands: Vec<String>,
    /// Commands after kubeadm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 10240)))]
    pub post_kubeadm_commands: Vec<String>,
    /// Users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub users: Vec<NodeUser>,
    /// Where the node has its time from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ntp: Option<Ntp>,
    /// Form of the user data; `cloud-config` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<UserDataFormat>,
    /// Deprecated, and without effect: kubeadm repeats what is worth repeating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_experimental_retry_join: Option<bool>,
    /// How much kubeadm says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<i32>,
    /// What only Ignition knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignition: Option<IgnitionSpec>,
}

/// Partitions and file systems of a node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
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
pub struct Partition {
    /// The disk.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
    /// Whether it has one partition, of all of it; otherwise it is left as it is.
    pub layout: bool,
    /// Whether what is on the disk goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// Kind of the partition table; `mbr` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_type: Option<TableType>,
    /// Its partitions, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub disk_layout: Vec<PartitionSpec>,
}

/// How kubeadm makes a node: what it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmConfigStatus {
    /// The secret with the user data is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Secret with the user data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub data_secret_name: Option<String>,
    /// Fault that nobody will mend, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_reason: Option<String>,
    /// The same, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10240))]
    pub failure_message: Option<String>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// What v1beta2 has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<NewConditions>,
}

/// From which KubeadmConfigs are made.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "KubeadmConfigTemplate",
    plural = "kubeadmconfigtemplates",
    singular = "kubeadmconfigtemplate",
    category = "cluster-api",
    namespaced,
    deprecated,
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
pub struct KubeadmConfigTemplateSpec {
    /// What is copied.
    pub template: KubeadmConfigTemplateResource,
}

/// What of a template is copied.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct KubeadmConfigTemplateResource {
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMeta>,
    /// What the KubeadmConfig should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<KubeadmConfigSpec>,
}

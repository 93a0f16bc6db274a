//! A cluster, for whoever looks after its nodes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::state_item::{AgentConfig, StateItem};

/// What the nodes of a cluster are to run, and in which order they come to it.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "lcm.mirantis.com",
    version = "v1alpha1",
    kind = "LCMCluster",
    plural = "lcmclusters",
    singular = "lcmcluster",
    namespaced,
    status = "LCMClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Release","type":"string","jsonPath":".spec.release","description":"Release that its nodes are to run"}"#,
    printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.requestedNodes","description":"Nodes that are wanted"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyNodes","description":"Nodes that are ready"}"#,
    printcolumn = r#"{"name":"Helm","type":"boolean","jsonPath":".status.helmControllerDeployed","description":"Whether the Helm controller runs in it"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct LCMClusterSpec {
    /// Steps of each kind of machine: `control`, `worker`, `bastion`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machine_types: BTreeMap<String, Vec<StateItem>>,
    /// Versions of components that are not steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, String>,
    /// Where the cluster's API server is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_endpoint: Option<LcmEndpoint>,
    /// Network of its pods, as `10.244.0.0/16`.
    #[serde(default, rename = "podsCIDR", skip_serializing_if = "String::is_empty")]
    pub pods_cidr: String,
    /// Network of its services, as `10.96.0.0/16`.
    #[serde(default, rename = "servicesCIDR", skip_serializing_if = "String::is_empty")]
    pub services_cidr: String,
    /// Where nodes reach the appliance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub management_cluster_endpoint: Option<LcmEndpoint>,
    /// Account as which the Helm controller reads its HelmBundle.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub helm_controller_service_account_name: String,
    /// Secret with what a node needs to become one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deployment_secret_name: String,
    /// Secret with the kubeconfig of the cluster's administrator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kubeconfig_secret_name: String,
    /// Secret with what agents find out that other nodes need.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent_data_secret_name: String,
    /// How long a token to join is good, as `24h`.
    #[serde(default, rename = "tokenTTL", skip_serializing_if = "String::is_empty")]
    pub token_ttl: String,
    /// A token that is good for less is made anew before it is handed out, as `1h`.
    #[serde(default, rename = "minTokenRemainingTTL", skip_serializing_if = "String::is_empty")]
    pub min_token_remaining_ttl: String,
    /// Whether control plane nodes run nothing else.
    #[serde(default = "yes")]
    pub dedicated_control_plane: bool,
    /// Workers that prepare and are deployed at once; 50 where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 500))]
    pub max_worker_prepare_count: Option<i32>,
    /// Workers that are drained at once; 1 where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 500))]
    pub max_worker_upgrade_count: Option<i32>,
    /// Whether nodes reboot when the release says so.
    #[serde(default)]
    pub nodes_reboot_required: bool,
    /// Release that the nodes are to run, by its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Groups of machines that get another release together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_groups: Vec<LcmUpdateGroup>,
    /// ClusterUpdatePlan whose steps say which groups may get the release; all may where none is named.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub update_plan: String,
    /// Whether nothing is changed on nodes but SSH keys.
    #[serde(default)]
    pub maintenance: bool,
    /// How the cluster is made: `kubeadm`, or `byo` where its steps make whatever they make.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lcm_type: String,
    /// The agent of its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_config: Option<AgentConfig>,
    /// Keys that open every node by SSH, as lines of `authorized_keys`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_authorized_keys: Vec<String>,
}

fn yes() -> bool {
    true
}

/// Machines that get another release together, as their UpdateGroup says.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LcmUpdateGroup {
    /// Name of the UpdateGroup.
    pub name: String,
    /// Its place in the order; lower ones come first.
    #[serde(default)]
    pub index: i32,
    /// Machines of it that are drained at once.
    #[serde(default)]
    pub concurrent_updates: i32,
    /// Whether its machines reboot for a release that requires it.
    #[serde(default)]
    pub reboot_if_update_requires: bool,
    /// Why none of its machines begins with another release now; empty when they may.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub paused: String,
}

/// Host and port.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct LcmEndpoint {
    /// Name or address.
    #[serde(default)]
    pub host: String,
    /// TCP port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// How far the nodes of a cluster are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LCMClusterStatus {
    /// Nodes that are wanted.
    #[serde(default)]
    pub requested_nodes: i32,
    /// Nodes that are ready.
    #[serde(default)]
    pub ready_nodes: i32,
    /// Whether the Helm controller runs in it.
    #[serde(default)]
    pub helm_controller_deployed: bool,
    /// Release that every node has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// How far each group of machines is with the release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_groups: Vec<LcmUpdateGroupStatus>,
    /// Whether it is in maintenance.
    #[serde(default)]
    pub maintenance: bool,
    /// Whether what is under way does not get on.
    #[serde(default)]
    pub lcm_operation_stuck: bool,
    /// `Prepared`, `ControlPlaneInitialized`, `NodesReady`, `HelmControllerDeployed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation that it was found out for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How far a group of machines is with the release of its cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LcmUpdateGroupStatus {
    /// Name of the group.
    #[serde(default)]
    pub name: String,
    /// Machines of it.
    #[serde(default)]
    pub machines: i32,
    /// Those that have the release and are ready.
    #[serde(default)]
    pub updated: i32,
    /// Those that have begun with it.
    #[serde(default)]
    pub under_way: i32,
    /// What the others wait for, and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

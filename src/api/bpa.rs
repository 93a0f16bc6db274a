//! `bpa.akraino.org/v1alpha1`: the Binary Provisioning Agent of Akraino ICN, in the spelling of its published definitions.
//!
//! <https://github.com/akraino-edge-stack/icn>, `cmd/bpa-operator/deploy/crds`. `image` and the status are Slipway's own.

pub mod software;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded;
use super::metal3::HostImage;

/// API group.
pub const GROUP: &str = "bpa.akraino.org";
/// Most masters: each is a member of etcd, and every one has to agree to each write.
pub const MAX_MASTERS: usize = 9;
/// Most workers.
pub const MAX_WORKERS: usize = 500;
/// Asks for a further run of kubespray: `PLAYBOOK/ANYTHING`, where `PLAYBOOK` is `cluster`, `scale` or `upgrade-cluster`. Each new value is
/// one run.
pub const ANNOTATION_RUN: &str = "bpa.akraino.org/run";
/// Ends a run that is under way: its name, as `status.run.id` has it. Any other value does nothing.
pub const ANNOTATION_CANCEL: &str = "bpa.akraino.org/cancel";
/// A Secret with this label, `true`, is a login that may be used on machines of its namespace: its password is sent there.
pub const LABEL_SSH_LOGIN: &str = "bpa.akraino.org/ssh-login";
/// Most plugins.
const MAX_PLUGINS: usize = 64;

/// A cluster that kubespray installs on hosts: which hosts are masters and workers.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "bpa.akraino.org",
    version = "v1alpha1",
    kind = "Provisioning",
    plural = "provisionings",
    singular = "provisioning",
    shortname = "bpa",
    namespaced,
    status = "ProvisioningStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"How far it is"}"#,
    printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.nodesWanted","description":"Nodes that are wanted"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.nodesReady","description":"Nodes whose hosts run a system and have an address"}"#,
    printcolumn = r#"{"name":"NodesReady","type":"string","jsonPath":".status.conditions[?(@.type==\"NodesReady\")].status","description":"Whether the cluster says that all its nodes are ready"}"#,
    printcolumn = r#"{"name":"Inventory","type":"string","jsonPath":".status.inventory","description":"ConfigMap with the inventory"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","description":"What it waits for","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningSpec {
    /// Control plane nodes, which are the members of etcd too: an odd number. Each is a map of one node, by its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_MASTERS>")]
    pub masters: Vec<BTreeMap<String, Option<MasterNode>>>,
    /// Workers. One with the name of a master and nothing else is that master. Without any, every master is a worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_WORKERS>")]
    pub workers: Vec<BTreeMap<String, Option<WorkerNode>>>,
    /// Addresses of pods, as `10.233.64.0/18`.
    #[serde(default, rename = "PodSubnet", skip_serializing_if = "Option::is_none")]
    pub pod_subnet: Option<String>,
    /// What hosts run that run nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<HostImage>,
    /// Secret with a login for hosts that others installed: each is opened with it to the cluster's key, once. Of the type
    /// `kubernetes.io/basic-auth` (`username`, `password`), with the label `bpa.akraino.org/ssh-login: "true"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_name: Option<String>,
    /// Plugins of another installer: kept, without effect.
    #[serde(
        default,
        rename = "KUDPlugins",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "bounded::list::<_, _, MAX_PLUGINS>"
    )]
    pub kud_plugins: Vec<String>,
    /// A path of another installer: kept, and never opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostfile: Option<String>,
    /// A path of another installer: kept, and never opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kud_installer_path: Option<String>,
    /// A path of another installer: kept, and never opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp_lease_file: Option<String>,
    /// A path of another installer: kept, and never opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_cluster_dir: Option<String>,
}

/// Which host is a master. With a MAC address that host is, and must have the rest; without one, any host that has it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MasterNode {
    /// MAC address of the host.
    #[serde(default, rename = "mac-address", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub mac_address: Option<String>,
    /// Logical processors, at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cpu: Option<i32>,
    /// Memory, at least: `16Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

/// Which host is a worker, as [`MasterNode`].
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct WorkerNode {
    /// MAC address of the host.
    #[serde(default, rename = "mac-address", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub mac_address: Option<String>,
    /// Logical processors, at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cpu: Option<i32>,
    /// Memory, at least: `16Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The host's network cards have SR-IOV: it has the label `bpa.akraino.org/sriov: "true"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sriov: Option<bool>,
    /// The host has QuickAssist: it has the label `bpa.akraino.org/qat: "true"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qat: Option<bool>,
}

/// How far a cluster is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningStatus {
    /// `Invalid`, `Choosing`, `Provisioning`, `InventoryReady`, `Installing`, `Ready` or `Failed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// What it waits for, or what to do next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Nodes that are wanted.
    #[serde(default)]
    pub nodes_wanted: i64,
    /// Nodes whose hosts run a system and have an address.
    #[serde(default)]
    pub nodes_ready: i64,
    /// The nodes, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeProgress>,
    /// The inventory itself, in YAML. Unlike the ConfigMap it is nobody's to write who may only edit objects of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_yaml: Option<String>,
    /// ConfigMap with the inventory: `hosts.yaml`, `hosts.ini`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<String>,
    /// Secret with the SSH key that opens the nodes: `ssh-privatekey`, `ssh-publickey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key: Option<String>,
    /// The public key, for hosts that others installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_public_key: Option<String>,
    /// Nodes whose hosts others installed, and how it went to log in there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logins: Vec<NodeLogin>,
    /// The run of kubespray that was begun last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunProgress>,
    /// The nodes that kubespray has installed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub installed: Vec<String>,
    /// Secret with the cluster's kubeconfig: `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<String>,
    /// `HostsClaimed`, `HostsProvisioned`, `InventoryReady`, `Installed`, `KubeconfigKept`, `NodesReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation that it was found out for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A run of a playbook of kubespray.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// Which run of this object it is: 1, 2, …
    #[serde(default)]
    pub number: i64,
    /// Its name on the appliance, for `slipway kubespray log`.
    #[serde(default)]
    pub id: String,
    /// `cluster`, `scale` or `upgrade-cluster`.
    #[serde(default)]
    pub playbook: String,
    /// The appliance that it runs on.
    #[serde(default)]
    pub appliance: String,
    /// The value of the annotation `bpa.akraino.org/run` when it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// `Starting`, `Running`, `Succeeded`, `Failed`, `Cancelled` or `Lost`.
    #[serde(default)]
    pub state: String,
    /// When it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it was seen to be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// The task that is under way, or was last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task: String,
    /// 0 to 100, by plays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// Hosts on which nothing failed so far.
    #[serde(default)]
    pub hosts_ok: i64,
    /// Hosts on which something failed, or that were not reached.
    #[serde(default)]
    pub hosts_failed: i64,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RunFailure>,
}

/// A task that failed on a host.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunFailure {
    /// The host, by its node's name.
    #[serde(default)]
    pub host: String,
    /// The task.
    #[serde(default)]
    pub task: String,
    /// Why, shortened.
    #[serde(default)]
    pub message: String,
}

/// How it went to open a machine to the cluster's key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeLogin {
    /// The node.
    #[serde(default)]
    pub node: String,
    /// `Opened` or `Refused`.
    #[serde(default)]
    pub state: String,
    /// Which machine it was, as `NAME-known-hosts` marks it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Which version of the Secret was tried.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub secret_version: String,
    /// The annotation `bpa.akraino.org/run` then: with another one it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How far a node is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeProgress {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// `master`, `worker`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Where its host is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What is leased to its machine, or was last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether it is ready, as its cluster says: `True`, `False` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ready: Option<String>,
    /// Version of its kubelet: `v1.35.4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_version: Option<String>,
    /// What the last run did on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<NodeTasks>,
    /// What it waits for; empty when nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Tasks of a run on a node, by what they came to.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeTasks {
    /// Those that did not fail, with those that changed something.
    #[serde(default)]
    pub ok: i64,
    /// Of these, those that changed something.
    #[serde(default)]
    pub changed: i64,
    /// Those that failed.
    #[serde(default)]
    pub failed: i64,
    /// Those for which it could not be reached.
    #[serde(default)]
    pub unreachable: i64,
}

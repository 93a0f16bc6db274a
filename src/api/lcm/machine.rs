//! A node, for the agent on it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::NodeAddress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state_item::{AgentConfig, MAX_ITEMS, StateItem};
use crate::api::bounded;
use crate::api::metal3::any_object;

/// What the agent of a node is to do.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "lcm.mirantis.com",
    version = "v1alpha1",
    kind = "LCMMachine",
    plural = "lcmmachines",
    singular = "lcmmachine",
    shortname = "lcmm",
    namespaced,
    status = "LCMMachineStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterName","description":"Cluster that it is of"}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type","description":"What it is in the cluster"}"#,
    printcolumn = r#"{"name":"State","type":"string","jsonPath":".status.state","description":"How far it is"}"#,
    printcolumn = r#"{"name":"Release","type":"string","jsonPath":".status.release","description":"Release that it has"}"#,
    printcolumn = r#"{"name":"InternalIP","type":"string","jsonPath":".status.addresses[?(@.type==\"InternalIP\")].address","description":"Its address in the cluster"}"#,
    printcolumn = r#"{"name":"Agent","type":"string","jsonPath":".status.agentVersion","description":"Version of its agent","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What it waits for","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct LCMMachineSpec {
    /// Cluster that it is of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    /// What it is in the cluster; not said until it is filled in.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub role: Option<MachineRole>,
    /// Steps, in order. They are handed out phase by phase, when it is this machine's turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::list::<_, _, MAX_ITEMS>")]
    pub state_items: Vec<StateItem>,
    /// Parameters of steps that are other on this machine, by the names of steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state_items_overwrites: BTreeMap<String, BTreeMap<String, String>>,
    /// The agent that it is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_config: Option<AgentConfig>,
    /// Keys that open it by SSH, as lines of `authorized_keys`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_authorized_keys: Vec<String>,
    /// Release that it is to have, by its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// UpdateGroup that it is of; the default one where there is none of this name. Machines of the control plane are of their own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub update_group: String,
    /// Interface whose address is its address in the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// Network of its address in the cluster, where no interface is named. Without either it is the address from which the
    /// appliance is reached.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cidr: String,
    /// Whether it is to be rebooted once it is ready; taken back when it was.
    #[serde(default)]
    pub reboot_required: bool,
    /// Account as which its agent reads and writes this object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    /// Whether nothing is changed on it but SSH keys.
    #[serde(default)]
    pub maintenance: bool,
    /// Whether its agent does nothing but keep SSH keys.
    #[serde(default)]
    pub halt_agent: bool,
    /// How its cluster is made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lcm_type: String,
    /// Secret with what it needs to become a node. Its agent reads it as the subresource `deployment` of this object, and no Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deployment_secret_name: String,
    /// Secret with the kubeconfig of the cluster's administrator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kubeconfig_secret_name: String,
    /// Whether it is to leave the cluster.
    #[serde(default)]
    pub prepare_deletion: bool,
    /// Whether its node is deleted without being drained when it is to leave, and not waited for.
    #[serde(default)]
    pub force_deletion: bool,
    /// What its system is, as `ubuntu/jammy`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub distribution: String,
}

impl LCMMachineSpec {
    /// The steps as they are to be done on this machine: phase by phase, each name once. Its own parameters are in them already.
    /// This is what an agent works off, and what its statuses have the [hashes](StateItem::hash) of.
    pub fn items(&self) -> Vec<StateItem> {
        let mut names = BTreeSet::new();
        let mut items: Vec<StateItem> =
            self.state_items.iter().filter(|item| names.insert(item.name.as_str())).take(MAX_ITEMS).cloned().collect();
        items.sort_by_key(|item| item.phase);
        items
    }
}

/// What a machine is in its cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum MachineRole {
    /// Control plane.
    Control,
    /// Worker.
    Worker,
    /// A way in; no node.
    Bastion,
    /// Not said yet.
    Unassigned,
}

/// What the agent of a node has done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LCMMachineStatus {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeState>,
    /// What became of each step, by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state_item_statuses: BTreeMap<String, StateItemStatus>,
    /// Its addresses: `InternalIP`, `Hostname`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// Version of its agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent_version: String,
    /// How it went to replace its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lcm_agent_upgrade_status: Option<AgentUpgradeStatus>,
    /// Versions of components that are not steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, String>,
    /// Release that it has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// A reboot that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<RebootStatus>,
    /// What the machine is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_info: Option<HostInfo>,
    /// Secret with the token by which it joined.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token_secret: String,
    /// Whether it is in maintenance.
    #[serde(default)]
    pub maintenance: bool,
    /// `cordondraining`, `cordondrained` or `uncordoning`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kubernetes_cordon_drain: String,
    /// Why that does not get on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kubernetes_cordon_drain_error: String,
    /// `started`, `completed`, `aborting` or `failed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prepare_deletion_phase: String,
    /// When its agent was heard last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard: Option<Time>,
    /// `AgentHeard`, `Prepared`, `Deployed`, `Reconfigured`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation that its agent has read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How far a node is, in the order in which it gets there.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// Its agent was not heard.
    Uninitialized,
    /// It has nothing to do yet.
    Pending,
    /// It works off the steps before it is deployed.
    Prepare,
    /// It becomes a node.
    Deploy,
    /// It gets another release.
    Upgrade,
    /// It works off the steps beside what runs on it.
    Reconfigure,
    /// It is to be rebooted.
    Reboot,
    /// Nothing is to be done.
    Ready,
}

/// What became of a step.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StateItemStatus {
    /// Of which step this is, see [`StateItem::hash`].
    #[serde(default)]
    pub hash: String,
    /// How it ended: 0 is well. None while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its last lines, or why it was not done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What it found out, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "bounded::value")]
    #[schemars(schema_with = "any_object")]
    pub result: Option<Value>,
    /// How many times it was tried.
    #[serde(default)]
    pub attempt: i32,
    /// When it was begun last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

/// How it went to replace an agent.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AgentUpgradeStatus {
    /// Why the new one is not in use.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// How many times it was tried.
    #[serde(default)]
    pub attempt: i32,
    /// When it was begun last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

/// A reboot that was asked for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RebootStatus {
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Time>,
    /// Whether the machine has come up since.
    #[serde(default)]
    pub completed: bool,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error_message: String,
}

/// What a machine is, as its agent finds it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HostInfo {
    /// When its kernel began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_time: Option<Time>,
    /// As `x86_64`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    /// Version of its kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel_version: String,
    /// What its system calls itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub os: String,
    /// Its time zone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub timezone: String,
    /// Whether it is to be rebooted for what was installed.
    #[serde(default)]
    pub reboot_required: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reboot_reason: String,
    /// Processors, memory, disks and network cards.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "bounded::value")]
    #[schemars(schema_with = "any_object")]
    pub hardware: Option<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::lcm::Phase;

    #[test]
    fn steps_are_phase_by_phase_each_name_once() {
        let item = |name: &str, phase, value: &str| StateItem {
            name: name.into(),
            phase,
            params: BTreeMap::from([("a".to_owned(), value.to_owned()), ("b".to_owned(), "2".to_owned())]),
            ..StateItem::default()
        };
        let spec = LCMMachineSpec {
            state_items: vec![
                item("late", Phase::Reconfigure, "1"),
                item("join", Phase::Deploy, "1"),
                item("fetch", Phase::Prepare, "1"),
                item("unpack", Phase::Prepare, "1"),
                item("fetch", Phase::Prepare, "twice"),
            ],
            // They come with the steps, when it is the machine's turn.
            state_items_overwrites: BTreeMap::from([(
                "join".to_owned(),
                BTreeMap::from([("a".to_owned(), "own".to_owned())]),
            )]),
            ..LCMMachineSpec::default()
        };
        let items = spec.items();
        let names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(names, ["fetch", "unpack", "join", "late"]);
        assert_eq!((items[0].params["a"].as_str(), items[2].params["a"].as_str()), ("1", "1"));
        assert_eq!(items[2].hash(), item("join", Phase::Deploy, "1").hash(), "as it stands");
    }
}

//! Steps that an agent works off on its node.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::hex::hex;

/// Most steps of a machine.
pub const MAX_ITEMS: usize = 200;
/// Parameters that may change without the step being done again: they are no part of its hash. They say where other machines are,
/// which place this one has among them, and from which release it comes.
pub const UNHASHED_PARAMS: &[&str] = &[
    "clusterEndpoint",
    "controlNodeIP",
    "controlPlaneNodes",
    "nodeRole",
    "release_needs_upgrade",
    "target_release",
    "ucp_tag",
];

/// A step: what does it, and with what.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct StateItem {
    /// What does it.
    #[serde(default)]
    pub runner: StepRunner,
    /// Its name, by which its status is found.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Version of what it brings; another one has it done again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// What the runner needs to know.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
    /// When it is done.
    #[serde(default)]
    pub phase: Phase,
}

impl StateItem {
    /// What the step is, as 64 hexadecimal digits: SHA-256 of its JSON with sorted keys, without [`UNHASHED_PARAMS`]. A step whose
    /// status has this hash and the exit code 0 is done.
    pub fn hash(&self) -> String {
        let params: BTreeMap<&str, &str> = self
            .params
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| !UNHASHED_PARAMS.contains(key))
            .collect();
        let item = serde_json::json!({
            "name": self.name, "runner": self.runner, "version": self.version, "phase": self.phase, "params": params,
        });
        hex(&Sha256::digest(item.to_string()))
    }
}

/// What does a step.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum StepRunner {
    /// Fetches a file: `url`, `sha256`, `path`.
    Downloader,
    /// Runs a script: `script`, or `path` of one that was fetched; all other parameters are in its environment.
    #[default]
    Bash,
    /// Runs a playbook on this node: `playbook`; all other parameters are its variables.
    Ansible,
}

/// When a step is done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// On all machines, before the first of them is deployed.
    Prepare,
    /// In the order of machines: makes it a node of the cluster.
    #[default]
    Deploy,
    /// Afterwards, beside what runs on the node.
    Reconfigure,
}

/// The agent that a node is to run.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// Its version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Where it is fetched from.
    #[serde(default, rename = "downloadURL", skip_serializing_if = "String::is_empty")]
    pub download_url: String,
    /// SHA-256 of the program, as 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// Further arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> StateItem {
        StateItem {
            name: "kubelet".into(),
            version: "1.34.4".into(),
            params: BTreeMap::from([("script".into(), "true".into()), ("controlNodeIP".into(), "192.0.2.1".into())]),
            ..StateItem::default()
        }
    }

    #[test]
    fn a_hash_is_of_what_has_a_step_done_again() {
        let hash = item().hash();
        assert_eq!(hash.len(), 64);
        let mut moved = item();
        moved.params.insert("controlNodeIP".into(), "192.0.2.2".into());
        moved.params.insert("ucp_tag".into(), "x".into());
        assert_eq!(moved.hash(), hash, "parameters that may change");
        let others: [fn(&mut StateItem); 5] = [
            |item| item.name = "kubeadm".into(),
            |item| item.version = "1.34.5".into(),
            |item| item.runner = StepRunner::Ansible,
            |item| item.phase = Phase::Reconfigure,
            |item| drop(item.params.insert("script".into(), "false".into())),
        ];
        for change in others {
            let mut other = item();
            change(&mut other);
            assert_ne!(other.hash(), hash, "{other:?}");
        }
    }
}

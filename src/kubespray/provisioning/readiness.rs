//! Whether the nodes of an installed cluster are ready: its own API server says so, by the kubeconfig that is kept.
//!
//! A playbook that ended well says that programs were installed. Whether they run, the cluster knows.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;
use tokio::time::timeout;

use super::controller::Provisionings;
use super::progress;
use crate::api::bpa::{NodeProgress, Provisioning, ProvisioningStatus};
use crate::cluster::workload::{Nodes, brief};
use crate::runtime::conditions::ConditionVerdict;

/// How long a cluster is waited for. Other objects of its namespace wait as long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nodes that are said to be not ready.
const SAID: usize = 8;
/// Letters of a version.
const VERSION: usize = 40;

impl Provisionings {
    /// Asks a cluster whose kubeconfig is kept for its nodes, and notes what it says. Whether all of them are ready, or none is asked.
    pub(super) async fn see_nodes(&self, object: &Provisioning, status: &mut ProvisioningStatus) -> bool {
        if status.kubeconfig.is_none() || status.installed.is_empty() {
            return true;
        }
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let verdict = match self.nodes_of(&namespace, &name).await {
            Ok(nodes) => readiness(status, &nodes),
            Err(reason) => ConditionVerdict::unknown("NotAnswered", brief(&reason)),
        };
        progress::nodes_ready(status, &verdict, object.metadata.generation, Timestamp::now());
        verdict.is_true()
    }

    async fn nodes_of(&self, namespace: &str, name: &str) -> Result<Arc<Nodes>, String> {
        let asked = async {
            let workload = self.workloads.get(&self.client, namespace, name).await?;
            workload.nodes().await
        };
        match timeout(PATIENCE, asked).await {
            Ok(answered) => answered.map_err(|reason| reason.to_string()),
            Err(_) => Err(format!("the cluster's API server does not answer within {} s", PATIENCE.as_secs())),
        }
    }
}

/// Notes at each node that is installed what the cluster says of it; whether all are ready. Pure.
fn readiness(status: &mut ProvisioningStatus, nodes: &Nodes) -> ConditionVerdict {
    let ProvisioningStatus { installed, nodes: known, .. } = status;
    let mut faults = Vec::new();
    for node in known.iter_mut().filter(|node| installed.contains(&node.name)) {
        if let Some(fault) = note(node, nodes.named(&node.name).map(AsRef::as_ref)) {
            faults.push(format!("{} {fault}", node.name));
        }
    }
    if faults.is_empty() {
        return ConditionVerdict::yes("NodesReady");
    }
    let more = faults.len().saturating_sub(SAID);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    faults.truncate(SAID);
    ConditionVerdict::no("NodesNotReady", faults.join("; ") + &more)
}

/// Notes what is known of a node; what is wrong with it.
fn note(known: &mut NodeProgress, node: Option<&Node>) -> Option<String> {
    let status = node.and_then(|node| node.status.as_ref());
    let version = status.and_then(|status| status.node_info.as_ref()).map(|info| brief(&info.kubelet_version));
    known.kubelet_version = version.map(|version| version.chars().take(VERSION).collect());
    let ready = status.and_then(|status| status.conditions.as_ref()?.iter().find(|one| one.type_ == "Ready"));
    let truth = ready.map(|ready| match ready.status.as_str() {
        word @ ("True" | "False") => word,
        _ => "Unknown",
    });
    known.node_ready = truth.map(str::to_owned);
    match (node, ready, truth) {
        (None, ..) => Some("is no Node of the cluster".into()),
        (_, None, _) => Some("has not said yet whether it is ready".into()),
        (_, _, Some("True")) => None,
        (_, Some(ready), _) => Some(format!("is not ready: {}", reason(ready))),
    }
}

fn reason(ready: &NodeCondition) -> String {
    let said = [ready.message.as_deref(), ready.reason.as_deref()].into_iter().flatten().find(|text| !text.is_empty());
    brief(said.unwrap_or("it does not say why"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, status: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).expect("a node")
    }

    fn status(names: &[&str], installed: &[&str]) -> ProvisioningStatus {
        let nodes = names.iter().map(|name| NodeProgress { name: (*name).into(), ..NodeProgress::default() });
        let installed = installed.iter().map(|name| (*name).to_owned()).collect();
        ProvisioningStatus { nodes: nodes.collect(), installed, ..ProvisioningStatus::default() }
    }

    #[test]
    fn a_node_is_ready_when_its_cluster_says_so() {
        let ready = |truth: &str, message: &str| json!({"conditions": [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": truth, "message": message, "reason": "R"}]});
        for (said, truth, fault) in [
            (Some(ready("True", "")), Some("True"), None),
            (Some(ready("False", "cni\nis not there")), Some("False"), Some("w is not ready: cni is not there")),
            (Some(ready("Unknown", "")), Some("Unknown"), Some("w is not ready: R")),
            (Some(ready("Yes", "x")), Some("Unknown"), Some("w is not ready: x")),
            (Some(json!({})), None, Some("w has not said yet whether it is ready")),
            (None, None, Some("w is no Node of the cluster")),
        ] {
            let mut status = status(&["w", "later"], &["w"]);
            let verdict = readiness(&mut status, &Nodes::new(said.map(|said| node("w", said))));
            assert_eq!((status.nodes[0].node_ready.as_deref(), verdict.is_true()), (truth, fault.is_none()));
            assert_eq!(verdict.message, fault.unwrap_or_default());
        }
    }

    #[test]
    fn versions_are_noted_and_many_faults_are_bounded() {
        let mut one = status(&["w"], &["w"]);
        let info = json!({"architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": format!("v1.35.4{}", "x".repeat(900)), "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""});
        readiness(&mut one, &Nodes::new([node("w", json!({"nodeInfo": info}))]));
        assert_eq!(one.nodes[0].kubelet_version.as_ref().map(String::len), Some(VERSION));
        let names: Vec<String> = (0..500).map(|number| format!("w{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let verdict = readiness(&mut status(&names, &names), &Nodes::new([]));
        assert!(verdict.message.ends_with("; and 492 more") && verdict.message.len() < 1000, "{}", verdict.message);
    }
}

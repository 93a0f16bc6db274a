//! Requests to a cluster, worked off through its API server: nodes are drained, and take pods again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};

use crate::api::lcm::{LCMClusterState, LCMClusterStateStatus, Request};
use crate::cluster::workload::{WorkloadError, Workloads, drain};
use crate::runtime::changes::write_status;
use crate::runtime::{Reconcile, key};

/// Pods of which a message speaks.
const TOLD: usize = 5;

/// Works off LCMClusterStates.
pub(super) struct Drains {
    pub client: Client,
    pub workloads: Workloads,
    /// Between two rounds of a drain, and until a cluster that does not answer is asked again.
    pub pause: Duration,
}

impl Reconcile for Drains {
    type Object = LCMClusterState;
    type Error = kube::Error;

    const NAME: &'static str = "lcm-cluster-state";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        self.pause.min(Duration::from_secs(2))
    }

    async fn reconcile(&self, known: Arc<LCMClusterState>) -> Result<Action, kube::Error> {
        let (namespace, name) = key(known.as_ref());
        let api = Api::<LCMClusterState>::namespaced(self.client.clone(), &namespace);
        let Some(request) = api.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let old = request.status.clone();
        let is_done = old.as_ref().is_some_and(|status| status.value == request.spec.value);
        let is_ours = request.spec.request == Request::CordonDrain;
        if !is_ours || is_done || request.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let mut status = old.clone().unwrap_or_default();
        status.attempt = status.attempt.saturating_add(1);
        match self.round(&namespace, &request).await {
            Ok(waiting) if waiting.is_empty() => {
                status = LCMClusterStateStatus { value: request.spec.value.clone(), message: String::new(), ..status };
            }
            Ok(waiting) => status.message = said(&waiting),
            Err(error) => status.message = error.to_string(),
        }
        write_status(&api, &request, old.as_ref(), &status).await?;
        let is_done = status.value == request.spec.value;
        Ok(if is_done { Action::await_change() } else { Action::requeue(self.pause) })
    }
}

impl Drains {
    /// One round: nothing when it is as asked, else what is waited for.
    async fn round(&self, namespace: &str, request: &LCMClusterState) -> Result<Vec<String>, WorkloadError> {
        let (cluster, node) = (&request.spec.cluster_name, &request.spec.arg);
        let workload = self.workloads.get(&self.client, namespace, cluster).await?;
        let done = if request.spec.value == "true" {
            match workload.node(node).await? {
                Some(node) => drain::drain(workload.client(), &node, Timestamp::now()).await?,
                // What is not there has no pods.
                None => Vec::new(),
            }
        } else {
            drain::uncordon(workload.client(), node).await?;
            Vec::new()
        };
        workload.node_changed().await;
        if done.is_empty() {
            tracing::info!(
                namespace,
                cluster,
                node,
                drained = request.spec.value,
                request = request.name_any(),
                "did what was asked of a node"
            );
        }
        Ok(done)
    }
}

/// The first of what is waited for.
fn said(waiting: &[String]) -> String {
    let mut text = waiting.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    if waiting.len() > TOLD {
        text.push_str(&format!("; and {} more", waiting.len() - TOLD));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_speaks_of_some_pods() {
        let pods: Vec<String> = (0..7).map(|at| format!("pod {at}")).collect();
        assert_eq!(said(&pods[..2]), "pod 0; pod 1");
        assert_eq!(said(&pods), "pod 0; pod 1; pod 2; pod 3; pod 4; and 2 more");
    }
}

//! Requests to a cluster, worked off through its API server: its applications are asked, nodes are drained, and take pods again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};

use super::applications;
use super::locks::is_answered;
use crate::api::lcm::{LCMClusterState, LCMClusterStateSpec, LocksState, Request};
use crate::cluster::workload::{Workload, WorkloadError, Workloads, drain};
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
        let is_ours = matches!(request.spec.request, Request::CordonDrain | Request::ClusterMaintenance);
        if !is_ours || is_answered(&request) || request.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let mut status = old.clone().unwrap_or_default();
        status.attempt = status.attempt.saturating_add(1);
        let round = self.round(&namespace, &request).await;
        status.locks = match &round {
            Ok(DrainRound::Locked(_)) => Some(LocksState::Active),
            Ok(_) if request.spec.value == "true" && request.spec.scope.is_some() => Some(LocksState::Inactive),
            _ => None,
        };
        let is_done = matches!(round, Ok(DrainRound::Done));
        match round {
            Ok(DrainRound::Done) => {
                status.value.clone_from(&request.spec.value);
                status.message.clear();
                status.observed_generation = request.metadata.generation;
            }
            Ok(DrainRound::Locked(waiting) | DrainRound::Waits(waiting)) => status.message = said(&waiting),
            Err(error) => status.message = error.to_string(),
        }
        write_status(&api, &request, old.as_ref(), &status).await?;
        Ok(if is_done { Action::await_change() } else { Action::requeue(self.pause) })
    }
}

impl Drains {
    /// One round of what is asked.
    async fn round(&self, namespace: &str, request: &LCMClusterState) -> Result<DrainRound, WorkloadError> {
        let spec = &request.spec;
        let workload = self.workloads.get(&self.client, namespace, &spec.cluster_name).await?;
        let round = match (spec.request, spec.value == "true") {
            (Request::ClusterMaintenance, true) => {
                DrainRound::held(applications::ask_cluster(workload.client(), spec).await?)
            }
            (Request::ClusterMaintenance, false) => {
                applications::leave_cluster(workload.client(), spec).await?;
                DrainRound::Done
            }
            (_, true) => drained(&workload, spec).await?,
            (_, false) => {
                drain::uncordon(workload.client(), &spec.arg).await?;
                if spec.scope.is_some() {
                    applications::leave_node(workload.client(), &spec.arg).await?;
                }
                DrainRound::Done
            }
        };
        if spec.request == Request::CordonDrain {
            workload.node_changed().await;
        }
        if round == DrainRound::Done {
            tracing::info!(
                namespace,
                cluster = spec.cluster_name,
                node = spec.arg,
                asked = spec.value,
                request = request.name_any(),
                "did what was asked of a cluster"
            );
        }
        Ok(round)
    }
}

/// What became of a round.
#[derive(Debug, PartialEq, Eq)]
enum DrainRound {
    /// It is as it was asked.
    Done,
    /// Applications hold the cluster, or the node.
    Locked(Vec<String>),
    /// Pods do not go.
    Waits(Vec<String>),
}

impl DrainRound {
    fn held(locks: Vec<String>) -> Self {
        if locks.is_empty() { Self::Done } else { Self::Locked(locks) }
    }
}

/// One round of a drain. Nothing is done to a node that applications hold.
async fn drained(workload: &Workload, spec: &LCMClusterStateSpec) -> Result<DrainRound, WorkloadError> {
    // What is not there has no pods.
    let Some(node) = workload.node(&spec.arg).await? else { return Ok(DrainRound::Done) };
    if spec.scope.is_some() {
        let held = applications::ask_node(workload.client(), &node, spec).await?;
        if !held.is_empty() {
            return Ok(DrainRound::Locked(held));
        }
    }
    let pods = drain::drain(workload.client(), &node, Timestamp::now()).await?;
    Ok(if pods.is_empty() { DrainRound::Done } else { DrainRound::Waits(pods) })
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

//! The controller of LCMCluster: looks at a cluster with all its machines, decides whose turn it is, and writes that down.
//!
//! What is known of machines may be behind what is stored. That is well for what is only said; before something begins on a machine
//! all of them are read anew, so that no two managers begin on the word of two times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use super::deployments::DeploymentError;
use super::locks;
use super::material::{Material, MaterialError, material};
use super::nodes::{SeenNode, find};
use super::order::{Drain, MachineTurn, decide};
use super::said;
use super::survey::{Survey, SurveyInputs, is_kubeadm, survey};
use super::view::{LcmMachineView, of_cluster};
use crate::api::lcm::{LCMCluster, LCMClusterState, LCMMachine};
use crate::cluster::workload::{Workload, WorkloadError, Workloads};
use crate::runtime::changes::write_status;
use crate::runtime::{Cache, Conflict, ObjectKey, Reconcile, Slim, key, objects, owners};

/// How long what a cluster's machines need is taken for what it was.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// Times that tests have shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Between looks at what nobody tells of: nodes of the cluster, and drains.
    pub pause: Duration,
    /// An agent that says nothing for so long is silent.
    pub silence: SignedDuration,
    /// How long a machine that leaves is drained.
    pub patience: SignedDuration,
}

/// Why a look did not come to its end; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// What machines need.
    #[error(transparent)]
    Material(#[from] MaterialError),
    /// A machine's own.
    #[error(transparent)]
    Deployment(#[from] DeploymentError),
    /// What the cluster says.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl Conflict for Fault {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => {
                error.is_conflict() || matches!(error, kube::Error::Api(status) if status.is_already_exists())
            }
            Self::Material(error) => error.is_conflict(),
            Self::Deployment(error) => error.is_conflict(),
            Self::Workload(_) => false,
        }
    }
}

struct Kept {
    uid: Option<String>,
    endpoint: Option<String>,
    at: Instant,
    material: Arc<Material>,
}

/// Keeps LCMClusters.
pub(super) struct Keeper {
    pub client: Client,
    pub workloads: Workloads,
    pub machines: Cache<LcmMachineView>,
    pub requests: Cache<LCMClusterState>,
    pub times: Times,
    // std's lock: held for a look, never across an await.
    kept: Mutex<HashMap<ObjectKey, Kept>>,
}

/// A cluster as it was looked at, and what is to be done.
pub(super) struct ClusterLook<'a> {
    pub cluster: &'a LCMCluster,
    pub namespace: &'a str,
    pub survey: Survey,
    pub turns: Vec<MachineTurn>,
    pub now: Timestamp,
    /// The cluster that was made, where somebody asked.
    pub workload: Option<Workload>,
    /// What is asked of its applications.
    pub asked: Option<Arc<LCMClusterState>>,
}

impl Keeper {
    pub(super) fn new(
        client: Client,
        workloads: Workloads,
        (machines, requests): (Cache<LcmMachineView>, Cache<LCMClusterState>),
        times: Times,
    ) -> Self {
        Self { client, workloads, machines, requests, times, kept: Mutex::default() }
    }

    async fn look<'a>(
        &self,
        cluster: &'a LCMCluster,
        namespace: &'a str,
        views: Vec<LcmMachineView>,
    ) -> ClusterLook<'a> {
        let now = Timestamp::now();
        let (requests, asked) = (self.asked(namespace, &views), self.asked_of(cluster, namespace));
        let patience = self.times.silence;
        let put = |views, seen: &HashMap<String, SeenNode>| {
            let inputs = SurveyInputs { cluster, asked: asked.as_deref(), requests: &requests, seen, patience, now };
            survey(views, &inputs)
        };
        let (mut found, mut workload) = (put(views.clone(), &HashMap::new()), None);
        if found.kubeadm && found.rules.initialized && found.is_unsettled() {
            let seen = match self.nodes(namespace, &cluster.name_any(), &views).await {
                Ok((of, nodes)) => {
                    workload = Some(of);
                    nodes
                }
                Err(error) => {
                    let reason = error.to_string();
                    views.iter().map(|view| (view.name_any(), SeenNode::Unknown(reason.clone()))).collect()
                }
            };
            found = put(views, &seen);
        }
        let turns = if found.fault.is_some() { Vec::new() } else { decide(&found.members(), &found.rules) };
        let turns = found
            .machines
            .iter()
            .enumerate()
            .map(|(at, one)| {
                let without = || MachineTurn { waits: found.fault.clone(), ..MachineTurn::default() };
                let mut turn = turns.get(at).cloned().unwrap_or_else(without);
                if one.member.drain == Drain::Asked
                    && let Some(reason) = one.request.as_deref().and_then(locks::held)
                {
                    turn.waits = Some(reason);
                }
                turn
            })
            .collect();
        ClusterLook { cluster, namespace, survey: found, turns, now, workload, asked }
    }

    async fn nodes(
        &self,
        namespace: &str,
        cluster: &str,
        views: &[LcmMachineView],
    ) -> Result<(Workload, HashMap<String, SeenNode>), WorkloadError> {
        let workload = self.workloads.get(&self.client, namespace, cluster).await?;
        let nodes = workload.nodes().await?;
        let seen = views.iter().map(|view| (view.name_any(), find(view, views, &nodes))).collect();
        Ok((workload, seen))
    }

    /// What is asked of the cluster for its machines.
    fn asked(&self, namespace: &str, views: &[LcmMachineView]) -> HashMap<String, Arc<LCMClusterState>> {
        let one = |view: &LcmMachineView| {
            let name = view.name_any();
            let request = self.requests.get(&(namespace.to_owned(), locks::drain_name(&name)))?;
            Some((name, request))
        };
        views.iter().filter_map(one).collect()
    }

    /// What is asked of the cluster as a whole. One of a cluster that had its name before is not this one's.
    fn asked_of(&self, cluster: &LCMCluster, namespace: &str) -> Option<Arc<LCMClusterState>> {
        let uid = cluster.uid()?;
        let request = self.requests.get(&(namespace.to_owned(), locks::cluster_name(&cluster.name_any())))?;
        (owners::is_owned(&request.metadata, &uid) && request.metadata.deletion_timestamp.is_none()).then_some(request)
    }

    /// The machines of a cluster as they are stored.
    async fn stored(&self, cluster: &LCMCluster, namespace: &str) -> Result<Vec<LcmMachineView>, kube::Error> {
        let (mut all, name) = (Vec::new(), cluster.name_any());
        let api = Api::<LCMMachine>::namespaced(self.client.clone(), namespace);
        objects::each(&api, |machine: LCMMachine| {
            if machine.spec.cluster_name == name {
                all.push(LcmMachineView::from(&machine));
            }
        })
        .await?;
        Ok(all)
    }

    /// What the machines of a cluster need; none where its steps make whatever they make.
    async fn material(&self, look: &ClusterLook<'_>) -> Result<Option<Arc<Material>>, MaterialError> {
        if !is_kubeadm(look.cluster) {
            return Ok(None);
        }
        let (of, endpoint) = (key(look.cluster), look.survey.endpoint.clone());
        let known = {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let is_good =
                |one: &&Kept| one.uid == look.cluster.uid() && one.endpoint == endpoint && one.at.elapsed() < KEPT_FOR;
            kept.get(&of).filter(is_good).map(|one| one.material.clone())
        };
        if known.is_some() {
            return Ok(known);
        }
        let initialized = look.survey.rules.initialized;
        let found = Arc::new(material(&self.client, look.cluster, initialized, endpoint.as_deref()).await?);
        let new = Kept { uid: look.cluster.uid(), endpoint, at: Instant::now(), material: found.clone() };
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(of, new);
        Ok(Some(found))
    }

    /// When the cluster is to be looked at again though nobody tells of a change.
    fn again(&self, look: &ClusterLook<'_>, token: Option<Timestamp>) -> Action {
        let silent = look.survey.machines.iter().filter(|one| !one.member.silent).filter_map(|one| {
            let last = one.view.status.last_heard.as_ref()?;
            Some(last.0 + self.times.silence + SignedDuration::from_secs(1))
        });
        let next = silent.chain(token).min().map(|at| {
            let left = at.duration_since(look.now);
            Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(100))
        });
        // Nobody tells of what happens in the cluster.
        let unseen = look.survey.machines.iter().any(|one| {
            let node = matches!(one.seen, SeenNode::None | SeenNode::Unready(_) | SeenNode::Unknown(_))
                && one.member.was_deployed;
            node || one.view.spec.prepare_deletion
                && one.member.leaving
                && one.view.status.prepare_deletion_phase == super::leave::STARTED
        });
        match (next, unseen) {
            (None, false) => Action::await_change(),
            (None, true) => Action::requeue(self.times.pause),
            (Some(next), false) => Action::requeue(next),
            (Some(next), true) => Action::requeue(next.min(self.times.pause)),
        }
    }
}

impl Reconcile for Keeper {
    type Object = Slim<LCMCluster>;
    type Error = Fault;

    const NAME: &'static str = "lcm-cluster";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        self.times.pause.min(Duration::from_secs(2))
    }

    async fn reconcile(&self, known: Arc<Slim<LCMCluster>>) -> Result<Action, Fault> {
        let (namespace, name) = key(known.as_ref());
        let api = Api::<LCMCluster>::namespaced(self.client.clone(), &namespace);
        let Some(cluster) = api.get_opt(&name).await? else { return Ok(Action::await_change()) };
        if cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let views = self.machines.mentioning(&of_cluster(&namespace, &name));
        let views = views.iter().map(|view| LcmMachineView::clone(view)).collect();
        let mut look = self.look(&cluster, &namespace, views).await;
        if look.turns.iter().any(MachineTurn::acts)
            || look.survey.machines.iter().any(|one| one.view.spec.prepare_deletion)
        {
            let views = self.stored(&cluster, &namespace).await?;
            look = self.look(&cluster, &namespace, views).await;
        }
        let (material, reason) = match self.material(&look).await {
            Ok(material) => (material, None),
            Err(error) if error.is_conflict() => return Err(error.into()),
            Err(error) => (None, Some(error.to_string())),
        };
        let done = self.act(&mut look, material.as_deref(), reason.as_deref()).await;
        let said = (&look.survey, look.asked.as_deref());
        let status = said::cluster(&cluster, said, &look.turns, reason.as_deref(), look.now);
        write_status(&api, &cluster, cluster.status.as_ref(), &status).await?;
        let token = done?;
        let again = self.again(&look, token);
        // Somebody has to mend it, and nobody tells of that.
        Ok(if reason.is_some() { Action::requeue(self.times.pause) } else { again })
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&(namespace.to_owned(), name.to_owned()));
        self.workloads.forget(namespace, name);
    }
}

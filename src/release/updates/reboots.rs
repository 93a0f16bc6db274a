//! The controller of GracefulRebootRequests: marks machines, and says how far they are.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::reboot::{RebootStep, decide, may_be_taken_back};
use crate::api::kaas::GracefulRebootRequest;
use crate::api::lcm::{ANNOTATION_GRACEFUL_REBOOT, ANNOTATION_REBOOT_REQUEST, LCMCluster, LCMMachine};
use crate::api::machine_api::Cluster;
use crate::release::keep::is_of;
use crate::release::names::{COMPONENT, LABEL_CLUSTER, READY, REBOOT_FINALIZER};
use crate::runtime::changes::{change, delete, write_status};
use crate::runtime::conditions::{ConditionVerdict, is_true, set};
use crate::runtime::{Cache, Note, Reconcile, Slim, events, key, objects, owners, run};

/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// How often what waits for somebody is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The condition of a request.
const COMPLETED: &str = "Completed";

/// Looks at GracefulRebootRequests.
pub struct Reboots {
    client: Client,
}

impl Reboots {
    /// Nothing is looked at yet.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Looks at requests until the shutdown.
    pub async fn run(self, cache: Cache<Slim<GracefulRebootRequest>>, shutdown: CancellationToken) {
        run(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    /// The machines of a cluster, of those that are its Cluster's.
    async fn machines(&self, namespace: &str, cluster: &str) -> Result<Vec<LCMMachine>, kube::Error> {
        if !crate::apiserver::is_label_value(cluster) {
            return Ok(Vec::new());
        }
        let api = Api::<LCMMachine>::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().labels(&format!("{LABEL_CLUSTER}={cluster}"));
        let mut all = api.list(&params).await?.items;
        all.retain(|machine| machine.spec.cluster_name == cluster);
        Ok(all)
    }

    async fn look(&self, request: GracefulRebootRequest) -> Result<Action, kube::Error> {
        let (namespace, name) = (request.namespace().unwrap_or_default(), request.name_any());
        let api = Api::<GracefulRebootRequest>::namespaced(self.client.clone(), &namespace);
        let uid = request.uid().unwrap_or_default();
        let machines = self.machines(&namespace, &name).await?;
        if request.metadata.deletion_timestamp.is_some() {
            if objects::is_held(&request, REBOOT_FINALIZER) {
                // Who has not begun need not any more.
                for machine in machines.iter().filter(|machine| may_be_taken_back(machine, &uid)) {
                    self.mark(&namespace, machine, json!({ANNOTATION_GRACEFUL_REBOOT: null})).await?;
                }
                objects::release(&api, &request, REBOOT_FINALIZER).await?;
            }
            return Ok(Action::await_change());
        }
        let request = objects::hold(&api, request, REBOOT_FINALIZER).await?;
        let cluster = Api::<Cluster>::namespaced(self.client.clone(), &namespace).get_opt(&name).await?;
        let lcm = Api::<LCMCluster>::namespaced(self.client.clone(), &namespace).get_opt(&name).await?;
        let lcm = lcm.filter(|lcm| cluster.as_ref().is_some_and(|cluster| is_of(lcm, &owners::owner(cluster, true))));
        let conditions = cluster.as_ref().and_then(|cluster| cluster.status.as_ref()).map(|status| &status.conditions);
        let ready = conditions.is_some_and(|conditions| is_true(conditions, READY));
        let (verdict, counts) = match decide(&request, lcm.as_ref(), ready, &machines) {
            RebootStep::Wait(reason, message) => (ConditionVerdict::no(reason, message), (0, machines.len())),
            RebootStep::Mark(names) => {
                for machine in machines.iter().filter(|machine| names.contains(&machine.name_any())) {
                    let marks = json!({ANNOTATION_GRACEFUL_REBOOT: "true", ANNOTATION_REBOOT_REQUEST: uid});
                    self.mark(&namespace, machine, marks).await?;
                }
                (ConditionVerdict::no("InProgress", "machines are told"), (0, names.len()))
            }
            RebootStep::Run(done, all, message) => (ConditionVerdict::no("InProgress", message), (done, all)),
            RebootStep::Done(all) => {
                if let Some(cluster) = &cluster {
                    let message = format!("The GracefulRebootRequest is through: {all} machines have rebooted");
                    let note = Note { reason: "GracefulRebootCompleted", message, warning: false };
                    events::tell(&self.client, COMPONENT, cluster, &note).await;
                }
                delete(&api, &request).await?;
                (ConditionVerdict::yes("Completed"), (all, all))
            }
        };
        let mut status = request.status.clone().unwrap_or_default();
        let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        (status.rebooted, status.requested) = (count(counts.0), count(counts.1));
        set(&mut status.conditions, COMPLETED, &verdict, request.metadata.generation, Timestamp::now());
        if !verdict.is_true() {
            write_status(&api, &request, request.status.as_ref(), &status).await?;
        }
        Ok(Action::requeue(LOOK_AGAIN))
    }

    async fn mark(&self, namespace: &str, machine: &LCMMachine, annotations: Value) -> Result<(), kube::Error> {
        let api = Api::<LCMMachine>::namespaced(self.client.clone(), namespace);
        change(&api, machine, json!({"metadata": {"annotations": annotations}})).await.map(drop)
    }
}

impl Reconcile for Reboots {
    type Object = Slim<GracefulRebootRequest>;
    type Error = kube::Error;

    const NAME: &'static str = "provider-reboot";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, known: Arc<Slim<GracefulRebootRequest>>) -> Result<Action, kube::Error> {
        let (namespace, name) = key(known.as_ref());
        match Api::<GracefulRebootRequest>::namespaced(self.client.clone(), &namespace).get_opt(&name).await? {
            Some(request) => self.look(request).await,
            None => Ok(Action::await_change()),
        }
    }
}

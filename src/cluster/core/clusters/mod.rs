//! The controller of Cluster: owns what the cluster names, says how far it is, and deletes in order.

mod delete;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::Api;
use kube::runtime::controller::Action;
use serde_json::json;

use self::status::ClusterStatusInput;
use super::kit::{CoreFault, Kit, of_cluster};
use super::seen::{NamedObject, ReferenceRole};
use crate::api::cluster::keys::FINALIZER_CLUSTER;
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use crate::api::cluster::{ApiEndpoint, LABEL_CLUSTER, ReplicaCounts};
use crate::cluster::contract::{fields, pause};
use crate::runtime::changes::{change, write_status};
use crate::runtime::conditions::ConditionVerdict;
use crate::runtime::{ObjectKey, Reconcile, key, objects, owners};

/// Keeps Clusters.
pub(super) struct ClusterReconciler(pub Kit);

/// What there is of a cluster.
struct ClusterParts {
    machines: Vec<Arc<Machine>>,
    sets: Vec<Arc<MachineSet>>,
    deployments: Vec<Arc<MachineDeployment>>,
}

impl ClusterParts {
    fn of(kit: &Kit, cluster: &ObjectKey) -> Self {
        let of = of_cluster(cluster);
        let mut machines = kit.caches.machines.mentioning(&of);
        let mut sets = kit.caches.sets.mentioning(&of);
        let mut deployments = kit.caches.deployments.mentioning(&of);
        // A status that lists names is to be the same each time.
        machines.sort_by_key(|one| one.metadata.name.clone());
        sets.sort_by_key(|one| one.metadata.name.clone());
        deployments.sort_by_key(|one| one.metadata.name.clone());
        Self { machines, sets, deployments }
    }
}

impl Reconcile for ClusterReconciler {
    type Object = Cluster;
    type Error = CoreFault;

    const NAME: &'static str = "cluster";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<std::time::Duration> = Some(super::kit::LOOK_MAX);

    fn retry_after(&self) -> std::time::Duration {
        self.0.pause
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        self.0.workloads.forget(namespace, name);
    }

    async fn reconcile(&self, known: Arc<Cluster>) -> Result<Action, CoreFault> {
        let Self(kit) = self;
        let key = key(known.as_ref());
        let api = kit.api::<Cluster>(&key.0);
        let Some(cluster) = api.get_opt(&key.1).await? else { return Ok(Action::await_change()) };
        if pause::rests(&api, &cluster, Some(&cluster), |status| &mut status.conditions).await? {
            return Ok(Action::await_change());
        }
        if cluster.metadata.deletion_timestamp.is_some() {
            return self.delete(&api, cluster, &key).await;
        }
        let cluster = objects::hold(&api, cluster, FINALIZER_CLUSTER).await?;
        let infrastructure = NamedObject::find(
            &kit.objects,
            &key.0,
            ReferenceRole::Infrastructure,
            cluster.spec.infrastructure_ref.as_ref(),
        )
        .await?;
        let control_plane = NamedObject::find(
            &kit.objects,
            &key.0,
            ReferenceRole::ControlPlane,
            cluster.spec.control_plane_ref.as_ref(),
        )
        .await?;
        let (owner, label) = (owner(&cluster), [(LABEL_CLUSTER, key.1.as_str())]);
        let infrastructure = infrastructure.adopt(&kit.objects, &owner, &label, &[]).await?;
        let control_plane = control_plane.adopt(&kit.objects, &owner, &label, &[]).await?;
        let cluster = self.take_endpoint(&api, cluster, [&infrastructure, &control_plane]).await?;
        self.say(&api, &cluster, &key, &infrastructure, &control_plane, None).await?;
        Ok(Action::requeue(kit.pause))
    }
}

/// A cluster as an owner of what it names. It controls that only where a class of clusters has it made: else others may, who make
/// it of something of their own.
fn owner(cluster: &Cluster) -> OwnerReference {
    owners::owner(cluster, cluster.spec.topology.is_some())
}

impl ClusterReconciler {
    /// Where the API server is reached is taken from the first that says it, and never changes again.
    async fn take_endpoint(
        &self,
        api: &Api<Cluster>,
        cluster: Cluster,
        from: [&NamedObject; 2],
    ) -> Result<Cluster, CoreFault> {
        if status::has_endpoint(&cluster) {
            return Ok(cluster);
        }
        let found = from.into_iter().find_map(|named| fields::endpoint(named.data()?));
        let Some(ApiEndpoint { host, port }) = found else { return Ok(cluster) };
        let patch = json!({ "spec": { "controlPlaneEndpoint": { "host": host, "port": port } } });
        Ok(change(api, &cluster, patch).await?)
    }

    async fn say(
        &self,
        api: &Api<Cluster>,
        cluster: &Cluster,
        key: &ObjectKey,
        infrastructure: &NamedObject,
        control_plane: &NamedObject,
        deleting: Option<ConditionVerdict>,
    ) -> Result<(), CoreFault> {
        let parts = ClusterParts::of(&self.0, key);
        let view = ClusterStatusInput {
            cluster,
            infrastructure: infrastructure.seen(&["Ready"], fields::is_provisioned),
            // The control plane of the older contract says it by `Ready`.
            control_plane: control_plane.seen(&["Available", "Ready"], fields::is_initialized),
            counted: control_plane.data().map_or_else(ReplicaCounts::default, fields::replicas),
            domains: infrastructure.data().map(fields::failure_domains),
            machines: &parts.machines,
            sets: &parts.sets,
            deployments: &parts.deployments,
            probe: self.probe(cluster, key).await,
            deleting,
        };
        let status = status::status(&view, Timestamp::now());
        write_status(api, cluster, cluster.status.as_ref(), &status).await?;
        Ok(())
    }

    /// Whether the API server that was made answers; nobody is asked before there is one.
    async fn probe(&self, cluster: &Cluster, key: &ObjectKey) -> Option<Result<(), String>> {
        let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        if done.and_then(|done| done.control_plane_initialized) != Some(true) {
            return None;
        }
        let asked = async { self.0.workloads.get(&self.0.client, &key.0, &key.1).await?.probe().await };
        Some(asked.await.map_err(|error| error.to_string()))
    }
}

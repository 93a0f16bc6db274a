//! What runs: a controller for each kind, and what has them look at an object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use kube::{Resource, ResourceExt};

use super::kit::{CoreCaches, Kit, kept_by, of_cluster};
use super::{clusters, deployments, health, machines, sets};
use crate::api::bootstrap::v1beta2::KubeadmConfig;
use crate::api::cluster::GROUP;
use crate::api::cluster::keys::LABEL_DEPLOYMENT;
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine};
use crate::cluster::contract::{ReferencedObjects, pause};
use crate::cluster::workload::Workloads;
use crate::module::{Acting, Life, Service, service};
use crate::runtime::{ObjectKey, WatchChange, Watches, key, run, wake};

/// How often what changes unseen is looked at.
const PAUSE: Duration = Duration::from_secs(15);
/// How long what is deleted waits for a cluster that does not answer.
const PATIENCE: Duration = Duration::from_secs(300);

/// Clusters and their machines, as this process knows them.
pub struct ClusterLife {
    caches: CoreCaches,
    workloads: Workloads,
    pause: Duration,
    patience: Duration,
}

impl ClusterLife {
    /// None, until the watches run.
    pub fn new(watches: &mut Watches, workloads: Workloads) -> Self {
        let caches = CoreCaches::new(watches);
        members(watches, &caches);
        cluster(watches, &caches);
        keepers(watches, &caches);
        wake::on::<KubeadmControlPlane>(watches, caches.clusters.wakes().clone(), |one| {
            wake::owner(one, GROUP, "Cluster")
        });
        wake::on::<KubeadmConfig>(watches, caches.machines.wakes().clone(), |one| wake::owner(one, GROUP, "Machine"));
        wake::on::<Metal3Cluster>(watches, caches.clusters.wakes().clone(), |one| wake::owner(one, GROUP, "Cluster"));
        wake::on::<Metal3Machine>(watches, caches.machines.wakes().clone(), |one| wake::owner(one, GROUP, "Machine"));
        Self { caches, workloads, pause: PAUSE, patience: PATIENCE }
    }

    /// With other times: tests have none.
    #[cfg(test)]
    pub(in crate::cluster) fn within(self, pause: Duration, patience: Duration) -> Self {
        Self { pause, patience, ..self }
    }
}

/// What belongs to a cluster has it looked at.
fn members(watches: &mut Watches, caches: &CoreCaches) {
    fn of<K: Resource>(object: &K, cluster: &str) -> Vec<ObjectKey> {
        vec![(object.namespace().unwrap_or_default(), cluster.to_owned())]
    }
    let wakes = || caches.clusters.wakes().clone();
    wake::on::<Machine>(watches, wakes(), |one| of(one, &one.spec.cluster_name));
    wake::on::<MachineSet>(watches, wakes(), |one| of(one, &one.spec.cluster_name));
    wake::on::<MachineDeployment>(watches, wakes(), |one| of(one, &one.spec.cluster_name));
}

/// A machine has those looked at that keep it, and a set its deployment.
fn keepers(watches: &mut Watches, caches: &CoreCaches) {
    wake::on::<Machine>(watches, caches.sets.wakes().clone(), |one| wake::owner(one, GROUP, "MachineSet"));
    wake::on::<MachineSet>(watches, caches.deployments.wakes().clone(), |one| {
        wake::owner(one, GROUP, "MachineDeployment")
    });
    wake::on::<Machine>(watches, caches.deployments.wakes().clone(), |one| {
        let deployment = one.labels().get(LABEL_DEPLOYMENT).cloned();
        deployment.map(|name| (one.namespace().unwrap_or_default(), name)).into_iter().collect()
    });
    // Who keeps a machine's deployment up to date is told of the other way round, too.
    wake::on::<MachineDeployment>(watches, caches.sets.wakes().clone(), {
        let sets = caches.sets.clone();
        move |one: &MachineDeployment| sets.mentioning(&kept_by(one)).iter().map(|set| key(set.as_ref())).collect()
    });
    let checks = caches.checks.clone();
    // Which checks a machine has is not remembered: machines times checks are very many.
    let facts = |one: &Machine| (one.spec.cluster_name.clone(), one.resource_version());
    wake::on_change(watches, facts, move |(namespace, _), (cluster, _)| {
        checks.wake_mentioning(&of_cluster(&(namespace.clone(), cluster.clone())));
    });
}

/// What of a cluster counts for its members.
#[derive(PartialEq)]
struct ClusterDigest {
    paused: bool,
    deleted: bool,
    provisioned: Option<bool>,
    initialized: Option<bool>,
}

/// A cluster has its members looked at when something changes that counts for them: not each time that one more of them is ready.
fn cluster(watches: &mut Watches, caches: &CoreCaches) {
    let (caches, mut known) = (caches.clone(), HashMap::<ObjectKey, ClusterDigest>::new());
    watches.observe(move |change: &WatchChange<'_, Cluster>| {
        let of = match change {
            WatchChange::Put(cluster) => {
                let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
                let counts = ClusterDigest {
                    paused: pause::is_paused(Some(cluster), *cluster),
                    deleted: cluster.metadata.deletion_timestamp.is_some(),
                    provisioned: done.and_then(|done| done.infrastructure_provisioned),
                    initialized: done.and_then(|done| done.control_plane_initialized),
                };
                let key = key(*cluster);
                if known.get(&key) == Some(&counts) {
                    return;
                }
                known.insert(key.clone(), counts);
                key
            }
            WatchChange::Gone(key) => {
                known.remove(*key);
                (*key).clone()
            }
            WatchChange::Listed => return,
        };
        let of = of_cluster(&of);
        caches.machines.wake_mentioning(&of);
        caches.sets.wake_mentioning(&of);
        caches.deployments.wake_mentioning(&of);
        caches.checks.wake_mentioning(&of);
    });
}

impl Life for ClusterLife {
    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let kit = Kit {
            client: acting.client.clone(),
            objects: ReferencedObjects::new(acting.client.clone()),
            workloads: self.workloads.clone(),
            caches: self.caches.clone(),
            pause: self.pause,
            patience: self.patience,
        };
        macro_rules! keep {
            ($name:literal, $keeper:expr, $cache:ident) => {{
                let (keeper, cache, stop) = (Arc::new($keeper), self.caches.$cache.clone(), acting.stop.clone());
                service($name, async move { run(keeper, &cache, stream::empty(), stop).await })
            }};
        }
        Ok(vec![
            keep!("clusters", clusters::ClusterReconciler(kit.clone()), clusters),
            keep!("machines of clusters", machines::MachineReconciler::new(kit.clone()), machines),
            keep!("sets of machines", sets::MachineSetReconciler::new(kit.clone()), sets),
            keep!("deployments of machines", deployments::MachineDeploymentReconciler(kit.clone()), deployments),
            keep!("health checks of machines", health::MachineHealthCheckReconciler(kit), checks),
        ])
    }
}

//! What runs, and what has a cluster looked at: itself, its machines, and what is asked of it, where something changes that counts.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::stream;
use jiff::SignedDuration;
use kube::{Client, ResourceExt};

use super::clusters::{Keeper, Times};
use super::orphans::Orphans;
use super::requests::Drains;
use super::view::{LcmMachineView, facts, mentions, of_cluster};
use super::{admission, deployment};
use crate::api::lcm::{LCMCluster, LCMClusterState, LCMMachine};
use crate::apiserver::{AdmissionRules, ObjectView};
use crate::cluster::workload::Workloads;
use crate::module::{Acting, Life, RunningLife, Service, service};
use crate::runtime::{Cache, Slim, Watches, key, run, wake};

/// Group and plural.
const MACHINES: &str = "lcm.mirantis.com/lcmmachines";
/// What nobody tells of is looked at so often, an agent may say nothing for so long, and a machine that leaves is drained for so long.
const TIMES: Times = Times {
    pause: Duration::from_secs(15),
    silence: SignedDuration::from_mins(5),
    patience: SignedDuration::from_mins(30),
};

/// Clusters of releases and their machines, as this process knows them.
pub struct Lcm {
    clusters: Cache<Slim<LCMCluster>>,
    machines: Cache<LcmMachineView>,
    orphans: Cache<Slim<LCMMachine>>,
    requests: Cache<LCMClusterState>,
    workloads: Workloads,
    /// Who reads Secrets for agents, once the process has begun.
    reader: Arc<OnceLock<Client>>,
    times: Times,
}

impl Lcm {
    /// None, until the watches run.
    pub fn new(watches: &mut Watches, workloads: Workloads) -> Self {
        let clusters = Cache::new(watches, |cluster: &LCMCluster| Slim::from(cluster));
        let machines = Cache::indexed(watches, |machine: &LCMMachine| LcmMachineView::from(machine), mentions);
        let orphans = Cache::new(watches, |machine: &LCMMachine| Slim::from(machine));
        let requests = Cache::new(watches, LCMClusterState::clone);
        let wakes = clusters.wakes().clone();
        wake::on_change(watches, facts, move |(namespace, _), (cluster, _)| {
            wakes.wake((namespace.clone(), cluster.clone()))
        });
        let wakes = clusters.wakes().clone();
        let facts = |request: &LCMClusterState| {
            let status = request.status.clone().unwrap_or_default();
            let answer = (status.value, status.message, status.locks, status.observed_generation);
            (request.spec.cluster_name.clone(), request.uid(), request.metadata.generation, answer)
        };
        wake::on_change(watches, facts, move |(namespace, _), (cluster, ..)| {
            wakes.wake((namespace.clone(), cluster.clone()))
        });
        let (wakes, known) = (orphans.wakes().clone(), machines.clone());
        let stays = |cluster: &LCMCluster| cluster.metadata.deletion_timestamp.is_none();
        wake::on_change(watches, stays, move |(namespace, name), _| {
            known.mentioning(&of_cluster(namespace, name)).iter().for_each(|machine| wakes.wake(key(machine.as_ref())));
        });
        Self { clusters, machines, orphans, requests, workloads, reader: Arc::default(), times: TIMES }
    }

    /// With other times: tests have shorter ones.
    #[cfg(test)]
    pub(super) fn within(self, times: Times) -> Self {
        Self { times, ..self }
    }
}

impl Life for Lcm {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        vec![(MACHINES, Arc::new(admission::machine))]
    }

    fn views(&self) -> Vec<(&'static str, &'static str, ObjectView)> {
        vec![(MACHINES, "deployment", deployment::view(self.reader.clone()))]
    }

    fn run(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        self.reader.get_or_init(|| running.client.clone());
        Ok(Vec::new())
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (client, stop) = (&acting.client, &acting.stop);
        let caches = (self.machines.clone(), self.requests.clone());
        let keeper = Arc::new(Keeper::new(client.clone(), self.workloads.clone(), caches, self.times));
        let drains =
            Arc::new(Drains { client: client.clone(), workloads: self.workloads.clone(), pause: self.times.pause });
        let orphans = Arc::new(Orphans {
            client: client.clone(),
            machines: self.machines.clone(),
            clusters: self.clusters.clone(),
            retry: self.times.pause.min(Duration::from_secs(5)),
        });
        let (clusters, stopped) = (self.clusters.clone(), stop.clone());
        let looked = async move { run(keeper, &clusters, stream::empty(), stopped).await };
        let (requests, stopped) = (self.requests.clone(), stop.clone());
        let drained = async move { run(drains, &requests, stream::empty(), stopped).await };
        let (machines, stopped) = (self.orphans.clone(), stop.clone());
        let left = async move { run(orphans, &machines, stream::empty(), stopped).await };
        Ok(vec![
            service("clusters of releases", looked),
            service("requests to clusters of releases", drained),
            service("machines without a cluster", left),
        ])
    }
}

//! What runs, and what has a KubeadmConfig looked at: itself, its Machine and its Cluster, where something changes that counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream;
use kube::ResourceExt;

use super::admission::{admit, admit_template};
use super::controller::{BootstrapTimes, KubeadmConfigReconciler};
use crate::api::bootstrap::GROUP;
use crate::api::bootstrap::v1beta2::KubeadmConfig;
use crate::api::cluster::keys::LABEL_CONTROL_PLANE;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::apiserver::AdmissionRules;
use crate::cluster::contract::{ReferencedObjects, pause};
use crate::cluster::workload::Workloads;
use crate::module::{Acting, Life, Service, service};
use crate::runtime::throttle::{MESSAGES, MessageThrottle};
use crate::runtime::{Cache, ObjectKey, Slim, WatchChange, Watches, key, run};

/// What is waited for is looked at so often. Tokens are looked at thrice in the time that they are good for.
const TIMES: BootstrapTimes =
    BootstrapTimes { pause: Duration::from_secs(15), token: Duration::from_secs(5 * 60), messages: MESSAGES };

/// KubeadmConfigs, as this process knows them.
pub struct BootstrapLife {
    configs: Cache<Slim<KubeadmConfig>>,
    workloads: Workloads,
    times: BootstrapTimes,
}

/// What of a machine counts for its KubeadmConfig.
#[derive(Clone, PartialEq)]
struct MachineCounts {
    config: ObjectKey,
    cluster: String,
    version: Option<String>,
    secret: Option<String>,
    control_plane: bool,
    deleted: bool,
    has_node: bool,
}

impl MachineCounts {
    fn of(machine: &Machine) -> Option<Self> {
        let reference = machine.spec.bootstrap.config_ref.as_ref()?;
        if reference.api_group != GROUP || reference.kind != "KubeadmConfig" {
            return None;
        }
        Some(Self {
            config: (machine.namespace().unwrap_or_default(), reference.name.clone()),
            cluster: machine.spec.cluster_name.clone(),
            version: machine.spec.version.clone(),
            secret: machine.spec.bootstrap.data_secret_name.clone(),
            control_plane: machine.labels().contains_key(LABEL_CONTROL_PLANE),
            deleted: machine.metadata.deletion_timestamp.is_some(),
            has_node: machine.status.as_ref().is_some_and(|status| status.node_ref.is_some()),
        })
    }
}

/// What of a cluster counts for its KubeadmConfigs.
#[derive(PartialEq)]
struct ClusterCounts {
    paused: bool,
    provisioned: Option<bool>,
    initialized: Option<bool>,
    endpoint: Option<String>,
}

impl ClusterCounts {
    fn of(cluster: &Cluster) -> Self {
        let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        Self {
            paused: pause::is_paused(Some(cluster), cluster),
            provisioned: done.and_then(|done| done.infrastructure_provisioned),
            initialized: done.and_then(|done| done.control_plane_initialized),
            endpoint: super::data::endpoint(cluster),
        }
    }
}

impl BootstrapLife {
    /// None, until the watches run.
    pub fn new(watches: &mut Watches, workloads: Workloads) -> Self {
        let configs = Cache::new(watches, Slim::<KubeadmConfig>::clone);
        let machines: Arc<Mutex<HashMap<ObjectKey, MachineCounts>>> = Arc::default();
        watches.observe({
            let (machines, wakes) = (machines.clone(), configs.wakes().clone());
            move |change: &WatchChange<'_, Machine>| {
                let mut known = machines.lock().unwrap_or_else(PoisonError::into_inner);
                let (before, now) = match change {
                    WatchChange::Put(machine) => match MachineCounts::of(machine) {
                        Some(counts) => (known.insert(key(*machine), counts.clone()), Some(counts)),
                        None => (known.remove(&key(*machine)), None),
                    },
                    WatchChange::Gone(key) => (known.remove(*key), None),
                    WatchChange::Listed => return,
                };
                if before != now {
                    before.into_iter().chain(now).for_each(|counts| wakes.wake(counts.config));
                }
            }
        });
        watches.observe({
            let (wakes, mut known) = (configs.wakes().clone(), HashMap::<ObjectKey, ClusterCounts>::new());
            move |change: &WatchChange<'_, Cluster>| {
                let (namespace, cluster) = match change {
                    WatchChange::Put(cluster) => {
                        let counts = ClusterCounts::of(cluster);
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
                let machines = machines.lock().unwrap_or_else(PoisonError::into_inner);
                let of = machines.values().filter(|one| one.config.0 == namespace && one.cluster == cluster);
                of.for_each(|one| wakes.wake(one.config.clone()));
            }
        });
        Self { configs, workloads, times: TIMES }
    }

    /// With other times: tests have none.
    #[cfg(test)]
    pub(super) fn within(self, times: BootstrapTimes) -> Self {
        Self { times, ..self }
    }

    /// Looks at everything that is waited for after this pause.
    #[cfg(test)]
    pub(in crate::cluster) fn hurried(self, pause: Duration) -> Self {
        self.within(BootstrapTimes { pause, token: pause, messages: Duration::ZERO })
    }
}

impl Life for BootstrapLife {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        let rules: [(&'static str, AdmissionRules); 2] = [
            ("bootstrap.cluster.x-k8s.io/kubeadmconfigs", Arc::new(admit)),
            ("bootstrap.cluster.x-k8s.io/kubeadmconfigtemplates", Arc::new(admit_template)),
        ];
        rules.into()
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let objects = ReferencedObjects::new(acting.client.clone());
        let throttle = MessageThrottle::new(self.times.messages);
        let keeper = Arc::new(KubeadmConfigReconciler {
            objects,
            workloads: self.workloads.clone(),
            times: self.times,
            throttle,
        });
        let (configs, stop) = (self.configs.clone(), acting.stop.clone());
        Ok(vec![service("bootstrap of machines", async move { run(keeper, &configs, stream::empty(), stop).await })])
    }
}

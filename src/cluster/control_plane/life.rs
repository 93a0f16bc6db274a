//! What runs, and what has a control plane looked at.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;

use super::admission;
use super::controller::{ControlPlaneReconciler, ControlPlaneTimes};
use super::etcd::{EtcdConnector, Tunnels};
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::control_plane::GROUP;
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::apiserver::AdmissionRules;
use crate::cluster::contract::ReferencedObjects;
use crate::cluster::workload::Workloads;
use crate::module::{Acting, Life, Service, service};
use crate::runtime::throttle::{MESSAGES, MessageThrottle};
use crate::runtime::{Cache, Slim, Watches, run, wake};

const KIND: &str = "KubeadmControlPlane";
const TIMES: ControlPlaneTimes = ControlPlaneTimes {
    pause: Duration::from_secs(15),
    settled: Duration::from_secs(60),
    grace: Duration::from_secs(300),
    messages: MESSAGES,
    budget: Duration::from_secs(90),
};

/// Control planes, as this process knows them.
pub struct ControlPlanes {
    known: Cache<Slim<KubeadmControlPlane>>,
    workloads: Workloads,
    acts: bool,
    door: Arc<dyn EtcdConnector>,
    times: ControlPlaneTimes,
}

impl ControlPlanes {
    /// None, until the watches run. Where nobody here acts on them (`acts`) their rules are asked all the same.
    pub fn new(watches: &mut Watches, workloads: Workloads, acts: bool) -> Self {
        let known = Cache::new(watches, |plane: &KubeadmControlPlane| Slim::from(plane));
        wake::on::<Machine>(watches, known.wakes().clone(), |machine| wake::owner(machine, GROUP, KIND));
        wake::on::<Cluster>(watches, known.wakes().clone(), |cluster| {
            let named = cluster.spec.control_plane_ref.iter().filter(|one| one.kind == KIND && one.api_group == GROUP);
            let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
            named.map(|one| (namespace.clone(), one.name.clone())).collect()
        });
        Self { known, workloads, acts, door: Arc::new(Tunnels), times: TIMES }
    }

    /// With another etcd and other times: tests have their own.
    #[cfg(test)]
    pub(super) fn with(self, door: Arc<dyn EtcdConnector>, times: ControlPlaneTimes) -> Self {
        Self { door, times, ..self }
    }
}

impl Life for ControlPlanes {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        let rules: [(&'static str, AdmissionRules); 2] = [
            ("controlplane.cluster.x-k8s.io/kubeadmcontrolplanes", Arc::new(admission::admit)),
            ("controlplane.cluster.x-k8s.io/kubeadmcontrolplanetemplates", Arc::new(admission::admit_template)),
        ];
        rules.into()
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        if !self.acts {
            return Ok(Vec::new());
        }
        let keeper = Arc::new(ControlPlaneReconciler {
            objects: ReferencedObjects::new(acting.client.clone()),
            workloads: self.workloads.clone(),
            door: self.door.clone(),
            times: self.times,
            throttle: MessageThrottle::new(self.times.messages),
            silent: Default::default(),
        });
        let (known, stop) = (self.known.clone(), acting.stop.clone());
        Ok(vec![service("control planes", async move { run(keeper, &known, stream::empty(), stop).await })])
    }
}

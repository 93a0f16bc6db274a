//! Machines whose cluster goes, or is gone: nobody drains what is taken down anyway, and who waits for that goes on.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, Resource};

use super::leave::{COMPLETED, FAILED};
use super::view::LcmMachineView;
use crate::api::lcm::{LCMCluster, LCMMachine};
use crate::runtime::changes::write_status;
use crate::runtime::conditions::{ConditionVerdict, set};
use crate::runtime::{Cache, Reconcile, Slim, key};

/// Looks at LCMMachines.
pub(super) struct Orphans {
    pub client: Client,
    pub machines: Cache<LcmMachineView>,
    pub clusters: Cache<Slim<LCMCluster>>,
    pub retry: Duration,
}

impl Reconcile for Orphans {
    type Object = Slim<LCMMachine>;
    type Error = kube::Error;

    const NAME: &'static str = "lcm-machine";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(60));

    fn retry_after(&self) -> Duration {
        self.retry
    }

    async fn reconcile(&self, known: Arc<Slim<LCMMachine>>) -> Result<Action, kube::Error> {
        let (namespace, name) = key(known.as_ref());
        // Agents are heard often, and mostly of clusters that are there.
        let view = self.machines.get(&(namespace.clone(), name.clone()));
        let cluster = view.and_then(|view| self.clusters.get(&(namespace.clone(), view.spec.cluster_name.clone())));
        if cluster.is_some_and(|cluster| cluster.meta().deletion_timestamp.is_none()) {
            return Ok(Action::await_change());
        }
        let machines = Api::<LCMMachine>::namespaced(self.client.clone(), &namespace);
        let Some(machine) = machines.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let cluster = match machine.spec.cluster_name.as_str() {
            "" => None,
            cluster if !crate::apiserver::subdomain(cluster).is_empty() => None,
            cluster => Api::<LCMCluster>::namespaced(self.client.clone(), &namespace).get_opt(cluster).await?,
        };
        if cluster.is_some_and(|cluster| cluster.metadata.deletion_timestamp.is_none()) {
            return Ok(Action::await_change());
        }
        let mut status = machine.status.clone().unwrap_or_default();
        if machine.spec.prepare_deletion && ![COMPLETED, FAILED].contains(&status.prepare_deletion_phase.as_str()) {
            COMPLETED.clone_into(&mut status.prepare_deletion_phase);
        }
        let reason = format!("there is no LCMCluster {:?} that stays", machine.spec.cluster_name);
        set(
            &mut status.conditions,
            "Ready",
            &ConditionVerdict::no("NoCluster", reason),
            machine.meta().generation,
            Timestamp::now(),
        );
        write_status(&machines, &machine, machine.status.as_ref(), &status).await?;
        Ok(Action::await_change())
    }
}

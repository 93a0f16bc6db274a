//! How a Cluster gets from release to release, and is rebooted: UpdateGroup, ClusterUpdatePlan, GracefulRebootRequest.
//!
//! Which groups of machines there are ([`groups`]), and which of them may get the release ([`plan`], [`plans`]), `provider` asks when it
//! looks at a Cluster, and tells nodes in the LCMCluster. A request to reboot has a controller of its own (`reboots`). What clusters and
//! machines went through is written down at each look at a Cluster or Machine ([`histories`]).

mod admission;
pub mod groups;
pub mod histories;
pub mod plan;
pub mod plans;
mod reboot;
mod reboots;
mod stages;
mod waking;

use std::sync::Arc;

use self::reboots::Reboots;
use crate::api::kaas::{
    ClusterDeploymentStatus, ClusterUpdatePlan, ClusterUpgradeStatus, GracefulRebootRequest, MachineDeploymentStatus,
    MachineUpgradeStatus, UpdateGroup,
};
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::module::{Acting, Life, Module, Service, service};
use crate::runtime::{Cache, Slim, Watches};

/// UpdateGroups by group and plural.
const UPDATE_GROUPS: &str = "kaas.mirantis.com/updategroups";
/// ClusterUpdatePlans by group and plural.
const UPDATE_PLANS: &str = "kaas.mirantis.com/clusterupdateplans";

/// UpdateGroup, ClusterUpdatePlan, GracefulRebootRequest, and the histories, which nobody else writes.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<UpdateGroup>(StoragePolicy::Durable),
            Declared::one::<ClusterUpdatePlan>(StoragePolicy::Durable),
            Declared::one::<GracefulRebootRequest>(StoragePolicy::Durable),
            Declared::one::<ClusterDeploymentStatus>(StoragePolicy::Internal),
            Declared::one::<ClusterUpgradeStatus>(StoragePolicy::Internal),
            Declared::one::<MachineDeploymentStatus>(StoragePolicy::Internal),
            Declared::one::<MachineUpgradeStatus>(StoragePolicy::Internal),
        ],
        rights: &[],
    }
}

/// Acts on GracefulRebootRequests, and has the rules of the kinds.
#[derive(Default)]
pub struct Updates {
    /// None where others act.
    reboots: Option<Cache<Slim<GracefulRebootRequest>>>,
}

impl Updates {
    /// Acts where Clusters are acted on.
    #[must_use]
    pub fn acting(self, watches: &mut Watches) -> Self {
        Self { reboots: Some(waking::reboots(watches)) }
    }
}

impl Life for Updates {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        vec![(UPDATE_GROUPS, Arc::new(admission::group)), (UPDATE_PLANS, Arc::new(admission::plan))]
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let Some(reboots) = &self.reboots else { return Ok(Vec::new()) };
        let of_reboots = Reboots::new(acting.client.clone());
        Ok(vec![service("reboots of cluster.k8s.io", of_reboots.run(reboots.clone(), acting.stop.clone()))])
    }
}

//! The Helm controllers of clusters, as the appliance looks after them: each is installed once its cluster can run it, has a token that is
//! good and the logins of its repositories, and whether it runs is said in the LCMCluster.
//!
//! All of it goes through the cluster's kubeconfig. A Job there runs the real `helm` of the controller's own image, which installs the
//! controller's chart; token and logins are a Secret there, which the controller's account on the appliance need not read.
//!
//! | file | idea |
//! |---|---|
//! | `turn` | whether it is time; pure |
//! | `objects` | what is put into the cluster, and what is made of what is there; pure |
//! | `deployer` | the looks |

mod deployer;
mod objects;
#[cfg(test)]
mod tests;
mod turn;

use std::sync::Arc;

use futures::stream;

use self::deployer::{HelmDeployer, HelmTimes};
use crate::api::lcm::{HelmBundle, LCMCluster};
use crate::cluster::workload::Workloads;
use crate::module::{Acting, Life, Service, service};
use crate::release::provider::Reach;
use crate::runtime::wake::on_change;
use crate::runtime::{Cache, Slim, Watches, run};

/// Looks after the Helm controllers of clusters of releases.
pub struct HelmControllers {
    clusters: Cache<Slim<LCMCluster>>,
    workloads: Workloads,
    reach: Reach,
    times: HelmTimes,
}

impl HelmControllers {
    /// None, until the watches run. Controllers reach the appliance so.
    pub fn new(watches: &mut Watches, workloads: Workloads, reach: Reach) -> Self {
        let clusters = Cache::new(watches, |cluster: &LCMCluster| Slim::from(cluster));
        let wakes = clusters.wakes().clone();
        // A bundle has the name of its cluster.
        let generation = |bundle: &HelmBundle| bundle.metadata.generation;
        on_change(watches, generation, move |key, _| wakes.wake(key.clone()));
        Self { clusters, workloads, reach, times: HelmTimes::default() }
    }

    /// With other times: tests have shorter ones.
    #[cfg(test)]
    fn within(self, times: HelmTimes) -> Self {
        Self { times, ..self }
    }
}

impl Life for HelmControllers {
    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let deployer = HelmDeployer {
            client: acting.client.clone(),
            workloads: self.workloads.clone(),
            reach: self.reach.clone(),
            times: self.times,
        };
        let (clusters, stop) = (self.clusters.clone(), acting.stop.clone());
        let looked = async move { run(Arc::new(deployer), &clusters, stream::empty(), stop).await };
        Ok(vec![service("Helm controllers of clusters", looked)])
    }
}

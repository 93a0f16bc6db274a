//! `cluster.k8s.io`: Clusters of bare metal that are made of a release, and what makes their Machines nodes.
//!
//! A Cluster names a ClusterRelease in `spec.providerSpec.value`. It is judged by what is supported and what may follow what
//! (`release::wish`), in the API (`admission`) and once more where it is acted on (`clusters`). Of it and its release come an
//! LCMCluster and a HelmBundle (`desired`); of each Machine that names it in a label, an empty LCMMachine, an account that may do what
//! the agent of that one node needs (`accounts`), and user data that puts the agent there (`user_data`). The host of a Machine is
//! `cluster::machine_api`'s, which asks here what it is to run, and whether it may go ([`NodePreparer`]).
//!
//! Clusters of other providers are left alone.

mod accounts;
mod admission;
mod cluster_status;
mod clusters;
mod desired;
mod iam;
mod lcm_machine;
mod machine_secret;
mod machine_spec;
mod machine_status;
mod machines;
mod preparing;
mod reach;
#[cfg(test)]
mod tests;
mod user_data;
mod waking;

use std::sync::Arc;

pub use self::preparing::NodePreparer;
pub use self::reach::Reach;

use self::clusters::Clusters;
use self::machines::Machines;
use crate::api::iam::Scope;
use crate::api::machine_api::{Cluster, Machine};
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::module::{Acting, Life, Module, Service, service};
use crate::release::catalogue::known::Releases;
use crate::runtime::{Cache, Slim, Watches};
use crate::store::Store;

/// Clusters by group and plural.
const CLUSTERS: &str = "cluster.k8s.io/clusters";
/// Machines by group and plural.
const MACHINES: &str = "cluster.k8s.io/machines";
/// PublicKeys by group and plural.
const PUBLIC_KEYS: &str = "kaas.mirantis.com/publickeys";
/// What is kept of a Cluster in memory beside its object, in bytes, roughly.
const CLUSTER_MEMORY: usize = 1 << 10;

/// Cluster. Where another API server keeps the objects nothing acts on it, so there are no rights.
pub fn module() -> Module {
    Module {
        kinds: vec![Declared::one::<Cluster>(StoragePolicy::Durable).costing(CLUSTER_MEMORY).kept_parsed()],
        rights: &[],
    }
}

/// Scope, which is no kind of clusters.
pub fn of_access() -> Module {
    Module { kinds: vec![Declared::one::<Scope>(StoragePolicy::Internal)], rights: &[] }
}

/// Acts on Clusters, and on Machines of those.
pub struct Provider {
    store: Store,
    /// None where others act.
    acts: Option<Acts>,
}

struct Acts {
    clusters: Cache<Slim<Cluster>>,
    machines: Cache<Slim<Machine>>,
    releases: Releases,
    reach: Reach,
}

impl Provider {
    /// The rules alone, which look at this store's objects.
    pub fn new(store: Store) -> Self {
        Self { store, acts: None }
    }

    /// Acts, by these releases, for nodes that reach the appliance so.
    #[must_use]
    pub fn acting(self, watches: &mut Watches, releases: Releases, reach: Reach) -> Self {
        let (clusters, machines) = waking::watched(watches);
        Self { acts: Some(Acts { clusters, machines, releases, reach }), ..self }
    }
}

impl Life for Provider {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        let (clusters, machines) = (self.store.clone(), self.store.clone());
        vec![
            (CLUSTERS, Arc::new(move |request| admission::cluster(&clusters, request))),
            (MACHINES, Arc::new(move |request| admission::machine(&machines, request))),
            (PUBLIC_KEYS, Arc::new(admission::public_key)),
        ]
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let Some(acts) = &self.acts else { return Ok(Vec::new()) };
        let Acts { clusters, machines, releases, reach } = acts;
        let of_clusters = Clusters::new(acting.client.clone(), releases.clone(), reach.clone(), machines.clone());
        let of_machines = Machines::new(acting.client.clone(), releases.clone(), reach.clone());
        Ok(vec![
            service("Clusters of cluster.k8s.io", of_clusters.run(clusters.clone(), acting.stop.clone())),
            service("nodes of cluster.k8s.io", of_machines.run(machines.clone(), acting.stop.clone())),
        ])
    }
}

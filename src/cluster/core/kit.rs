//! What the controllers of this room go by and with.

use std::fmt::Debug;
use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet};
use crate::cluster::contract::{Objects, ReferenceError};
use crate::cluster::workload::{WorkloadError, Workloads, said};
use crate::runtime::{Cache, Key, Watches};

/// Characters of an annotation's value that are kept: the keys are what counts.
const ANNOTATION_KEPT: usize = 256;

/// How long a look may take: what hangs is begun anew with what is so by then.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(600);

/// Why something could not be done; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// What the API says.
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
    /// What is referred to cannot be had.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The cluster cannot be asked.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl Fault {
    /// Whether it is only that somebody else wrote in between.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(error)) => error.is_conflict(),
            Self::Reference(error) => error.is_conflict(),
            _ => false,
        }
    }
}

/// What is known of the objects of this room. Cheap to clone.
#[derive(Clone)]
pub(super) struct Caches {
    pub clusters: Cache<Cluster>,
    pub machines: Cache<Machine>,
    pub sets: Cache<MachineSet>,
    pub deployments: Cache<MachineDeployment>,
    pub checks: Cache<MachineHealthCheck>,
}

impl Caches {
    pub(super) fn new(watches: &mut Watches) -> Self {
        Self {
            // What a class says of a cluster is nobody's here, and may be large.
            clusters: Cache::new(watches, |object: &Cluster| {
                let mut thin = thin(object);
                thin.spec.topology = None;
                thin
            }),
            machines: Cache::new(watches, thin::<Machine>),
            sets: Cache::new(watches, thin::<MachineSet>),
            deployments: Cache::new(watches, thin::<MachineDeployment>),
            checks: Cache::new(watches, thin::<MachineHealthCheck>),
        }
    }
}

/// A copy without what only clients look at.
fn thin<K: Resource + Clone>(object: &K) -> K {
    let mut thin = object.clone();
    let meta = thin.meta_mut();
    meta.managed_fields = None;
    for value in meta.annotations.iter_mut().flat_map(|all| all.values_mut()) {
        if value.len() > ANNOTATION_KEPT {
            value.clear();
            value.shrink_to_fit();
        }
    }
    thin
}

/// With what a controller acts. Cheap to clone.
#[derive(Clone)]
pub(super) struct Kit {
    pub client: Client,
    pub objects: Objects,
    pub workloads: Workloads,
    pub caches: Caches,
    /// How often what changes unseen is looked at: objects of kinds that are not watched, and the clusters that were made.
    pub pause: Duration,
    /// How long what is deleted waits for a cluster that does not answer.
    pub patience: Duration,
}

impl Kit {
    pub(super) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Whether an object of a cluster is left, as the API says now.
    pub(super) async fn is_left<K>(&self, namespace: &str, cluster: &str) -> Result<bool, kube::Error>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let of_cluster = ListParams::default().labels(&format!("{LABEL_CLUSTER}={cluster}")).limit(1);
        Ok(!self.api::<K>(namespace).list(&of_cluster).await?.items.is_empty())
    }
}

/// Whether an object is of a cluster: by its namespace, and by the name it gives.
pub(super) fn is_of(object: &impl ResourceExt, named: &str, (namespace, cluster): &Key) -> bool {
    named == cluster && object.meta().namespace.as_deref() == Some(namespace)
}

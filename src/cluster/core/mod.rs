//! `cluster.x-k8s.io`: clusters and their machines.
//!
//! What runs them is elsewhere: infrastructure, user data and control planes have rooms of their own, or controllers that run
//! somewhere else. Here they are owned, waited for and deleted in order, by the contract alone.

mod clusters;
mod deployments;
mod health;
mod kit;
mod life;
mod machines;
mod numbers;
mod seen;
mod sets;
mod template;

pub use life::ClusterLife;

use crate::api::cluster::convert;
use crate::api::{Declared, ServedVersion, StoragePolicy, cluster};
use crate::module::{KEEPS, Module, Right};

/// Bytes that the controllers keep of each object besides its text: they keep it parsed, without what only clients look at.
const MEMORY: usize = 4096;

/// Clusters and machines: stored as v1beta2 and served as v1beta1 too.
pub fn module() -> Module {
    macro_rules! both {
        ($kind:ident, $from_storage:ident, $to_storage:ident) => {
            Declared::both::<cluster::v1beta2::$kind, cluster::v1beta1::$kind>(
                StoragePolicy::Durable,
                ServedVersion {
                    version: "v1beta1",
                    from_storage: convert::$from_storage,
                    to_storage: convert::$to_storage,
                },
            )
            .costing(MEMORY)
            .kept_parsed()
        };
    }
    Module {
        kinds: vec![
            both!(Cluster, cluster_from_storage, cluster_to_storage),
            both!(Machine, machine_from_storage, machine_to_storage).completed_by(convert::complete_machine),
            both!(MachineSet, set_from_storage, set_to_storage).completed_by(convert::complete_set),
            both!(MachineDeployment, deployment_from_storage, deployment_to_storage)
                .completed_by(convert::complete_deployment),
            both!(MachineHealthCheck, health_check_from_storage, health_check_to_storage)
                .completed_by(convert::complete_health_check),
        ],
        rights: &[
            Right {
                group: "apiextensions.k8s.io",
                resources: &["customresourcedefinitions"],
                verbs: &["get"],
                reason: "A definition says by its labels whether objects of its kind may be named.",
            },
            Right {
                group: "cluster.x-k8s.io",
                resources: &[
                    "clusters",
                    "clusters/status",
                    "machines",
                    "machines/status",
                    "machinesets",
                    "machinesets/status",
                    "machinedeployments",
                    "machinedeployments/status",
                    "machinehealthchecks",
                    "machinehealthchecks/status",
                ],
                verbs: KEEPS,
                reason: "Clusters, and the machines that they are made of.",
            },
            Right {
                group: "infrastructure.cluster.x-k8s.io",
                resources: &[
                    "metal3clusters",
                    "metal3machines",
                    "metal3machinetemplates",
                    "metal3remediations",
                    "metal3remediationtemplates",
                ],
                verbs: KEEPS,
                reason: "What clusters and machines name: owned, made from templates, and deleted with them.",
            },
            Right {
                group: "bootstrap.cluster.x-k8s.io",
                resources: &["kubeadmconfigs", "kubeadmconfigtemplates"],
                verbs: KEEPS,
                reason: "",
            },
            Right {
                group: "controlplane.cluster.x-k8s.io",
                resources: &["kubeadmcontrolplanes"],
                verbs: KEEPS,
                reason: "",
            },
            Right {
                group: "",
                resources: &["secrets"],
                verbs: &["get"],
                reason: "The kubeconfig of a cluster that was made.",
            },
        ],
    }
}

#[cfg(test)]
mod tests;

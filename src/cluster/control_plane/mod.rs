//! `controlplane.cluster.x-k8s.io`: control planes that kubeadm makes, machine by machine.
//!
//! What is done next is decided by [`plan`], from what the objects say and what the cluster that was made says of itself
//! ([`health`]). A machine is made with what it names ([`make`]), by what [`desired`] says; an upgrade changes what runs in the
//! cluster ([`upgrade`], [`inside`]); etcd is asked where it runs ([`etcd`]).

mod act;
mod admission;
mod budget;
mod controller;
mod deletion;
mod desired;
mod etcd;
mod fault;
mod health;
mod images;
mod inside;
mod life;
mod make;
mod plan;
#[cfg(test)]
pub(super) mod played_tests;
mod scope;
mod secrets;
mod settle;
mod status;
#[cfg(test)]
mod tests;
mod told;
mod upgrade;

pub use life::ControlPlanes;

use crate::api::control_plane::{convert, v1beta1, v1beta2};
use crate::api::{Declared, ServedVersion, StoragePolicy};
use crate::module::{KEEPS, Module, Right};

/// Bytes that the controller keeps of each object: which it is, and whose.
const MEMORY: usize = 1024;

/// Control planes and templates of them: stored as v1beta2 and served as v1beta1 too.
pub fn module() -> Module {
    macro_rules! both {
        ($kind:ident, $from_storage:ident, $to_storage:ident) => {
            Declared::both::<v1beta2::$kind, v1beta1::$kind>(
                StoragePolicy::Durable,
                ServedVersion {
                    version: "v1beta1",
                    from_storage: convert::$from_storage,
                    to_storage: convert::$to_storage,
                },
            )
        };
    }
    Module {
        kinds: [
            both!(KubeadmControlPlane, control_plane_from_storage, control_plane_to_storage)
                .completed_by(convert::complete_control_plane)
                .costing(MEMORY),
            both!(KubeadmControlPlaneTemplate, template_from_storage, template_to_storage),
        ]
        .into_iter()
        .map(Declared::kept_parsed)
        .collect(),
        rights: &[
            Right {
                group: "controlplane.cluster.x-k8s.io",
                resources: &[
                    "kubeadmcontrolplanes",
                    "kubeadmcontrolplanes/status",
                    "kubeadmcontrolplanes/finalizers",
                    "kubeadmcontrolplanetemplates",
                ],
                verbs: KEEPS,
                reason: "Control planes.",
            },
            Right {
                group: "cluster.x-k8s.io",
                resources: &["clusters", "machines", "machines/status"],
                verbs: KEEPS,
                reason: "The machines of a control plane.",
            },
            Right { group: "bootstrap.cluster.x-k8s.io", resources: &["kubeadmconfigs"], verbs: KEEPS, reason: "" },
            Right {
                group: "infrastructure.cluster.x-k8s.io",
                resources: &["metal3machines", "metal3machinetemplates"],
                verbs: KEEPS,
                reason: "What the machines of a control plane run on.",
            },
            Right {
                group: "",
                resources: &["secrets"],
                verbs: &["get", "create"],
                reason: "Certificates of a cluster.",
            },
        ],
    }
}

//! `bootstrap.cluster.x-k8s.io`: how kubeadm makes a machine a node.
//!
//! For each KubeadmConfig of a Machine a Secret is made with what the machine does at its first boot ([`render`]): begin a cluster,
//! or join one. Tokens for joining are made in the cluster, and kept good until the node is there.

pub mod admission;
mod contents;
mod controller;
mod data;
mod fault;
mod join;
mod life;
mod lock;
pub mod render;
mod status;
mod store;
#[cfg(test)]
mod tests;
pub mod token;

pub use life::BootstrapLife;

use crate::api::bootstrap::{convert, v1beta1, v1beta2};
use crate::api::{Declared, ServedVersion, StoragePolicy};
use crate::module::{KEEPS, Module, Right};

/// KubeadmConfigs and their templates: stored as v1beta2 and served as v1beta1 too.
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
            both!(KubeadmConfig, config_from_storage, config_to_storage).completed_by(convert::complete_config),
            both!(KubeadmConfigTemplate, template_from_storage, template_to_storage),
        ]
        .into_iter()
        .map(Declared::kept_parsed)
        .collect(),
        rights: &[
            Right {
                group: "bootstrap.cluster.x-k8s.io",
                resources: &[
                    "kubeadmconfigs",
                    "kubeadmconfigs/status",
                    "kubeadmconfigs/finalizers",
                    "kubeadmconfigtemplates",
                ],
                verbs: KEEPS,
                reason: "How machines become nodes.",
            },
            Right {
                group: "cluster.x-k8s.io",
                resources: &["clusters", "machines"],
                verbs: &["get", "list", "watch"],
                reason: "Whose nodes they become.",
            },
            Right {
                group: "controlplane.cluster.x-k8s.io",
                resources: &["kubeadmcontrolplanes"],
                verbs: &["get"],
                reason: "Which version the control plane of a cluster is to have.",
            },
            Right {
                group: "",
                resources: &["secrets"],
                verbs: &["get", "create", "update", "patch"],
                reason: "User data, and the certificates of clusters.",
            },
            Right {
                group: "",
                resources: &["configmaps"],
                verbs: &["get", "create", "delete"],
                reason: "Which machine begins a cluster.",
            },
        ],
    }
}

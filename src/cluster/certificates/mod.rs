//! Certificates of clusters: the Secrets of their authorities and keys, and the kubeconfig of their administrator.
//!
//! Keys are ECDSA on P-256, or on P-384 where `encryptionAlgorithm` says so. RSA keys are used where users bring them, but none are
//! made: nothing in this program makes them.

mod controller;
mod key;
pub mod kubeconfig;
mod life;
mod pair;
mod secrets;
#[cfg(test)]
mod tests;

pub use key::read as read_key;
pub use life::ClusterSecrets;
pub use pair::{CertificatePurpose, Pair, hashes};
pub use secrets::{CertificateError, CertificateFile, Certificates, ClusterCertificates, needed, provide, read};

use crate::module::{Module, Right};

/// No kinds: what is kept are Secrets.
pub fn module() -> Module {
    Module {
        kinds: Vec::new(),
        rights: &[
            Right {
                group: "cluster.x-k8s.io",
                resources: &["clusters"],
                verbs: &["get", "list", "watch"],
                reason: "Clusters that need certificates.",
            },
            Right {
                group: "controlplane.cluster.x-k8s.io",
                resources: &["kubeadmcontrolplanes"],
                verbs: &["get"],
                reason: "How the certificates of a cluster are to be, and to whom they belong.",
            },
            Right {
                group: "controlplane.cluster.x-k8s.io",
                resources: &["kubeadmcontrolplanes/finalizers"],
                verbs: &["update"],
                reason: "",
            },
            Right {
                group: "",
                resources: &["secrets"],
                verbs: &["get", "create", "patch"],
                reason: "Certificates and kubeconfigs of clusters.",
            },
            Right { group: "", resources: &["events"], verbs: &["get", "create", "update"], reason: "" },
        ],
    }
}

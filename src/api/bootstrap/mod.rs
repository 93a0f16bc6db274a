//! `bootstrap.cluster.x-k8s.io`: how kubeadm makes nodes, as Cluster API publishes it, in both of its versions.
//!
//! What is alike in the two versions stands here: [`kubeadm`] has parts of kubeadm's own configuration, [`node`] what a machine
//! gets besides. Each version has a file of its own, and [`convert`] says how one becomes the other.

pub mod convert;
pub mod kubeadm;
pub mod node;
pub mod v1beta1;
pub mod v1beta2;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The API group.
pub const GROUP: &str = "bootstrap.cluster.x-k8s.io";

/// Form of the user data.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum UserDataFormat {
    /// cloud-init's.
    #[default]
    CloudConfig,
    /// Ignition's.
    Ignition,
}

impl UserDataFormat {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::CloudConfig => "cloud-config",
            Self::Ignition => "ignition",
        }
    }
}

//! `kaas.mirantis.com`: releases, which never change once they are made.
//!
//! A ClusterRelease says what a cluster is made of ([`cluster_release`]), a KaaSRelease which ClusterReleases are supported and which
//! may follow which ([`kaas_release`]). One KaaSRelease is active. What is in use is not deleted ([`users`]). Nothing acts on releases here:
//! other rooms read them from memory ([`known`]), through
//! the pure functions of [`join`] and [`charts`].

mod admission;
pub mod channel;
pub mod charts;
mod cluster_release;
#[cfg(test)]
mod example_tests;
mod faults;
mod helm;
pub mod join;
mod kaas_release;
pub mod known;
#[cfg(test)]
mod step_tests;
mod steps;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
pub mod users;

use std::sync::Arc;

use crate::api::kaas::{ClusterRelease, KaaSRelease, PublicKey};
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::module::{Life, Module};
use crate::store::Store;

/// KaaSReleases by group and plural.
pub const KAAS_RELEASES: &str = "kaas.mirantis.com/kaasreleases";
/// ClusterReleases by group and plural.
pub const CLUSTER_RELEASES: &str = "kaas.mirantis.com/clusterreleases";
/// On a KaaSRelease, `true`: it may be active although clusters run what it does not support.
pub const ANNOTATION_FORCE: &str = "slipway.dev/leaves-clusters-unsupported";

/// KaaSRelease and ClusterRelease. They bring scripts that run as root on nodes: only administrators write them.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<KaaSRelease>(StoragePolicy::Administrative),
            Declared::one::<ClusterRelease>(StoragePolicy::Administrative),
            // Whoever has a cluster says whose key opens its nodes; `provider` judges it.
            Declared::one::<PublicKey>(StoragePolicy::Durable),
        ],
        rights: &[],
    }
}

/// Rules for releases. Nothing runs.
pub struct Catalogue {
    store: Store,
}

impl Catalogue {
    /// Looks at this store's objects to see what is in use.
    pub fn new(store: Store) -> Self {
        Self { store }
    }
}

impl Life for Catalogue {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        let (kaas, cluster) = (self.store.clone(), self.store.clone());
        vec![
            (KAAS_RELEASES, Arc::new(move |request| admission::kaas_release(&kaas, request))),
            (CLUSTER_RELEASES, Arc::new(move |request| admission::cluster_release(&cluster, request))),
        ]
    }
}

//! What runs, and what has a cluster's Secrets looked at.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;

use super::controller::CertificatesReconciler;
use crate::api::cluster::v1beta2::Cluster;
use crate::cluster::contract::ReferencedObjects;
use crate::module::{Acting, Life, Service, service};
use crate::runtime::{Cache, Slim, Watches, run};

/// What is waited for is looked at so often.
const PAUSE: Duration = Duration::from_secs(15);

/// The Secrets of clusters.
pub struct ClusterSecrets {
    clusters: Cache<Slim<Cluster>>,
    pause: Duration,
}

impl ClusterSecrets {
    /// None, until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        Self { clusters: Cache::new(watches, Slim::<Cluster>::clone), pause: PAUSE }
    }

    /// With another pause: tests have none.
    #[cfg(test)]
    pub(in crate::cluster) fn within(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

impl Life for ClusterSecrets {
    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let keeper = Arc::new(CertificatesReconciler {
            objects: ReferencedObjects::new(acting.client.clone()),
            pause: self.pause,
        });
        let (clusters, stop) = (self.clusters.clone(), acting.stop.clone());
        Ok(vec![service(
            "certificates of clusters",
            async move { run(keeper, &clusters, stream::empty(), stop).await },
        )])
    }
}

//! Certificates of a cluster: made until it has begun, and looked for since.

use super::fault::Fault;
use super::scope::Scope;
use crate::cluster::certificates::{self, CertificateError, Place};
use crate::cluster::contract::{Objects, Verdict, owners};

/// Whether the cluster's certificates are there. Once it has begun, what is lacking was lost: others would be of another cluster.
pub(super) async fn certificates(objects: &Objects, scope: &Scope) -> Result<Verdict, Fault> {
    let (namespace, cluster) = (scope.namespace(), scope.name_of_cluster());
    let place = Place { namespace: &namespace, cluster: &cluster };
    let config = scope.plane.spec.kubeadm_config_spec.as_ref().and_then(|spec| spec.cluster_configuration.as_ref());
    let had = if scope.is_initialized() {
        certificates::read(objects.client(), place, &certificates::needed(config), config).await
    } else {
        certificates::provide(objects.client(), place, &owners::owner(&scope.plane, true), config).await
    };
    match had {
        Ok(_) => Ok(Verdict::yes("Available")),
        // Whoever else makes them was faster.
        Err(CertificateError::Api(kube::Error::Api(error))) if error.is_already_exists() => {
            Ok(Verdict::no("NotAvailable", "The certificates are being made"))
        }
        Err(CertificateError::Api(error)) => Err(error.into()),
        Err(why) => Ok(Verdict::no("NotAvailable", why.to_string())),
    }
}

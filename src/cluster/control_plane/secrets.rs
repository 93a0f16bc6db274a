//! Certificates of a cluster: made until it has begun, and looked for since.

use std::time::Duration;

use super::controller::{ControlPlaneTimes, SOON};
use super::fault::ControlPlaneFault;
use super::scope::ControlPlaneScope;
use crate::cluster::certificates::{self, CertificateError, ClusterCertificates};
use crate::cluster::contract::ReferencedObjects;
use crate::runtime::conditions::ConditionVerdict;
use crate::runtime::owners;

/// How the certificates of a cluster are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Provided {
    /// They are there.
    Available,
    /// Somebody else is making them.
    BeingMade,
    /// One is lacking, or cannot be what it is for: why.
    Faulty(String),
}

impl Provided {
    /// For the status.
    pub(super) fn verdict(&self) -> ConditionVerdict {
        match self {
            Self::Available => ConditionVerdict::yes("Available"),
            Self::BeingMade => ConditionVerdict::no("NotAvailable", "The certificates are being made"),
            Self::Faulty(reason) => ConditionVerdict::no("NotAvailable", reason.clone()),
        }
    }

    /// When a control plane that cannot begin without them looks again. Nobody tells of Secrets. Those that are made are there in an
    /// instant; what a user brought, a user mends.
    pub(super) fn pause(&self, times: ControlPlaneTimes) -> Option<Duration> {
        match self {
            Self::Available => None,
            Self::BeingMade => Some(times.pause.min(SOON)),
            Self::Faulty(_) => Some(times.pause),
        }
    }
}

/// Whether the cluster's certificates are there. Once it has begun, what is lacking was lost: others would be of another cluster.
pub(super) async fn certificates(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
) -> Result<Provided, ControlPlaneFault> {
    let (namespace, cluster) = (scope.namespace(), scope.name_of_cluster());
    let place = ClusterCertificates { namespace: &namespace, cluster: &cluster };
    let config = scope.plane.spec.kubeadm_config_spec.as_ref().and_then(|spec| spec.cluster_configuration.as_ref());
    let had = if scope.is_initialized() {
        certificates::read(objects.client(), place, &certificates::needed(config), config).await
    } else {
        certificates::provide(objects.client(), place, &owners::owner(&scope.plane, true), config).await
    };
    match had {
        Ok(_) => Ok(Provided::Available),
        // Whoever else makes them was faster.
        Err(CertificateError::Api(kube::Error::Api(error))) if error.is_already_exists() => Ok(Provided::BeingMade),
        Err(CertificateError::Api(error)) => Err(error.into()),
        Err(reason) => Ok(Provided::Faulty(reason.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_has_to_mend_is_not_looked_at_each_second() {
        let seconds = Duration::from_secs;
        let times = |pause| ControlPlaneTimes {
            pause: seconds(pause),
            settled: seconds(60),
            grace: seconds(300),
            messages: seconds(10),
            budget: seconds(90),
        };
        let faulty = Provided::Faulty("tls.key: it is no key".into());
        for (provided, pause, wanted) in [
            (&Provided::Available, 15, None),
            (&Provided::BeingMade, 15, Some(1)),
            (&Provided::BeingMade, 0, Some(0)),
            (&faulty, 15, Some(15)),
        ] {
            assert_eq!(provided.pause(times(pause)), wanted.map(seconds), "{provided:?}");
        }
        assert_eq!((faulty.verdict().is_true(), Provided::Available.verdict().is_true()), (false, true));
    }
}

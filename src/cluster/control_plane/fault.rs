//! Why something could not be done about a control plane; it is tried again.

use crate::cluster::contract::ReferenceError;
use crate::cluster::workload::said;
use crate::runtime::Conflict;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlPlaneFault {
    /// What the API says.
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
    /// What is referred to cannot be had.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// What the cluster that was made says, or its etcd.
    #[error("{0}")]
    Inside(String),
}

impl Conflict for ControlPlaneFault {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Reference(error) => error.is_conflict(),
            Self::Inside(_) => false,
        }
    }
}

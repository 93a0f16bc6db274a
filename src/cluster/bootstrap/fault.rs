//! Why something could not be done about a KubeadmConfig.

use super::render::UserDataError;
use super::token::BootstrapTokenError;
use crate::cluster::certificates::CertificateError;
use crate::cluster::contract::ReferenceError;
use crate::cluster::workload::{WorkloadError, said};
use crate::runtime::Conflict;

/// Why something could not be done; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapFault {
    /// What the API says.
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
    /// What is referred to cannot be had.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The cluster cannot be asked.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A token cannot be had.
    #[error(transparent)]
    Token(#[from] BootstrapTokenError),
    /// Certificates cannot be had.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// User data cannot be made.
    #[error(transparent)]
    Render(#[from] UserDataError),
    /// The spec, or what it names, is not what it should be.
    #[error("{field}: {reason}")]
    Spec {
        /// The field.
        field: String,
        /// Why.
        reason: String,
    },
    /// The Secret for the user data is somebody else's.
    #[error("the Secret {0:?} is somebody else's: it is not overwritten")]
    Taken(String),
}

impl BootstrapFault {
    /// What is wrong with a field.
    pub fn spec(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Spec { field: field.into(), reason: reason.into() }
    }
}

impl Conflict for BootstrapFault {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Certificate(error) => error.is_conflict(),
            Self::Reference(error) => error.is_conflict(),
            _ => false,
        }
    }
}

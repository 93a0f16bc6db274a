//! Softwares: packages on the nodes of a cluster, brought there by a run of a playbook of our own, one node after the other.
//!
//! What is asked for is read and checked, and becomes a list for each node ([`packages`]); whether it is time to do something is decided
//! ([`next`]); an inventory is made of the cluster's hosts ([`inventory`]); the run is begun and followed ([`controller`]) as those of
//! kubespray's playbooks are, in the same places: of one cluster there is one run at a time. What it changed is read out of what it
//! leaves ([`changes`]).

mod changes;
mod controller;
mod inventory;
mod next;
mod packages;

pub use controller::Softwares;

use super::progress::short;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError, FieldFault};

/// Rules for a change of a Software.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn admission(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let invalid = |path: &str, reason: String| FieldError::new(FieldFault::Invalid, path, reason);
    let Ok(object) = serde_json::from_value(request.object.clone()) else {
        return Err(vec![invalid("spec", "each package is a name, or a map of one name with its version".into())]);
    };
    let faults = packages::read(&object).err().unwrap_or_default();
    let faults: Vec<_> = faults.into_iter().map(|(path, reason)| invalid(&path, reason)).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

//! What a Provisioning must be before it is stored, beyond its schema. The controller judges again.

use serde_json::Value;

use super::next::Standing;
use super::wanted::{ClusterSpecFault, changed, read};
use crate::api::bpa::Provisioning;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError, FieldFault};

/// Rules for a change of a Provisioning. What a stored object breaks already does not stop another change of it.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn provisioning(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let Some(new) = typed(request.object) else {
        return Err(vec![FieldError::new(FieldFault::Invalid, "spec", "cannot be read")]);
    };
    let old = request.old.and_then(typed);
    let known = old.as_ref().and_then(|old| read(old).err()).unwrap_or_default();
    let mut faults = read(&new).err().unwrap_or_default();
    faults.retain(|fault| !known.contains(fault));
    faults.extend(old.iter().flat_map(|old| changed(old, &new)));
    let late = |old: &Provisioning| late_masters(old, &new).filter(|_| late_masters(old, old).is_none());
    faults.extend(old.iter().filter_map(late));
    let error = |fault: ClusterSpecFault| FieldError::new(FieldFault::Invalid, fault.path, fault.reason);
    if faults.is_empty() { Ok(()) } else { Err(faults.into_iter().map(error).collect()) }
}

/// Masters that are added when the cluster is installed.
fn late_masters(old: &Provisioning, new: &Provisioning) -> Option<ClusterSpecFault> {
    let installed = &old.status.as_ref()?.installed;
    let nodes = read(new).ok()?.nodes;
    let reason = Standing { nodes: &nodes, installed, leaving: &[], run: None, asked: None }.refused_masters()?;
    Some(ClusterSpecFault { path: "spec.masters".into(), reason })
}

fn typed(object: &Value) -> Option<Provisioning> {
    serde_json::from_value(object.clone()).ok()
}

//! What a Provisioning must be before it is stored, beyond its schema. The controller judges again.

use serde_json::Value;

use super::wanted::{SpecFault, read, removed};
use crate::api::bpa::Provisioning;
use crate::apiserver::{AdmissionRequest, FieldError, FieldFault, Operation};

/// Rules for a change of a Provisioning. What a stored object breaks already does not stop another change of it.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn provisioning(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == Operation::Delete {
        return Ok(());
    }
    let Some(new) = typed(request.object) else {
        return Err(vec![FieldError::new(FieldFault::Invalid, "spec", "cannot be read")]);
    };
    let old = request.old.and_then(typed);
    let known = old.as_ref().and_then(|old| read(old).err()).unwrap_or_default();
    let mut faults = read(&new).err().unwrap_or_default();
    faults.retain(|fault| !known.contains(fault));
    faults.extend(old.iter().flat_map(|old| removed(old, &new)));
    let error = |fault: SpecFault| FieldError::new(FieldFault::Invalid, fault.path, fault.why);
    if faults.is_empty() { Ok(()) } else { Err(faults.into_iter().map(error).collect()) }
}

fn typed(object: &Value) -> Option<Provisioning> {
    serde_json::from_value(object.clone()).ok()
}

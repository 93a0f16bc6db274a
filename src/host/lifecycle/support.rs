//! Checks before anything is begun: a spec that asks for what is not done, or a machine that cannot be used.

use super::{AfterStore, Decider};
use crate::api::metal3::ErrorType;
use crate::host::admission::unsupported::{architecture_reason, supports, unsupported};

impl Decider<'_> {
    /// Why nothing is begun with the host; `None` when all that it asks for can be done.
    pub(super) fn cannot_do(&self) -> Option<String> {
        let spec = &self.observed.host.spec;
        let mut reasons: Vec<String> = unsupported(spec).iter().map(ToString::to_string).collect();
        let found = self.observed.hardware.and_then(|hardware| hardware.cpu.as_ref()).map(|cpu| cpu.arch.as_str());
        if let Some(found) = found.filter(|found| !supports(found) && !spec.externally_provisioned)
            && spec.architecture.as_deref().unwrap_or_default().is_empty()
        {
            reasons.push(format!("the machine is {found:?}: {}", architecture_reason()));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Says it once: nothing but another spec changes it.
    pub(super) fn refuse(&mut self, error_type: ErrorType) -> Option<AfterStore> {
        let reason = self.cannot_do()?;
        let said = self.status.error_type == Some(error_type) && self.status.error_message == reason;
        Some(if said { self.poll(reason) } else { self.failed(error_type, &reason) })
    }
}

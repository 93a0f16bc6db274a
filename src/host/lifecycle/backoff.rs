//! Back-off: when a failed operation is tried again (docs/design/host.md, "Errors and back-off").

use std::time::Duration;

use jiff::Timestamp;

use super::{Access, Decider};
use crate::api::metal3::{ErrorType, OperationalStatus, ProvisioningState as State};
use crate::host::bmc_access::login_limits::LONGEST_PAUSE;

/// How long to wait after this many failures: the first delay, doubled with each further failure, up to 512 times
/// (docs/design/host.md, "Errors and back-off").
pub fn retry_delay(first: Duration, failures: i64) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1).clamp(0, 9)).unwrap_or(9);
    first.saturating_mul(1 << doublings)
}

/// Whether the credentials may be why it failed.
pub(super) fn may_be_the_login(error: ErrorType) -> bool {
    matches!(error, ErrorType::Registration | ErrorType::PowerManagement)
}

impl Decider<'_> {
    /// Until when a failed operation rests: as long as no login is tried at its BMC, or by how often it failed. `None` when there was no failure, the time is over, or the operator
    /// changed the host or its credentials since.
    pub(super) fn resting_until(&self) -> Option<Timestamp> {
        let error = self.status.error_type?;
        let stored = self.observed.host.status.as_ref().map(|status| status.operational_status);
        // Who waited for a place rested before that. Who insists on a reboot wants it now.
        let insists = !matches!(error, ErrorType::Registration | ErrorType::ProvisionedRegistration)
            && matches!(self.status.provisioning.state, State::Inspecting | State::Provisioning)
            && !self.reboots_that_count().is_empty();
        if !self.holds_up(error) || stored == Some(OperationalStatus::Delayed) || insists {
            return None;
        }
        let changed = self.observed.intent.is_some_and(|intent| intent.spec.host_generation != self.generation());
        let secret_changed = may_be_the_login(error)
            && matches!(self.observed.access, Access::Ready { version, .. }
                if self.status.tried_credentials.credentials_version.as_deref() != Some(version));
        if changed || secret_changed {
            return None;
        }
        let held = self.observed.held_until.filter(|until| *until <= self.observed.now + LONGEST_PAUSE);
        if let Some(until) = held {
            return (until > self.observed.now).then_some(until);
        }
        let failures = self.status.error_count.max(self.status.provisioning_fail_count + 1);
        let since = self.status.last_updated.as_ref()?.0;
        let delay = retry_delay(self.observed.settings.retry.0, failures);
        // A clock that was ahead then does not prolong the rest.
        let until = since + delay;
        (until > self.observed.now && since <= self.observed.now + delay).then_some(until)
    }

    /// Whether nothing else is done in the present state after this error. An image that was given up, for one, does
    /// not keep an available host's power from being managed.
    fn holds_up(&self, error: ErrorType) -> bool {
        let state = self.status.provisioning.state;
        match error {
            ErrorType::Registration
            | ErrorType::ProvisionedRegistration
            | ErrorType::PowerManagement
            | ErrorType::Detach => true,
            ErrorType::Inspection => state == State::Inspecting,
            ErrorType::Preparation => state == State::Preparing,
            ErrorType::Provisioning => matches!(state, State::Provisioning | State::Deprovisioning),
            ErrorType::Servicing => matches!(state, State::Provisioned | State::ExternallyProvisioned),
        }
    }
}

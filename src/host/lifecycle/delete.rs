//! Deletion (docs/design/host.md, "Deletion"): it always ends.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Access, AfterStore, Decider, Effect, annotations};
use crate::api::metal3::{BareMetalHost, ErrorType, OperationalStatus, ProvisioningState as State};
use crate::api::slipway::ANNOTATION_MOVED_TO;
use crate::bmc::PowerState;

/// After this many failures, deleting goes on without what failed.
const GIVE_UP_AFTER: i64 = 3;

/// So long it waits at most for disks to be wiped: an agent that answers and comes to no end fails never.
const WIPED_WITHIN: Duration = Duration::from_secs(6 * 3600);

/// Whether a host goes without its machine: it is deleted, and detached. From then on nothing is asked of its BMC, so that one
/// that does not answer keeps nobody waiting.
pub fn goes_untouched(host: &BareMetalHost) -> bool {
    let asked = annotations::detach(host).is_some_and(|asked| !asked.delay_deletion);
    asked && host.metadata.deletion_timestamp.is_some()
}

impl Decider<'_> {
    /// Whether the BMC cannot even be tried.
    pub(super) fn without_access(&self) -> bool {
        matches!(self.observed.access, Access::Broken(_) | Access::Taken(_) | Access::None)
    }

    /// Turns a host that was deleted towards its end; `None` when its state goes on as it is.
    pub(super) fn begin_deleting(&mut self) -> Option<AfterStore> {
        let state = self.status.provisioning.state;
        if !self.deleting() || state == State::Deleting {
            return None;
        }
        let asked = annotations::detach(self.observed.host);
        if asked.is_some_and(|asked| asked.delay_deletion) {
            return None;
        }
        if asked.is_some() || self.status.operational_status == OperationalStatus::Detached {
            self.leave_machine();
            return Some(self.enter(State::Deleting));
        }
        let failures = self.status.error_count;
        let failed = self.status.error_type.filter(|_| failures > GIVE_UP_AFTER);
        let unusable = matches!(failed, Some(ErrorType::Registration | ErrorType::ProvisionedRegistration));
        let next = match state {
            State::None | State::Unmanaged | State::Registering => State::Deleting,
            State::Provisioning | State::Provisioned => {
                return Some(self.begin_deprovisioning("Image deprovisioning started, the host is being deleted"));
            }
            State::Deprovisioning if unusable || (self.without_access() && !self.agent_is_up()) => {
                self.give_up("DeprovisioningAbandoned", "the disks may still hold data");
                State::Deleting
            }
            State::Deprovisioning if failed.is_some() || self.wipes_for_ever() => {
                self.give_up("DeprovisioningAbandoned", "the disks may still hold data");
                State::PoweringOffBeforeDelete
            }
            State::PoweringOffBeforeDelete if self.without_access() || failed.is_some() => {
                if self.observed.data_cd {
                    self.give_up("DataImageAbandoned", "the virtual CD may still be in its drive");
                }
                if self.status.powered_on || !self.observed.data_cd {
                    self.give_up("PowerOffAbandoned", "the machine may still be on");
                }
                State::Deleting
            }
            State::Deprovisioning | State::PoweringOffBeforeDelete => return None,
            _ => State::PoweringOffBeforeDelete,
        };
        Some(self.enter(next))
    }

    /// A copy of a host that was moved goes on with the machine.
    fn leave_machine(&mut self) {
        if self.annotation(ANNOTATION_MOVED_TO).is_none() {
            let message = "The host is deleted while it is detached, so its machine is left as it is: its disks are not wiped, \
                           and it is not powered off";
            self.warn("MachineLeftAsItIs", message);
        }
    }

    /// Whether the disks are being wiped for longer than can be waited for. To wait for a place is no wiping.
    fn wipes_for_ever(&self) -> bool {
        let delayed = self.observed.host.status.as_ref().map(|status| status.operational_status);
        let deleted = self.observed.host.metadata.deletion_timestamp.as_ref();
        let began = self.status.operation_history.deprovision.start.as_ref().max(deleted);
        let overdue = |began: &Time| self.observed.now >= self.observed.counted(began.0, WIPED_WITHIN) + WIPED_WITHIN;
        delayed != Some(OperationalStatus::Delayed) && began.is_some_and(overdue)
    }

    fn give_up(&mut self, reason: &'static str, consequence: &str) {
        let error = match self.observed.access {
            Access::Broken(error) | Access::Taken(error) => error.as_str(),
            Access::None => "the host names no BMC",
            Access::Ready { .. } if self.status.error_message.is_empty() => "it comes to no end",
            Access::Ready { .. } => self.status.error_message.as_str(),
        };
        let message = format!("The deletion goes on without it, {consequence}: {error}");
        self.warn(reason, message);
    }

    pub(super) fn powering_off(&mut self) -> AfterStore {
        if self.observed.host.spec.disable_power_off || self.observed.power == Some(PowerState::Off) {
            if let Some(power) = self.observed.power {
                self.status.powered_on = power == PowerState::On;
            }
            if self.observed.data_cd {
                return AfterStore::Do(Effect::EjectDataImage);
            }
            return self.enter(State::Deleting);
        }
        // An agent that was heard lately is no proof that the machine is still on.
        AfterStore::Do(if self.observed.power.is_none() { Effect::ReadPower } else { Effect::PowerOff { soft: false } })
    }
}

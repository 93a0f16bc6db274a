//! Detached hosts.
//!
//! A host that is to be left alone (docs/design/host.md, "Detachment"): nothing is asked of its BMC, and its state
//! stays as it is.

use super::{AfterStore, DETACH, Decider, Effect, RARE_POLL, annotations};
use crate::api::metal3::{ErrorType, OperationalStatus, ProvisioningState as State};
use crate::api::slipway::{BootIntent, BootIntentSpec, BootTarget};

/// The operation of the intent of a host that came back from being detached, until its next boot.
const ATTACH: &str = "attach";

impl Decider<'_> {
    /// Detaches, stays detached, or comes back. `None` while the state goes on as it is.
    pub(super) fn detach(&mut self) -> Option<AfterStore> {
        let state = self.status.provisioning.state;
        if state == State::Deleting {
            return None;
        }
        let detached = self.status.operational_status == OperationalStatus::Detached;
        let Some(asked) = annotations::detach(self.observed.host) else {
            if self.status.error_type == Some(ErrorType::Detach) {
                self.clear_error();
                self.status.error_count = 0;
            }
            return detached.then(|| self.attach());
        };
        let calm = matches!(state, State::Provisioned | State::ExternallyProvisioned | State::Available);
        if !(calm || asked.force || detached) {
            return None;
        }
        if self.status.error_type == Some(ErrorType::Detach) && self.resting_until().is_some() {
            return None;
        }
        // An agent must not go on writing to a machine that was handed to somebody else.
        if self.observed.intent.is_some_and(|intent| intent.spec.target == BootTarget::Ramdisk) {
            return Some(AfterStore::Do(self.fresh_boot(BootTarget::Disk, DETACH, Vec::new())));
        }
        if !detached {
            if self.status.error_type == Some(ErrorType::Detach) {
                self.clear_error();
            }
            self.status.operational_status = OperationalStatus::Detached;
            return Some(AfterStore::Again);
        }
        let reason = "detached by an annotation: its BMC is left alone until the annotation is removed";
        Some(self.wait(reason, self.observed.now + RARE_POLL))
    }

    /// The next turn registers the machine as if for the first time: its BMC may be another one by now, and what is on
    /// the disks is not known any more. What it was registered with stays its own meanwhile.
    fn attach(&mut self) -> AfterStore {
        if let Some(intent) = self.observed.intent.filter(|intent| intent.spec.disks_clean) {
            let operation = ATTACH.to_owned();
            let spec = BootIntentSpec { operation, disks_clean: false, ..intent.spec.clone() };
            return AfterStore::Do(Effect::Intent(Box::new(spec)));
        }
        self.status.operational_status =
            if self.status.error_type.is_some() { OperationalStatus::Error } else { OperationalStatus::OK };
        self.status.provisioning.id.clear();
        AfterStore::Again
    }

    /// Whether the disks were clean when the host was detached, and nobody knows what was written to them since.
    pub(super) fn was_away(&self) -> bool {
        let away = |intent: &BootIntent| intent.spec.operation == ATTACH && !intent.spec.disks_clean;
        self.cleans() && self.observed.intent.is_some_and(away)
    }
}

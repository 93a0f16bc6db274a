//! Order of work (docs/design/host.md, "Order of work"): in which order a host is looked at, and which function is whose state.

use super::{AfterStore, Decider, Effect};
use crate::api::metal3::{ANNOTATION_PAUSED, FINALIZER_HOST, OperationalStatus, ProvisioningState as State};
use crate::api::slipway::BootTarget;

impl Decider<'_> {
    pub(super) fn step(&mut self) -> AfterStore {
        if self.annotation(ANNOTATION_PAUSED).is_some() {
            return AfterStore::Paused;
        }
        self.without_alias();
        let rests = self.resting_until().is_some();
        if !rests && let Some(next) = self.restore() {
            return next;
        }
        let finalizers = self.observed.host.metadata.finalizers.as_deref().unwrap_or_default();
        let held = finalizers.iter().any(|finalizer| finalizer == FINALIZER_HOST);
        match (held, self.deleting()) {
            (false, true) => return AfterStore::Gone,
            (false, false) => return AfterStore::Do(Effect::AddFinalizer),
            (true, _) => {}
        }
        if !rests && let Some(next) = self.fill_hardware() {
            return next;
        }
        if self.status.operational_status == OperationalStatus::Delayed {
            // A host that still has to wait says so again.
            let failed = self.status.error_type.is_some();
            self.status.operational_status = if failed { OperationalStatus::Error } else { OperationalStatus::OK };
        }
        if let Some(next) = self.begin_deleting() {
            return next;
        }
        if let Some(next) = self.keep_intent() {
            return next;
        }
        if let Some(next) = self.detach() {
            return next;
        }
        if let Some(until) = self.resting_until() {
            return self.wait(format!("next try at {until:.0}: {}", self.status.error_message), until);
        }
        if let Some(next) = self.ensure_registered() {
            return next;
        }
        match self.status.provisioning.state {
            State::None | State::Unmanaged => self.unmanaged(),
            State::Registering => self.registering(),
            State::Inspecting => self.inspecting(),
            State::MatchProfile => self.enter(State::Preparing),
            State::Preparing => self.preparing(),
            State::Ready | State::Available => self.available(),
            State::Provisioning => self.provisioning(),
            State::Provisioned => self.provisioned(),
            State::ExternallyProvisioned => self.externally_provisioned(),
            State::Deprovisioning => self.deprovisioning(),
            State::PoweringOffBeforeDelete => self.powering_off(),
            State::Deleting => AfterStore::Do(Effect::Release),
        }
    }

    /// A managed host has a boot intent: it answers the network with "local disk", and remembers which spec was
    /// tried, so that a corrected one ends a rest.
    fn keep_intent(&mut self) -> Option<AfterStore> {
        if self.deleting() {
            return None;
        }
        let uid = self.observed.host.metadata.uid.as_deref().unwrap_or_default();
        match self.observed.intent {
            Some(intent) if intent.metadata.deletion_timestamp.is_some() => Some(AfterStore::Do(Effect::ForgetIntent)),
            // What it says of the disks and of an agent is of another machine.
            Some(intent) if !intent.is_of(uid) => Some(AfterStore::Do(Effect::ForgetIntent)),
            Some(_) => None,
            None if matches!(self.status.provisioning.state, State::None | State::Unmanaged) => None,
            None => Some(AfterStore::Do(self.fresh_boot(BootTarget::Disk, "", Vec::new()))),
        }
    }
}

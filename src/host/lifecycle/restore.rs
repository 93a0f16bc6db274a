//! Adopted hosts: a status from another site, hardware from whoever inspected it.

use sha2::{Digest, Sha256};

use super::{AfterStore, Decider, Effect, RARE_POLL};
use crate::api::metal3::{
    ANNOTATION_HARDWARE_DETAILS, ANNOTATION_STATUS, BareMetalHostStatus, ProvisioningState as State,
};
use crate::hex::hex;
use crate::host::admission::annotations;
use crate::host::admission::unsupported::supports;

impl Decider<'_> {
    /// Takes over the status that a host without one brings along, then drops the annotation. A host whose annotation
    /// cannot be read is left alone: treated as new, its disks would be wiped.
    pub(super) fn restore(&mut self) -> Option<AfterStore> {
        let text = self.annotation(ANNOTATION_STATUS)?;
        let drop = || Some(AfterStore::Do(Effect::DropAnnotations(vec![ANNOTATION_STATUS.to_owned()])));
        let has_one = self.observed.host.status.as_ref().is_some_and(|status| status.last_updated.is_some());
        if has_one || text.is_empty() {
            return drop();
        }
        match annotations::status(text) {
            Ok(status) if status == BareMetalHostStatus::default() => drop(),
            Ok(status) => {
                let hardware = self.observed.hardware.cloned().or(status.hardware.clone());
                // What is leased to its machine is known here, or not at all.
                self.status = BareMetalHostStatus { hardware, addresses: Vec::new(), ..status };
                // Only a BMC that answers makes it this host's machine.
                self.status.provisioning.id.clear();
                self.without_alias();
                Some(AfterStore::Again)
            }
            // Nothing was ever done with it, so it can go.
            Err(_) if self.deleting() => None,
            Err(reason) => {
                let message = format!("the annotation {ANNOTATION_STATUS} {reason}: correct or remove it");
                self.warn("InvalidAnnotationValue", &message);
                Some(self.wait(message, self.observed.now + RARE_POLL))
            }
        }
    }

    /// `ready` is an old name of `available`; it is understood and never written.
    pub(super) fn without_alias(&mut self) {
        if self.status.provisioning.state == State::Ready {
            self.status.provisioning.state = State::Available;
        }
    }

    /// Brings what is known of the hardware beside an inspection to where it is shown.
    pub(super) fn fill_hardware(&mut self) -> Option<AfterStore> {
        self.take_hardware().or_else(|| self.show_hardware()).or_else(|| self.fill_architecture())
    }

    /// Shows what a HardwareData says that somebody brought along, where inspection is disabled and nothing is shown yet.
    fn show_hardware(&mut self) -> Option<AfterStore> {
        let found = self.observed.hardware?;
        if self.deleting() || !self.inspection_disabled() || self.status.hardware.is_some() {
            return None;
        }
        self.status.hardware = Some(found.clone());
        self.note("UpdateHardwareDetails", "Hardware taken from the HardwareData of this name".to_owned());
        Some(AfterStore::Again)
    }

    /// Takes over the hardware that somebody else found out, where inspection is disabled.
    fn take_hardware(&mut self) -> Option<AfterStore> {
        let text = self.annotation(ANNOTATION_HARDWARE_DETAILS)?;
        if self.deleting() || !self.inspection_disabled() {
            return None;
        }
        let drop = || Some(AfterStore::Do(Effect::DropAnnotations(vec![ANNOTATION_HARDWARE_DETAILS.to_owned()])));
        let hardware = match annotations::hardware_details(text) {
            Ok(hardware) => hardware,
            Err(reason) => {
                let message = format!("the annotation {ANNOTATION_HARDWARE_DETAILS} {reason}, and was removed");
                self.warn("InvalidAnnotationValue", &message);
                return drop();
            }
        };
        let operation = format!("annotation@{}", short_digest(text));
        if self.observed.hardware_from != Some(operation.as_str()) {
            return Some(AfterStore::Do(Effect::SaveHardware { operation, hardware: Box::new(hardware) }));
        }
        if self.status.hardware.as_ref() != Some(&hardware) {
            self.status.hardware = Some(hardware);
            self.note(
                "UpdateHardwareDetails",
                format!("Hardware taken from the annotation {ANNOTATION_HARDWARE_DETAILS}"),
            );
            return Some(AfterStore::Again);
        }
        self.note(
            "RemoveAnnotation",
            format!("Annotation {ANNOTATION_HARDWARE_DETAILS} removed: its hardware is stored"),
        );
        drop()
    }

    /// The architecture that the hardware says, where the operator gave none.
    fn fill_architecture(&self) -> Option<AfterStore> {
        let found = self.observed.hardware?.cpu.as_ref()?.arch.as_str();
        let spec = &self.observed.host.spec;
        let given = spec.architecture.as_deref().unwrap_or_default();
        // One that cannot be used is not written where it would be refused: the host says it.
        let taken = supports(found) || spec.externally_provisioned;
        (given.is_empty() && !found.is_empty() && taken && !self.deleting())
            .then(|| AfterStore::Do(Effect::SetArchitecture(found.to_owned())))
    }
}

fn short_digest(text: &str) -> String {
    hex(&Sha256::digest(text)[..8])
}

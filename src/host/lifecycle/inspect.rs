//! The states `inspecting` and `preparing`.

use super::register::NO_ADDRESS;
use super::{AfterStore, Decider, Effect, one, profile, seconds};
use crate::api::metal3::{
    ANNOTATION_INSPECT, AutomatedCleaningMode, ErrorType, HardwareDetails, InspectionMode, OperationMetric,
    ProvisioningState as State, Storage,
};
use crate::api::slipway::{BootIntentSpec, IntentStep, StepAction};

impl Decider<'_> {
    pub(super) fn begin_inspection(&mut self) -> AfterStore {
        if let Some(next) = self.without_capacity() {
            return next;
        }
        self.status.provisioning.boot_mode = Some(self.boot_mode());
        self.status.operation_history.inspect = OperationMetric { start: self.stamp(), end: None };
        self.note("InspectionStarted", "Hardware inspection started");
        self.enter(State::Inspecting)
    }

    pub(super) fn inspecting(&mut self) -> AfterStore {
        if self.inspection_disabled() {
            self.note("InspectionSkipped", "Hardware inspection skipped: it was disabled meanwhile");
            return self.enter(State::Preparing);
        }
        if self.inspection_asked() {
            return AfterStore::Do(Effect::DropAnnotations(vec![ANNOTATION_INSPECT.to_owned()]));
        }
        if let Some(next) = self.without_capacity_to_go_on() {
            return next;
        }
        if let Some(next) = self.prefetch_image() {
            return next;
        }
        if self.observed.host.spec.inspection_mode == Some(InspectionMode::Fast) {
            return self.inspecting_out_of_band();
        }
        if !self.is_told_from_others() {
            return self.failed(ErrorType::Inspection, NO_ADDRESS);
        }
        let steps = || vec![one(StepAction::Inspect)];
        if let Some(next) = self.forced_off(|history| &mut history.inspect, "inspect", steps) {
            return next;
        }
        let operation = self.inspection();
        let stage = self.in_ramdisk(&operation, steps(), ErrorType::Inspection);
        if let Some(next) = self.unless_done(stage, ErrorType::Inspection) {
            return next;
        }
        let found = self.observed.intent.and_then(|intent| intent.status.as_ref()).and_then(|s| s.inventory.clone());
        let Some(hardware) = found else {
            return self.failed(ErrorType::Inspection, "the agent reported no hardware");
        };
        if self.observed.hardware_from != Some(operation.as_str()) {
            return AfterStore::Do(Effect::SaveHardware { operation, hardware: Box::new(hardware) });
        }
        self.inspected(hardware)
    }

    /// The BMC is asked and the machine left as it is, so there is nothing that a reboot could begin again.
    fn inspecting_out_of_band(&mut self) -> AfterStore {
        let insisting = self.plain_reboot_that_counts();
        if !insisting.is_empty() {
            return AfterStore::Do(Effect::DropAnnotations(insisting));
        }
        let operation = self.inspection();
        match self.observed.hardware {
            Some(hardware) if self.observed.hardware_from == Some(operation.as_str()) => {
                self.inspected(hardware.clone())
            }
            _ => AfterStore::Do(Effect::InspectOutOfBand { operation }),
        }
    }

    fn inspection(&self) -> String {
        format!("inspect@{}", seconds(&self.status.operation_history.inspect))
    }

    fn inspected(&mut self, hardware: HardwareDetails) -> AfterStore {
        self.status.hardware = Some(hardware);
        self.status.operation_history.inspect.end = self.stamp();
        self.note("InspectionComplete", "Hardware inspection completed");
        self.enter(State::Preparing)
    }

    pub(super) fn preparing(&mut self) -> AfterStore {
        if let Some(next) = self.refuse(ErrorType::Preparation) {
            return next;
        }
        if !self.is_told_from_others() {
            return self.failed(ErrorType::Preparation, NO_ADDRESS);
        }
        if let Some(next) = self.prefetch_image() {
            return next;
        }
        self.status.provisioning.root_device_hints = profile::root_device_hints(&self.observed.host.spec);
        if let Some(next) = self.wipe("prepare", ErrorType::Preparation) {
            return next;
        }
        // An agent that calls late would wipe disks all the same that are not to be wiped any more.
        if self.has_work_for_an_agent()
            && let Some(intent) = self.observed.intent
        {
            return AfterStore::Do(Effect::Intent(Box::new(BootIntentSpec {
                steps: Vec::new(),
                ..intent.spec.clone()
            })));
        }
        self.enter(State::Available)
    }

    /// Wipes the disks unless that is switched off or done already.
    pub(super) fn wipe(&mut self, purpose: &str, error_type: ErrorType) -> Option<AfterStore> {
        if !self.cleans() || self.observed.intent.is_some_and(|intent| intent.spec.disks_clean) {
            return None;
        }
        // One wipe belongs to the boot intent as it is now; every later boot or step has another number.
        let operation = format!("{purpose}@{}", seconds(&self.status.operation_history.deprovision));
        let step = IntentStep { erase: Some(AutomatedCleaningMode::Metadata), ..one(StepAction::Erase) };
        let stage = self.in_ramdisk(&operation, vec![step], error_type);
        let next = self.unless_done(stage, error_type);
        if next.is_some() {
            return next;
        }
        let intent = self.observed.intent?;
        let message = format!("Disks cleaned: {}", self.said(StepAction::Erase, &operation));
        self.note("Cleaned", self.with_serial_numbers(&message));
        Some(AfterStore::Do(self.disks_are_clean(intent)))
    }

    /// A text with the serial number behind the name of each disk that the inspection knows: names change.
    fn with_serial_numbers(&self, text: &str) -> String {
        let disks = self.observed.hardware.map_or(&[][..], |hardware| &hardware.storage);
        let named = |word: &str| {
            let name = word.trim_end_matches(',');
            let is_it = |disk: &&Storage| disk.name == name || disk.alternate_names.iter().any(|other| other == name);
            let disk = disks.iter().find(is_it).filter(|disk| !disk.serial_number.is_empty())?;
            Some(format!("{name} (serial number {}){}", disk.serial_number, &word[name.len()..]))
        };
        let words = text.split(' ').map(|word| named(word).unwrap_or_else(|| word.to_owned()));
        words.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn cleans(&self) -> bool {
        self.observed.host.spec.automated_cleaning_mode != Some(AutomatedCleaningMode::Disabled)
    }
}

//! Reboots that insist (`force`) while an operation is under way: the operation begins again
//! (docs/design/host.md, "Power and reboots").

use super::{AfterStore, Decider, Effect, annotations, seconds};
use crate::api::metal3::{ANNOTATION_REBOOT, OperationHistory, OperationMetric};
use crate::api::slipway::{BootTarget, IntentStep};
use crate::bmc::PowerState;

/// The operation of an intent that keeps a machine off.
const HOLD: &str = "hold";

impl Decider<'_> {
    /// Serves a client that holds the host off, then one that wants a reboot, both only when they insist. The
    /// operation gets a new start, hence a new name, so that nothing of the old one counts.
    pub(super) fn forced_off(
        &mut self,
        metric: impl Fn(&mut OperationHistory) -> &mut OperationMetric,
        purpose: &str,
        steps: impl Fn() -> Vec<IntentStep>,
    ) -> Option<AfterStore> {
        let counting = self.reboots_that_count();
        if let Some(held) = counting.iter().find(|reboot| reboot.held) {
            return Some(self.hold_off(held));
        }
        if counting.is_empty() {
            return None;
        }
        let name = |start: &OperationMetric| format!("{purpose}@{}", seconds(start));
        let present = name(metric(&mut self.status.operation_history));
        let begun_again = self.observed.intent.is_some_and(|intent| {
            let spec = &intent.spec;
            spec.target == BootTarget::Ramdisk && spec.operation == present && spec.started.is_none()
        });
        if begun_again {
            return Some(AfterStore::Do(Effect::DropAnnotations(vec![ANNOTATION_REBOOT.to_owned()])));
        }
        let start = self.stamp();
        let history = metric(&mut self.status.operation_history);
        *history = OperationMetric { start, end: None };
        let operation = name(history);
        self.clear_error();
        Some(AfterStore::Do(self.fresh_boot(BootTarget::Ramdisk, &operation, steps())))
    }

    fn hold_off(&mut self, held: &annotations::RebootRequest<'_>) -> AfterStore {
        if self.observed.intent.is_some_and(|intent| intent.spec.target == BootTarget::Ramdisk) {
            return AfterStore::Do(self.fresh_boot(BootTarget::Disk, HOLD, Vec::new()));
        }
        if self.observed.power == Some(PowerState::On) && !self.observed.host.spec.disable_power_off {
            return AfterStore::Do(Effect::PowerOff { soft: false });
        }
        self.poll(format!("held off by the annotation {}", held.key))
    }

    /// The keys of the requests for one reboot that count now.
    pub(super) fn plain_reboot_that_counts(&self) -> Vec<String> {
        let counting = self.reboots_that_count().into_iter();
        counting.filter(|reboot| !reboot.held).map(|reboot| reboot.key.to_owned()).collect()
    }
}

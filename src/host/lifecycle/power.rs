//! Power management, as `spec.online` and the reboot annotations want it (docs/design/host.md, "Power and reboots").

use super::{AfterStore, Decider, Effect};
use crate::api::metal3::{ANNOTATION_REBOOT, ErrorType};
use crate::api::slipway::BootTarget;
use crate::bmc::{BootDevice, PowerState};

impl Decider<'_> {
    /// Keeps the power as it is wanted. `soft` asks the operating system first, where nobody objects.
    pub(super) fn manage_power(&mut self, soft: bool) -> AfterStore {
        let Some(power) = self.observed.power else { return AfterStore::Do(Effect::ReadPower) };
        if power == PowerState::Off && self.annotation(ANNOTATION_REBOOT).is_some() {
            return AfterStore::Do(Effect::DropAnnotations(vec![ANNOTATION_REBOOT.to_owned()]));
        }
        let reboots = self.reboots_that_count();
        let want = self.observed.host.spec.online && reboots.is_empty();
        match (want, power) {
            (true, PowerState::Off) => AfterStore::Do(self.power_on()),
            (false, PowerState::On) if self.observed.host.spec.disable_power_off => {
                if reboots.is_empty() {
                    return self.poll("online is false, but disablePowerOff forbids powering off");
                }
                // Nobody can be held off here: each gets its reboot, and its request is done with.
                AfterStore::Do(Effect::Reboot { served: reboots.iter().map(|reboot| reboot.key.to_owned()).collect() })
            }
            (false, PowerState::On) => {
                // After a failure the hard way: a system that ignores the button must not keep the power on for ever.
                let hard = reboots.iter().any(|reboot| reboot.hard) || self.status.error_count > 0;
                AfterStore::Do(Effect::PowerOff { soft: soft && !hard })
            }
            (true, PowerState::On) => {
                self.settled();
                self.poll("powered on, as asked")
            }
            (false, PowerState::Off) => {
                self.settled();
                match reboots.first() {
                    Some(holder) => self.poll(format!("held off by the annotation {}", holder.key)),
                    None => self.poll("powered off, as asked"),
                }
            }
        }
    }

    /// A live system is booted anew each time; everything else starts as its firmware is set up.
    fn power_on(&self) -> Effect {
        match self.observed.intent {
            Some(intent) if intent.spec.target == BootTarget::LiveIso => Effect::Boot(BootDevice::Pxe),
            _ => Effect::PowerOn,
        }
    }

    fn settled(&mut self) {
        if self.status.error_type == Some(ErrorType::PowerManagement) {
            self.clear_error();
        }
        if self.status.error_type.is_none() {
            self.status.error_count = 0;
        }
    }
}

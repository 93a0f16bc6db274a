use super::{Effect, Life, Next};
use crate::api::metal3::ErrorType;
use crate::bmc::PowerState;

impl Life<'_> {
    /// Keeps the power as `spec.online` says (reference 2.5).
    pub(super) fn manage_power(&mut self, soft: bool) -> Next {
        let Some(power) = self.world.power else { return Next::Do(Effect::ReadPower) };
        if self.status.error_type == Some(ErrorType::PowerManagement) {
            self.clear_error();
        }
        let want = self.world.host.spec.online;
        match (want, power) {
            (true, PowerState::Off) => {
                self.note("PowerOn", "Host powered on");
                Next::Do(Effect::PowerOn)
            }
            (false, PowerState::On) if self.world.host.spec.disable_power_off => {
                self.poll("online is false, but disablePowerOff forbids powering off")
            }
            (false, PowerState::On) => {
                self.note("PowerOff", "Host powered off");
                // After a failure the hard way: a system that ignores the button must not keep the power on for ever.
                Next::Do(Effect::PowerOff { soft: soft && self.status.error_count == 0 })
            }
            (true, PowerState::On) => {
                self.settled();
                self.poll("powered on, as asked")
            }
            (false, PowerState::Off) => {
                self.settled();
                self.poll("powered off, as asked")
            }
        }
    }

    fn settled(&mut self) {
        if self.status.error_type.is_none() {
            self.status.error_count = 0;
        }
    }
}

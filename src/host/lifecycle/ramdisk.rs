//! Agent steps: which ones the agent is asked for, and what their results mean.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{CONTESTED, Decider, Effect};
use crate::api::metal3::ErrorType;
use crate::api::slipway::{BootIntent, BootIntentSpec, BootTarget, IntentStep, StepAction, StepProgress};
use crate::bmc::{BootDevice, PowerState};

/// Where an operation in the ramdisk stands.
pub(super) enum RamdiskStage {
    /// Do this first.
    Do(Effect),
    /// The agent works, or is on its way.
    Wait { reason: String, until: Timestamp },
    /// This attempt failed.
    Failed(String),
    /// Every step succeeded.
    Done,
}

impl Decider<'_> {
    /// Takes an operation one stage further: `wanted` steps, in a ramdisk that is booted for it unless one is up.
    ///
    /// When the host already shows this type of error, the attempt's failure is known and its rest is over: the next
    /// attempt begins.
    pub(super) fn in_ramdisk(&self, operation: &str, wanted: Vec<IntentStep>, error_type: ErrorType) -> RamdiskStage {
        let Some(intent) = self.observed.intent.filter(|intent| intent.spec.target == BootTarget::Ramdisk) else {
            let contested = self.contested();
            return contested
                .unwrap_or_else(|| RamdiskStage::Do(self.fresh_boot(BootTarget::Ramdisk, operation, wanted)));
        };
        let steps: Vec<&IntentStep> = intent.spec.steps.iter().filter(|s| s.operation == operation).collect();
        let actions = |steps: &[&IntentStep]| steps.iter().map(|s| s.action).collect::<Vec<_>>();
        let planned = actions(&steps) == actions(&wanted.iter().collect::<Vec<_>>());
        if planned && steps.iter().all(|step| succeeded(intent, step)) {
            return RamdiskStage::Done;
        }
        let alive = self.session_alive(intent);
        // Whose machine is up was asked when its session was opened.
        if !alive && let Some(contested) = self.contested() {
            return contested;
        }
        if let Some(reason) = self.attempt_failed(intent, &steps) {
            if self.status.error_type != Some(error_type) && planned {
                return RamdiskStage::Failed(reason);
            }
            return RamdiskStage::Do(if alive {
                self.replan(intent, operation, wanted)
            } else {
                self.fresh_boot(BootTarget::Ramdisk, operation, wanted)
            });
        }
        if !planned {
            return RamdiskStage::Do(self.replan(intent, operation, wanted));
        }
        if alive {
            let under_way = steps.iter().find(|step| !succeeded(intent, step));
            let reason = working_on(intent, under_way.copied());
            return RamdiskStage::Wait {
                reason,
                until: self.last_heard(intent) + self.observed.settings.agent_deadline.0,
            };
        }
        match &intent.spec.started {
            None => RamdiskStage::Do(Effect::Boot(BootDevice::Pxe)),
            Some(started) => {
                let until = self.call_deadline(started.0);
                let reason = format!(
                    "the machine was powered on at {:.0} and has until {until:.0} for its agent's first call",
                    started.0
                );
                RamdiskStage::Wait { reason, until }
            }
        }
    }

    /// What comes instead of a boot when another host has this one's boot address, so that either one's machine could be
    /// what boots: nothing, and a boot that was wanted is wanted no more.
    fn contested(&self) -> Option<RamdiskStage> {
        let reason = self.conflict()?;
        let wanted = self.observed.intent.is_some_and(|intent| intent.spec.target != BootTarget::Disk);
        Some(if wanted {
            RamdiskStage::Do(self.fresh_boot(BootTarget::Disk, CONTESTED, Vec::new()))
        } else {
            RamdiskStage::Failed(reason)
        })
    }

    /// Takes the boot of the host's own system one stage further: from its disk or a live ISO, which may both write to
    /// the disks.
    pub(super) fn onto(&self, target: BootTarget, operation: &str) -> RamdiskStage {
        match self.observed.intent {
            Some(intent) if intent.spec.target == target && intent.spec.operation == operation => {
                match intent.spec.started {
                    None if target == BootTarget::Disk => RamdiskStage::Do(Effect::Boot(BootDevice::Disk)),
                    None => self.contested().unwrap_or(RamdiskStage::Do(Effect::Boot(BootDevice::Pxe))),
                    Some(_) => RamdiskStage::Done,
                }
            }
            _ => {
                if target == BootTarget::LiveIso
                    && let Some(contested) = self.contested()
                {
                    return contested;
                }
                let spec = self.fresh_intent(target, operation, Vec::new());
                RamdiskStage::Do(Effect::Intent(Box::new(BootIntentSpec { disks_clean: false, ..spec })))
            }
        }
    }

    /// The same for a system that the agent starts: only what the machine boots from now on is noted.
    pub(super) fn on_disk_already(&self, operation: &str) -> RamdiskStage {
        match self.observed.intent {
            Some(intent) if intent.spec.target == BootTarget::Disk && intent.spec.operation == operation => {
                RamdiskStage::Done
            }
            _ => {
                let started = Some(Time(self.observed.now));
                let spec = self.fresh_intent(BootTarget::Disk, operation, Vec::new());
                RamdiskStage::Do(Effect::HandOver(Box::new(BootIntentSpec { started, ..spec })))
            }
        }
    }

    /// The intent with the disks known to be clean and no step left.
    pub(super) fn disks_are_clean(&self, intent: &BootIntent) -> Effect {
        Effect::Intent(Box::new(BootIntentSpec { disks_clean: true, steps: Vec::new(), ..intent.spec.clone() }))
    }

    /// The steps of an operation as they are planned.
    pub(super) fn planned(&self, operation: &str) -> Vec<&IntentStep> {
        let intent = self.observed.intent.filter(|intent| intent.spec.target == BootTarget::Ramdisk);
        let steps = intent.into_iter().flat_map(|intent| &intent.spec.steps);
        steps.filter(|step| step.operation == operation).collect()
    }

    /// What the agent said of how a step of an operation ended; empty when nothing is known of it.
    pub(super) fn said(&self, action: StepAction, operation: &str) -> &str {
        let planned = self.planned(operation);
        let step = planned.iter().find(|step| step.action == action).map(|step| step.id.as_str());
        let results = self.observed.intent.and_then(|intent| intent.status.as_ref()).map(|status| &status.results[..]);
        let result = results.unwrap_or_default().iter().find(|result| Some(result.id.as_str()) == step);
        result.map_or("", |result| &result.message)
    }

    pub(super) fn has_succeeded(&self, step: &IntentStep) -> bool {
        self.observed.intent.is_some_and(|intent| succeeded(intent, step))
    }

    /// Whether an agent would still be given something to do with the disks.
    pub(super) fn has_work_for_an_agent(&self) -> bool {
        let Some(intent) = self.observed.intent else { return false };
        let ended = |step: &IntentStep| {
            intent.status.as_ref().is_some_and(|status| status.results.iter().any(|result| result.id == step.id))
        };
        intent.spec.steps.iter().any(|step| step.action != StepAction::Inspect && !ended(step))
    }

    /// Whether an agent is there and was heard lately.
    pub(super) fn agent_is_up(&self) -> bool {
        self.observed.intent.is_some_and(|intent| self.session_alive(intent))
    }

    /// Whether the agent of the intent's generation is there and was heard lately. One that called while its machine was
    /// being switched off for this very boot went with the power.
    fn session_alive(&self, intent: &BootIntent) -> bool {
        let cut_off = intent.spec.started.is_none() && self.observed.power == Some(PowerState::Off);
        session(intent).is_some()
            && !cut_off
            && self.observed.now < self.last_heard(intent) + self.observed.settings.agent_deadline.0
    }

    /// The next boot: a new generation, which ends every session and token of the one before.
    pub(super) fn fresh_boot(&self, target: BootTarget, operation: &str, wanted: Vec<IntentStep>) -> Effect {
        Effect::Intent(Box::new(self.fresh_intent(target, operation, wanted)))
    }

    pub(super) fn fresh_intent(&self, target: BootTarget, operation: &str, wanted: Vec<IntentStep>) -> BootIntentSpec {
        let before = self.observed.intent.map(|intent| &intent.spec);
        let generation = before.map_or(1, |spec| spec.generation + 1);
        let writes = wanted.iter().any(|step| step.action == StepAction::WriteImage);
        BootIntentSpec {
            generation,
            target,
            steps: numbered(generation, 1, operation, wanted),
            operation: operation.to_owned(),
            started: None,
            powering_on: None,
            live_iso: None,
            disks_clean: before.is_some_and(|spec| spec.disks_clean) && !writes,
            host_generation: self.generation(),
        }
    }

    /// The same boot with further steps; those of the same operation that failed are replaced. Where only what ends the
    /// agent's work is another, all before it stays as it is: it may have been done, or be under way.
    fn replan(&self, intent: &BootIntent, operation: &str, wanted: Vec<IntentStep>) -> Effect {
        let spec = &intent.spec;
        let known = spec.steps.iter().map(|s| &s.id);
        let ended = intent.status.iter().flat_map(|status| status.results.iter().map(|r| &r.id));
        let last = known.chain(ended).filter_map(|id| number(id, spec.generation)).max().unwrap_or(0);
        let writes = wanted.iter().any(|step| step.action == StepAction::WriteImage);
        let planned: Vec<&IntentStep> = spec.steps.iter().filter(|step| step.operation == operation).collect();
        let kept = kept(intent, &planned, &wanted);
        let mut steps: Vec<IntentStep> = planned.into_iter().take(kept).cloned().collect();
        steps.extend(numbered(spec.generation, last + 1, operation, wanted.into_iter().skip(kept).collect()));
        Effect::Intent(Box::new(BootIntentSpec {
            steps,
            disks_clean: spec.disks_clean && !writes,
            host_generation: self.generation(),
            ..spec.clone()
        }))
    }

    fn attempt_failed(&self, intent: &BootIntent, steps: &[&IntentStep]) -> Option<String> {
        let results = intent.status.as_ref().map_or(&[][..], |status| &status.results);
        let failed = results.iter().find(|r| !r.succeeded && steps.iter().any(|s| s.id == r.id));
        if let Some(result) = failed {
            return Some(result.message.clone());
        }
        if session(intent).is_some() {
            let heard = self.last_heard(intent);
            // Before it was started by us it cannot have failed us.
            let failed = intent.spec.started.is_some() && !self.session_alive(intent);
            return failed.then(|| {
                format!(
                    "the agent was last heard at {heard:.0} and has been silent for {} since: the machine may have lost power, its network or crashed; its console tells more",
                    self.observed.settings.agent_deadline
                )
            });
        }
        let started = intent.spec.started.as_ref()?.0;
        let deadline = self.call_deadline(started);
        (self.observed.now >= deadline).then(|| {
            format!(
                "the machine did not call back within {} of being powered on at {started:.0}: see its console, the host's events, and the DHCP and boot log for {}",
                self.observed.settings.boot_deadline,
                self.observed.host.spec.boot_mac_address.as_deref().unwrap_or("its MAC address")
            )
        })
    }

    /// Whether the machine was powered on for this boot and may still take its time to the agent's first call.
    pub(super) fn is_awaited(&self, intent: &BootIntent) -> bool {
        let started = intent.spec.started.as_ref().or(intent.spec.powering_on.as_ref());
        session(intent).is_none() && started.is_some_and(|started| self.observed.now < self.call_deadline(started.0))
    }

    /// Until when a machine that was powered on then may take to its agent's first call.
    fn call_deadline(&self, started: Timestamp) -> Timestamp {
        self.observed.counted(started, self.observed.settings.boot_deadline.0) + self.observed.settings.boot_deadline.0
    }

    fn last_heard(&self, intent: &BootIntent) -> Timestamp {
        let seen = session(intent).and_then(|session| session.last_seen.as_ref().or(session.opened.as_ref()));
        let seen = seen.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        self.observed.counted(seen, self.observed.settings.agent_deadline.0)
    }
}

/// The session of the intent's own generation.
fn session(intent: &BootIntent) -> Option<&crate::api::slipway::SessionStatus> {
    let session = intent.status.as_ref()?.session.as_ref()?;
    (session.generation == intent.spec.generation).then_some(session)
}

fn succeeded(intent: &BootIntent, step: &IntentStep) -> bool {
    intent.status.as_ref().is_some_and(|status| status.results.iter().any(|r| r.id == step.id && r.succeeded))
}

/// How many of the planned steps need not be planned anew.
fn kept(intent: &BootIntent, planned: &[&IntentStep], wanted: &[IntentStep]) -> usize {
    let results = intent.status.as_ref().map_or(&[][..], |status| &status.results);
    let failed = |step: &IntentStep| results.iter().any(|result| result.id == step.id && !result.succeeded);
    let same = |planned: &IntentStep, wanted: &IntentStep| {
        let IntentStep { id, operation, .. } = planned.clone();
        *planned == IntentStep { id, operation, ..wanted.clone() }
    };
    let alike = planned.iter().zip(wanted).take_while(|(planned, wanted)| same(planned, wanted) && !failed(planned));
    let alike = alike.count();
    let ends = |step: &IntentStep| matches!(step.action, StepAction::Kexec | StepAction::PowerOff | StepAction::Reboot);
    let only_the_end = planned[alike..].iter().all(|step| ends(step)) && wanted[alike..].iter().all(ends);
    if only_the_end { alike } else { 0 }
}

fn numbered(generation: i64, first: i64, operation: &str, steps: Vec<IntentStep>) -> Vec<IntentStep> {
    let ids = (first..).map(|number| format!("{generation}.{number}"));
    ids.zip(steps).map(|(id, step)| IntentStep { id, operation: operation.to_owned(), ..step }).collect()
}

fn number(id: &str, generation: i64) -> Option<i64> {
    let (of, number) = id.split_once('.')?;
    (of.parse() == Ok(generation)).then(|| number.parse().ok())?
}

/// What the agent is doing, for people: `writing the image, 45 %, 430 of 950 MB, 22 MB/s`.
fn working_on(intent: &BootIntent, step: Option<&IntentStep>) -> String {
    let Some(step) = step else { return "the agent is between two steps".to_owned() };
    let progress = intent.status.as_ref().and_then(|status| status.progress.as_ref());
    let doing = step.action.doing();
    match progress.filter(|progress| progress.step == step.id) {
        Some(progress) => phrase(step.action, &progress.phase) + &amounts(progress),
        None => doing.to_owned(),
    }
}

/// The phase with what it is a part of, where it does not say that itself.
fn phrase(action: StepAction, phase: &str) -> String {
    let doing = action.doing();
    let verb = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    if phase.is_empty() || phase == action.to_string() {
        doing.to_owned()
    } else if verb(phase) == verb(doing) {
        phase.to_owned()
    } else {
        format!("{doing}: {phase}")
    }
}

fn amounts(progress: &StepProgress) -> String {
    let mega = |bytes: i64| bytes / 1_000_000;
    let mut text = String::new();
    if let Some(percent) = progress.percent {
        text += &format!(", {percent} %");
    }
    if let (Some(done), Some(total)) = (progress.bytes_done, progress.bytes_total) {
        text += &format!(", {} of {} MB", mega(done), mega(total));
    }
    if let Some(rate) = progress.bytes_per_second {
        text += &format!(", {} MB/s", mega(rate));
    }
    if let Some(message) = &progress.message {
        text += &format!(" ({message})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_does_is_one_phrase() {
        for (action, phase, wanted) in [
            (StepAction::Inspect, "inspect", "inspecting the hardware"),
            (StepAction::Inspect, "waiting for switches", "inspecting the hardware: waiting for switches"),
            (StepAction::Erase, "erasing /dev/sda", "erasing /dev/sda"),
            (StepAction::WriteImage, "writing the image", "writing the image"),
            (StepAction::WriteImage, "fetching the manifest", "writing the image: fetching the manifest"),
            (StepAction::Kexec, "", "starting the installed system"),
        ] {
            assert_eq!(phrase(action, phase), wanted);
        }
    }
}

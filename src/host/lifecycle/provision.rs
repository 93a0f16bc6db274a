//! The states from `available` to `provisioned`.

use super::deployment::{self, Deployment};
use super::library::{ImageLack, foreign, image_spec};
use super::ramdisk::RamdiskStage;
use super::{AfterStore, Decider, Effect, image_name, one, profile, seconds};
use crate::api::metal3::{ErrorType, HostImage, OperationMetric, ProvisioningState as State};
use crate::api::slipway::{ANNOTATION_FIRST_BOOT, BootIntentSpec, BootTarget, ImagePhase, IntentStep, StepAction};
use crate::bmc::PowerState;
use crate::config::FirstBoot;
use crate::image::identity::named;
use crate::outbound::masked;

/// The operation of the intent of a host that became externally provisioned.
const ADOPT: &str = "adopt";

impl Decider<'_> {
    pub(super) fn available(&mut self) -> AfterStore {
        let spec = &self.observed.host.spec;
        if spec.externally_provisioned {
            self.forget_deployment();
            return self.adopt();
        }
        if self.inspection_asked() {
            return self.begin_inspection();
        }
        if profile::root_device_hints(spec) != self.status.provisioning.root_device_hints || self.cannot_do().is_some()
        {
            return self.enter(State::Preparing);
        }
        let deployment = deployment::deployment(spec);
        if deployment == Ok(None) {
            self.status.provisioning_fail_count = 0;
            self.status.last_attempted_image = None;
            if self.status.error_type == Some(ErrorType::Provisioning) {
                self.clear_error();
            }
        }
        if deployment::needs_provisioning(spec, &self.status.provisioning) {
            match (deployment, self.observed.lack()) {
                (Err(message), _) | (_, Some(ImageLack::Other(message))) => {
                    if self.status.error_message != message {
                        return self.failed(ErrorType::Provisioning, &message);
                    }
                }
                // Here it takes no place of those that others wait for.
                (_, Some(ImageLack::NotYet(reason))) => {
                    if self.status.error_type == Some(ErrorType::Provisioning) {
                        self.clear_error();
                    }
                    return self.poll(reason);
                }
                (_, None) => {
                    if let Some(next) = self.try_provisioning() {
                        return next;
                    }
                }
            }
        }
        // A session must not outlive the power.
        if !spec.online && self.observed.power == Some(PowerState::On) {
            let up = self.observed.intent.filter(|intent| intent.spec.target == BootTarget::Ramdisk);
            if up.is_some() {
                return AfterStore::Do(self.fresh_boot(BootTarget::Disk, "power-off", Vec::new()));
            }
        }
        // Nothing that could be lost runs on an available host.
        self.manage_power(false)
    }

    /// Begins unless this was tried often enough.
    fn try_provisioning(&mut self) -> Option<AfterStore> {
        let spec = &self.observed.host.spec;
        let edited = self.observed.intent.is_some_and(|intent| intent.spec.host_generation != self.generation());
        if self.status.last_attempted_image != spec.image || (spec.custom_deploy.is_some() && edited) {
            self.status.provisioning_fail_count = 0;
        }
        let limit = self.observed.settings.provisioning_retries;
        if limit == 0 || self.status.provisioning_fail_count < limit {
            return Some(self.begin_provisioning());
        }
        if self.status.error_type.is_some() {
            return None;
        }
        let message = format!(
            "gave up after {limit} attempts to provision {}: change spec.image, or remove it and set it again. The last reason: {}",
            self.what(),
            self.last_failure()
        );
        Some(self.failed(ErrorType::Provisioning, &message))
    }

    fn begin_provisioning(&mut self) -> AfterStore {
        if self.was_away() {
            // What is left on the other disks would come up in the new system.
            return self.enter(State::Preparing);
        }
        if let Some(next) = self.without_capacity() {
            return next;
        }
        self.status.last_attempted_image = self.observed.host.spec.image.clone();
        self.status.provisioning.boot_mode = Some(self.boot_mode());
        self.status.operation_history.provision = OperationMetric { start: self.stamp(), end: None };
        self.note("ProvisioningStarted", format!("Image provisioning started for {}", self.what()));
        self.enter(State::Provisioning)
    }

    pub(super) fn provisioning(&mut self) -> AfterStore {
        let spec = &self.observed.host.spec;
        let attempted = self.status.provisioning.image.as_ref().or(self.status.last_attempted_image.as_ref());
        if deployment::cancelled(spec, attempted, self.status.provisioning.custom_deploy.as_ref()) {
            return self.begin_deprovisioning("Image provisioning cancelled: another one is asked for, or none");
        }
        if self.was_away() {
            return self
                .begin_deprovisioning("Image provisioning begins again, because the host was detached meanwhile");
        }
        if let Some(next) = self.without_capacity_to_go_on() {
            return next;
        }
        if self.status.error_type == Some(ErrorType::Provisioning) {
            self.status.provisioning_fail_count += 1;
            return self.begin_deprovisioning("Image provisioning failed, cleaning up");
        }
        let deployment = match deployment::deployment(spec) {
            Ok(Some(deployment)) => deployment,
            Ok(None) => return self.begin_deprovisioning("Image provisioning cancelled: nothing is asked for"),
            Err(message) => return self.failed(ErrorType::Provisioning, &message),
        };
        if let Some(next) = self.forced_off(|history| &mut history.provision, "provision", Vec::new) {
            return next;
        }
        let operation = format!("provision@{}", seconds(&self.status.operation_history.provision));
        let stage = match deployment {
            Deployment::Write { image, config_drive } => self.write(&operation, image, config_drive),
            Deployment::Live(image) => self.boot_live(&operation, image),
            Deployment::Disk => Ok(self.boot_disk(&format!("{operation}/boot-disk"))),
        };
        match stage {
            Err(next) => next,
            Ok(stage) => match self.unless_done(stage, ErrorType::Provisioning) {
                Some(next) => next,
                None => self.installed(),
            },
        }
    }

    fn installed(&mut self) -> AfterStore {
        let spec = &self.observed.host.spec;
        self.status.provisioning.image = spec.image.clone();
        self.status.provisioning.custom_deploy = spec.custom_deploy.clone();
        self.status.provisioning_fail_count = 0;
        self.status.powered_on = true;
        self.status.operation_history.provision.end = self.stamp();
        self.note("ProvisioningComplete", format!("Image provisioning completed for {}", self.what()));
        self.enter(State::Provisioned)
    }

    fn write(&mut self, operation: &str, image: &HostImage, config_drive: bool) -> Result<RamdiskStage, AfterStore> {
        let image_is_written = self
            .observed
            .intent
            .is_some_and(|intent| intent.spec.target == BootTarget::Disk && intent.spec.operation == operation);
        if image_is_written {
            // How it starts was decided before.
            return Ok(self.onto(BootTarget::Disk, operation));
        }
        let digest = self.library_image(operation, image)?;
        // What the disks were wiped for: with other hints there would be two disks with a system in the end.
        let hints = self.status.provisioning.root_device_hints.clone();
        let on_root = |action| IntentStep { root_device_hints: hints.clone(), ..one(action) };
        let mut steps = vec![IntentStep { image: Some(digest.clone()), ..on_root(StepAction::WriteImage) }];
        if config_drive {
            steps.push(on_root(StepAction::WriteConfigDrive));
        }
        steps.push(on_root(StepAction::SetBootEntry));
        let planned = self.planned(operation);
        if planned.iter().any(|step| step.action == StepAction::WriteImage && step.image.as_ref() != Some(&digest)) {
            let reason = "Image provisioning begins again: the image has another content than what is being written";
            return Err(self.begin_deprovisioning(reason));
        }
        let first = planned.is_empty();
        match self.end_under_way(&planned, &steps) {
            Some(end) => steps.extend(end.iter().map(|step| (*step).clone())),
            None if self.starts_by_kexec() => steps.push(on_root(StepAction::Kexec)),
            // Otherwise the reset that starts the system ends the agent.
            None if !self.observed.host.spec.disable_power_off => steps.push(one(StepAction::PowerOff)),
            None => {}
        }
        if first {
            self.note("ImageReady", format!("Image {} is in the library", image_name(image)));
        }
        let by_kexec = steps.last().is_some_and(|step| step.action == StepAction::Kexec);
        match self.in_ramdisk(operation, steps, ErrorType::Provisioning) {
            RamdiskStage::Done => {
                let message = format!("Image written: {}", self.said(StepAction::WriteImage, operation));
                self.note("ImageWritten", message);
                Ok(if by_kexec { self.on_disk_already(operation) } else { self.onto(BootTarget::Disk, operation) })
            }
            stage => Ok(stage),
        }
    }

    /// How the agent ends its work that has done everything before that: it may have the step already, so that another wish
    /// comes too late.
    fn end_under_way<'s>(&self, planned: &'s [&'s IntentStep], before: &[IntentStep]) -> Option<&'s [&'s IntentStep]> {
        let (done, end) = planned.split_at_checked(before.len())?;
        let same = done.iter().zip(before).all(|(done, wanted)| done.action == wanted.action);
        (same && done.iter().all(|step| self.has_succeeded(step))).then_some(end)
    }

    fn boot_live(&mut self, operation: &str, image: &HostImage) -> Result<RamdiskStage, AfterStore> {
        let digest = self.library_image(operation, image)?;
        match self.onto(BootTarget::LiveIso, operation) {
            RamdiskStage::Do(Effect::Intent(spec)) if spec.target == BootTarget::LiveIso => {
                Ok(RamdiskStage::Do(Effect::Intent(Box::new(BootIntentSpec { live_iso: Some(digest), ..*spec }))))
            }
            stage => Ok(stage),
        }
    }

    fn boot_disk(&self, operation: &str) -> RamdiskStage {
        // The agent has nothing to write, so its machine can go off at once.
        let in_ramdisk = self.observed.intent.is_some_and(|intent| intent.spec.target == BootTarget::Ramdisk);
        if in_ramdisk && self.observed.power == Some(PowerState::On) && !self.observed.host.spec.disable_power_off {
            return RamdiskStage::Do(Effect::PowerOff { soft: false });
        }
        self.onto(BootTarget::Disk, operation)
    }

    /// The host carries somebody else's system from now on, so its disks are not clean, and no agent goes on with what it
    /// was to do to them before.
    pub(super) fn adopt(&mut self) -> AfterStore {
        if let Some(intent) = self.observed.intent
            && (intent.spec.disks_clean || intent.spec.target != BootTarget::Disk)
        {
            let spec = match intent.spec.target {
                BootTarget::Disk => intent.spec.clone(),
                BootTarget::Ramdisk | BootTarget::LiveIso => self.fresh_intent(BootTarget::Disk, ADOPT, Vec::new()),
            };
            return AfterStore::Do(Effect::Intent(Box::new(BootIntentSpec { disks_clean: false, ..spec })));
        }
        self.enter(State::ExternallyProvisioned)
    }

    fn starts_by_kexec(&self) -> bool {
        match self.annotation(ANNOTATION_FIRST_BOOT) {
            Some("kexec") => true,
            Some("firmware") => false,
            _ => self.observed.settings.first_boot == FirstBoot::Kexec,
        }
    }

    /// What is installed, for people.
    fn what(&self) -> String {
        let spec = &self.observed.host.spec;
        let method = spec.custom_deploy.as_ref().map(|custom| custom.method.clone()).unwrap_or_default();
        match deployment::image(spec.image.as_ref()) {
            Some(image) if method.is_empty() => masked(&image.url),
            Some(image) => format!("{} by {method}", masked(&image.url)),
            None => method,
        }
    }

    /// Why the last attempt to provision failed, as far as it is still known.
    fn last_failure(&self) -> String {
        let wanted = deployment::image(self.observed.host.spec.image.as_ref());
        if let (Some(known), Some(wanted)) = (self.observed.image, wanted)
            && named(&wanted.url).is_none()
            && known.spec != image_spec(wanted)
        {
            return foreign(&image_name(wanted));
        }
        let image = self.observed.image.and_then(|image| image.status.as_ref());
        let failed =
            image.filter(|status| status.phase == ImagePhase::Failed).and_then(|status| status.message.clone());
        let results = self.observed.intent.and_then(|intent| intent.status.as_ref()).map(|status| &status.results);
        let step = results.and_then(|all| all.iter().rev().find(|result| !result.succeeded)).map(|r| r.message.clone());
        failed.or(step).unwrap_or_else(|| "see the host's events".to_owned())
    }

    pub(super) fn provisioned(&mut self) -> AfterStore {
        let done = &self.status.provisioning;
        if deployment::cancelled(&self.observed.host.spec, done.image.as_ref(), done.custom_deploy.as_ref()) {
            return self.begin_deprovisioning("Image deprovisioning started");
        }
        if let Some(next) = self.keep_live() {
            return next;
        }
        self.manage_power(true)
    }

    /// A live system's intent may have been lost, or ended while the host was detached. It runs, and is not disturbed.
    fn keep_live(&mut self) -> Option<AfterStore> {
        let done = &self.status.provisioning;
        let image = done.image.clone().filter(|image| deployment::is_live(image) && done.custom_deploy.is_none())?;
        // Also when it gave way to others: the machine needs it at its next boot.
        if let Some(next) = self.import_missing(&image) {
            return Some(next);
        }
        if self.observed.intent.is_some_and(|intent| intent.spec.target == BootTarget::LiveIso) {
            return None;
        }
        let digest = self.live_digest(&image)?;
        let spec = BootIntentSpec {
            started: self.stamp(),
            live_iso: Some(digest),
            ..self.fresh_intent(BootTarget::LiveIso, "live", Vec::new())
        };
        Some(AfterStore::Do(Effect::Intent(Box::new(spec))))
    }

    pub(super) fn externally_provisioned(&mut self) -> AfterStore {
        if !self.observed.host.spec.externally_provisioned {
            self.status.provisioning.image = self.observed.host.spec.image.clone();
            self.status.provisioning.custom_deploy = self.observed.host.spec.custom_deploy.clone();
            return self.enter(State::Provisioned);
        }
        self.manage_power(true)
    }

    pub(super) fn begin_deprovisioning(&mut self, reason: &str) -> AfterStore {
        let abandoned = self.deleting() && self.without_access();
        if !abandoned && let Some(next) = self.without_capacity() {
            return next;
        }
        self.status.operation_history.deprovision = OperationMetric { start: self.stamp(), end: None };
        self.note("DeprovisioningStarted", reason);
        self.enter(State::Deprovisioning)
    }

    pub(super) fn deprovisioning(&mut self) -> AfterStore {
        let abandoned = self.deleting() && self.without_access();
        if !abandoned && let Some(next) = self.without_capacity_to_go_on() {
            return next;
        }
        if let Some(next) = self.wipe("deprovision", ErrorType::Provisioning).or_else(|| self.tear_down()) {
            return next;
        }
        let reboots = super::annotations::reboots(self.observed.host).map(|reboot| reboot.key.to_owned());
        let reboots: Vec<String> = reboots.collect();
        if !reboots.is_empty() && !self.deleting() {
            return AfterStore::Do(Effect::DropAnnotations(reboots));
        }
        self.forget_deployment();
        self.status.operation_history.deprovision.end = self.stamp();
        self.note("DeprovisioningComplete", "Image deprovisioning completed");
        self.enter(if self.deleting() { State::PoweringOffBeforeDelete } else { State::Available })
    }

    /// What must end even where nothing is wiped: what the agent may still be writing, the live system at the next
    /// power-on, the system that nobody uses any more.
    fn tear_down(&mut self) -> Option<AfterStore> {
        let intent = self.observed.intent?;
        if intent.spec.target == BootTarget::LiveIso {
            return Some(AfterStore::Do(self.fresh_boot(BootTarget::Disk, "deprovision", Vec::new())));
        }
        if !intent.spec.steps.is_empty() {
            return Some(AfterStore::Do(Effect::Intent(Box::new(BootIntentSpec {
                steps: Vec::new(),
                ..intent.spec.clone()
            }))));
        }
        let runs = intent.spec.target == BootTarget::Disk && self.observed.power == Some(PowerState::On);
        let off = runs && !self.cleans() && !self.observed.host.spec.disable_power_off;
        (off && !self.without_access()).then_some(AfterStore::Do(Effect::PowerOff { soft: false }))
    }

    fn forget_deployment(&mut self) {
        self.status.provisioning.image = None;
        self.status.provisioning.custom_deploy = None;
        self.status.provisioning.root_device_hints = None;
    }

    /// What a stage of an operation means for the host; `None` when the operation is done.
    pub(super) fn unless_done(&mut self, stage: RamdiskStage, error_type: ErrorType) -> Option<AfterStore> {
        Some(match stage {
            RamdiskStage::Done => return None,
            RamdiskStage::Failed(message) => self.failed(error_type, &message),
            RamdiskStage::Do(effect) => {
                if self.status.error_type == Some(error_type) {
                    self.clear_error();
                }
                AfterStore::Do(effect)
            }
            RamdiskStage::Wait { reason, until } => {
                // It goes on, so the power did what it was to do.
                if matches!(self.status.error_type, Some(ErrorType::PowerManagement))
                    || self.status.error_type == Some(error_type)
                {
                    self.clear_error();
                }
                self.wait(reason, until)
            }
        })
    }
}

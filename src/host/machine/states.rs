//! One function for each state.

use super::ramdisk::Stage;
use super::{Access, Effect, Life, Next, image_name, secret_reference};
use crate::api::metal3::{
    ANNOTATION_INSPECT, ANNOTATION_PAUSED, AutomatedCleaningMode, BootMode, ErrorType, FINALIZER_HOST, Image,
    InspectionMode, OperationMetric, OperationalStatus, ProvisioningState as State,
};
use crate::api::slipway::{
    ANNOTATION_DISCOVERED, ANNOTATION_FIRST_BOOT, BootIntentSpec, BootTarget, DISCOVERED_PENDING, ImagePhase,
    ImageSpec, IntentStep, StepAction,
};
use crate::bmc::PowerState;
use crate::config::FirstBoot;

/// After this many failures, deleting goes on without what failed.
const GIVE_UP_AFTER: i64 = 3;

impl Life<'_> {
    pub(super) fn step(&mut self) -> Next {
        if self.annotated(ANNOTATION_PAUSED) {
            return self.poll("reconciliation is paused by an annotation");
        }
        let finalizers = self.world.host.metadata.finalizers.as_deref().unwrap_or_default();
        let held = finalizers.iter().any(|finalizer| finalizer == FINALIZER_HOST);
        if self.deleting() {
            if !held {
                return Next::Gone;
            }
            if let Some(next) = self.begin_deleting() {
                return next;
            }
        } else if !held {
            return Next::Do(Effect::AddFinalizer);
        } else if self.world.intent.is_some_and(|intent| intent.metadata.deletion_timestamp.is_some()) {
            return Next::Do(Effect::ForgetIntent);
        }
        if self.status.provisioning.state == State::Registering && self.world.intent.is_none() && !self.deleting() {
            // First of all: the intent also remembers which spec was tried, so that a corrected one ends a rest.
            return Next::Do(self.fresh_boot(BootTarget::Disk, "", Vec::new()));
        }
        if let Some(until) = self.resting_until() {
            return self.wait(format!("next try at {until:.0}: {}", self.status.error_message), until);
        }
        if let Some(next) = self.check_access() {
            return next;
        }
        match self.status.provisioning.state {
            State::None | State::Unmanaged => self.unmanaged(),
            State::Registering => self.registering(),
            State::Inspecting => self.inspecting(),
            State::MatchProfile | State::Preparing => self.preparing(),
            State::Ready | State::Available => self.available(),
            State::Provisioning => self.provisioning(),
            State::Provisioned => self.provisioned(),
            State::ExternallyProvisioned => self.externally_provisioned(),
            State::Deprovisioning => self.deprovisioning(),
            State::PoweringOffBeforeDelete => self.powering_off(),
            State::Deleting => Next::Do(Effect::Release),
        }
    }

    fn annotated(&self, key: &str) -> bool {
        self.world.host.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key))
    }

    /// Reference 2.3; `None` when the state goes on as it is.
    fn begin_deleting(&mut self) -> Option<Next> {
        let state = self.status.provisioning.state;
        let stuck = self.status.error_count > GIVE_UP_AFTER;
        let lost = matches!(self.world.access, Access::Broken(_) | Access::None);
        let next = match state {
            State::Deleting => return None,
            State::None | State::Unmanaged | State::Registering => State::Deleting,
            State::Provisioning | State::Provisioned => {
                self.status.operation_history.deprovision = OperationMetric { start: self.stamp(), end: None };
                self.note("DeprovisioningStarted", "Image deprovisioning started, the host is being deleted");
                State::Deprovisioning
            }
            State::Deprovisioning if lost => State::Deleting,
            State::Deprovisioning if stuck => State::PoweringOffBeforeDelete,
            State::PoweringOffBeforeDelete if lost || stuck => State::Deleting,
            State::Deprovisioning | State::PoweringOffBeforeDelete => return None,
            _ if lost => State::Deleting,
            _ => State::PoweringOffBeforeDelete,
        };
        Some(self.enter(next))
    }

    /// Registration is repeated in every state: address and credentials must be good, and the power readable.
    fn check_access(&mut self) -> Option<Next> {
        if matches!(self.status.provisioning.state, State::None | State::Unmanaged | State::Deleting) {
            return None;
        }
        let (secret, version) = match self.world.access {
            Access::None => return None,
            Access::Broken(reason) => {
                let known = self.status.error_message == *reason;
                return Some(if known && self.status.error_type == Some(ErrorType::Registration) {
                    self.poll(format!("the BMC cannot be used: {reason}"))
                } else {
                    self.failed(ErrorType::Registration, reason)
                });
            }
            Access::Ready { secret, version } => (secret_reference(secret), version),
        };
        let tried = &mut self.status.tried_credentials;
        if tried.credentials_version.as_deref() != Some(version) {
            tried.credentials = Some(secret.clone());
            tried.credentials_version = Some(version.clone());
            if self.status.error_type == Some(ErrorType::Registration) {
                self.clear_error();
            }
        }
        let busy = self.world.intent.is_some_and(|intent| self.session_alive(intent));
        let power = match self.world.power {
            Some(power) => power,
            // The agent answers, so the machine is on, and a BMC that stumbles now must not stop it.
            None if busy => {
                if self.status.error_type == Some(ErrorType::Registration) {
                    self.clear_error();
                }
                return None;
            }
            None => return Some(Next::Do(Effect::ReadPower)),
        };
        self.status.powered_on = power == PowerState::On;
        if self.status.good_credentials != self.status.tried_credentials {
            self.status.good_credentials = self.status.tried_credentials.clone();
            self.note("BMCAccessValidated", "Verified access to BMC");
        }
        if self.status.error_type == Some(ErrorType::Registration)
            && self.status.provisioning.state != State::Registering
        {
            self.clear_error();
        }
        None
    }

    fn unmanaged(&mut self) -> Next {
        let annotations = self.world.host.metadata.annotations.as_ref();
        if annotations.and_then(|all| all.get(ANNOTATION_DISCOVERED)).is_some_and(|value| value == DISCOVERED_PENDING) {
            self.status.provisioning.state = State::Unmanaged;
            self.status.operational_status = OperationalStatus::Discovered;
            return self.poll(format!(
                "the machine reported itself and waits to be accepted: `slipway host accept`, or remove the annotation {ANNOTATION_DISCOVERED}"
            ));
        }
        let bmc = self.world.host.spec.bmc.as_ref();
        if bmc.is_some_and(|bmc| !bmc.address.is_empty() || !bmc.credentials_name.is_empty()) {
            self.status.operation_history.register = OperationMetric { start: self.stamp(), end: None };
            self.status.provisioning.boot_mode = Some(self.boot_mode());
            return self.enter(State::Registering);
        }
        if self.status.provisioning.state == State::None {
            self.status.provisioning.state = State::Unmanaged;
            self.status.operational_status = OperationalStatus::Discovered;
            self.note("Discovered", "Discovered host with no BMC details");
        }
        self.poll("the host names no BMC: set spec.bmc.address and spec.bmc.credentialsName")
    }

    fn registering(&mut self) -> Next {
        if let Some(owner) = self.world.mac_owner {
            let mac = self.world.host.spec.boot_mac_address.as_deref().unwrap_or_default();
            let message = format!("MAC address {mac} is already that of BareMetalHost {owner}: correct one of the two");
            return self.failed(ErrorType::Registration, &message);
        }
        let adopted = self.world.host.spec.externally_provisioned;
        if !adopted && self.world.host.spec.boot_mac_address.is_none() {
            let message =
                "spec.bootMACAddress is missing: without it the machine cannot be told from others when it boots";
            return self.failed(ErrorType::Registration, message);
        }
        let inspect = !adopted && !self.inspection_disabled();
        if inspect && let Some(next) = self.without_capacity() {
            return next;
        }
        self.status.operation_history.register.end = self.stamp();
        self.status.provisioning.id = self.world.host.metadata.uid.clone().unwrap_or_default();
        self.note("Registered", "Registered new host");
        match (adopted, inspect) {
            (true, _) => self.adopt(),
            (false, true) => self.begin_inspection(),
            (false, false) => self.enter(State::Preparing),
        }
    }

    fn begin_inspection(&mut self) -> Next {
        if let Some(next) = self.without_capacity() {
            return next;
        }
        self.status.provisioning.boot_mode = Some(self.boot_mode());
        self.status.operation_history.inspect = OperationMetric { start: self.stamp(), end: None };
        self.note("InspectionStarted", "Hardware inspection started");
        self.enter(State::Inspecting)
    }

    fn inspecting(&mut self) -> Next {
        if self.inspection_disabled() {
            self.note("InspectionSkipped", "disabled while it ran");
            return self.enter(State::Preparing);
        }
        if self.inspection_asked() {
            return Next::Do(Effect::DropInspectAnnotation);
        }
        if let Some(next) = self.prefetch_image() {
            return next;
        }
        let operation = format!("inspect@{}", seconds(&self.status.operation_history.inspect));
        let stage = self.in_ramdisk(&operation, vec![one(StepAction::Inspect)], ErrorType::Inspection);
        if let Some(next) = self.unless_done(stage, ErrorType::Inspection) {
            return next;
        }
        let found = self.world.intent.and_then(|intent| intent.status.as_ref()).and_then(|s| s.inventory.clone());
        let Some(hardware) = found else {
            return self.failed(ErrorType::Inspection, "the agent reported no hardware");
        };
        if self.world.hardware_from != Some(operation.as_str()) {
            return Next::Do(Effect::SaveHardware { operation, hardware: Box::new(hardware) });
        }
        self.status.hardware = Some(hardware);
        self.status.operation_history.inspect.end = self.stamp();
        self.note("InspectionComplete", "Hardware inspection completed");
        self.enter(State::Preparing)
    }

    fn preparing(&mut self) -> Next {
        if let Some(next) = self.prefetch_image() {
            return next;
        }
        self.status.provisioning.root_device_hints = self.world.host.spec.root_device_hints.clone();
        if let Some(next) = self.wipe("prepare", ErrorType::Preparation) {
            return next;
        }
        self.enter(State::Available)
    }

    /// Wipes the disks unless that is switched off or done already.
    fn wipe(&mut self, purpose: &str, error_type: ErrorType) -> Option<Next> {
        let off = self.world.host.spec.automated_cleaning_mode == Some(AutomatedCleaningMode::Disabled);
        if off || self.world.intent.is_some_and(|intent| intent.spec.disks_clean) {
            return None;
        }
        // One wipe belongs to the boot intent as it is now; every later boot or step has another number.
        let operation = format!("{purpose}@{}", seconds(&self.status.operation_history.deprovision));
        let step = IntentStep { erase: Some(AutomatedCleaningMode::Metadata), ..one(StepAction::Erase) };
        let stage = self.in_ramdisk(&operation, vec![step], error_type);
        let next = self.unless_done(stage, error_type);
        next.or_else(|| self.world.intent.map(|intent| Next::Do(self.disks_are_clean(intent))))
    }

    fn available(&mut self) -> Next {
        let spec = &self.world.host.spec;
        if spec.externally_provisioned {
            self.status.provisioning.image = None;
            return self.adopt();
        }
        if self.inspection_asked() && !self.inspection_disabled() {
            return self.begin_inspection();
        }
        if spec.root_device_hints != self.status.provisioning.root_device_hints {
            return self.enter(State::Preparing);
        }
        match spec.image.as_ref().filter(|image| !image.url.is_empty()) {
            None => {
                self.status.provisioning_fail_count = 0;
                self.status.last_attempted_image = None;
                if self.status.error_type == Some(ErrorType::Provisioning) {
                    self.clear_error();
                }
            }
            Some(image) if spec.online => {
                if self.status.last_attempted_image.as_ref() != Some(image) {
                    self.status.provisioning_fail_count = 0;
                }
                let limit = self.world.settings.provisioning_retries;
                if limit == 0 || self.status.provisioning_fail_count < limit {
                    return self.begin_provisioning(image);
                }
                if self.status.error_type.is_none() {
                    let message = format!(
                        "gave up after {limit} attempts to provision {}: change spec.image, or remove it and set it again. The last reason: {}",
                        image.url,
                        self.last_failure()
                    );
                    return self.failed(ErrorType::Provisioning, &message);
                }
            }
            Some(_) => {}
        }
        // A session must not outlive the power.
        if !spec.online && self.world.power == Some(PowerState::On) {
            let up = self.world.intent.filter(|intent| intent.spec.target == BootTarget::Ramdisk);
            if up.is_some() {
                return Next::Do(self.fresh_boot(BootTarget::Disk, "power-off", Vec::new()));
            }
        }
        self.manage_power(false)
    }

    fn begin_provisioning(&mut self, image: &Image) -> Next {
        if let Some(next) = self.without_capacity() {
            return next;
        }
        self.status.last_attempted_image = Some(image.clone());
        self.status.provisioning.boot_mode = Some(self.boot_mode());
        self.status.operation_history.provision = OperationMetric { start: self.stamp(), end: None };
        self.note("ProvisioningStarted", format!("Image provisioning started for {}", image.url));
        self.enter(State::Provisioning)
    }

    fn provisioning(&mut self) -> Next {
        let wanted = self.world.host.spec.image.as_ref().filter(|image| !image.url.is_empty());
        let attempted = self.status.last_attempted_image.clone();
        let Some(image) = wanted.filter(|image| attempted.as_ref().is_some_and(|a| a.url == image.url)) else {
            return self.begin_deprovisioning("Image provisioning cancelled: spec.image changed");
        };
        if self.status.error_type == Some(ErrorType::Provisioning) {
            if let Some(next) = self.without_capacity() {
                return next;
            }
            self.status.provisioning_fail_count += 1;
            return self.begin_deprovisioning("Image provisioning failed, cleaning up");
        }
        let operation = format!("provision@{}", seconds(&self.status.operation_history.provision));
        let image_is_written = self
            .world
            .intent
            .is_some_and(|intent| intent.spec.target == BootTarget::Disk && intent.spec.operation == operation);
        if !image_is_written {
            let digest = match self.library_image(image) {
                Ok(digest) => digest,
                Err(next) => return next,
            };
            let hints = self.world.host.spec.root_device_hints.clone();
            let on_root = |action| IntentStep { root_device_hints: hints.clone(), ..one(action) };
            let write = IntentStep { image: Some(digest), ..on_root(StepAction::WriteImage) };
            let start = if self.starts_by_kexec() { on_root(StepAction::Kexec) } else { one(StepAction::PowerOff) };
            let steps = vec![write, on_root(StepAction::WriteConfigDrive), on_root(StepAction::SetBootEntry), start];
            let stage = self.in_ramdisk(&operation, steps, ErrorType::Provisioning);
            if let Some(next) = self.unless_done(stage, ErrorType::Provisioning) {
                return next;
            }
        }
        let stage = if self.starts_by_kexec() { self.on_disk_already(&operation) } else { self.onto_disk(&operation) };
        if let Some(next) = self.unless_done(stage, ErrorType::Provisioning) {
            return next;
        }
        self.status.provisioning.image = Some(image.clone());
        self.status.provisioning_fail_count = 0;
        self.status.powered_on = true;
        self.status.operation_history.provision.end = self.stamp();
        self.note("ProvisioningComplete", format!("Image provisioning completed for {}", image.url));
        self.enter(State::Provisioned)
    }

    /// The host carries somebody else's system from now on, so its disks are not clean.
    fn adopt(&mut self) -> Next {
        if let Some(intent) = self.world.intent.filter(|intent| intent.spec.disks_clean) {
            let spec = BootIntentSpec { disks_clean: false, ..intent.spec.clone() };
            return Next::Do(Effect::Intent(Box::new(spec)));
        }
        self.enter(State::ExternallyProvisioned)
    }

    fn starts_by_kexec(&self) -> bool {
        match self.annotation(ANNOTATION_FIRST_BOOT) {
            Some("kexec") => true,
            Some("firmware") => false,
            _ => self.world.settings.first_boot == FirstBoot::Kexec,
        }
    }

    /// Why the last attempt to provision failed, as far as it is still known.
    fn last_failure(&self) -> String {
        let image = self.world.image.and_then(|image| image.status.as_ref());
        let failed =
            image.filter(|status| status.phase == ImagePhase::Failed).and_then(|status| status.message.clone());
        let results = self.world.intent.and_then(|intent| intent.status.as_ref()).map(|status| &status.results);
        let step = results.and_then(|all| all.iter().rev().find(|result| !result.succeeded)).map(|r| r.message.clone());
        failed.or(step).unwrap_or_else(|| "see the host's events".to_owned())
    }

    /// The image's digest once it is in the library.
    fn library_image(&mut self, image: &Image) -> Result<String, Next> {
        if image.format.as_deref() == Some("live-iso") {
            let message = "live-iso images are not supported yet: give a disk image in raw or qcow2 format";
            return Err(self.failed(ErrorType::Provisioning, message));
        }
        let Some(known) = self.world.image else { return Err(Next::Do(ensure_image(image))) };
        let status = known.status.clone().unwrap_or_default();
        let name = image_name(image);
        match (status.phase, status.digest) {
            (ImagePhase::Ready, Some(digest)) => Ok(digest),
            (ImagePhase::Failed, _) => {
                let why = status.message.unwrap_or_else(|| "the import failed".into());
                let again = format!("when the file is repaired, `slipway image remove {name}` has it read again");
                Err(self.failed(ErrorType::Provisioning, &format!("image {}: {why} ({again})", image.url)))
            }
            (phase, _) => {
                let percent = status.percent.map(|p| format!(", {p} %")).unwrap_or_default();
                let doing = if phase == ImagePhase::Importing { "being imported" } else { "waiting to be imported" };
                Err(self.poll(format!("image {name} is {doing}{percent}")))
            }
        }
    }

    /// Begins the import early: it runs while the machine's firmware starts.
    fn prefetch_image(&self) -> Option<Next> {
        let image = self.world.host.spec.image.as_ref().filter(|image| !image.url.is_empty())?;
        (self.world.image.is_none() && !self.deleting()).then(|| Next::Do(ensure_image(image)))
    }

    fn provisioned(&mut self) -> Next {
        let wanted = self.world.host.spec.image.as_ref().map(|image| image.url.as_str()).filter(|url| !url.is_empty());
        let written = self.status.provisioning.image.as_ref().map(|image| image.url.as_str());
        if written.is_none_or(|url| wanted != Some(url)) && self.world.host.spec.custom_deploy.is_none() {
            return self.begin_deprovisioning("Image deprovisioning started");
        }
        self.manage_power(true)
    }

    fn externally_provisioned(&mut self) -> Next {
        if !self.world.host.spec.externally_provisioned {
            self.status.provisioning.image = self.world.host.spec.image.clone();
            return self.enter(State::Provisioned);
        }
        self.manage_power(true)
    }

    fn begin_deprovisioning(&mut self, why: &str) -> Next {
        if let Some(next) = self.without_capacity() {
            return next;
        }
        self.status.operation_history.deprovision = OperationMetric { start: self.stamp(), end: None };
        self.note("DeprovisioningStarted", why);
        self.enter(State::Deprovisioning)
    }

    fn deprovisioning(&mut self) -> Next {
        if let Some(next) = self.wipe("deprovision", ErrorType::Provisioning) {
            return next;
        }
        if let Some(intent) = self.world.intent.filter(|intent| !intent.spec.steps.is_empty()) {
            // Nothing is wiped, but what the agent may still be writing must stop.
            return Next::Do(Effect::Intent(Box::new(BootIntentSpec { steps: Vec::new(), ..intent.spec.clone() })));
        }
        self.status.provisioning.image = None;
        self.status.provisioning.custom_deploy = None;
        self.status.provisioning.root_device_hints = None;
        self.status.operation_history.deprovision.end = self.stamp();
        self.note("DeprovisioningComplete", "Image deprovisioning completed");
        self.enter(if self.deleting() { State::PoweringOffBeforeDelete } else { State::Available })
    }

    fn powering_off(&mut self) -> Next {
        if self.world.host.spec.disable_power_off || self.world.power == Some(PowerState::Off) {
            self.status.powered_on = false;
            return self.enter(State::Deleting);
        }
        Next::Do(Effect::PowerOff { soft: false })
    }

    /// What a stage of an operation means for the host; `None` when the operation is done.
    fn unless_done(&mut self, stage: Stage, error_type: ErrorType) -> Option<Next> {
        Some(match stage {
            Stage::Done => return None,
            Stage::Failed(message) => self.failed(error_type, &message),
            Stage::Do(effect) => {
                if self.status.error_type == Some(error_type) {
                    self.clear_error();
                }
                Next::Do(effect)
            }
            Stage::Wait { reason, until } => {
                if self.status.error_type == Some(error_type) {
                    self.clear_error();
                }
                self.wait(reason, until)
            }
        })
    }

    fn without_capacity(&mut self) -> Option<Next> {
        if self.world.busy < self.world.settings.busy_limit {
            return None;
        }
        self.status.operational_status = OperationalStatus::Delayed;
        let limit = self.world.settings.busy_limit;
        Some(self.poll(format!("{limit} hosts are busy, which is host.busy_limit; this one is next when one is done")))
    }

    fn inspection_disabled(&self) -> bool {
        self.world.host.spec.inspection_mode == Some(InspectionMode::Disabled)
            || self.inspect_annotation() == Some("disabled")
    }

    fn inspection_asked(&self) -> bool {
        self.inspect_annotation() == Some("")
    }

    fn inspect_annotation(&self) -> Option<&str> {
        self.annotation(ANNOTATION_INSPECT)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.world.host.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    fn boot_mode(&self) -> BootMode {
        self.world.host.spec.boot_mode.unwrap_or_default()
    }
}

fn one(action: StepAction) -> IntentStep {
    IntentStep { action, ..IntentStep::default() }
}

fn seconds(operation: &OperationMetric) -> i64 {
    operation.start.as_ref().map_or(0, |start| start.0.as_second())
}

fn ensure_image(image: &Image) -> Effect {
    Effect::EnsureImage {
        name: image_name(image),
        spec: Box::new(ImageSpec {
            url: image.url.clone(),
            checksum: image.checksum.clone(),
            checksum_type: image.checksum_type,
            format: image.format.clone().filter(|format| !format.is_empty()),
        }),
    }
}

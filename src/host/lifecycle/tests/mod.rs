//! The machine against a small model of the world: effects are applied to it, time is a number.
//!
//! Most files are named for a section of docs/design/host.md and have a table whose rows are that section's rules.

mod annotations;
mod capacity;
mod delete;
mod deployments;
mod detach;
mod errors;
mod journeys;
mod power;
mod profile;
mod restore;
mod sources;
mod support;
mod transitions;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::metal3::{BareMetalHostSpec, BmcDetails, FINALIZER_HOST, Nic};
use crate::api::slipway::{
    ANNOTATION_REGISTRATION, BootTarget, ImagePhase, ImageStatus, IntentStep, SessionStatus, StepAction, StepResult,
};

/// A host, its intent, its BMC and its agent.
struct Model {
    now: Timestamp,
    host: BareMetalHost,
    intent: Option<BootIntent>,
    access: Access,
    power: PowerState,
    power_known: bool,
    image: Option<Image>,
    equal: Option<Image>,
    hardware: Option<HardwareDetails>,
    hardware_from: Option<String>,
    /// Network cards that the BMC names.
    named_by_bmc: Vec<Nic>,
    mac_owner: Option<String>,
    held_until: Option<Timestamp>,
    data_cd: bool,
    /// Places that others have.
    busy: usize,
    /// Whether the host gave its own back, although its status says that it is busy.
    gave_place_back: bool,
    settings: HostConfig,
    boots: Vec<BootDevice>,
    /// How often the disks became clean.
    wipes: usize,
    /// How often each thing was asked of the BMC: `read`, `boot`, `on`, `soft off`, `off`, `reset`, `inventory`.
    bmc: Vec<&'static str>,
    events: Vec<&'static str>,
    states: Vec<&'static str>,
    gone: bool,
    /// What the BMC answers instead of doing it.
    bmc_fault: Option<String>,
    /// Whether the ramdisk's agent calls back.
    agent: bool,
    /// Steps that fail, with their reasons.
    failing: Vec<(StepAction, String)>,
}

impl Model {
    fn new() -> Self {
        let spec = BareMetalHostSpec {
            online: true,
            bmc: Some(BmcDetails {
                address: "ipmi://10.0.0.1".into(),
                credentials_name: "s".into(),
                ..BmcDetails::default()
            }),
            boot_mac_address: Some("02:00:00:00:00:01".into()),
            ..BareMetalHostSpec::default()
        };
        let mut host = BareMetalHost::new("h", spec);
        host.metadata.namespace = Some("ns".into());
        host.metadata.uid = Some("uid".into());
        host.metadata.generation = Some(1);
        Self {
            now: Timestamp::from_second(1_800_000_000).expect("a time"),
            host,
            intent: None,
            access: Access::Ready {
                secret: SecretName { namespace: "ns".into(), name: "s".into() },
                version: "1".into(),
            },
            power: PowerState::Off,
            power_known: false,
            image: None,
            equal: None,
            hardware: None,
            hardware_from: None,
            named_by_bmc: Vec::new(),
            mac_owner: None,
            held_until: None,
            data_cd: false,
            busy: 0,
            gave_place_back: false,
            settings: HostConfig::default(),
            boots: Vec::new(),
            wipes: 0,
            bmc: Vec::new(),
            events: Vec::new(),
            states: Vec::new(),
            gone: false,
            bmc_fault: None,
            agent: true,
            failing: Vec::new(),
        }
    }

    fn with_image(url: &str) -> Self {
        let mut model = Self::new();
        model.want_image(Some(url));
        model
    }

    fn want_image(&mut self, url: Option<&str>) {
        self.host.spec.image =
            url.map(|url| HostImage { url: url.into(), checksum: Some("c".into()), ..HostImage::default() });
        self.image = None;
        self.edited();
    }

    fn edited(&mut self) {
        *self.host.metadata.generation.get_or_insert(0) += 1;
    }

    fn annotate(&mut self, key: &str, value: &str) {
        self.host.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
    }

    fn unannotate(&mut self, key: &str) {
        self.host.metadata.annotations.get_or_insert_default().remove(key);
    }

    fn annotated(&self, key: &str) -> bool {
        self.host.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key))
    }

    fn delete(&mut self) {
        self.host.metadata.deletion_timestamp = Some(Time(self.now));
        self.edited();
    }

    fn status(&self) -> BareMetalHostStatus {
        self.host.status.clone().unwrap_or_default()
    }

    fn state(&self) -> &'static str {
        self.status().provisioning.state.as_str()
    }

    fn has_room(&self) -> bool {
        let has_place = !self.gave_place_back && takes_place(&self.host, &self.status());
        has_place || self.busy < self.settings.busy_limit
    }

    fn transition(&self) -> Transition {
        step(&HostObservation {
            now: self.now,
            up_since: Timestamp::UNIX_EPOCH,
            host: &self.host,
            intent: self.intent.as_ref(),
            access: &self.access,
            power: self.power_known.then_some(self.power),
            image: self.image.as_ref(),
            equal: self.equal.as_ref(),
            hardware: self.hardware.as_ref(),
            hardware_from: self.hardware_from.as_deref(),
            record_time: self.now.as_millisecond(),
            mac_owner: self.mac_owner.as_deref(),
            held_until: self.held_until,
            data_cd: self.data_cd && self.host.metadata.deletion_timestamp.is_some(),
            room: self.has_room(),
            settings: &self.settings,
        })
    }

    fn store(&mut self, status: BareMetalHostStatus, notes: Vec<Note>) {
        if notes.iter().any(|note| note.warning)
            && let Some(intent) = &mut self.intent
        {
            intent.spec.host_generation = self.host.metadata.generation.unwrap_or_default();
        }
        self.events.extend(notes.iter().map(|note| note.reason));
        if status != self.status() {
            if self.states.last() != Some(&status.provisioning.state.as_str()) {
                self.states.push(status.provisioning.state.as_str());
            }
            self.host.status = Some(BareMetalHostStatus { last_updated: Some(Time(self.now)), ..status });
        }
    }

    /// Turns until the machine waits; its reason and time.
    fn settle(&mut self) -> (String, Timestamp) {
        for _ in 0..60 {
            let transition = self.transition();
            self.store(transition.status, transition.notes);
            match transition.next {
                AfterStore::Again => {}
                AfterStore::Gone => {
                    self.gone = true;
                    return ("gone".into(), self.now);
                }
                AfterStore::Wait { reason, until } => return (reason, until),
                AfterStore::Paused => return ("paused".into(), self.now),
                AfterStore::Do(effect) => self.apply(&effect),
            }
        }
        panic!("no rest in {}: {:?}", self.state(), self.transition());
    }

    fn apply(&mut self, effect: &Effect) {
        let asked = match effect {
            Effect::ReadPower => Some("read"),
            Effect::Boot(_) => Some("boot"),
            Effect::PowerOn => Some("on"),
            Effect::PowerOff { soft: true } => Some("soft off"),
            Effect::PowerOff { soft: false } => Some("off"),
            Effect::Reboot { .. } => Some("reset"),
            Effect::InspectOutOfBand { .. } => Some("inventory"),
            Effect::EjectDataImage => Some("eject"),
            _ => None,
        };
        self.bmc.extend(asked);
        let bmc = asked.is_some();
        if let (true, Some(fault)) = (bmc, self.bmc_fault.clone()) {
            let (status, note) = fail(&self.status(), effect.error_type(self.status().provisioning.state), &fault);
            self.store(status, vec![note]);
            self.power_known = false;
            return;
        }
        self.power_known |= bmc;
        self.events.extend(effect.done().map(|note| note.reason));
        match effect {
            Effect::AddFinalizer => self.host.metadata.finalizers = Some(vec![FINALIZER_HOST.into()]),
            Effect::DropAnnotations(keys) => keys.iter().for_each(|key| self.unannotate(key)),
            Effect::SetArchitecture(architecture) => {
                self.host.spec.architecture = Some(architecture.clone());
                self.edited();
            }
            Effect::ReadPower => self.power_known = true,
            Effect::Intent(spec) | Effect::HandOver(spec) => {
                let clean = self.intent.as_ref().is_some_and(|intent| intent.spec.disks_clean);
                self.wipes += usize::from(spec.disks_clean && !clean);
                let before = self.intent.take();
                let before = before.unwrap_or_else(|| BootIntent::new("h", BootIntentSpec::default()));
                self.intent = Some(BootIntent { spec: (**spec).clone(), ..before });
            }
            Effect::Register(registration) => {
                let intent = self.intent.as_mut().expect("an intent");
                let text = serde_json::to_string(registration).expect("JSON");
                intent.metadata.annotations.get_or_insert_default().insert(ANNOTATION_REGISTRATION.into(), text);
            }
            Effect::Boot(device) => {
                self.boots.push(*device);
                self.power = PowerState::On;
                if let Some(intent) = &mut self.intent {
                    intent.spec.started = Some(Time(self.now));
                }
            }
            Effect::PowerOn => self.power = PowerState::On,
            Effect::PowerOff { .. } => self.power = PowerState::Off,
            Effect::EnsureImage { name, spec } => {
                let status =
                    ImageStatus { phase: ImagePhase::Ready, digest: Some("d1".into()), ..ImageStatus::default() };
                self.image = Some(Image { status: Some(status), ..Image::new(name, (**spec).clone()) });
            }
            Effect::Reboot { served } => served.iter().for_each(|key| self.unannotate(key)),
            Effect::SaveHardware { operation, hardware } => {
                self.hardware_from = Some(operation.clone());
                self.hardware = Some((**hardware).clone());
            }
            Effect::InspectOutOfBand { operation } => {
                self.hardware_from = Some(operation.clone());
                let nics = self.named_by_bmc.clone();
                self.hardware = Some(HardwareDetails { hostname: "bmc".into(), nics, ..HardwareDetails::default() });
            }
            Effect::EjectDataImage => self.data_cd = false,
            Effect::ForgetIntent => self.intent = None,
            Effect::Release => {
                self.host.metadata.finalizers = None;
                self.intent = None;
            }
        }
    }

    /// The agent does one thing: opens its session or ends its next step. False when it has nothing to do.
    fn agent_acts(&mut self) -> bool {
        let now = self.now;
        let Some(intent) = &mut self.intent else { return false };
        if !self.agent || intent.spec.target != BootTarget::Ramdisk || intent.spec.started.is_none() {
            return false;
        }
        let status = intent.status.get_or_insert_default();
        let generation = intent.spec.generation;
        if status.session.as_ref().is_none_or(|session| session.generation != generation) {
            let stamp = Some(Time(now));
            status.session =
                Some(SessionStatus { generation, opened: stamp.clone(), last_seen: stamp, ..SessionStatus::default() });
            status.results.clear();
            return true;
        }
        if let Some(session) = &mut status.session {
            session.last_seen = Some(Time(now));
        }
        let ended = |step: &&IntentStep| status.results.iter().any(|result| result.id == step.id);
        let Some(step) = intent.spec.steps.iter().find(|step| !ended(step)) else { return false };
        let failed_before = |step: &IntentStep| {
            let same = intent.spec.steps.iter().filter(|other| other.operation == step.operation);
            same.clone().any(|other| status.results.iter().any(|result| result.id == other.id && !result.succeeded))
        };
        if failed_before(step) {
            return false;
        }
        let fault = self.failing.iter().find(|(action, _)| *action == step.action).map(|(_, reason)| reason.clone());
        status.results.push(StepResult {
            id: step.id.clone(),
            succeeded: fault.is_none(),
            message: fault.unwrap_or_default(),
            finished: Some(Time(now)),
        });
        if step.action == StepAction::Inspect {
            status.inventory = Some(HardwareDetails { hostname: "h".into(), ..HardwareDetails::default() });
        }
        true
    }

    /// Lets everybody act until the host rests with nothing for the agent to do, or is in this state.
    fn run_until(&mut self, state: &str) {
        for _ in 0..100 {
            self.settle();
            if self.state() == state || self.gone {
                return;
            }
            self.now += Duration::from_secs(1);
            if !self.agent_acts() {
                self.now += Duration::from_secs(30);
            }
        }
        panic!(
            "never {state}: {} {:?} {:?}",
            self.state(),
            self.status().error_message,
            self.intent.as_ref().map(|i| &i.spec)
        );
    }

    /// A host in this state, by the way that leads there.
    fn in_state(state: &str) -> Self {
        let mut model = Self::with_image("http://x/a.qcow2");
        match state {
            "" => {}
            "unmanaged" => {
                model.host.spec.bmc = None;
                model.settle();
            }
            "registering" => {
                model.mac_owner = Some("ns/first".into());
                model.settle();
                model.mac_owner = None;
                model.edited();
            }
            "available" => {
                model.want_image(None);
                model.run_until("available");
                model.settle();
            }
            "externally provisioned" => {
                model.want_image(None);
                model.host.spec.externally_provisioned = true;
                model.power = PowerState::On;
                model.run_until("externally provisioned");
                model.settle();
            }
            "provisioned" => {
                model.run_until("provisioned");
                model.settle();
            }
            "deprovisioning" => {
                model.run_until("provisioned");
                model.want_image(None);
                model.walk_to(state);
            }
            "powering off before delete" | "deleting" => {
                model.want_image(None);
                model.run_until("available");
                model.settle();
                model.delete();
                model.walk_to(state);
            }
            "match profile" | "ready" => {
                model.want_image(None);
                model.run_until("available");
                let name = serde_json::from_value(state.into()).expect("a state");
                let mut status = model.status();
                status.provisioning.state = name;
                model.host.status = Some(status);
            }
            _ => model.walk_to(state),
        }
        assert_eq!(model.state(), state);
        model.forget_what_happened();
        model
    }

    fn forget_what_happened(&mut self) {
        self.states.clear();
        self.events.clear();
        self.boots.clear();
        self.wipes = 0;
        self.bmc.clear();
    }

    /// One turn at a time, until the state was stored.
    fn walk_to(&mut self, state: &str) {
        self.walk_until(|model| model.state() == state);
    }

    fn walk_until(&mut self, met: impl Fn(&Self) -> bool) {
        for _ in 0..200 {
            if met(self) {
                return;
            }
            let transition = self.transition();
            self.store(transition.status, transition.notes);
            match transition.next {
                AfterStore::Do(effect) => self.apply(&effect),
                AfterStore::Wait { .. } => {
                    self.now += Duration::from_secs(1);
                    self.agent_acts();
                }
                AfterStore::Again | AfterStore::Gone | AfterStore::Paused => {}
            }
        }
        panic!("never there: {} {:?}", self.state(), self.status().error_message);
    }
}

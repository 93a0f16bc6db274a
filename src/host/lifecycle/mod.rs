//! The state machine of a host, a pure function: (what is stored, what is observed) gives (new status, one effect).
//!
//! [`step`] is called again and again until it waits. It never does anything itself, so a kill at any line
//! costs nothing: the next call sees the same world and asks for the same effect. States, transitions, error
//! types and events are those of Metal3; docs/design/host.md has the contract, with what differs.
//!
//! `dispatch.rs` says in which order a host is looked at; then there is a file for each part of its life. The agent's
//! part goes through the host's [`BootIntent`]: `ramdisk.rs` decides what to put there and what its answers mean.

mod annotations;
mod backoff;
mod capacity;
mod delete;
mod deployment;
mod detach;
mod dispatch;
mod inspect;
mod library;
mod power;
mod profile;
mod provision;
mod ramdisk;
mod reboot;
mod register;
mod restore;
mod support;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sha2::{Digest, Sha256};

use crate::api::metal3::{
    BareMetalHost, BareMetalHostStatus, BootMode, ErrorType, HardwareDetails, HostImage, OperationMetric,
    OperationalStatus, ProvisioningState, SecretReference,
};
use crate::api::slipway::{BootIntent, BootIntentSpec, Image, ImageSpec, IntentStep, Registration, StepAction};
use crate::bmc::{BootDevice, PowerState};
use crate::config::HostConfig;
use crate::hex::hex;
use crate::image::identity::named;
use crate::runtime::Note;

pub use backoff::retry_delay;
pub use capacity::{SlotState, is_busy, is_exempt, slot_state, takes_place};
pub use delete::goes_untouched;
pub use deployment::Method;

/// How often a host is looked at that nothing can be done for.
const RARE_POLL: Duration = Duration::from_secs(600);

/// The operation of the intent that ends an agent's session because the host is detached.
const DETACH: &str = "detach";

/// The operation of the intent that keeps a machine from booting while two hosts name it.
const CONTESTED: &str = "contested";

/// Everything that a decision may look at.
#[derive(Clone, Copy, Debug)]
pub struct HostObservation<'a> {
    /// Time of the decision.
    pub now: Timestamp,
    /// When this appliance began to answer: before that, no machine could be heard.
    pub up_since: Timestamp,
    /// The host as stored.
    pub host: &'a BareMetalHost,
    /// Its boot intent as stored.
    pub intent: Option<&'a BootIntent>,
    /// Whether its BMC can be spoken to.
    pub access: &'a Access,
    /// Power, when it was read lately enough.
    pub power: Option<PowerState>,
    /// The library's image for `spec.image`, see [`image_name`]; of one that it names itself, only when it may use it.
    pub image: Option<&'a Image>,
    /// Another one with the same content that it may use.
    pub equal: Option<&'a Image>,
    /// What its HardwareData says.
    pub hardware: Option<&'a HardwareDetails>,
    /// The inspection that its HardwareData came from.
    pub hardware_from: Option<&'a str>,
    /// The time that a registration made now is recorded with, Unix time in milliseconds.
    pub record_time: i64,
    /// Another host that had the same boot MAC address first, as `namespace/name`.
    pub mac_owner: Option<&'a str>,
    /// Until when no login was to be tried at its BMC, when the last operation ended so: too many were refused before.
    pub held_until: Option<Timestamp>,
    /// Whether what its DataImage says is in the virtual CD drive. Known of a host that is being deleted only.
    pub data_cd: bool,
    /// Whether it has a place among the busy, or one is free for it, see [`takes_place`].
    pub room: bool,
    /// `[host]` of the configuration.
    pub settings: &'a HostConfig,
}

impl HostObservation<'_> {
    /// From when a deadline counts that began with `noted`: from the start of this appliance at the earliest. What was noted
    /// when the clock was further ahead than the deadline is long is of no use.
    pub(in crate::host) fn counted(&self, noted: Timestamp, deadline: Duration) -> Timestamp {
        let ahead = noted > self.now + deadline;
        self.up_since.max(if ahead { Timestamp::UNIX_EPOCH } else { noted })
    }
}

/// Whether a BMC can be spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The host names no BMC.
    None,
    /// Address and credentials can be tried.
    Ready {
        /// The secret.
        secret: SecretName,
        /// Its resourceVersion.
        version: String,
    },
    /// They cannot: the address or the secret is missing or wrong.
    Broken(String),
    /// The machine behind the address is another host's.
    Taken(String),
}

/// Name and namespace of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What a decision comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// The status to store, before anything else is done.
    pub status: BareMetalHostStatus,
    /// Events to publish once it is stored.
    pub notes: Vec<Note>,
    /// What comes then.
    pub next: AfterStore,
}

/// What comes after the status is stored.
#[derive(Clone, Debug, PartialEq)]
pub enum AfterStore {
    /// Decide again at once.
    Again,
    /// Do this, then decide again.
    Do(Effect),
    /// Nothing until something changes, at the latest then.
    Wait {
        /// What is waited for, with the deadline where there is one.
        reason: String,
        /// When to look again.
        until: Timestamp,
    },
    /// Nothing at all until the host changes; not even its status is written.
    Paused,
    /// The host is gone.
    Gone,
}

/// One thing to do in the world. Each may be done twice without harm.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put the finalizer on the host.
    AddFinalizer,
    /// Take these annotations off the host: what they asked for is done.
    DropAnnotations(Vec<String>),
    /// Write the architecture that the hardware says into the host's spec.
    SetArchitecture(String),
    /// Read the power from the BMC.
    ReadPower,
    /// Store the boot intent.
    Intent(Box<BootIntentSpec>),
    /// Record with the boot intent what the host was registered with.
    Register(Registration),
    /// Take the CD that the ramdisk came on out of the drive, then store this boot intent of a system that the agent
    /// starts by itself.
    HandOver(Box<BootIntentSpec>),
    /// Power off, boot once, power on; then note the time in the intent. From the disk, or ([`BootDevice::Pxe`]) what
    /// the intent's target says, by the way that goes with the BMC's address.
    Boot(BootDevice),
    /// Power on.
    PowerOn,
    /// Power off: through the operating system first, when `soft`.
    PowerOff {
        /// Ask the operating system first.
        soft: bool,
    },
    /// Reset a machine whose power must never go off; then take the annotations off that asked for it.
    Reboot {
        /// Their keys.
        served: Vec<String>,
    },
    /// Make the library import this image.
    EnsureImage {
        /// Name of the Image.
        name: String,
        /// Where it is.
        spec: Box<ImageSpec>,
    },
    /// Store the hardware as HardwareData, new.
    SaveHardware {
        /// The inspection it came from.
        operation: String,
        /// What was found.
        hardware: Box<HardwareDetails>,
    },
    /// Store what the BMC knows of the hardware as HardwareData, new.
    InspectOutOfBand {
        /// The inspection that it is for.
        operation: String,
    },
    /// Take out of the virtual CD drive what the DataImage says.
    EjectDataImage,
    /// Let the intent go, which somebody deleted or which is of a former host of this name: a new one begins afresh.
    ForgetIntent,
    /// Drop the intent and every finalizer that the host holds, its own last.
    Release,
}

impl Effect {
    /// Which error its failure is, in this state.
    pub fn error_type(&self, state: ProvisioningState) -> ErrorType {
        use ProvisioningState as State;
        match (self, state) {
            (Self::Intent(spec), _) if spec.operation == DETACH => ErrorType::Detach,
            (Self::ReadPower, _) | (_, State::Registering) => ErrorType::Registration,
            (Self::PowerOff { .. }, State::Inspecting | State::Provisioning) | (Self::Boot(_), State::Provisioning) => {
                ErrorType::PowerManagement
            }
            (_, State::Inspecting) => ErrorType::Inspection,
            (_, State::Preparing) => ErrorType::Preparation,
            (_, State::Provisioning | State::Deprovisioning) => ErrorType::Provisioning,
            _ => ErrorType::PowerManagement,
        }
    }

    /// The event to publish once it is done.
    pub fn done(&self) -> Option<Note> {
        let (reason, message) = match self {
            Self::PowerOn => ("PowerOn", "Host powered on"),
            Self::Boot(BootDevice::Disk) => ("BootStarted", "Host started anew, to boot from its disk"),
            Self::Boot(_) => ("BootStarted", "Host started anew, to boot what the appliance has for it"),
            Self::EnsureImage { name, .. } => {
                let message = format!("Image {name} is asked of the library, which imports it unless it has it");
                return Some(Note { reason: "ImageRequested", message, warning: false });
            }
            Self::PowerOff { soft: true } => ("PowerOff", "Host soft powered off"),
            Self::PowerOff { soft: false } => ("PowerOff", "Host powered off"),
            Self::Reboot { .. } => ("PowerOn", "Host rebooted, because disablePowerOff forbids powering it off"),
            _ => return None,
        };
        Some(Note { reason, message: message.to_owned(), warning: false })
    }
}

/// Decides what comes next for a host.
pub fn step(observed: &HostObservation) -> Transition {
    let mut decider = Decider::new(observed);
    let next = decider.step();
    decider.yield_to_the_first();
    Transition { status: decider.status, notes: decider.notes, next }
}

/// The status after a failure, with its event.
pub fn fail(status: &BareMetalHostStatus, error_type: ErrorType, message: &str) -> (BareMetalHostStatus, Note) {
    let mut status = status.clone();
    status.operational_status = OperationalStatus::Error;
    status.error_type = Some(error_type);
    status.error_message = message.to_owned();
    status.error_count += 1;
    let reason = match error_type {
        ErrorType::ProvisionedRegistration => "ProvisionedRegistrationError",
        ErrorType::Registration => "RegistrationError",
        ErrorType::Inspection => "InspectionError",
        ErrorType::Preparation => "PreparationError",
        ErrorType::Provisioning => "ProvisioningError",
        ErrorType::PowerManagement => "PowerManagementError",
        ErrorType::Servicing => "ServicingError",
        ErrorType::Detach => "DetachError",
    };
    (status, Note { reason, message: message.to_owned(), warning: true })
}

/// Whether the status of a host says that it is registered. With what, its intent's [`Registration`] says.
pub fn says_registered(host: &BareMetalHost) -> bool {
    let id = host.status.as_ref().map(|status| &status.provisioning.id);
    host.metadata.uid.is_some() && id == host.metadata.uid.as_ref()
}

/// Name of the library's Image for an image of a host: the one that it names, or else one of its own, where the same source with
/// the same checksum is the same Image.
pub fn image_name(image: &HostImage) -> String {
    if let Some(name) = named(&image.url) {
        return name.to_owned();
    }
    let source = serde_json::json!([image.url, image.checksum, image.checksum_type, image.format]);
    let digest = Sha256::digest(source.to_string());
    let digits: String = hex(&digest[..8]);
    // Without user and password, which stand where a URL has no path.
    let shown = crate::outbound::masked(&image.url);
    let file = shown.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    let file = file.rsplit('/').next().unwrap_or_default();
    let stem: String = file
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(40)
        .collect::<String>()
        .trim_matches('-')
        .to_owned();
    if stem.is_empty() { format!("image-{digits}") } else { format!("{stem}-{digits}") }
}

/// Whether an Image of the library has the name that hosts give to one of its source. Another source under such a name is
/// somebody's own doing.
pub fn is_of_hosts(image: &Image) -> bool {
    let spec = &image.spec;
    if named(&spec.url).is_some() {
        return false;
    }
    let of_host = |format: Option<String>| HostImage {
        url: spec.url.clone(),
        checksum: spec.checksum.clone(),
        checksum_type: spec.checksum_type,
        format,
        oci_auth_secret_name: None,
    };
    // An empty format, which hosts may have, is none here.
    let empty = spec.format.is_none().then(String::new);
    let name = image.metadata.name.as_deref().unwrap_or_default();
    [spec.format.clone(), empty].into_iter().any(|format| image_name(&of_host(format)) == name)
}

/// A host under decision.
struct Decider<'a> {
    observed: &'a HostObservation<'a>,
    status: BareMetalHostStatus,
    notes: Vec<Note>,
}

impl<'a> Decider<'a> {
    fn new(observed: &'a HostObservation<'a>) -> Self {
        Self { observed, status: observed.host.status.clone().unwrap_or_default(), notes: Vec::new() }
    }

    fn deleting(&self) -> bool {
        self.observed.host.metadata.deletion_timestamp.is_some()
    }

    fn generation(&self) -> i64 {
        self.observed.host.metadata.generation.unwrap_or_default()
    }

    fn stamp(&self) -> Option<Time> {
        Some(Time(self.observed.now))
    }

    fn note(&mut self, reason: &'static str, message: impl Into<String>) {
        self.notes.push(Note { reason, message: message.into(), warning: false });
    }

    fn warn(&mut self, reason: &'static str, message: impl Into<String>) {
        self.notes.push(Note { reason, message: message.into(), warning: true });
    }

    fn boot_mode(&self) -> BootMode {
        self.observed.host.spec.boot_mode.unwrap_or_default()
    }

    /// Goes to a state; a success, so that failures are forgotten.
    fn enter(&mut self, state: ProvisioningState) -> AfterStore {
        self.status.provisioning.state = state;
        self.status.error_count = 0;
        self.clear_error();
        AfterStore::Again
    }

    fn clear_error(&mut self) {
        self.status.error_type = None;
        self.status.error_message.clear();
        self.status.operational_status = OperationalStatus::OK;
    }

    fn failed(&mut self, error_type: ErrorType, message: &str) -> AfterStore {
        let (status, note) = fail(&self.status, error_type, message);
        self.status = status;
        self.notes.push(note);
        AfterStore::Again
    }

    fn wait(&self, reason: impl Into<String>, until: Timestamp) -> AfterStore {
        AfterStore::Wait { reason: reason.into(), until }
    }

    fn poll(&self, reason: impl Into<String>) -> AfterStore {
        self.wait(reason, self.observed.now + self.observed.settings.power_poll.0)
    }
}

fn secret_reference(secret: &SecretName) -> SecretReference {
    SecretReference { name: Some(secret.name.clone()), namespace: Some(secret.namespace.clone()) }
}

fn one(action: StepAction) -> IntentStep {
    IntentStep { action, ..IntentStep::default() }
}

fn seconds(operation: &OperationMetric) -> i64 {
    operation.start.as_ref().map_or(0, |start| start.0.as_second())
}

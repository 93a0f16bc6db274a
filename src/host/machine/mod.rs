//! A host's life as a pure function: (what is stored, what is observed) gives (new status, one effect).
//!
//! [`step`] is called again and again until it waits. It never does anything itself, so a kill at any line
//! costs nothing: the next call sees the same world and asks for the same effect. States, transitions, error
//! types and events are those of Metal3 (reference section 2); what differs is said where it differs.
//!
//! The agent's part goes through the host's [`BootIntent`]: `ramdisk.rs` decides what to put there and
//! what its answers mean.

mod power;
mod ramdisk;
mod retry;
mod states;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sha2::{Digest, Sha256};

use crate::api::metal3::{
    BareMetalHost, BareMetalHostStatus, ErrorType, HardwareDetails, Image as HostImage, OperationalStatus,
    ProvisioningState, SecretReference,
};
use crate::api::slipway::{BootIntent, BootIntentSpec, Image, ImageSpec};
use crate::bmc::{BootDevice, PowerState};
use crate::config::HostConfig;

pub use retry::retry_delay;

/// Everything that a decision may look at.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
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
    /// The library's image for `spec.image`, see [`image_name`].
    pub image: Option<&'a Image>,
    /// The inspection that its HardwareData came from.
    pub hardware_from: Option<&'a str>,
    /// Another host that had the same boot MAC address first, as `namespace/name`.
    pub mac_owner: Option<&'a str>,
    /// Other hosts that are inspecting, provisioning or deprovisioning.
    pub busy: usize,
    /// `[host]` of the configuration.
    pub settings: &'a HostConfig,
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
pub struct Turn {
    /// The status to store, before anything else is done.
    pub status: BareMetalHostStatus,
    /// Events to publish once it is stored.
    pub notes: Vec<Note>,
    /// What comes then.
    pub next: Next,
}

/// An event of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Published reason (reference 1.13).
    pub reason: &'static str,
    /// For the operator.
    pub message: String,
    /// Whether something went wrong.
    pub warning: bool,
}

/// What comes after the status is stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
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
    /// The host is gone.
    Gone,
}

/// One thing to do in the world. Each may be done twice without harm.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put the finalizer on the host.
    AddFinalizer,
    /// Take the request for an inspection off the host: it has begun.
    DropInspectAnnotation,
    /// Read the power from the BMC.
    ReadPower,
    /// Store the boot intent.
    Intent(Box<BootIntentSpec>),
    /// Power off, boot from this device once, power on; then note the time in the intent.
    Boot(BootDevice),
    /// Power on.
    PowerOn,
    /// Power off: through the operating system first, when `soft`.
    PowerOff {
        /// Ask the operating system first.
        soft: bool,
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
    /// Let the intent go, which somebody deleted: a new one begins afresh.
    ForgetIntent,
    /// Drop the intent and every finalizer that the host holds, its own last.
    Release,
}

impl Effect {
    /// Which error its failure is, in this state.
    pub fn error_type(&self, state: ProvisioningState) -> ErrorType {
        match (self, state) {
            (Self::Boot(_), ProvisioningState::Provisioning) => ErrorType::PowerManagement,
            (Self::ReadPower, _) | (_, ProvisioningState::Registering) => ErrorType::Registration,
            (_, ProvisioningState::Inspecting) => ErrorType::Inspection,
            (_, ProvisioningState::Preparing) => ErrorType::Preparation,
            (_, ProvisioningState::Provisioning | ProvisioningState::Deprovisioning) => ErrorType::Provisioning,
            _ => ErrorType::PowerManagement,
        }
    }
}

/// Decides what comes next for a host.
pub fn step(world: &World) -> Turn {
    let mut life = Life::new(world);
    let next = life.step();
    Turn { status: life.status, notes: life.notes, next }
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

/// Name of the library's Image for an image of a host: the same source with the same checksum is the same Image.
pub fn image_name(image: &HostImage) -> String {
    let source = serde_json::json!([image.url, image.checksum, image.checksum_type, image.format]);
    let digest = Sha256::digest(source.to_string());
    let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let file = image.url.split(['?', '#']).next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
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

/// A host under decision.
struct Life<'a> {
    world: &'a World<'a>,
    status: BareMetalHostStatus,
    notes: Vec<Note>,
}

impl<'a> Life<'a> {
    fn new(world: &'a World<'a>) -> Self {
        Self { world, status: world.host.status.clone().unwrap_or_default(), notes: Vec::new() }
    }

    fn deleting(&self) -> bool {
        self.world.host.metadata.deletion_timestamp.is_some()
    }

    fn generation(&self) -> i64 {
        self.world.host.metadata.generation.unwrap_or_default()
    }

    fn stamp(&self) -> Option<Time> {
        Some(Time(self.world.now))
    }

    fn note(&mut self, reason: &'static str, message: impl Into<String>) {
        self.notes.push(Note { reason, message: message.into(), warning: false });
    }

    /// Goes to a state; a success, so that failures are forgotten.
    fn enter(&mut self, state: ProvisioningState) -> Next {
        self.status.provisioning.state = state;
        self.status.error_count = 0;
        self.clear_error();
        Next::Again
    }

    fn clear_error(&mut self) {
        self.status.error_type = None;
        self.status.error_message.clear();
        self.status.operational_status = OperationalStatus::OK;
    }

    fn failed(&mut self, error_type: ErrorType, message: &str) -> Next {
        let (status, note) = fail(&self.status, error_type, message);
        self.status = status;
        self.notes.push(note);
        Next::Again
    }

    fn wait(&self, reason: impl Into<String>, until: Timestamp) -> Next {
        Next::Wait { reason: reason.into(), until }
    }

    fn poll(&self, reason: impl Into<String>) -> Next {
        self.wait(reason, self.world.now + self.world.settings.power_poll.0)
    }
}

fn secret_reference(secret: &SecretName) -> SecretReference {
    SecretReference { name: Some(secret.name.clone()), namespace: Some(secret.namespace.clone()) }
}

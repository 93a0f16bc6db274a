//! Power and boot device of a machine through its management controller: Redfish and IPMI behind one trait.
//!
//! [`BmcRegistry::connect`] gives the connection of a checked [`BmcAddress`]. Every write is read back before it counts;
//! what particular controllers do differently is data in `config/bmc-quirks.toml`, read by [`quirks`].
//! [`sim`] is a simulated controller for tests and for trying things out without hardware.

pub mod address;
pub mod ipmi;
pub mod locate;
mod metrics;
pub mod probe;
pub mod quirks;
pub mod redfish;
pub mod registry;
pub mod settings;
pub mod sim;
#[cfg(test)]
mod tests;

use std::time::Duration;

use secrecy::SecretString;

use crate::api::metal3::HardwareDetails;
use crate::outbound::ForbiddenAddress;

pub use address::{AddressError, BmcAddress, BootInterface, Capabilities, Driver};
pub use metrics::BmcMetrics;
pub use probe::ProbeReport;
pub use registry::BmcRegistry;
pub use settings::BmcSettings;

/// User and password of a BMC.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password.
    pub password: SecretString,
}

/// Power as the BMC reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// On.
    On,
    /// Off.
    Off,
}

/// Health of the whole machine as the BMC sums it up (Redfish: `Status.HealthRollup`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// The BMC does not say.
    #[default]
    Unknown,
    /// Nothing is wrong.
    Ok,
    /// Something needs attention.
    Warning,
    /// Something needs attention at once.
    Critical,
}

/// What to do with the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerAction {
    /// On.
    On,
    /// Off at once.
    ForceOff,
    /// Off through the operating system (ACPI).
    SoftOff,
    /// Reset without going off.
    Reset,
}

/// Where to boot from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootDevice {
    /// The network.
    Pxe,
    /// The first disk.
    Disk,
    /// The CD drive, virtual media included.
    Cd,
    /// The URL that the controller has, see [`Bmc::boot_from_url`].
    UefiHttp,
}

/// Which firmware mode a boot device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirmwareMode {
    /// UEFI.
    Uefi,
    /// BIOS.
    Bios,
}

/// Why a BMC did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BmcError {
    /// The address cannot be used.
    #[error("{0}")]
    Address(String),
    /// Nothing answers.
    #[error("cannot reach the BMC at {peer}: {reason}")]
    Unreachable {
        /// Address and port.
        peer: String,
        /// Why.
        reason: String,
    },
    /// User or password are wrong, or the account may not do this.
    #[error("the BMC at {peer} refuses the credentials: {reason}")]
    Credentials {
        /// Address and port.
        peer: String,
        /// Why.
        reason: String,
        /// How many logins it refused for this; none where it let the account in, which may not do this.
        logins: u32,
    },
    /// It was not asked: logins were refused there before, and more of them might lock an account.
    #[error(
        "no login is tried there before {}: the BMC at {peer} refused {logins} of this namespace, and more could lock an account{}",
        .until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        if *.shared { "; hosts of another namespace use this BMC: correct the address or the credentials" } else { "" }
    )]
    Held {
        /// Address and port.
        peer: String,
        /// Refused logins.
        logins: u32,
        /// When the next one may be tried.
        until: jiff::Timestamp,
        /// Whether hosts of another namespace use this BMC.
        shared: bool,
    },
    /// The answer is not what the protocol says.
    #[error("the BMC at {peer} answered {reason}")]
    Protocol {
        /// Address and port.
        peer: String,
        /// What.
        reason: String,
    },
    /// It said yes and nothing changed.
    #[error("the BMC at {peer} accepted {what} but still reports {found} after {waited:?}")]
    NotApplied {
        /// Address and port.
        peer: String,
        /// What was set.
        what: String,
        /// What it reports.
        found: String,
        /// How long it was given.
        waited: Duration,
    },
    /// It was not asked: it must not be done from here.
    #[error("{0}")]
    Refused(String),
    /// It cannot do this.
    #[error("the BMC at {peer} cannot {what}")]
    Unsupported {
        /// Address and port.
        peer: String,
        /// What.
        what: String,
    },
}

impl From<ForbiddenAddress> for BmcError {
    fn from(refused: ForbiddenAddress) -> Self {
        Self::Address(format!("bmc.address: {refused}"))
    }
}

/// A machine's management controller. Every write is read back before it returns (docs/design/decisions.md, D9).
#[async_trait::async_trait]
pub trait Bmc: Send + Sync {
    /// Reads the power.
    async fn power(&self) -> Result<PowerState, BmcError>;
    /// Changes the power and waits until the BMC reports it.
    async fn set_power(&self, action: PowerAction) -> Result<(), BmcError>;
    /// Boots from this device once, at the next power-on, and reads it back. The machine should be off.
    async fn set_boot_device(&self, device: BootDevice, mode: FirmwareMode) -> Result<(), BmcError>;
    /// Reads what the BMC knows of the hardware, without the machine's help.
    ///
    /// # Errors
    ///
    /// [`BmcError::Unsupported`] where it knows nothing that could be shown.
    async fn inventory(&self) -> Result<HardwareDetails, BmcError> {
        Err(BmcError::Unsupported { peer: "its address".into(), what: "report the machine's hardware".into() })
    }
    /// Reads the health of the machine; [`Health::Unknown`] where the protocol has none.
    async fn health(&self) -> Result<Health, BmcError> {
        Ok(Health::Unknown)
    }
    /// Puts the image at this URL (`http` or `https`) into the virtual CD drive, in place of what is there, and reads
    /// it back. [`BmcError::Unsupported`] where there is no such drive.
    async fn insert_media(&self, url: &str) -> Result<(), BmcError> {
        let _secret = url;
        Err(no_virtual_media("insert a virtual CD"))
    }
    /// Empties the virtual CD drive; an empty one is left as it is.
    async fn eject_media(&self) -> Result<(), BmcError> {
        Err(no_virtual_media("eject a virtual CD"))
    }
    /// What is in the virtual CD drive: its URL, or what the controller shows instead, possibly nothing (an empty
    /// text). None when the drive is empty.
    async fn media(&self) -> Result<Option<String>, BmcError> {
        Err(no_virtual_media("say what its virtual CD is"))
    }
    /// Boots once, at the next power-on, what UEFI firmware loads from this URL (UEFI 2.5, HTTP boot), and reads it
    /// back. The machine should be off.
    async fn boot_from_url(&self, url: &str) -> Result<(), BmcError> {
        let _secret = url;
        Err(BmcError::Unsupported { peer: "this address".into(), what: "set a URL to boot from".into() })
    }
    /// What the controller is and can do. Changes nothing.
    async fn probe(&self) -> Result<ProbeReport, BmcError> {
        Err(BmcError::Unsupported { peer: "this address".into(), what: "say what it is".into() })
    }
}

fn no_virtual_media(what: &str) -> BmcError {
    BmcError::Unsupported { peer: "this address".into(), what: format!("{what}: its kind has no virtual media") }
}

//! What a machine boots: the pure decision, boot scripts, boot tokens and the boot HTTP endpoints.
//!
//! DHCP, iPXE and HTTP boot all ask [`decide`]; `slipway debug boot` prints its answer and reasons.
//! It reads [`HostIndex`], which a watch keeps current, and never waits for the API.

mod cached;
mod claim;
mod connections;
pub(crate) mod cpio;
mod decision;
pub mod download_scheduler;
mod files;
mod first_use;
pub mod home;
pub mod http;
mod if_range;
mod index;
pub mod iso;
mod listener;
pub mod live;
pub mod media;
mod metrics;
pub mod neighbour;
pub mod neighbour_table;
mod parts;
mod program;
pub mod published;
pub mod script;
pub mod token;

pub use claim::{BootClaim, ClaimOrder};
pub use decision::{BootClient, BootDecision, ClientKind, Firmware, NetworkBoot, UnknownMachine, decide, explain};
pub use download_scheduler::DownloadScheduler;
pub use files::{
    BootFiles, FileError, HTTP_FILES, INITRD, IPXE_BIOS, IPXE_UEFI, IPXE_UEFI_DRIVERS, ISO, KERNEL, MANIFEST,
    NameError, TFTP_FILES, boot_folder, lookup,
};
pub use http::{BootNetworks, BootServerConfig, BootServerConfigError, ConnInfo, LeaseOwner, router};
pub use index::{BootHost, DiscoveryState, HostIndex, IndexedIntent, Ownership};
pub use iso::IsoLayout;
pub use listener::{MAX_CONNECTIONS, serve};
pub use media::NetworkData;
pub use metrics::{BootAnswers, BootHttpMetrics};
pub use program::Program;
pub use script::{program_url, script_url};
pub use token::{BootKeyError, BootTokenClaims, BootTokenError, BootTokens, MintError, TokenBinding};

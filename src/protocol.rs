//! The agent protocol: what agent and appliance say to each other over 8443, TLS pinned to the appliance's CA.
//!
//! | call | answer |
//! |---|---|
//! | `POST /agent/v1/session` [`OpenSession`] | [`AgentSession`]; 403 with [`CallRefusal`] when the token is unknown, used or stale |
//! | `GET /agent/v1/step?after=ID` | the next [`AgentStep`], held up to [`STEP_WAIT_SECONDS`]; 204 when there is none yet |
//! | `POST /agent/v1/event` [`StepEvent`] | 204 |
//! | `POST /agent/v1/result` [`StepOutcome`] | 204, once it is durable |
//! | `POST /agent/v1/log` plain text | 204 |
//! | `GET /agent/v1/manifest/DIGEST` | [`ImageManifest`] |
//! | `GET /agent/v1/chunk/SHA256` | the stored bytes of a chunk: one zstd frame |
//!
//! All but the first carry `Authorization: Bearer <session>`. 401 means that the session is no longer the
//! current one: the agent stops touching disks at once and ends. 410 means the same for a step.

use serde::{Deserialize, Serialize};

use crate::api::metal3::{AutomatedCleaningMode, HardwareDetails, RootDeviceHints};
use crate::api::slipway::StepAction;

/// Kernel command line key: boot token.
pub const CMDLINE_TOKEN: &str = "slipway.token";
/// Kernel command line key: `https://address:port` of the appliance.
pub const CMDLINE_SERVER: &str = "slipway.server";
/// Kernel command line key: SHA-256 of the appliance's CA certificate (DER), hex.
pub const CMDLINE_CA: &str = "slipway.ca";
/// Kernel command line key: MAC address of the interface the firmware booted from (iPXE fills it in).
pub const CMDLINE_MAC: &str = "slipway.mac";

/// File in the ramdisk's root with further words of the command line, where a medium brings them.
pub const ARGS_FILE: &str = "slipway.args";
/// File in the ramdisk's root with the machine's network data ([`crate::network_data`]).
pub const NETWORK_FILE: &str = "slipway-network.json";

/// How long the appliance holds a call for the next step, in seconds.
pub const STEP_WAIT_SECONDS: u64 = 20;
/// Largest outcome of a step, in bytes; of an unknown machine that reports itself the appliance takes a quarter.
pub const MAX_RESULT: usize = 1 << 20;
/// Largest body of any other call of an agent, in bytes.
pub const MAX_CALL: usize = 64 << 10;
/// Largest piece of log in one call, in bytes.
pub const MAX_LOG: usize = 64 << 10;
/// Bytes of the disk that one chunk stands for.
pub const CHUNK_SIZE: u64 = 1 << 20;

/// Opens the session of this boot.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OpenSession {
    /// The boot token from the kernel command line.
    pub token: String,
    /// Version of the agent.
    pub version: String,
    /// MAC addresses of the machine's interfaces.
    pub mac_addresses: Vec<String>,
    /// SMBIOS system UUID, empty when unknown.
    pub uuid: String,
    /// Whether the machine was started by UEFI firmware.
    pub uefi: bool,
}

/// An open session.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AgentSession {
    /// Bearer token of the calls that follow.
    pub session: String,
    /// `namespace/name` of the host.
    pub host: String,
    /// Generation of the boot intent. Steps of another generation must not be done.
    pub generation: i64,
    /// Unix time of the appliance in seconds; nodes' clocks are often wrong.
    pub now: i64,
}

/// Why a call was refused.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct CallRefusal {
    /// For the node's console and log.
    pub reason: String,
}

/// One thing to do.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct AgentStep {
    /// Unique within the session's intent.
    pub id: String,
    /// Generation of the boot intent it belongs to.
    pub generation: i64,
    /// What to do.
    #[serde(flatten)]
    pub action: Action,
}

/// What to do.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "action", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Action {
    /// Report the hardware in the outcome's `inventory`.
    Inspect,
    /// Wipe every disk's partition tables and file system signatures (`metadata`).
    Erase {
        /// What is wiped.
        mode: AutomatedCleaningMode,
    },
    /// Write an image to the root disk.
    WriteImage {
        /// Digest of the manifest.
        digest: String,
        /// Which disk; the smallest over 4 GiB that is not removable when there are no hints.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root_device_hints: Option<RootDeviceHints>,
    },
    /// Add a partition with this file system image at the end of the root disk.
    WriteConfigDrive {
        /// ISO 9660 labelled `config-2`, base64.
        iso: String,
        /// Which disk, as for `write-image`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root_device_hints: Option<RootDeviceHints>,
    },
    /// Make UEFI firmware boot the root disk; nothing to do under BIOS.
    SetBootEntry {
        /// Which disk, as for `write-image`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root_device_hints: Option<RootDeviceHints>,
    },
    /// Start the system on the root disk without the firmware, or through it where that cannot be. The outcome, which
    /// says which of the two, is sent first.
    Kexec {
        /// Which disk, as for `write-image`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root_device_hints: Option<RootDeviceHints>,
    },
    /// Start again through the firmware. The outcome is sent first.
    Reboot,
    /// Power off. The outcome is sent first.
    PowerOff,
    /// Send the log.
    CollectLogs,
}

impl Action {
    /// Which action it is, without what it needs: the step's `action` in a boot intent, and its name.
    pub fn kind(&self) -> StepAction {
        match self {
            Self::Inspect => StepAction::Inspect,
            Self::Erase { .. } => StepAction::Erase,
            Self::WriteImage { .. } => StepAction::WriteImage,
            Self::WriteConfigDrive { .. } => StepAction::WriteConfigDrive,
            Self::SetBootEntry { .. } => StepAction::SetBootEntry,
            Self::Kexec { .. } => StepAction::Kexec,
            Self::Reboot => StepAction::Reboot,
            Self::PowerOff => StepAction::PowerOff,
            Self::CollectLogs => StepAction::CollectLogs,
        }
    }
}

/// How far a step is. At most one a second.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StepEvent {
    /// Step id; empty before the first step.
    pub step: String,
    /// What it is doing, in a word or two.
    pub phase: String,
    /// Bytes done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<u64>,
    /// Bytes in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<u64>,
    /// For the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How a step ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StepOutcome {
    /// Step id.
    pub step: String,
    /// Whether it did what it was to do.
    pub succeeded: bool,
    /// For the operator: what was done, or the reason of the failure with its causes.
    pub message: String,
    /// The hardware, from `inspect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<HardwareDetails>,
    /// The machine's BMC as it is seen from inside, from `inspect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<FoundBmc>,
    /// Last lines of the node's log, when it failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

/// A BMC, as its own machine sees it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FoundBmc {
    /// IP address on its LAN channel; empty when it cannot be read or there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// MAC address of that channel, empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Whether it speaks IPMI.
    #[serde(default)]
    pub ipmi: bool,
    /// Whether its firmware says that it speaks Redfish.
    #[serde(default)]
    pub redfish: bool,
}

/// An image as chunks. What no chunk covers reads as zeros.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    /// Bytes on a disk.
    pub virtual_size: u64,
    /// Chunks by rising offset, none overlapping.
    pub chunks: Vec<Chunk>,
    /// Of an archive, which is no disk: where its catalog begins, which goes on to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<u64>,
}

/// One piece of an image.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it goes, in bytes.
    pub offset: u64,
    /// Bytes on the disk, at most [`CHUNK_SIZE`].
    pub length: u32,
    /// SHA-256 of the stored bytes, hex: the chunk's name, checked before anything is unpacked.
    pub sha256: String,
    /// Stored bytes, one zstd frame.
    pub stored: u32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_action_has_the_name_of_its_kind() {
        let written = schemars::schema_for!(StepAction).to_value();
        let names = written["oneOf"].as_array().unwrap().iter().map(|name| name["const"].as_str().unwrap());
        let names: Vec<&str> = names.collect();
        assert_eq!(names.len(), 9, "{written}");
        for name in names {
            // With all that any of them needs: what one does not know, it does not look at.
            let action = json!({ "action": name, "mode": "metadata", "digest": "d", "iso": "i" });
            let action: Action = serde_json::from_value(action).unwrap();
            assert_eq!(action.kind().to_string(), name);
            assert_eq!(serde_json::to_value(&action).unwrap()["action"], name);
        }
    }
}

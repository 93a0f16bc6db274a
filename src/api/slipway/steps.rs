//! What an agent does for its host, step by step.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::metal3::{AutomatedCleaningMode, RootDeviceHints};

/// One step of an intent. Secrets are not here: they are read when the agent fetches the step.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IntentStep {
    /// Unique within the intent: `<generation>.<number>`.
    pub id: String,
    /// What to do.
    pub action: StepAction,
    /// The operation it belongs to. After a failed step none of the same operation follows.
    #[serde(default)]
    pub operation: String,
    /// For `write-image`: digest in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For `write-image`: which disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_device_hints: Option<RootDeviceHints>,
    /// For `erase`: what is erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erase: Option<AutomatedCleaningMode>,
}

/// What an agent can do.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum StepAction {
    /// Report the hardware.
    #[default]
    Inspect,
    /// Wipe disks.
    Erase,
    /// Write an image to the root disk.
    WriteImage,
    /// Add the config drive to the root disk.
    WriteConfigDrive,
    /// Make the firmware boot the root disk.
    SetBootEntry,
    /// Start the installed system, without the firmware where that can be.
    Kexec,
    /// Start again through the firmware.
    Reboot,
    /// Power off.
    PowerOff,
    /// Send the node's log.
    CollectLogs,
}

/// As it is written: its name in JSON.
impl fmt::Display for StepAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl StepAction {
    /// What an agent does then, for people.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Inspect => "inspecting the hardware",
            Self::Erase => "erasing the disks",
            Self::WriteImage => "writing the image",
            Self::WriteConfigDrive => "writing the config drive",
            Self::SetBootEntry => "setting the boot entry",
            Self::Kexec => "starting the installed system",
            Self::Reboot => "starting again",
            Self::PowerOff => "powering off",
            Self::CollectLogs => "sending its log",
        }
    }
}

/// How far the step under way is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StepProgress {
    /// Step id.
    pub step: String,
    /// What it is doing, in a word or two.
    pub phase: String,
    /// 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// Bytes done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<i64>,
    /// Bytes in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<i64>,
    /// Bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,
    /// For the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the phase began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// How a step ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StepResult {
    /// Step id.
    pub id: String,
    /// Whether it did what it was to do.
    pub succeeded: bool,
    /// For the operator; the reason when it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
}

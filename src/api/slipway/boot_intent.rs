//! What a host is to boot next, and what its agent's session said.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::steps::{IntentStep, StepAction, StepProgress, StepResult};
use crate::api::metal3::HardwareDetails;

/// On a BootIntent: its host lives, so that neither a namespace's end nor anybody else takes the intent from under it.
pub const FINALIZER_INTENT: &str = "slipway.dev/host";

/// What a host is to boot next, and what its agent is to do: the boot intent. Same name and namespace as its
/// BareMetalHost. Written by the host's reconciler (spec) and by the agent's session (status).
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "BootIntent",
    plural = "bootintents",
    singular = "bootintent",
    namespaced,
    status = "BootIntentStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Generation","type":"integer","jsonPath":".spec.generation","description":"Counts the boots asked for"}"#,
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".spec.target","description":"What is to boot"}"#,
    printcolumn = r#"{"name":"Step","type":"string","jsonPath":".status.progress.step","description":"Step under way"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.progress.phase","description":"Phase of the step"}"#,
    printcolumn = r#"{"name":"Percent","type":"integer","jsonPath":".status.progress.percent","description":"How far the step is"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BootIntentSpec {
    /// Rises by one with every boot asked for. Tokens, sessions and steps of another generation are refused.
    pub generation: i64,
    /// What the machine boots.
    pub target: BootTarget,
    /// What the agent does, in order. Grows while the agent stays up.
    #[serde(default)]
    pub steps: Vec<IntentStep>,
    /// The operation that this boot serves, as `inspect@<start>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// When the machine was powered on for it; unset until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When the machine, off and set up for this boot, was about to be powered on. If it is on although `started` is
    /// unset, it was powered on for this boot and nobody came to note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub powering_on: Option<Time>,
    /// For `live-iso`: digest in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_iso: Option<String>,
    /// Whether every disk was wiped since something was last written to one.
    #[serde(default)]
    pub disks_clean: bool,
    /// `metadata.generation` of the host when the operation was last begun; a newer one ends a back-off.
    #[serde(default)]
    pub host_generation: i64,
}

impl BootIntent {
    /// Whether the machine is to say in this boot what it is.
    pub fn inspects(&self) -> bool {
        self.spec.steps.iter().any(|step| step.action == StepAction::Inspect)
    }

    /// Whether it is of the host with this UID. A host of the same name that was made anew begins with an intent of its
    /// own; one that nobody owns was made by hand, and is the host's of its name.
    pub fn is_of(&self, uid: &str) -> bool {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().find(|owner| owner.controller == Some(true)).is_none_or(|owner| owner.uid == uid)
    }
}

/// What a machine boots.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum BootTarget {
    /// Its own disk.
    #[default]
    Disk,
    /// Slipway's ramdisk.
    Ramdisk,
    /// An ISO that is not written anywhere, at each power-on.
    #[serde(rename = "live-iso")]
    LiveIso,
}

/// What the agent's session said.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BootIntentStatus {
    /// The session of the current generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionStatus>,
    /// The step under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StepProgress>,
    /// Steps that ended.
    #[serde(default)]
    pub results: Vec<StepResult>,
    /// The hardware, from the last `inspect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<HardwareDetails>,
    /// Last lines of the node's log, kept when a step fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

/// The agent's session.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatus {
    /// Generation of the intent it was opened for.
    pub generation: i64,
    /// Nonce of the boot token that opened it; that token opens nothing again.
    pub token_nonce: String,
    /// Address it came from.
    pub address: String,
    /// When it was opened.
    pub opened: Option<Time>,
    /// When the agent was last heard, to within some seconds.
    pub last_seen: Option<Time>,
    /// Whether it made a call after it was opened. Until then the machine may open it again: the answer may be lost.
    #[serde(default)]
    pub used: bool,
    /// Network cards that the machine may answer by beside the host's: those that it said it has, where nobody else says which
    /// it has, since it was not inspected yet or is to be inspected anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<String>,
    /// Network of the configuration that its boot script was asked from; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
}

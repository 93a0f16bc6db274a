//! What the agent waits for, as a file in memory: for whoever asks on the node.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::files;

/// The file.
const NAME: &str = "contact.json";
/// Its largest size in bytes.
const MOST: u64 = 4 << 20;

/// How things are.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeAgentContact {
    pub version: String,
    pub process: u32,
    pub at: Option<Time>,
    /// Why the appliance is not reached, if so.
    pub trouble: String,
    pub is_gone: bool,
    /// Why keys are not as they are to be, if so.
    pub keys: String,
    /// Why steps are not begun, by name.
    pub waits: BTreeMap<String, String>,
}

impl NodeAgentContact {
    /// Writes it; one that cannot be written is missed by nobody but who asks.
    pub fn write(&self, folder: &Path) {
        if let Ok(text) = serde_json::to_vec(self) {
            files::replace(&folder.join(NAME), &text, 0o600).ok();
        }
    }

    /// Reads it, if it is there.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&crate::files::read(&folder.join(NAME), MOST).ok()?).ok()
    }
}

//! What the annotations of a host ask for (docs/design/host.md, "Annotations").

use serde::Deserialize;

use super::Decider;
use crate::api::metal3::{
    ANNOTATION_DETACHED, ANNOTATION_INSPECT, ANNOTATION_REBOOT, BareMetalHost, InspectionMode,
    ProvisioningState as State,
};

/// One request for a reboot, or to be held off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RebootRequest<'a> {
    /// The whole key.
    pub key: &'a str,
    /// Whether its client wants the host off until it takes the annotation away itself.
    pub held: bool,
    /// Off at once, without asking the operating system.
    pub hard: bool,
    /// Also where nothing is provisioned.
    pub force: bool,
}

/// How to detach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DetachAnnotation {
    /// A deletion waits until the annotation is gone.
    pub delay_deletion: bool,
    /// Whatever is under way.
    pub force: bool,
}

#[derive(Deserialize, Default)]
struct RebootArguments {
    #[serde(default)]
    mode: String,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct DetachArguments {
    #[serde(default)]
    delete_action: String,
    #[serde(default)]
    force: bool,
}

/// Every request for a reboot. What cannot be read asks for the soft way, as upstream.
pub(super) fn reboots(host: &BareMetalHost) -> impl Iterator<Item = RebootRequest<'_>> {
    let all = host.metadata.annotations.iter().flatten();
    all.filter_map(|(key, value)| {
        let suffix = key.strip_prefix(ANNOTATION_REBOOT).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
        let arguments: RebootArguments = serde_json::from_str(value).unwrap_or_default();
        Some(RebootRequest { key, held: !suffix.is_empty(), hard: arguments.mode == "hard", force: arguments.force })
    })
}

/// Whether the host is to be detached. Any value will do; one that cannot be read asks for nothing further.
pub(super) fn detach(host: &BareMetalHost) -> Option<DetachAnnotation> {
    let value = host.metadata.annotations.as_ref()?.get(ANNOTATION_DETACHED)?;
    let arguments: DetachArguments = serde_json::from_str(value).unwrap_or_default();
    Some(DetachAnnotation { delay_deletion: arguments.delete_action == "delay", force: arguments.force })
}

impl<'a> Decider<'a> {
    pub(super) fn annotation(&self, key: &str) -> Option<&'a str> {
        self.observed.host.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The requests that count in the present state: all of them where a system is installed, elsewhere those that
    /// insist.
    pub(super) fn reboots_that_count(&self) -> Vec<RebootRequest<'a>> {
        let installed = matches!(self.status.provisioning.state, State::Provisioned | State::ExternallyProvisioned);
        reboots(self.observed.host).filter(|reboot| installed || reboot.force).collect()
    }

    pub(super) fn inspection_disabled(&self) -> bool {
        self.observed.host.spec.inspection_mode == Some(InspectionMode::Disabled)
            || self.annotation(ANNOTATION_INSPECT) == Some("disabled")
    }

    pub(super) fn inspection_asked(&self) -> bool {
        self.annotation(ANNOTATION_INSPECT) == Some("") && !self.inspection_disabled()
    }
}

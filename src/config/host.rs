//! `[host]`.

use std::time::Duration;

use serde::Deserialize;

use super::Span;

/// `[host]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct HostConfig {
    /// How long a machine may take from power-on to its agent's first call.
    pub boot_deadline: Span,
    /// How long an agent may be silent.
    pub agent_deadline: Span,
    /// Hosts inspecting, provisioning or deprovisioning at once.
    pub busy_limit: usize,
    /// Failed attempts after which an image is not tried again; 0: never give up.
    pub provisioning_retries: i64,
    /// First back-off after a failure; doubles up to 512 times.
    pub retry: Span,
    /// How often power is read when nothing else happens.
    pub power_poll: Span,
    /// A host that should move and has not for so long is reported as stuck.
    pub stuck_after: Span,
    /// How an installed system is started for the first time.
    pub first_boot: FirstBoot,
}

/// How an installed system is started for the first time.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum FirstBoot {
    /// By the firmware, after a power-off: every later start will be the same.
    #[default]
    Firmware,
    /// By the ramdisk's kernel, which saves the firmware's time; by the firmware where that cannot be.
    Kexec,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            boot_deadline: Span(Duration::from_secs(900)),
            agent_deadline: Span(Duration::from_secs(120)),
            busy_limit: 20,
            provisioning_retries: 5,
            retry: Span(Duration::from_secs(60)),
            power_poll: Span(Duration::from_secs(60)),
            stuck_after: Span(Duration::from_secs(1200)),
            first_boot: FirstBoot::Firmware,
        }
    }
}

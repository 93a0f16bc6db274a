//! `[log]` and `[audit]`: what is written down.

use serde::Deserialize;

/// `[log]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// A level, or `room=level` pairs with commas.
    pub level: String,
    /// Where lines go and how they look.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Auto }
    }
}

/// `[audit]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// Megabytes (10⁶ bytes) after which the file is set aside.
    pub max_size_mb: u64,
    /// Files kept beside the one that is written.
    pub max_files: usize,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { max_size_mb: 100, max_files: 10 }
    }
}

/// Where log lines go, and how they look.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// To systemd's journal where standard error is connected to it, else text.
    Auto,
    /// Text for people, on standard error.
    Text,
    /// JSON for programs, on standard error.
    Json,
    /// To systemd's journal, with priorities and fields.
    Journal,
}

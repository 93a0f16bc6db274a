//! `/etc/slipway/node.json`: where the appliance is, and which machine this is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::files;

/// Longest configuration in bytes.
const MOST: u64 = 1 << 20;

/// What the agent of a node goes by, as its user data lays it down.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfig {
    /// The appliance's API: `https://ADDRESS:PORT`.
    pub server: String,
    /// The appliance's CA certificate, as PEM. Nobody else is believed.
    pub ca_certificate: String,
    /// Namespace of the LCMMachine.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// File with the token of its account. It is written anew when the token is renewed.
    pub token_file: PathBuf,
    /// A user beside root whose `authorized_keys` are kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ssh_user: String,
    /// What must survive a reboot.
    #[serde(default = "state_folder")]
    pub state_folder: PathBuf,
    /// What must not: in memory.
    #[serde(default = "run_folder")]
    pub run_folder: PathBuf,
    /// Below which the node's own files are read: `/`, and elsewhere in tests.
    #[serde(default = "root")]
    pub root: PathBuf,
    /// The agent's program, which is replaced; the one that runs where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// How the node is rebooted.
    #[serde(default = "reboot_command")]
    pub reboot_command: Vec<String>,
    /// `PATH` of steps.
    #[serde(default = "search_path")]
    pub path: String,
    /// Pauses, where others than the usual ones are wanted.
    #[serde(default)]
    pub pauses: AgentPauses,
}

fn state_folder() -> PathBuf {
    "/var/lib/slipway-node".into()
}

fn run_folder() -> PathBuf {
    "/run/slipway-node".into()
}

fn root() -> PathBuf {
    "/".into()
}

fn reboot_command() -> Vec<String> {
    vec!["systemctl".into(), "reboot".into()]
}

fn search_path() -> String {
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()
}

/// How long what is waited for, in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentPauses {
    /// Between two reports where nothing changed.
    pub heartbeat: u64,
    /// Before a step is tried again for the first time; it doubles.
    pub retry_least: u64,
    /// Longest pause before a step is tried again.
    pub retry_most: u64,
    /// Before the appliance is asked again that did not answer; it doubles.
    pub call_least: u64,
    /// Longest such pause.
    pub call_most: u64,
    /// How long a new program has to report.
    pub trial: u64,
    /// How long what a step left has to end by itself.
    pub grace: u64,
}

impl Default for AgentPauses {
    fn default() -> Self {
        Self {
            heartbeat: 60_000,
            retry_least: 10_000,
            retry_most: 300_000,
            call_least: 1_000,
            call_most: 60_000,
            trial: 600_000,
            grace: 10_000,
        }
    }
}

impl AgentPauses {
    /// How long is waited before try number `tries` + 1: twice as long each time, within bounds.
    pub(super) fn after(least: u64, most: u64, tries: i32) -> Duration {
        let doublings = u32::try_from(tries.max(1) - 1).unwrap_or(0).min(30);
        Duration::from_millis(least.saturating_mul(1 << doublings).min(most))
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeConfigError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A field is missing or wrong.
    #[error("{path}: {fault}")]
    Fault {
        /// The file.
        path: PathBuf,
        /// Which, and what it must be.
        fault: String,
    },
}

impl NodeConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// When it cannot be read, or a field cannot be used.
    pub fn load(path: &Path) -> Result<Self, NodeConfigError> {
        let text =
            files::read_text(path, MOST).map_err(|source| NodeConfigError::Read { path: path.to_owned(), source })?;
        let fault = |fault: String| NodeConfigError::Fault { path: path.to_owned(), fault };
        let config: Self = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        config.check().map_err(fault)?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let server = reqwest::Url::parse(&self.server).map_err(|error| format!("server: {error}"))?;
        if server.scheme() != "https" || server.host().is_none() {
            return Err("server must be https://ADDRESS:PORT".into());
        }
        super::tls::roots(&self.ca_certificate).map_err(|error| format!("caCertificate: {error}"))?;
        for (field, name) in [("namespace", &self.namespace), ("name", &self.name)] {
            // RFC 1123 names, which need no escape in a path.
            let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.';
            if name.is_empty() || name.len() > 253 || !name.bytes().all(good) || name.starts_with('.') {
                return Err(format!("{field} must be the name of an object"));
            }
        }
        let folders = [
            ("tokenFile", &self.token_file),
            ("stateFolder", &self.state_folder),
            ("runFolder", &self.run_folder),
            ("root", &self.root),
        ];
        if let Some((field, _)) = folders.iter().find(|(_, path)| !path.is_absolute()) {
            return Err(format!("{field} must be an absolute path"));
        }
        if self.reboot_command.is_empty() {
            return Err("rebootCommand must name a program".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_the_field() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.json");
        let ca = rcgen::generate_simple_self_signed(vec!["x".into()]).unwrap().cert.pem();
        let good = serde_json::json!({"server": "https://192.0.2.1:8443", "caCertificate": ca, "namespace": "default",
            "name": "n1", "tokenFile": "/etc/slipway/node.token"});
        let load = |value: &serde_json::Value| {
            std::fs::write(&path, value.to_string()).unwrap();
            NodeConfig::load(&path).map_err(|error| error.to_string())
        };
        let config = load(&good).unwrap();
        assert_eq!(config.state_folder, Path::new("/var/lib/slipway-node"));
        assert_eq!(config.pauses, AgentPauses::default());
        for (field, bad) in [
            ("server", "http://192.0.2.1:8443"),
            ("server", "x"),
            ("caCertificate", "x"),
            ("namespace", "../x"),
            ("name", ""),
            ("name", "a/b"),
            ("tokenFile", "token"),
        ] {
            let mut other = good.clone();
            other[field] = bad.into();
            let error = load(&other).unwrap_err();
            assert!(error.contains(field), "{field} {bad}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(NodeConfig::load(&path).unwrap_err().to_string().contains("node.json"));
    }

    #[test]
    fn pauses_double_within_bounds() {
        let pause = |tries| AgentPauses::after(10_000, 300_000, tries).as_secs();
        assert_eq!([0, 1, 2, 3, 5, 6, i32::MAX].map(pause), [10, 10, 20, 40, 160, 300, 300]);
    }
}

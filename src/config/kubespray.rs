//! `[kubespray]`: the checkout whose playbooks are run, and the Ansible that runs them.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::Span;

/// `[kubespray]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct KubesprayConfig {
    /// Folder of a kubespray checkout; unset: no playbook is run.
    pub path: Option<PathBuf>,
    /// Folder of a virtual environment with the Ansible that this checkout wants.
    pub ansible: Option<PathBuf>,
    /// How long a run may last; a minute to a week.
    pub timeout: Span,
    /// How long a host may take to answer; 5 seconds to an hour.
    pub host_timeout: Span,
    /// Hosts at once, each with a process; 1 to 100.
    pub forks: u16,
    /// Runs of Provisionings at once, of a namespace half of them; 1 to 16.
    pub runs: u16,
}

impl Default for KubesprayConfig {
    fn default() -> Self {
        Self {
            path: None,
            ansible: None,
            timeout: Span(Duration::from_secs(4 * 3600)),
            host_timeout: Span(Duration::from_secs(60)),
            forks: 10,
            runs: 2,
        }
    }
}

impl KubesprayConfig {
    /// What is wrong with it, one line for each fault.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, folder) in [("path", &self.path), ("ansible", &self.ansible)] {
            if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_absolute()) {
                faults.push(format!("kubespray.{name} {folder:?} must be an absolute path"));
            }
        }
        if self.path.is_some() != self.ansible.is_some() {
            faults.push(
                "kubespray.path and kubespray.ansible: both are needed, a checkout and a virtual environment".into(),
            );
        }
        let seconds = Duration::from_secs;
        if !(seconds(60)..=seconds(7 * 24 * 3600)).contains(&self.timeout.0) {
            faults.push("kubespray.timeout must be 1m to 168h".into());
        }
        if !(seconds(5)..=seconds(3600)).contains(&self.host_timeout.0) {
            faults.push("kubespray.host_timeout must be 5s to 1h".into());
        }
        if !(1..=100).contains(&self.forks) {
            faults.push("kubespray.forks must be 1 to 100".into());
        }
        if !(1..=16).contains(&self.runs) {
            faults.push("kubespray.runs must be 1 to 16".into());
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn a_checkout_needs_its_ansible() {
        for (text, wanted) in [
            ("", None),
            ("path = '/k'\nansible = '/a'", None),
            ("path = '/k'", Some("both are needed")),
            ("ansible = '/a'", Some("both are needed")),
            ("path = 'k'\nansible = '/a'", Some("kubespray.path \"k\" must be an absolute")),
            ("path = '/k'\nansible = 'a'", Some("kubespray.ansible \"a\" must be an absolute")),
            ("timeout = '59s'", Some("kubespray.timeout must be 1m to 168h")),
            ("host_timeout = '2h'", Some("kubespray.host_timeout must be 5s to 1h")),
            ("forks = 0", Some("kubespray.forks must be 1 to 100")),
        ] {
            match (Config::parse(&format!("[kubespray]\n{text}"), Path::new("x.toml")), wanted) {
                (Ok(_), None) => {}
                (Err(error), Some(part)) if error.to_string().contains(part) => {}
                (result, _) => panic!("{text}: {:?}", result.err()),
            }
        }
    }
}
